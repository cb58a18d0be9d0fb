"""Reads a definition: ONNX text, or a Python function of symbolic values."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable
from typing import Any

import onnx
import onnx.defs

from .._onnx.definitions import parsed
from .._onnx.expressions import Attribute, Call, Expression, Input, Literal, read
from .._table import OpInfo
from .expr import attributes_of, check_operands, inputs_of, kind_of, parts, rewritten
from .operators import OPERATORS
from .symbolic import Value

DECOMPOSED = ("Celu", "Mean", "Sum")  # into other operators, by decomposed()
_WITHOUT_ARITHMETIC = ("Cast", "CastLike", "Constant", "Identity")


def read_text(op: OpInfo) -> Expression:
    """The output of an op as its definition computes it.

    Raises:
        ValueError: for text that is not the body of an ONNX function, for an operator that is not
            elementwise and for an operand of another kind. The message has the line.
    """
    body = parsed(op)
    for node in body.node:
        if node.op_type not in (*OPERATORS, *DECOMPOSED, *_WITHOUT_ARITHMETIC):
            known = onnx.defs.has(node.op_type, op.definition_opset, "")
            reason = "an elementwise operator" if known else "an operator of ONNX"
            raise ValueError(f"{line_of(op, node)}: {node.op_type} is not {reason}")
        if node.op_type == "Constant" and len(node.attribute) != 1:
            raise ValueError(f"{line_of(op, node)}: Constant needs one attribute, its value")
    (output,) = body.output
    body.output[:] = [node.output[0] for node in body.node]
    values = []
    for node, value in zip(body.node, read(op, body), strict=True):
        try:
            values.append(rewritten(value, decomposed))
            kind_of(values[-1])
        except ValueError as error:
            raise ValueError(f"{line_of(op, node)}: {error}") from None
    return _checked(op, values[list(body.output).index(output)])


def read_function(op: OpInfo, definition: Callable[..., Any]) -> Expression:
    """The value that a Python function returns for symbolic inputs and attributes.

    Raises:
        TypeError: if the parameters are not the op's inputs and attributes, if the function
            branches on a value, or if it does not return a value.
    """
    inputs: dict[str, Value] = {each.name: Value(Input(each.name)) for each in op.inputs}
    attributes = {a.name: Value(Attribute(a.name), a.labels) for a in op.attributes}
    arguments = inputs | attributes
    names = list(inspect.signature(definition).parameters)
    if sorted(names) != sorted(arguments):
        raise TypeError(
            f"{op.name}: the function takes ({', '.join(names)}), "
            f"but the signature has ({', '.join(arguments)})"
        )
    result = definition(**arguments)
    if not isinstance(result, Value):
        raise TypeError(f"{op.name}: the function returned {result!r}, not a symbolic value")
    return _checked(op, rewritten(result.expression, decomposed))


def _checked(op: OpInfo, y: Expression) -> Expression:
    try:
        for part in parts(y):  # operands first: none is deep
            kind_of(part)
        if kind_of(y) == "bool":
            raise ValueError("the result is bool: convert it with Cast or where")
        shape = op.outputs[0].dims
        if not any(each.dims == shape for each in op.inputs if each.name in inputs_of(y)):
            raise ValueError("the result does not depend on an input of its shape")
    except ValueError as error:
        raise ValueError(f"{op.name}: {error}") from None
    return y


def line_of(op: OpInfo, node: onnx.NodeProto) -> str:
    written = re.search(rf"(?<!\w){re.escape(node.output[0])}\s*[,=]", op.definition)
    line = op.definition.count("\n", 0, written.start()) + 1 if written else 1
    return f"{op.name}: line {line} of the definition"


# The binary operators that operators of any number of operands consist of.
PAIRWISE = {"Max": "Max", "Min": "Min", "Sum": "Add", "Mean": "Add"}


def decomposed(part: Expression) -> Expression:
    """A part as binary operators, and without Celu, which ONNX has for float32 only."""
    if not isinstance(part, Call):
        return part
    check_operands(part)
    if part.op_type == "Clip" and any(isinstance(each, Input | Call) for each in part.operands[1:]):
        x, low, high = (*part.operands, None)[:3]
        raised = part.operands[:1] if low is None else (Call("Max", (x, low)),)
        return Call("Min", (*raised, high)) if high is not None else Call("Max", (x, low))
    if pairwise := PAIRWISE.get(part.op_type):
        operands = [each for each in part.operands if each is not None]
        total = functools.reduce(lambda a, b: Call(pairwise, (a, b)), operands)
        count = Literal((), (float(len(part.operands)),))
        return Call("Div", (total, count)) if part.op_type == "Mean" else total
    if part.op_type == "Celu":
        alpha = attributes_of(part)["alpha"]
        if isinstance(alpha, Literal) and alpha.elements[0] <= 0:
            raise ValueError("alpha of Celu must be positive")
        return Call("Mul", (alpha, Call("Elu", (Call("Div", (part.operands[0], alpha)),))))
    return part
