"""A primitive of JAX for each op, and one for its derivative in the direction of tangents.

The rules come from the declaration of the op: shapes and dtypes from the signature, derivatives
from the gradient. Under `vmap` the batch is one more leading dimension, as in PyTorch.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax._src import dispatch
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from cudarelu import _C
from cudarelu._gradients import Evaluator, derivative_of
from cudarelu._pytorch.functions import op_of
from cudarelu._table import OpInfo, Parameter, all_ops, op_named
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

    def inputs(self, arrays: Sequence[Any]) -> list[Any]:
        """One array for each input of the signature; None for an absent one."""
        remaining = iter(arrays)
        return [next(remaining) if present else None for present in self.present]


def call(name: str, inputs: Sequence[Any], attributes: dict[str, Any]) -> Any:
    """Runs the op of a qualified name on JAX's arrays and tracers, and on NumPy arrays beside them.

    An absent input is None. Raises ValueError and TypeError as the functions of the ops do.
    """
    return _call(op_named(name), inputs, attributes, overwrites=False)


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
        return _call(op, inputs, bound.arguments, overwrites=True)

    return overwriting


def export_checks() -> list[Any]:
    """The checks of `jax.export.export` to disable: that it knows the handlers of the modules."""
    names = sorted({target(op.namespace) for op in all_ops()})
    return [jax.export.DisabledSafetyCheck.custom_call(name) for name in names]


def _call(op: OpInfo, inputs: Sequence[Any], attributes: Any, overwrites: bool) -> Any:
    arrays = [
        _array(op, parameter.name, x)
        for parameter, x in zip(op.inputs, inputs, strict=True)
        if x is not None
    ]
    numbers = op.onnx_attributes(attributes)
    outputs = _bind(
        op,
        sharding.vary_alike(arrays),
        Call.of(inputs, [numbers[each.name] for each in op.attributes], overwrites),
    )
    return outputs[0] if len(outputs) == 1 else tuple(outputs)


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


def _float_outputs(op: OpInfo, outputs: Sequence[Any]) -> list[int]:
    """The outputs of floating-point numbers that have a derivative."""
    places = derivative_of(op).differentiable_outputs
    return [i for i in sorted(places) if jnp.issubdtype(outputs[i].dtype, jnp.floating)]


@functools.cache
def _primitives(op: OpInfo) -> tuple[Primitive, Primitive]:
    """The primitive of an op, and that of its derivative.

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
    lowering = mlir.lower_fun(sharding.partitioned(op, _run), multiple_results=True)
    for platform in PLATFORMS:
        if platform in op.devices:
            mlir.register_lowering(value, lowering, platform=platform)

    def forward(*operands: Any, call: Call, active: tuple[int, ...]) -> list[Any]:
        return _forward(op, operands, call, active)

    def tangents(*operands: Any, call: Call, active: tuple[int, ...]) -> list[Any]:
        outputs = operands[len(active) + sum(call.present) :]
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
    """The types of the outputs of a call."""
    inputs = [x if x is None else (x.dtype.name, x.shape) for x in call.inputs(arrays)]
    types = _C.infer(op.namespace, op.name, inputs, call.numbers)
    for dtype, _ in types:
        if jax.dtypes.canonicalize_dtype(dtype) != dtype:
            raise TypeError(f"{op.name} returns {dtype}: enable jax_enable_x64")
    return [jax.ShapeDtypeStruct(shape, dtype) for dtype, shape in types]


def _run(op: OpInfo, arrays: Sequence[Any], call: Call) -> Sequence[Any]:
    """Calls the handler of the op's module."""
    aliases = {}
    if call.overwrites:
        assert op.overwritten is not None
        output = [each.name for each in op.outputs].index(op.in_place.split(" = ")[0])
        aliases[sum(call.present[: op.overwritten])] = output
    run = jax.ffi.ffi_call(
        target(op.namespace),
        _types(op, arrays, call),
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
    inputs = [i for i, present in enumerate(call.present) if present]
    active = [
        i
        for i, t in zip(inputs, tangents, strict=True)
        if i in derivative.terms and not isinstance(t, ad.Zero)
    ]
    results = [ad.Zero(jax.typeof(y).to_tangent_aval()) for y in outputs]
    if active:
        given = [t for i, t in zip(inputs, tangents, strict=True) if i in active]
        parameters = {"call": call._replace(overwrites=False), "active": tuple(active)}
        primitive = _primitives(derivative.op)[1]
        found = primitive.bind(*sharding.vary_alike([*given, *primals, *outputs]), **parameters)
        for i, t in zip(_float_outputs(derivative.op, outputs), found, strict=True):
            results[i] = t
    return outputs[: len(op.outputs)], results[: len(op.outputs)]


def _gradients(
    op: OpInfo, arrays: Sequence[Any], outputs: Sequence[Any], given: Sequence[Any], call: Call
) -> Callable[[int], Any]:
    """The gradient of each input, as a function of its position. `given` are those of the outputs;
    None is zero."""
    evaluator = Evaluator(
        _Host(),
        op,
        call.inputs(arrays),
        outputs,
        call.numbers,
        gradient=lambda i: given[i],
        zeros=lambda i: jnp.zeros_like(outputs[i]),
    )
    terms = derivative_of(op).terms
    return lambda i: evaluator.gradient_of(i, terms[i])


def _reverse(op: OpInfo, cotangents: Any, *operands: Any, call: Call, active: Any) -> list[Any]:
    """The transpose of the derivative: the gradient as the op declares it."""
    count = sum(call.present)
    arrays, outputs = operands[len(active) :][:count], operands[len(active) :][count:]
    given: list[Any] = [None] * len(outputs)
    for i, each in zip(_float_outputs(op, outputs), cotangents, strict=True):
        given[i] = None if isinstance(each, ad.Zero) else each
    gradient = _gradients(op, arrays, outputs, given, call)
    return [*map(gradient, active), *[None] * (len(operands) - len(active))]


def _forward(op: OpInfo, operands: Sequence[Any], call: Call, active: Any) -> list[Any]:
    """The derivative in the direction of tangents: the transpose of the gradient, which is linear
    in the gradients of the outputs."""
    count = sum(call.present)
    tangents, rest = operands[: len(active)], operands[len(active) :]
    arrays, outputs = rest[:count], rest[count:]
    places = _float_outputs(op, outputs)

    def reverse(*cotangents: Any) -> list[Any]:
        given: list[Any] = [None] * len(outputs)
        for i, each in zip(places, cotangents, strict=True):
            given[i] = each
        return list(map(_gradients(op, arrays, outputs, given, call), active))

    results = jax.linear_transpose(reverse, *(outputs[i] for i in places))(list(tangents))
    return list(results)


def _transpose(op: OpInfo, cotangents: Any, *arrays: Any, call: Call) -> list[Any]:
    """The transpose of an op that is linear in some inputs, such as an op that is the gradient of
    another: its gradient, which does not depend on the values of these inputs. 0 stands for them,
    and for the outputs, since there is no other value of which the op is sure to be 0."""
    inputs = [i for i, present in enumerate(call.present) if present]
    linear = [i for i, x in zip(inputs, arrays, strict=True) if ad.is_undefined_primal(x)]
    derivative = derivative_of(op)
    if derivative.op != op or not derivative.terms.keys() >= set(linear):
        raise NotImplementedError(f"{op.name} has no transpose")

    def zeros_for(x: Any) -> Any:
        return jnp.zeros(x.aval.shape, x.aval.dtype)

    known = [zeros_for(x) if ad.is_undefined_primal(x) else x for x in arrays]
    given = [None if isinstance(each, ad.Zero) else each for each in cotangents]
    outputs = [
        zeros_for(each) if isinstance(each, ad.Zero) else jnp.zeros_like(each)
        for each in cotangents
    ]
    gradient = _gradients(op, known, outputs, given, call)
    return [gradient(i) if i in linear else None for i in inputs]


# vmap


def _batch(op: OpInfo, arrays: Any, dims: Any, call: Call) -> Any:
    inputs = [p for p, present in zip(op.inputs, call.present, strict=True) if present]
    batched = [p for p, dim in zip(inputs, dims, strict=True) if dim is not None]
    if all(each.leads for each in (*batched, *op.outputs)):
        size = next(x.shape[d] for x, d in zip(arrays, dims, strict=True) if d is not None)
        ranks = [x.ndim - (d is not None) for x, d in zip(arrays, dims, strict=True)]
        leading = op.leading_of(call.inputs(ranks))
        whole = [
            _with_batch(p, x, dim, size, leading)
            for p, x, dim in zip(inputs, arrays, dims, strict=True)
        ]
        results = _bind(op, whole, call)
    else:  # the rows are not independent: one sample after the other
        moving = [i for i, dim in enumerate(dims) if dim is not None]

        def sample(slices: Sequence[Any]) -> Any:
            each = list(arrays)
            for i, x in zip(moving, slices, strict=True):
                each[i] = x
            return _bind(op, each, call)

        results = jax.lax.map(sample, [jnp.moveaxis(arrays[i], dims[i], 0) for i in moving])
    return results, [0] * len(results)


def _with_batch(parameter: Parameter, x: Any, dim: int | None, size: int, leading: int) -> Any:
    if not parameter.leads or (dim is None and parameter.broadcasts):
        return x
    if dim is None:
        return jnp.broadcast_to(x, (size, *x.shape))
    missing = leading + len(parameter.dims) - x.ndim if parameter.broadcasts else 0
    return jnp.expand_dims(jnp.moveaxis(x, dim, 0), range(1, 1 + missing))
