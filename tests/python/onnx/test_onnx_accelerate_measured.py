"""cudarelu.onnx.accelerate keeps only ops that make the model faster."""

from __future__ import annotations

import types

import numpy as np
import onnxruntime as ort
import pytest
import torch

import cudarelu
import cudarelu.onnx
from cudarelu.onnx import measure
from cudarelu.testing.environment import ort_cuda_missing
from support.accelerate import TWO, X, body, ours, parse, ratios, run


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
