"""The ops' definitions as patterns of onnxscript's rewriter.

A definition writes an attribute as a Constant that a CastLike turns to the dtype; models have a
constant there. So that is what such a value matches: any constant of one element.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import onnx.defs
import onnx.helper
import onnx.numpy_helper
import onnx_ir as ir
from onnxscript.rewriter import pattern

from . import _C, OpInfo, ops
from ._onnx_definitions import function


def is_candidate(op: OpInfo) -> bool:
    """Whether models have subgraphs for which the op can stand.

    Not those of a gradient, which are of training, nor those of several outputs or of optional
    inputs, whose definitions are long programs.
    """
    return (
        len(op.outputs) == 1
        and not any(each.optional or each.dtype != "T" for each in op.inputs)
        and not any(each.name.startswith("grad_") for each in op.inputs)
    )


def patterns() -> list[tuple[OpInfo, onnx.FunctionProto]]:
    """What each op can stand for, as functions of its inputs: larger ones first."""
    found = [(op, body) for op in ops() if is_candidate(op) for body in bodies(op)]
    return sorted(found, key=lambda each: len(operators(each[1])), reverse=True)


@functools.cache
def bodies(op: OpInfo) -> tuple[onnx.FunctionProto, ...]:
    """The definition, and what means the same: without its factors of one, and in one operator."""
    definition = function(op)
    return (definition, *_without_factors_of_one(op, definition), *_single_operators(definition))


def scalars(body: onnx.FunctionProto) -> dict[str, onnx.AttributeProto]:
    """The values of a body that no input decides, with the Constant's attribute."""
    found: dict[str, onnx.AttributeProto] = {}
    for node in body.node:
        if node.op_type == "Constant":
            found[node.output[0]] = node.attribute[0]
        elif node.op_type == "CastLike" and node.input[0] in found:
            found[node.output[0]] = found[node.input[0]]
    return found


def operators(body: onnx.FunctionProto) -> list[onnx.NodeProto]:
    """The nodes of a body that are nodes of a model too."""
    constant = scalars(body)
    return [node for node in body.node if node.output[0] not in constant]


def _without_factors_of_one(
    op: OpInfo, definition: onnx.FunctionProto
) -> Iterator[onnx.FunctionProto]:
    """With a default of 1, such as a scale's, models leave the Mul out."""
    constant = scalars(definition)
    for attribute in op.attributes:
        if attribute.default != 1:
            continue
        factors = {name for name, a in constant.items() if a.ref_attr_name == attribute.name}
        body = onnx.FunctionProto()
        body.CopyFrom(definition)
        for node in definition.node:
            left = [name for name in node.input if name not in factors]
            if node.op_type == "Mul" and len(left) == 1:
                body.node.remove(node)
                is_last = node.output[0] in body.output
                old, new = (left[0], node.output[0]) if is_last else (node.output[0], left[0])
                _rename(body, old, new)
        if 0 < len(operators(body)) < len(operators(definition)):
            yield body


def _rename(body: onnx.FunctionProto, old: str, new: str) -> None:
    for node in body.node:
        for names in (node.input, node.output):
            names[:] = [new if name == old else name for name in names]


def _single_operators(definition: onnx.FunctionProto) -> Iterator[onnx.FunctionProto]:
    """Each operator of ONNX whose own definition, by ONNX, comes to the same as this one."""
    meaning, attributes = _meaning(definition)
    if len(operators(definition)) == 1 and not attributes:
        return  # it is such an operator
    for name in sorted({each.name for each in onnx.defs.get_all_schemas() if not each.domain}):
        if not onnx.defs.has(name, _C.DEFINITION_OPSET, ""):
            continue
        schema = onnx.defs.get_schema(name, _C.DEFINITION_OPSET, "")
        if not schema.has_function:
            continue
        theirs, names = _meaning(schema.function_body)
        if theirs == meaning:
            body = onnx.FunctionProto()
            body.CopyFrom(definition)
            del body.node[:]
            node = onnx.helper.make_node(schema.name, definition.input, definition.output)
            for theirs_name, ours in zip(names, attributes, strict=True):
                kind = schema.attributes[theirs_name].type.value
                node.attribute.add(name=theirs_name, ref_attr_name=ours, type=kind)
            body.node.append(node)
            yield body


def _meaning(body: onnx.FunctionProto) -> tuple[Any, list[str]]:
    """An expression that is equal for bodies of one meaning, and its attributes in order.

    Operators that ONNX itself defines are replaced by what they mean; inputs and attributes are
    numbered.
    """
    attributes: list[str] = []

    def attribute(given: onnx.AttributeProto) -> Any:
        if given.ref_attr_name:
            if given.ref_attr_name not in attributes:
                attributes.append(given.ref_attr_name)
            return given.name, attributes.index(given.ref_attr_name)
        value = onnx.helper.get_attribute_value(given)
        if isinstance(value, onnx.TensorProto):
            value = onnx.numpy_helper.to_array(value)
        # A Constant has one of many attributes, by the kind of its value.
        return (given.name if not given.name.startswith("value") else ""), repr(np.asarray(value))

    def outputs(body: onnx.FunctionProto, known: dict[str, Any]) -> list[Any]:
        for node in body.node:
            inputs = [known.get(name) for name in node.input]
            inner = onnx.defs.get_schema(node.op_type, _C.DEFINITION_OPSET, node.domain)
            if inner.has_function and not node.attribute:
                inner_known = dict(zip(inner.function_body.input, inputs, strict=False))
                results = outputs(inner.function_body, inner_known)
            else:
                given = tuple(sorted(map(attribute, node.attribute), key=repr))
                results = [(node.op_type, given, tuple(inputs), i) for i in range(len(node.output))]
            known |= zip(node.output, results, strict=False)
        return [known[name] for name in body.output]

    return outputs(body, dict(zip(body.input, range(len(body.input)), strict=True))), attributes


def constant(value: ir.Value) -> np.ndarray | None:
    """The elements of a value that is the same in every run, also of one that is cast.

    Raises:
        OSError: where they are in a file that cannot be read.
    """
    if value.is_graph_input():  # an initializer may be a mere default
        return None
    node = value.producer()
    if node is not None and node.op_type in ("Cast", "CastLike") and value.dtype is not None:
        array = constant(node.inputs[0])
        return None if array is None else array.astype(value.dtype.numpy())
    tensor = ir.convenience.get_const_tensor(value)
    return None if tensor is None else tensor.numpy()


class _SharedMatcher(pattern.SimplePatternMatcher):
    """Finds nodes that others need too, which the rewriter passes over: a report says so."""

    def match(self, *args: Any, **options: Any) -> pattern.MatchResult:
        return super().match(*args, **options | {"remove_nodes": False})


def rule(body: onnx.FunctionProto, replace: Any) -> pattern.RewriteRule:
    """A rule of the rewriter that finds a body.

    Args:
        body: of `bodies`.
        replace: gives the new value, or None where the match is none, from the rewriter's builder
            of nodes and the model's values, by their names in the body.
    """

    def build(op: pattern.OpsetPatternBuilder) -> Any:
        known = {name: pattern.Var(name) for name in (*body.input, *scalars(body))}
        for node in operators(body):
            outputs = getattr(op, node.op_type)(
                *[known[name] for name in node.input], _outputs=list(node.output)
            )
            known |= zip(node.output, [outputs] if len(node.output) == 1 else outputs, strict=True)
        return [known[name] for name in body.output]

    def replace_constants(builder: Any, /, **values: Any) -> ir.Value | None:
        wanted = {name: each for name, each in scalars(body).items() if name in values}
        if not all(_is_as_wanted(each, values[name]) for name, each in wanted.items()):
            return None
        return replace(builder, **values)

    return pattern.RewriteRule(build, replace_constants, matcher=_SharedMatcher)


def _is_as_wanted(wanted: onnx.AttributeProto, value: ir.Value) -> bool:
    """Whether a value is a constant: of one element for an attribute, or else that literal."""
    literal = None
    if not wanted.ref_attr_name:
        literal = onnx.helper.get_attribute_value(wanted)
        is_tensor = isinstance(literal, onnx.TensorProto)
        literal = onnx.numpy_helper.to_array(literal) if is_tensor else np.asarray(literal)
    if value.shape is None or not value.shape.is_static():
        return False
    if literal is None:
        if any(size != 1 for size in value.shape):  # before any is read
            return False
    elif value.shape != literal.shape:
        return False
    try:
        array = constant(value)
    except OSError:
        return literal is None  # that it cannot be read is to be reported
    return array is not None and (literal is None or np.array_equal(array, literal))
