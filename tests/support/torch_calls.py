"""Calls of every op in PyTorch, for tests of PyTorch's features."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.utils._python_dispatch import TorchDispatchMode

import cudarelu
from cudarelu.testing.inputs import draw, equal_batches

OPS = {op.name: op for op in cudarelu.ops()}
DIFFERENTIABLE = [name for name, op in OPS.items() if op.gradient]
IN_PLACE = [name for name, op in OPS.items() if op.in_place]


def overload(name):
    return getattr(torch.ops.cudarelu, name).default


@dataclass
class _AwayFromZero:
    """Makes random numbers of magnitude 0.2 to 1.2, since many gradients are discontinuous at 0.
    Implements `cudarelu.testing.inputs.Numbers`."""

    generator: torch.Generator

    def offsets(self, batches, total):
        return torch.tensor(equal_batches(batches, total), dtype=torch.int32)

    def positive(self, shape):
        return torch.rand(shape, generator=self.generator, dtype=torch.float64) + 0.2

    def any(self, shape, dtype):
        magnitude = self.positive(shape)
        return (torch.randint(0, 2, shape, generator=self.generator) * 2 - 1) * magnitude


def inputs_of(op, lead=(2, 3), size=None, device="cpu"):
    """Random inputs of the op's signature, away from 0.

    `lead` is the shape for *. Every named dimension is `size`, or they all differ if it is None.
    """
    names = sorted({dim for each in op.inputs for dim in each.dims if isinstance(dim, str)})
    sizes = {name: size or 4 + i for i, name in enumerate(names)} | {"b": 2}
    numbers = _AwayFromZero(torch.Generator().manual_seed(0))
    return [x.to(device) for x in draw(op, lead, sizes, numbers).values()]


def attributes_of(op):
    return {each.name: 3 if each.type == "int" else 1.5 for each in op.attributes if each.required}


def call_of(op, function=None):
    """The op as a function of tensors only."""
    function = function or overload(op.name)
    return lambda *tensors: function(*tensors, **attributes_of(op))


def in_place_of(op):
    """The in-place form as a function of tensors that returns the overwritten one; its index."""
    target = [each.name for each in op.inputs].index(op.in_place.split(" = ")[1])

    def function(*tensors):
        call_of(op, overload(op.name + "_"))(*tensors)
        return tensors[target]

    return function, target


def with_grad(tensors):
    return [t.clone().requires_grad_() if t.is_floating_point() else t for t in tensors]


def as_tuple(result):
    return result if isinstance(result, tuple) else (result,)


def loss_of(result):
    """A scalar that depends on every floating-point output."""
    return sum(y.square().sum() for y in as_tuple(result) if y.is_floating_point())


LAYOUTS = {
    "contiguous": lambda x: x,
    "channels_last": lambda x: x.to(memory_format=torch.channels_last),
    "transposed": lambda x: x.mT.contiguous().mT,
    "expanded": lambda x: x[:1].expand(x.shape),
    "strided": lambda x: x.repeat_interleave(2, -1)[..., ::2],
}


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
