"""The gradients of the ops for hosts that are programmed in Python.

The declaration of an op has an expression for the gradient of each differentiable input, which
calls further ops: "x = relu_backward(grad_y, y)". The library parses it; `Evaluator` evaluates it
with the arrays of a host.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from cudarelu import _C
from cudarelu._table import Attribute, OpInfo, Parameter, all_ops, op_named


@dataclass(frozen=True)
class Expression:
    """A value in a gradient."""

    kind: str  # "input", "output", "output_gradient", "attribute", "number", "call", "sum", "none"
    index: int  # of the input, output or attribute
    number: float
    op: str | None  # the qualified name of the called op
    output: int  # which output of the called op
    arguments: tuple[Expression, ...]  # of a call, or the terms of a sum
    text: str  # equal texts have equal values

    @classmethod
    def of(cls, fields: tuple[Any, ...]) -> Expression:
        kind, index, number, op, output, arguments, text = fields
        return cls(kind, index, number, op, output, tuple(map(cls.of, arguments)), text)


@dataclass(frozen=True)
class Derivative:
    """The gradients of an op."""

    op: OpInfo  # that runs where a gradient is needed: it may have more outputs
    terms: dict[int, Expression]  # by the position of the input; others have no gradient

    @functools.cached_property
    def differentiable_outputs(self) -> frozenset[int]:
        """The outputs that may have a gradient: those of type T, and others that a term names."""
        generic = (i for i, each in enumerate(self.op.outputs) if each.dtype == "T")
        return frozenset(generic).union(*map(_named_gradients, self.terms.values()))


def _named_gradients(expression: Expression) -> frozenset[int]:
    own = {expression.index} if expression.kind == "output_gradient" else ()
    return frozenset(own).union(*map(_named_gradients, expression.arguments))


@functools.cache
def derivative_of(op: OpInfo) -> Derivative:
    fields = _C.gradient(op.namespace, op.name)
    form = fields["training_form"]
    terms = {i: Expression.of(each) for i, each in fields["terms"]}
    return Derivative(op if form is None else op_named(form), terms)


def _called(op: OpInfo, transposed: bool = False) -> Iterator[OpInfo]:
    """The ops that the gradients of an op call; or only those that forward mode transposes: those
    with an argument that depends on the gradient of an output."""

    def of(expression: Expression) -> Iterator[OpInfo]:
        if expression.op is not None and (_named_gradients(expression) or not transposed):
            yield op_named(expression.op)
        for each in expression.arguments:
            yield from of(each)

    for term in derivative_of(op).terms.values():
        yield from of(term)


def has_forward_mode(op: OpInfo) -> bool:
    """Whether an op has a derivative in forward mode, the transpose of its gradients."""
    terms = derivative_of(op).terms
    return bool(terms) and all(derivative_of(each).terms for each in _called(op, transposed=True))


def has_second_derivative(op: OpInfo, forward: bool = False) -> bool:
    """Whether the gradients of an op have gradients; or derivatives in forward mode."""
    has_derivative = has_forward_mode if forward else lambda each: bool(derivative_of(each).terms)
    return bool(derivative_of(op).terms) and all(map(has_derivative, set(_called(op))))


def sums_rows(op: OpInfo) -> bool:
    """Whether the outputs without `*` are sums over the rows. They are in an op that computes the
    gradient of an input that all rows share, such as a bias, by the chain rule."""
    return any(
        called == op.qualified_name
        and not next(each for each in other.inputs if each.name == name).leads
        for other in all_ops()
        if all(each.leads for each in other.outputs)
        for name, called in other.gradient_ops
    )


def keeps_rows(op: OpInfo) -> bool:
    """Whether shards of the rows that `*` counts give shards of the outputs, or addends of the
    outputs without `*`."""
    return (
        op.star_leads and not op.axes and (all(each.leads for each in op.outputs) or sums_rows(op))
    )


class Host(Protocol):
    """What an evaluator needs of a host, whose arrays have `+`. An absent array is None."""

    def call(self, op: OpInfo, inputs: Sequence[Any], attributes: Sequence[Any]) -> Sequence[Any]:
        """The outputs of an op."""

    def size(self, x: Any, axis: int) -> Any:
        """The size of an axis; a negative one counts from the last one."""

    def full(self, shape: tuple[Any, ...], number: float, like: Any) -> Any:
        """An array of one number, with the dtype of another array."""

    def zeros_like(self, x: Any) -> Any:
        """An array of zeros with the shape and dtype of another one."""

    def sum_to(self, x: Any, like: Any) -> Any:
        """The sums over the axes along which another array broadcasts to x, in its shape."""


class Evaluator:
    """The gradients of one call of an op. Equal texts of expressions run once.

    Args:
        outputs: those of the op that runs where a gradient is needed, `derivative_of(op).op`.
        gradient: the gradient of an output; None is zero, and may be left out.
    """

    def __init__(
        self,
        host: Host,
        op: OpInfo,
        inputs: Sequence[Any],
        outputs: Sequence[Any],
        attributes: Sequence[float | int],
        gradient: Callable[[int], Any],
    ) -> None:
        self.host, self.op, self.inputs, self.outputs = host, op, inputs, outputs
        self.attributes, self.gradient = attributes, gradient
        self._called: dict[str, Sequence[Any]] = {}

    def gradient_of(self, i: int) -> Any:
        """The gradient of input i, in its shape; None if it has none."""
        expression = derivative_of(self.op).terms.get(i)
        if expression is None:
            return None
        value = self._value(expression)
        return self.host.sum_to(value, self.inputs[i]) if self.op.inputs[i].broadcasts else value

    def _value(self, expression: Expression) -> Any:
        match expression.kind:
            case "input":
                return self.inputs[expression.index]
            case "output":
                return self.outputs[expression.index]
            case "output_gradient":
                given = self.gradient(expression.index)
                if given is None:
                    given = self.host.zeros_like(self.outputs[expression.index])
                return given
            case "call":
                return self._call(expression)[expression.output]
            case "sum":
                return self._sum(expression)
            case _:
                return None

    def _call(self, expression: Expression) -> Sequence[Any]:
        text = expression.text[: expression.text.rindex(")")]  # without the output
        if text not in self._called:
            assert expression.op is not None
            op = op_named(expression.op)
            count = len(op.inputs)
            pairs = zip(expression.arguments, op.inputs, strict=False)
            inputs = [self._argument(each, parameter) for each, parameter in pairs]
            attributes = [
                self._attribute(each, attribute)
                for each, attribute in zip(expression.arguments[count:], op.attributes, strict=True)
            ]
            self._called[text] = self.host.call(op, inputs, attributes)
        return self._called[text]

    def _attribute(self, expression: Expression, attribute: Attribute) -> float | int:
        if expression.kind == "attribute":
            return self.attributes[expression.index]
        return expression.number if attribute.type == "float" else int(expression.number)

    def _argument(self, expression: Expression, parameter: Parameter) -> Any:
        if parameter.number == 0 and self._is_zero(expression):
            return None  # an absent input is 0
        value = self._value(expression)
        if value is not None or parameter.optional:
            return value
        return self._default_input(self.op.inputs[expression.index])

    def _default_input(self, absent: Parameter) -> Any:
        """The value of an absent input: another input, or its number in the sizes of another."""
        names = [each.name for each in self.op.inputs]
        if absent.default_input is not None:
            return self.inputs[names.index(absent.default_input)]
        assert absent.number is not None
        for parameter, x in zip(self.op.inputs, self.inputs, strict=True):
            has_all = set(absent.dims) <= set(parameter.dims) and not parameter.broadcasts
            if x is not None and not parameter.optional and has_all:
                axes = {dim: parameter.axis_of(i) for i, dim in enumerate(parameter.dims)}
                shape = tuple(self.host.size(x, axes[dim]) for dim in absent.dims)
                return self.host.full(shape, absent.number, x)
        raise AssertionError(f"{self.op.name}: {absent.name} has no shape")

    def _sum(self, expression: Expression) -> Any:
        terms = [each for each in expression.arguments if not self._is_zero(each)]
        values = map(self._value, terms or expression.arguments[:1])
        return functools.reduce(operator.add, values)

    def _is_zero(self, expression: Expression) -> bool:
        """Whether a value is made of absent gradients alone."""
        if expression.kind == "sum":
            return all(map(self._is_zero, expression.arguments))
        return expression.kind == "output_gradient" and self.gradient(expression.index) is None
