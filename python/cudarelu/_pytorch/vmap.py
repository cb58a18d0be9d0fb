"""The batching rules of `torch.vmap`, and of transforms that use it, for every op.

A batch is one more leading dimension. An op runs once on the whole batch if each batched input and
each output has `*` in the signature, since the rows that `*` counts are independent. Otherwise the
op runs once for each sample. An in-place op does the same on views of the overwritten tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from cudarelu._pytorch.functions import overload_of
from cudarelu._table import OpInfo, Parameter

Inputs = tuple[torch.Tensor | None, ...]
Dims = tuple[int | None, ...]  # the batch dimension of each input; None if it is not batched


def _rule(op: OpInfo) -> Callable[..., Any]:
    overload = overload_of(op)

    def rule(info: Any, dims: Dims, *inputs: torch.Tensor | None, **attributes: Any) -> Any:
        if _is_one_call(op, dims):
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
        if _is_one_call(op, dims):
            overload(*_whole(op, info.batch_size, dims, inputs), **attributes)
        else:
            for sample in _samples(info.batch_size, dims, inputs):
                overload(*sample, **attributes)
        return None, None

    return rule


# PyTorch leaves out absent inputs at the end: op.inputs may be longer than the inputs given.


def _is_one_call(op: OpInfo, dims: Dims) -> bool:
    batched = [each for dim, each in zip(dims, op.inputs) if dim is not None]  # noqa: B905
    return all(each.leads for each in (*batched, *op.outputs))


def _whole(op: OpInfo, size: int, dims: Dims, inputs: Inputs) -> Inputs:
    ranks = [
        None if x is None else x.ndim - (dim is not None)
        for x, dim in zip(inputs, dims, strict=True)
    ]
    leading = op.leading_of(ranks)
    return tuple(
        _with_batch(each, x, dim, size, leading)
        for x, dim, each in zip(inputs, dims, op.inputs)  # noqa: B905
    )


def _with_batch(
    parameter: Parameter, x: torch.Tensor | None, dim: int | None, size: int, leading: int
) -> torch.Tensor | None:
    if x is None or not parameter.leads or (dim is None and parameter.broadcasts):
        return x
    if dim is None:
        return x.expand(size, *x.shape)
    missing = leading + len(parameter.dims) - x.ndim if parameter.broadcasts else 0
    return x.movedim(dim, 0)[(slice(None), *[None] * missing)]


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
        if op.in_place:
            name = f"{op.qualified_name}_"
            torch.library.register_vmap(name, _in_place_rule(op), lib=library)
