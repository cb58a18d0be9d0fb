"""ONNX functions as immutable expressions, and rules that rewrite them.

In the normal form, Add and Mul take any number of operands. Constants are without dtypes.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Collection, Iterator
from typing import Any, TypeAlias, TypeGuard

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
    or_bool: bool = dataclasses.field(default=False, compare=False)


@dataclasses.dataclass(frozen=True)
class Attribute:
    """An attribute of an op: an attribute of a node, or a constant operand of one element."""

    name: str
    is_optional: bool = dataclasses.field(default=False, compare=False)
    number: Any = dataclasses.field(default=None, compare=False)  # the default
    power: float = 1  # the constant is the attribute to this power


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
        """Differs for values that are equal in Python: True and 1, False and 0.0, 0.0 and -0.0."""
        kinds = [
            "bool" if isinstance(each, bool) else isinstance(each, float) and math.copysign(1, each)
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
class Filled:
    """A constant of any shape whose elements are all one number."""

    number: float


@dataclasses.dataclass(frozen=True)
class Shape:
    """The shape that a Reshape is given, or its allowzero. They are not read: the shapes of the
    results are compared."""


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


Expression: TypeAlias = Input | Attribute | Literal | Filled | Shape | Call
Rule: TypeAlias = Callable[[Call], Any]


def read(op: OpInfo, body: onnx.FunctionProto) -> list[Expression]:
    """The outputs of an op as a function of its inputs and attributes computes them.

    Raises:
        ValueError: for an operator that is not of ONNX, an attribute that is a graph or a sparse
            tensor, and a name that is not defined.
    """
    known: dict[str, Any] = {
        each.name: Input(each.name, False, each.optional, each.number, each.or_bool)
        for each in op.inputs
    }
    attributes = {
        each.name: Attribute(
            each.name, not each.required, math.nan if each.optional else each.default
        )
        for each in op.attributes
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
    if node.domain or not onnx.defs.has(node.op_type):
        raise ValueError("it is not an operator of ONNX")
    operands = tuple(known[name] if name else None for name in node.input)
    given = {
        each.name: attributes[each.ref_attr_name] if each.ref_attr_name else _attribute(each)
        for each in node.attribute
    }
    if node.op_type == "Constant":
        (value,) = given.values()
        return [value if isinstance(value, Attribute | Literal) else _literal(value)]
    counted = (node.op_type, len(operands)) if None not in operands else None
    is_cast = counted == ("CastLike", 2) and isinstance(operands[0], Attribute | Literal)
    if is_cast or counted == ("Identity", 1):
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


def is_linear(expression: Any) -> TypeGuard[Call]:
    """Whether an expression is the product of a linear layer, x w^T + b."""
    if not isinstance(expression, Call) or expression.op_type != "Gemm":
        return False
    return expression.attributes == (("transB", 1),)


def rewritten(expression: Any, *rules: Rule) -> Any:
    """An expression with rules applied to each call, after its operands."""
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

    Factors of 1, terms of 0 and optional operands are left out; other operands are filled with the
    number that an absent input is. None if another use remains.
    """

    def shorter(call: Call) -> Any:
        if call.op_type in NEUTRAL:
            neutral = NEUTRAL[call.op_type]
            gone = [each for each in absent if each.number == neutral or _is_factor(each, call)]
            operands = tuple(each for each in call.operands if each not in gone)
            return operands[0] if len(operands) == 1 else Call(call.op_type, operands)
        formal = onnx.defs.get_schema(call.op_type).inputs

        def operand(i: int, each: Any) -> Any:
            if each not in absent:
                return each
            if formal[min(i, len(formal) - 1)].option == _OPTIONAL:
                return None
            is_number = isinstance(each, Input) and each.number is not None
            return Filled(each.number) if is_number else each

        return dataclasses.replace(
            call, operands=tuple(operand(i, each) for i, each in enumerate(call.operands))
        )

    result = rewritten(expression, shorter)
    return None if {*parts(result)} & {*absent} else result


def _is_factor(absent: Any, call: Call) -> bool:
    """Whether an attribute that is NaN (absent) by default is a factor, which may be left out."""
    is_nan = isinstance(absent, Attribute) and absent.number != absent.number
    return is_nan and call.op_type == "Mul"


# Rules that give the forms of a call in models.

#: Exchanges the last two dimensions, of a tensor of any rank.
SWAP = (("perm", (0, 1, 3, 2)),)

#: What hides a score from Softmax.
_LOWEST = (-math.inf, float(np.finfo(np.float32).min))

_ONE_ELEMENT: tuple[tuple[int, ...], ...] = ((), (1,))


@functools.cache
def forms(call: Call) -> tuple[Call | Input, ...]:
    """A call, and what models have in its place."""
    return (
        call,
        *_leaky_relu(call),
        *_with_axes_as_attribute(call),
        *_other_products(call),
        *_of_rows(call),
        *_scaled_operands(call),
        *_swapped(call),
        *_added_where(call),
        *_without_nan(call),
        *_of_instances(call),
        *_by_reciprocal(call),
    )


def _scaled_operands(call: Call) -> Iterator[Call]:
    """A scaled product. Models scale an operand, or each of them by the root, or divide."""
    is_scaled = call.op_type == "Mul" and len(call.operands) == 2
    product, factor = call.operands if is_scaled else (None, None)
    if not isinstance(product, Call) or not isinstance(factor, Attribute):
        return
    if product.op_type != "MatMul":
        return
    a, b = product.operands
    divisor, root = (dataclasses.replace(factor, power=power) for power in (-1, 0.5))
    yield Call("Div", (product, divisor))
    for op_type, each in (("Mul", factor), ("Div", divisor)):
        yield Call("MatMul", (Call(op_type, (a, each)), b))
        yield Call("MatMul", (a, Call(op_type, (b, each))))
    yield Call("MatMul", (Call("Mul", (a, root)), Call("Mul", (b, root))))


def _swapped(call: Call) -> Iterator[Call | Input]:
    """A Transpose of the last two dimensions. torch's exporter flattens the others first; or the
    input is transposed already."""
    if call.op_type == "Transpose" and call.attributes == SWAP:
        (x,) = call.operands
        transposed = Call("Transpose", (Call("Reshape", (x, Shape())),), (("perm", (0, 2, 1)),))
        yield Call("Reshape", (transposed, Shape()))
        if isinstance(x, Input):
            yield dataclasses.replace(x, is_transposed=True)


def _added_where(call: Call) -> Iterator[Call]:
    """A mask of bool, where a definition adds an input that may be bool."""
    if call.op_type != "Add":
        return
    for i, mask in enumerate(call.operands):
        if isinstance(mask, Input) and mask.or_bool:
            for shape, low in itertools.product(_ONE_ELEMENT, _LOWEST):
                bias = Call("Where", (mask, Literal(shape, (0.0,)), Literal(shape, (low,))))
                yield Call("Add", (*call.operands[:i], bias, *call.operands[i + 1 :]))


def _without_nan(call: Call) -> Iterator[Call]:
    """Weights that are 0 where a mask of bool hides the whole row, as in PyTorch."""
    if call.op_type == "Softmax" and any(isinstance(x, Input) and x.or_bool for x in parts(call)):
        for shape in _ONE_ELEMENT:
            yield Call("Where", (Call("IsNaN", (call,)), Literal(shape, (0.0,)), call))


def _of_instances(call: Call) -> Iterator[Call]:
    """Instances of one dimension are rows: exporters write GroupNorm so."""
    if call.op_type == "LayerNormalization" and ("axis", -1) in call.attributes:
        x, *affine = call.operands
        if affine in ([Filled(1)], [Filled(1), None]):
            attributes = tuple(each for each in call.attributes if each[0] != "axis")
            yield Call("InstanceNormalization", (x, Filled(1), Filled(0)), attributes)


def _by_reciprocal(call: Call) -> Iterator[Call]:
    """A product with a reciprocal root, as exporters write torch.rsqrt."""
    if call.op_type == "Div":
        x, root = call.operands
        if isinstance(root, Call) and root.op_type == "Sqrt":
            yield Call("Mul", (x, Call("Reciprocal", (root,))))


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


def rows_of(x: Expression) -> Call:
    """A tensor as a matrix of its rows."""
    return Call("Reshape", (x, Shape()), (("allowzero", Shape()),))


def _of_rows(call: Call) -> Iterator[Call]:
    """A linear layer of any rank as the product of a matrix, whatever computes the shapes: what
    optimizers leave of the definition, and how some exporters write Dense."""
    if not is_linear(call):
        return
    x, *parameters = call.operands
    if isinstance(x, Input):
        yield rows_of(dataclasses.replace(call, operands=(rows_of(x), *parameters)))
