"""What this machine lacks. Each reason to skip for want of CUDA begins with the same words."""

from __future__ import annotations

import onnxruntime
import torch


def torch_cuda_missing() -> str | None:
    """Why PyTorch has no CUDA here, or None."""
    return None if torch.cuda.is_available() else "needs CUDA: PyTorch sees no device"


def ort_cuda_missing() -> str | None:
    """Why ONNX Runtime has no CUDA here, or None. Where it should load and does not, tests fail."""
    if "CUDAExecutionProvider" not in onnxruntime.get_available_providers():
        return "needs CUDA: this ONNX Runtime has no CUDA provider"
    return torch_cuda_missing()


def torch_cuda_pair_missing() -> str | None:
    """Why PyTorch has no two CUDA devices here, or None."""
    count = torch.cuda.device_count()
    return None if count >= 2 else f"needs CUDA: two devices, but PyTorch sees {count}"
