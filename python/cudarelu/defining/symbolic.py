"""Symbolic values: what a Python function computes with where it defines an op."""

from __future__ import annotations

import numbers
import operator
import sys
from collections.abc import Callable
from typing import Any, NoReturn, TypeAlias

from .._onnx.expressions import Attribute, Call, Expression, Literal

Operand: TypeAlias = "Value | float | None"

_FOLDED: dict[str, Callable[[Any, Any], Any]] = {
    "Add": operator.add,
    "Sub": operator.sub,
    "Mul": operator.mul,
}


def _operator(op_type: str) -> tuple[Callable[[Value, Operand], Value], ...]:
    """A binary operator of Python, and its form for a number as the first operand."""
    return (
        lambda self, other: apply(op_type, self, other),
        lambda self, other: apply(op_type, other, self),
    )


class Value:
    """An elementwise expression of an op's inputs and attributes, with Python's operators.

    `==` gives a Value too. An attribute with labels may be compared with a label.
    """

    __hash__ = None  # type: ignore[assignment]
    __array_ufunc__ = None  # NumPy's numbers use the operators below; its functions refuse a Value

    def __init__(self, expression: Expression, labels: tuple[str, ...] = ()) -> None:
        self.expression = expression
        self._labels = labels

    __add__, __radd__ = _operator("Add")
    __sub__, __rsub__ = _operator("Sub")
    __mul__, __rmul__ = _operator("Mul")
    __truediv__, __rtruediv__ = _operator("Div")
    __pow__, __rpow__ = _operator("Pow")
    __lt__, __gt__ = _operator("Less")[0], _operator("Greater")[0]
    __le__, __ge__ = _operator("LessOrEqual")[0], _operator("GreaterOrEqual")[0]
    __and__, __or__, __xor__ = (_operator(name)[0] for name in ("And", "Or", "Xor"))

    def __neg__(self) -> Value:
        return apply("Neg", self)

    def __abs__(self) -> Value:
        return apply("Abs", self)

    def __invert__(self) -> Value:
        return apply("Not", self)

    def __eq__(self, other: Any) -> Value:  # type: ignore[override]
        return apply("Equal", self, self._position(other))

    def __ne__(self, other: Any) -> Value:  # type: ignore[override]
        return ~(self == other)

    def _position(self, other: Any) -> Any:
        if not isinstance(other, str):
            return other
        if not self._labels:
            raise TypeError(f"{other!r} is compared with a value that has no labels")
        if other not in self._labels:
            raise ValueError(f"{other!r} is not one of the labels {', '.join(self._labels)}")
        return self._labels.index(other)

    def __bool__(self) -> bool:
        code = sys._getframe(1)
        raise TypeError(
            f"{code.f_code.co_filename}:{code.f_lineno}: the definition of an op cannot branch on "
            "a value: use cudarelu.elementwise.where(condition, a, b)"
        )

    @classmethod
    def __torch_function__(cls, function: Any, *_: Any) -> NoReturn:
        name = getattr(function, "__name__", function)
        raise TypeError(
            f"PyTorch's {name} does not take a symbolic value: cudarelu.elementwise has the "
            "functions that do"
        )

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(
            f"a symbolic value has no {name}: it has Python's operators, and cudarelu.elementwise "
            "has the functions"
        )

    def __float__(self) -> float:
        raise TypeError(
            "a symbolic value is not a number: use the functions of cudarelu.elementwise"
        )

    def __repr__(self) -> str:
        return f"Value({self.expression})"


def expression_of(operand: Operand) -> Expression | None:
    """The expression of a value or a number."""
    if operand is None:
        return None
    if isinstance(operand, Value):
        return operand.expression
    if isinstance(operand, bool):
        return Literal((), (operand,))
    if isinstance(operand, numbers.Real):  # NumPy's numbers, too
        return Literal((), (float(operand),))
    raise TypeError(f"{operand!r} is neither a number nor a symbolic value")


def apply(op_type: str, *operands: Operand, **attributes: Any) -> Value:
    """A value of an operator of ONNX, by the name of the operator."""
    expressions = tuple(map(expression_of, operands))
    if (
        op_type in _FOLDED
        and isinstance(a := expressions[0], Literal)
        and isinstance(b := expressions[1], Literal)
    ):
        return Value(Literal((), (_FOLDED[op_type](a.elements[0], b.elements[0]),)))
    given = {}
    for name, value in attributes.items():
        known = value.expression if isinstance(value, Value) else value
        if not isinstance(known, Attribute | Literal | numbers.Real):
            raise TypeError(f"{name} of {op_type} must be a number or an attribute of the op")
        given[name] = known if isinstance(known, Attribute | Literal | int) else float(known)
    return Value(interned(Call(op_type, expressions, tuple(sorted(given.items())))))


_CALLS: dict[Call, Call] = {}


def interned(call: Call) -> Call:
    """The one call among equal ones, whose comparison would take the comparison of all parts."""
    return _CALLS.setdefault(call, call)


def where(condition: Value, a: Operand, b: Operand) -> Value:
    """a where the condition is true, else b."""
    return apply("Where", condition, a, b)
