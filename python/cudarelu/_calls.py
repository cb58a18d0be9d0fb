"""What calls of ops have in common in the hosts that are programmed in Python: JAX, TensorFlow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cudarelu import _C
from cudarelu._table import OpInfo

Numbers = Sequence[float | int]  # the attributes in the order of the signature; labels as positions


def numbers_of(op: OpInfo, attributes: Mapping[str, Any]) -> list[float | int]:
    """The attributes of a call as numbers. Raises ValueError for an unknown label."""
    return [each.number(attributes[each.name]) for each in op.attributes]


def with_absent(arrays: Sequence[Any], present: Sequence[bool]) -> list[Any]:
    """One array for each input of the signature, from those that are present, or None."""
    remaining = iter(arrays)
    return [next(remaining) if each else None for each in present]


def output_types(
    op: OpInfo, inputs: Sequence[Any], numbers: Numbers
) -> list[tuple[str, tuple[Any, ...]]]:
    """The dtype and the shape of each output.

    The sizes may be symbols of the host, which it compares with `==`; None is an unknown one.

    Args:
        inputs: arrays or types of arrays; None is an absent one.

    Raises:
        ValueError: for shapes and attributes that the op does not accept.
        TypeError: for dtypes that it does not support.
    """
    types = [x if x is None else (x.dtype.name, tuple(x.shape)) for x in inputs]
    return _C.infer(op.namespace, op.name, types, numbers)


def result_of(outputs: Sequence[Any]) -> Any:
    """What the function of an op returns: the output, or a tuple of several."""
    return outputs[0] if len(outputs) == 1 else tuple(outputs)


def type_name(x: Any) -> str:
    """The type of an object for messages: "numpy.ndarray", "int"."""
    return f"{type(x).__module__}.{type(x).__qualname__}".removeprefix("builtins.")
