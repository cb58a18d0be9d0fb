"""How the ops run on arrays that are sharded over the devices of a mesh.

The rows that the leading dimensions count are independent: they stay sharded, and the other
dimensions are gathered, with a warning. A sum over rows, such as the gradient of a bias, adds the
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
    axes = [_varying(jax.typeof(x)) for x in arrays]
    missing = [tuple(sorted(frozenset().union(*axes) - each)) for each in axes]
    return [
        jax.lax.pcast(x, each, to="varying") if each else x
        for x, each in zip(arrays, missing, strict=True)
    ]


def _varying(aval: Any) -> frozenset[str]:
    axes = getattr(aval, "manual_axis_type", None)
    return aval.vma if axes is None else axes.varying  # the first is the name before JAX 0.10


def avals_of_outputs(op: OpInfo, call: Any, arrays: Sequence[Any], types: Sequence[Any]) -> Any:
    """The abstract values of the outputs: of these types, sharded as the rows of the inputs.

    Raises ShardingTypeError if an axis of the mesh whose type is Explicit shards something else.
    """
    inputs = _given(op, call)
    rows = _rows(op, call, arrays)
    for parameter, x in zip(inputs, arrays, strict=True):
        needed = _placed(parameter, x, rows)
        if _spec(x) != needed:
            raise ShardingTypeError(
                f"{op.short_name}: {parameter.name} is sharded as {x.sharding.spec}, and the op "
                f"needs {PartitionSpec(*needed)}: use jax.sharding.reshard"
            )
    mesh = next((x.sharding.mesh for x in arrays if any(_spec(x))), arrays[0].sharding.mesh)
    return [
        arrays[0].update(
            shape=y.shape,
            dtype=y.dtype,
            weak_type=False,
            sharding=NamedSharding(mesh, PartitionSpec(*_placed(parameter, y, rows))),
        )
        for parameter, y in zip(op.outputs, types, strict=True)
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
        inputs = _given(op, call)
        rows = _rows(op, call, arrays)
        axes = tuple(itertools.chain(*map(_axes, rows)))

        def on_device(*shards: Any) -> Any:
            outputs = run(op, shards, call)
            return tuple(
                jax.lax.psum(y, axes) if axes and not p.leads else y
                for p, y in zip(op.outputs, outputs, strict=True)
            )

        def place(parameter: Parameter, x: Any) -> NamedSharding:
            return NamedSharding(mesh, PartitionSpec(*_placed(parameter, x, rows)))

        placed = tuple(map(place, inputs, arrays))
        _warn_of_gathering(op, inputs, arrays, placed)
        return mesh, on_device, tuple(map(place, op.outputs, results)), placed

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


def _placed(parameter: Parameter, x: Any, rows: tuple[Any, ...]) -> tuple[Any, ...]:
    """The axes for the dimensions of an input or output: rows are sharded, and nothing else."""
    axes = parameter.axes_of(x.shape, len(rows))
    return tuple(rows[each] if isinstance(each, int) else None for each in axes)


def _axes(part: Any) -> tuple[str, ...]:
    return () if part is None else part if isinstance(part, tuple) else (part,)


def _leading(op: OpInfo, call: Any, shapes: Sequence[Any]) -> int:
    """The number of leading dimensions in a call with arrays of these shapes."""
    return op.leading_of(call.inputs([len(each) for each in shapes]))


def _rows(op: OpInfo, call: Any, arrays: Sequence[Any]) -> tuple[Any, ...]:
    """How the rows are sharded: as in the first input whose rows are."""
    leading = _leading(op, call, [x.shape for x in arrays])
    none = (None,) * leading
    if not keeps_rows(op):
        return none
    found = (
        _spec(x)[:leading]
        for p, x in zip(_given(op, call), arrays, strict=True)
        if p.leads and not p.broadcasts
    )
    return next((rows for rows in found if any(rows)), none)


_WARNED: set[tuple[str, str]] = set()


def _warn_of_gathering(
    op: OpInfo, inputs: list[Parameter], arrays: Sequence[Any], placed: Sequence[NamedSharding]
) -> None:
    for parameter, x, sharding in zip(inputs, arrays, placed, strict=True):
        kept = zip(_spec(x), sharding.spec, strict=True)
        key = (op.qualified_name, parameter.name)
        if key not in _WARNED and any(before and before != after for before, after in kept):
            _WARNED.add(key)
            warnings.warn(
                f"{op.short_name} gathers {parameter.name}, which is sharded as {x.sharding.spec}: "
                f"it runs on shards whose spec is {sharding.spec}",
                stacklevel=2,
            )


def _shardy_rule(op: OpInfo, call: Any, arrays: Sequence[Any], results: Sequence[Any]) -> str:
    """The dimensions in Shardy's notation: equal names are sharded alike."""
    numbers = itertools.count()
    inputs = [getattr(x, "type", x).shape for x in arrays]
    outputs = [getattr(y, "type", y).shape for y in results]
    leading = _leading(op, call, inputs)

    def name(axis: int | str | None) -> str:
        if isinstance(axis, str):
            return f"{axis}_"
        # A size that is a number, such as 3, has no name: it is a dimension of its own.
        return f"d{next(numbers)}" if axis is None or not keeps_rows(op) else f"row{axis}"

    texts = [
        ", ".join(
            " ".join(map(name, p.axes_of(shape, leading)))
            for p, shape in zip(parameters, shapes, strict=True)
        )
        for parameters, shapes in ((_given(op, call), inputs), (op.outputs, outputs))
    ]
    return " -> ".join(texts)
