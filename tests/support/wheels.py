"""Builds wheels of the project for the CPU, all from one build folder.

Its path, its compiler and its flags are such that ccache finds what was compiled in build/.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import torch

from .commands import environment

ROOT = Path(__file__).parents[2]
HERE = ".".join(torch.__version__.split(".")[:2])
OTHER = "2.14" if HERE == "2.11" else "2.11"  # the oldest that is supported, or the newest
WHEELS = ROOT / "build-test-wheel"  # with the other PyTorch, which stays


def _make(folder: Path, *versions: str) -> str:
    """Make a wheel for each version and one for all. Return the error if PyTorch is missing."""
    done = subprocess.run(
        [
            *(sys.executable, ROOT / "tools/wheel.py", *versions, "--folder", WHEELS),
            *("--wheel-dir", folder, "-C", "cmake.define.CUDARELU_CUDA=OFF"),
            *("-C", "cmake.define.CMAKE_COMPILE_WARNING_AS_ERROR=ON"),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment(CXX="c++"),
        check=False,
    )
    missing = f"PyTorch {OTHER} cannot be installed"
    if missing in done.stdout:
        return missing
    assert done.returncode == 0, done.stdout[-6000:]
    return ""


def fill_with_wheels(folder: Path) -> None:
    """Make `one/`, the wheel for this PyTorch, and `several/`, that for two; or a text `missing`,
    which says why there is none for two. `readers` lists those of the last build folder."""
    missing = _make(folder / "several", *sorted((HERE, OTHER)))
    if missing:
        _make(folder / "none", HERE)
        (folder / "missing").write_text(missing)
    shutil.copytree(WHEELS / f"wheel-{HERE}", folder / "one")
    readers = [path.name for path in WHEELS.glob("python/cudarelu/pytorch_*")]
    (folder / "readers").write_text("\n".join(readers))
    for path in WHEELS.iterdir():  # a wheel must not need them
        if path.is_file():
            path.unlink()
        elif not path.name.startswith("torch-"):
            shutil.rmtree(path)
