"""What an elementwise expression consists of. Equal parts count once."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable

import onnx
import onnx.defs

from .._onnx.definitions import OPSET, defaults_of
from .._onnx.expressions import Attribute, Call, Expression, Input, Literal
from .operators import KERNEL_FUNCTIONS, OPERATORS
from .symbolic import interned

_REAL = {onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE}
_WHOLE = {onnx.TensorProto.INT32, onnx.TensorProto.INT64}


def parts(expression: Expression) -> list[Expression]:
    """The expression and its parts, each after its operands."""
    found: dict[Expression, None] = {}
    # The flag: whether the operands are found.
    stack: list[tuple[Expression, bool]] = [(expression, False)]
    while stack:
        part, complete = stack.pop()
        if part in found:
            continue
        if complete or not isinstance(part, Call):
            found[part] = None
            continue
        stack.append((part, True))
        operands = [each for each in part.operands if each is not None]
        operands += attributes_of(part).values()
        stack += [(each, False) for each in reversed(operands)]
    return list(found)


def inputs_of(expression: Expression) -> list[str]:
    return [each.name for each in parts(expression) if isinstance(each, Input)]


def named_attributes(expression: Expression) -> list[str]:
    return [each.name for each in parts(expression) if isinstance(each, Attribute)]


def rewritten(expression: Expression, rule: Callable[[Expression], Expression]) -> Expression:
    """The expression with a rule applied to each part, whose operands are rewritten already."""
    known: dict[Expression, Expression] = {}
    for part in parts(expression):
        new = part
        if isinstance(part, Call):
            operands = tuple(each if each is None else known[each] for each in part.operands)
            new = interned(dataclasses.replace(part, operands=operands))
        result = rule(new)
        known[part] = interned(result) if isinstance(result, Call) else result
    return known[expression]


def chosen(y: Expression, condition: Expression, side: int) -> Expression:
    """The expression where the condition is true (1) or false (2)."""

    def rule(part: Expression) -> Expression:
        if isinstance(part, Call) and part.op_type == "Where" and part.operands[0] == condition:
            value = part.operands[side]
            assert value is not None
            return value
        return part

    return rewritten(y, rule)


def attributes_of(call: Call) -> dict[str, Expression]:
    """The attributes of a call that are numbers, with those that have their defaults."""
    defaults = {} if call.op_type in KERNEL_FUNCTIONS else defaults_of(call.op_type)
    given = defaults | dict(call.attributes)
    return {
        name: value if isinstance(value, Attribute | Literal) else Literal((), (value,))
        for name, value in given.items()
        if isinstance(value, Attribute | Literal | float | int)
    }


def target(call: Call) -> str:
    """What a Cast or a CastLike converts to: "real", "float", "whole" or "bool".

    Raises:
        ValueError: if it is another dtype, or none.
    """
    if call.op_type == "CastLike":
        like = call.operands[1]
        assert like is not None
        return kind_of(like)
    to = dict(call.attributes).get("to")
    if not isinstance(to, int):
        raise ValueError("Cast needs the attribute to, the number of a dtype")
    if to == onnx.TensorProto.BOOL:
        return "bool"
    if to in _WHOLE:
        return "whole"
    if to in _REAL:
        return "float" if to == onnx.TensorProto.FLOAT else "real"
    raise ValueError(f"Cast to {onnx.TensorProto.DataType.Name(to)} is not supported")


def check_operands(call: Call) -> None:
    """Raises ValueError for another number of operands than the operator has."""
    schema = onnx.defs.get_schema(call.op_type, OPSET, "")
    count, low, high = len(call.operands), schema.min_input, schema.max_input
    required = call.operands if call.op_type != "Clip" else call.operands[:1]
    if not low <= count <= high or None in required:
        wanted = f"{low}" if low == high else f"{low} or more"
        operands = "operand" if wanted == "1" else "operands"
        raise ValueError(f"{call.op_type} needs {wanted} {operands}")


@functools.cache
def kind_of(expression: Expression) -> str:
    """ "bool" or "real", which is every number.

    Raises:
        ValueError: for an operator that is not elementwise, for an operand of the wrong kind and
            for a constant that no kernel can have.
    """
    if isinstance(expression, Literal):
        if len(expression.elements) != 1:
            raise ValueError("a constant of several elements: only scalars are elementwise")
        (value,) = expression.elements
        if not isinstance(value, bool | int | float) or not math.isfinite(value):
            raise ValueError(f"a constant of {value}: constants must be finite numbers")
        return "bool" if isinstance(value, bool) else "real"
    if not isinstance(expression, Call):
        return "real"
    kinds = [each if each is None else kind_of(each) for each in expression.operands]
    name = expression.op_type
    if name in KERNEL_FUNCTIONS:
        return "real"
    if name in ("Cast", "CastLike"):
        return "bool" if target(expression) == "bool" else "real"
    operator = OPERATORS.get(name)
    if operator is None:
        raise ValueError(f"{name} is not an elementwise operator")
    check_operands(expression)
    known = onnx.defs.get_schema(name, OPSET, "").attributes
    if unknown := [each for each, _ in expression.attributes if each not in known]:
        raise ValueError(f"{name} has no attribute {unknown[0]}")
    for attribute, value in expression.attributes:
        if not isinstance(value, Attribute | Literal | float | int):
            raise ValueError(f"the attribute {attribute} of {name} must be a number")
    if name == "Mod" and dict(expression.attributes).get("fmod") != 1:
        raise ValueError("Mod of floating-point numbers needs fmod = 1")
    wanted = {
        "any": [kinds[0]] * len(kinds),
        "where": ["bool", *kinds[1:2] * 2],
    }.get(operator.operands, [operator.operands] * len(kinds))
    for position, (kind, want) in enumerate(zip(kinds, wanted, strict=True)):
        if kind not in (want, None):
            raise ValueError(f"operand {position + 1} of {name} is {kind}, but must be {want}")
    return (kinds[1] or "real") if operator.result == "same" else operator.result
