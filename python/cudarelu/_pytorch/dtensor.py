"""How DTensor shards the ops, for every op of the table.

The dimensions of `*` may be sharded, alike in each input that has one; every other input is
replicated, for each `*` counts rows that know nothing of each other. An output with `*` is sharded
as the inputs are. One without is a partial sum where the op is known to add up rows; any other op
runs on replicated inputs. DTensor redistributes what comes with other placements, partial sums
among them, and refuses to do so with what an op overwrites.

This imports torch.distributed.tensor, which takes long: the package imports this after that.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.distributed.tensor import Partial, Placement, Replicate, Shard
from torch.distributed.tensor.experimental import register_sharding

from cudarelu._table import OpInfo, Parameter, ops

Placements = list[Placement | None]  # None: of an absent input


def _sums_of_rows() -> set[str]:
    """The ops that compute the gradient of an input which all rows share, such as a bias. By the
    chain rule such a gradient is a sum over the rows."""
    return {
        called
        for op in ops()
        if all(each.leads for each in op.outputs)
        for name, called in op.gradient_ops
        if not next(each for each in op.inputs if each.name == name).leads
    }


def _rule(op: OpInfo, outputs: tuple[Parameter, ...], sharded: bool) -> Callable[..., Any]:
    """The sharding rule of an overload, for one dimension of a mesh."""

    def rule(*inputs: Any, **_: Any) -> list[tuple[Placements, Placements]]:
        # Absent inputs at the end are not passed on, hence zip's default here and below.
        given = list(zip(op.inputs, inputs))  # noqa: B905
        ranks = [x.ndim - len(each.dims[1:]) for each, x in given if each.leads and x is not None]
        rows = [Shard(dim) for dim in range(ranks[0])] if ranks and sharded else []
        return [
            (
                [_of_output(each, placement) for each in outputs],
                [_of_input(each, x, placement) for each, x in given],
            )
            for placement in (Replicate(), *rows)
        ]

    return rule


def _of_input(parameter: Parameter, x: Any, rows: Placement) -> Placement | None:
    if x is None:
        return None
    return rows if parameter.leads else Replicate()


def _of_output(parameter: Parameter, rows: Placement) -> Placement:
    return rows if parameter.leads or rows.is_replicate() else Partial()


def register() -> None:
    """Registers the rules of all ops."""
    sums = _sums_of_rows()
    for op in ops():
        sharded = all(each.leads for each in op.outputs) or op.name in sums
        register_sharding(getattr(torch.ops.cudarelu, op.name).default)(
            _rule(op, op.outputs, sharded)
        )
        # DTensor takes the first input for the overwritten one.
        if op.overwritten == 0:
            overload = getattr(torch.ops.cudarelu, f"{op.name}_").default
            register_sharding(overload)(_rule(op, (), sharded))
