"""Our ops in the place of standard operators."""

from __future__ import annotations

import dataclasses
import importlib.util
import os
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx

from .._table import OpInfo, all_ops
from .definitions import LOWEST_OPSET
from .files import check_external_data, data_folder, in_a_line, load, save_beside
from .graphs import NewNames, names_of, scopes, standard_opset
from .models import attach_definitions
from .nodes import is_ours
from .opsets import CannotConvert, converted, normalise
from .report import Left, Measured, Replaced, Report
from .size_names import inferred, restore

if TYPE_CHECKING:
    import onnx_ir as ir

    from .patterns import Pattern
    from .search import Found


FUSION_OPSET = 15  # has CastLike
_TARGET_OPSETS = 18, 15  # those of the definitions, and of those of elementwise ops
_FASTER = 0.99  # below this ratio of times a model is faster; and so it must be in 3 rounds of 4


def accelerate(
    model: onnx.ModelProto | ir.Model | str | os.PathLike[str],
    path: str | os.PathLike[str] | None = None,
    *,
    only_if_faster: bool = False,
    fuse: bool = False,
    provider: str = "cpu",
    dims: Mapping[str, int] | None = None,
    inputs: Mapping[str, np.ndarray] | None = None,
    replace_definitions: bool = False,
) -> tuple[Any, Report]:
    """Replaces standard operators in a copy of a model by our ops.

    A group of nodes that matches the definition of an op, in the graph, in a subgraph or in a
    function, becomes one node of that op. The group may have operands in the other order, a
    constant in place of an attribute, no factor of 1, or ONNX's own operator for the whole
    definition. Larger groups are replaced first. A group is not replaced if its dtype, a shape or
    an attribute is unknown or not supported by the op, if the definition needs a later opset, or if
    nodes outside the group use one of its intermediate values. The definitions are attached.

    The new node has the name of the last node that it replaces, the doc_strings of all of them, one
    per line, and their metadata_props. Its output keeps its name, doc_string and quantization
    annotation. The annotations of intermediate values are removed.

    The new node may be slower than the standard nodes, which ONNX Runtime may fuse with their
    neighbours. `only_if_faster` measures the whole model in ONNX Runtime with this library, op by
    op. It keeps an op if the model with it has the same outputs and is faster, by 1 % or more and
    in 3 of 4 rounds. It keeps no op if the model with all of these is slower than the original.

    A model before opset 13, with `fuse` before opset 15, is converted to opset 18 or 15 by
    onnx.version_converter. If ONNX Runtime is installed, it must accept the converted model as it
    accepted the model, with the same outputs. Otherwise the model is left as it is, and
    `Report.unchanged` has the reason.

    Args:
        model: a model, or its path. External data is not loaded from a path.
        path: the file to write, completely or not at all, as `python -m cudarelu lower` does. None
            only returns the model.
        only_if_faster: whether to measure. Needs onnxruntime, 1.21 or later for external data.
        fuse: whether to compile an op for each further group of elementwise nodes, as
            `cudarelu.define` does, in `lib<model>_ops.so` beside `path`, or in the cache of
            `cudarelu.load`. The file is `Report.library`; without it the model runs by the
            definitions of these ops.
        provider: the provider to measure on, "cpu" or "cuda".
        dims: the sizes of named dimensions of the inputs for the measurement; others are 4.
        inputs: arrays by name for the measurement; other inputs are random, integers are 0 or 1.
        replace_definitions: as for `attach_definitions`.

    Returns:
        The model, of the type of the argument (onnx.ModelProto for a path), and a `Report`.

    Raises:
        ValueError: as `attach_definitions` does; for an invalid model; and for a model to measure
            that does not run.
        RuntimeError: if the module of `fuse` does not compile.
        OSError: if a file cannot be read or written.
    """
    source, folder = _source(model)
    settings = None
    if only_if_faster:
        from .measure import random_inputs

        settings = provider, random_inputs(source, dims or {}, inputs or {})
    candidates = [op.short_name for op in all_ops()]
    try:
        opset = FUSION_OPSET if fuse else LOWEST_OPSET
        prepared, names = prepare(source, replace_definitions, folder, opset)
    except CannotConvert as reason:
        result, report = onnx.ModelProto(), Report([], [], [], unchanged=str(reason))
    else:
        if fuse:
            library = None if path is None else Path(path).with_name(f"lib{Path(path).stem}_ops.so")
            result, report = rewrite_and_fuse(prepared, folder, library, settings)
        elif settings is not None:
            result, report = rewrite_if_faster(prepared, folder, *settings, candidates)
        else:
            result, report = rewrite(prepared, folder, candidates)
        restore(result, source, names)
    if not report.replaced:  # not even types are added
        calls_ours = any(is_ours(node) for each in scopes(source) for node in each.node)
        # Without definitions, ONNX Runtime cannot type functions that call our ops.
        if (calls_ours or replace_definitions) and report.unchanged is None:
            source = attach_definitions(source, replace_definitions=replace_definitions)
        result.CopyFrom(source)
    if path is not None:
        save_beside(result, Path(path), folder or Path())
    if isinstance(model, onnx.ModelProto | str | os.PathLike):
        return result, report
    import onnx_ir as ir

    graph = (converted := ir.from_proto(result)).graph
    for name, value in model.graph.initializers.items():
        if name in graph.initializers:
            graph.initializers[name].const_value = value.const_value
    return converted, report


def _source(
    model: onnx.ModelProto | ir.Model | str | os.PathLike[str],
) -> tuple[onnx.ModelProto, Path | None]:
    """A model with its external data left where it is, and the folder of that."""
    if isinstance(model, onnx.ModelProto):
        check_external_data(model, Path())
        return model, None
    if isinstance(model, str | os.PathLike):
        loaded = load(Path(model))
        return loaded, data_folder(Path(model), loaded)
    if isinstance(model, bytes):
        raise TypeError("accelerate takes a model or a path, not bytes: onnx.load_from_string")
    import onnx_ir as ir

    folders = {
        Path(each.const_value.base_dir)
        for each in model.graph.initializers.values()
        if isinstance(each.const_value, ir.ExternalTensor)
    }
    if len(folders) > 1:
        raise ValueError(f"the model's external data is in {len(folders)} folders: save it first")
    source, folder = ir.to_proto(model), next(iter(folders), None)
    check_external_data(source, folder or Path())
    return source, folder


def prepare(
    model: onnx.ModelProto,
    replace_definitions: bool = False,
    folder: Path | None = None,
    lowest: int = LOWEST_OPSET,
) -> tuple[onnx.ModelProto, dict[str, str]]:
    """A copy of a model with the type of every tensor, to be rewritten; equal names of sizes mean
    equal sizes in it. Second, the names in the model, by these names.

    Args:
        model: external data may be left unloaded.
        replace_definitions: as in `attach_definitions`.
        folder: of the external data.
        lowest: the opset before which the model is converted, if possible.

    Raises:
        CannotConvert: for a model before opset 13 that cannot be converted.
        ValueError: as `attach_definitions` does, and for a model that is not valid.
    """
    opset = standard_opset(model)
    if opset is not None and opset < lowest:
        try:
            model = _in_a_later_opset(model, folder)
        except CannotConvert:
            if opset < LOWEST_OPSET:
                raise
    if model.graph.sparse_initializer or model.training_info:
        raise ValueError("the model has sparse initializers or training steps, which would be lost")
    with in_a_line("the model is not valid"):
        attached = attach_definitions(model, replace_definitions=replace_definitions)
        result, names = inferred(attached)
    return _without_definitions(result), names


def _in_a_later_opset(model: onnx.ModelProto, folder: Path | None) -> onnx.ModelProto:
    """A copy in the first opset to which the converter brings a model that ONNX Runtime accepts."""
    source = onnx.ModelProto()
    source.CopyFrom(model)
    normalise(source)
    for opset in _TARGET_OPSETS:
        try:
            result = converted(source, opset)
            if importlib.util.find_spec("onnxruntime") is not None:
                from .measure import refusal

                if reason := refusal(model, result, folder):
                    raise CannotConvert(f"the model cannot be converted to {opset}: {reason}")
            return result
        except CannotConvert as error:
            problem = error
    raise problem


def _without_definitions(model: onnx.ModelProto) -> onnx.ModelProto:
    """A model without the definitions of our ops, which type inference needs, but in which the
    search would find the ops."""
    for each in [each for each in model.functions if is_ours(each)]:
        model.functions.remove(each)
    return model


def rewrite_if_faster(
    prepared: onnx.ModelProto,
    folder: Path | None,
    provider: str,
    feeds: Mapping[str, np.ndarray],
    candidates: Collection[str],
) -> tuple[onnx.ModelProto, Report]:
    """As `rewrite`, with the ops that make the model faster.

    Ops are tried one after another, those with larger definitions first. An op is kept if the model
    with it and the ops kept so far is faster than the model without it.

    Args:
        prepared: by `prepare`. External data may be left unloaded.
        folder: of the external data.
        provider: "cpu" or "cuda".
        feeds: the inputs.
        candidates: the short names of the ops to try.

    Raises:
        ValueError: where the model does not run.
    """
    from .measure import Running, compare, difference
    from .patterns import patterns

    original = best = Running(prepared, folder, provider, feeds)
    result, report = rewrite(prepared, folder, [])
    kept: list[str] = []
    left, measured = [], []
    tried = [each for each in patterns() if each.op.short_name in candidates]
    by_size = sorted(tried, key=lambda each: each.size, reverse=True)
    for name in dict.fromkeys(each.op.short_name for each in by_size):
        candidate, found = rewrite(prepared, folder, [*kept, name])
        nodes = [each for each in found.replaced if each.op == name]
        if not nodes:
            left += [each for each in found.left if each.op == name]
            continue
        running = Running(candidate, folder, provider, feeds)
        reason = difference(original, running)
        if reason is None:
            judged, reason = _judged(name, len(nodes), *compare(best, running))
            measured.append(judged)
        if reason is None:
            kept.append(name)
            best, result, report = running, candidate, found
        else:
            left += _left(nodes, reason)
    ratio: float | None = None
    if kept:
        ratio, (low, _) = compare(original, best)
        if low > 1:  # each was faster than the one before, and yet
            reason = f"the model is not faster with all that were kept: {ratio:.3f}"
            left += _left(report.replaced, reason)
            result, report = rewrite(prepared, folder, [])
    done = {(each.node, each.operators) for each in report.replaced}  # by another op in the end
    left = report.left + [each for each in left if (each.node, each.operators) not in done]
    return result, dataclasses.replace(report, left=left, measured=measured, ratio=ratio)


def _left(nodes: Iterable[Replaced], reason: str) -> list[Left]:
    return [Left(**dataclasses.asdict(each), reason=reason) for each in nodes]


def _judged(
    op: str, nodes: int, ratio: float, quartiles: tuple[float, float]
) -> tuple[Measured, str | None]:
    """A measurement of a model with an op, and why the op is not kept; None if it is."""
    faster = ratio < _FASTER and quartiles[1] < 1
    reason = None if faster else f"the model is not faster with it: {ratio:.3f}"
    return Measured(op, nodes, ratio, quartiles, faster), reason


def rewrite_and_fuse(
    prepared: onnx.ModelProto,
    folder: Path | None,
    library: Path | None,
    settings: tuple[str, Mapping[str, np.ndarray]] | None,
) -> tuple[onnx.ModelProto, Report]:
    """As `rewrite` with our ops that are not elementwise; then further groups are fused.

    Args:
        prepared: by `prepare`. External data may be left unloaded.
        folder: of the external data.
        library: the file for the module of the fused ops.
        settings: the provider and the inputs of a measurement; None keeps all ops.
    """
    names = {
        flag: [o.short_name for o in all_ops() if o.elementwise == flag] for flag in (False, True)
    }
    if settings is None:
        model, report = rewrite(prepared, folder, names[False])
    else:
        model, report = rewrite_if_faster(prepared, folder, *settings, names[False])
    fusion = importlib.import_module("cudarelu.defining.fusion")  # a layer above this one
    fused = fusion.fuse(model, folder, library)
    if fused is not None:
        if settings is not None:
            report, faster = _measured(model, fused, folder, settings, report)
            if not faster:
                return model, report
        replaced = [*report.replaced, *fused.replaced]
        report = dataclasses.replace(report, replaced=replaced, library=str(fused.library))
    if settings is None:  # single nodes
        left = model if fused is None else fused.model
        model, rest = rewrite(_without_definitions(left), folder, names[True])
        report = dataclasses.replace(
            report, replaced=[*report.replaced, *rest.replaced], left=[*report.left, *rest.left]
        )
        if fused is not None:
            fused.model = model
    return (model if fused is None else fused.attached()), report


def _measured(
    before: onnx.ModelProto,
    fused: Any,
    folder: Path | None,
    settings: tuple[str, Mapping[str, np.ndarray]],
    report: Report,
) -> tuple[Report, bool]:
    """The report with what the fused ops bring, and whether they make the model faster."""
    from .measure import Running, compare, difference

    provider, feeds = settings
    original = Running(before, folder, provider, feeds)
    running = Running(fused.model, folder, provider, feeds, fused.library)
    further = []
    if (reason := difference(original, running)) is None:
        measured, reason = _judged("fused", len(fused.replaced), *compare(original, running))
        further.append(measured)
    left = _left(fused.replaced, reason) if reason else []
    return (
        dataclasses.replace(
            report, left=[*report.left, *left], measured=[*report.measured, *further]
        ),
        reason is None,
    )


def rewrite(
    prepared: onnx.ModelProto, folder: Path | None, allowed: Collection[str]
) -> tuple[onnx.ModelProto, Report]:
    """A copy of a prepared model in which some ops replace standard nodes.

    Args:
        prepared: by `prepare`. External data may be left unloaded.
        folder: of the external data.
        allowed: the short names of the ops.
    """
    import onnx_ir as ir

    from .ir_models import from_proto, to_proto
    from .patterns import patterns
    from .search import find, roots

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
        import onnx_ir as ir

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
        # By op and last node. The first of several reasons is kept: those after it are of swapped
        # operands, and tell less.
        self._left: dict[tuple[str, ir.Node], tuple[Left, list[ir.Node]]] = {}
        self._with_another_attribute: dict[tuple[str, ir.Node], tuple[Left, list[ir.Node]]] = {}

    def nodes_of(self, op_types: Collection[str] | None) -> Iterable[ir.Node]:
        """The nodes of some types, in their order; None: all."""
        if op_types is None:
            return self.opsets
        found = (node for each in op_types for node in self._by_type.get(each, ()))
        return sorted(found, key=self._order.__getitem__)

    def report(self) -> Report:
        # Nodes that another op replaced later are not reported, nor are those of which the same op
        # replaced a part.
        found = {**self._with_another_attribute, **self._left}
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
        import onnx_ir as ir

        from .constant_inputs import replaced_by_attributes
        from .match import AnotherAttribute, Kept, Match
        from .patterns import is_the_runtimes

        op = pattern.op
        nodes = sorted(found.nodes, key=self._order.__getitem__)
        if is_the_runtimes(node.op_type for node in nodes) or not self._gone.isdisjoint(nodes):
            return
        name = root.name or root.outputs[0].name or ""
        operators = tuple(node.op_type for node in nodes)
        opset = self.opsets[root].get("", op.definition_opset)
        try:
            match = Match(pattern, found, opset)
            match.check_uses(nodes, root)
            attributes = match.attributes()
            constants = match.check_inputs()
        except Kept as reason:
            is_attribute = isinstance(reason, AnotherAttribute)
            left = self._with_another_attribute if is_attribute else self._left
            reported = Left(op.short_name, name, operators, str(reason))
            left.setdefault((op.short_name, root), (reported, nodes))
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
            # Operands whose elements are not read may be no constants.
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
    import onnx_ir as ir

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
