"""Models with our ops: attaches definitions, or replaces the ops by standard operators."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import NamedTuple

import onnx
import onnx.checker
import onnx.helper
import onnx.inliner
import onnx.numpy_helper
import onnx.parser

from .._onnx.definitions import IR_VERSION, function, lowest_opset, specialised
from .._onnx.graphs import scopes, standard_opset
from .._table import OpInfo, op_named
from .meaning import Meanings, constant_of
from .nodes import calls, common_labels, complete_nodes, is_ours, op_of
from .opsets import converted, normalise
from .simplification import simplify


def attach_definitions(
    model: onnx.ModelProto, *, replace_definitions: bool = False
) -> onnx.ModelProto:
    """A copy of a model with the definitions of our ops, so that it runs without this library.

    Each op that the model calls, by its name or its alias, gets one definition, before all other
    functions. Nodes get all default attributes and the values of absent inputs: not every runtime
    supports default attributes in functions, and functions have no default inputs. If all nodes of
    an op have the same value of an enumerated attribute, the definition has no branches for other
    values. A model of an opset without the operators of a definition, most of which need CastLike
    of opset 15, is converted by onnx.version_converter. In the copy, ONNX's domain is "", and
    value_info has no initializers.

    Args:
        model: external data may be left unloaded.
        replace_definitions: whether an attached definition may compute something else than the
            table's, which replaces it. A definition that a tool has only written in another form
            (other names, order of nodes, constants) is replaced in any case.

    Raises:
        ValueError: for an opset that cannot be converted, an unknown op or another version of a
            module's domain, a node that calls its op incorrectly, and an attached definition that
            computes something else than the table's.
    """
    result = onnx.ModelProto()
    result.CopyFrom(model)
    normalise(result)
    found = (op_of(node) for scope in scopes(result) for node in scope.node)
    needed = max((lowest_opset(op) for op in set(filter(None, found))), default=0)
    if needed > (standard_opset(result) or needed):
        result = converted(result, needed)
    called = complete_nodes(result)
    if not called:
        return result
    opset = _opset_for(result, called.values())
    result.ir_version = max(result.ir_version, IR_VERSION)
    for attached in list(result.functions):
        if not is_ours(attached):
            continue
        if not replace_definitions and (text := difference(attached)):
            raise ValueError(
                f"the definition of {attached.domain}::{attached.name} in the model differs from "
                f"this library's: {text}; replace_definitions (--replace-definitions) takes the "
                "library's"
            )
        result.functions.remove(attached)
    for index, (name, op) in enumerate(called.items()):
        definition = specialised(function(op, *name), common_labels(calls(result, *name)))
        # Defaults would need IR version 9, and the nodes have all attributes.
        del definition.attribute_proto[:]
        definition.attribute[:] = [each.name for each in op.node_attributes(*name)]
        # The model's opset: some runtimes support only one opset in a model.
        definition.opset_import[0].version = opset
        # Before the functions that call it: onnx.reference reads them in order.
        result.functions.insert(index, definition)
    return result


def _opset_for(model: onnx.ModelProto, called: Collection[OpInfo]) -> int:
    opset = standard_opset(model)
    if opset is None:  # the model has custom nodes only
        opset = max(op.definition_opset for op in called)
        model.opset_import.append(onnx.helper.make_opsetid("", opset))
    return opset


def agrees(attached: onnx.FunctionProto, given: Mapping[str, int]) -> bool:
    """Whether an attached definition means the table's, whole or specialised for `given`."""
    return difference(attached, [{}, given]) is None


def difference(
    attached: onnx.FunctionProto, allowed: Iterable[Mapping[str, int]] | None = None
) -> str | None:
    """What an attached definition computes otherwise than the table's, as text; None: nothing.

    Args:
        attached: the definition of an op, in any form that a tool may have given it.
        allowed: the values of enumerated attributes that it may be specialised for; by default all.
    """
    op = op_of(attached)
    assert op is not None
    known, all_variants = _variants(op, attached.domain, attached.name)
    variants = [all_variants[frozenset(each.items())] for each in allowed or choices(op)]
    for kind in ("input", "output"):
        count, wanted = (len(getattr(each, kind)) for each in (attached, variants[0].body))
        if count != wanted:
            return f"it has {count} {kind}s, not {wanted}"
    meanings = Meanings(known)
    values = meanings.add(attached)
    texts = [
        meanings.difference(values, attached.output, [each.values[o] for o in each.body.output])
        for each in sorted(
            variants, key=lambda each: -len({*each.values.values()} & {*values.values()})
        )
    ]
    return None if None in texts else texts[0]  # of the most similar one


class _Variant(NamedTuple):
    body: onnx.FunctionProto
    values: dict[str, int]  # the numbers of the values in `Meanings`, by name


@functools.cache
def _variants(
    op: OpInfo, domain: str, op_type: str
) -> tuple[Meanings, dict[frozenset[tuple[str, int]], _Variant]]:
    """The definition of an op, whole and specialised for all choices."""
    meanings, whole = Meanings(), function(op, domain, op_type)
    bodies = {frozenset(each.items()): specialised(whole, each) for each in choices(op)}
    return meanings, {
        given: _Variant(body, meanings.add(body, fold=True)) for given, body in bodies.items()
    }


def choices(op: OpInfo) -> Iterator[dict[str, int]]:
    """Each combination of values for all, some or none of the enumerated attributes."""
    names = [each.name for each in op.attributes if each.labels]
    values = [(None, *each.onnx_labels) for each in op.attributes if each.labels]
    for chosen in itertools.product(*values):
        yield {n: value for n, value in zip(names, chosen, strict=True) if value is not None}


def split_by_attributes(model: onnx.ModelProto) -> None:
    """Gives each used combination of enumerated values and absent numbers its own definition, in
    place.

    Args:
        model: a result of `attach_definitions`. Its nodes get the types of the new definitions.
    """
    for definition in [each for each in model.functions if is_ours(each)]:
        bodies = {}
        for node in calls(model, definition.domain, definition.name):
            absent = {each.name: each.f for each in node.attribute if math.isnan(each.f)}
            given = common_labels([node]) | absent
            node.op_type = f"{definition.name} {given}"  # no other function has this name
            bodies[node.op_type] = specialised(definition, given)
            bodies[node.op_type].name = node.op_type
        model.functions.extend(bodies.values())
        model.functions.remove(definition)


def lower(model: onnx.ModelProto, *, replace_definitions: bool = False) -> onnx.ModelProto:
    """A copy of a model in which standard operators replace our ops.

    The definition of an op replaces each node that calls it, by its name or its alias, in the
    graph, in subgraphs and in functions. For an enumerated attribute, or one that is absent, only
    the branch for the node's value is inserted, unless the value comes from the surrounding
    function. A Reshape of the definition that changes no shape, as the shapes of the model show, is
    left out: a linear layer of a matrix is one Gemm.

    Args:
        model: as `attach_definitions` takes it.
        replace_definitions: as there.

    Raises:
        ValueError: as `attach_definitions` does.
    """
    result = attach_definitions(model, replace_definitions=replace_definitions)
    others = [(each.domain, each.name) for each in result.functions if not is_ours(each)]
    domains = {each.domain for each in result.functions if is_ours(each)}
    wholes = [result.graph, *(each for each in result.functions if not is_ours(each))]
    nodes = (node for whole in wholes for scope in scopes(whole) for node in scope.node)
    kept = {name for node in nodes if not is_ours(node) for name in node.output}
    split_by_attributes(result)
    result = onnx.inliner.inline_selected_functions(result, others, exclude=True)
    simplify(result, kept)
    used = {node.domain for scope in scopes(result) for node in scope.node}
    for holder in (result, *result.functions):
        for each in list(holder.opset_import):
            if each.domain in domains - used:
                holder.opset_import.remove(each)
    if domains:
        _write_constants_as_tensors(result)
    return result


def _write_constants_as_tensors(model: onnx.ModelProto) -> None:
    """Gives each Constant its `value`, in place: ONNX Runtime's symbolic_shape_infer reads no
    other attribute."""
    for node in (node for scope in scopes(model) for node in scope.node):
        if (node.domain, node.op_type) != ("", "Constant"):
            continue
        (attribute,) = node.attribute
        if attribute.name != "value" and (array := constant_of(node)) is not None:
            value = onnx.helper.make_attribute("value", onnx.numpy_helper.from_array(array))
            attribute.CopyFrom(value)


def demo_model() -> onnx.ModelProto:
    """The tutorials' one-node model: `custom_domain::CustomRelu` of a float32 `[N, 4]`.

    The definition is attached, so that the model also runs without the library. The IR version is
    the lowest that has model-local functions.
    """
    relu = op_named("relu")
    assert relu.onnx.alias
    domain, op_type = relu.onnx.alias
    opsets = f'"" : {relu.definition_opset}, "{domain}" : {relu.onnx.version}'
    model = onnx.parser.parse_model(
        f'<ir_version: {IR_VERSION}, opset_import: [{opsets}], producer_name: "cudarelu"> '
        f"myrelu (float[N, 4] x) => (float[N, 4] y) {{ y = {domain}.{op_type}(x) }}"
    )
    model.graph.node[0].name = "relu"
    model.functions.append(function(relu, domain, op_type))
    onnx.checker.check_model(model, full_check=True)
    return model
