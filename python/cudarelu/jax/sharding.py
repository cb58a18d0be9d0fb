"""How the ops run on arrays that are sharded over the devices of a mesh.

The rows that a leading `*` counts are independent: they stay sharded, and the other dimensions are
gathered, with a warning. A sum over rows, such as the gradient of a bias, adds the
sums of the devices.
"""

from __future__ import annotations

import functools
import itertools
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax._src.core import ShardingTypeError  # which has no public name
from jax.experimental.custom_partitioning import custom_partitioning
from jax.sharding import NamedSharding, PartitionSpec

from cudarelu._gradients import keeps_rows
from cudarelu._table import OpInfo, Parameter


def vary_alike(arrays: Sequence[Any]) -> list[Any]:
    """The arrays, which under `shard_map` vary over the same axes of the mesh: those over which one
    of them varies."""
    axes = [jax.typeof(x).manual_axis_type.varying for x in arrays]
    missing = [tuple(sorted(frozenset().union(*axes) - each)) for each in axes]
    return [
        jax.lax.pcast(x, each, to="varying") if each else x
        for x, each in zip(arrays, missing, strict=True)
    ]


def avals_of_outputs(op: OpInfo, call: Any, arrays: Sequence[Any], types: Sequence[Any]) -> Any:
    """The abstract values of the outputs: of these types, sharded as the rows of the inputs.

    Raises ShardingTypeError if an axis of the mesh whose type is Explicit shards something else.
    """
    needed, specs, _ = _specs(op, call, arrays, types)
    for parameter, x, spec in zip(_given(op, call), arrays, needed, strict=True):
        if _spec(x) != tuple(spec):
            raise ShardingTypeError(
                f"{op.short_name}: {parameter.name} is sharded as {x.sharding.spec}, and the op "
                f"needs {spec}: use jax.sharding.reshard"
            )
    mesh = next((x.sharding.mesh for x in arrays if any(_spec(x))), arrays[0].sharding.mesh)
    return [
        arrays[0].update(
            shape=y.shape, dtype=y.dtype, weak_type=False, sharding=NamedSharding(mesh, spec)
        )
        for y, spec in zip(types, specs, strict=True)
    ]


def partitioned(
    op: OpInfo, run: Callable[[OpInfo, Sequence[Any], Any], Sequence[Any]]
) -> Callable[..., Any]:
    """A function of the arrays and the parameter `call` that runs the op with `run` on the shards
    of each device. It has JAX's two forms of a rule: Shardy's, and that of GSPMD before it."""

    @functools.partial(custom_partitioning, static_argnums=(0,))
    def whole(call: Any, *arrays: Any) -> Any:
        return tuple(run(op, arrays, call))

    def partition(call: Any, mesh: Any, arrays: Sequence[Any], results: Sequence[Any]) -> Any:
        needed, specs, rows = _specs(op, call, arrays, results)
        _warn_of_gathering(op, call, arrays, needed)
        axes = tuple(itertools.chain(*map(_axes, rows)))

        def on_device(*shards: Any) -> Any:
            outputs = run(op, shards, call)
            return tuple(
                jax.lax.psum(y, axes) if axes and not p.leads else y
                for p, y in zip(op.outputs, outputs, strict=True)
            )

        of_results, of_arrays = (
            tuple(NamedSharding(mesh, spec) for spec in each) for each in (specs, needed)
        )
        return mesh, on_device, of_results, of_arrays

    def infer(call: Any, mesh: Any, arrays: Sequence[Any], results: Sequence[Any]) -> Any:
        return partition(call, mesh, arrays, results)[2]

    def rule(call: Any, mesh: Any, arrays: Sequence[Any], results: Sequence[Any]) -> Any:
        return _shardy_rule(op, call, arrays, results)

    whole.def_partition(partition=partition, infer_sharding_from_operands=infer, sharding_rule=rule)
    return lambda *arrays, call: list(whole(call, *arrays))


def _given(op: OpInfo, call: Any) -> list[Parameter]:
    return [p for p, present in zip(op.inputs, call.present, strict=True) if present]


def _spec(x: Any) -> tuple[Any, ...]:
    """The axes of the mesh over which each dimension is sharded; None for none."""
    spec = tuple(x.sharding.spec)
    return (*spec, *[None] * (len(x.shape) - len(spec)))


def _axes(part: Any) -> tuple[str, ...]:
    return () if part is None else part if isinstance(part, tuple) else (part,)


def _specs(
    op: OpInfo, call: Any, arrays: Sequence[Any], results: Sequence[Any]
) -> tuple[list[PartitionSpec], list[PartitionSpec], tuple[Any, ...]]:
    """How the op needs the inputs and gives the outputs, and the axes for each leading dimension:
    these are sharded as in the first input where they are, and nothing else is."""
    leading = _leading(op, call, arrays)
    rows: tuple[Any, ...] = (None,) * leading
    if keeps_rows(op):
        found = (
            _spec(x)[:leading]
            for p, x in zip(_given(op, call), arrays, strict=True)
            if p.leads and not p.broadcasts
        )
        rows = next(filter(any, found), rows)

    def spec(parameter: Parameter, x: Any) -> PartitionSpec:
        axes = parameter.axes_of(x.shape, leading)
        return PartitionSpec(*(rows[each] if isinstance(each, int) else None for each in axes))

    return list(map(spec, _given(op, call), arrays)), list(map(spec, op.outputs, results)), rows


def _leading(op: OpInfo, call: Any, arrays: Sequence[Any]) -> int:
    """The number of leading dimensions in a call with these arrays."""
    return op.leading_of(call.inputs([len(x.shape) for x in arrays]))


_WARNED: set[tuple[str, str]] = set()


def _warn_of_gathering(
    op: OpInfo, call: Any, arrays: Sequence[Any], needed: Sequence[PartitionSpec]
) -> None:
    for parameter, x, spec in zip(_given(op, call), arrays, needed, strict=True):
        kept = zip(_spec(x), spec, strict=True)
        key = (op.qualified_name, parameter.name)
        if key not in _WARNED and any(before and before != after for before, after in kept):
            _WARNED.add(key)
            warnings.warn(
                f"{op.short_name} gathers {parameter.name}, which is sharded as {x.sharding.spec}: "
                f"it runs on shards whose spec is {spec}",
                stacklevel=2,
            )


def _shardy_rule(op: OpInfo, call: Any, arrays: Sequence[Any], results: Sequence[Any]) -> str:
    """The dimensions in Shardy's notation: equal names are sharded alike."""
    numbers = itertools.count()
    leading = _leading(op, call, arrays)

    def name(axis: int | str | None) -> str:
        if isinstance(axis, str):
            return f"{axis}_"
        # A size that is a number, such as 3, has no name: it is a dimension of its own.
        return f"d{next(numbers)}" if axis is None or not keeps_rows(op) else f"row{axis}"

    def names(parameters: Sequence[Parameter], tensors: Sequence[Any]) -> str:
        axes = [p.axes_of(x.shape, leading) for p, x in zip(parameters, tensors, strict=True)]
        return ", ".join(" ".join(map(name, each)) for each in axes)

    return f"{names(_given(op, call), arrays)} -> {names(op.outputs, results)}"
