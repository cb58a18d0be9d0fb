"""Rewrites the nodes of a model: calls of our ops replace standard operators."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any, TypeAlias

import onnx
import onnx_ir as ir

from .._onnx.graphs import NewNames, names_of, scopes
from .._table import OpInfo
from .constant_inputs import replaced_by_attributes
from .ir_models import from_proto, to_proto
from .match import AttributeMismatch, Match, Mismatch
from .models import attach_definitions
from .patterns import Pattern, is_plain_matmul, patterns
from .report import NotReplaced, Replaced, Report
from .search import Found, find, roots

_Mismatches: TypeAlias = dict[tuple[str, ir.Node], tuple[NotReplaced, list[ir.Node]]]


def rewrite(
    prepared: onnx.ModelProto, folder: Path | None, allowed: Collection[str]
) -> tuple[onnx.ModelProto, Report]:
    """A copy of a prepared model in which some ops replace standard nodes.

    Args:
        prepared: by `prepare`. External data may be left unloaded.
        folder: of the external data.
        allowed: the short names of the ops.
    """
    model = from_proto(prepared, folder)
    for function in prepared.functions:
        types = {each.name: each for each in function.value_info}
        key = function.domain, function.name, function.overload
        for value in model.functions[key].inputs:
            if value.name in types:
                ir.serde.deserialize_value_info_proto(types[value.name], value)
    rewriting = _Rewriting(model, NewNames(names_of(prepared)))
    matches = [
        (pattern, node, found)
        for pattern in patterns()
        if pattern.op.short_name in allowed
        for node in rewriting.nodes_of(roots(pattern.expression))
        for found in find(pattern.expression, node.outputs[0])
    ]
    # Matches of more nodes come first, or a match of a part of their nodes would replace it.
    for match in sorted(matches, key=lambda each: len(each[2].nodes), reverse=True):
        rewriting.replace(*match)
    remove_constants(rewriting.constants, annotating(prepared))
    return attach_definitions(to_proto(model)), rewriting.report()


def annotating(model: onnx.ModelProto) -> set[str]:
    """The tensors that quantization annotations name, such as scales."""
    return {
        entry.value
        for scope in scopes(model)
        if isinstance(scope, onnx.GraphProto)
        for each in scope.quantization_annotation
        for entry in each.quant_parameter_tensor_names
    }


class _Rewriting:
    """Replaces nodes in one model, and collects the report."""

    def __init__(self, model: ir.Model, new_name: NewNames) -> None:
        wholes: list[Any] = [model.graph, *model.functions.values()]
        #: The imports of the graph or function that a node is in, for all nodes in their order.
        self.opsets: dict[ir.Node, dict[str, int]] = {
            node: whole.opset_imports
            for whole in wholes
            for node in ir.traversal.RecursiveGraphIterator(whole)
            if node.outputs
        }
        self._order = {node: i for i, node in enumerate(self.opsets)}
        self._by_type: dict[str, list[ir.Node]] = {}
        for node in self.opsets:
            self._by_type.setdefault(node.op_type, []).append(node)
        self._new_name = new_name
        self.constants: list[ir.Value] = []
        self._replaced: list[Replaced] = []
        self._gone: set[ir.Node] = set()
        self._done: set[tuple[str, ir.Node]] = set()  # the op and the last node
        # By op and last node. The first of several reasons is kept: later reasons are of swapped
        # operands, and tell less.
        self._mismatches: _Mismatches = {}
        self._attribute_mismatches: _Mismatches = {}

    def nodes_of(self, op_types: Collection[str] | None) -> Iterable[ir.Node]:
        """The nodes of some types, in their order; None: all."""
        if op_types is None:
            return self.opsets
        found = (node for each in op_types for node in self._by_type.get(each, ()))
        return sorted(found, key=self._order.__getitem__)

    def report(self) -> Report:
        # Nodes are not reported if another op replaced them later, or the same op a part of them.
        found = self._attribute_mismatches | self._mismatches
        left = [
            each
            for key, (each, nodes) in found.items()
            if key not in self._done and not self._gone.issuperset(nodes)
        ]
        return Report(self._replaced, left, [])

    def replace(self, pattern: Pattern, root: ir.Node, found: Found) -> None:
        """Makes the last of the found nodes a node of the op, and removes the others.

        Nothing changes if one of them was replaced before, or if they do not mean the op.
        """
        op = pattern.op
        nodes = sorted(found.nodes, key=self._order.__getitem__)
        if is_plain_matmul(node.op_type for node in nodes) or not self._gone.isdisjoint(nodes):
            return
        name = root.name or root.outputs[0].name or ""
        operators = tuple(node.op_type for node in nodes)
        opset = self.opsets[root].get("", op.definition_opset)
        try:
            match = Match(pattern, found, opset)
            match.check_uses(nodes, root)
            attributes = match.attributes()
            constants = match.check_inputs()
        except Mismatch as reason:
            is_attribute = isinstance(reason, AttributeMismatch)
            mismatches = self._attribute_mismatches if is_attribute else self._mismatches
            reported = NotReplaced(op.short_name, name, operators, str(reason))
            mismatches.setdefault((op.short_name, root), (reported, nodes))
            return
        self._replaced.append(Replaced(op.short_name, name, operators))
        self._done.add((op.short_name, root))
        self._gone.update(nodes)
        self.constants += [
            each for node in nodes for each in node.inputs if each and each.producer() not in nodes
        ]
        values, tape = dict(match.values), ir.tape.Tape()
        implied, attributes = replaced_by_attributes(op, values, attributes, opset)
        self.constants += [values.pop(each) for each in implied]
        # The data may be large and external, so runtimes fold the Transpose when they load it.
        for each in match.transposed:
            *stay, rows, columns = range(len(values[each].shape))
            perm = {"perm": [*stay, columns, rows]}
            values[each] = tape.op("Transpose", [values[each]], perm)
        for each, array in constants.items():
            values[each] = tape.op("Constant", [], {"value": array})
        for each, (other, last) in match.expanded.items():
            ones = tape.op("Constant", [], {"value_ints": [1] * last})
            sizes = tape.op("Shape", [values[other]], {"end": -last})
            shape = tape.op("Concat", [sizes, ones], {"axis": 0})
            values[each] = tape.op("Expand", [values[each], shape])
        for node in tape.nodes:
            node.outputs[0].name = self._new_name(f"{root.outputs[0].name}_{node.op_type}")
        root.prepend(tape.nodes)
        self.opsets[root][op.onnx.domain] = op.onnx.version
        inputs = [values.get(each.name) for each in op.inputs]
        replace_by_call(nodes, root, op, inputs, attributes, tape.nodes)


def remove_constants(found: list[ir.Value], kept: Collection[str]) -> None:
    """Removes constants without a use, also those that nodes compute from constants: they became
    attributes, or reshaped copies replace them.

    Args:
        found: values that nodes no longer need; the list is emptied.
        kept: names of constants that are used by something other than a node.
    """
    while found:
        value = found.pop()
        node, graph = value.producer(), value.graph
        if graph is None or value.uses() or value.is_graph_output() or value.name in kept:
            continue
        if node is None:
            assert value.name
            del graph.initializers[value.name]
        else:
            # An operand whose elements are not read need not be a constant.
            unread = {"CastLike": node.inputs[1:], "Shape": node.inputs}.get(node.op_type, ())
            found += [each for each in node.inputs if each is not None and each not in unread]
            graph.remove(node, safe=True)


def replace_by_call(
    nodes: Collection[ir.Node],
    root: ir.Node,
    op: OpInfo,
    inputs: list[Any],
    attributes: dict[str, Any],
    added: Collection[ir.Node] = (),
) -> None:
    """Makes one of some nodes call an op, and removes the others.

    The node gets the doc_strings and the metadata_props of all of them. Its first output stays the
    same value.

    Args:
        nodes: in the order of their doc_strings.
        root: one of them.
        op: that they mean.
        inputs: of the call; None is an absent one.
        attributes: of the call.
        added: further nodes for the call, which get the metadata_props too.
    """
    root.domain, root.op_type, root.version = op.onnx.domain, op.onnx.op_type, None
    root.attributes.clear()
    for each in ir.convenience.convert_attributes(attributes):
        root.attributes.add(each)
    while inputs[-1] is None:
        inputs.pop()
    root.resize_inputs(len(inputs))
    for i, value in enumerate(inputs):
        root.replace_input_with(i, value)
    root.resize_outputs(1)
    notes = dict.fromkeys(node.doc_string for node in nodes if node.doc_string)
    root.doc_string = "\n".join(notes) or None
    for new in (root, *added):
        for node in (root, *nodes):
            new.metadata_props.update(node.metadata_props | new.metadata_props)
    assert root.graph is not None
    root.graph.remove([node for node in nodes if node is not root], safe=True)
