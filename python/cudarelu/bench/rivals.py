"""The rivals that are named by hand: PyTorch's expression for an op, and `libcudarelu_rivals.so`.

An op without an entry has fewer rivals.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from pathlib import Path

import torch
from torch.nn import functional

from .. import _build_info

aten = torch.ops.aten

# What a user of PyTorch would write, with its fused functions where there are some; of the inputs
# and the attributes of our op.
TORCH: dict[str, Callable] = {
    "relu": torch.relu,
    "relu_backward": lambda grad_y, y: aten.threshold_backward(grad_y, y, 0),
    "leaky_relu": functional.leaky_relu,
    "leaky_relu_backward": lambda grad_y, x, negative_slope: aten.leaky_relu_backward(
        grad_y, x, negative_slope, False
    ),
    "tanh": torch.tanh,
    "tanh_backward": aten.tanh_backward,
    "asinh": torch.asinh,
    "asinh_backward": lambda grad_y, x: grad_y * (x * x + 1).rsqrt(),
    "add": torch.add,
    "scaled_add": lambda a, b, alpha: torch.add(b, a, alpha=alpha),
    "mul": torch.mul,
    "scale": lambda x, factor: x * factor,
    "relu_scale": lambda x, scale: torch.relu(x) * scale,
    "relu_scale_backward": lambda grad_y, x, scale: aten.threshold_backward(grad_y, x, 0) * scale,
    "bias_relu": lambda x, bias, scale: torch.relu(x + bias) * scale,
    "bias_relu_backward": lambda grad_y, x, bias, scale: (
        aten.threshold_backward(grad_y, x + bias, 0) * scale
    ),
    "expand_rows": lambda row, like: row.expand_as(like).contiguous(),
    "sum_rows": lambda x: x.flatten(0, -2).sum(0),
    "softmax": lambda x: torch.softmax(x, -1),
    "softmax_backward": lambda grad_y, y: aten._softmax_backward_data(grad_y, y, -1, y.dtype),
    "row_sum": lambda x: x.sum(-1, keepdim=True).expand_as(x).contiguous(),
}

_DTYPES = ("float32", "float64", "float16", "bfloat16", "int8", "uint8", "int32", "int64")


@functools.cache
def _library() -> ctypes.CDLL:
    """Raises OSError where it was not built."""
    path = Path(_build_info.__file__).parent / "libcudarelu_rivals.so"
    if not path.exists():
        raise FileNotFoundError(f"{path} is missing: build the target cudarelu_rivals")
    library = ctypes.CDLL(str(path))
    pointer, number = ctypes.c_void_p, ctypes.c_int
    for name in ("cub_relu", "naive_relu"):
        getattr(library, name).argtypes = [number, pointer, pointer, ctypes.c_int64, pointer]
    library.pointops_knn.argtypes = [pointer] * 6 + [number, number, pointer]
    return library


def _checked(status: int) -> None:
    if status:
        raise RuntimeError(f"the launch of a rival failed with cudaError_t {status}")


def relu(name: str) -> Callable[[torch.Tensor], torch.Tensor]:
    """relu of a contiguous CUDA tensor on the current stream, as `cub` or `naive` has it."""
    function = getattr(_library(), f"{name}_relu")

    def run(x: torch.Tensor) -> torch.Tensor:
        y = torch.empty_like(x)
        dtype = _DTYPES.index(str(x.dtype).removeprefix("torch."))
        stream = torch.cuda.current_stream().cuda_stream
        _checked(function(dtype, x.data_ptr(), y.data_ptr(), x.numel(), stream))
        return y

    return run


def knn() -> Callable[..., tuple[torch.Tensor, torch.Tensor]]:
    """knn_query of contiguous float32 CUDA tensors on the current stream, by pointops' method."""
    function = _library().pointops_knn

    def run(xyz, offset, new_xyz, new_offset, nsample):
        new_xyz = xyz if new_xyz is None else new_xyz
        new_offset = offset if new_offset is None else new_offset
        shape = len(new_xyz), nsample
        idx = torch.empty(shape, dtype=torch.int32, device=xyz.device)
        squared = torch.empty(shape, dtype=torch.float32, device=xyz.device)
        tensors = (xyz, offset, new_xyz, new_offset, idx, squared)
        stream = torch.cuda.current_stream().cuda_stream
        _checked(function(*(each.data_ptr() for each in tensors), len(new_xyz), nsample, stream))
        return idx, squared.sqrt()

    return run
