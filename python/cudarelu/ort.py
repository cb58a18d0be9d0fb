"""The ops in ONNX Runtime.

A session on arrays of any library::

    import cudarelu.ort

    session = cudarelu.ort.Session("model.onnx")
    y = session(x)

Or one line makes the ops known to a session of ONNX Runtime's own::

    import onnxruntime

    options = cudarelu.ort.register(onnxruntime.SessionOptions())
    session = onnxruntime.InferenceSession("model.onnx", options)

The library serves ONNX Runtime 1.16 and every later 1.x, on the CPU and the CUDA provider, and
needs neither this package nor Python: other programs register the file of ``library_path()``.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from cudarelu import _build_info
from cudarelu._ort_session import Session

if TYPE_CHECKING:
    import onnxruntime

__all__ = ["Session", "library_path", "register"]


def library_path() -> str:
    """The path of the custom-op library.

    Raises FileNotFoundError where the package was built without it.
    """
    # Where the build writes: this file may be elsewhere, in an editable install.
    path = Path(_build_info.__file__).parent / "libcudarelu_ort.so"
    if not path.exists():
        raise FileNotFoundError(
            f"{path} is missing: build cudarelu with -DCUDARELU_ORT=ON, whose report says what it "
            "needs"
        )
    return str(path)


def register(session_options: onnxruntime.SessionOptions) -> onnxruntime.SessionOptions:
    """Registers the ops with the options, and returns them. Doing so again changes nothing."""
    session_options.register_custom_ops_library(library_path())
    return session_options
