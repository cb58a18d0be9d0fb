"""A primitive of JAX for each op, and one for its derivative in the direction of tangents.

The rules come from the declaration of the op: shapes and dtypes from the signature, derivatives
from the gradient.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax._src import dispatch
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from cudarelu._batching import axes_in_batch, is_one_call, whole_batch
from cudarelu._calls import numbers_of, output_types, result_of, with_absent
from cudarelu._gradients import Evaluator, derivative_of
from cudarelu._pytorch.functions import op_of
from cudarelu._table import OpInfo, all_ops
from cudarelu._xla import PLATFORMS, target
from cudarelu.jax import sharding


class Call(NamedTuple):
    """What a call has beside its arrays, which are those of the inputs that are present."""

    present: tuple[bool, ...]  # whether each input of the signature is
    # In the order of the signature; see `numbers`.
    attributes: tuple[int | str, ...]
    overwrites: bool = False  # writes the output into the memory of an input

    @classmethod
    def of(
        cls, inputs: Sequence[Any], numbers: Sequence[int | float], overwrites: bool = False
    ) -> Call:
        # JAX keeps programs by calls that are equal, but 0.0 == -0.0, and NaN equals nothing.
        texts = (x.hex() if isinstance(x, float) else x for x in numbers)
        return cls(tuple(x is not None for x in inputs), tuple(texts), overwrites)

    @property
    def numbers(self) -> list[int | float]:
        """The values of the attributes."""
        return [float.fromhex(x) if isinstance(x, str) else x for x in self.attributes]

    def inputs(self, given: Sequence[Any]) -> list[Any]:
        """What is given for each input of the signature; None for an absent one."""
        return with_absent(given, self.present)


def call(
    op: OpInfo, inputs: Sequence[Any], attributes: Mapping[str, Any], overwrites: bool = False
) -> Any:
    """Runs an op on JAX's arrays and tracers, and on NumPy arrays beside them.

    An absent input is None. Raises ValueError and TypeError as the functions of the ops do.
    """
    arrays = [
        _array(op, parameter.name, x)
        for parameter, x in zip(op.inputs, inputs, strict=True)
        if x is not None
    ]
    run = Call.of(inputs, numbers_of(op, attributes), overwrites)
    return result_of(_bind(op, sharding.vary_alike(arrays), run))


def in_place(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function of an op, but its output is written into the memory of an input, for arguments
    that `jax.jit` donates and for values that nothing else reads::

        jax.jit(cudarelu.jax.in_place(cudarelu.relu), donate_argnums=0)

    Where something else reads the input, XLA copies it first, which takes longer than a new output.

    Raises:
        TypeError: unless it is the function of an op that can overwrite an input.
    """
    op = op_of(function)
    if op.overwritten is None:
        raise TypeError(f"{op.name} cannot overwrite an input")
    signature = inspect.signature(function)

    @functools.wraps(function)
    def overwriting(*positional: Any, **named: Any) -> Any:
        bound = signature.bind(*positional, **named)
        bound.apply_defaults()
        inputs = [bound.arguments.pop(each.name) for each in op.inputs]
        return call(op, inputs, bound.arguments, overwrites=True)

    return overwriting


def export_checks() -> list[Any]:
    """The checks of `jax.export.export` to disable: that it knows the handlers of the modules."""
    names = sorted({target(op.namespace, capturable=c) for op in all_ops() for c in (False, True)})
    return [jax.export.DisabledSafetyCheck.custom_call(name) for name in names]


def _array(op: OpInfo, name: str, x: Any) -> Any:
    array = jnp.asarray(x)
    if isinstance(x, np.ndarray) and array.dtype != x.dtype:
        raise TypeError(
            f"{op.name}: {name} is {x.dtype.name}, which JAX makes {array.dtype.name}: convert it, "
            "or enable jax_enable_x64"
        )
    return array


def _bind(op: OpInfo, arrays: Sequence[Any], call: Call) -> Sequence[Any]:
    return _primitives(op)[0].bind(*arrays, call=call)


def _split(operands: Sequence[Any], call: Call, active: Sequence[int]) -> tuple[Any, Any, Any]:
    """The operands of a derivative: the tangents, the inputs and the outputs of the op."""
    inputs = operands[len(active) :]
    return operands[: len(active)], inputs[: sum(call.present)], inputs[sum(call.present) :]


def _float_outputs(op: OpInfo, outputs: Sequence[Any]) -> list[int]:
    """The outputs of floating-point numbers that have a derivative."""
    indices = derivative_of(op).differentiable_outputs
    return [i for i in sorted(indices) if jnp.issubdtype(outputs[i].dtype, jnp.floating)]


@functools.cache
def _primitives(op: OpInfo) -> tuple[Primitive, Primitive]:
    """The primitives of an op and of its derivative.

    The operands of the second are the tangents of some inputs (`active`), the inputs, and the
    outputs of the op; its results are the tangents of the outputs of floating-point numbers.
    """
    value, tangent = Primitive(op.qualified_name), Primitive(f"{op.qualified_name}'s jvp")
    for each in (value, tangent):
        each.multiple_results = True

    def abstract(*arrays: Any, call: Call) -> list[Any]:
        return sharding.avals_of_outputs(op, call, arrays, _types(op, arrays, call))

    run = jax.jit(lambda *arrays, call: value.bind(*arrays, call=call), static_argnames="call")
    value.def_abstract_eval(abstract)
    value.def_impl(lambda *arrays, call: run(*arrays, call=call))
    ad.primitive_jvps[value] = functools.partial(_jvp, op)
    ad.primitive_transposes[value] = functools.partial(_transpose, op)
    batching.primitive_batchers[value] = functools.partial(_batch, op)
    # The rule of custom_partitioning, which the lowering applies, needs to know the devices. JAX
    # has no public way to ask for them.
    dispatch.prim_requires_devices_during_lowering.add(value)
    for platform in PLATFORMS:
        if platform in op.devices:
            run_on = functools.partial(_run, platform)
            lowering = mlir.lower_fun(sharding.partitioned(op, run_on), multiple_results=True)
            mlir.register_lowering(value, lowering, platform=platform)

    forward = functools.partial(_forward, op)

    def tangents(*operands: Any, call: Call, active: tuple[int, ...]) -> list[Any]:
        *_, outputs = _split(operands, call, active)
        return [outputs[i] for i in _float_outputs(op, outputs)]

    def tangent_jvp(primals: Any, directions: Any, **parameters: Any) -> Any:
        directions = tuple(map(ad.instantiate_zeros, directions))
        return jax.jvp(functools.partial(forward, **parameters), tuple(primals), directions)

    def tangent_batch(operands: Any, dims: Any, **parameters: Any) -> Any:
        results = jax.vmap(functools.partial(forward, **parameters), in_axes=dims)(*operands)
        return results, [0] * len(results)

    tangent.def_abstract_eval(tangents)
    tangent.def_impl(forward)
    ad.primitive_jvps[tangent] = tangent_jvp
    ad.primitive_transposes[tangent] = functools.partial(_reverse, op)
    batching.primitive_batchers[tangent] = tangent_batch
    mlir.register_lowering(tangent, mlir.lower_fun(forward, multiple_results=True))
    return value, tangent


def _types(op: OpInfo, arrays: Sequence[Any], call: Call) -> list[jax.ShapeDtypeStruct]:
    types = output_types(op, call.inputs(arrays), call.numbers)
    for dtype, _ in types:
        if jax.dtypes.canonicalize_dtype(dtype) != dtype:
            raise TypeError(f"{op.name} returns {dtype}: enable jax_enable_x64")
    return [jax.ShapeDtypeStruct(shape, dtype) for dtype, shape in types]


def _run(platform: str, op: OpInfo, arrays: Sequence[Any], call: Call) -> Sequence[Any]:
    """Calls the handler of the op's module."""
    types = _types(op, arrays, call)
    aliases = {}
    if call.overwrites:
        assert op.overwritten is not None
        output = [each.name for each in op.outputs].index(op.in_place.split(" = ")[0])
        aliases[sum(call.present[: op.overwritten])] = output
    run = jax.ffi.ffi_call(
        target(op.namespace, capturable=platform == "cuda" and _is_small([*arrays, *types])),
        types,
        input_output_aliases=aliases,
        vmap_method=None,
    )
    return run(
        *arrays,
        _op=op.name,
        _present=np.int64(sum(1 << i for i, present in enumerate(call.present) if present)),
        **{
            spec.name: np.float64(value).view(np.int64) if spec.type == "float" else np.int64(value)
            for spec, value in zip(op.attributes, call.numbers, strict=True)
        },
    )


def _is_small(arrays: Sequence[Any]) -> bool:
    """Whether to launch a call takes as long as to run it, so that CUDA graphs pay. The workspace
    of a larger call is not kept between its runs."""
    sizes = [n for x in arrays for n in x.shape]
    if not all(isinstance(n, int) for n in sizes):  # some are symbols
        return False
    return sum(x.size * x.dtype.itemsize for x in arrays) <= 16 << 20


# Derivatives


class _Host:
    """What the gradients of ops need of JAX."""

    def call(self, op: OpInfo, inputs: Sequence[Any], attributes: Sequence[Any]) -> Sequence[Any]:
        arrays = [x for x in inputs if x is not None]
        return _bind(op, sharding.vary_alike(arrays), Call.of(inputs, attributes))

    def size(self, x: Any, axis: int) -> Any:
        return x.shape[axis]

    def full(self, shape: tuple[Any, ...], number: float, like: Any) -> Any:
        return jnp.full(shape, number, like.dtype)

    def zeros_like(self, x: Any) -> Any:
        return jnp.zeros_like(x)

    def sum_to(self, x: Any, like: Any) -> Any:
        missing = x.ndim - like.ndim
        axes = [i for i in range(like.ndim) if like.shape[i] != x.shape[missing + i]]
        summed = jnp.sum(x, axis=(*range(missing), *(missing + i for i in axes)))
        return jnp.expand_dims(summed, axes)


def _jvp(op: OpInfo, primals: Any, tangents: Any, call: Call) -> Any:
    derivative = derivative_of(op)
    if not derivative.terms:
        raise NotImplementedError(f"{op.name} has no derivative")
    outputs = _bind(derivative.op, primals, call)
    moving = {
        i: t
        for i, t in enumerate(call.inputs(tangents))
        if i in derivative.terms and t is not None and not isinstance(t, ad.Zero)
    }
    results = [ad.Zero(jax.typeof(y).to_tangent_aval()) for y in outputs]
    if moving:
        operands = sharding.vary_alike([*moving.values(), *primals, *outputs])
        parameters = {"call": call._replace(overwrites=False), "active": tuple(moving)}
        found = _primitives(derivative.op)[1].bind(*operands, **parameters)
        for i, t in zip(_float_outputs(derivative.op, outputs), found, strict=True):
            results[i] = t
    return outputs[: len(op.outputs)], results[: len(op.outputs)]


def _gradient(
    op: OpInfo, call: Call, arrays: Any, outputs: Any, indices: Sequence[int], cotangents: Any
) -> Callable[[int], Any]:
    """The gradient of each input, as a function of its position. The cotangents are the gradients
    of the outputs at `indices`; those of the others are zero."""
    pairs = zip(indices, cotangents, strict=True)
    given = {i: each for i, each in pairs if not isinstance(each, ad.Zero)}
    inputs = call.inputs(arrays)
    return Evaluator(_Host(), op, inputs, outputs, call.numbers, given.get).gradient_of


def _reverse(op: OpInfo, cotangents: Any, *operands: Any, call: Call, active: Any) -> list[Any]:
    """The transpose of the derivative: the gradient as the op declares it."""
    _, arrays, outputs = _split(operands, call, active)
    gradient = _gradient(op, call, arrays, outputs, _float_outputs(op, outputs), cotangents)
    return [*map(gradient, active), *[None] * (len(operands) - len(active))]


def _forward(op: OpInfo, *operands: Any, call: Call, active: Any) -> list[Any]:
    """The derivative in the direction of tangents: the transpose of the gradient, which is linear
    in the gradients of the outputs."""
    tangents, arrays, outputs = _split(operands, call, active)
    indices = _float_outputs(op, outputs)

    def reverse(*cotangents: Any) -> list[Any]:
        return list(map(_gradient(op, call, arrays, outputs, indices, cotangents), active))

    return list(jax.linear_transpose(reverse, *(outputs[i] for i in indices))(list(tangents)))


def _transpose(op: OpInfo, cotangents: Any, *arrays: Any, call: Call) -> list[Any]:
    """The transpose of an op that is linear in some inputs, such as an op that is the gradient of
    another: its gradient, which does not depend on the values of these inputs. 0 stands for them,
    and for the outputs, since there is no other value of which the op is sure to be 0."""
    linear = [i for i, x in enumerate(call.inputs(arrays)) if ad.is_undefined_primal(x)]
    derivative = derivative_of(op)
    if derivative.op != op or not derivative.terms.keys() >= set(linear):
        raise NotImplementedError(f"{op.name} has no transpose")

    def known(x: Any) -> Any:
        unknown = ad.is_undefined_primal(x) or isinstance(x, ad.Zero)
        return jnp.zeros(x.aval.shape, x.aval.dtype) if unknown else x

    outputs = [jnp.zeros_like(known(each)) for each in cotangents]
    indices = range(len(outputs))
    gradient = _gradient(op, call, list(map(known, arrays)), outputs, indices, cotangents)
    inputs = [i for i, present in enumerate(call.present) if present]
    return [gradient(i) if i in linear else None for i in inputs]


# vmap


def _batch(op: OpInfo, arrays: Any, dims: Any, call: Call) -> Any:
    size = next(x.shape[d] for x, d in zip(arrays, dims, strict=True) if d is not None)
    placed = call.inputs(dims)
    if is_one_call(op, placed):
        inputs = call.inputs(arrays)
        whole = whole_batch(op, size, placed, inputs, jnp.moveaxis, jnp.broadcast_to)
        values = dict(zip([each.name for each in op.attributes], call.numbers, strict=True))
        numbers = values | axes_in_batch(op, placed, inputs, values)
        batch = Call.of(inputs, [*numbers.values()], call.overwrites)
        results = _bind(op, [x for x in whole if x is not None], batch)
    else:
        pairs = enumerate(zip(arrays, dims, strict=True))
        batches = {i: jnp.moveaxis(x, d, 0) for i, (x, d) in pairs if d is not None}

        def one(sample: dict[int, Any]) -> Any:
            return _bind(op, [sample.get(i, x) for i, x in enumerate(arrays)], call)

        results = jax.lax.map(one, batches)
    return results, [0] * len(results)
