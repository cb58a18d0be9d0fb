"""What this machine lacks. Each reason that concerns CUDA begins with "needs CUDA"."""

from __future__ import annotations

import functools
import importlib.util
import os
from pathlib import Path

import torch

from .. import _build_info
from ..doctor.context import find_ort_infer


def torch_cuda_missing() -> str | None:
    """Why PyTorch has no CUDA here, or None."""
    return None if torch.cuda.is_available() else "needs CUDA: PyTorch sees no device"


def ort_missing() -> str | None:
    """Why ONNX Runtime cannot run the ops here, or None."""
    if not importlib.util.find_spec("onnxruntime"):
        return "ONNX Runtime is not installed"
    return None if _build_info.ORT else "this cudarelu was built without ONNX Runtime"


def ort_cuda_missing() -> str | None:
    """Why ONNX Runtime has no CUDA here, or None. If its provider fails to load, tests fail."""
    if reason := ort_missing():
        return reason
    import onnxruntime

    if "CUDAExecutionProvider" not in onnxruntime.get_available_providers():
        return "needs CUDA: this ONNX Runtime has no CUDA provider"
    return torch_cuda_missing()


def ort_infer() -> Path | None:
    """The program ort_infer: $CUDARELU_ORT_INFER, in the package, or on the PATH."""
    given = os.environ.get("CUDARELU_ORT_INFER")
    return Path(given) if given else find_ort_infer(Path(_build_info.__file__).parent)


def torch_cuda_pair_missing() -> str | None:
    """Why PyTorch does not have two CUDA devices here, or None."""
    count = torch.cuda.device_count()
    return None if count >= 2 else f"needs CUDA: two devices, but PyTorch sees {count}"


def cupy_missing() -> str | None:
    """Why CuPy cannot run here, or None."""
    if reason := torch_cuda_missing():
        return reason
    return None if importlib.util.find_spec("cupy") else "CuPy is not installed"


def tvm_ffi_missing(device: str) -> str | None:
    """Why tvm-ffi cannot run on PyTorch's tensors of the device here, or None."""
    if device == "cuda" and (reason := torch_cuda_missing()):
        return reason
    return None if importlib.util.find_spec("tvm_ffi") else "tvm-ffi is not installed"


@functools.cache
def jax_missing(device: str) -> str | None:
    """Why JAX has no such device here, or None. Sets JAX up for the tests."""
    if device == "cuda" and (reason := torch_cuda_missing()):
        return reason
    if not importlib.util.find_spec("jax"):
        return "JAX is not installed"
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"  # the GPU is PyTorch's as well
    import jax

    jax.config.update("jax_enable_x64", True)
    try:
        jax.devices(device)
    except RuntimeError as error:
        return f"JAX has no {device}: {error}"
    return None


@functools.cache
def tensorflow_missing() -> str | None:
    """Why TensorFlow cannot run here, or None."""
    return None if importlib.util.find_spec("tensorflow") else "TensorFlow is not installed"
