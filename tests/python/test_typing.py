"""The types of the package: mypy accepts a correct program, and finds mistakes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import cudarelu

pytest.importorskip("mypy")

PACKAGE = Path(cudarelu._build_info.__file__).parent

# A comment after a line is the error that mypy must report for it.
PROGRAM = """
from typing import Any

import numpy as np
import onnx
import torch
from numpy.typing import NDArray

import cudarelu
import cudarelu.nn
import cudarelu.onnx
import cudarelu.ort
from cudarelu import leaky_relu, relu

x = torch.randn(2, 4, requires_grad=True)
array = np.zeros((2, 4), np.float32)
weight = torch.nn.Parameter(torch.randn(3, 4))

y: torch.Tensor = cudarelu.relu(x)
y = relu(cudarelu.nn.ReLU()(y))
y = cudarelu.linear_gelu(x, weight, approximate="tanh")
y = cudarelu.layer_norm(x, bias=None, eps=1e-6)
z: NDArray[Any] = cudarelu.leaky_relu(array, negative_slope=0.1)
index: NDArray[Any]
index, distance = cudarelu.knn_query(array, np.array([2], np.int32), nsample=2)
names: list[str] = [op.name for op in cudarelu.ops()]
my: cudarelu.OpModule = cudarelu.load_library("libmy_ops.so")
names = [op.qualified_name for op in my.ops()]
y = my.swish(x, beta=2.0)
y = cudarelu.nn.Op(my.swish, beta=2.0)(x)
default: int | float | str | None = cudarelu.ops()[0].attributes[0].default


class Other:  # of another library
    def __dlpack__(self, *, stream: int | None = None) -> object:
        raise BufferError

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0


other: Other = cudarelu.relu(Other())

session = cudarelu.ort.Session("model.onnx", "cpu")
served = session(array)
program = cudarelu.onnx.export(torch.nn.ReLU(), (x,), "model.onnx")
model: onnx.ModelProto = cudarelu.onnx.demo_model()

cudarelu.rellu(x)  # error: Module has no attribute "rellu"
text: str = cudarelu.relu(x)  # error: Incompatible types in assignment
cudarelu.relu("x")  # error: No overload variant of "relu" matches argument type "str"
cudarelu.relu()  # error: All overload variants of "relu" require at least one argument
leaky_relu(x, 0.1)  # error: No overload variant of "leaky_relu" matches
leaky_relu(x, slope=0.1)  # error: Unexpected keyword argument "slope"
cudarelu.relu_scale(x)  # error: No overload variant of "relu_scale" matches
cudarelu.linear(None, weight)  # error: No overload variant of "linear" matches
cudarelu.ort.Session()  # error: Missing positional argument "path"
cudarelu.onnx.export(x)  # error: Argument 1 to "export" has incompatible type "Tensor"
"""


@pytest.mark.slow  # mypy reads PyTorch, which takes minutes
def test_a_program(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    done = subprocess.run(
        [
            *(sys.executable, "-m", "mypy", "--strict", "--follow-imports", "silent"),
            *("--no-error-summary", "--hide-error-context", "--config-file="),
            *("--cache-dir", PACKAGE.parents[1] / "mypy_cache", "program.py"),
        ],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=os.environ | {"MYPYPATH": str(PACKAGE.parent)},
        check=False,
    )
    assert done.stderr == ""
    errors = re.findall(r"^program.py:(\d+): error: (.*)$", done.stdout, re.MULTILINE)
    found = dict(reversed(errors))  # the first error of each line
    lines = enumerate(PROGRAM.splitlines(), 1)
    expected = {str(i): line.partition("  # error: ")[2] for i, line in lines if "# error" in line}
    assert set(found) == set(expected), done.stdout
    for line, text in expected.items():
        assert found[line].startswith(text)


def test_every_op_has_its_types():
    functions = re.findall(r"^def (\w+)", (PACKAGE / "_functions.pyi").read_text(), re.MULTILINE)
    assert list(dict.fromkeys(functions)) == [op.name for op in cudarelu.ops()]
