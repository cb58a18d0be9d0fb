"""ONNX functions as immutable expressions, and rules that rewrite them.

In the normal form, Add and Mul take any number of operands. Constants are without dtypes.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Collection, Iterator
from typing import Any, TypeAlias

import numpy as np
import onnx
import onnx.defs
import onnx.helper
import onnx.numpy_helper

from .._table import OpInfo

_OPTIONAL = onnx.defs.OpSchema.FormalParameterOption.Optional

NEUTRAL = {"Add": 0, "Mul": 1}  # the operand that changes nothing


@dataclasses.dataclass(frozen=True)
class Input:
    """An input of an op."""

    name: str
    is_transposed: bool = False
    is_optional: bool = dataclasses.field(default=False, compare=False)
    number: float | None = dataclasses.field(default=None, compare=False)  # of an absent input


@dataclasses.dataclass(frozen=True)
class Attribute:
    """An attribute of an op: an attribute of a node, or a constant operand of one element."""

    name: str
    is_optional: bool = dataclasses.field(default=False, compare=False)
    number: Any = dataclasses.field(default=None, compare=False)  # the default


@dataclasses.dataclass(frozen=True, eq=False)
class Literal:
    """A constant. An inverse one has the value 1 / elements."""

    shape: tuple[int, ...]
    elements: tuple[Any, ...]
    is_inverse: bool = False

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Literal) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    @functools.cached_property
    def _key(self) -> tuple[Any, ...]:
        """What Python takes for equal is not: True and 1, 0.0 and -0.0."""
        kinds = [
            isinstance(each, bool) or (isinstance(each, float) and math.copysign(1, each))
            for each in self.elements
            if each == 0 or isinstance(each, bool)
        ]
        return self.shape, self.elements, self.is_inverse, tuple(kinds)

    def array(self, as_divisor: bool = False) -> np.ndarray:
        """The value, or 1 / value; the elements themselves are not rounded."""
        array = np.reshape(self.elements, self.shape)
        with np.errstate(divide="ignore"):
            return array if as_divisor == self.is_inverse else 1 / array


@dataclasses.dataclass(frozen=True)
class Call:
    """An output of an operator of ONNX."""

    op_type: str
    operands: tuple[Expression | None, ...]
    attributes: tuple[tuple[str, Any], ...] = ()  # sorted; a value may be an Attribute
    output: int = 0

    @functools.cached_property
    def _hash(self) -> int:
        return hash((self.op_type, self.operands, self.attributes, self.output))

    def __hash__(self) -> int:
        return self._hash  # computing it takes the hashes of all operands


Expression: TypeAlias = Input | Attribute | Literal | Call
Rule: TypeAlias = Callable[[Call], Any]


def read(op: OpInfo, body: onnx.FunctionProto) -> list[Expression]:
    """The outputs of an op as a function of its inputs and attributes computes them.

    Raises:
        ValueError: for an operator that is not of ONNX, an attribute that is a graph or a sparse
            tensor, and a name that is not defined.
    """
    known: dict[str, Any] = {
        each.name: Input(each.name, False, each.optional, each.number) for each in op.inputs
    }
    attributes = {
        each.name: Attribute(each.name, not each.required, each.default) for each in op.attributes
    }
    for node in body.node:
        try:
            known |= zip(node.output, _read_node(op, node, known, attributes), strict=True)
        except (KeyError, ValueError) as error:
            reason = f"{error} is not defined" if isinstance(error, KeyError) else error
            where = f"node {node.output[0]} = {node.op_type}"
            raise ValueError(f"the definition of {op.short_name}: {where}: {reason}") from None
    for name in body.output:
        if name not in known:
            raise ValueError(f"the definition of {op.short_name}: {name} is not defined")
    return [known[name] for name in body.output]


def _read_node(op: OpInfo, node: onnx.NodeProto, known: dict, attributes: dict) -> list[Any]:
    """The outputs of a node."""
    if node.domain or not onnx.defs.has(node.op_type, op.definition_opset, ""):
        raise ValueError("it is not an operator of ONNX")
    operands = tuple(known[name] if name else None for name in node.input)
    given = {
        each.name: attributes[each.ref_attr_name] if each.ref_attr_name else _attribute(each)
        for each in node.attribute
    }
    if node.op_type == "Constant":
        (value,) = given.values()
        return [value if isinstance(value, Attribute | Literal) else _literal(value)]
    is_cast = node.op_type == "CastLike" and isinstance(operands[0], Attribute | Literal)
    if node.op_type == "Identity" or is_cast:
        return [operands[0]]
    named = tuple(sorted(given.items()))
    return [Call(node.op_type, operands, named, i) for i in range(len(node.output))]


def _attribute(given: onnx.AttributeProto) -> Any:
    value = onnx.helper.get_attribute_value(given)
    kind = onnx.AttributeProto.AttributeType.Name(given.type)
    if kind == "TENSOR":
        return _literal(onnx.numpy_helper.to_array(value))
    if kind.rstrip("S") not in ("INT", "FLOAT", "STRING"):
        raise ValueError(f"its attribute {given.name} is not of numbers or strings")
    return tuple(value) if isinstance(value, list) else value


def _literal(value: Any) -> Literal:
    array = np.asarray(value)
    return Literal(array.shape, tuple(array.ravel().tolist()))


def parts(expression: Any) -> Iterator[Any]:
    """An expression, its operands and the values of its attributes, and the parts of these."""
    yield expression
    if isinstance(expression, Call):
        for part in (*expression.operands, *dict(expression.attributes).values()):
            yield from parts(part)


def calls(expression: Expression) -> list[Call]:
    """The calls among the parts."""
    return [each for each in parts(expression) if isinstance(each, Call)]


def is_linear(expression: Any) -> bool:
    """Whether an expression is the product of a linear layer, x w^T + b."""
    is_gemm = isinstance(expression, Call) and expression.op_type == "Gemm"
    return is_gemm and expression.attributes == (("transB", 1),)


def rewritten(expression: Any, *rules: Rule) -> Any:
    """An expression with rules applied to each call, those of the operands first."""
    if isinstance(expression, Call):
        operands = tuple(rewritten(each, *rules) for each in expression.operands)
        expression = dataclasses.replace(expression, operands=operands)
        for rule in rules:
            expression = rule(expression)
    return expression


# Rules of the normal form. They return other calls unchanged.


def quotient_as_product(call: Call) -> Call:
    """a / 2 as a * (1 / 2)."""
    if call.op_type == "Div" and isinstance(divisor := call.operands[1], Literal):
        inverse = dataclasses.replace(divisor, is_inverse=not divisor.is_inverse)
        return Call("Mul", (call.operands[0], inverse))
    return call


def power_as_product(call: Call) -> Call:
    """x ** 2 as x * x, and x ** 3 as x * x * x."""
    for exponent in (2, 3):
        if call.op_type == "Pow" and call.operands[1] == Literal((), (exponent,)):
            return Call("Mul", call.operands[:1] * exponent)
    return call


def flat(call: Call) -> Call:
    """a * (b * c) as a * b * c, and sums likewise."""
    if call.op_type not in NEUTRAL:
        return call
    groups = [
        each.operands if isinstance(each, Call) and each.op_type == call.op_type else (each,)
        for each in call.operands
    ]
    return Call(call.op_type, sum(groups, ()))


NORMAL_FORM = (quotient_as_product, power_as_product, flat)


def without_reshape(call: Call) -> Any:
    """x for Reshape(x): a linear layer takes the rows of a tensor of any rank."""
    return call.operands[0] if call.op_type == "Reshape" else call


def without(expression: Expression, absent: Collection[Any]) -> Expression | None:
    """An expression where inputs are absent and attributes have their defaults.

    Factors of 1, terms of 0 and optional operands are left out. None if another use remains.
    """

    def shorter(call: Call) -> Any:
        if call.op_type in NEUTRAL:
            gone = [each for each in absent if each.number == NEUTRAL[call.op_type]]
            operands = tuple(each for each in call.operands if each not in gone)
            return operands[0] if len(operands) == 1 else Call(call.op_type, operands)
        formal = onnx.defs.get_schema(call.op_type).inputs
        operands = tuple(
            None if each in absent and formal[min(i, len(formal) - 1)].option == _OPTIONAL else each
            for i, each in enumerate(call.operands)
        )
        return dataclasses.replace(call, operands=operands)

    result = rewritten(expression, shorter)
    return None if {*parts(result)} & {*absent} else result


# Rules that give the forms of a call in models.


@functools.cache
def forms(call: Call) -> tuple[Call, ...]:
    """A call, and the calls that models have in its place."""
    return call, *_leaky_relu(call), *_with_axes_as_attribute(call), *_other_products(call)


def _leaky_relu(call: Call) -> Iterator[Call]:
    """LeakyRelu for PRelu with a constant slope."""
    if call.op_type == "PRelu" and isinstance(call.operands[1], Attribute):
        yield Call("LeakyRelu", call.operands[:1], (("alpha", call.operands[1]),))


def _with_axes_as_attribute(call: Call) -> Iterator[Call]:
    """A reduction before opset 18."""
    if call.op_type.startswith("Reduce") and isinstance(call.operands[-1], Literal):
        axes = ("axes", call.operands[-1].elements)
        yield Call(call.op_type, call.operands[:-1], (*call.attributes, axes))


def _other_products(call: Call) -> Iterator[Call]:
    """MatMul and Add for a Gemm, and each with a weight that the model has transposed."""
    if not is_linear(call):
        return
    x, weight, *bias = call.operands
    weights: list[Expression] = [Call("Transpose", (weight,), (("perm", (1, 0)),))]
    if isinstance(weight, Input):
        weights.append(dataclasses.replace(weight, is_transposed=True))
        yield Call("Gemm", (x, weights[-1], *bias))
    for each in weights:
        product = Call("MatMul", (x, each))
        yield product if bias in ([], [None]) else Call("Add", (product, *bias))
