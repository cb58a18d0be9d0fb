"""The headers and the library of ONNX Runtime that the build found, laid out as in a release."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from support.ort_infer import BUILD

CACHE = BUILD / "CMakeCache.txt"
SETTINGS = dict(
    re.findall(r"^(\w+):\w+=(.+)$", CACHE.read_text() if CACHE.exists() else "", re.MULTILINE)
)
INCLUDE = SETTINGS.get("OnnxRuntime_INCLUDE_DIR")
LIBRARY = SETTINGS.get("CUDARELU_ORT_LIBRARY")
FOUND = bool(INCLUDE and LIBRARY)
NEEDS_RELEASE = pytest.mark.skipif(
    not FOUND, reason="needs the headers and the library of ONNX Runtime"
)


def make_release(folder: Path) -> Path:
    """Makes the folder, with include and lib."""
    (folder / "lib").mkdir(parents=True)
    (folder / "include").symlink_to(str(INCLUDE))
    for name in ("libonnxruntime.so", "libonnxruntime.so.1"):
        (folder / "lib" / name).symlink_to(str(LIBRARY))
    return folder
