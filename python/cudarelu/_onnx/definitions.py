"""The definitions of the ops as ONNX functions."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import onnx.checker
import onnx.defs
import onnx.helper
import onnx.parser

from .._table import Attribute, OpInfo
from .graphs import NewNames, names_read_by, remove_unused, scopes

# Model-local functions need IR version 8, which every ONNX Runtime since 1.10 reads.
IR_VERSION = 8

OPSET = 18  # of the definitions
LOWEST_OPSET = 13  # in earlier opsets, Softmax and the reductions have other semantics


# Words that ONNX's text format reads as the type of an input or output.
_TYPES = {name.lower() for name, _ in onnx.TensorProto.DataType.items()}
_TYPES |= {"map", "optional", "seq", "sparse_tensor"}


def check_names(op: OpInfo) -> None:
    """Raises ValueError for an input or output whose name is a type in ONNX's text format."""
    for each in (*op.inputs, *op.outputs):
        if each.name in _TYPES:
            raise ValueError(f"{op.name}: {each.name} is a type of ONNX; it must have another name")


@functools.cache
def _parsed(op: OpInfo, domain: str, op_type: str, body: str | None = None) -> onnx.FunctionProto:
    check_names(op)
    attributes = ", ".join(
        a.name if a.required else f"{a.name}: {a.onnx_type} = {a.onnx_value(a.default)}"
        for a in op.node_attributes(domain, op_type)
    )
    inputs = op.node_inputs(domain, op_type)
    names = ["(" + ", ".join(p.name for p in group) + ")" for group in (inputs, op.outputs)]
    head = (
        f'<domain: "{domain}", opset_import: ["" : {op.definition_opset}]> {op_type} '
        f"{f'<{attributes}>' if attributes else ''} {names[0]} => {names[1]} {{"
    )
    try:
        result = onnx.parser.parse_function(f"{head}\n{body or op.definition} }}")
    except onnx.parser.ParseError as error:
        raise ValueError(f"the definition cannot be parsed: {_message_of(error)}") from None
    made = {name for node in result.node for name in node.output}
    for output in result.output:
        if output not in made:
            raise ValueError(f"the definition has no value {output}, the op's output")
    known = {each.name for each in op.attributes}
    for name in (a.ref_attr_name for node in result.node for a in node.attribute):
        if name and name not in known:
            raise ValueError(f"the definition has @{name}, which is no attribute of the op")
    for index, each in enumerate(inputs):
        if isinstance(each, Attribute):
            _read_from_input(result, each, index)
    return result


def _read_from_input(definition: onnx.FunctionProto, attribute: Attribute, index: int) -> None:
    """Makes an attribute of a definition the input of this index, a tensor of one element."""
    del definition.input[index]
    made = {name for node in definition.node for name in node.output}
    new_name = NewNames(made | {*definition.input})
    name = new_name(attribute.name)
    scalar = new_name(f"{name}_scalar")
    definition.input.insert(index, name)
    dtype = onnx.TensorProto.FLOAT if attribute.type == "float" else onnx.TensorProto.INT64
    for node in definition.node:
        if attribute.name not in [each.ref_attr_name for each in node.attribute]:
            continue
        if node.op_type != "Constant":
            raise ValueError(
                f"the definition has @{attribute.name} in a node {node.op_type}, but a model gives "
                "it as an input: only Constant may have it"
            )
        node.CopyFrom(onnx.helper.make_node("Cast", [scalar], node.output, to=dtype))
    definition.node.insert(0, onnx.helper.make_node("Squeeze", [name], [scalar]))


def _message_of(error: onnx.parser.ParseError) -> str:
    """The reason of a parser, after the line and column of the definition."""
    text = re.sub(r"^b['\"]|['\"]$", "", str(error)).replace("\\n", "\n")
    found = re.search(r"line: (\d+) column: (\d+)", text)
    position = f"line {int(found[1]) - 1}, column {found[2]}: " if found else ""  # after the head
    return position + text.splitlines()[-1]


def parsed(op: OpInfo) -> onnx.FunctionProto:
    """The definition of an op, whose operators need not be those of ONNX.

    Raises:
        ValueError: for text that is not the body of an ONNX function.
    """
    result = onnx.FunctionProto()
    try:
        result.CopyFrom(_parsed(op, op.onnx.domain, op.onnx.op_type))
    except ValueError as error:
        raise ValueError(f"{op.name}: {error}") from None
    return result


@functools.cache
def _function(op: OpInfo, domain: str, op_type: str) -> onnx.FunctionProto:
    try:
        result = _parsed(op, domain, op_type)
        onnx.checker.check_function(result)
    except ValueError as error:
        raise ValueError(f"{op.short_name}: {error}") from None
    except onnx.checker.ValidationError as error:
        message = " ".join(str(error).split())
        raise ValueError(f"{op.short_name}: the definition is not valid ONNX: {message}") from None
    return result


def function(
    op: OpInfo, domain: str | None = None, op_type: str | None = None
) -> onnx.FunctionProto:
    """The definition of an op as an ONNX function, with which a model runs without this library.

    Every optional input is an input of the function. If an absent input stands for a value, a call
    of the function must pass this value: `attach_definitions` changes nodes accordingly.

    Args:
        op: an op of this library or of a loaded module.
        domain: the function's domain; the module's own by default.
        op_type: the function's name; the op's name in CamelCase by default.

    Returns:
        A new `onnx.FunctionProto`, of opset 18 for the ops of this library.

    Raises:
        ValueError: if the definition is not the body of a valid ONNX function.
    """
    result = onnx.FunctionProto()
    result.CopyFrom(_function(op, domain or op.onnx.domain, op_type or op.onnx.op_type))
    return result


def equivalent_forms(op: OpInfo) -> list[onnx.FunctionProto]:
    """The definition in the operators that models use instead, of any opset: each form of it."""
    texts = op.equivalent_forms.split("\n\n") if op.equivalent_forms else []
    return [_parsed(op, op.onnx.domain, op.onnx.op_type, each) for each in texts]


def specialised(definition: onnx.FunctionProto, given: Mapping[str, float]) -> onnx.FunctionProto:
    """A copy of a definition for known values of attributes, without the branches not taken.

    If these values decide the condition of a Where, the Where is removed, with all nodes that are
    then unused. This is correct since both branches of a Where in a definition have one shape, or,
    for an attribute that is absent (NaN), the branch not taken is the number that is not given.
    """
    result = onnx.FunctionProto()
    result.CopyFrom(definition)
    for node in definition.node:
        if node.op_type != "Where" or (condition := _decided(definition, node, given)) is None:
            continue
        copy = next(each for each in result.node if each.output == node.output)
        if condition.all():
            _bypass(result, copy, copy.input[1])
        elif not condition.any():
            _bypass(result, copy, copy.input[2])
    remove_unused(result, result.output)
    return result


def _decided(
    definition: onnx.FunctionProto, where: onnx.NodeProto, given: Mapping[str, float]
) -> np.ndarray | None:
    """The condition of a Where; None if it depends on more than the given values."""
    from onnx.reference import ReferenceEvaluator  # takes long to import

    condition = onnx.FunctionProto()
    condition.CopyFrom(definition)
    condition.output[:] = where.input[:1]
    remove_unused(condition, condition.output)
    needed = {*condition.output}.union(*map(names_read_by, condition.node))
    attributes = {a.ref_attr_name for node in condition.node for a in node.attribute} - {""}
    if not needed.isdisjoint(condition.input) or not attributes <= given.keys():
        return None
    del condition.input[:]
    return np.asarray(*ReferenceEvaluator(condition).run(None, {}, attributes=dict(given)))


def _bypass(body: onnx.FunctionProto, node: onnx.NodeProto, value: str) -> None:
    """Removes a node, in place, and uses an existing value as its result.

    If both are inputs or outputs of the body, whose names must not change, an Identity replaces the
    node.
    """
    (result,) = node.output
    if result in body.output and value in (*body.input, *body.output):
        node.CopyFrom(onnx.helper.make_node("Identity", [value], [result]))
        return
    body.node.remove(node)
    old, new = (value, result) if result in body.output else (result, value)
    for each in [each for scope in scopes(body) for each in scope.node]:
        for names in (each.input, each.output):
            names[:] = [new if name == old else name for name in names]


@functools.cache
def lowest_opset(op: OpInfo) -> int:
    """The first opset that has all operators of the definition."""
    function = _function(op, op.onnx.domain, op.onnx.op_type)
    nodes = [node for scope in scopes(function) for node in scope.node]
    opsets = range(LOWEST_OPSET, op.definition_opset + 1)
    return next(v for v in opsets if all(_has(v, node) for node in nodes))


def _has(opset: int, node: onnx.NodeProto) -> bool:
    """Whether an opset has the operator of a node, with its inputs and attributes."""
    if not onnx.defs.has(node.op_type, opset, ""):
        return False
    schema = onnx.defs.get_schema(node.op_type, opset, "")
    return len(node.input) <= schema.max_input and all(
        each.name in schema.attributes for each in node.attribute
    )


@functools.cache
def defaults_of(op_type: str) -> dict[str, Any]:
    """The defaults of the attributes of one of ONNX's operators."""
    attributes = onnx.defs.get_schema(op_type, OPSET, "").attributes.values()
    given = {each.name: each.default_value for each in attributes if each.default_value.name}
    return {name: onnx.helper.get_attribute_value(value) for name, value in given.items()}
