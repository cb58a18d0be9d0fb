"""cudarelu.onnx.accelerate: replaces standard operators by our ops."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import itertools
import json
import os
import re
import string
import sys
import types
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import onnx.version_converter
import onnxruntime as ort
import onnxscript.optimizer
import pytest
import torch
from onnx import TensorProto, external_data_helper, helper, numpy_helper
from onnx.backend.test.case import node as backend
from onnx.reference import ReferenceEvaluator

import cudarelu
import cudarelu.onnx
import cudarelu.ort
from cudarelu import _table
from cudarelu.__main__ import main
from cudarelu.onnx import measure
from cudarelu.onnx import patterns as onnx_patterns
from cudarelu.onnx.absent_inputs import with_default_inputs
from cudarelu.onnx.definitions import function, lowest_opset, written_out
from cudarelu.onnx.expressions import (
    NEUTRAL,
    Attribute,
    Call,
    Filled,
    Input,
    Literal,
    Shape,
    calls,
    forms,
    is_linear,
    parts,
    read,
)
from cudarelu.onnx.patterns import is_candidate, patterns
from cudarelu.testing.environment import ort_cuda_missing
from support.cases import slow_after
from support.large_model import save_large

OPS = {op.name: op for op in cudarelu.ops()}
CANDIDATES = [op for op in OPS.values() if is_candidate(op)]
NAMES = {op.onnx.op_type: op.name for op in OPS.values()}
FIRST, LAST = 13, 23
X = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
# The constants of GELU.
HALF = "h = Constant<value_float = 0.5>() o = Constant<value_float = 1.0>()"
ROOT = "r = Constant<value_float = 1.4142135>()"
INVERSE = "r = Constant<value_float = 0.70710678>()"
TANH = "d = Constant<value_float = 0.044715>() f = Constant<value_float = 0.79788456>()"
THREE = "n = Constant<value_float = 3.0>()"


def parse(text: str, opset: int = 18, more: str = "") -> onnx.ModelProto:
    return onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : {opset}{more}]>\n{text}')


def body(text: str, outputs: str = "float[N,4] y") -> onnx.ModelProto:
    """A model of x [N, 4] and b [4]."""
    return parse(f"main (float[N,4] x, float[4] b) => ({outputs}) {{ {text} }}")


def run(model: onnx.ModelProto, library: bool, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    if library:
        cudarelu.ort.register(options)
    running = ort.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])
    return running.run(None, {each.name: feeds[each.name] for each in running.get_inputs()})


def accelerated(model: onnx.ModelProto, feeds=None) -> tuple[onnx.ModelProto, list[str], list[str]]:
    """The accelerated model, the ops that it has, and the reasons why nodes were left.

    The model is checked, and run with the library and without it.
    """
    before = model.SerializeToString(deterministic=True)
    result, report = cudarelu.onnx.accelerate(model)
    assert model.SerializeToString(deterministic=True) == before
    onnx.checker.check_model(result, full_check=True)
    if feeds is None:
        feeds = {"x": X, "b": np.arange(4, dtype=np.float32) - 1.5}
    expected = run(model, False, feeds)
    for library in (False, True):
        for y, wanted in zip(run(result, library, feeds), expected, strict=True):
            np.testing.assert_allclose(y, wanted, rtol=1e-5, atol=1e-6)
    return result, [each.op for each in report.replaced], [each.reason for each in report.left]


def ours(model: onnx.ModelProto) -> list[str]:
    return [NAMES[node.op_type] for node in model.graph.node if node.domain == "cudarelu"]


# From the table


def call(op, opset: int = 18) -> onnx.ModelProto:
    """A model that calls an op with attributes that differ from the defaults."""
    sizes = {name: str(2 + i) for i, name in enumerate(string.ascii_lowercase)} | {"*": "2, 1"}

    def declared(parameter) -> str:
        dims = (sizes.get(dim, str(dim)) for dim in parameter.dims)
        return f"float[{', '.join(dims)}] {parameter.name}"

    attributes = ", ".join(
        f"{each.name}: {each.onnx_type} = {len(each.labels) - 1 if each.labels else 0.375}"
        for each in op.attributes
    )
    names = ", ".join(each.name for each in op.inputs)
    return parse(
        f"main ({', '.join(map(declared, op.inputs))}) => ({declared(op.outputs[0])}) {{"
        f"{op.outputs[0].name} = cudarelu.{op.onnx.op_type}"
        f"{f'<{attributes}>' if attributes else ''}({names}) }}",
        opset,
        ', "cudarelu" : 1',
    )


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_the_operator_gelu_is_found(approximate):
    model = parse(
        f'main (float[N,4] x) => (float[N,4] y) {{ y = Gelu<approximate = "{approximate}">(x) }}',
        LAST,
    )
    result, replaced, _ = accelerated(model)
    assert replaced == ["gelu"]
    assert result.graph.node[0].attribute[0].i == ["none", "tanh"].index(approximate)


def test_a_branch_that_is_not_taken_is_not_needed():
    """ONNX Runtime has no float64 Erf on the CPU, so a model with this branch could not run."""
    text = 'main (double[N,4] x) => (double[N,4] y) { y = Gelu<approximate = "tanh">(x) }'
    _, replaced, _ = accelerated(parse(text, LAST), {"x": X.astype(np.float64)})
    assert replaced == ["gelu"]


def test_another_constant_is_no_gelu():
    text = f"{HALF} {ROOT} a = Mul(x, r) e = Erf(a) s = Add(e, o) p = Mul(x, s) y = Mul(h, p)"
    _, replaced, _ = accelerated(body(text))
    assert "gelu" not in replaced


@pytest.mark.parametrize("opset", [FIRST, 15, 18, LAST])
@pytest.mark.parametrize("op", CANDIDATES, ids=lambda op: op.name)
def test_every_definition_is_found(op, opset):
    """A lowered op is found again. This tests every op of the table, also new ones."""
    lowered = cudarelu.onnx.lower(call(op, opset))
    opset = max(opset, lowest_opset(op))
    result, report = cudarelu.onnx.accelerate(lowered)
    onnx.checker.check_model(result, full_check=True)
    assert [each.op for each in report.replaced] == [op.name]
    (node,) = result.graph.node
    (wanted,) = call(op, opset).graph.node
    assert (node.domain, node.op_type, node.input) == ("cudarelu", wanted.op_type, wanted.input)
    assert list(node.attribute) == list(wanted.attribute)
    assert {each.domain: each.version for each in result.opset_import} == {
        "": opset,
        "cudarelu": 1,
    }
    assert [each.name for each in result.functions] == [op.onnx.op_type]


@pytest.mark.parametrize("name", ["batch", "?"])
def test_one_name_of_two_sizes(name):
    """ONNX Runtime broadcasts the size of 1, which our ops refuse."""
    text = "a = Add(x, m) r = Relu(a) y = Mul(a, r)"
    model = parse(f"main (float[N,4] x, float[N,4] m) => (float[N,4] y) {{ {text} }}")
    for each in (*model.graph.input, *model.graph.output):
        each.type.tensor_type.shape.dim[0].dim_param = name
    feeds = {"x": X, "m": X[:1]}
    result, replaced, reasons = accelerated(model, feeds)
    assert sorted(replaced) == ["mul", "relu"]  # whose sizes are equal by construction
    assert any("a [batch#1, 4], b [batch#2, 4]".replace("batch", name) in each for each in reasons)
    assert [*result.graph.input, *result.graph.output] == [
        *model.graph.input,
        *model.graph.output,
    ]
    assert not any("#" in each for each in names_of_sizes(result))


def names_of_sizes(model: onnx.ModelProto) -> set[str]:
    infos = [*model.graph.input, *model.graph.output, *model.graph.value_info]
    return {dim.dim_param for each in infos for dim in each.type.tensor_type.shape.dim}


def test_a_wrong_name_of_an_inner_size():
    text = "r = Compress<axis = 0>(x, c) s = Relu(r) y = Add(x, s)"
    header = "main (float[N,4] x, bool[M] c) => (float[N,4] y) <float[N,4] s>"
    model = parse(f"{header} {{ {text} }}")
    _, replaced, _ = accelerated(model, {"x": X, "c": np.arange(len(X)) == 1})
    assert replaced == ["relu"]


def test_tensors_of_a_sequence_differ():
    text = "s = SplitToSequence<axis = 0>(x, n) a = SequenceAt(s, i) b = SequenceAt(s, j)"
    header = "main (float[N,4] x, int64[2] n, int64 i, int64 j) => (float[M,4] y)"
    model = parse(f"{header} {{ {text} y = Add(a, b) }}")
    n, i, j = np.array([1, len(X) - 1]), np.array(0), np.array(1)
    _, replaced, _ = accelerated(model, {"x": X, "n": n, "i": i, "j": j})
    assert replaced == []


def test_candidates():
    assert {"relu", "leaky_relu", "bias_relu", "scaled_add", "softmax", "tanh", "asinh", "add"} <= {
        op.name for op in CANDIDATES
    }
    assert not any(op.name.endswith("_backward") or op.name == "knn_query" for op in CANDIDATES)


def test_larger_groups_go_first():
    model = body("a = Add(x, b) r = Relu(a) y = Mul(r, k)")
    _, report = cudarelu.onnx.accelerate(with_constants(model, k=np.float32(2)))
    assert [(each.op, each.operators) for each in report.replaced] == [
        ("bias_relu", ("Add", "Relu", "Mul"))
    ]


@pytest.mark.parametrize("op", OPS.values(), ids=OPS)
def test_every_definition_can_be_read(op):
    """Also those that no model is searched for."""
    assert len(read(op, function(op))) == len(op.outputs)
    assert all(len(read(op, form)) == 1 for form in written_out(op))


def test_what_means_the_same_as_a_definition():
    def types(name: str) -> list[list[str]]:
        found = [
            form for each in patterns() if each.op.name == name for form in forms(each.expression)
        ]
        return [[call.op_type for call in reversed(calls(form))] for form in found]

    assert types("leaky_relu") == [["PRelu"], ["LeakyRelu"]]
    assert types("bias_relu") == [["Add", "Relu", "Mul"], ["Add", "Relu"]]
    assert types("relu") == [["Relu"]]
    assert types("scale") == [["Mul"]]


WITH_OPTIONAL_INPUTS = [op for op in CANDIDATES if any(each.optional for each in op.inputs)]


def evaluate(expression, known: dict) -> np.ndarray:
    """An expression's value, from those of its leaves."""
    if isinstance(expression, Literal):
        return expression.array()
    if isinstance(expression, Filled):
        return np.asarray(expression.number, np.float64)
    if not isinstance(expression, Call):
        return np.asarray(known[expression])
    if Shape() in expression.operands:  # of a matrix, whose rows are these already
        return evaluate(expression.operands[0], known)
    operands = [evaluate(each, known) for each in expression.operands if each is not None]
    if expression.op_type in NEUTRAL:
        return functools.reduce({"Add": np.add, "Mul": np.multiply}[expression.op_type], operands)
    names = [f"operand_{i}" for i in range(len(operands))]
    attributes = {name: known.get(each, each) for name, each in expression.attributes}
    node = helper.make_node(expression.op_type, names, ["y"], **attributes)
    return ReferenceEvaluator(node).run(None, dict(zip(names, operands, strict=True)))[0]


@pytest.mark.parametrize("op", WITH_OPTIONAL_INPUTS, ids=lambda op: op.name)
def test_patterns_mean_the_same(op):
    """Each pattern gives what the definition gives with the numbers that stand for absent inputs,
    and the other forms of each part give what the part gives."""
    generator = np.random.default_rng(0)
    sizes = {"*": 3} | {dim: 4 + i for i, dim in enumerate("ckn")}
    arrays = {
        each.name: generator.normal(size=[sizes[dim] for dim in each.dims]) for each in op.inputs
    }
    compared = 0
    for pattern in (each for each in patterns() if each.op == op):
        if any(call.op_type == "Gelu" for call in calls(pattern.expression)):
            continue  # of a newer opset
        attributes = {each.name: 1 if each.labels else 0.5 for each in op.attributes}
        attributes |= pattern.labels
        present = {each.name for each in parts(pattern.expression) if isinstance(each, Input)}
        whole = with_default_inputs(
            op, {name: arrays[name] if name in present else None for name in arrays}
        )
        (expected,) = ReferenceEvaluator(function(op)).run(None, whole, attributes=attributes)
        known = {Attribute(name): value for name, value in attributes.items()}
        known |= {Input(name): arrays[name] for name in present}
        known |= {Input(name, True): arrays[name].T for name in present}
        y = evaluate(pattern.expression, known)
        np.testing.assert_allclose(y, expected, rtol=1e-12, atol=1e-12)
        for call in calls(pattern.expression):
            for form in forms(call):
                is_older = any(name == "axes" for name, _ in form.attributes)
                # InstanceNormalization has three dimensions.
                if not is_older and form.op_type != "InstanceNormalization":
                    values = [evaluate(each, known) for each in (form, call)]
                    np.testing.assert_allclose(*values, rtol=1e-12, atol=1e-12)
        compared += 1
    assert compared > 1


LAYER_NORM = """main ({inputs}) => (float[n, 8] y) {{
    {axes}
    mean = ReduceMean<keepdims = 1{attribute}>(x{axis})
    centred = Sub(x, mean)
    {squares}
    variance = ReduceMean<keepdims = 1{attribute}>(squares{axis})
    eps = Constant<value = float {{1e-5}}>()
    sum = Add(variance, eps)
    deviation = Sqrt(sum)
    {tail} }}"""
SQUARES = {
    "pow": "two = Constant<value = float {2.0}>() squares = Pow(centred, two)",
    "mul": "squares = Mul(centred, centred)",
}
TAILS = {
    (): "y = Div(centred, deviation)",
    ("rsqrt",): "rsqrt = Reciprocal(deviation) y = Mul(centred, rsqrt)",
    ("rsqrt", "weight"): "rsqrt = Reciprocal(deviation) normal = Mul(rsqrt, centred) "
    "y = Mul(normal, weight)",
    ("weight",): "normal = Div(centred, deviation) y = Mul(normal, weight)",
    ("bias",): "normal = Div(centred, deviation) y = Add(bias, normal)",
    ("weight", "bias"): "normal = Div(centred, deviation) scaled = Mul(normal, weight) "
    "y = Add(scaled, bias)",
}


@pytest.mark.parametrize(
    ("shape", "scale", "bias", "reason"),
    [
        ("N,2,3", "1.0, 1.0", "0.0, 0.0", ""),
        ("N,2,3", "1.0, 2.0", "0.0, 0.0", "no op"),
        ("N,2,3", "1.0, 1.0", "0.0, 0.5", "no op"),
        ("N,2,3,3", "1.0, 1.0", "0.0, 0.0", "not known to be rows"),
    ],
)
def test_the_instances_of_a_group_norm(shape, scale, bias, reason):
    model = parse(
        f"""main (float[{shape}] x) => (float[{shape}] y) {{
        s = Constant<value_floats = [{scale}]>() b = Constant<value_floats = [{bias}]>()
        y = InstanceNormalization<epsilon = 0.25>(x, s, b) }}"""
    )
    sizes = [5 if each == "N" else int(each) for each in shape.split(",")]
    feeds = {"x": np.random.default_rng(0).normal(3, 2, sizes).astype(np.float32)}
    result, replaced, reasons = accelerated(model, feeds)
    assert replaced == ([] if reason else ["layer_norm"])
    if "rows" in reason:
        assert any(reason in each for each in reasons)
    if not reason:
        (node,) = (node for node in result.graph.node if node.domain)
        assert helper.get_node_attr_value(node, "eps") == 0.25


@pytest.mark.parametrize("given", TAILS, ids="-".join)
@pytest.mark.parametrize("squares", SQUARES)
@pytest.mark.parametrize("axis", slow_after(1, [-1, 1]))
@pytest.mark.parametrize("opset", slow_after(1, [18, 17]))
def test_layer_norm_written_out(opset, axis, squares, given):
    weights = [each for each in given if each != "rsqrt"]
    model = parse(
        LAYER_NORM.format(
            inputs=", ".join(["float[n, 8] x", *(f"float[8] {name}" for name in weights)]),
            axes=f"axes = Constant<value_ints = [{axis}]>()" if opset >= 18 else "",
            axis=", axes" if opset >= 18 else "",
            attribute="" if opset >= 18 else f", axes = [{axis}]",
            squares=SQUARES[squares],
            tail=TAILS[given],
        ),
        opset,
    )
    result, report = cudarelu.onnx.accelerate(model)
    assert [each.op for each in report.replaced] == ["layer_norm"]
    ours = [node for node in result.graph.node if node.domain == "cudarelu"]
    assert [node.op_type for node in ours] == ["LayerNorm"]
    generator = np.random.default_rng(0)
    feeds = {"x": generator.normal(3, 2, (5, 8)).astype(np.float32)}
    feeds |= {name: generator.normal(size=8).astype(np.float32) for name in weights}
    (expected,) = run(model, False, feeds)
    for library in (False, True):
        (y,) = run(result, library, feeds)
        np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-5)


LINEAR = {
    "gemm": "s = Gemm(x, w, b)",
    "gemm_nt": "s = Gemm<transB = 1>(x, w, b)",
    "gemm_alone": "s = Gemm(x, w)",
    "matmul": "p = MatMul(x, w) s = Add(p, b)",
    "matmul_swapped": "p = MatMul(x, w) s = Add(b, p)",
    "matmul_alone": "s = MatMul(x, w)",
    "matmul_nt": "v = Transpose<perm = [1, 0]>(w) p = MatMul(x, v) s = Add(p, b)",
    "matmul_turned": "v = Transpose(w) p = MatMul(x, v) s = Add(p, b)",
}
TRANSPOSED = {"gemm_nt", "matmul_nt", "matmul_turned"}  # the weight is [n, k], as in linear
ACTIVATIONS = {
    "linear": "y = Identity(s)",
    "relu": "y = Relu(s)",
    "erf": f"{HALF} {ROOT} d = Div(s, r) e = Erf(d) u = Add(e, o) q = Mul(s, u) y = Mul(q, h)",
    "tanh": f"{HALF} {TANH} {THREE} c = Pow(s, n) k = Mul(c, d) g = Add(s, k) a = Mul(g, f)"
    " t = Tanh(a) u = Add(t, o) q = Mul(h, s) y = Mul(q, u)",
    "gelu": "y = Gelu(s)",
    "gelu_tanh": 'y = Gelu<approximate = "tanh">(s)',
}


def with_constants(model: onnx.ModelProto, **arrays: np.ndarray) -> onnx.ModelProto:
    """The model with the arrays that it uses as initializers."""
    used = {name for node in model.graph.node for name in node.input}
    for name in sorted(used & arrays.keys()):
        model.graph.initializer.append(numpy_helper.from_array(arrays[name], name))
    return model


def linear_model(
    product: str, activation: str, leading: str = "N", dtype: str = "float32"
) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """A model of x [leading, 4] and constants, and its input."""
    generator = np.random.default_rng(0)
    kind = {"float32": "float", "float64": "double"}.get(dtype, dtype)
    model = parse(
        f"main ({kind}[{leading},4] x) => ({kind}[{leading},3] y) {{"
        f"{LINEAR[product]} {ACTIVATIONS[activation]} }}",
        LAST,
    )
    weight = generator.normal(size=(3, 4) if product in TRANSPOSED else (4, 3)).astype(dtype)
    sizes = [int(size) if size.isdigit() else 5 for size in leading.split(",")]
    x = generator.normal(size=[*sizes, 4]).astype(dtype)
    return with_constants(model, w=weight, b=np.array([0.5, -1, 2], dtype)), {"x": x}


@pytest.mark.parametrize("activation", slow_after(3, ACTIVATIONS))
@pytest.mark.parametrize("product", slow_after(4, LINEAR))
def test_linear_with_its_activation(product, activation):
    model, feeds = linear_model(product, activation)
    result, report = cudarelu.onnx.accelerate(model)
    onnx.checker.check_model(result, full_check=True)
    op = {"linear": "linear", "relu": "linear_relu"}.get(activation, "linear_gelu")
    is_alone = op == "linear" and product in {"gemm", "gemm_nt", "gemm_alone", "matmul_alone"}
    assert [each.op for each in report.replaced] == [op] * (not is_alone)
    op_types = [node.op_type for node in result.graph.node]
    if not is_alone:
        assert op_types.count("Transpose") == (product not in TRANSPOSED)
    (expected,) = run(model, False, feeds)
    for library in (False, True):
        (y,) = run(result, library, feeds)
        np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("activation", "dtype"),  # ONNX Runtime has no Gelu of float64
    [("relu", "float16"), ("relu", "float64"), ("gelu", "float16"), ("gelu", "float32")],
)
@pytest.mark.parametrize("leading", ["1", "2,N", "0,N", "M,2,N"])
def test_linear_of_every_dtype_and_rank(activation, leading, dtype):
    model, feeds = linear_model("matmul", activation, leading, dtype)
    result, report = cudarelu.onnx.accelerate(model)
    assert [each.op for each in report.replaced] == [f"linear_{activation}"]
    (expected,) = run(model, False, feeds)
    tolerance = 4e-3 if dtype == "float16" else 1e-5
    for library in (False, True):
        (y,) = run(result, library, feeds)
        assert (y.dtype, y.shape) == (expected.dtype, expected.shape)
        np.testing.assert_allclose(y, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    ("text", "other", "reason"),
    [
        ("s = Gemm<beta = 0.5>(x, w, b)", "", "the beta of Gemm is 0.5, not 1.0"),
        ("s = Gemm<alpha = 0.5>(x, w, b)", "", "the alpha of Gemm is 0.5, not 1.0"),
        ("s = Gemm<transA = 1>(o, w, b)", "4,3", "the transA of Gemm is 1, not 0"),
        ("p = MatMul(x, o) s = Add(p, b)", "4,3", "o is not constant: it would be"),
        ("s = Gemm(x, o, b)", "4,3", "o is not constant: it would be transposed in each run"),
        ("p = MatMul(x, w) s = Add(p, o)", "1,3", r"bias \[1, 3\] is not known to be"),
        ("p = MatMul(x, w) s = Add(p, o)", "3,1", r"bias \[3, 1\] is not known to be"),
        ("s = Gemm(x, w, o)", "3,1", r"bias \[3, 1\] is not known to be"),
        ("p = MatMul(x, w) s = Add(p, b) d = Identity(p)", "", "of MatMul is used elsewhere"),
        ("s = Gemm(x, w, b) d = Identity(s)", "", "the result of Gemm is used elsewhere too"),
    ],
)
def test_no_linear(text, other, reason):
    """Other products are not replaced, nor are nodes that would have to be computed twice."""
    more = f", float[{other}] o" if other else ""
    model = parse(f"main (float[3,4] x{more}) => (float[3,3] y) {{ {text} y = Relu(s) }}")
    if "Identity" in text:
        model.graph.output.append(helper.make_tensor_value_info("d", TensorProto.FLOAT, [3, 3]))
    weight = np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3)
    with_constants(model, w=weight, b=np.float32([1, -2, 3]))
    feeds = {"x": X, "o": np.ones([int(each) for each in other.split(",") if each], np.float32)}
    _, replaced, reasons = accelerated(model, feeds)
    assert not any(op.startswith("linear_") for op in replaced)
    assert any(re.search(reason, each) for each in reasons)


@pytest.mark.parametrize("leading", ["N", "2,3", "N,3", "M,N", "0,3"])
@pytest.mark.parametrize("op", ["linear", "linear_relu", "linear_gelu", "linear_add"])
def test_linear_after_an_optimizer(op, leading):
    """It inlines and folds the definition, so that the sizes of the weight are constants."""
    op_type, more = OPS[op].onnx.op_type, ", x" if op == "linear_add" else ""
    model = parse(
        f"main (float[{leading},4] x) => (float[{leading},4] y)"
        f"{{ s = cudarelu.{op_type}(x, w{more or ','}, b) y = Identity(s) }}".replace(",,", ","),
        more=', "cudarelu" : 1',
    )
    generator = np.random.default_rng(0)
    weight, bias = (generator.normal(size=size).astype(np.float32) for size in ((4, 4), (4,)))
    model = cudarelu.onnx.attach_definitions(with_constants(model, w=weight, b=bias))
    optimized = onnxscript.optimizer.optimize(model)
    sizes = [int(size) if size.isdigit() else 5 for size in leading.split(",")]
    x = generator.normal(size=[*sizes, 4]).astype(np.float32)
    result, replaced, _ = accelerated(optimized, {"x": x})
    assert replaced == [op]
    if op != "linear_relu":  # its definition has Relu before Reshape
        assert [node.op_type for node in result.graph.node] == [op_type]


@pytest.mark.parametrize(
    ("text", "shape", "reason"),
    [
        ("m = Reshape<allowzero = 1>(x, a) s = Gemm(m, w, b) y = Reshape(s, c)", "2,3,3", None),
        ("m = Reshape(x, a) p = MatMul(m, w) s = Add(p, b) y = Reshape(s, c)", "2,3,3", None),
        (
            "m = Reshape(x, a) s = Gemm(m, w, b) y = Reshape(s, d)",
            "3,2,3",
            "y is not known to have",
        ),
        ("m = Reshape(x, f) s = Gemm(m, w, b) y = Reshape(s, c)", "2,3,3", "m is not known"),
    ],
)
def test_linear_of_the_rows(text, shape, reason):
    """As exporters write Dense."""
    inputs = "float[2,3,4] x, int64[2] f"
    model = parse(f"main ({inputs}) => (float[{shape}] y) {{ {text} }}")
    weight = np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3)
    shapes = {"a": [-1, 4], "c": [2, 3, 3], "d": [3, -1, 3]}
    constants = {name: np.array(each) for name, each in shapes.items()}
    with_constants(model, w=weight, b=np.float32([1, -2, 3]), **constants)
    x = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    _, replaced, reasons = accelerated(model, {"x": x, "f": np.array([6, 4])})
    assert replaced == ["linear"] * (reason is None)
    assert reason is None or any(reason in each for each in reasons), reasons


def test_a_bias_of_one_element():
    """The element is added to each column. linear requires a row, so it is expanded."""
    text = "p = MatMul(x, w) s = Add(p, b) y = Relu(s)"
    model = parse(f"main (float[N,4] x) => (float[N,4] y) {{ {text} }}")
    with_constants(model, w=np.eye(4, dtype=np.float32), b=np.float32([0.5]))
    result, replaced, _ = accelerated(model)
    assert replaced == ["linear_relu"]
    assert result.graph.node[1].attribute[0].t.dims == [4]


def test_opsets_mean_the_same():
    """What definitions call has the defaults of opset 18 in every opset that we read."""
    found = [form for each in patterns() for call in calls(each.expression) for form in forms(call)]
    op_types = {call.op_type for form in found for call in calls(form)} | {"Div", "Pow"}
    for op_type in op_types - {"Attention", "Gelu"}:  # which came later
        ours = onnx.defs.get_schema(op_type, 18, "").attributes
        for opset in range(FIRST, onnx.defs.onnx_opset_version() + 1):
            if not onnx.defs.has(op_type, opset, ""):
                continue
            theirs = onnx.defs.get_schema(op_type, opset, "").attributes
            for name in set(ours) & set(theirs):
                assert ours[name].default_value == theirs[name].default_value


# ONNX's own tests of the operators

SINGLE = {
    form.op_type
    for each in patterns()
    for form in forms(each.expression)
    if isinstance(form, Call)
    if each.size == 1 and not is_linear(each.expression)  # that is the runtime's
}
DTYPES_LEFT = {
    *(f"test_add_{dtype}" for dtype in ("int16", "uint16", "uint32", "uint64")),
    *(f"test_mul_{dtype}" for dtype in ("int8", "int16", "uint8", "uint16", "uint32", "uint64")),
}
LEFT = {
    **dict.fromkeys(DTYPES_LEFT, "does not take inputs"),
    "test_add_bcast": r"b \[5\] is not known to be a",
    "test_mul_bcast": r"b \[5\] is not known to be a",
    "test_softmax_axis_0": "the axis of Softmax is 0, not -1",
    "test_softmax_axis_1": "the axis of Softmax is 1, not -1",
    "test_prelu_example": None,  # the slope is not a constant, so no op matches
    "test_prelu_broadcast": None,
    "test_instancenorm_example": None,  # the same for scale and bias
    "test_instancenorm_epsilon": None,
}


def backend_cases() -> list:
    for op_type in sorted(SINGLE):
        name = "instance_normalization" if op_type == "InstanceNormalization" else op_type.lower()
        importlib.import_module(f"{backend.__name__}.{name}")
    cases = backend._NodeTestCases  # collect_testcases() imports all operators, for 10 s
    return [
        each
        for each in cases
        if [(node.domain, node.op_type in SINGLE) for node in each.model.graph.node] == [("", True)]
    ]


LEFT |= {
    case.name: "LayerNormalization has outputs that the definition does not have"
    for case in backend_cases()
    if case.name.startswith("test_layer_normalization_")
}


def why_left(attention: onnx.NodeProto) -> str | None:
    """Why a call of Attention stays; empty if it is none of our op."""
    given = {each.name: helper.get_attribute_value(each) for each in attention.attribute}
    if any(attention.input[4:]):  # keys and values of earlier calls, or their number
        return None
    reasons = [f"the {name} of Attention" for name in given if "_num_heads" in name]
    reasons += ["the softcap of Attention"] * bool(given.get("softcap"))
    reasons += [
        f"the {name} of Attention" for name in given if "window" in name and given[name] >= 0
    ]
    reasons += ["Attention has outputs that the definition does not have"] * (
        len(attention.output) > 1
    )
    return "|".join(reasons)


ATTENTION = {
    case.name: why_left(case.model.graph.node[0])
    for case in backend_cases()
    if case.model.graph.node[0].op_type == "Attention"
}
LEFT |= {name: reason for name, reason in ATTENTION.items() if reason != ""}


@pytest.mark.parametrize("case", backend_cases(), ids=lambda case: case.name)
def test_onnx_backend_test(case):
    result, report = cudarelu.onnx.accelerate(case.model)
    (operator,) = case.model.graph.node
    if case.name in LEFT:
        assert result == case.model
        reason = LEFT[case.name]
        assert [each.operators for each in report.left] == [(operator.op_type,)] * bool(reason)
        assert all(re.search(reason, each.reason) for each in report.left)
        return
    others = ("Constant", "CastLike")  # of the number that stands for an absent input
    assert [x.domain for x in result.graph.node if x.op_type not in others] == ["cudarelu"]
    if case.name.endswith("_bf16"):
        return  # ONNX Runtime takes no such arrays
    names = [each.name for each in case.model.graph.input]
    for inputs, outputs in case.data_sets:
        (y,) = run(result, True, dict(zip(names, inputs, strict=True)))
        np.testing.assert_allclose(y, outputs[0], rtol=case.rtol, atol=case.atol)
        assert y.dtype == outputs[0].dtype


def test_onnx_backend_tests_are_there():
    names = {case.name for case in backend_cases()}
    assert names >= LEFT.keys()
    assert {"test_relu", "test_leakyrelu", "test_tanh", "test_asinh", "test_add"} <= names


# Definitions that use a value twice


def with_definition(name: str, definition: str, **changes) -> cudarelu.OpInfo:
    """An op of the table with another definition, and without attributes by default."""
    return dataclasses.replace(
        OPS[name], definition=definition, **{"attributes": (), "written_out": ""} | changes
    )


SCALE = "f = Constant<value_float: float = @scale>() g = CastLike(f, x)"
TWICE = {  # the op, nodes that match it, and nodes that do not
    "square": (with_definition("relu", "y = Mul(x, x)"), "y = Mul(x, x)", "y = Mul(x, b)"),
    "square-within": (
        with_definition("relu", "r = Relu(x) y = Mul(r, r)"),
        "r = Relu(x) y = Mul(r, r)",
        "r = Relu(x) s = Relu(x) y = Mul(r, s)",
    ),
    "cube": (
        with_definition("relu", "s = Mul(x, x) y = Mul(s, x)"),
        "s = Mul(x, x) y = Mul(x, s)",
        "s = Mul(x, x) y = Mul(b, s)",
    ),
    "power": (
        with_definition("relu", "y = Relu(x)", written_out="y = Pow(x, x)"),
        "y = Pow(x, x)",
        "y = Pow(x, b)",
    ),
    "square-of-float64": (
        with_definition(
            "relu",
            "y = Relu(x)",
            written_out="t = Constant<value = double {2.0}>() u = CastLike(t, x) y = Pow(x, u)",
        ),
        "y = Mul(x, x)",
        "y = Mul(x, b)",
    ),
    "optional-in-one-node": (
        with_definition("layer_norm", "s = Mul(weight, weight) p = Mul(x, s) y = Add(p, bias)"),
        "s = Mul(b, b) p = Mul(x, s) y = Add(p, b)",
        "s = Mul(b, k) y = Mul(x, s)",
    ),
    "optional-in-one-node-absent": (
        with_definition(
            "layer_norm", "r = Tanh(x) s = Mul(weight, weight) p = Mul(r, s) y = Add(p, bias)"
        ),
        "r = Tanh(x) y = Add(r, b)",
        "s = Mul(b, k) y = Mul(x, s)",
    ),
    "optional-in-two-nodes-absent": (
        with_definition(
            "layer_norm", "p = Mul(x, weight) r = Tanh(p) s = Mul(r, weight) y = Add(s, bias)"
        ),
        "r = Tanh(x) y = Add(r, b)",
        "p = Mul(x, b) y = Mul(p, b)",
    ),
    "optional-that-cannot-be-absent": (
        with_definition(
            "layer_norm", "p = Max(x, weight) r = Mul(p, weight) s = Add(bias, bias) y = Add(r, s)"
        ),
        "p = Max(x, b) y = Mul(p, b)",
        "y = Mul(x, b)",
    ),
    "attribute-in-one-node": (
        with_definition(
            "bias_relu",
            f"{SCALE} h = Mul(g, g) s = Mul(h, x) y = Sub(s, bias)",
            attributes=OPS["bias_relu"].attributes,
        ),
        "y = Sub(x, b)",
        "y = Sub(b, x)",
    ),
    "attribute-in-two-nodes": (
        with_definition(
            "bias_relu",
            f"{SCALE} s = Mul(x, g) t = Tanh(s) u = Mul(t, g) y = Sub(u, bias)",
            attributes=OPS["bias_relu"].attributes,
        ),
        "t = Tanh(x) y = Sub(t, b)",
        "s = Mul(x, k) t = Tanh(s) y = Mul(t, k)",
    ),
    "factor-that-is-a-term-too": (
        with_definition(
            "bias_relu",
            f"{SCALE} s = Add(x, g) t = Mul(s, g) y = Sub(t, bias)",
            attributes=OPS["bias_relu"].attributes,
        ),
        "s = Add(x, k) t = Mul(s, k) y = Sub(t, b)",
        "s = Add(x, k) y = Sub(s, b)",
    ),
    "axes-that-are-computed": (
        with_definition(
            "relu",
            "y = Relu(x)",
            written_out="r = Size(x) s = Shape(x) t = Size(s) a = Sub(t, t) u = Unsqueeze(a, a)"
            " y = ReduceMean(x, u)",
        ),
        "y = Relu(x)",
        "y = Tanh(x)",
    ),
    "product-of-one-matrix": (
        with_definition("relu", "s = Gemm<transB = 1>(x, x) y = Relu(s)"),
        "z = Gemm<transA = 1>(x, x) t = Transpose(z) s = MatMul(z, t) r = Relu(s) y = MatMul(x, r)",
        "z = Gemm<transA = 1>(x, x) s = MatMul(z, z) r = Relu(s) y = MatMul(x, r)",
    ),
    "product-and-its-square": (
        with_definition("linear_relu", "s = Gemm<transB = 1>(x, weight, bias) y = Mul(s, s)"),
        "s = Gemm<transB = 1>(x, m, b) y = Mul(s, s)",
        "s = Gemm<transB = 1>(x, m, b) y = Mul(s, x)",
    ),
    "product-and-its-operand": (
        with_definition("linear_relu", "s = Gemm<transB = 1>(x, weight, bias) y = Add(s, x)"),
        "p = MatMul(x, m) s = Add(p, b) y = Add(s, x)",
        "p = MatMul(x, m) s = Add(p, b) y = Add(s, s)",
    ),
}


@pytest.mark.parametrize(("op", "found", "other"), TWICE.values(), ids=TWICE)
def test_a_definition_that_uses_a_value_twice(monkeypatch, op, found, other):
    monkeypatch.setattr(onnx_patterns, "all_ops", lambda: [op])
    name = op.onnx.domain, op.onnx.op_type
    monkeypatch.setitem(_table._OPS_IN_ONNX, name, op)
    m = np.arange(16, dtype=np.float32).reshape(4, 4) / 8
    for text, wanted in ((found, [op.name]), (other, [])):
        model = with_constants(body(text), k=np.float32(2), m=m)
        result, report = cudarelu.onnx.accelerate(model)
        assert [each.op for each in report.replaced] == wanted
        feeds = {"x": np.abs(X), "b": X[0]}
        if not op.written_out:  # here it differs from the definition
            for y, z in zip(run(result, False, feeds), run(model, False, feeds), strict=True):
                np.testing.assert_allclose(y, z, rtol=1e-6)


@pytest.mark.parametrize(
    ("definition", "message"),
    [
        ("y = Frob(x)", "relu: the definition is not valid ONNX: No Op registered for Frob"),
        ("y = acme.Relu(x)", "relu: the definition is not valid ONNX: No Opset registered for"),
        ("z = Relu(x) y = Add(z, w)", "relu: the definition is not valid ONNX: Nodes in a func"),
        ("y = LeakyRelu<alpha: float = @slope>(x)", "relu: the definition has @slope, which is no"),
        ("z = Relu(x)", "relu: the definition has no value y, the op's output"),
        ("c = Shape(x) y = If(c) <then_branch = t () => (z) { z = Relu(x) },"
         " else_branch = e () => (w) { w = Relu(x) }>",
         "the definition of relu: node y = If: its attribute (then|else)_branch is not of numbers"),
    ],
)  # fmt: skip
def test_a_definition_that_cannot_be_read(monkeypatch, definition, message):
    op = with_definition("relu", definition)
    monkeypatch.setattr(onnx_patterns, "all_ops", lambda: [op])
    left_out = f"^the op relu of the module cudarelu is left out: {message}"
    with pytest.warns(UserWarning, match=left_out):
        _, report = cudarelu.onnx.accelerate(body("y = Relu(x)"))
    assert not report.replaced


# What is found


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


# Models as files and as models of onnx_ir


@pytest.fixture
def with_weights(tmp_path, monkeypatch) -> Path:
    """A model whose weights are in a separate file. Loading them into the model is an error."""
    weight = np.linspace(-1, 1, 1024, dtype=np.float32)
    model = parse("main (float[N,1024] x) => (float[N,1024] y) { m = Mul(x, w) y = Relu(m) }")
    model.graph.node[0].op_type = "Add"
    model.graph.initializer.append(numpy_helper.from_array(weight, "w"))
    onnx.save(model, tmp_path / "model.onnx", save_as_external_data=True, location="weights.bin")

    def refuse(*args):
        raise AssertionError("the weights were loaded")

    for module in (onnx, external_data_helper):
        monkeypatch.setattr(module, "load_external_data_for_model", refuse, raising=False)
    return tmp_path / "model.onnx"


@pytest.mark.parametrize("measured", [False, True])
def test_external_data_stays_where_it_is(with_weights, measured, monkeypatch):
    monkeypatch.setattr(measure, "compare", lambda before, after: (0.5, (0.4, 0.6)))
    path, out = with_weights, with_weights.parent / "out.onnx"
    data = (path.parent / "weights.bin").stat()
    result, report = cudarelu.onnx.accelerate(path, out, only_if_faster=measured)
    assert [each.op for each in report.replaced] == ["bias_relu"]
    assert (path.parent / "weights.bin").stat().st_mtime_ns == data.st_mtime_ns
    assert sorted(os.listdir(path.parent)) == ["model.onnx", "out.onnx", "weights.bin"]
    assert onnx.load(out, load_external_data=False) == result
    assert external_data_helper.uses_external_data(result.graph.initializer[0])
    options = cudarelu.ort.register(ort.SessionOptions())
    x = np.zeros((2, 1024), np.float32)
    outputs = [
        ort.InferenceSession(file, options, ["CPUExecutionProvider"]).run(None, {"x": x})[0]
        for file in (path, out)
    ]
    np.testing.assert_array_equal(*outputs)


def test_a_factor_in_another_file(with_weights):
    model = onnx.load(with_weights, load_external_data=False)
    model.graph.node[0].op_type = "Mul"
    model.graph.initializer[0].dims[:] = [1]
    entries = {each.key: each for each in model.graph.initializer[0].external_data}
    entries["length"].value = "4"
    onnx.save(model, with_weights)
    result, report = cudarelu.onnx.accelerate(with_weights)
    assert [each.op for each in report.replaced] == ["relu", "scale"]
    assert result.graph.node[0].attribute[0].f == -1
    (with_weights.parent / "weights.bin").unlink()
    _, report = cudarelu.onnx.accelerate(with_weights)
    assert [each.op for each in report.replaced] == ["relu"]
    assert "the data of w cannot be read" in [each.reason for each in report.left]


def test_a_constant_in_another_file(with_weights):
    """A bias that must be reshaped is read. If it cannot be read, the nodes are left."""
    model = onnx.load(with_weights, load_external_data=False)
    model.graph.initializer[0].dims[:] = [1, 1024]
    onnx.save(model, with_weights)
    result, report = cudarelu.onnx.accelerate(with_weights)
    assert [each.op for each in report.replaced] == ["bias_relu"]
    (bias,) = [node for node in result.graph.node if node.op_type == "Constant"]
    assert list(bias.attribute[0].t.dims) == [1024]
    (with_weights.parent / "weights.bin").unlink()
    _, report = cudarelu.onnx.accelerate(with_weights)
    assert [each.op for each in report.replaced] == ["relu"]
    assert "the data of w cannot be read" in [each.reason for each in report.left]


def test_a_weight_in_another_file(tmp_path):
    """The weight is transposed when a session is created, so accelerate does not read it."""
    model, feeds = linear_model("matmul", "relu")
    (expected,) = run(model, False, feeds)
    path = tmp_path / "model.onnx"
    onnx.save(model, path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    cudarelu.onnx.accelerate(path, tmp_path / "out.onnx")
    options = cudarelu.ort.register(ort.SessionOptions())
    session = ort.InferenceSession(tmp_path / "out.onnx", options, ["CPUExecutionProvider"])
    np.testing.assert_allclose(session.run(None, feeds)[0], expected, rtol=1e-5, atol=1e-6)
    (tmp_path / "weights.bin").unlink()
    result, report = cudarelu.onnx.accelerate(path)
    assert [each.op for each in report.replaced] == ["linear_relu"]
    assert [node.op_type for node in result.graph.node] == ["Transpose", "LinearRelu"]


def test_more_than_two_gigabytes(tmp_path):
    path = tmp_path / "model.onnx"
    save_large(parse("main (float[N,4] x) => (float[N,4] y) { y = Relu(x) }"), path)
    result, _ = cudarelu.onnx.accelerate(path, path)
    assert ours(result) == ["relu"]
    assert ours(onnx.load(path, load_external_data=False)) == ["relu"]


def test_a_model_of_onnx_ir(with_weights):
    import onnx_ir as ir

    model = ir.load(with_weights)
    result, report = cudarelu.onnx.accelerate(model, with_weights.parent / "out.onnx")
    assert [each.op for each in report.replaced] == ["bias_relu"]
    assert [node.op_type for node in model.graph] == ["Add", "Relu"]
    assert [node.op_type for node in result.graph] == ["BiasRelu"]
    weight = model.graph.initializers["w"].const_value
    assert result.graph.initializers["w"].const_value is weight
    onnx.checker.check_model(with_weights.parent / "out.onnx", full_check=True)


# Only ops that make the model faster


def ratios(monkeypatch, *medians: float) -> None:
    """Makes the measurements return these ratios, in order."""
    left = list(medians)

    def compare(before, after) -> tuple[float, tuple[float, float]]:
        median = left.pop(0)
        return median, (median - 0.02, median + 0.02)

    monkeypatch.setattr(measure, "compare", compare)


TWO = "a = Add(x, b) c = Relu(a) y = Tanh(c)"


@pytest.mark.parametrize(
    ("medians", "found"),
    [
        ((0.8, 0.9, 0.7), ["bias_relu", "tanh"]),
        ((0.8, 1.2, 0.8), ["bias_relu"]),
        ((1.2, 0.8, 1.2, 0.8), ["relu"]),  # after a larger op is rejected, smaller ones are tried
        ((1.0, 0.995, 0.985), []),  # within the noise: the third has a quartile above 1
        ((0.8, 0.9, 1.2), []),  # each op is faster, but not the model with both
    ],
)
def test_only_what_is_faster(monkeypatch, medians, found):
    ratios(monkeypatch, *medians)
    result, report = cudarelu.onnx.accelerate(body(TWO), only_if_faster=True)
    assert [each.op for each in report.replaced] == ours(result) == found
    assert all("the model is not faster" in each.reason for each in report.left if each.op != "add")
    assert (result == body(TWO)) == (not found)
    assert report.measured[0].ratio == medians[0]
    assert f"bias_relu, 1 nodes: {medians[0]:.3f}" in str(report)


def test_measuring():
    """Real measurements: for any decision, the outputs are equal, and the report has the ratios."""
    result, report = cudarelu.onnx.accelerate(body(TWO), only_if_faster=True, dims={"N": 8})
    assert [each.op for each in report.measured if each.kept] == sorted(set(ours(result)))
    assert all(0 < each.quartiles[0] <= each.ratio <= each.quartiles[1] for each in report.measured)
    feeds = {"x": X, "b": X[0]}
    np.testing.assert_allclose(
        run(result, True, feeds)[0], run(body(TWO), False, feeds)[0], rtol=1e-5
    )


def test_outputs_must_agree(monkeypatch):
    """An op is not used if its kernel computes something else than its definition."""
    ratios(monkeypatch, *[0.5] * 9)
    real = measure.Running.outputs
    changed = lambda self: [y + self.ours for y in real(self)]  # noqa: E731
    init = measure.Running.__init__

    def noting(self, model, *args):
        self.ours = int("BiasRelu" in {node.op_type for node in model.graph.node})
        init(self, model, *args)

    monkeypatch.setattr(measure.Running, "__init__", noting)
    monkeypatch.setattr(measure.Running, "outputs", changed)
    _, report = cudarelu.onnx.accelerate(body(TWO), only_if_faster=True)
    assert [each.op for each in report.replaced] == ["relu", "tanh"]
    assert "output 0 differs in 16 of 16 elements" in [each.reason for each in report.left]


@pytest.mark.parametrize(("provider", "agrees"), [("cpu", False), ("cuda", True)])
def test_outputs_agree_within_tf32(provider, agrees):
    """On CUDA, ONNX Runtime multiplies float32 in TF32."""
    one, other = (
        types.SimpleNamespace(provider=provider, outputs=lambda y=y: [torch.tensor([y])])
        for y in (1.0, 1.001)
    )
    assert (measure.difference(one, other) is None) == agrees


def test_inputs_to_measure_with(monkeypatch):
    ratios(monkeypatch, 0.5, 0.5)
    text = "main (int64[K] i, float[R,4] x) => (float[K,4] y) { g = Gather(x, i) y = Tanh(g) }"
    given = {"i": np.arange(3)}
    _, report = cudarelu.onnx.accelerate(parse(text), only_if_faster=True, inputs=given)
    assert len(report.replaced) == 1
    with pytest.raises(ValueError, match=r"ONNX Runtime: .*out of.* bounds"):
        cudarelu.onnx.accelerate(
            parse(text), only_if_faster=True, inputs={"i": np.array([9])}, dims={"R": 2}
        )
    with pytest.raises(ValueError, match="no input has a dimension Q; named dimensions: K, R"):
        cudarelu.onnx.accelerate(parse(text), only_if_faster=True, dims={"Q": 2})


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"q": X}, "the model has no input q"),
        ({"x": X.astype(np.float64)}, "input x is float64, not float32"),
        ({"x": X[:, :3]}, "ONNX Runtime: .*Got invalid dimensions"),
    ],
)
def test_wrong_inputs_to_measure_with(inputs, message):
    with pytest.raises(ValueError, match=message) as error:
        cudarelu.onnx.accelerate(body(TWO), only_if_faster=True, inputs=inputs)
    assert "\n" not in str(error.value)


def test_inputs_that_are_not_known():
    model = body(TWO)
    model.graph.input[0].type.tensor_type.ClearField("shape")
    with pytest.raises(ValueError, match="input x has an unknown rank: pass an array"):
        cudarelu.onnx.accelerate(model, only_if_faster=True)
    text = "main (string[N] x) => (string[N] y) { y = Identity(x) }"
    with pytest.raises(ValueError, match="input x is not a tensor of numbers"):
        cudarelu.onnx.accelerate(parse(text), only_if_faster=True)


def test_a_model_that_does_not_run():
    text = "main (float[N] x) => (float[N] y) { a = acme.Frob(x) y = Relu(a) }"
    with pytest.raises(ValueError, match=r"ONNX Runtime: .*acme:Frob.* is not a registered"):
        cudarelu.onnx.accelerate(parse(text, 18, ', "acme" : 1'), only_if_faster=True)


@pytest.mark.parametrize("dtype", ["float16", "double", "bfloat16", "int32"])
def test_measuring_every_dtype(dtype):
    text = f"main ({dtype}[N,3] x) => ({dtype}[N,3] y, bool[N,3] z) {{"
    text += "y = cudarelu.Relu(x) z = Cast<to = 9>(x) }"
    model = parse(text, 19, ', "cudarelu" : 1')
    feeds = measure.random_inputs(model, {}, {})
    running = measure.Running(model, None, "cpu", feeds)
    assert measure.difference(running, running) is None
    assert [y.shape for y in running.outputs()] == [(4, 3)] * 2


def test_sizes_of_random_inputs():
    """A given array tells the sizes of its names, and no other."""
    model = parse("main (float[n,?] x, float[n,m] z) => (float[n,m] y) { y = Identity(z) }")
    model.graph.input[0].type.tensor_type.shape.dim[1].Clear()
    given = {"x": np.ones((3, 5), np.float32)}
    feeds = measure.random_inputs(model, {}, given, 7)
    assert feeds["z"].shape == (3, 7)


def test_sizes_of_a_name_for_measuring():
    model = parse("main (float[N,N] x, float[N] b) => (float[N,N] y) { y = Add(x, b) }")
    given = {"x": np.zeros((2, 3), np.float32)}
    for dims, size in (({}, 2), ({"N": 3}, 3)):
        feeds = measure.random_inputs(model, dims, given)
        assert [feeds[name].shape for name in "xb"] == [(2, 3), (size,)]


@pytest.mark.skipif(ort_cuda_missing() is not None, reason=str(ort_cuda_missing()))
def test_measuring_on_cuda():
    result, report = cudarelu.onnx.accelerate(body(TWO), only_if_faster=True, provider="cuda")
    assert report.measured
    assert [each.op for each in report.measured if each.kept] == sorted(set(ours(result)))


def test_a_provider_that_is_not_there(monkeypatch):
    monkeypatch.setattr(ort, "get_available_providers", lambda: ["CPUExecutionProvider"])
    with pytest.raises(ValueError, match="this ONNX Runtime has no CUDAExecutionProvider"):
        cudarelu.onnx.accelerate(body(TWO), only_if_faster=True, provider="cuda")


# Errors


def test_the_work_grows_as_the_model():
    """Counted, not timed: executed lines, with each step of a loop."""

    def work(count: int) -> int:
        names = ["x", *(f"v{i}" for i in range(1, count)), "y"]
        relus = "\n".join(
            f"{b} = cudarelu.LinearRelu({a}, w)" for a, b in itertools.pairwise(names)
        )
        inputs = "float[4,4] x, float[4,4] w"
        model = parse(f"main ({inputs}) => (float[4,4] y) {{ {relus} }}", more=', "cudarelu" : 1')
        steps = 0

        def count_step(*_: object):
            nonlocal steps
            steps += 1
            return count_step

        before = sys.gettrace()
        sys.settrace(count_step)
        try:
            cudarelu.onnx.attach_definitions(model)
        finally:
            sys.settrace(before)
        return steps

    work(1)  # fills caches
    assert work(800) < 5 * work(200)


def test_bytes_are_not_a_model():
    with pytest.raises(TypeError, match="takes a model or a path, not bytes"):
        cudarelu.onnx.accelerate(b"")


OLD = """<ir_version: 3, opset_import: ["" : 9]>
main (float[N,2,4] x, float[4,4] w) => (float[N,2,4] y) <float[4,4] w = {
    1,0,0,0, 0,1,0,0, 0,0,1,0, 1,1,1,1}> {
    m = MatMul(x, w) s = Softmax<axis = 1>(m) y = Relu(s) }"""


@pytest.mark.parametrize("external", [False, True], ids=["", "external"])
def test_an_opset_before_13(external, tmp_path):
    """It is converted. Before IR version 4 the weights are inputs, too."""
    model = onnx.parser.parse_model(OLD)
    x = np.arange(16, dtype=np.float32).reshape(2, 2, 4) / 10
    expected = run(model, False, {"x": x})[0]
    model.graph.node[0].metadata_props.add(key="made", value="by hand")
    if external:
        weights = numpy_helper.to_array(model.graph.initializer[0])
        model.graph.initializer[0].CopyFrom(numpy_helper.from_array(weights, "w"))
    onnx.save(model, tmp_path / "a.onnx", save_as_external_data=external, size_threshold=0)
    _, report = cudarelu.onnx.accelerate(tmp_path / "a.onnx", tmp_path / "b.onnx")
    assert {each.op for each in report.replaced} == {"relu", "softmax"}
    assert report.unchanged is None
    result = onnx.load(tmp_path / "b.onnx")
    assert result.opset_import[0].version == 18
    assert [each.name for each in result.graph.input] == ["x"]
    assert result.graph.node[0].metadata_props[0].key == "made"
    for library in False, True:
        np.testing.assert_allclose(run(result, library, {"x": x})[0], expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{ y = user.F(x) } <opset_import: ['' : 12]> F (x) => (y) { y = Relu(x) }", "functions"),
        ("{ y = user.F(x) }", "ONNX Runtime"),
        ("{ h = Relu(x) y = Unknown(h) }", "has no registered schema"),
    ],
)
def test_an_opset_that_stays(text, reason, tmp_path, capsys):
    text = text.replace("<opset", '<domain: "user", opset').replace("'", '"')
    model = parse(f"main (float[N] x) => (float[N] y) {text}", 12, ', "user" : 1')
    if reason == "ONNX Runtime":  # which does not accept the original either
        _, report = cudarelu.onnx.accelerate(model)
        assert report.unchanged is None
        return
    onnx.save(model, tmp_path / "a.onnx")
    assert main(["accelerate", str(tmp_path / "a.onnx"), str(tmp_path / "b.onnx")]) == 0
    said = capsys.readouterr().out
    assert said.startswith("the model is left as it is: the model has opset 12 and cannot be")
    assert reason in said
    assert onnx.load(tmp_path / "b.onnx") == model


@pytest.mark.parametrize("wrong", ["Neg", "Unknown"])
def test_a_converter_that_errs(wrong, monkeypatch):
    def convert(model: onnx.ModelProto, opset: int) -> onnx.ModelProto:
        return parse(f"main (float[N] x) => (float[N] y) {{ y = {wrong}(x) }}", opset)

    model = parse("main (float[N] x) => (float[N] y) { y = Relu(x) }", 12)
    monkeypatch.setattr(onnx.version_converter, "convert_version", convert)
    result, report = cudarelu.onnx.accelerate(model)
    assert result == model
    assert re.search("cannot be converted to 15: (output 0 differs|ONNX Runtime)", report.unchanged)


def test_the_opset_that_fuse_needs(tmp_path):
    """A model of opset 13 is converted, but is not refused if that fails."""
    model = body("h = Tanh(x) g = Sin(h) y = Sigmoid(g)")
    model.opset_import[0].version = FIRST
    prepared = importlib.import_module("cudarelu.onnx.accelerator").prepare
    assert prepared(model, lowest=15)[0].opset_import[0].version == 18
    model.functions.add(domain="user", name="F")
    assert prepared(model, lowest=15)[0].opset_import[0].version == FIRST


def test_lower_in_an_early_opset():
    model = onnx.parser.parse_model(
        """<ir_version: 7, opset_import: ["" : 11, "cudarelu" : 1]> main (float[N,4] x, float[4] b)
        => (float[N,4] y) { h = Clip(x) y = cudarelu.BiasRelu <scale = 0.5> (h, b) }"""
    )
    lowered = cudarelu.onnx.lower(model)
    assert lowered.opset_import[0].version == lowest_opset(OPS["bias_relu"])
    (y,) = run(lowered, False, {"x": X, "b": X[0]})
    np.testing.assert_allclose(y, 0.5 * np.maximum(X + X[0], 0), rtol=1e-6)
    model.functions.add(domain="user", name="F")
    with pytest.raises(ValueError, match=r"has opset 11 and cannot be .* loses functions \(F\)"):
        cudarelu.onnx.lower(model)


def test_the_other_name_of_the_domain():
    """ONNX Runtime itself does not find ai.onnx in subgraphs."""
    text = """main (float[N,4] x, bool c) => (float[N,4] y) { h = ai.onnx.Relu(x)
    y = ai.onnx.If (c) <then_branch = t () => (float[N,4] p) { p = ai.onnx.Tanh(h) },
                        else_branch = e () => (float[N,4] q) { q = ai.onnx.Softmax(h) }> }"""
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["ai.onnx" : 18]> {text}')
    result, report = cudarelu.onnx.accelerate(model)
    assert sorted(each.op for each in report.replaced) == ["relu", "softmax", "tanh"]
    assert {each.domain for each in result.opset_import} == {"", "cudarelu"}
    (y,) = run(result, True, {"x": X, "c": np.array(True)})
    np.testing.assert_allclose(y, np.tanh(np.maximum(X, 0)), rtol=1e-6)
    model.opset_import.add(domain="", version=17)
    with pytest.raises(ValueError, match="the model has opset 17 and opset 18"):
        cudarelu.onnx.accelerate(model)


def test_values_that_are_no_tensors():
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 18, "ai.onnx.ml" : 1]>
        main (float[N,4] x, seq(float[N,4]) s) => (seq(map(int64, float)) z, seq(float[N,4]) t,
            optional(float[N,4]) o, map(string, float) never) {
          h = Relu(x) p = Softmax(h) t = SequenceInsert(s, h) o = Optional(h)
          z = ai.onnx.ml.ZipMap <classlabels_int64s = [0, 1, 2, 3]> (p) }"""
    )
    del model.graph.output[3:]
    result, report = cudarelu.onnx.accelerate(model)
    assert sorted(each.op for each in report.replaced) == ["relu", "softmax"]
    assert result.graph.input == model.graph.input
    assert result.graph.output == model.graph.output
    feeds = {"x": X, "s": [X]}
    for library in False, True:
        (z, t, o), (zz, tt, oo) = run(model, False, feeds), run(result, library, feeds)
        assert [each.keys() for each in z] == [each.keys() for each in zz]
        np.testing.assert_allclose([*z[0].values()], [*zz[0].values()], rtol=1e-6)
        np.testing.assert_array_equal(t, tt)
        np.testing.assert_array_equal(o, oo)


def test_outputs_that_are_no_tensors_are_compared():
    text = """<ir_version: 8, opset_import: ["" : 18, "ai.onnx.ml" : 1]>
    main (float[2,2] x) => (seq(map(string, float)) z, seq(float[2,2]) s) { p = Relu(x)
    z = ai.onnx.ml.ZipMap <classlabels_strings = ["a", "b"]> (p) s = SequenceConstruct(p, x) }"""
    models = [onnx.parser.parse_model(each) for each in (text, text.replace('"b"', '"c"'))]
    running = [measure.Running(each, None, "cpu", {"x": X[:2, :2]}) for each in models]
    assert measure.difference(running[0], running[0]) is None
    assert measure.difference(*running) == "output 1 differs in 1 of 1 elements"


def test_a_function_that_calls_our_ops():
    """ONNX Runtime cannot type it without definitions, so they are attached."""
    text = """main (float[N,4] x) => (float[N,4] y) { h = user.F(x) y = user.F(h) }
    <domain: "user", opset_import: ["" : 18, "cudarelu" : 1]> F (x) => (y) {
        h = cudarelu.Relu(x) y = Identity(h) }"""
    model = parse(text, 18, ', "user" : 1, "cudarelu" : 1')
    result, report = cudarelu.onnx.accelerate(model)
    assert report.replaced == []
    assert [each.name for each in result.functions] == ["Relu", "F"]
    np.testing.assert_array_equal(run(result, True, {"x": X})[0], np.maximum(X, 0))


def test_what_would_be_lost():
    model = body("y = Relu(x)")
    model.graph.sparse_initializer.add()
    with pytest.raises(ValueError, match="sparse initializers"):
        cudarelu.onnx.accelerate(model)


# Models of PyTorch


class Transformer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        layer = torch.nn.TransformerEncoderLayer(32, 2, 64, dropout=0, batch_first=True)
        self.encoder = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = torch.nn.Linear(32, 5)

    def forward(self, x):
        return self.head(self.encoder(x)).tanh()


def exported(model: torch.nn.Module, x: torch.Tensor) -> onnx.ModelProto:
    program = torch.onnx.export(
        model.eval(), (x,), dynamo=True, dynamic_shapes=({0: "batch"},), verbose=False,
        input_names=["x"],
    )  # fmt: skip
    return program.model_proto


def check_model(model: torch.nn.Module, x: torch.Tensor) -> dict[str, int]:
    before = exported(model, x)
    result, report = cudarelu.onnx.accelerate(before)
    onnx.checker.check_model(result, full_check=True)
    feeds = {"x": x.numpy()}
    (expected,) = run(before, False, feeds)
    for library in (False, True):
        (y,) = run(result, library, feeds)
        np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())
    found = [each.op for each in report.replaced]
    return {op: found.count(op) for op in found}


@pytest.mark.slow
def test_a_transformer():
    torch.manual_seed(0)
    found = check_model(Transformer(), torch.randn(2, 6, 32))
    assert found == {
        "linear_relu": 2, "linear": 3, "linear_add": 2, "tanh": 1, "add": 2, "attention": 2,
        "layer_norm": 4,
    }  # fmt: skip


@pytest.mark.slow
def test_resnet18():
    models = pytest.importorskip("torchvision.models", reason="torchvision is not installed")
    torch.manual_seed(0)
    found = check_model(models.resnet18(), torch.randn(2, 3, 64, 64))
    assert found == {"relu": 17, "add": 8}


# The command line


def test_the_command(tmp_path, capsys, monkeypatch):
    ratios(monkeypatch, 0.5, 1.5, 0.5)
    onnx.save(body(TWO), tmp_path / "model.onnx")
    command = ["accelerate", str(tmp_path / "model.onnx"), str(tmp_path / "out.onnx")]
    assert main(command) == 0
    out = capsys.readouterr().out
    assert out.endswith(f"wrote {tmp_path / 'out.onnx'}\n")
    assert "1 x bias_relu for Add + Relu (c)" in out
    assert ours(onnx.load(tmp_path / "out.onnx")) == ["bias_relu", "tanh"]

    assert main([*command, "--only-if-faster", "--dim", "N=2", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert [each["kept"] for each in report["measured"]] == [True, False]
    assert ours(onnx.load(tmp_path / "out.onnx")) == ["bias_relu"]
    for dim in ("N", "N=", "N=x", "=2"):
        assert main([*command, "--dim", dim]) == 2
        assert capsys.readouterr().err == f"error: --dim {dim}: must be NAME=SIZE\n"
