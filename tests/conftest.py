import os
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

sys.path.insert(0, str(Path(__file__).parent))

# Both are read when torch is imported, in the processes that tests start too. Threads of OpenMP
# that wait would spin, at the cost of the tests beside; Inductor would try the compiler's vector
# instructions for each new cache, for 8 s.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("TORCHINDUCTOR_VEC_ISA_OK", "1")


def needs_cuda(item: pytest.Item) -> str | None:
    """The reason, by a mark, to skip a test for want of CUDA, or None."""
    for mark in item.iter_markers():
        reason = mark.kwargs.get("reason", "")
        skips = mark.name == "skip" or (mark.name == "skipif" and all(mark.args))
        if skips and reason.startswith("needs CUDA"):
            return reason
    return None


@pytest.hookimpl(trylast=True)  # of what was chosen by -k
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Of the tests of a file that are skipped for want of CUDA, one stays for each reason: there
    are thousands, and each takes time to be skipped and reported."""
    seen, kept, left_out = set(), [], []
    for item in items:
        reason = needs_cuda(item)
        (left_out if reason and (item.path, reason) in seen else kept).append(item)
        seen.add((item.path, reason))
    items[:] = kept
    if left_out:
        config.hook.pytest_deselected(items=left_out)


@pytest.fixture
def model_folder(tmp_path, monkeypatch) -> Path:
    """The working folder of a test of ort_infer: with a model, and an input for it."""
    from support.ort_infer import X, relu

    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CUDARELU_ORT_LIBRARY", raising=False)
    onnx.save(relu(), "model.onnx")
    np.save("x.npy", X)
    return tmp_path
