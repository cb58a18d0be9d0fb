"""The nodes of ONNX models that call our ops."""

from __future__ import annotations

import collections
from collections.abc import Iterable

import onnx
import onnx.helper

from .._onnx.absent_inputs import add_default_inputs
from .._onnx.graphs import NewNames, check_cycles, names_of, scopes
from .._table import Attribute, OpInfo, all_ops, number_text, op_in_onnx

_ATTRIBUTE_TYPES = {
    "int": (onnx.AttributeProto.INT, "an integer"),
    "float": (onnx.AttributeProto.FLOAT, "a floating-point number"),
}


def _domains() -> dict[str, int]:
    """The domains of all modules, without those of aliases, which others may use; the versions."""
    return {op.onnx.domain: op.onnx.version for op in all_ops()}


def op_of(called: onnx.NodeProto | onnx.FunctionProto) -> OpInfo | None:
    """The op that a node calls or a function defines; None if no loaded module has it."""
    name = called.op_type if isinstance(called, onnx.NodeProto) else called.name
    return op_in_onnx(called.domain, name)


def is_ours(called: onnx.NodeProto | onnx.FunctionProto) -> bool:
    """Whether a node calls an op of a loaded module, or a function defines one."""
    return op_of(called) is not None


def calls(model: onnx.ModelProto, domain: str, op_type: str) -> list[onnx.NodeProto]:
    """All nodes of a type in a model, including subgraphs and functions."""
    name = domain, op_type
    return [
        node
        for scope in scopes(model)
        for node in scope.node
        if (node.domain, node.op_type) == name
    ]


def common_labels(nodes: Iterable[onnx.NodeProto]) -> dict[str, int]:
    """The enumerated attributes with the same value in all these nodes of our ops, by name."""
    found = collections.defaultdict(set)
    for node in nodes:
        op = op_of(node)
        assert op is not None
        enumerated = {each.name for each in op.attributes if each.labels}
        for each in (each for each in node.attribute if each.name in enumerated):
            found[each.name].add(None if each.ref_attr_name else each.i)
    return {
        name: value
        for name, values in found.items()
        for value in values
        if len(values) == 1 and value is not None
    }


def complete_nodes(model: onnx.ModelProto) -> dict[tuple[str, str], OpInfo]:
    """Checks the nodes that call our ops, and adds the values of absent inputs and attributes.

    Returns:
        The ops called, by domain and type of their nodes.

    Raises:
        ValueError: for an unknown op or another version of a module's domain, a node that calls its
            op incorrectly, and values or functions that depend on themselves.
    """
    check_cycles(model)
    called = {}
    domains = _domains()
    new_name = NewNames(names_of(model))
    for scope in scopes(model):
        added: dict[int, list[onnx.NodeProto]] = {}  # before the node of an index
        for i, node in enumerate(scope.node):
            if op := op_of(node):
                called[node.domain, node.op_type] = op
                added[i] = _complete(node, op, new_name)
            elif node.domain in domains:
                raise ValueError(f"{_title(node)}: there is no such op")
        if any(added.values()):  # at once: each insertion would move the nodes after it
            nodes = [
                each for i, node in enumerate(scope.node) for each in (*added.get(i, ()), node)
            ]
            old = onnx.FunctionProto(node=nodes)
            scope.ClearField("node")
            scope.node.MergeFrom(old.node)
    _check_versions(model, called)
    return called


def _complete(node: onnx.NodeProto, op: OpInfo, new_name: NewNames) -> list[onnx.NodeProto]:
    """Checks a node, and adds the values of absent inputs and attributes.

    Returns:
        The nodes that compute the values of inputs.
    """
    taken = op.node_inputs(node.domain, node.op_type)
    for kind, names, declared in (
        ("inputs", node.input, taken),
        ("outputs", node.output, op.outputs),
    ):
        if len(names) > len(declared):
            raise ValueError(f"{_title(node)}: {len(names)} {kind}, but it has {len(declared)}")
    given = dict(zip((each.name for each in taken), node.input, strict=False))
    for each in taken:
        is_needed = isinstance(each, Attribute) or not each.optional
        if is_needed and not given.get(each.name):
            raise ValueError(f"{_title(node)}: input {each.name} is missing")
    added = add_default_inputs(op, given, new_name)
    node.input[:] = [given[each.name] for each in taken]

    attributes = {each.name: each for each in node.attribute}
    for attribute in op.node_attributes(node.domain, node.op_type):
        if attribute.name in attributes:
            _check(node, attribute, attributes.pop(attribute.name))
        elif attribute.required:
            raise ValueError(f"{_title(node)}: attribute {attribute.name} is missing")
        else:
            default = attribute.onnx_value(attribute.default)
            node.attribute.append(onnx.helper.make_attribute(attribute.name, default))
    for name in attributes:
        hint = ", which is an input" if name in given else ""
        raise ValueError(f"{_title(node)}: there is no attribute {name}{hint}")
    return added


def _check(node: onnx.NodeProto, declared: Attribute, given: onnx.AttributeProto) -> None:
    expected, text = _ATTRIBUTE_TYPES[declared.onnx_type]
    labels = " or ".join(
        f"{label} ({i})" for i, label in zip(declared.onnx_labels, declared.labels, strict=True)
    )
    if given.type != expected:
        raise ValueError(f"{_title(node)}: {given.name} must be {labels or text}")
    if given.ref_attr_name:  # the value comes from the surrounding function
        return
    value = onnx.helper.get_attribute_value(given)
    if labels and value not in declared.onnx_labels:
        raise ValueError(f"{_title(node)}: {given.name} must be {labels}, not {value}")
    if wanted := declared.outside(value):
        found = number_text(value)
        raise ValueError(f"{_title(node)}: {given.name} must be in {wanted}, not {found}")


def _check_versions(model: onnx.ModelProto, called: dict[tuple[str, str], OpInfo]) -> None:
    domains = _domains()
    for domain in domains.keys() & {domain for domain, _ in called}:
        imported = [each for f in model.functions for each in f.opset_import]
        versions = {
            each.version for each in (*model.opset_import, *imported) if each.domain == domain
        }
        if versions != {domains[domain]}:
            found = " and ".join(map(str, sorted(versions))) or None
            raise ValueError(
                f"the model has version {found} of the domain {domain}, "
                f"but this library has {domains[domain]}"
            )


def _title(node: onnx.NodeProto) -> str:
    name = f"{node.domain}::{node.op_type}"
    return f"node {node.name!r}, {name}" if node.name else f"a node, {name}"
