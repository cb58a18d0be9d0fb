"""Which tests are left out if CUDA is missing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

TESTS = """
import pytest

def skip(reason, condition=True):
    return pytest.mark.skipif(condition, reason=reason)

CUDA, PAIR = skip("needs CUDA: no device"), skip("needs CUDA: two devices")

@pytest.mark.parametrize("i", [0, pytest.param(1, marks=CUDA), pytest.param(2, marks=CUDA)])
def test_devices(i): pass

@CUDA
@pytest.mark.parametrize("i", range(3))
def test_all(i): pass

@pytest.mark.skip(reason="needs CUDA: two devices")
@pytest.mark.parametrize("i", range(3))
def test_pair(i): pass

@skip("JAX is not installed")
@pytest.mark.parametrize("i", range(2))
def test_others(i): pass

@skip("needs CUDA: no device", False)
@pytest.mark.parametrize("i", range(2))
def test_with_cuda(i): pass
"""


def collected(folder: Path, *options: str) -> list[str]:
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "conftest"]
    command += ["-p", "no:cacheprovider", "--rootdir", str(folder), *options, "test_a.py"]
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    done = subprocess.run(
        command, cwd=folder, env=os.environ | {"PYTHONPATH": path}, capture_output=True
    )
    return [line.split("::")[1] for line in done.stdout.decode().splitlines() if "::" in line]


def test_one_of_those_that_need_cuda_stays(tmp_path):
    (tmp_path / "test_a.py").write_text(TESTS)
    others = ["test_others[0]", "test_others[1]", "test_with_cuda[0]", "test_with_cuda[1]"]
    expected = ["test_devices[0]", "test_devices[1]", "test_pair[0]", *others]
    assert collected(tmp_path) == expected
    assert collected(tmp_path, "-k", "all or pair") == ["test_all[0]", "test_pair[0]"]
