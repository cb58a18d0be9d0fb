"""The batching rule of every op, for `vmap` in PyTorch and in JAX.

A batch is one more leading dimension. An op runs once on the whole batch if each batched input and
each output begins with `*` in the signature, since the rows that a leading `*` counts are
independent. Otherwise, or with a `*` that is not leading, the op runs once for each sample. In a
batch, the batch is axis 0, and an attribute that places a dimension counts it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cudarelu._table import OpInfo, Parameter

Dims = Sequence[int | None]  # the batch dimension of each input; None if it is not batched

# PyTorch leaves out absent inputs at the end: op.inputs may be longer than the inputs given.


def is_one_call(op: OpInfo, dims: Dims) -> bool:
    """Whether the op runs once on the whole batch."""
    batched = [each for dim, each in zip(dims, op.inputs) if dim is not None]  # noqa: B905
    return op.star_leads and all(each.leads for each in (*batched, *op.outputs))


def axes_in_batch(
    op: OpInfo, dims: Dims, inputs: Sequence[Any], values: Mapping[str, Any]
) -> dict[str, Any]:
    """The attributes that place dimensions, for a whole batch; `values` are those for a sample."""
    rows = op.leading_of(_ranks(inputs, dims))
    # One that is below the range stays below it.
    return {
        name: values[name] + 1 if values[name] >= 0 else values[name] - (values[name] < -rows - 1)
        for name in op.axes
    }


def _ranks(inputs: Sequence[Any], dims: Dims) -> list[int | None]:
    """The rank of each input in a sample."""
    return [
        None if x is None else x.ndim - (dim is not None)
        for x, dim in zip(inputs, dims, strict=True)
    ]


def whole_batch(
    op: OpInfo,
    size: int,
    dims: Dims,
    inputs: Sequence[Any],
    move: Callable[[Any, int, int], Any],
    broadcast: Callable[[Any, tuple[Any, ...]], Any],
) -> list[Any]:
    """The inputs of the call for a whole batch of this size. An absent input is None.

    Args:
        move: moves an axis: `torch.movedim`, `jnp.moveaxis`.
        broadcast: broadcasts to a shape: `torch.broadcast_to`, `jnp.broadcast_to`.
    """
    leading = op.leading_of(_ranks(inputs, dims))

    def with_batch(parameter: Parameter, x: Any, dim: int | None) -> Any:
        if x is None or not parameter.leads or (dim is None and parameter.broadcasts):
            return x
        if dim is None:
            return broadcast(x, (size, *x.shape))
        missing = leading + len(parameter.dims) - x.ndim if parameter.broadcasts else 0
        moved = move(x, dim, 0)
        return moved[(slice(None), *[None] * missing)] if missing else moved

    return list(map(with_batch, op.inputs, inputs, dims))
