"""Calls of any op in PyTorch, for checks of PyTorch's features."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .._pytorch.functions import overload_of
from .._table import OpInfo
from .cases import attribute_values, fitting_sizes, has_many_dimensions
from .inputs import draw, equal_batches


@dataclass
class _AwayFromZero:
    """Makes random numbers of magnitude 0.2 to 1.2, since many gradients are discontinuous at 0.
    Implements `cudarelu.testing.inputs.Numbers`."""

    generator: torch.Generator

    def offsets(self, batches: int, total: int) -> torch.Tensor:
        return torch.tensor(equal_batches(batches, total), dtype=torch.int32)

    def positive(self, shape: tuple[int, ...]) -> torch.Tensor:
        return torch.rand(shape, generator=self.generator, dtype=torch.float64) + 0.2

    def any(self, shape: tuple[int, ...], dtype: str) -> torch.Tensor:
        if dtype == "bool":
            return torch.randint(0, 2, shape, generator=self.generator).bool()
        if dtype != "T" and not getattr(torch, dtype).is_floating_point:
            return torch.randint(0, 5, shape, generator=self.generator).to(getattr(torch, dtype))
        magnitude = self.positive(shape)
        signed = (torch.randint(0, 2, shape, generator=self.generator) * 2 - 1) * magnitude
        return signed if dtype == "T" else signed.to(getattr(torch, dtype))


def inputs_of(
    op: OpInfo, lead: tuple[int, ...] = (2, 3), size: int | None = None, device: str = "cpu"
) -> list[torch.Tensor]:
    """Random inputs of the op's signature, away from 0, in float64 if the op supports it.

    `lead` is the shape for *. Every named dimension is `size`, or they all differ if it is None.
    """
    names = sorted({name for each in op.inputs for name in each.names})
    lowest = 1 if has_many_dimensions(op) else 4
    sizes = op.with_multiples({name: size or lowest + i for i, name in enumerate(names)})
    given = {each.name: each.default for each in op.attributes} | attributes_of(op)
    lead += (2,) * (op.fewest_rows(given) - len(lead))
    fitting = fitting_sizes(op, lead, sizes | {name: given[name] for name in op.size_attributes})
    assert fitting is not None, f"{op.name} has no sizes for {sizes}"
    sizes = fitting | {each.dims[0]: 2 for each in op.inputs if each.offsets_into}
    numbers = _AwayFromZero(torch.Generator().manual_seed(0))
    drawn = draw(op, lead, sizes, numbers, broadcast="partly")
    inputs = [x.to(device) for x in drawn.values()]
    if "float64" in op.dtypes:
        return inputs
    dtype = getattr(torch, op.dtypes[0])
    return [
        (4 * x).to(dtype) if parameter.dtype == "T" else x
        for parameter, x in zip(op.inputs, inputs, strict=True)
    ]


def attributes_of(op: OpInfo) -> dict[str, Any]:
    """Values of the required attributes."""
    return attribute_values(op, "default")


def call_of(op: OpInfo, function: Callable[..., Any] | None = None) -> Callable[..., Any]:
    """The op as a function of tensors only."""
    called = function or overload_of(op)
    return lambda *tensors: called(*tensors, **attributes_of(op))


def in_place_of(op: OpInfo) -> tuple[Callable[..., torch.Tensor], int]:
    """The in-place form as a function of tensors that returns the overwritten one; its index."""
    target = op.overwritten
    assert target is not None

    def function(*tensors: torch.Tensor) -> torch.Tensor:
        call_of(op, overload_of(op, in_place=True))(*tensors)
        return tensors[target]

    return function, target


def with_grad(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Leaves with these values; leaves of integers have no gradient."""
    return [t.clone().requires_grad_() if t.is_floating_point() else t for t in tensors]


def as_tuple(result: Any) -> tuple[Any, ...]:
    """The outputs of a call."""
    return result if isinstance(result, tuple) else (result,)


def loss_of(result: Any) -> Any:
    """A scalar that depends on every floating-point output."""
    return sum(y.square().sum() for y in as_tuple(result) if y.is_floating_point())


LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "contiguous": lambda x: x,
    "channels_last": lambda x: x.to(memory_format=torch.channels_last),
    "transposed": lambda x: x.mT.contiguous().mT,
    "expanded": lambda x: x[:1].expand(x.shape),
    "strided": lambda x: x.repeat_interleave(2, -1)[..., ::2],
}
