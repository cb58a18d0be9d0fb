"""The rivals that are listed by hand: PyTorch's expressions and `libcudarelu_rivals.so`.

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


def _grid_cluster(
    pos: torch.Tensor, size: torch.Tensor, start: torch.Tensor | None, end: torch.Tensor | None
) -> torch.Tensor:
    start = pos.amin(0) if start is None else start
    end = pos.amax(0) if end is None else end
    cells = ((end - start) / size).long() + 1
    strides = cells.cumprod(0) // cells
    return (((pos - start) / size).long() * strides).sum(1)


def _knn_query(
    xyz: torch.Tensor,
    offset: torch.Tensor,
    new_xyz: torch.Tensor | None,
    new_offset: torch.Tensor | None,
    nsample: int,
) -> tuple[torch.Tensor, ...]:
    """Of one batch. torch.cdist is for float32 and float64 only."""
    queries = xyz if new_xyz is None else new_xyz
    distances = torch.linalg.vector_norm(queries[:, None] - xyz, dim=-1)
    dist, idx = distances.topk(nsample, largest=False)
    return idx.int(), dist


def _layer_norm_backward(
    grad_y: torch.Tensor, x: torch.Tensor, weight: torch.Tensor | None, eps: float
) -> tuple[torch.Tensor, ...]:
    shape = x.shape[-1:]
    _, mean, rstd = aten.native_layer_norm(x, shape, None, None, eps)  # ours computes them too
    every = [True] * 3
    return aten.native_layer_norm_backward(grad_y, x, shape, mean, rstd, weight, weight, every)


def _linear_gelu_with_sum(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, approximate: str
) -> tuple[torch.Tensor, ...]:
    total = functional.linear(x, weight, bias)
    return functional.gelu(total, approximate=approximate), total


# What a user of PyTorch would write, with its fused functions if there are any. Each takes the
# inputs and the attributes of our op.
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
    "gelu": functional.gelu,
    "gelu_backward": aten.gelu_backward,
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
    "attention": functools.partial(functional.scaled_dot_product_attention, enable_gqa=True),
    "matmul": torch.matmul,
    "matmul_nt": lambda a, b: a @ b.mT,
    "matmul_tn": lambda a, b: a.mT @ b,
    "linear": functional.linear,
    "linear_input_backward": lambda grad_y, weight: grad_y @ weight,
    "linear_weight_backward": lambda grad_y, x: grad_y.flatten(0, -2).mT @ x.flatten(0, -2),
    "linear_add": lambda x, weight, other, bias: functional.linear(x, weight, bias) + other,
    "linear_relu": lambda x, weight, bias: functional.linear(x, weight, bias).relu(),
    "linear_gelu": lambda x, weight, bias, approximate: functional.gelu(
        functional.linear(x, weight, bias), approximate=approximate
    ),
    "linear_gelu_with_sum": _linear_gelu_with_sum,
    "layer_norm": lambda x, weight, bias, eps: functional.layer_norm(
        x, x.shape[-1:], weight, bias, eps
    ),
    "layer_norm_backward": _layer_norm_backward,
    "grid_cluster": _grid_cluster,
    "knn_query": _knn_query,
    "row_sum": lambda x: x.sum(-1, keepdim=True).expand_as(x).contiguous(),
}

# The ops that multiply their first two inputs, and whether the second is transposed.
GEMM = {
    "matmul": False,
    "matmul_nt": True,
    "linear": True,
    "linear_relu": True,
    "linear_gelu": True,
}

_DTYPES = ("float32", "float64", "float16", "bfloat16", "int8", "uint8", "int32", "int64")


@functools.cache
def _library() -> ctypes.CDLL:
    """Raises OSError if the library was not built."""
    path = Path(_build_info.__file__).parent / "libcudarelu_rivals.so"
    if not path.exists():
        raise FileNotFoundError(f"{path} is missing: build the target cudarelu_rivals")
    library = ctypes.CDLL(str(path))
    pointer, number = ctypes.c_void_p, ctypes.c_int
    for name in ("cub_relu", "naive_relu"):
        getattr(library, name).argtypes = [number, pointer, pointer, ctypes.c_int64, pointer]
    library.pointops_knn.argtypes = [pointer] * 6 + [number, number, pointer]
    sizes = [ctypes.c_int64] * 4
    tensors = [pointer] * 4
    library.cublaslt_prepare.argtypes = [number, number, *tensors, *sizes, number, pointer]
    library.cublaslt_prepare.restype = pointer
    library.cublaslt_run.argtypes = [pointer, *tensors, pointer]
    library.cublaslt_destroy.argtypes = [pointer]
    return library


def _checked(status: int) -> None:
    if status:
        raise RuntimeError(f"the launch of a rival failed with cudaError_t {status}")


def relu(name: str) -> Callable[[torch.Tensor], torch.Tensor]:
    """Returns relu of a contiguous CUDA tensor on the current stream, by `cub` or `naive`."""
    function = getattr(_library(), f"{name}_relu")
    begun: set[torch.dtype] = set()

    def run(x: torch.Tensor) -> torch.Tensor:
        if x.dtype not in begun:  # CUB keeps the tile size of its first call for a type
            begun.add(x.dtype)
            run(torch.zeros(1 << 26, dtype=x.dtype, device=x.device))
        y = torch.empty_like(x)
        dtype = _DTYPES.index(str(x.dtype).removeprefix("torch."))
        stream = torch.cuda.current_stream().cuda_stream
        _checked(function(dtype, x.data_ptr(), y.data_ptr(), x.numel(), stream))
        return y

    return run


def knn() -> Callable[..., tuple[torch.Tensor, torch.Tensor]]:
    """Returns knn_query of contiguous float32 CUDA tensors, by pointops' method."""
    function = _library().pointops_knn

    def run(
        xyz: torch.Tensor,
        offset: torch.Tensor,
        new_xyz: torch.Tensor | None,
        new_offset: torch.Tensor | None,
        nsample: int,
    ) -> tuple[torch.Tensor, torch.Tensor]:
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


_CUDA_TYPES = {torch.float32: 0, torch.float16: 2, torch.bfloat16: 14}  # cudaDataType_t
EPILOGUES = {"none": 1, "relu": 6, "gelu": 36}  # cublasLtEpilogue_t with a bias; its GELU is tanh's


def _pointers(*tensors: torch.Tensor | None) -> list[int | None]:
    return [None if each is None else each.data_ptr() for each in tensors]


class Gemm:
    """x y, or x y^T if `transposed`, of contiguous CUDA tensors on the current stream, not in TF32,
    by the fastest of the first eight algorithms that cuBLASLt's heuristics return.

    x is [*, m, k] and y is [*, k, n] or [*, n, k]; if y is [n, k], x is [*, k]. All epilogues
    except "none" add a bias, [n]. Raises ValueError if cuBLASLt has no algorithm.
    """

    def __init__(
        self,
        x: torch.Tensor,
        y: torch.Tensor,
        transposed: bool,
        epilogue: str = "none",
        bias: torch.Tensor | None = None,
    ) -> None:
        self._library = _library()
        self._bias = bias
        self._shape = *x.shape[:-1], y.shape[-2 if transposed else -1]
        batch = y.shape[:-2].numel()
        rows = x.shape[:-1].numel() // batch
        sizes = batch, rows, self._shape[-1], x.shape[-1]
        z = x.new_empty(self._shape)
        stream = torch.cuda.current_stream().cuda_stream
        kind = _CUDA_TYPES[x.dtype], EPILOGUES[epilogue]
        self._product = self._library.cublaslt_prepare(
            *kind, *_pointers(x, y, bias, z), *sizes, transposed, stream
        )
        if not self._product:
            raise ValueError(f"cuBLASLt has no algorithm for {sizes} of {x.dtype}")

    def __call__(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        z = x.new_empty(self._shape)
        stream = torch.cuda.current_stream().cuda_stream
        pointers = _pointers(x, y, self._bias, z)
        _checked(self._library.cublaslt_run(self._product, *pointers, stream))
        return z

    def __del__(self) -> None:
        if getattr(self, "_product", None):
            self._library.cublaslt_destroy(self._product)
