"""cudarelu.onnx.accelerate finds the definitions of the table."""

from __future__ import annotations

import dataclasses
import functools
import string

import numpy as np
import onnx
import pytest
from onnx import helper
from onnx.reference import ReferenceEvaluator

import cudarelu
import cudarelu.onnx
from cudarelu import _table
from cudarelu._onnx.absent_inputs import with_default_inputs
from cudarelu._onnx.definitions import equivalent_forms, function, lowest_opset
from cudarelu._onnx.expressions import (
    NEUTRAL,
    Attribute,
    Call,
    Filled,
    Input,
    Literal,
    Shape,
    calls,
    forms,
    parts,
    read,
)
from cudarelu.onnx import patterns as onnx_patterns
from cudarelu.onnx.patterns import is_candidate, patterns
from support.accelerate import (
    FIRST,
    HALF,
    LAST,
    OPS,
    ROOT,
    X,
    accelerated,
    body,
    parse,
    run,
    with_constants,
)

CANDIDATES = [op for op in OPS.values() if is_candidate(op)]


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
    assert all(len(read(op, form)) == 1 for form in equivalent_forms(op))


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


# Definitions that use a value twice


def with_definition(name: str, definition: str, **changes) -> cudarelu.OpInfo:
    """An op of the table with another definition, and without attributes by default."""
    return dataclasses.replace(
        OPS[name], definition=definition, **{"attributes": (), "equivalent_forms": ""} | changes
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
        with_definition("relu", "y = Relu(x)", equivalent_forms="y = Pow(x, x)"),
        "y = Pow(x, x)",
        "y = Pow(x, b)",
    ),
    "square-of-float64": (
        with_definition(
            "relu",
            "y = Relu(x)",
            equivalent_forms="t = Constant<value = double {2.0}>() u = CastLike(t, x)"
            " y = Pow(x, u)",
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
            equivalent_forms="r = Size(x) s = Shape(x) t = Size(s) a = Sub(t, t)"
            " u = Unsqueeze(a, a) y = ReduceMean(x, u)",
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
        if not op.equivalent_forms:  # here it differs from the definition
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
