"""Nsight's tools see a range with the name of the op for each call, in every host."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

import cudarelu
from cudarelu import _build
from support.commands import needs, run

TOOL = Path(__file__).parents[1] / "support/nvtx_tool.cpp"
NVCC = _build._find_nvcc()
CALLS = """
import numpy as np, onnxruntime, torch
import cudarelu, cudarelu.onnx, cudarelu.ort

x = torch.ones(2, 4, requires_grad=True)
cudarelu.relu(x).sum().backward()
cudarelu.tanh(x.detach().numpy())
options = cudarelu.ort.register(onnxruntime.SessionOptions())
model = cudarelu.onnx.demo_model().SerializeToString()
session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
session.run(None, {"x": np.ones((2, 4), np.float32)})
"""


@needs("g++")
@pytest.mark.skipif(
    NVCC is None or "CUDA" not in cudarelu.modules()[0].built_for,
    reason="built without CUDA, with which NVTX comes",
)
def test_ranges(tmp_path):
    tool, file = tmp_path / "libtool.so", tmp_path / "ranges"
    include = NVCC.parents[1] / "include"
    run("g++", "-std=c++17", "-shared", "-fPIC", f"-I{include}", TOOL, "-o", tool)
    variables = {"NVTX_INJECTION64_PATH": tool, "NVTX_TOOL_FILE": file}
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    run(sys.executable, "-c", CALLS, env=environment | {k: str(v) for k, v in variables.items()})
    names = ("relu", "relu_backward", "tanh", "relu")
    assert file.read_text().split() == [word for n in names for word in (f"cudarelu::{n}", "end")]
