"""What cudarelu.onnx.accelerate finds and leaves in a model."""

from __future__ import annotations

import dataclasses
import json
import re

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import cudarelu
import cudarelu.onnx
from support.accelerate import (
    HALF,
    ROOT,
    TANH,
    THREE,
    X,
    accelerated,
    body,
    ours,
    parse,
    with_constants,
)

INVERSE = "r = Constant<value_float = 0.70710678>()"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("y = Relu(x)", ["relu"]),
        ("y = LeakyRelu(x)", ["leaky_relu"]),
        ("s = Constant<value_float = 0.25>() y = PRelu(x, s)", ["leaky_relu"]),
        ("a = Add(x, b) y = Relu(a)", ["bias_relu"]),
        ("a = Add(b, x) y = Relu(a)", ["bias_relu"]),
        ("a = Add(x, b) r = Relu(a) k = Constant<value_float = 0.5>() y = Mul(k, r)",
         ["bias_relu"]),
        ("a = Add(b, x) r = Relu(a) k = Constant<value_floats = [0.5]>() y = Mul(r, k)",
         ["bias_relu"]),
        ("k = Constant<value_float = 0.5>() s = Mul(x, k) y = Add(x, s)", ["scaled_add"]),
        ("k = Constant<value_float = 0.5>() r = Relu(x) y = Mul(r, k)", ["relu_scale"]),
        ("k = Constant<value_float = 0.5>() y = Mul(x, k)", ["scale"]),
        ("y = Mul(x, x)", ["mul"]),
        ("k = Constant<value_float = 0.5>() m = Mul(x, k) y = Add(m, m)", ["scale", "add"]),
        (f"{HALF} {ROOT} a = Div(x, r) e = Erf(a) s = Add(e, o) p = Mul(x, s) y = Mul(h, p)",
         ["gelu"]),
        (f"{HALF} {INVERSE} a = Mul(x, r) e = Erf(a) s = Add(o, e) p = Mul(x, h) y = Mul(p, s)",
         ["gelu"]),
        (f"{HALF} {TANH} {THREE} c = Pow(x, n) k = Mul(c, d) u = Add(x, k) a = Mul(u, f)"
         " t = Tanh(a) s = Add(t, o) p = Mul(h, s) y = Mul(x, p)", ["gelu"]),
        (f"{HALF} {TANH} c = Mul(d, x) q = Mul(x, x) k = Mul(c, q) u = Add(k, x) a = Mul(f, u)"
         " t = Tanh(a) s = Add(o, t) p = Mul(x, s) y = Mul(p, h)", ["gelu"]),
        ("y = Softmax(x)", ["softmax"]),
        ("y = Softmax<axis = 1>(x)", ["softmax"]),
        ("a = Tanh(x) y = Asinh(a)", ["tanh", "asinh"]),
        ("a = Relu(x) c = Add(a, x) y = Relu(c)", ["relu", "relu", "add"]),
        ("i = Constant<value_int = 1>() f = Cast<to = 1>(i) y = Mul(x, f)", ["scale"]),
    ],
)  # fmt: skip
def test_found(text, found):
    result, replaced, _ = accelerated(body(text))
    assert sorted(replaced) == sorted(ours(result)) == sorted(found)
    assert {node.domain for node in result.graph.node} == {"cudarelu"}  # no constant remains
    assert not result.graph.initializer


@pytest.mark.parametrize(
    ("text", "y", "found", "reason"),
    [
        ("y = Softmax<axis = 0>(x)", "[N,4]", [], "the axis of Softmax is 0, not -1"),
        ("y = Add(x, b)", "[N,4]", [],
         r"a \[N, 4\], b \[4\] is not known to be a \[\*\], b \[\*\]"),
        ("k = Constant<value_float = 2.0>() y = Add(x, k)", "[N,4]", [], r"b \[\] is not known"),
        ("c = Constant<value = float[3,1] {1, 2, 3}>() a = Add(x, c) y = Relu(a)", "[3,4]",
         ["relu"], r"bias \[3, 1\]"),
        ("c = Constant<value = float[1,1,4] {1, 2, 3, 4}>() a = Add(x, c) y = Relu(a)",
         "[1,N,4]", ["relu"], r"bias \[1, 1, 4\]"),
        ("c = Constant<value = float[1,1,1] {0.5}>() y = Mul(x, c)", "[1,N,4]", [], "of rank 3"),
        ("a = Add(x, b) c = Relu(a) y = Mul(c, a)", "[N,4]", ["relu", "mul"],
         "the result of Add is used elsewhere"),
        ("m = ReduceMean(x) c = Sub(x, m) q = Mul(c, c) v = ReduceMean(q)"
         " e = Constant<value_float = 0.5>() s = Add(v, e) d = Sqrt(s) y = Div(c, d)", "[N,4]",
         ["mul"], r"the axes of ReduceMean is None, not \[-1\]"),
    ],
)  # fmt: skip
def test_left(text, y, found, reason):
    _, replaced, reasons = accelerated(body(text, f"float{y} y"))
    assert sorted(replaced) == sorted(found)
    assert any(re.search(reason, each) for each in reasons)


@pytest.mark.parametrize(
    ("constant", "shape"),
    [
        ("float[4] {1, -2, 3, -4}", [4]),
        ("float[1,4] {1, -2, 3, -4}", [4]),
        ("float[1] {1}", [4]),
        ("float {1}", [4]),
    ],
)
def test_constants_that_broadcast_as_a_bias(constant, shape):
    text = f"c = Constant<value = {constant}>() a = Add(c, x) y = Relu(a)"
    result, replaced, _ = accelerated(body(text))
    assert replaced == ["bias_relu"]
    (value,) = [node for node in result.graph.node if node.op_type == "Constant"]
    assert list(value.attribute[0].t.dims) == shape


def test_sizes_that_are_not_known_to_be_equal():
    for a, b, found in (("N,4", "N,4", 0), ("N,4", "M,4", 0), ("?,4", "?,4", 0), ("2,4", "2,4", 1)):
        text = f"main (float[{a}] x, float[{b}] b) => (float[{a}] y) {{ y = Add(x, b) }}"
        _, report = cudarelu.onnx.accelerate(parse(text))
        assert len(report.replaced) == found
    _, report = cudarelu.onnx.accelerate(
        parse("main (float[?,4] x) => (float[?,4] y) { y = Add(x, x) }")
    )
    assert len(report.replaced) == 1  # a value has the same size as itself


def test_shapes_that_are_not_known():
    text = "a = Add(x, b) c = Softmax(a) y = Softmax<axis = 1>(c)"
    model = parse(f"main (float x, float b) => (float y) {{ {text} }}")
    for each in (*model.graph.input, *model.graph.output):
        each.type.tensor_type.ClearField("shape")
    _, report = cudarelu.onnx.accelerate(model)
    assert [each.op for each in report.replaced] == ["softmax"]
    reasons = {each.op: each.reason for each in report.left}
    assert reasons["add"] == "the shape of x is not known"
    assert reasons["softmax"] == "Softmax has axis 1 of a tensor of unknown rank"


@pytest.mark.parametrize("dtype", ["float16", "double", "bfloat16", "int32", "int16", "string"])
def test_dtypes(dtype):
    model = parse(f"main ({dtype}[N] x) => ({dtype}[N] y) {{ y = Identity(x) }}")
    model.graph.node[0].op_type = "Relu" if dtype != "string" else "Identity"
    _, report = cudarelu.onnx.accelerate(model)
    assert bool(report.replaced) == (dtype not in ("int16", "string"))
    assert [each.reason for each in report.left] == (
        ["relu does not take inputs int16"] if dtype == "int16" else []
    )


def test_an_attribute_that_float32_does_not_hold():
    for factor, found in ((0.5, 1), (0.1, 0)):
        model = parse("main (double[N] x) => (double[N] y) { y = Mul(x, k) }")
        model.graph.initializer.append(numpy_helper.from_array(np.array(factor), "k"))
        _, report = cudarelu.onnx.accelerate(model)
        assert len(report.replaced) == found
    assert any("0.1 is not exact in float32" in each.reason for each in report.left)


@pytest.mark.parametrize(("epsilon", "found"), [(0.0, 1), (np.inf, 1), (-1.0, 0), (np.nan, 0)])
def test_an_attribute_out_of_range(epsilon, found):
    text = "y = LayerNormalization(x, b)"
    model = parse(f"main (float[N,4] x, float[4] b) => (float[N,4] y) {{ {text} }}")
    model.graph.node[0].attribute.append(helper.make_attribute("epsilon", epsilon))
    _, report = cudarelu.onnx.accelerate(model)
    assert len(report.replaced) == found
    reasons = [each.reason for each in report.left]
    assert reasons == [f"eps = {epsilon} is not in [0, inf]"] * (1 - found)


def test_an_initializer_that_is_a_default_is_no_constant():
    model = body("y = Mul(x, k)")
    model.graph.initializer.append(numpy_helper.from_array(np.float32(2), "k"))
    assert len(cudarelu.onnx.accelerate(model)[1].replaced) == 1
    model.graph.input.append(helper.make_tensor_value_info("k", TensorProto.FLOAT, []))
    assert len(cudarelu.onnx.accelerate(model)[1].replaced) == 0


def test_values_that_others_need():
    """A constant that another node uses is kept. Outputs of the graph keep their names."""
    text = "a = Add(x, b) c = Relu(a) d = Mul(c, k) y = Sub(d, k)"
    model = body(text, "float[N,4] y, float[N,4] d")
    model.graph.initializer.append(numpy_helper.from_array(np.float32([2]), "k"))
    result, replaced, _ = accelerated(model)
    assert replaced == ["bias_relu"]
    assert [each.name for each in result.graph.initializer] == ["k"]
    assert [each.name for each in result.graph.output] == ["y", "d"]

    result, replaced, _ = accelerated(
        body("a = Add(x, b) y = Relu(a)", "float[N,4] y, float[N,4] a")
    )
    assert replaced == ["relu"]


def test_subgraphs():
    model = parse(
        """main (float[N,4] x, float[4] b, bool c, int64 n) => (float[N,4] y, float[N,4] s) {
            z = Relu(x)
            k = Constant<value_float = 0.5>()
            a = If (c) <
                then_branch = t () => (float[N,4] p) { p = Mul(z, k) },
                else_branch = e () => (float[N,4] q) { h = Add(z, b) q = Relu(h) }>
            y = Loop (n, c, a) <body = l (int64 i, bool go, float[N,4] v)
                => (bool on, float[N,4] w) { on = Identity(go) w = Tanh(v) }>
            s = Scan <num_scan_inputs = 1, body = m (float[4] u) => (float[4] r) {
                r = LeakyRelu(u) }>(x)
        }"""
    )
    for condition in (True, False):
        feeds = {"x": X, "b": X[0], "c": np.array(condition), "n": np.array(2)}
        result, replaced, _ = accelerated(model, feeds)
        assert sorted(replaced) == ["bias_relu", "leaky_relu", "relu", "scale", "tanh"]
    assert ours(result) == ["relu"]
    assert [node.op_type for node in result.graph.node] == ["Relu", "If", "Loop", "Scan"]


FUNCTIONS = """
<domain: "user", opset_import: ["" : 18, "user" : 1]> F <slope> (x, b) => (y) {
    s = Add(x, b) r = Relu(s) t = user.G(r) y = LeakyRelu<alpha: float = @slope>(t) }
<domain: "user", opset_import: ["" : 18]> G (x) => (y) { y = Tanh(x) }"""


def test_functions():
    """Nodes in a function are replaced if all calls of the function have the same types."""
    call = "{ z = user.F<slope = 0.5>(x, b) y = user.F<slope = 0.25>(z, b) }"
    header = "main (float[N,4] x, float[4] b) => (float[N,4] y)"
    model = parse(f"{header} {call} {FUNCTIONS}", 18, ', "user" : 1')
    result, replaced, reasons = accelerated(model)
    assert sorted(replaced) == ["bias_relu", "tanh"]
    assert reasons == ["the alpha of LeakyRelu is given by the function's caller"]
    functions = {each.name: [node.op_type for node in each.node] for each in result.functions}
    assert functions == {
        "F": ["BiasRelu", "G", "LeakyRelu"],
        "G": ["Tanh"],
        "BiasRelu": ["Constant", "CastLike", "Add", "Relu", "Mul"],
        "Tanh": ["Tanh"],
    }
    assert not any(each.value_info for each in result.functions)  # not in IR version 8

    header = "main (float[N,4] x, double[N,4] b) => (float[N,4] y, double[N,4] z)"
    model = parse(f"{header} {{ y = user.G(x) z = user.G(b) }} {FUNCTIONS}", 18, ', "user" : 1')
    result, report = cudarelu.onnx.accelerate(model)
    assert result == model
    assert "tanh does not take inputs of unknown dtype" in [each.reason for each in report.left]


def test_functions_in_onnx_reference():
    """onnx.reference reads functions in order, so definitions precede the functions that call
    them."""
    header = "main (float[N,4] x, float[4] b) => (float[N,4] y) { y = user.R(x) }"
    function = '<domain: "user", opset_import: ["" : 18]> R (x) => (y) { y = Relu(x) }'
    result, replaced, _ = accelerated(parse(f"{header} {function}", 18, ', "user" : 1'))
    assert replaced == ["relu"]
    (y,) = ReferenceEvaluator(result).run(None, {"x": X, "b": X[0]})
    np.testing.assert_array_equal(y, np.maximum(X, 0))


def test_a_subgraph_of_a_function():
    model = parse(
        """main (float[N,4] x, bool c) => (float[N,4] y) { y = user.F(x, c) }
        <domain: "user", opset_import: ["" : 18]> F (x, c) => (y) {
            y = If (c) <then_branch = t () => (p) { p = Relu(x) },
                        else_branch = e () => (q) { q = Tanh(x) }> }""",
        18,
        ', "user" : 1',
    )
    result, replaced, _ = accelerated(model, {"x": X, "c": np.array(True)})
    assert sorted(replaced) == ["relu", "tanh"]
    (function,) = [each for each in result.functions if each.name == "F"]
    assert {each.domain: each.version for each in function.opset_import} == {"": 18, "cudarelu": 1}


def test_a_cast_like_something_else():
    """The input that a constant was cast like remains, even if nothing else uses it."""
    text = "k = Constant<value_float = 0.5>() f = CastLike(k, b) y = Mul(x, f)"
    result, replaced, _ = accelerated(body(text))
    assert replaced == ["scale"]
    assert [each.name for each in result.graph.input] == ["x", "b"]


def test_notes_stay():
    """Names, doc_strings, metadata and quantization annotations are kept if one node or several
    are replaced."""
    model = body(
        "s = Add(x, b) r = Relu(s) z = Mul(r, k) y = Tanh(z)", "float[N,4] z, float[N,4] y"
    )
    model = with_constants(model, k=np.float32(0.5))
    for node in model.graph.node:
        node.name = f"{node.op_type}_node"
        node.doc_string = "" if node.op_type == "Relu" else f"of {node.op_type}"
        node.metadata_props.add(key=node.op_type, value="there")
    for value in model.graph.output:
        value.doc_string = f"value {value.name}"
    for name in ("s", "z", "y"):
        model.graph.quantization_annotation.add(tensor_name=name).quant_parameter_tensor_names.add(
            key="SCALE_TENSOR", value="k"
        )
    result, replaced, _ = accelerated(model)
    assert replaced == ["bias_relu", "tanh"]
    notes = {node.name: node.doc_string for node in result.graph.node}
    assert notes == {"Mul_node": "of Add\nof Mul", "Tanh_node": "of Tanh"}
    metadata = {node.name: {each.key for each in node.metadata_props} for node in result.graph.node}
    assert metadata == {"Mul_node": {"Add", "Relu", "Mul"}, "Tanh_node": {"Tanh"}}
    assert {each.name: each.doc_string for each in result.graph.output} == {
        "z": "value z",
        "y": "value y",
    }
    annotations = {each.tensor_name: each for each in result.graph.quantization_annotation}
    assert annotations == {
        each.tensor_name: each
        for each in model.graph.quantization_annotation
        if each.tensor_name != "s"  # this value no longer exists
    }
    assert "k" in {each.name for each in result.graph.initializer}


def test_notes_in_subgraphs_and_functions_stay():
    model = parse(
        """main (float[N,4] x, bool c) => (float[N,4] y) {
            z = If (c) <then_branch = t () => (float[N,4] p) { q = Tanh(x) p = Neg(q) },
                        else_branch = e () => (float[N,4] p) { p = Identity(x) }>
            y = user.R(z)
        }
        <domain: "user", opset_import: ["" : 18]> R (x) => (y) { y = Relu(x) }""",
        18,
        ', "user" : 1',
    )
    branch = model.graph.node[0].attribute[0].g
    branch.node[0].doc_string = "of Tanh"
    branch.quantization_annotation.add(tensor_name="q")
    branch.quantization_annotation[0].quant_parameter_tensor_names.add(
        key="SCALE_TENSOR", value="x"
    )
    model.functions[0].node[0].doc_string = "of Relu"
    result, _ = cudarelu.onnx.accelerate(model)
    changed = result.graph.node[0].attribute[0].g
    assert (changed.node[0].domain, changed.node[0].doc_string) == ("cudarelu", "of Tanh")
    assert changed.quantization_annotation == branch.quantization_annotation
    (function,) = [each for each in result.functions if each.name == "R"]
    assert (function.node[0].domain, function.node[0].doc_string) == ("cudarelu", "of Relu")


def test_what_is_ours_already():
    """Nodes of our ops are kept, their definitions are not searched, and a second call has no
    effect."""
    once, _ = cudarelu.onnx.accelerate(body("a = Add(x, b) y = Relu(a)"))
    twice, report = cudarelu.onnx.accelerate(once)
    assert twice == once
    assert not report.replaced
    assert not report.left
    assert cudarelu.onnx.lower(once).graph.node[-1].op_type == "Mul"


def test_the_report():
    text = "a = Softmax<axis = 0>(x) c = Softmax<axis = 0>(a) d = Relu(c) y = Tanh(d)"
    _, report = cudarelu.onnx.accelerate(body(text))
    assert str(report).splitlines() == [
        "replaced:",
        "    1 x relu for Relu (d)",
        "    1 x tanh for Tanh (y)",
        "left:",
        "    2 x Softmax, not softmax: the axis of Softmax is 0, not -1 (a, c)",
    ]
    assert json.loads(json.dumps(dataclasses.asdict(report))) == {
        "replaced": [
            {"op": "relu", "node": "d", "operators": ["Relu"]},
            {"op": "tanh", "node": "y", "operators": ["Tanh"]},
        ],
        "left": [
            {
                "op": "softmax",
                "node": name,
                "operators": ["Softmax"],
                "reason": "the axis of Softmax is 0, not -1",
            }
            for name in ("a", "c")
        ],
        "measured": [],
        "ratio": None,
        "library": None,
        "unchanged": None,
    }
