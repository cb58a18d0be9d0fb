import os
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest

sys.path.insert(0, str(Path(__file__).parent))

pytest_plugins = ["cudarelu.testing.plugin", "support.cpu_seconds"]

# Its options, which pytest has read, are not those of the processes that tests start.
os.environ.pop("PYTEST_ADDOPTS", None)

# The first two are read when torch is imported, also in the processes that tests start. Waiting
# OpenMP threads would spin and slow down other tests. Inductor would spend 8 s for each new cache
# to test the compiler's vector instructions.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("TORCHINDUCTOR_VEC_ISA_OK", "1")
# Read when JAX is imported: the CPU is a mesh of eight devices for the tests of sharding.
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")


def needs_cuda(item: pytest.Item) -> str | None:
    """The reason of a mark that skips a test because CUDA is missing, or None."""
    for mark in item.iter_markers():
        reason = mark.kwargs.get("reason", "")
        skips = mark.name == "skip" or (mark.name == "skipif" and all(mark.args))
        if skips and reason.startswith("needs CUDA"):
            return reason
    return None


@pytest.hookimpl(trylast=True)  # after the selection by -k
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keeps, for each file and reason, one of the tests that are skipped because CUDA is missing:
    there are thousands, and each takes time to skip and report."""
    seen, kept, left_out = set(), [], []
    for item in items:
        reason = needs_cuda(item)
        (left_out if reason and (item.path, reason) in seen else kept).append(item)
        seen.add((item.path, reason))
    items[:] = kept
    if left_out:
        config.hook.pytest_deselected(items=left_out)


@pytest.hookimpl(tryfirst=True)
def pytest_report_teststatus(report: pytest.TestReport) -> tuple[str, str, str] | None:
    """Prints no dot for a passed test where nobody watches: in a log, failures are what counts."""
    if report.passed and report.when == "call" and not sys.__stdout__.isatty():
        return "passed", "", "PASSED"
    return None


@pytest.fixture(scope="module", autouse=True)
def _only_modules_of_this_file() -> Iterator[None]:
    """Tests find, list and count the ops of the modules that their own file loads."""
    from support.op_modules import only_own_module

    with only_own_module():
        yield


@pytest.fixture
def model_folder(tmp_path, monkeypatch) -> Path:
    """The working folder of a test of ort_infer, with a model and an input for it."""
    from support.ort_infer import X, relu

    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CUDARELU_ORT_LIBRARY", raising=False)
    onnx.save(relu(), "model.onnx")
    np.save("x.npy", X)
    return tmp_path
