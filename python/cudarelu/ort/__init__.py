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

from cudarelu.ort.library import library_path, register
from cudarelu.ort.session import Session

__all__ = ["Session", "library_path", "register"]
