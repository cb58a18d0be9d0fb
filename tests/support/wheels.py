"""Builds wheels of the project for the CPU, all from one build folder."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import torch

from .commands import environment
from .ort_infer import BUILD

ROOT = Path(__file__).parents[2]
HERE = ".".join(torch.__version__.split(".")[:2])
OTHER = "2.14" if HERE == "2.11" else "2.11"  # the oldest that is supported, or the newest
WHEELS = BUILD / "wheel"  # where they are built, and where the other PyTorch is installed


def _make(folder: Path, *versions: str) -> str:
    """Make a wheel for each version and one for all. Return the error if PyTorch is missing."""
    done = subprocess.run(
        [
            *(sys.executable, ROOT / "tools/wheel.py", *versions, "--folder", WHEELS),
            *("--wheel-dir", folder, "-C", "cmake.define.CUDARELU_CUDA=OFF"),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment(),
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
    built = WHEELS / "build"
    readers = [path.name for path in built.glob("python/cudarelu/pytorch_*")]
    (folder / "readers").write_text("\n".join(readers))
    shutil.rmtree(built)  # a wheel must not need it
