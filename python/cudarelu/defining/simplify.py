"""Elementwise expressions as kernels compute them: with fewer operations, and no less precise.

Kernels have two functions beside ONNX's: NormalCdf(v), which is (1 + erf(v / sqrt 2)) / 2 without
cancellation, and Bell(v), which is exp(-v^2 / 2). Where both have the same argument, as in the
gradient of GELU, the compiler computes one exponential for both.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections import Counter
from collections.abc import Sequence

from ..onnx.expressions import Call, Expression, Literal
from .operators import KERNEL_FUNCTIONS
from .trees import inputs_of, parts, rewritten
from .values import interned

_ZERO, _ONE = Literal((), (0.0,)), Literal((), (1.0,))


def simplified(y: Expression) -> Expression:
    """The expression for a kernel; what attributes alone decide, as labels do, is decided last."""
    if condition := label_condition(y):
        sides = [simplified(chosen(y, condition, side)) for side in (1, 2)]
        return _call("Where", condition, *sides)
    return rewritten(rewritten(y, _with_kernel_functions), _with_fewer_factors)


def label_condition(y: Expression) -> Expression | None:
    """The condition of a Where that attributes alone decide."""
    for part in parts(y):
        if isinstance(part, Call) and part.op_type == "Where":
            condition = part.operands[0]
            if condition is not None and not inputs_of(condition):
                return condition
    return None


def chosen(y: Expression, condition: Expression, side: int) -> Expression:
    """The expression where the condition is true (1) or false (2)."""

    def rule(part: Expression) -> Expression:
        if isinstance(part, Call) and part.op_type == "Where" and part.operands[0] == condition:
            value = part.operands[side]
            assert value is not None
            return value
        return part

    return rewritten(y, rule)


def _call(op_type: str, *operands: Expression) -> Call:
    return interned(Call(op_type, operands))


def _with_kernel_functions(part: Expression) -> Expression:
    """1 + erf(q) as 2 NormalCdf(v), exp(-q q) as Bell(v), and relu(x) <= 0, of ReLU's gradient, as
    x <= 0."""
    if not isinstance(part, Call):
        return part
    if part.op_type == "Add" and _ONE in part.operands:
        for each in part.operands:
            if isinstance(each, Call) and each.op_type == "Erf":
                (q,) = each.operands
                assert q is not None
                constant, factors = _factors(q)
                v = _product(math.sqrt(2) * constant, factors)
                return _scaled(2.0, _call("NormalCdf", v))
    if part.op_type == "Exp":
        # The product is rounded, so that an exponential of more precision would gain nothing.
        constant, factors = _factors(part.operands[0])
        counts = Counter(factors)
        if constant < 0 and counts and all(count % 2 == 0 for count in counts.values()):
            roots = [each for each, count in counts.items() for _ in range(count // 2)]
            return _call("Bell", _product(math.sqrt(-2 * constant), roots))
    if part.op_type == "LessOrEqual" and part.operands[1] == _ZERO:
        x = part.operands[0]
        if isinstance(x, Call) and x.op_type == "Relu":
            return dataclasses.replace(part, operands=(*x.operands, _ZERO))
    return part


def _with_fewer_factors(part: Expression) -> Expression:
    """One constant in a product with a kernel function; g (a + b) for a sum g a + g b of such."""
    if not isinstance(part, Call):
        return part
    if part.op_type in ("Mul", "Div", "Neg"):
        constant, factors = _factors(part)
        return _product(constant, factors) if _has_kernel_function(factors) else part
    if part.op_type in ("Add", "Sub"):
        (a, a_factors), (b, b_factors) = map(_factors, part.operands)
        if _has_kernel_function(a_factors + b_factors):
            shared = list((Counter(a_factors) & Counter(b_factors)).elements())
            shared = [each for each in shared if not _is_kernel_function(each)]
            for each in shared:
                a_factors.remove(each)
                b_factors.remove(each)
            return _product(
                1.0, [*shared, _call(part.op_type, _product(a, a_factors), _product(b, b_factors))]
            )
    return part


def _is_kernel_function(part: Expression) -> bool:
    return isinstance(part, Call) and part.op_type in KERNEL_FUNCTIONS


def _has_kernel_function(factors: Sequence[Expression]) -> bool:
    return any(map(_is_kernel_function, factors))


def _factors(part: Expression | None) -> tuple[float, list[Expression]]:
    """A product as a constant of moderate size and the other factors."""
    assert part is not None
    constant, factors = 1.0, [part]
    if isinstance(part, Literal):
        constant, factors = float(part.elements[0]), []
    elif isinstance(part, Call) and part.op_type == "Mul":
        (a, a_factors), (b, b_factors) = map(_factors, part.operands)
        constant, factors = a * b, a_factors + b_factors
    elif isinstance(part, Call) and part.op_type == "Neg":
        constant, factors = _factors(part.operands[0])
        constant = -constant
    elif isinstance(part, Call) and part.op_type == "Div":
        divisor, divisors = _factors(part.operands[1])
        if not divisors:
            constant, factors = _factors(part.operands[0])
            constant /= divisor
    return (constant, factors) if 2**-60 < abs(constant) < 2**60 else (1.0, [part])


def _product(constant: float, factors: Sequence[Expression]) -> Expression:
    """The kernel functions come first with the constant: they are at most 1, so that no product
    overflows before the whole one does."""
    first = [each for each in factors if _is_kernel_function(each)]
    rest = [each for each in factors if not _is_kernel_function(each)]
    if not first:
        first = rest[-1:]
        del rest[-1:]
    if not first:
        return Literal((), (constant,))
    return functools.reduce(
        lambda product, factor: _call("Mul", factor, product),
        reversed(rest),
        _scaled(constant, functools.reduce(functools.partial(_call, "Mul"), first)),
    )


def _scaled(constant: float, part: Expression) -> Expression:
    if abs(constant - 1) < 2**-24:
        return part
    if constant == -1:
        return _call("Neg", part)
    return _call("Mul", Literal((), (constant,)), part)
