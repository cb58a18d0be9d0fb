"""An elementwise expression as C++, the body of a functor, and as ONNX, the body of a function."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Collection, Iterator

from .._onnx.expressions import Attribute, Call, Expression, Input, Literal
from .expr import attributes_of, inputs_of, kind_of, parts, target
from .operators import KERNEL_FUNCTIONS, OPERATORS, clip_code, power_code
from .simplify import simplified

# Words that a functor cannot use for an input, an attribute or a local value.
_RESERVED = frozenset(
    re.findall(
        r"\w+",
        """T alignas alignof and and_eq angles asm auto bitand bitor bool case catch char char16_t
        char32_t char8_t co_await co_return co_yield compl concept const const_cast consteval
        constexpr constinit decltype default delete do double dynamic_cast enum explicit export
        extern false float friend goto inline int long mutable namespace new not not_eq noexcept
        nullptr onnx operator or or_eq private protected public register reinterpret_cast
        requires short signed sizeof static static_assert static_cast struct switch template
        this thread_local throw true try typedef typeid typename union unsigned using virtual
        void volatile wchar_t while xor xor_eq""",
    )
)


def identifier(name: str) -> str:
    """A name that C++ accepts."""
    return f"{name}_" if name.rstrip("_") in _RESERVED else name


class Names:
    """Gives each part of an expression a name."""

    def __init__(self, taken: Collection[str]) -> None:
        self._taken = set(taken)

    def new(self, wanted: str) -> str:
        candidates = itertools.chain([wanted], (f"{wanted}{i}" for i in itertools.count(2)))
        name = next(each for each in candidates if each not in self._taken)
        self._taken.add(name)
        return name


def _stem(call: Call) -> str:
    """A short name for the value of a call."""
    return "".join(f"_{c.lower()}" if c.isupper() else c for c in call.op_type).lstrip("_")


def functor_body(y: Expression, taken: Collection[str]) -> list[str]:
    """The statements of a functor that returns `y`.

    Args:
        y: the expression.
        taken: the names of the functor's parameters.
    """
    y = simplified(y)
    names = Names({*map(identifier, taken), *_RESERVED, "y"})
    known: dict[Expression, str] = {}
    lines: list[str] = []
    for part in parts(y):
        if isinstance(part, Input | Attribute):
            known[part] = identifier(part.name)
        elif isinstance(part, Literal):
            known[part] = _number(part)
        elif isinstance(part, Call):
            code = _code(part, known)
            if part is y:
                return [*lines, f"return {code};"]
            known[part] = names.new(_stem(part))
            kind = "bool" if kind_of(part) == "bool" else "T"
            lines.append(f"const {kind} {known[part]} = {code};")
    return [f"return {known[y]};"]


def _number(literal: Literal) -> str:
    (value,) = literal.elements
    if isinstance(value, bool):
        return "true" if value else "false"
    if not math.isfinite(value):
        raise ValueError(f"a constant of {value}: constants must be finite")
    return f"T({float(value)!r})"


def _code(call: Call, known: dict[Expression, str]) -> str:
    operands = [each if each is None else known[each] for each in call.operands]
    x = operands[0]
    if call.op_type in ("Cast", "CastLike"):
        source = call.operands[0]
        assert source is not None
        is_bool = kind_of(source) == "bool"
        if (to := target(call)) == "bool":
            return f"{x}" if is_bool else f"{x} != 0"
        if is_bool:
            return f"{x} ? T(1) : T(0)"
        # + T(0): no integer is -0.
        return {"real": f"{x}", "float": f"T(float({x}))", "whole": f"onnx::trunc({x}) + T(0)"}[to]
    if call.op_type == "Clip":
        low, high = [*operands[1:], None, None][:2]
        return clip_code(f"{x}", low, high)
    if (
        call.op_type == "Pow"
        and isinstance(exponent := call.operands[1], Literal)
        and (code := power_code(f"{x}", *exponent.elements))
    ):
        return code
    if call.op_type == "Div" and isinstance(divisor := call.operands[1], Literal):
        return f"onnx::divided_by({x}, {float(divisor.elements[0])!r})"
    condition = call.operands[0]
    if call.op_type == "Where" and condition is not None and inputs_of(condition):
        return f"onnx::where({', '.join(map(str, operands))})"
    if takes_angles(call):
        return f"onnx::{call.op_type.lower()}({x}, angles)"
    if call.op_type in KERNEL_FUNCTIONS:
        return KERNEL_FUNCTIONS[call.op_type].format(x)
    attributes = {name: known[each] for name, each in attributes_of(call).items()}
    return OPERATORS[call.op_type].code.format(*operands, **attributes)


def takes_angles(part: Expression) -> bool:
    """Whether the function of a part has a parameter for angles (elementwise.h)."""
    return isinstance(part, Call) and part.op_type in ("Sin", "Cos")


def is_intense(y: Expression) -> bool:
    """Whether an expression takes longer than reading and writing an element."""
    calls = [each.op_type for each in parts(y) if isinstance(each, Call)]
    return any(name in OPERATORS and OPERATORS[name].heavy for name in calls)


def piecewise(y: Expression) -> str:
    """The C++ name of the PiecewisePolynomial of one operator of an input, else ""."""
    if not isinstance(y, Call) or not all(isinstance(each, Input) for each in y.operands):
        return ""
    operator = OPERATORS.get(y.op_type)
    return operator.piecewise if operator else ""


def has_approximate(y: Expression) -> bool:
    """Whether an expression has operators that the GPU approximates with fewer instructions."""
    calls = [each.op_type for each in parts(y) if isinstance(each, Call)]
    return is_intense(y) or not {"Div", "Reciprocal", "Sqrt", "Softsign"}.isdisjoint(calls)


def definition_body(
    y: Expression, output: str, inputs: list[str], labelled: Collection[str]
) -> str:
    """The body of an ONNX function, one node in a line, whose output is `y`.

    Args:
        y: the expression.
        output: the name of the output.
        inputs: the names of the op's inputs; constants get the dtype of the first one.
        labelled: the attributes that are labels, which are integers in ONNX.
    """
    writer = _DefinitionWriter(output, inputs, labelled)
    return "\n".join(writer.write(y))


class _DefinitionWriter:
    def __init__(self, output: str, inputs: list[str], labelled: Collection[str]) -> None:
        self._names = Names({output, *inputs})
        self._output = output
        self._like = inputs[0]
        self._labelled = labelled
        self._known: dict[Expression, str] = {Input(name): name for name in inputs}

    def write(self, y: Expression) -> Iterator[str]:
        operands = {
            operand
            for call in parts(y)
            if isinstance(call, Call)
            for operand in call.operands
            if operand is not None
        }
        for part in parts(y):
            if part in self._known or (part not in operands and part is not y):
                continue  # an input, or a value of a node's attribute
            name = self._output if part is y else self._names.new(self._wanted(part))
            yield from self._nodes(part, name)
            self._known[part] = name
        if isinstance(y, Input):
            yield f"{self._output} = Identity({y.name})"

    def _wanted(self, part: Expression) -> str:
        if isinstance(part, Call):
            return _stem(part)
        return part.name if isinstance(part, Attribute) else "c"

    def _nodes(self, part: Expression, name: str) -> Iterator[str]:
        if isinstance(part, Literal):
            (value,) = part.elements
            if isinstance(value, bool):
                yield f"{name} = Constant<value = bool {{{int(value)}}}>()"
                return
            wide = self._names.new(f"{name}_d")
            yield f"{wide} = Constant<value = double {{{float(value)!r}}}>()"
            yield f"{name} = CastLike({wide}, {self._like})"
        elif isinstance(part, Attribute):
            kind = "int" if part.name in self._labelled else "float"
            wide = self._names.new(f"{name}_a")
            yield f"{wide} = Constant<value_{kind}: {kind} = @{part.name}>()"
            yield f"{name} = CastLike({wide}, {self._like})"
        elif isinstance(part, Call):
            operands = ["" if each is None else self._known[each] for each in part.operands]
            if part.op_type == "CastLike" and target(part) == "real":
                operands[1] = self._like
            result = name
            if part.op_type == "Cast" and target(part) != "bool":
                result = self._names.new(f"{name}_c")  # arithmetic goes on in T
            yield f"{result} = {part.op_type}{self._attributes(part)}({', '.join(operands)})"
            if result != name:
                yield f"{name} = CastLike({result}, {self._like})"

    def _attributes(self, call: Call) -> str:
        given = []
        for name, value in call.attributes:
            if isinstance(value, Attribute):
                kind = "int" if value.name in self._labelled else "float"
                given.append(f"{name}: {kind} = @{value.name}")
            else:
                number = value.elements[0] if isinstance(value, Literal) else value
                given.append(f"{name} = {number!r}")
        return f"<{', '.join(given)}>" if given else ""
