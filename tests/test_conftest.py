"""Which tests are left out if CUDA is missing."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

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


class Recorder:
    """A plugin with the names of the tests that a session collects."""

    names: list[str]

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self.names = [item.name for item in session.items]


def collected(folder: Path, *options: str) -> list[str]:
    """A session in this process: another one would import PyTorch."""
    spec = importlib.util.spec_from_file_location(
        "conftest_of_all", Path(__file__).with_name("conftest.py")
    )
    conftest = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(conftest)
    recorder = Recorder()
    command = ["--collect-only", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
    command += ["--import-mode", "importlib", "--rootdir", str(folder), *options]
    status = pytest.main([*command, str(folder / "test_a.py")], plugins=[conftest, recorder])
    assert status == pytest.ExitCode.OK
    return recorder.names


def test_one_of_those_that_need_cuda_stays(tmp_path):
    (tmp_path / "test_a.py").write_text(TESTS)
    others = ["test_others[0]", "test_others[1]", "test_with_cuda[0]", "test_with_cuda[1]"]
    expected = ["test_devices[0]", "test_devices[1]", "test_pair[0]", *others]
    assert collected(tmp_path) == expected
    assert collected(tmp_path, "-k", "all or pair") == ["test_all[0]", "test_pair[0]"]
