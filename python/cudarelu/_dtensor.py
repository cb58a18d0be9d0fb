"""How DTensor shards the ops, for every op of the table.

The dimensions of `*` may be sharded, alike in each input that has one; every other input is
replicated, for each `*` counts rows that know nothing of each other. An output with `*` is sharded
as the inputs are. One without is a partial sum where the op is known to add up rows; any other op
runs on replicated inputs. DTensor redistributes what comes with other placements, partial sums
among them, and refuses to do so with what an op overwrites.

Importing this imports torch.distributed.tensor, which takes long: the package does so after it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import torch
from torch.distributed.tensor import Partial, Placement, Replicate, Shard
from torch.distributed.tensor.experimental import register_sharding

from cudarelu import OpInfo, Parameter, ops

Placements = list[Placement | None]  # None: of an absent input


def _sums_of_rows() -> set[str]:
    """The ops that gradients of inputs that all rows share are results of. By the chain rule such a
    gradient is a sum over the rows."""
    names = set()
    for op in ops():
        if not all(each.leads for each in op.outputs):
            continue
        shared = {each.name for each in op.inputs if not each.leads}
        for name, called in re.findall(r"(\w+)\s*=\s*(\w+)\(", op.gradient):
            if name in shared:
                names.add(called)
    return names


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


_SUMS = _sums_of_rows()
for _op in ops():
    _sharded = all(each.leads for each in _op.outputs) or _op.name in _SUMS
    register_sharding(getattr(torch.ops.cudarelu, _op.name).default)(
        _rule(_op, _op.outputs, _sharded)
    )
    # Of the inputs, DTensor takes the first for the overwritten one.
    if _op.overwritten == 0:
        _overload = getattr(torch.ops.cudarelu, f"{_op.name}_").default
        register_sharding(_overload)(_rule(_op, (), _sharded))
