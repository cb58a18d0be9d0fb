"""DTensor's sharding rules for every op.

The rows that a leading `*` counts are independent. Therefore the dimensions of `*` may be sharded,
in the same way in each input with `*`; inputs without `*` are replicated. An output with `*` is
sharded like the inputs. An output without `*` is a partial sum if the op is known to sum over rows;
any other op with such an output, or with a `*` that is not leading, runs on replicated inputs. A
named dimension of a matrix product may be sharded too: where outputs have it, they are sharded in
it, and where they do not, they are partial sums, unless an activation follows. DTensor
redistributes inputs with other placements, including partial sums, but refuses to redistribute an
input that an op overwrites.

The import of torch.distributed.tensor takes long: the package imports this module only after the
program has imported that.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from typing import Any

from torch.distributed.tensor import Partial, Placement, Replicate, Shard
from torch.distributed.tensor.experimental import register_sharding

from cudarelu._gradients import keeps_rows
from cudarelu._pytorch.functions import overload_of
from cudarelu._table import Dim, OpInfo, Parameter, all_ops

Placements = list[Placement | None]  # None for an absent input


def _rule(op: OpInfo, outputs: tuple[Parameter, ...]) -> Callable[..., Any]:
    """The sharding rule of an overload, for one dimension of a mesh."""
    sharded = keeps_rows(op)

    def rule(*inputs: Any, **_: Any) -> list[tuple[Placements, Placements]]:
        # PyTorch leaves out absent inputs at the end: the lengths may differ.
        given = list(zip(op.inputs, inputs))  # noqa: B905
        rank = op.leading_of([None if x is None else x.ndim for x in inputs])
        rows = range(rank) if sharded else []
        of_rows: list[tuple[Placements, Placements]] = [
            (
                [_of_output(each, row) for each in outputs],
                [_of_input(each, x, row, rank) for each, x in given],
            )
            for row in (None, *rows)
        ]
        dims = {dim: None for each, _ in given for dim in each.dims if dim != "*"}
        return of_rows + [
            (
                [_along(dim, each, rank, Partial()) for each in outputs],
                [
                    None if x is None else _along(dim, each, rank, _of_others(op, dim))
                    for each, x in given
                ],
            )
            for dim in dims
            if op.product and not op.axes and (_is_in_outputs(op, dim) or _is_linear(op))
        ]

    return rule


def _of_input(parameter: Parameter, x: Any, row: int | None, rank: int) -> Placement | None:
    """The placement if the leading dimension `row` is sharded, or none if it is None."""
    if x is None:
        return None
    axes = [] if row is None else parameter.axes_of(x.shape, rank)
    return Shard(axes.index(row)) if row in axes else Replicate()


def _of_output(parameter: Parameter, row: int | None) -> Placement:
    if row is None:
        return Replicate()
    return Shard(row) if parameter.leads else Partial()


def _along(dim: Dim, parameter: Parameter, rank: int, other: Placement) -> Placement:
    """A shard of the named dimension, or `other` for a tensor without it. `rank` is that of `*`."""
    if dim not in parameter.dims:
        return other
    i = parameter.dims.index(dim)
    return Shard(i + (rank - 1 if 0 <= parameter.star < i else 0))


def _is_in_outputs(op: OpInfo, dim: Dim) -> bool:
    return any(dim in each.dims for each in op.outputs)


def _of_others(op: OpInfo, dim: Dim) -> Placement:
    """The placement of inputs without the dimension: of a product of sums, they are addends."""
    return Replicate() if _is_in_outputs(op, dim) else Partial()


# The operators in the definition of a product without an activation.
_LINEAR = {
    "Add",
    "Concat",
    "Constant",
    "Gemm",
    "MatMul",
    "ReduceProd",
    "Reshape",
    "Shape",
    "Transpose",
}


def _is_linear(op: OpInfo) -> bool:
    return set(re.findall(r"= (\w+)[<(]", op.definition)) <= _LINEAR


def register(added: Collection[OpInfo]) -> None:
    """Registers the rules of a module's ops, and again those of the ops in its gradients, which may
    be of other modules and known as sums of rows only now."""
    called = {name for op in added for _, name in op.gradient_ops}
    for op in all_ops():
        if op not in added and op.qualified_name not in called:
            continue
        register_sharding(overload_of(op))(_rule(op, op.outputs))
        # DTensor assumes that an in-place op overwrites its first input.
        if op.has_in_place_op and op.overwritten == 0:
            register_sharding(overload_of(op, in_place=True))(_rule(op, ()))
