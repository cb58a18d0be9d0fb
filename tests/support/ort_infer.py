"""Runs the executable ort_infer as a process, and makes small models for it."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

BUILD = Path(os.environ.get("CUDARELU_BUILD_DIR", Path(__file__).parents[2] / "build"))
ORT_INFER = os.environ.get("CUDARELU_ORT_INFER", str(BUILD / "ort_infer"))
X = np.array([[-1, 2, np.nan, -0.0], [0.5, -3, 4, np.inf]], np.float32)

BUILT = pytest.mark.skipif(not Path(ORT_INFER).exists(), reason=f"{ORT_INFER} has not been built")


def tensor(name: str, shape, dtype: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, shape)


def make_model(nodes, inputs, outputs, functions=()) -> onnx.ModelProto:
    domains = {"": 18, "cudarelu": 1, "custom": 1, "custom_domain": 1, "elsewhere": 1}
    opsets = [helper.make_opsetid(domain, version) for domain, version in domains.items()]
    graph = helper.make_graph(nodes, "test", inputs, outputs)
    return helper.make_model(graph, ir_version=10, opset_imports=opsets, functions=functions)


def identity(dtype: int, shape=("N",)) -> onnx.ModelProto:
    node = helper.make_node("Identity", ["x"], ["y"])
    return make_model([node], [tensor("x", shape, dtype)], [tensor("y", shape, dtype)])


def relu(domain="custom_domain", op_type="CustomRelu", shape=("N", 4)) -> onnx.ModelProto:
    node = helper.make_node(op_type, ["x"], ["y"], domain=domain)
    return make_model([node], [tensor("x", shape)], [tensor("y", shape)])


def start(*arguments) -> subprocess.CompletedProcess[str]:
    command = [ORT_INFER, *map(str, arguments)]
    return subprocess.run(
        command, capture_output=True, encoding="utf-8", errors="replace", timeout=120
    )


def succeed(*arguments) -> str:
    done = start(*arguments)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


def succeed_json(*arguments) -> dict:
    return json.loads(succeed(*arguments, "--json"))


def fail(*arguments) -> str:
    """The error message, which must be one line; the command must fail."""
    done = start(*arguments)
    assert done.returncode == 2, (done.returncode, done.stderr)
    assert done.stdout == ""
    assert done.stderr.startswith("ort_infer: ")
    assert done.stderr.count("\n") == 1
    assert done.stderr.endswith("\n")
    return done.stderr


def array_of(output: dict) -> np.ndarray:
    return np.array([float(v) for v in output["values"]]).reshape(output["shape"])
