"""examples/by_hand: what the op of docs/your-op.md takes without cudarelu.

The programs are built for the CPU, which takes half a minute on two cores; the sources for CUDA are
compiled.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from support.ort_release import INCLUDE, NEEDS_RELEASE, make_release

ROOT = Path(__file__).parents[2]
BY_HAND = ROOT / "examples/by_hand"
GUIDE = (ROOT / "docs/your-op.md").read_text()
(HEADER,) = re.findall(r"```cpp\n// squared_relu\.h\n(.*?)```", GUIDE, re.DOTALL)

TOOLS = f"{sysconfig.get_path('scripts')}:{os.environ['PATH']}"
MISSING = [tool for tool in ("cmake", "ninja", "g++") if shutil.which(tool, path=TOOLS) is None]
NVCC = shutil.which("nvcc")


C_PLUS_PLUS = dict.fromkeys([".cpp", ".cu", ".h"], ("//",))
COMMENTS = C_PLUS_PLUS | {".py": ("#", '"""'), ".txt": ("#",)}  # what begins a comment


def lines(text: str, *comments: str) -> int:
    """The number of lines that are neither blank nor comments, which begin with a mark."""
    stripped = (line.strip() for line in text.splitlines())
    return sum(1 for line in stripped if line and not line.startswith(comments))


def test_the_lines_that_the_guide_counts():
    own = lines(HEADER, "//")
    total = 0
    for name in ("extension", "ort_library", "runner"):
        files = [path for path in (BY_HAND / name).iterdir() if path.suffix in COMMENTS]
        count = sum(lines(path.read_text(), *COMMENTS[path.suffix]) for path in files)
        header = f"`squared_relu.h` | {own} " if name == "extension" else ""
        (row,) = re.findall(
            rf"^\| \[{name}\]\(\.\./examples/by_hand/{name}\).*$", GUIDE, re.MULTILINE
        )
        assert f" | {count} | {header}" in row
        total += count
    assert own <= 25
    assert f"| **all** | **{total}** | | **{own}** |" in GUIDE


def run(*command: object, cwd: Path, **variables: str) -> str:
    done = subprocess.run(
        [str(part) for part in command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=cwd,
        env=os.environ | {"PATH": TOOLS} | variables,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-6000:]
    return done.stdout


# Outputs, gradients, exported models in ONNX Runtime, and the runner.
COMPARISON = """
import subprocess
import numpy as np, onnxruntime, torch
import cudarelu
import squared_relu as by_hand

my = cudarelu.load("my", sources=["squared_relu.h"], cuda=False)
special = torch.tensor([0.0, -0.0, torch.nan, torch.inf, -torch.inf, 3e-4, -3e-4])
inputs = [special, torch.randn(1000), torch.randn(5, 7).t(), torch.randn(0, 3), torch.tensor(2.0)]
same = {"rtol": 0, "atol": 0, "equal_nan": True}
for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16):
    for x in (each.to(dtype) for each in inputs):
        torch.testing.assert_close(by_hand.squared_relu(x), my.squared_relu(x), **same)

x = torch.randn(2, 3, dtype=torch.float64, requires_grad=True)
for op in (by_hand.squared_relu, my.squared_relu):
    assert torch.autograd.gradcheck(op, x) and torch.autograd.gradgradcheck(op, x)
    assert torch.equal(torch.compile(op, backend="eager", fullgraph=True)(x), op(x))

class Model(torch.nn.Module):
    def forward(self, x):
        return by_hand.squared_relu(x)

options = onnxruntime.SessionOptions()
library = "build-ort_library/libby_hand_ops.so"
options.register_custom_ops_library(library)
x = torch.cat([special, torch.randn(9)]).reshape(4, 4)
for dtype in (torch.float64, torch.float16, torch.float32):
    shapes = ({0: "n"},)
    by_hand.export(Model().eval(), (x.to(dtype),), "model.onnx", dynamic_shapes=shapes)
    session = onnxruntime.InferenceSession("model.onnx", options, ["CPUExecutionProvider"])
    assert session.get_outputs()[0].shape == ["n", 4]
    given = x[:3].to(dtype)
    (served,) = session.run(None, {session.get_inputs()[0].name: given.numpy()})
    np.testing.assert_array_equal(served, my.squared_relu(given).numpy())

np.save("x.npy", x.numpy())
command = ["build-runner/runner", "model.onnx", library, "x.npy", "cpu"]
output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
np.testing.assert_array_equal(np.float32(output.split()), my.squared_relu(x).flatten().numpy())
"""


@pytest.mark.slow
@pytest.mark.skipif(bool(MISSING), reason=f"{', '.join(MISSING)} is missing")
@NEEDS_RELEASE
def test_the_results_are_the_same(tmp_path):
    runtime = make_release(tmp_path / "onnxruntime")
    shutil.copytree(BY_HAND, tmp_path, dirs_exist_ok=True)
    (tmp_path / "squared_relu.h").write_text(HEADER)
    extension = tmp_path / "extension"

    def build_by_cmake(folder: str) -> None:
        options = ("-G", "Ninja", f"-DCMAKE_PREFIX_PATH={runtime}", "-DWITH_CUDA=OFF")
        run("cmake", "-S", folder, "-B", f"build-{folder}", *options, cwd=tmp_path)
        run("cmake", "--build", f"build-{folder}", cwd=tmp_path)

    def build_extension() -> None:
        cached = {"CCACHE_BASEDIR": str(tmp_path), "CCACHE_NOHASHDIR": "1"}
        command = (sys.executable, "setup.py", "build_ext", "--inplace")
        run(*command, cwd=extension, CUDA_VISIBLE_DEVICES="", **cached)

    with ThreadPoolExecutor(2) as pool:
        extension_built = pool.submit(build_extension)
        list(pool.map(build_by_cmake, ["ort_library", "runner"]))
        extension_built.result()

    path = os.pathsep.join([str(extension), *filter(None, sys.path)])
    run(
        *(sys.executable, "-c", COMPARISON),
        cwd=tmp_path,
        PYTHONPATH=path,
        LD_LIBRARY_PATH=str(runtime / "lib"),
        CUDARELU_CACHE_DIR=str(tmp_path / "cache"),
        CUDA_VISIBLE_DEVICES="",
    )


@pytest.mark.slow
@pytest.mark.skipif(NVCC is None, reason="there is no nvcc")
@pytest.mark.skipif(torch.version.cuda is None, reason="PyTorch was built without CUDA")
@pytest.mark.skipif(not INCLUDE, reason="needs ONNX Runtime's headers")
@pytest.mark.parametrize("folder", ["extension", "ort_library"])
def test_the_kernels_for_cuda_compile(folder, tmp_path):
    includes = [f"-I{torch.__path__[0]}/include", f"-I{INCLUDE}"]
    source = BY_HAND / folder / "squared_relu.cu"
    run(NVCC, "-std=c++20", "-arch=sm_90", *includes, "-c", source, "-o", "x.o", cwd=tmp_path)
