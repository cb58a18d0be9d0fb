"""Small models for tests of cudarelu.onnx.accelerate, which check that results stay."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import onnxruntime as ort
from onnx import numpy_helper

import cudarelu
import cudarelu.onnx
import cudarelu.ort
from cudarelu.onnx import measure

OPS = {op.name: op for op in cudarelu.ops()}
NAMES = {op.onnx.op_type: op.name for op in OPS.values()}
FIRST, LAST = 13, 23
X = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
# The constants of GELU.
HALF = "h = Constant<value_float = 0.5>() o = Constant<value_float = 1.0>()"
ROOT = "r = Constant<value_float = 1.4142135>()"
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


def ratios(monkeypatch, *medians: float) -> None:
    """Makes the measurements return these ratios, in order."""
    left = list(medians)

    def compare(before, after) -> tuple[float, tuple[float, float]]:
        median = left.pop(0)
        return median, (median - 0.02, median + 0.02)

    monkeypatch.setattr(measure, "compare", compare)


TWO = "a = Add(x, b) c = Relu(a) y = Tanh(c)"
