"""cudarelu.onnx.accelerate finds linear layers."""

from __future__ import annotations

import re

import numpy as np
import onnx
import onnxscript.optimizer
import pytest
from onnx import TensorProto, helper

import cudarelu
import cudarelu.onnx
from support.accelerate import (
    ACTIVATIONS,
    LINEAR,
    OPS,
    TRANSPOSED,
    X,
    accelerated,
    linear_model,
    parse,
    run,
    with_constants,
)
from support.cases import slow_after


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
