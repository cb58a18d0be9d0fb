"""The measurements of ort_infer, and its report about nodes."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import time
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from cudarelu.testing.environment import ort_cuda_missing
from support.ort_infer import (
    BUILT,
    ORT_INFER,
    X,
    array_of,
    fail,
    make_model,
    start,
    succeed,
    succeed_json,
    tensor,
)

pytestmark = [BUILT, pytest.mark.usefixtures("model_folder")]
NO_CUDA = ort_cuda_missing()
needs_cuda = pytest.mark.skipif(NO_CUDA is not None, reason=NO_CUDA or "")
CPU = ["model.onnx", "--provider", "cpu", "--input", "x=x.npy"]
CUDA = ["model.onnx", "--provider", "cuda", "--input", "x=x.npy"]
Y = np.where(X < 0, 0, X)


def check_latency(latency: dict) -> None:
    assert 0 < latency["min"] <= latency["p50"] <= latency["p90"] <= latency["p99"]
    assert latency["p99"] <= latency["max"]
    assert latency["min"] <= latency["mean"] <= latency["max"]


@pytest.mark.parametrize("binding", ["--io-binding", "--no-io-binding"])
@pytest.mark.parametrize("concurrency", [1, 3])
def test_iterations(binding, concurrency):
    options = ["--iterations", 100, "--concurrency", concurrency, "--warmup", 2, binding]
    report = succeed_json(*CPU, *options)
    (measured,) = report["measurements"]
    assert (measured["runs"], measured["concurrency"], measured["warmup"]) == (100, concurrency, 2)
    assert (measured["sizes"], measured["batch"]) == ({"N": 2}, None)
    check_latency(measured["latency_ms"]["total"])
    assert measured["latency_ms"]["to_device"] is None
    np.testing.assert_allclose(measured["runs_per_second"], 100 / measured["seconds"])
    assert len(report["nodes"]) == 1
    np.testing.assert_array_equal(array_of(report["outputs"][0]), Y)


def slow_model(milliseconds_at_least: int) -> None:
    """Saves a model whose runs take long enough to compare the measured time with the clock."""
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["keep_in"], ["keep"]),
            helper.make_node("Sin", ["state_in"], ["state"]),
        ],
        "body",
        [
            tensor("i", [], TensorProto.INT64),
            tensor("keep_in", [], TensorProto.BOOL),
            tensor("state_in", ["N"]),
        ],
        [tensor("keep", [], TensorProto.BOOL), tensor("state", ["N"])],
    )
    nodes = [
        helper.make_node("Constant", [], ["count"], value_int=20 * milliseconds_at_least),
        helper.make_node("Loop", ["count", "", "x"], ["y"], body=body),
    ]
    onnx.save(make_model(nodes, [tensor("x", ["N"])], [tensor("y", ["N"])]), "slow.onnx")


def test_seconds_and_percentiles():
    slow_model(5)
    options = ["--provider", "cpu", "--dim", "N=20000", "--seconds", "0.5", "--warmup", 1]
    begin = time.monotonic()
    (measured,) = succeed_json("slow.onnx", *options)["measurements"]
    elapsed = time.monotonic() - begin
    assert 0.5 <= measured["seconds"] < elapsed
    latency = measured["latency_ms"]["total"]
    check_latency(latency)
    # There is one thread, so the runs take all of the time.
    total = latency["mean"] * measured["runs"] / 1000
    np.testing.assert_allclose(total, measured["seconds"], rtol=1e-6)


def test_whichever_comes_first():
    (measured,) = succeed_json(*CPU, "--seconds", 60, "--iterations", 7)["measurements"]
    assert measured["runs"] == 7


def test_measured_text():
    text = succeed(*CPU, "--iterations", 10)
    assert "measured 10 runs in " in text
    assert " on 1 thread, N=2\n" in text
    assert "p50        p90        p99" in text
    assert "\n  total " in text


def test_batch_sweep():
    options = ["--batch-sweep", "1,2,8", "--iterations", 10]
    report = succeed_json("model.onnx", "--provider", "cpu", *options)
    assert [m["batch"] for m in report["measurements"]] == [1, 2, 8]
    assert [m["sizes"] for m in report["measurements"]] == [{"N": 1}, {"N": 2}, {"N": 8}]
    for m in report["measurements"]:
        np.testing.assert_allclose(m["items_per_second"], m["batch"] * m["runs_per_second"])
    assert report["outputs"][0]["shape"] == [8, 4]


def test_profile():
    report = succeed_json(*CPU, "--iterations", 5, "--warmup", 1, "--profile", "trace.json")
    assert len(report["nodes"]) == 1
    events = json.loads(Path("trace.json").read_text())
    assert sum(event["name"] == "model_run" for event in events) == 7
    Path("folder").mkdir()
    assert "--profile folder" in fail(*CPU, "--profile", "folder")


def test_no_progress_in_a_pipe_and_some_on_a_terminal():
    command = [ORT_INFER, *CPU, "--seconds", "0.7"]
    assert subprocess.run(command, capture_output=True, check=True).stderr == b""
    main, terminal = pty.openpty()
    subprocess.run(command, stdout=subprocess.DEVNULL, stderr=terminal, check=True)
    os.close(terminal)
    shown = os.read(main, 10_000)
    os.close(main)
    assert b"runs measured" in shown
    assert shown.endswith(b"\r\x1b[K")


def test_interrupt_keeps_what_was_measured():
    command = [ORT_INFER, *CPU, "--seconds", "60", "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    time.sleep(1)
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=20)
    assert (process.returncode, errors) == (130, b"")
    (measured,) = json.loads(output)["measurements"]
    assert measured["runs"] > 0
    assert measured["seconds"] < 20


def test_a_run_that_fails_while_it_is_measured():
    """The size of the output changes with each run, so the bound output does not fit. No thread
    waits for another forever."""
    nodes = [
        helper.make_node("RandomUniformLike", ["x"], ["random"]),
        helper.make_node("Constant", [], ["half"], value_float=0.5),
        helper.make_node("Greater", ["random", "half"], ["some"]),
        helper.make_node("NonZero", ["some"], ["y"]),
    ]
    output = tensor("y", [1, "M"], TensorProto.INT64)
    onnx.save(make_model(nodes, [tensor("x", ["N"])], [output]), "model.onnx")
    arguments = ["model.onnx", "--provider", "cpu", "--dim", "N=1000", "--iterations", 1000]
    for concurrency in (1, 4):
        fail(*arguments, "--io-binding", "--concurrency", concurrency)
    succeed(*arguments, "--no-io-binding", "--concurrency", 4)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--iterations", "0"], "--iterations: must be an integer from 1"),
        (["--seconds", "-1"], "--seconds: must be a non-negative number"),
        (["--seconds", "nan"], "--seconds"),
        (["--seconds", "1e300"], "--seconds: must be at most 1e6"),
        (["--concurrency", "0"], "--concurrency: must be an integer from 1"),
        (["--concurrency", "5000"], "--concurrency: must be at most 1024"),
        (["--batch-sweep", "1,,2"], "--batch-sweep: must be an integer"),
        (["--batch-sweep", "1", "--dim", "N=3"], "--batch-sweep sets N, and so does --dim"),
        (["--io-binding", "--no-io-binding"], "are mutually exclusive"),
        (["--cuda-graph", "--no-io-binding"], "leave out --no-io-binding"),
        (["--cuda-graph", "--concurrency", "2"], "--cuda-graph needs --concurrency 1"),
        (["--cuda-graph", "--provider", "cpu"], "--cuda-graph needs CUDA"),
        (["--require-provider", "cuda", "--provider", "cpu"], "contradicts --provider cpu"),
        (["--require-provider", "cpu"], "--require-provider"),
        (["--max-memcpy", "-1"], "--max-memcpy: must be an integer"),
        (["--device", "x"], "--device: must be an integer"),
    ],
)
def test_bad_options(arguments, message):
    assert message in fail("model.onnx", *arguments)


def test_batch_sweep_wants_a_free_dimension():
    node = helper.make_node("Relu", ["x"], ["y"], domain="cudarelu")
    onnx.save(make_model([node], [tensor("x", [2, 4])], [tensor("y", [2, 4])]), "model.onnx")
    assert "named free dimension" in fail("model.onnx", "--batch-sweep", "1,2")


# Nodes


def test_explain():
    nodes = [
        helper.make_node("Relu", ["x"], ["z"], name="ours", domain="cudarelu"),
        helper.make_node("MatMul", ["z", "w"], ["y"], name="theirs"),
    ]
    inputs = [tensor("x", ["N", 4]), tensor("w", [4, 3])]
    onnx.save(make_model(nodes, inputs, [tensor("y", ["N", 3])]), "model.onnx")
    text = succeed(*CPU, "--explain")
    on = "on CPUExecutionProvider: float32 [2, 4]"
    assert f"  cudarelu::Relu ours {on} -> float32 [2, 4]\n" in text
    assert f"  MatMul theirs {on}, float32 [4, 3] -> float32 [2, 3]\n" in text
    assert "copies between devices: 0\n" in text
    report = succeed_json(*CPU, "--max-memcpy", 0)
    assert report["nodes"][1]["inputs"] == ["float32 [2, 4]", "float32 [4, 3]"]
    assert report["copies"] == 0


@pytest.mark.skipif(NO_CUDA is None, reason="needs a machine without CUDA")
def test_required_provider_that_cannot_be_had():
    message = fail(*CPU[:1], "--require-provider", "cuda")
    assert "--require-provider cuda is not available" in message
    assert "--cuda-graph needs CUDA" in fail("model.onnx", "--cuda-graph")


# CUDA


def on_both() -> None:
    """Saves a model with a node without a CUDA kernel between two nodes with one."""
    nodes = [
        helper.make_node("Relu", ["x"], ["a"], domain="cudarelu"),
        helper.make_node("Unique", ["a"], ["b"], name="only_cpu"),
        helper.make_node("Relu", ["b"], ["y"], domain="cudarelu"),
    ]
    onnx.save(make_model(nodes, [tensor("x", ["N", 4])], [tensor("y", ["M"])]), "model.onnx")


@needs_cuda
def test_cuda_split():
    report = succeed_json(*CUDA, "--iterations", 50, "--concurrency", 2)
    (measured,) = report["measurements"]
    latency = measured["latency_ms"]
    for phase in ("total", "to_device", "run", "to_host"):
        check_latency(latency[phase])
    parts = sum(latency[phase]["mean"] for phase in ("to_device", "run", "to_host"))
    np.testing.assert_allclose(parts, latency["total"]["mean"], rtol=1e-6)
    np.testing.assert_array_equal(array_of(report["outputs"][0]), Y)
    (measured,) = succeed_json(*CUDA, "--iterations", 5, "--no-io-binding")["measurements"]
    assert measured["latency_ms"]["to_device"] is None


@needs_cuda
def test_cuda_graph():
    """The outputs are those of the last replay."""
    options = ["--cuda-graph", "--iterations", 20]
    report = succeed_json(*CUDA, *options, "--require-provider", "cuda", "--max-memcpy", 0)
    np.testing.assert_array_equal(array_of(report["outputs"][0]), Y)
    sweep = [*CUDA[:3], *options, "--batch-sweep", "1,3"]
    report = succeed_json(*sweep)
    assert [m["batch"] for m in report["measurements"]] == [1, 3]
    x, y = array_of(report["inputs"][0]), array_of(report["outputs"][0])
    np.testing.assert_array_equal(y, np.maximum(x, 0))


@needs_cuda
def test_nodes_elsewhere():
    on_both()
    np.save("x.npy", np.arange(8, dtype=np.float32).reshape(2, 4))
    assert "some of its nodes run on the CPU" in fail(*CUDA, "--require-provider", "cuda")
    report = succeed_json(*CUDA)
    assert report["copies"] > 0
    providers = {node["name"]: node["provider"] for node in report["nodes"]}
    assert providers["only_cpu"] == "CPUExecutionProvider"
    message = fail(*CUDA, "--max-memcpy", report["copies"] - 1)
    assert "copies between devices, but --max-memcpy allows" in message
    assert "Memcpy" in succeed(*CUDA, "--explain", "--max-memcpy", report["copies"])
    assert start(*CUDA, "--cuda-graph").returncode == 2


@needs_cuda
def test_device():
    assert "--device 99: this machine has" in fail(*CUDA, "--device", 99)
    succeed(*CUDA, "--device", 0)
