"""The custom-op library in ONNX Runtime's CUDA provider."""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

from cudarelu.testing.environment import ort_cuda_missing
from support.models import make_model, make_options, node, one_node, tensor
from support.ort_plugin import CLOUD, POINTS, X, every_in_place_op, run_between_probes, run_knnquery


@pytest.fixture
def cuda_session():
    if reason := ort_cuda_missing():
        pytest.skip(reason)

    def make(model: bytes, options=None, **provider_options) -> ort.InferenceSession:
        options = options or make_options()
        options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
        return ort.InferenceSession(
            model, options, providers=[("CUDAExecutionProvider", provider_options)]
        )

    return make


def test_cuda_keeps_to_the_stream(cuda_session):
    """A long chain of our nodes and ONNX Runtime's own, with tensors that take some time to
    fill."""
    names = [f"t{i}" for i in range(41)]
    nodes = [
        helper.make_node("Neg", [a], [b]) if i % 2 else node("Scale", [a], [b], factor=-1.0)
        for i, (a, b) in enumerate(itertools.pairwise(names))
    ]
    model = make_model(nodes, [tensor(names[0], ["N"])], [tensor(names[-1], None)])
    session = cuda_session(model)
    for seed in range(3):
        x = np.random.default_rng(seed).standard_normal(1 << 22).astype(np.float32)
        np.testing.assert_array_equal(session.run(None, {names[0]: x})[0], x)


def test_cuda_workspace(cuda_session):
    """sum_rows stores partial sums in memory of ONNX Runtime's arena."""
    model = make_model(
        [node("SumRows", ["x"], ["y"])], [tensor("x", ["N", "c"])], [tensor("y", None)]
    )
    session = cuda_session(model)
    for rows in (0, 1, 100_000):
        x = np.ones((rows, 33), np.float32)
        np.testing.assert_array_equal(session.run(None, {"x": x})[0], np.full(33, rows, np.float32))


def test_cuda_workspace_that_cannot_be_had_is_a_status(cuda_session):
    """The arena has enough memory for the input, but not for the partial sums, which take 2 KiB for
    each multiprocessor."""
    rows, columns = 1 << 15, 128
    model = make_model(
        [node("SumRows", ["x"], ["y"])], [tensor("x", ["N", columns])], [tensor("y", [columns])]
    )
    x = np.ones((rows, columns), np.float32)
    session = cuda_session(
        model, gpu_mem_limit=x.nbytes + (1 << 15), arena_extend_strategy="kSameAsRequested"
    )
    with pytest.raises(Exception, match=r"sum_rows: cannot allocate \d+ bytes of workspace"):
        session.run(None, {"x": x})
    few = session.run(None, {"x": x[:10]})[0]
    np.testing.assert_array_equal(few, np.full(columns, 10, np.float32))


@every_in_place_op
def test_cuda_in_place(cuda_session, op):
    before, after, _ = run_between_probes(op, symbolic=True, make=cuda_session)
    assert before == after


@pytest.mark.parametrize("shape", [(0, 4), (5, 4)])
def test_cuda_in_many_threads(cuda_session, shape):
    session = cuda_session(one_node("Relu"))
    x = np.full(shape, -1, np.float32)
    with ThreadPoolExecutor(4) as pool:
        for y in pool.map(lambda _: session.run(None, {"x": x})[0], range(20)):
            np.testing.assert_array_equal(y, np.zeros(shape, np.float32))


def test_cuda_workspace_is_of_one_stream(cuda_session):
    """Concurrent runs have different streams, but share the arena."""
    nodes = [node("SumRows", ["x"], ["y"])]
    session = cuda_session(make_model(nodes, [tensor("x", ["N", 33])], [tensor("y", [33])]))

    def sums(value):
        x = np.full((50_000, 33), value, np.float32)
        return [session.run(None, {"x": x})[0] for _ in range(5)]

    with ThreadPoolExecutor(4) as pool:
        for value, results in enumerate(pool.map(sums, range(8))):
            for y in results:
                np.testing.assert_array_equal(y, np.full(33, 50_000 * value, np.float32))


@pytest.mark.parametrize("constant", [False, True])
def test_cuda_reads_an_attribute_in_host_memory(cuda_session, constant):
    """The value is computed on the device, or is constant."""
    nodes = [
        helper.make_node("Add", ["half", "half"], ["sum"]),
        node("knnquery", ["half" if constant else "sum", "xyz", "offset"], ["idx", "d"], "custom"),
    ]
    model = onnx.ModelProto.FromString(
        make_model(
            nodes[constant:],
            [tensor("half", [1], TensorProto.INT64)] * (not constant)
            + [tensor("xyz", ["n", 3]), tensor("offset", ["b"], TensorProto.INT32)],
            [tensor("idx", None, TensorProto.INT32), tensor("d", None)],
        )
    )
    feeds = {"xyz": POINTS, "offset": CLOUD["offset"]}
    if constant:
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.array([4]), "half"))
    else:
        feeds["half"] = np.array([2])
    cloud = {"xyz": POINTS, "offset": CLOUD["offset"]}
    expected = run_knnquery(np.array(4), cloud)
    found = cuda_session(model.SerializeToString()).run(None, feeds)
    np.testing.assert_array_equal(found[0], expected[0])
    np.testing.assert_allclose(found[1], expected[1], rtol=1e-6)


def test_cuda_says_what_is_wrong(cuda_session):
    nodes = [node("BiasRelu", ["x", "bias"], ["y"])]
    model = make_model(nodes, [tensor("x", ["N", "c"]), tensor("bias", ["k"])], [tensor("y", None)])
    with pytest.raises(Exception, match="bias_relu: dimension c is 4 in x but 3 in bias"):
        cuda_session(model).run(None, {"x": X, "bias": np.zeros(3, np.float32)})
