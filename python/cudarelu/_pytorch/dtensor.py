"""DTensor's sharding rules for every op of the table.

The rows that `*` counts are independent. Therefore the dimensions of `*` may be sharded, in the
same way in each input with `*`; inputs without `*` are replicated. An output with `*` is sharded
like the inputs. An output without `*` is a partial sum if the op is known to sum over rows; any
other op with such an output runs on replicated inputs. DTensor redistributes inputs with other
placements, including partial sums, but refuses to redistribute an input that an op overwrites.

The import of torch.distributed.tensor takes long: the package imports this module only after the
program has imported that.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.distributed.tensor import Partial, Placement, Replicate, Shard
from torch.distributed.tensor.experimental import register_sharding

from cudarelu._table import OpInfo, Parameter, ops

Placements = list[Placement | None]  # None for an absent input


def _sums_of_rows() -> set[str]:
    """The ops that compute the gradient of an input that all rows share, such as a bias. By the
    chain rule, such a gradient is a sum over the rows."""
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
        # PyTorch leaves out absent inputs at the end: the lengths may differ.
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
        # DTensor assumes that an in-place op overwrites its first input.
        if op.overwritten == 0:
            overload = getattr(torch.ops.cudarelu, f"{op.name}_").default
            register_sharding(overload)(_rule(op, (), sharded))
