"""Gradients of elementwise expressions, by reverse-mode differentiation."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence

from .._onnx.expressions import Call, Expression, Input, Literal
from .expr import attributes_of, chosen, inputs_of, kind_of, parts, rewritten, target
from .operators import OPERATORS
from .symbolic import Value, where


def gradients(y: Expression, seed: Value, wanted: Sequence[str]) -> dict[str, Expression]:
    """The gradients of `y` in inputs, where `seed` is the gradient of the op's output.

    An input whose gradient is zero almost everywhere is left out. Where attributes alone decide
    between values, as a label does, each has a gradient of its own: kernels compute one of them.
    """
    if condition := _label_condition(y):
        sides = [gradients(chosen(y, condition, side), seed, wanted) for side in (1, 2)]
        return _either(Value(condition), *sides)
    terms: dict[Expression, list[Value]] = {y: [seed]}
    for part in reversed(parts(y)):
        if isinstance(part, Call) and part in terms:
            terms[part] = [_sum(terms[part])]
            for operand, term in _derivatives(part, *terms[part]):
                terms.setdefault(operand, []).append(term)
    found = {name: terms[Input(name)] for name in wanted if Input(name) in terms}
    return {name: _sum(each).expression for name, each in found.items()}


def _label_condition(y: Expression) -> Expression | None:
    """The condition of a Where that attributes alone decide."""
    for part in parts(y):
        if isinstance(part, Call) and part.op_type == "Where":
            condition = part.operands[0]
            if condition is not None and not inputs_of(condition):
                return condition
    return None


def _either(
    condition: Value, a: dict[str, Expression], b: dict[str, Expression]
) -> dict[str, Expression]:
    zero = Literal((), (0.0,))
    return {
        name: where(condition, Value(a.get(name, zero)), Value(b.get(name, zero))).expression
        for name in a | b
    }


def _sum(terms: list[Value]) -> Value:
    def plus(a: Value, b: Value) -> Value:
        part = b.expression
        if isinstance(part, Call) and part.op_type == "Neg":
            (negated,) = part.operands
            assert negated is not None
            return a - Value(negated)  # not a + (-b)
        return a + b

    return functools.reduce(plus, terms)


def _derivatives(call: Call, g: Value) -> Iterator[tuple[Expression, Value]]:
    """The operands through which a gradient flows, and what flows into each."""
    if call.op_type in ("Cast", "CastLike"):
        (x, *_) = call.operands
        if x is not None and kind_of(x) == "real" and target(call) in ("real", "float"):
            yield x, g
        return
    rule = OPERATORS[call.op_type].gradient
    if rule is None:
        return
    attributes = {name: Value(each) for name, each in attributes_of(call).items()}
    operands = [each if each is None else Value(each) for each in call.operands]
    terms = rule(g, Value(call), *operands, **attributes)
    for operand, term in zip(call.operands, terms, strict=True):
        if term is not None and isinstance(operand, Input | Call):
            yield operand, term


def from_output(expression: Expression, y: Expression, name: str) -> Expression:
    """The expression with the op's output `name` in place of `y`, if it reads no more tensors then.

    The output is in memory already, so that a gradient need not compute it again: that of tanh is
    g * (1 - y * y), which reads y in place of x.
    """
    if not isinstance(y, Call):
        return expression
    found = rewritten(expression, lambda part: Input(name) if part is y else part)
    return found if len(inputs_of(found)) <= len(inputs_of(expression)) else expression
