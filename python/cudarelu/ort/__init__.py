"""The ops in ONNX Runtime.

`Session` runs a model on arrays of any library::

    import cudarelu.ort

    session = cudarelu.ort.Session("model.onnx")
    y = session(x)

`register` adds the ops to a session of ONNX Runtime itself::

    import onnxruntime

    options = cudarelu.ort.register(onnxruntime.SessionOptions())
    session = onnxruntime.InferenceSession("model.onnx", options)

Both serve the ops of all modules that are loaded by then (``cudarelu.load_library``).

The library works with ONNX Runtime 1.16 and every later 1.x, in the CPU and the CUDA provider. It
needs neither this package nor Python: other programs can register the file ``library_path()``, and
the libraries of other modules, ``path``.
"""

from cudarelu.ort.library import library_path, register
from cudarelu.ort.session import Session

__all__ = ["Session", "library_path", "register"]
