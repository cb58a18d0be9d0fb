"""The ops of the namespace `my`, for PyTorch and arrays: `my_ops.swish(x)`.

They are also `torch.ops.my`, and the domain `my` of ONNX. `LIBRARY` is the file that ONNX Runtime
and `ort_infer --library` load.
"""

from pathlib import Path

import cudarelu

LIBRARY = str(Path(__file__).with_name("libmy_ops.so"))
MODULE = cudarelu.load_library(LIBRARY)
__all__ = [op.name for op in MODULE.ops()]
globals().update({name: getattr(MODULE, name) for name in __all__})
