"""Calls of this library's ops in PyTorch, and what is observed of them."""

from __future__ import annotations

import torch
from torch.utils._python_dispatch import TorchDispatchMode

import cudarelu

OPS = {op.name: op for op in cudarelu.ops()}
DIFFERENTIABLE = [name for name, op in OPS.items() if op.gradient]
IN_PLACE = [name for name, op in OPS.items() if op.in_place]


def overload(name):
    return getattr(torch.ops.cudarelu, name).default


def saved_by(function):
    saved = []

    def pack(tensor):
        saved.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        result = function()
    return saved, result


class Calls(TorchDispatchMode):
    """Records the names of our ops that reach the kernels."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function.namespace == "cudarelu":
            self.names.append(function.overloadpacket.__name__)
        return function(*args, **kwargs or {})
