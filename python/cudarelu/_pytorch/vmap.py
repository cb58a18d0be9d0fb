"""The batching rules of `torch.vmap`, and of transforms that use it, for every op.

An in-place op works on views of the overwritten tensor, one for each sample or on the whole batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from cudarelu._batching import Dims, axes_in_batch, is_one_call, whole_batch
from cudarelu._pytorch.functions import overload_of
from cudarelu._table import OpInfo

Inputs = tuple[torch.Tensor | None, ...]


def _rule(op: OpInfo) -> Callable[..., Any]:
    overload = overload_of(op)

    def rule(info: Any, dims: Dims, *inputs: torch.Tensor | None, **attributes: Any) -> Any:
        if is_one_call(op, dims):
            attributes |= _axes(op, dims, inputs, attributes)
            result = overload(*_whole(op, info.batch_size, dims, inputs), **attributes)
        else:
            result = _one_by_one(overload, info.batch_size, dims, inputs, attributes)
        return result, (0,) * len(result) if isinstance(result, tuple) else 0

    return rule


def _in_place_rule(op: OpInfo) -> Callable[..., Any]:
    overload = overload_of(op, in_place=True)
    assert op.overwritten is not None
    overwritten = op.overwritten

    def rule(info: Any, dims: Dims, *inputs: torch.Tensor | None, **attributes: Any) -> Any:
        if dims[overwritten] is None:  # torch's message for its own ops
            raise RuntimeError(
                "vmap: inplace arithmetic(self, *extra_args) is not possible because there exists "
                "a Tensor `other` in extra_args that has more elements than `self`. This happened "
                "due to `other` being vmapped over but `self` not being vmapped over in a vmap. "
                f"Please use {op.qualified_name} instead of {op.qualified_name}_."
            )
        if is_one_call(op, dims):
            attributes |= _axes(op, dims, inputs, attributes)
            overload(*_whole(op, info.batch_size, dims, inputs), **attributes)
        else:
            for sample in _samples(info.batch_size, dims, inputs):
                overload(*sample, **attributes)
        return None, None

    return rule


def _whole(op: OpInfo, size: int, dims: Dims, inputs: Inputs) -> Inputs:
    return tuple(whole_batch(op, size, dims, inputs, torch.movedim, torch.broadcast_to))


def _axes(op: OpInfo, dims: Dims, inputs: Inputs, attributes: dict[str, Any]) -> dict[str, Any]:
    if not op.axes:
        return {}
    values = {each.name: attributes.get(each.name, each.default) for each in op.attributes}
    return axes_in_batch(op, dims, inputs, values)


def _samples(size: int, dims: Dims, inputs: Inputs) -> Iterator[Inputs]:
    for i in range(size):
        yield tuple(
            x if x is None or dim is None else x.select(dim, i)
            for x, dim in zip(inputs, dims, strict=True)
        )


def _one_by_one(
    overload: Callable[..., Any], size: int, dims: Dims, inputs: Inputs, attributes: dict[str, Any]
) -> Any:
    if size == 0:
        return _of_no_sample(overload, dims, inputs, attributes)
    samples = [overload(*sample, **attributes) for sample in _samples(size, dims, inputs)]
    if isinstance(samples[0], tuple):
        return tuple(map(torch.stack, zip(*samples, strict=True)))
    return torch.stack(samples)


def _of_no_sample(
    overload: Callable[..., Any], dims: Dims, inputs: Inputs, attributes: dict[str, Any]
) -> Any:
    """The outputs of an empty batch; the meta device gives their shapes."""

    def sample(x: torch.Tensor | None, dim: int | None) -> torch.Tensor | None:
        if x is None:
            return None
        shape = [size for i, size in enumerate(x.shape) if i != dim]
        return x.new_empty(shape, device="meta")

    device = next(x.device for x in inputs if x is not None)
    result = overload(*map(sample, inputs, dims), **attributes)
    if isinstance(result, tuple):
        return tuple(y.new_empty((0, *y.shape), device=device) for y in result)
    return result.new_empty((0, *result.shape), device=device)


_LIBRARIES: list[torch.library.Library] = []  # they keep the rules registered


def register(namespace: str, ops: Iterable[OpInfo]) -> None:
    """Registers the rules of a module's ops."""
    library = torch.library.Library(namespace, "FRAGMENT")
    _LIBRARIES.append(library)
    for op in ops:
        torch.library.register_vmap(op.qualified_name, _rule(op), lib=library)
        if op.has_in_place_op:
            name = f"{op.qualified_name}_"
            torch.library.register_vmap(name, _in_place_rule(op), lib=library)
