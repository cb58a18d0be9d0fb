"""The elementwise operators of ONNX: their C++ and their derivatives."""

from __future__ import annotations

import dataclasses
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from .._onnx.expressions import Literal
from .symbolic import Operand, Value, apply, where

# gradient(g, y, *operands, **attributes): the gradient of each operand; None where it is zero. g is
# the gradient of the result y.
Gradient: TypeAlias = Callable[..., Sequence[Value | None]]


@dataclasses.dataclass(frozen=True)
class Operator:
    """An operator.

    Attributes:
        code: C++ with {0}, {1} for the operands and {alpha} for the attribute alpha.
        gradient: the derivatives; None if they are zero almost everywhere.
        operands: the kind of the operands: "real", "bool", "any", which is one kind for all, or
            "where", which is a bool and two operands of one kind.
        result: the kind of the result: "real", "bool" or "same", which is the kind of the second
            operand.
        heavy: whether it takes longer than reading and writing an element.
        piecewise: the C++ name of its PiecewisePolynomial, which a functor of this operator alone
            uses.
    """

    code: str
    gradient: Gradient | None = None
    operands: str = "real"
    result: str = "real"
    heavy: bool = False
    piecewise: str = ""


def clip_code(x: str, low: str | None, high: str | None) -> str:
    """C++ for Clip, whose bounds may be absent."""
    if low and high:
        return f"onnx::clip({x}, {low}, {high})"
    if bound := low or high:
        return f"{x} {'<' if low else '>'} {bound} ? {bound} : {x}"
    return x


def power_code(x: str, exponent: float) -> str | None:
    """C++ for Pow with some constant exponents."""
    if exponent in range(1, 17):
        return f"onnx::power<{int(exponent)}>({x})"
    return f"onnx::sqrt({x})" if exponent == 0.5 else None


def _unary(rule: Callable[[Value, Value, Value], Value]) -> Gradient:
    return lambda g, y, x: [rule(g, y, x)]


def _pow(g: Value, y: Value, a: Value, b: Value) -> list[Value | None]:
    if isinstance(b.expression, Literal):
        (exponent,) = b.expression.elements
        if exponent == 0:
            return [None, None]
        power = a if exponent == 2 else apply("Pow", a, exponent - 1)
        return [g * (exponent * power) if exponent != 1 else g, None]
    slope = where(b == 0, 0, b * apply("Pow", a, b - 1))
    return [g * slope, where((a == 0) & (b >= 0), 0, g * (y * apply("Log", a)))]


def _fmod(g: Value, y: Value, a: Value, b: Value, fmod: Any) -> list[Value]:
    quotient = a / b
    whole = where(quotient < 0, apply("Ceil", quotient), apply("Floor", quotient))
    return [g, -(g * whole)]


def _extreme(loses: Callable[[Any, Any], Any]) -> Gradient:
    """The gradient of Max and Min. Equal operands get half of it each, as in torch.maximum."""

    def rule(g: Value, y: Value, a: Value, b: Value) -> list[Value]:
        share = where(a == b, 0.5 * g, g)
        return [where(loses(a, b), 0, share), where(loses(b, a), 0, share)]

    return rule


def _clip(g: Value, y: Value, x: Value, *bounds: Operand) -> list[Value | None]:
    low, high = (*bounds, None, None)[:2]
    result = g
    if low is not None:
        result = where(x >= low, result, 0)
    if high is not None:
        result = where(x <= high, result, 0)
    return [result, *[None] * len(bounds)]


def _exp_below_0(x: Value) -> Value:
    """exp(min(x, 0)): where x > 0, a caller multiplies by 0, which makes NaN of an infinity."""
    return apply("Exp", where(x > 0, 0, x))


def _hard_sigmoid(g: Value, y: Value, x: Value, alpha: Value, beta: Value) -> list[Value]:
    inner = alpha * x + beta
    return [where((inner > 0) & (inner < 1), g * alpha, 0)]


def _mish(g: Value, y: Value, x: Value) -> Value:
    # As onnx.h: y is x n / (n + 2).
    e = apply("Exp", where(x > 20, 20, x))
    n = e * (e + 2)
    return g * ((n + x * (4 * e * (1 + e) / (n + 2))) / (n + 2))


def _softsign(g: Value, y: Value, x: Value) -> Value:
    divisor = 1 + abs(x)
    return g / (divisor * divisor)


def _comparison(sign: str) -> Operator:
    return Operator(f"{{0}} {sign} {{1}}", result="bool")


OPERATORS: dict[str, Operator] = {
    "Abs": Operator("onnx::abs({0})", _unary(lambda g, y, x: g * apply("Sign", x))),
    "Acos": Operator(
        "onnx::acos({0})", _unary(lambda g, y, x: -(g / apply("Sqrt", 1 - x * x))), heavy=True
    ),
    "Acosh": Operator(
        "onnx::acosh({0})", _unary(lambda g, y, x: g / apply("Sqrt", x * x - 1)), heavy=True
    ),
    "Add": Operator("{0} + {1}", lambda g, y, a, b: [g, g]),
    "And": Operator("{0} && {1}", operands="bool", result="bool"),
    "Asin": Operator(
        "onnx::asin({0})", _unary(lambda g, y, x: g / apply("Sqrt", 1 - x * x)), heavy=True
    ),
    "Asinh": Operator(
        "onnx::asinh({0})", _unary(lambda g, y, x: g / apply("Sqrt", x * x + 1)), heavy=True
    ),
    "Atan": Operator("onnx::atan({0})", _unary(lambda g, y, x: g / (1 + x * x)), heavy=True),
    "Atanh": Operator("onnx::atanh({0})", _unary(lambda g, y, x: g / (1 - x * x)), heavy=True),
    "Ceil": Operator("onnx::ceil({0})"),
    "Clip": Operator("", _clip),  # clip_code writes it
    "Cos": Operator("onnx::cos({0})", _unary(lambda g, y, x: -(g * apply("Sin", x))), heavy=True),
    "Cosh": Operator("onnx::cosh({0})", _unary(lambda g, y, x: g * apply("Sinh", x)), heavy=True),
    "Div": Operator("{0} / {1}", lambda g, y, a, b: [g / b, -(g * y / b)]),
    "Elu": Operator(
        "onnx::elu({0}, {alpha})",
        lambda g, y, x, alpha: [where(x > 0, g, g * (alpha * _exp_below_0(x)))],
        heavy=True,
    ),
    "Equal": Operator("{0} == {1}", operands="any", result="bool"),
    "Erf": Operator(
        "onnx::erf({0})",
        _unary(lambda g, y, x: g * (2 / math.sqrt(math.pi) * apply("Exp", -(x * x)))),
        heavy=True,
    ),
    "Exp": Operator("onnx::exp({0})", _unary(lambda g, y, x: g * y), heavy=True),
    "Floor": Operator("onnx::floor({0})"),
    "Greater": _comparison(">"),
    "GreaterOrEqual": _comparison(">="),
    "HardSigmoid": Operator("onnx::hard_sigmoid({0}, {alpha}, {beta})", _hard_sigmoid),
    "HardSwish": Operator(
        "onnx::hard_swish({0})",
        _unary(lambda g, y, x: where(x <= -3, 0, where(x >= 3, g, g * (x * (1 / 3) + 0.5)))),
    ),
    "IsInf": Operator(
        "onnx::is_inf({0}, {detect_negative} != 0, {detect_positive} != 0)", result="bool"
    ),
    "IsNaN": Operator("onnx::is_nan({0})", result="bool"),
    "LeakyRelu": Operator(
        "onnx::leaky_relu({0}, {alpha})", lambda g, y, x, alpha: [where(x > 0, g, g * alpha)]
    ),
    "Less": _comparison("<"),
    "LessOrEqual": _comparison("<="),
    "Log": Operator("onnx::log({0})", _unary(lambda g, y, x: g / x), heavy=True),
    "Max": Operator("onnx::max({0}, {1})", _extreme(operator.lt)),
    "Min": Operator("onnx::min({0}, {1})", _extreme(operator.gt)),
    "Mish": Operator("onnx::mish({0})", _unary(_mish), heavy=True),
    "Mod": Operator("onnx::fmod({0}, {1})", _fmod, heavy=True),
    "Mul": Operator("{0} * {1}", lambda g, y, a, b: [g * b, g * a]),
    "Neg": Operator("-{0}", _unary(lambda g, y, x: -g)),
    "Not": Operator("!{0}", operands="bool", result="bool"),
    "Or": Operator("{0} || {1}", operands="bool", result="bool"),
    "PRelu": Operator(
        "onnx::prelu({0}, {1})",
        lambda g, y, x, slope: [where(x > 0, g, g * slope), where(x > 0, 0, g * x)],
    ),
    "Pow": Operator("onnx::pow({0}, {1})", _pow, heavy=True),
    "Reciprocal": Operator("onnx::reciprocal({0})", _unary(lambda g, y, x: -(g * (y * y)))),
    "Relu": Operator("onnx::relu({0})", _unary(lambda g, y, x: where(y <= 0, 0, g))),
    "Round": Operator("onnx::round({0})"),
    "Selu": Operator(
        "onnx::selu({0}, {alpha}, {gamma})",
        lambda g, y, x, alpha, gamma: [
            where(x > 0, g * gamma, g * (gamma * (alpha * _exp_below_0(x))))
        ],
        heavy=True,
    ),
    "Shrink": Operator(
        "onnx::shrink({0}, {bias}, {lambd})",
        lambda g, y, x, bias, lambd: [where((x < -lambd) | (x > lambd), g, 0)],
    ),
    "Sigmoid": Operator(
        "onnx::sigmoid({0})", _unary(lambda g, y, x: g * (y * (1 - y))), heavy=True
    ),
    "Sign": Operator("onnx::sign({0})"),
    "Sin": Operator("onnx::sin({0})", _unary(lambda g, y, x: g * apply("Cos", x)), heavy=True),
    "Sinh": Operator("onnx::sinh({0})", _unary(lambda g, y, x: g * apply("Cosh", x)), heavy=True),
    "Softplus": Operator(
        "onnx::softplus({0})", _unary(lambda g, y, x: g * apply("Sigmoid", x)), heavy=True
    ),
    "Softsign": Operator("onnx::softsign({0})", _unary(_softsign)),
    "Sqrt": Operator("onnx::sqrt({0})", _unary(lambda g, y, x: g / (2 * y))),
    "Sub": Operator("{0} - {1}", lambda g, y, a, b: [g, -g]),
    "Tan": Operator("onnx::tan({0})", _unary(lambda g, y, x: g * (1 + y * y)), heavy=True),
    "Tanh": Operator(
        "onnx::tanh({0})",
        _unary(lambda g, y, x: g * (1 - y * y)),
        heavy=True,
        piecewise="cudarelu::math::tanh_piecewise",
    ),
    "ThresholdedRelu": Operator(
        "onnx::thresholded_relu({0}, {alpha})", lambda g, y, x, alpha: [where(x > alpha, g, 0)]
    ),
    "Where": Operator(
        "{0} ? {1} : {2}",
        lambda g, y, condition, a, b: [None, where(condition, g, 0), where(condition, 0, g)],
        operands="where",
        result="same",
    ),
    "Xor": Operator("{0} != {1}", operands="bool", result="bool"),
}

# Functions that simplify.py introduces, in kernels only, as C++.
KERNEL_FUNCTIONS = {"NormalCdf": "onnx::normal_cdf({0})", "Exp2": "onnx::exp2({0})"}
