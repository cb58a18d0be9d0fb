"""C++ statements that compute the values of a definition, with the arrays of cpu/definition.h."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeGuard

import numpy as np

from .emit import Names, identifier

# The C++ type of the elements by their kind. T is float or double, or std::int64_t for integers.
CPP = {"T": "T", "float": "float", "double": "double", "int64": "std::int64_t", "bool": "bool"}

REAL = frozenset({"T", "float", "double"})

_MAX_OPERANDS = 8  # of an expression: max_operands in cpu/definition.h


@dataclasses.dataclass(eq=False)
class Constant:
    """An array that is known."""

    kind: str
    value: np.ndarray
    variable: str = ""  # where it is an operand


@dataclasses.dataclass(eq=False)
class Number:
    """A C++ expression of one number."""

    kind: str
    code: str
    name: str = "number"
    variable: str = ""  # where it is an operand, an array


@dataclasses.dataclass(eq=False)
class Array:
    """A C++ variable."""

    kind: str
    variable: str
    may_be_absent: bool = False


@dataclasses.dataclass(eq=False)
class Elementwise:
    """An elementwise expression of arrays. It becomes a variable, or a part of another expression,
    when it is used."""

    kind: str
    variable: str
    code: str
    steps: tuple[str, ...]  # the statements before it
    operands: dict[str, str]  # the variables of the arrays and the types of their elements
    is_heavy: bool  # to be computed once for each element
    is_part: bool = False  # a statement in another expression has its name
    is_declared: bool = False

    @property
    def step(self) -> str:
        return f"const {CPP[self.kind]} {self.variable} = {self.code};"


Value = Constant | Number | Array | Elementwise


def is_number(value: Value | None) -> bool:
    """Whether a value has rank 0 and needs no array."""
    return isinstance(value, Number) or (isinstance(value, Constant) and value.value.ndim == 0)


def is_open(value: Value | None) -> TypeGuard[Elementwise]:
    """Whether a value is an expression that can become a part of another one."""
    return isinstance(value, Elementwise) and not value.is_declared


def braces(numbers: Iterable[int]) -> str:
    """A list of integers."""
    return f"{{{', '.join(map(integer, numbers))}}}"


def integer(number: int) -> str:
    return f"{number}" if number > -(2**63) else "std::numeric_limits<std::int64_t>::min()"


def number(kind: str, value: Any) -> str:
    """A number of a kind in C++."""
    if kind == "bool":
        return "true" if value else "false"
    if isinstance(value, float) and not np.isfinite(value):
        name = "quiet_NaN" if np.isnan(value) else "infinity"
        return f"{'-' * (value < 0)}std::numeric_limits<{CPP[kind]}>::{name}()"
    return (
        f"{CPP[kind]}({value!r})" if isinstance(value, float) else f"{CPP[kind]}({integer(value)})"
    )


def indented(lines: Iterable[str]) -> str:
    """The lines, each of which may have several, by two more spaces."""
    return "\n".join(f"  {line}" for text in lines for line in text.split("\n"))


def _function(value: Elementwise) -> str:
    """An expression as a lambda, and its operands."""
    parameters = ", ".join(f"{kind} {name}" for name, kind in value.operands.items())
    steps = indented((*value.steps, f"return {value.code};"))
    return f"[=]({parameters}) {{\n{steps}\n}}, {', '.join(value.operands)}"


class Statements:
    """A block of C++."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._names = Names({"call"})
        self._numbers: dict[tuple[str, str], str] = {}  # variables by expression and kind

    def new_name(self, wanted: str) -> str:
        """A name that no other variable has."""
        return self._names.new(identifier(re.sub(r"\W", "_", wanted) or "unused"))

    @contextlib.contextmanager
    def block(self) -> Iterator[list[str]]:
        """The statements within belong to a block of their own."""
        outer, self.lines = self.lines, []
        yield self.lines
        self.lines = outer

    def declare(self, kind: str, name: str, code: str) -> Array:
        """A new variable."""
        variable = self.new_name(name)
        self.lines.append(f"const auto {variable} = {code};")
        return Array(kind, variable)

    def array(self, value: Value) -> str:
        """The variable of a value as an array."""
        if isinstance(value, Elementwise):
            if not value.is_declared:
                code = f"definition::map<{CPP[value.kind]}>(call, {_function(value)})"
                if value.is_part:
                    value.variable = self.new_name(value.variable)
                self.lines.append(f"const auto {value.variable} = {code};")
                value.is_declared = True
        elif isinstance(value, Array):
            if value.may_be_absent:
                code = f"definition::required({value.variable}, {json.dumps(value.variable)})"
                value.variable = self.declare(value.kind, value.variable, code).variable
                value.may_be_absent = False
        elif not value.variable:
            if isinstance(value, Number) or value.value.ndim == 0:
                code = f"definition::scalar({self.number(value, value.kind)})"
            else:
                elements = ", ".join(
                    number(value.kind, each) for each in value.value.ravel().tolist()
                )
                shape = braces(value.value.shape)
                code = f"definition::constant<{CPP[value.kind]}>({shape}, {{{elements}}})"
            value.variable = self.declare(value.kind, "constant", code).variable
        return value.variable

    def write(self, output: int, value: Value) -> None:
        """Writes an output of the op."""
        kind = CPP[value.kind]
        code = _function(value) if is_open(value) else f"std::identity(), {self.array(value)}"
        self.lines.append(f"definition::write<{kind}>(call, {output}, {code});")

    def number(self, value: Value, kind: str) -> str:
        """A value that is a number, as an expression of a kind."""
        if isinstance(value, Constant):
            return number(kind, value.value.item())
        assert isinstance(value, Number)
        if value.kind == kind and value.code.isidentifier():
            return value.code
        if (value.code, kind) not in self._numbers:
            code = f"definition::convert<{CPP[kind]}>({value.code})"
            self._numbers[value.code, kind] = self.declare(kind, value.name, code).variable
        return self._numbers[value.code, kind]

    def value_or(self, value: Value | None, default: float, kind: str) -> Value:
        """The value, or a number where it is absent."""
        if value is None:
            return Constant(kind, np.array(default))
        if not isinstance(value, Array) or not value.may_be_absent:
            return value
        code = f"definition::value_or({value.variable}, {number(kind, default)})"
        return self.declare(kind, value.variable, code)

    def expression(
        self,
        name: str,
        kind: str,
        code: str,
        values: Sequence[Value],
        number_kind: str,
        is_heavy: bool = False,
    ) -> Value:
        """An elementwise expression.

        An operand that is an expression becomes a part of it, unless its elements would be computed
        several times at some cost.

        Args:
            name: of the variable, if it is free.
            kind: of the result.
            code: C++ with {0}, {1} and so on for the values.
            values: the operands.
            number_kind: the kind of operands that are numbers.
            is_heavy: whether it takes longer than reading and writing an element.
        """
        parts = [each for each in values if is_open(each)]
        arrays = self._operands(values)
        for part in parts:
            if len(arrays) > _MAX_OPERANDS or (part.is_heavy and len(part.operands) < len(arrays)):
                self.array(part)
        steps: dict[str, None] = {}
        for part in filter(is_open, parts):
            steps |= dict.fromkeys((*part.steps, part.step))
            part.is_part = True
        is_bool = [each.kind == "bool" for each in values]
        tokens = [
            self.number(each, "bool" if boolean else number_kind)
            if is_number(each)
            else (each.variable if is_open(each) else self.array(each))
            for each, boolean in zip(values, is_bool, strict=True)
        ]
        variable, code = self.new_name(name), code.format(*tokens)
        if all(map(is_number, values)):
            self.lines.append(f"const {CPP[kind]} {variable} = {code};")
            return Number(kind, variable)
        is_heavy |= any(part.is_heavy for part in filter(is_open, parts))
        return Elementwise(kind, variable, code, tuple(steps), self._operands(values), is_heavy)

    def _operands(self, values: Sequence[Value]) -> dict[str, str]:
        """The arrays of an expression of `values`."""
        operands: dict[str, str] = {}
        for value in values:
            if is_open(value):
                operands |= value.operands
            elif not is_number(value):
                operands[self.array(value)] = CPP[value.kind]
        return operands
