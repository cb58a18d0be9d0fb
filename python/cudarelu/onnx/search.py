"""Finds the nodes of a model that compute an expression."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import onnx_ir as ir

from .._onnx.expressions import (
    NEUTRAL,
    Attribute,
    Call,
    Expression,
    Filled,
    Input,
    Literal,
    Shape,
    forms,
)


class Found(NamedTuple):
    """The values and nodes for an expression, or for the parts that were searched so far."""

    graph: ir.Graph  # of the nodes
    values: dict[Expression, ir.Value]  # of all parts but literals
    nodes: dict[ir.Node, tuple[tuple[str, Any], ...]]  # with the attributes that they must have


def find(expression: Call, value: ir.Value) -> Iterator[Found]:
    """Yields each way in which a value is the result of an expression.

    Operands are tried in every order and grouping that their operator permits. The attributes of
    nodes are not compared.
    """
    assert value.graph is not None
    return _find(expression, value, Found(value.graph, {}, {}))


@functools.cache
def roots(expression: Call) -> frozenset[str] | None:
    """The operators of which `find` can find a result; None: any."""
    found = set()
    for form in forms(expression):
        if isinstance(form, Input):
            return None
        found.add(form.op_type)
        if form.op_type in (*NEUTRAL, "Equal"):  # nodes of two operands, in another form
            found |= {"Div", "Pow"}
    return frozenset(found)


def _find(wanted: Expression | None, value: ir.Value | None, found: Found) -> Iterator[Found]:
    """Yields `found`, extended by a value for one more part, in each possible way."""
    if wanted is None or value is None:
        if value is wanted:
            yield found
    elif isinstance(wanted, Shape):
        yield found
    elif wanted in found.values:
        before = found.values[wanted]
        if value is before or (isinstance(wanted, Attribute) and _are_equal(value, before)):
            yield found
    elif isinstance(wanted, Literal):
        if _is_literal(value, wanted.array()):
            yield found
    elif isinstance(wanted, Filled):
        if _is_filled(value, wanted.number):
            yield found
    else:
        for each in _find_new(wanted, value, found):
            yield each._replace(values=each.values | {wanted: value})


def _find_new(wanted: Expression, value: ir.Value, found: Found) -> Iterator[Found]:
    """As `_find`, for a part that has no value yet; the caller adds the value."""
    if isinstance(wanted, Call):
        for form in forms(wanted):
            if isinstance(form, Input):
                yield from _find(form, value, found)
            elif form.op_type in (*NEUTRAL, "Equal"):
                yield from _find_combined(form.op_type, form.operands, value, found)
            else:
                yield from _find_node(form, value, found)
    elif isinstance(wanted, Input):
        other = dataclasses.replace(wanted, is_transposed=not wanted.is_transposed)
        if other not in found.values:
            yield found
    # An Attribute. Its element is read later, and the report has the reason if that fails.
    elif (tensor := _tensor(value)) is not None and tensor.size == 1:
        yield found


def _find_node(call: Call, value: ir.Value, found: Found) -> Iterator[Found]:
    """A call whose operands have a fixed order."""
    node = _node(value, found)
    if node is None or (node.op_type, value.index()) != (call.op_type, call.output):
        return
    results = iter([found._replace(nodes=found.nodes | {node: call.attributes})])
    for operand, each in itertools.zip_longest(call.operands, node.inputs):
        is_reduction = call.op_type.startswith("Reduce")
        if is_reduction and isinstance(operand, Literal) and _are_axes(each, node, operand):
            continue
        results = _find_after(results, operand, each)
    yield from results


def _find_after(results: Iterator[Found], wanted: Any, value: Any) -> Iterator[Found]:
    for found in results:
        yield from _find(wanted, value, found)


def _find_combined(op_type: str, operands: tuple, value: Any, found: Found) -> Iterator[Found]:
    """A call whose operands are in any order; nodes combine two of them at a time."""
    if len(operands) == 1:
        yield from _find(operands[0], value, found)
        return
    node = _node(value, found)
    if node is None or node.op_type not in (op_type, "Div", "Pow"):
        return
    a, b = node.inputs
    after = found._replace(nodes=found.nodes | {node: ()})
    if node.op_type == op_type:
        for size in range(1, len(operands)):
            for left in dict.fromkeys(itertools.combinations(operands, size)):
                right = list(operands)
                for each in left:
                    right.remove(each)
                for each in _find_combined(op_type, left, a, after):
                    yield from _find_combined(op_type, tuple(right), b, each)
    elif (op_type, node.op_type) == ("Mul", "Div"):
        for i, each in enumerate(operands):
            if isinstance(each, Literal) and b and _is_literal(b, each.array(as_divisor=True)):
                others = operands[:i] + operands[i + 1 :]
                yield from _find_combined(op_type, others, a, after)
    elif (op_type, node.op_type, len({*operands})) == ("Mul", "Pow", 1):
        exponent = Literal((), (len(operands),))
        yield from _find_after(_find(exponent, b, after), operands[0], a)


def _node(value: ir.Value | None, found: Found) -> ir.Node | None:
    """The node of ONNX that computes a value, if it is in the graph that is searched."""
    node = None if value is None else value.producer()
    return None if node is None or node.domain or node.graph is not found.graph else node


def constant(value: ir.Value) -> np.ndarray | None:
    """The elements of a constant, which may be cast; None: the value is not constant.

    Raises:
        OSError: the elements are in a file that cannot be read.
    """
    if (tensor := _tensor(value)) is None:
        return None
    dtype = tensor.dtype if value.dtype is None else value.dtype
    return tensor.numpy().astype(dtype.numpy(), copy=False)


def read_constant(value: ir.Value) -> np.ndarray | None:
    """As `constant`, and None also if the elements cannot be read."""
    try:
        return constant(value)
    except OSError:
        return None


def is_constant(value: ir.Value) -> bool:
    """Whether a value is an initializer or a Constant, and not the default of a graph input."""
    return not value.is_graph_input() and ir.convenience.get_const_tensor(value) is not None


def _tensor(value: ir.Value | None) -> ir.TensorProtocol | None:
    """The tensor of a constant, before any cast."""
    node = None if value is None else value.producer()
    if node is not None and node.op_type in ("Cast", "CastLike"):
        return _tensor(node.inputs[0])
    return ir.convenience.get_const_tensor(value) if value and is_constant(value) else None


def _are_equal(a: ir.Value, b: ir.Value) -> bool:
    """Whether two values are constants of one element that are equal."""
    tensors = [_tensor(each) for each in (a, b)]
    if any(each is None or each.size != 1 for each in tensors):  # before any element is read
        return False
    x, y = (read_constant(each) for each in (a, b))
    return x is not None and y is not None and x.item() == y.item()


def _shape_of(value: ir.Value) -> tuple[Any, ...] | None:
    tensor = _tensor(value)
    return None if tensor is None else tuple(tensor.shape)


def _are_axes(value: ir.Value | None, node: ir.Node, wanted: Literal) -> bool:
    """Whether a constant names the wanted axes, which are counted from the back."""
    x = node.inputs[0]
    if value is None or x is None or x.shape is None or _shape_of(value) != wanted.shape:
        return False
    if (axes := read_constant(value)) is None:
        return False
    return np.array_equal(np.where(axes < 0, axes, axes - len(x.shape)), wanted.array())


def _is_filled(value: ir.Value, number: float) -> bool:
    array = read_constant(value)
    return array is not None and bool((array == number).all())


def _is_literal(value: ir.Value, wanted: np.ndarray) -> bool:
    if _shape_of(value) != wanted.shape:  # before any element is read
        return False
    array = read_constant(value)
    return array is not None and np.array_equal(array, wanted.astype(array.dtype))
