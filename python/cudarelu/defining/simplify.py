"""Elementwise expressions as kernels compute them: with fewer operations.

Kernels have two functions beside ONNX's: NormalCdf(v), which is (1 + erf(v / sqrt 2)) / 2 without
cancellation, and Exp2(v), which is 2^v for v <= 0. Where exp(-v^2 / 2) stands beside NormalCdf(v),
as in the gradient of GELU, the compiler computes one exponential for both.

Of a large v, Exp2(v) has a larger relative error than an exponential of the rounded v: |v| 2^-24 in
float32. Products with these functions are computed in another order than written, so that they
overflow and underflow elsewhere.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections import Counter
from collections.abc import Sequence

from .._onnx.expressions import Call, Expression, Literal
from .expr import chosen, inputs_of, parts, rewritten
from .operators import KERNEL_FUNCTIONS
from .symbolic import interned

_ZERO, _ONE = Literal((), (0.0,)), Literal((), (1.0,))


def simplified(y: Expression) -> Expression:
    if condition := _condition_of_erf(y):
        sides = [simplified(chosen(y, condition, side)) for side in (1, 2)]
        return _call("Where", condition, *sides)
    return rewritten(rewritten(y, _with_kernel_functions), _with_fewer_factors)


def _condition_of_erf(y: Expression) -> Expression | None:
    """A condition on attributes, such as a label, of a Where in 1 + Where(...) that has an erf."""
    for part in parts(y):
        if found := _where_of_sum(part):
            condition, *values = found.operands
            if condition and not inputs_of(condition) and any(map(_is_erf, values)):
                return condition
    return None


def _where_of_sum(part: Expression) -> Call | None:
    """The Where of 1 + Where(...)."""
    if isinstance(part, Call) and part.op_type == "Add" and _ONE in part.operands:
        for each in part.operands:
            if isinstance(each, Call) and each.op_type == "Where":
                return each
    return None


def _is_erf(part: Expression | None) -> bool:
    return isinstance(part, Call) and part.op_type == "Erf"


def _call(op_type: str, *operands: Expression) -> Call:
    return interned(Call(op_type, operands))


def _with_kernel_functions(part: Expression) -> Expression:
    """1 + erf(q) as 2 NormalCdf(v), exp(-q q) as Exp2(v), and relu(x) <= 0, of ReLU's gradient, as
    x <= 0."""
    if not isinstance(part, Call):
        return part
    if part.op_type == "Add" and _ONE in part.operands:
        for each in part.operands:
            if isinstance(each, Call) and each.op_type == "Erf":
                constant, factors = _factors(each.operands[0])
                v = _product(math.sqrt(2) * constant, factors)
                return _scaled(2.0, _call("NormalCdf", v))
    if (found := _where_of_sum(part)) and any(map(_is_erf, found.operands)):
        condition, *values = found.operands
        sums = (Call("Add", (value, _ONE)) for value in values)
        return interned(Call("Where", (condition, *map(_with_kernel_functions, sums))))
    if part.op_type == "Exp":
        constant, factors = _factors(part.operands[0])
        if constant < 0 and (square := _square(factors)):
            scale, base = square
            # As the function of the normal distribution has it, if the constant is -1/2.
            exponent = float(f"{constant * scale:.15g}") * 1.4426950408889634
            return _call("Exp2", _scaled(exponent, _call("Mul", base, base)))
    if part.op_type == "LessOrEqual" and part.operands[1] == _ZERO:
        x = part.operands[0]
        if isinstance(x, Call) and x.op_type == "Relu":
            return dataclasses.replace(part, operands=(*x.operands, _ZERO))
    return part


def _square(factors: Sequence[Expression]) -> tuple[float, Expression] | None:
    """c and s, where the product of the factors is c s s."""
    whole = factors[0] if len(factors) == 1 else None
    if isinstance(whole, Call) and whole.op_type == "Mul":
        constant, roots = _factors(whole.operands[0])  # _factors() keeps a square whole
        return constant**2, _product(1.0, roots)
    counts = Counter(factors)
    if not counts or any(count % 2 for count in counts.values()):
        return None
    return 1.0, _product(1.0, [each for each, n in counts.items() for _ in range(n // 2)])


def _with_fewer_factors(part: Expression) -> Expression:
    """One constant in a product with a kernel function; g (a + b) for a sum g a + g b of such."""
    if not isinstance(part, Call):
        return part
    if part.op_type in ("Mul", "Div", "Neg"):
        constant, factors = _factors(part)
        return _product(constant, factors) if _has_kernel_function(factors) else part
    if part.op_type in ("Add", "Sub"):
        (a, a_factors), (b, b_factors) = map(_factors, part.operands)
        if not _has_kernel_function([*a_factors, *b_factors]):
            return part
        shared = list((Counter(a_factors) & Counter(b_factors)).elements())
        shared = [each for each in shared if not _is_kernel_function(each)]
        sides = [
            _product(constant, list((Counter(factors) - Counter(shared)).elements()))
            for constant, factors in ((a, a_factors), (b, b_factors))
        ]
        return _product(1.0, [*shared, _call(part.op_type, *sides)])
    return part


def _is_kernel_function(part: Expression) -> bool:
    return isinstance(part, Call) and part.op_type in KERNEL_FUNCTIONS


def _has_kernel_function(factors: Sequence[Expression]) -> bool:
    return any(map(_is_kernel_function, factors))


@functools.lru_cache(4096)
def _factors(part: Expression | None) -> tuple[float, tuple[Expression, ...]]:
    """A product as a constant of moderate size and a few other factors. A square is one of them."""
    assert part is not None
    constant = 1.0
    factors: tuple[Expression, ...] = (part,)
    if isinstance(part, Literal):
        constant, factors = float(part.elements[0]), ()
    elif isinstance(part, Call) and part.op_type == "Mul" and part.operands[0] != part.operands[1]:
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
    is_moderate = 2**-20 < abs(constant) < 2**20 and len(factors) <= 8
    return (constant, factors) if is_moderate else (1.0, (part,))


def _product(constant: float, factors: Sequence[Expression]) -> Expression:
    """The kernel functions come first, with the constant: they are at most 1, so that large factors
    do not overflow where the functions are small."""
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
    if abs(constant - 1) < 2**-51:
        return part
    if constant == -1:
        return _call("Neg", part)
    return _call("Mul", Literal((), (constant,)), part)
