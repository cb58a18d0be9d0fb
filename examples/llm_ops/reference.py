"""The formulas of the ops in PyTorch's, to compare with: they take the arguments of the ops."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def rms_norm(x: Tensor, weight: Tensor, *, eps: float = 1e-6) -> Tensor:
    return functional.rms_norm(x, weight.shape, weight, eps)


def rms_norm_backward(grad_y: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    g, wide = grad_y.float(), x.float()
    scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6)
    normal = wide * scale
    scaled = g * weight.float()
    grad_x = scale * (scaled - normal * (scaled * normal).mean(-1, keepdim=True))
    return grad_x.to(x.dtype), (g * normal).sum(0).to(x.dtype)


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    return functional.silu(gate) * up


def swiglu_backward(grad_y: Tensor, gate: Tensor, up: Tensor) -> Tensor:
    return torch.ops.aten.silu_backward(grad_y * up, gate)


def rotary(x: Tensor, cos: Tensor, sin: Tensor, *, layout: str = "halves") -> Tensor:
    if layout == "halves":
        a, b = x.chunk(2, dim=-1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)
    a, b = x[..., ::2], x[..., 1::2]
    return torch.stack([a * cos - b * sin, b * cos + a * sin], dim=-1).flatten(-2)


def linear_swish(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return functional.silu(functional.linear(x, weight, bias))


def linear_swiglu(x: Tensor, weight: Tensor, up: Tensor) -> Tensor:
    return swiglu(functional.linear(x, weight), up)


def linear_add(x: Tensor, weight: Tensor, other: Tensor) -> Tensor:
    return functional.linear(x, weight) + other


def squared_relu(x: Tensor) -> Tensor:
    return x.relu().square()
