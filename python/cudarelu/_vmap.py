"""How `torch.vmap` and what builds on it run the ops, for every op of the table.

A batch is one more leading dimension. Where the signature has `*` for it, in each batched input and
in each output, an op runs once on the whole batch: each `*` counts rows that know nothing of each
other. Anything else runs once for each sample.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from cudarelu import OpInfo, Parameter, ops

Inputs = tuple[torch.Tensor | None, ...]
Dims = tuple[int | None, ...]  # where each input has its batch; None: it has none


def _leads(parameter: Parameter) -> bool:
    return parameter.dims[:1] == ("*",)


def _rule(op: OpInfo) -> Callable[..., Any]:
    overload = getattr(torch.ops.cudarelu, op.name).default
    leading = [_leads(each) for each in op.inputs]
    keeps_leading = all(map(_leads, op.outputs))

    def rule(info: Any, dims: Dims, *inputs: torch.Tensor | None, **attributes: Any) -> Any:
        # Absent inputs at the end are not passed on, hence zip's default here and below.
        batched = [leads for dim, leads in zip(dims, leading) if dim is not None]  # noqa: B905
        if keeps_leading and all(batched):
            whole = [
                _with_batch(x, dim, info.batch_size) if leads else x
                for x, dim, leads in zip(inputs, dims, leading)  # noqa: B905
            ]
            result = overload(*whole, **attributes)
        else:
            result = _one_by_one(overload, info.batch_size, dims, inputs, attributes)
        return result, (0,) * len(result) if isinstance(result, tuple) else 0

    return rule


def _with_batch(x: torch.Tensor | None, dim: int | None, size: int) -> torch.Tensor | None:
    if x is None:
        return None
    return x.expand(size, *x.shape) if dim is None else x.movedim(dim, 0)


def _one_by_one(
    overload: Callable[..., Any], size: int, dims: Dims, inputs: Inputs, attributes: dict[str, Any]
) -> Any:
    if size == 0:
        return _of_no_sample(overload, dims, inputs, attributes)
    samples = [
        overload(
            *(x if d is None else x.select(d, i) for x, d in zip(inputs, dims, strict=True)),
            **attributes,
        )
        for i in range(size)
    ]
    if isinstance(samples[0], tuple):
        return tuple(map(torch.stack, zip(*samples, strict=True)))
    return torch.stack(samples)


def _of_no_sample(
    overload: Callable[..., Any], dims: Dims, inputs: Inputs, attributes: dict[str, Any]
) -> Any:
    """The outputs of an empty batch, whose shapes are known without a sample's values."""

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


_LIBRARY = torch.library.Library("cudarelu", "FRAGMENT")  # holds the rules for as long as it lives
for _op in ops():
    torch.library.register_vmap(f"cudarelu::{_op.name}", _rule(_op), lib=_LIBRARY)
