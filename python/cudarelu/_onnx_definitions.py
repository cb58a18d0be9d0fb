"""The ops' definitions as functions of ONNX models, and the nodes that call them."""

from __future__ import annotations

import collections
import functools
import graphlib
import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import onnx
import onnx.defs
import onnx.helper
import onnx.numpy_helper
import onnx.parser

from . import _C, Attribute, OpInfo, Parameter, ops

# Model-local functions need IR version 8, which every ONNX Runtime since 1.10 reads.
IR_VERSION = 8
LOWEST_OPSET = 13  # before it, Softmax and the reductions meant something else

_ATTRIBUTE_TYPES = {
    "int": (onnx.AttributeProto.INT, "an integer"),
    "float": (onnx.AttributeProto.FLOAT, "a floating-point number"),
}


@functools.cache
def _function(op: OpInfo, domain: str, op_type: str, body: str | None = None) -> onnx.FunctionProto:
    attributes = ", ".join(
        a.name if a.required else f"{a.name}: {a.onnx_type} = {a.onnx_value(a.default)}"
        for a in op.attributes
    )
    names = ["(" + ", ".join(p.name for p in group) + ")" for group in (op.inputs, op.outputs)]
    body = body or op.definition
    return onnx.parser.parse_function(
        f'<domain: "{domain}", opset_import: ["" : {_C.DEFINITION_OPSET}]> {op_type} '
        f"{f'<{attributes}>' if attributes else ''} {names[0]} => {names[1]} {{ {body} }}"
    )


def function(
    op: OpInfo, domain: str | None = None, op_type: str | None = None
) -> onnx.FunctionProto:
    """The definition of an op as an ONNX function: with it a model runs without this library.

    Every optional input is an input of the function: a node that leaves one out that has a stand-in
    must be given that first, as `attach_definitions` does.

    Args:
        op: an entry of `cudarelu.ops()`.
        domain: of the function; the library's own by default.
        op_type: the function's name; the op's name in CamelCase by default.

    Returns:
        A new `onnx.FunctionProto` of opset 18.
    """
    result = onnx.FunctionProto()
    result.CopyFrom(_function(op, domain or op.onnx.domain, op_type or op.onnx.op_type))
    return result


def written_out(op: OpInfo) -> onnx.FunctionProto | None:
    """The definition in operators that models have in its place; None: there is no such form."""
    if not op.written_out:
        return None
    result = onnx.FunctionProto()
    result.CopyFrom(_function(op, op.onnx.domain, op.onnx.op_type, op.written_out))
    return result


def specialised(definition: onnx.FunctionProto, given: Mapping[str, int]) -> onnx.FunctionProto:
    """A copy of a definition for known values of attributes, without the branches not taken.

    A Where goes whose condition these values decide, and so does what is needed for nothing else.
    The two values that a Where of a definition chooses from have one shape.
    """
    result = onnx.FunctionProto()
    result.CopyFrom(definition)
    for node in definition.node:
        if node.op_type != "Where" or (condition := _decided(definition, node, given)) is None:
            continue
        place = next(each for each in result.node if each.output == node.output)
        if condition.all():
            bypass(result, place, place.input[1])
        elif not condition.any():
            bypass(result, place, place.input[2])
    remove_unused(result)
    return result


def _decided(
    definition: onnx.FunctionProto, where: onnx.NodeProto, given: Mapping[str, int]
) -> np.ndarray | None:
    """The condition of a Where; None: other values than those given decide it too."""
    from onnx.reference import ReferenceEvaluator  # takes long to import

    condition = onnx.FunctionProto()
    condition.CopyFrom(definition)
    condition.output[:] = where.input[:1]
    remove_unused(condition)
    needed = {*condition.output, *(name for node in condition.node for name in node.input)}
    attributes = {a.ref_attr_name for node in condition.node for a in node.attribute} - {""}
    if not needed.isdisjoint(condition.input) or not attributes <= given.keys():
        return None
    del condition.input[:]
    return np.asarray(*ReferenceEvaluator(condition).run(None, {}, attributes=dict(given)))


def remove_unused(body: onnx.FunctionProto) -> None:
    """Removes the nodes, in place, of which no output is needed."""
    needed = set(body.output)
    for node in reversed(list(body.node)):
        if needed.isdisjoint(node.output):
            body.node.remove(node)
        else:
            needed.update(node.input)


def bypass(body: onnx.FunctionProto, node: onnx.NodeProto, value: str) -> None:
    """Removes a node, in place; a value that is there stands for its result.

    An Identity takes its place where both are inputs or outputs of the body: they keep their names.
    """
    (result,) = node.output
    if result in body.output and value in (*body.input, *body.output):
        node.CopyFrom(onnx.helper.make_node("Identity", [value], [result]))
        return
    body.node.remove(node)
    _rename(body, *((value, result) if result in body.output else (result, value)))


def _rename(body: onnx.FunctionProto, old: str, new: str) -> None:
    """Gives a value another name, in place."""
    for node in body.node:
        for names in (node.input, node.output):
            names[:] = [new if name == old else name for name in names]


_OPS_BY_NAME = {
    name: op
    for op in ops()
    for name in ((op.onnx.domain, op.onnx.op_type), op.onnx.alias)
    if name is not None
}
_DOMAINS = {op.onnx.domain for op in ops()}  # without those of aliases, which others may use


def is_ours(called: onnx.NodeProto | onnx.FunctionProto) -> bool:
    """Whether this node calls an op of the table, or this function defines one."""
    name = called.op_type if isinstance(called, onnx.NodeProto) else called.name
    return (called.domain, name) in _OPS_BY_NAME


def scopes(
    whole: onnx.ModelProto | onnx.GraphProto | onnx.FunctionProto,
) -> Iterator[onnx.GraphProto | onnx.FunctionProto]:
    """A graph or a function and its subgraphs; for a model, those of its graph and functions."""
    found = [whole.graph, *whole.functions] if isinstance(whole, onnx.ModelProto) else [whole]
    while found:
        scope = found.pop()
        yield scope
        found += [graph for node in scope.node for graph in _subgraphs(node)]


def _subgraphs(node: onnx.NodeProto) -> list[onnx.GraphProto]:
    found = [[each.g] if each.HasField("g") else each.graphs for each in node.attribute]
    return [graph for graphs in found for graph in graphs]


def attach_definitions(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy of a model that runs without this library: the definitions of our ops are with it.

    A definition is attached once, for each op that the model calls by its name or its alias, and
    before all other functions. The nodes are given every default and every stand-in: readers differ
    in whether a function has defaults, and it has no stand-ins. Where all nodes of an op have the
    same value of an enumerated attribute, its definition is without the branches for other values.

    Args:
        model: of opset 15 or later; of 13 for definitions without attributes, since CastLike came
            with 15. External data may be left unloaded.

    Raises:
        ValueError: for an opset before that, an unknown op or another version of our domain, a node
            that does not call its op rightly, and an attached definition that is not the table's.
    """
    result = onnx.ModelProto()
    result.CopyFrom(model)
    called = complete_nodes(result)
    if not called:
        return result
    opset = _opset_for(result, called.values())
    result.ir_version = max(result.ir_version, IR_VERSION)
    for attached in [each for each in result.functions if is_ours(each)]:
        op = _OPS_BY_NAME[attached.domain, attached.name]
        if not any(agrees(attached, given) for given in _choices(op)):
            raise ValueError(
                f"the definition of {attached.domain}::{attached.name} in the model is not that "
                "of this library"
            )
        result.functions.remove(attached)
    for place, (name, op) in enumerate(called.items()):
        definition = specialised(function(op, *name), common_labels(calls(result, *name)))
        # Defaults would need IR version 9, and the nodes have every attribute.
        del definition.attribute_proto[:]
        definition.attribute[:] = [each.name for each in op.attributes]
        # One opset in the whole model, since some readers know but one; the checker compares.
        definition.opset_import[0].version = opset
        # Before the functions that call it: onnx.reference reads them in order.
        result.functions.insert(place, definition)
    return result


def calls(model: onnx.ModelProto, domain: str, op_type: str) -> list[onnx.NodeProto]:
    """The nodes of a type, wherever they are in a model."""
    name = domain, op_type
    return [
        node
        for scope in scopes(model)
        for node in scope.node
        if (node.domain, node.op_type) == name
    ]


def common_labels(nodes: Iterable[onnx.NodeProto]) -> dict[str, int]:
    """The enumerated attributes that complete nodes of ours all give the same value, with it."""
    found = collections.defaultdict(set)
    for node in nodes:
        op = _OPS_BY_NAME[node.domain, node.op_type]
        enumerated = {each.name for each in op.attributes if each.labels}
        for each in (each for each in node.attribute if each.name in enumerated):
            found[each.name].add(None if each.ref_attr_name else each.i)
    return {
        name: value
        for name, values in found.items()
        for value in values
        if len(values) == 1 and value is not None
    }


def _choices(op: OpInfo) -> Iterator[dict[str, int]]:
    """Each choice of values of enumerated attributes, those of some or of none included."""
    names = [each.name for each in op.attributes if each.labels]
    values = [(None, *range(len(each.labels))) for each in op.attributes if each.labels]
    for chosen in itertools.product(*values):
        yield {n: value for n, value in zip(names, chosen, strict=True) if value is not None}


def split_by_labels(model: onnx.ModelProto) -> None:
    """Gives each choice of enumerated attributes a definition of its own, in place, to be inlined.

    Args:
        model: by `attach_definitions`. Afterwards its nodes of ours have other types, after which
            the definitions are called.
    """
    for definition in [each for each in model.functions if is_ours(each)]:
        bodies = {}
        for node in calls(model, definition.domain, definition.name):
            given = common_labels([node])
            node.op_type = f"{definition.name} {given}"  # of no other function
            bodies[node.op_type] = specialised(definition, given)
            bodies[node.op_type].name = node.op_type
        model.functions.extend(bodies.values())
        model.functions.remove(definition)


def complete_nodes(model: onnx.ModelProto) -> dict[tuple[str, str], OpInfo]:
    """Checks the nodes that call our ops, and writes their absent inputs and attributes out.

    Returns:
        The ops called, by domain and type of their nodes.

    Raises:
        ValueError: for an unknown op or another version of our domain, a node that does not call
            its op rightly, and for values or functions that depend on themselves.
    """
    _check_cycles(model)
    called = {}
    new_name = _NewNames(model)
    for scope in scopes(model):
        for node in list(scope.node):
            if is_ours(node):
                name = node.domain, node.op_type
                called[name] = _OPS_BY_NAME[name]
                _complete(scope, node, called[name], new_name)
            elif node.domain in _DOMAINS:
                raise ValueError(f"{_title(node)}: there is no such op")
    _check_versions(model, called)
    return called


class _NewNames:
    """Names that no value of a model has."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self._used: set[str] = set()
        for scope in scopes(model):
            self._used.update(name for node in scope.node for name in (*node.input, *node.output))
            if isinstance(scope, onnx.GraphProto):
                self._used.update(each.name for each in (*scope.input, *scope.initializer))

    def __call__(self, name: str) -> str:
        names = (f"{name}_{i}" if i else name for i in itertools.count())
        found = next(each for each in names if each not in self._used)
        self._used.add(found)
        return found


def agrees(attached: onnx.FunctionProto, given: Mapping[str, int]) -> bool:
    """Whether a definition of one of our ops is the table's, or that for given attributes."""
    name = attached.domain, attached.name
    whole = _function(_OPS_BY_NAME[name], *name)
    return _canonical(attached) in (_canonical(whole), _canonical(specialised(whole, given)))


def _check_cycles(model: onnx.ModelProto) -> None:
    sorter: graphlib.TopologicalSorter[str] = graphlib.TopologicalSorter()
    for function in model.functions:
        called = (node for scope in scopes(function) for node in scope.node)
        sorter.add(
            _qualified(function.domain, function.name, function.overload),
            *(_qualified(node.domain, node.op_type, node.overload) for node in called),
        )
    _check_sorts(sorter)
    for scope in scopes(model):
        sorter = graphlib.TopologicalSorter()
        for node in scope.node:
            inner = [each for graph in _subgraphs(node) for each in scopes(graph)]
            used = {*node.input, *(n for each in inner for i in each.node for n in i.input)}
            for each in inner:
                used -= {value.name for value in (*each.input, *each.initializer)}
                used -= {name for i in each.node for name in i.output}
            for name in filter(None, node.output):
                sorter.add(name, *used)
        _check_sorts(sorter)


def _qualified(*names: str) -> str:
    return "::".join(filter(None, names))


def _check_sorts(sorter: graphlib.TopologicalSorter[str]) -> None:
    try:
        sorter.prepare()
    except graphlib.CycleError as error:
        raise ValueError(f"the model has a cycle: {' -> '.join(error.args[1])}") from error


def _title(node: onnx.NodeProto) -> str:
    name = f"{node.domain}::{node.op_type}"
    return f"node {node.name!r}, {name}" if node.name else f"a node, {name}"


def _complete(
    scope: onnx.GraphProto | onnx.FunctionProto,
    node: onnx.NodeProto,
    op: OpInfo,
    new_name: _NewNames,
) -> None:
    """Checks a node, and writes its absent inputs and attributes out."""
    for kind, names, declared in (
        ("inputs", node.input, op.inputs),
        ("outputs", node.output, op.outputs),
    ):
        if len(names) > len(declared):
            raise ValueError(f"{_title(node)}: {len(names)} {kind}, but it has {len(declared)}")
    given = dict(zip((each.name for each in op.inputs), node.input, strict=False))
    for each in op.inputs:
        if not given.get(each.name):
            if not each.optional:
                raise ValueError(f"{_title(node)}: input {each.name} is missing")
            before = _stand_in(op, each, given, new_name)
            given[each.name] = (
                before[-1].output[0] if before else given.get(each.stand_in or "", "")
            )
            place = next(i for i, other in enumerate(scope.node) if other is node)
            for i, added in enumerate(before):
                scope.node.insert(place + i, added)
    node.input[:] = given.values()

    attributes = {each.name: each for each in node.attribute}
    for attribute in op.attributes:
        if attribute.name in attributes:
            _check(node, attribute, attributes.pop(attribute.name))
        elif attribute.required:
            raise ValueError(f"{_title(node)}: attribute {attribute.name} is missing")
        else:
            default = attribute.onnx_value(attribute.default)
            node.attribute.append(onnx.helper.make_attribute(attribute.name, default))
    for name in attributes:
        raise ValueError(f"{_title(node)}: there is no attribute {name}")


def sized_like(op: OpInfo, parameter: Parameter) -> list[tuple[str, int]]:
    """For each dimension of an input: a required input that has it too, and where, from its end."""
    found = []
    for dim in parameter.dims:
        source = next(each for each in op.inputs if dim in each.dims and not each.optional)
        found.append((source.name, source.dims.index(dim) - len(source.dims)))
    return found


def _stand_in(
    op: OpInfo, parameter: Parameter, given: Mapping[str, str], new_name: _NewNames
) -> list[onnx.NodeProto]:
    """The nodes that compute what stands for an absent input; none where another input does."""
    nodes: list[onnx.NodeProto] = []

    def add(op_type: str, *inputs: str, **attributes: Any) -> str:
        output = new_name(f"{parameter.name}_{op_type}")
        nodes.append(onnx.helper.make_node(op_type, inputs, [output], **attributes))
        return output

    if parameter.number is not None:
        sizes = [
            add("Shape", given[name], start=axis, **({"end": axis + 1} if axis < -1 else {}))
            for name, axis in sized_like(op, parameter)
        ]
        shape = add("Concat", *sizes, axis=0) if len(sizes) > 1 else sizes[0]
        number = onnx.numpy_helper.from_array(np.array([parameter.number], np.float32))
        add("CastLike", add("ConstantOfShape", shape, value=number), given[op.inputs[0].name])
    elif parameter.extreme:
        kind, source = parameter.extreme
        axes = add("Constant", value_ints=[0])
        add({"min": "ReduceMin", "max": "ReduceMax"}[kind], given[source], axes, keepdims=0)
    return nodes


def with_stand_ins(
    op: OpInfo, arrays: Mapping[str, np.ndarray | None]
) -> dict[str, np.ndarray | None]:
    """Arrays by the names of the inputs, with those that stand for absent ones."""
    result: dict[str, Any] = dict(arrays)
    for each in op.inputs:
        if result[each.name] is not None:
            continue
        if each.stand_in:
            result[each.name] = result[each.stand_in]
        elif each.number is not None:
            shape = [result[name].shape[axis] for name, axis in sized_like(op, each)]
            result[each.name] = np.full(shape, each.number, result[op.inputs[0].name].dtype)
        elif each.extreme:
            kind, source = each.extreme
            result[each.name] = {"min": np.min, "max": np.max}[kind](result[source], axis=0)
    return result


def _check(node: onnx.NodeProto, declared: Attribute, given: onnx.AttributeProto) -> None:
    expected, text = _ATTRIBUTE_TYPES[declared.onnx_type]
    labels = " or ".join(f"{label} ({i})" for i, label in enumerate(declared.labels))
    if given.type != expected:
        raise ValueError(f"{_title(node)}: {given.name} must be {labels or text}")
    if given.ref_attr_name:  # the value is that of a function around the node
        return
    value = onnx.helper.get_attribute_value(given)
    if labels and value not in range(len(declared.labels)):
        raise ValueError(f"{_title(node)}: {given.name} must be {labels}, not {value}")
    if wanted := declared.outside(value):
        raise ValueError(f"{_title(node)}: {given.name} must be in {wanted}, not {value:g}")


def _check_versions(model: onnx.ModelProto, called: dict[tuple[str, str], OpInfo]) -> None:
    for domain in _DOMAINS & {domain for domain, _ in called}:
        imported = [each for f in model.functions for each in f.opset_import]
        versions = {
            each.version for each in (*model.opset_import, *imported) if each.domain == domain
        }
        if versions != {_C.ONNX_DOMAIN_VERSION}:
            found = " and ".join(map(str, sorted(versions))) or None
            raise ValueError(
                f"the model has version {found} of the domain {domain}, "
                f"but this library has {_C.ONNX_DOMAIN_VERSION}"
            )


def standard_opset(model: onnx.ModelProto) -> int | None:
    """The opset of ONNX's own operators in a model; None: it has none of them."""
    domains = {each.domain.removeprefix("ai.onnx"): each.version for each in model.opset_import}
    return domains.get("")


def _opset_for(model: onnx.ModelProto, called: Iterable[OpInfo]) -> int:
    opset = standard_opset(model)
    if opset is None:  # a model of custom nodes alone
        model.opset_import.append(onnx.helper.make_opsetid("", _C.DEFINITION_OPSET))
        return _C.DEFINITION_OPSET
    for op in called:
        if opset < (lowest := lowest_opset(op)):
            raise ValueError(
                f"the model is of opset {opset}, but the definition of {op.name} needs {lowest}: "
                "convert it by onnx.version_converter"
            )
    return opset


@functools.cache
def lowest_opset(op: OpInfo) -> int:
    """The first opset that has all that the definition calls."""
    nodes = _function(op, op.onnx.domain, op.onnx.op_type).node
    opsets = range(LOWEST_OPSET, _C.DEFINITION_OPSET + 1)
    return next(v for v in opsets if all(_has(v, node) for node in nodes))


def _has(opset: int, node: onnx.NodeProto) -> bool:
    """Whether an opset has the operator of a node, with its inputs and attributes."""
    if not onnx.defs.has(node.op_type, opset, ""):
        return False
    schema = onnx.defs.get_schema(node.op_type, opset, "")
    return len(node.input) <= schema.max_input and all(
        each.name in schema.attributes for each in node.attribute
    )


def _canonical(definition: onnx.FunctionProto) -> list[Any]:
    """What a function computes, without what tools write beside it."""
    nodes = [
        (
            node.domain,
            node.op_type,
            list(node.input),
            list(node.output),
            sorted((a.name, a.type, a.ref_attr_name, _value(a)) for a in node.attribute),
        )
        for node in definition.node
    ]
    return [list(definition.input), list(definition.output), nodes]


def _value(attribute: onnx.AttributeProto) -> str:
    if attribute.ref_attr_name:
        return ""
    return str(onnx.helper.get_attribute_value(attribute))
