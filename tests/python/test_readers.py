"""The libraries that depend on PyTorch, chosen when the package is imported."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import cudarelu
from cudarelu import _readers


def test_the_library_of_this_pytorch():
    assert _readers.folder_for(torch.__version__) == Path(cudarelu._C.__file__).parent
    assert ".".join(torch.__version__.split(".")[:2]) in _readers.versions()


def test_the_order_of_versions(tmp_path, monkeypatch):
    monkeypatch.setattr(_readers, "_PACKAGE", tmp_path)
    assert _readers.versions() == []
    for minor in ("2.14", "2.9", "2.11"):
        (tmp_path / f"pytorch_{minor}").mkdir()
    assert _readers.versions() == ["2.9", "2.11", "2.14"]
    assert _readers.folder_for("2.9.1+cpu") == tmp_path / "pytorch_2.9"


@pytest.fixture
def import_it(tmp_path):
    """import_it(version, minors): the error of `import cudarelu` with a PyTorch of this version, in
    a package with libraries for these versions of PyTorch."""

    def run(version: str, *minors: str) -> str:
        package = tmp_path / "cudarelu"
        package.mkdir()
        for name in ("__init__.py", "_readers.py", "_build_info.py"):
            (package / name).symlink_to(Path(_readers.__file__).parent / name)
        for minor in minors:
            (package / f"pytorch_{minor}").mkdir()
        (tmp_path / "torch.py").write_text(f"__version__ = {version!r}")
        done = subprocess.run(
            [sys.executable, "-c", "import cudarelu"],
            env=os.environ | {"PYTHONPATH": str(tmp_path)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 1
        return done.stderr.splitlines()[-1]

    return run


def test_a_pytorch_without_a_library(import_it):
    assert import_it("2.10.0+cpu", "2.11", "2.14") == (
        "ImportError: cudarelu was built for PyTorch 2.11, 2.14, but this is 2.10.0+cpu: build it "
        "again in this environment, or pip install 'torch==2.14.*'"
    )


def test_an_installation_without_libraries(import_it):
    """The modules of the package report what is missing: here they are missing themselves."""
    assert import_it("2.14.0") == "ModuleNotFoundError: No module named 'cudarelu._build'"
