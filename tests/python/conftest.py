import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture
def model_folder(tmp_path, monkeypatch) -> Path:
    """The working folder of a test of ort_infer: with a model, and an input for it."""
    from ort_infer import X, relu

    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CUDARELU_ORT_LIBRARY", raising=False)
    onnx.save(relu(), "model.onnx")
    np.save("x.npy", X)
    return tmp_path
