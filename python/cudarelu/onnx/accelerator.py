"""Our ops in the place of standard operators."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx

from .. import _C
from .._table import OpInfo, ops
from .definitions import LOWEST_OPSET
from .files import in_a_line, load, save_beside
from .graphs import scopes, standard_opset
from .match import AnotherAttribute, Kept, Match
from .models import attach_definitions
from .nodes import is_ours
from .report import Left, Measured, Replaced, Report
from .types import infer

if TYPE_CHECKING:
    import onnx_ir as ir


_FASTER = 0.99  # below this ratio of times a model is faster; and so it must be in 3 rounds of 4


def accelerate(
    model: onnx.ModelProto | ir.Model | str | os.PathLike[str],
    path: str | os.PathLike[str] | None = None,
    *,
    only_if_faster: bool = False,
    provider: str = "cpu",
    dims: Mapping[str, int] | None = None,
    inputs: Mapping[str, np.ndarray] | None = None,
) -> tuple[Any, Report]:
    """Replaces standard operators in a copy of a model by our ops.

    A group of nodes that matches the definition of an op, in the graph, in a subgraph or in a
    function, becomes one node of that op. The group may have operands in the other order, a
    constant in place of an attribute, no factor of 1, or ONNX's own operator for the whole
    definition. Larger groups are replaced first. A group is not replaced if its dtype, a shape or
    an attribute is unknown or not supported by the op, if the definition needs a later opset, or if
    nodes outside the group use one of its intermediate values. The definitions are attached.

    The new node has the name of the last node that it replaces and the doc_strings of all of them,
    one per line. Its output keeps its name, doc_string and quantization annotation. The annotations
    of intermediate values are removed.

    The new node may be slower than the standard nodes, which ONNX Runtime may fuse with their
    neighbours. `only_if_faster` measures the whole model in ONNX Runtime with this library, op by
    op. It keeps an op if the model with it has the same outputs and is faster, by 1 % or more and
    in 3 of 4 rounds. It keeps no op if the model with all of these is slower than the original.

    Args:
        model: a model of opset 13 or later, or its path. External data is not loaded from a path.
        path: the file to write, completely or not at all, as `python -m cudarelu lower` does. None
            only returns the model.
        only_if_faster: whether to measure. Needs onnxruntime, 1.21 or later for external data.
        provider: the provider to measure on, "cpu" or "cuda".
        dims: the sizes of named dimensions of the inputs for the measurement; others are 4.
        inputs: arrays by name for the measurement; other inputs are random, integers are 0 or 1.

    Returns:
        The model, of the type of the argument (onnx.ModelProto for a path), and a `Report`.

    Raises:
        ValueError: as `attach_definitions` does; for a model before opset 13; for an invalid model;
            and for a model to measure that does not run.
        OSError: if a file cannot be read or written.
    """
    source, folder = _source(model)
    prepared = prepare(source)
    if only_if_faster:
        result, report = rewrite_if_faster(prepared, folder, provider, dims or {}, inputs or {})
    else:
        candidates = [op.name for op in ops()]
        result, report = rewrite(prepared, folder, candidates)
    if not report.replaced:  # not even types are added
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
        return model, None
    if isinstance(model, str | os.PathLike):
        file = Path(model).resolve()
        return load(file), file.parent
    import onnx_ir as ir

    folders = {
        Path(each.const_value.base_dir)
        for each in model.graph.initializers.values()
        if isinstance(each.const_value, ir.ExternalTensor)
    }
    if len(folders) > 1:
        raise ValueError(f"the model's external data is in {len(folders)} folders: save it first")
    return ir.to_proto(model), next(iter(folders), None)


def prepare(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy of a model with the type of every tensor, to be rewritten.

    Raises:
        ValueError: as `attach_definitions` does, for a model before opset 13 and for one that is
            not valid.
    """
    opset = standard_opset(model)
    if opset is not None and opset < LOWEST_OPSET:
        raise ValueError(
            f"the model is of opset {opset}, but its operators are understood from {LOWEST_OPSET} "
            "on: convert it by onnx.version_converter"
        )
    if model.graph.sparse_initializer or model.training_info:
        raise ValueError("the model has sparse initializers or training steps, which would be lost")
    with in_a_line("the model is not valid"):
        result = infer(attach_definitions(model))
    # They gave the types of their nodes, and would be found to contain themselves.
    for each in [each for each in result.functions if is_ours(each)]:
        result.functions.remove(each)
    return result


def rewrite_if_faster(
    prepared: onnx.ModelProto,
    folder: Path | None,
    provider: str,
    dims: Mapping[str, int],
    inputs: Mapping[str, np.ndarray],
) -> tuple[onnx.ModelProto, Report]:
    """As `rewrite`, with the ops that make the model faster.

    Op by op, those of larger definitions first: an op stays where the model that has it, beside
    those that stay already, is faster than the one without it.

    Args:
        prepared: by `prepare`. External data may be left unloaded.
        folder: of the external data.
        provider: "cpu" or "cuda".
        dims: sizes of named dimensions.
        inputs: arrays for some inputs; others are random.

    Raises:
        ValueError: where the model does not run.
    """
    from .measure import Running, compare, difference, random_inputs
    from .patterns import patterns

    feeds = random_inputs(prepared, dims, inputs)
    original = best = Running(prepared, folder, provider, feeds)
    result, report = rewrite(prepared, folder, [])
    kept: list[str] = []
    left, measured = [], []
    ratio: float | None
    for name in dict.fromkeys(op.name for op, _ in patterns()):
        candidate, found = rewrite(prepared, folder, [*kept, name])
        nodes = [each for each in found.replaced if each.op == name]
        if not nodes:
            left += [each for each in found.left if each.op == name]
            continue
        running = Running(candidate, folder, provider, feeds)
        reason = difference(original, running)
        if reason is None:
            ratio, quartiles = compare(best, running)
            faster = ratio < _FASTER and quartiles[1] < 1
            measured.append(Measured(name, len(nodes), ratio, quartiles, faster))
            reason = None if faster else f"the model is not faster with it: {ratio:.3f}"
        if reason is None:
            kept.append(name)
            best, result, report = running, candidate, found
        else:
            left += [Left(**dataclasses.asdict(each), reason=reason) for each in nodes]
    ratio = None
    if kept:
        ratio, (low, _) = compare(original, best)
        if low > 1:  # each was faster than the one before, and yet
            reason = f"the model is not faster with all that were kept: {ratio:.3f}"
            left += [Left(**dataclasses.asdict(each), reason=reason) for each in report.replaced]
            result, report = rewrite(prepared, folder, [])
    done = {(each.node, each.operators) for each in report.replaced}  # by another op in the end
    left = report.left + [each for each in left if (each.node, each.operators) not in done]
    return result, dataclasses.replace(report, left=left, measured=measured, ratio=ratio)


def rewrite(
    prepared: onnx.ModelProto, folder: Path | None, allowed: Collection[str]
) -> tuple[onnx.ModelProto, Report]:
    """A copy of a prepared model in which some ops take the place of standard nodes.

    Args:
        prepared: by `prepare`. External data may be left unloaded.
        folder: of the external data.
        allowed: the names of the ops.
    """
    import onnx_ir as ir
    from onnxscript.rewriter.pattern import RewriteRuleSet

    from .patterns import is_symmetric, operators, patterns, rule

    model = ir.from_proto(prepared)
    ir.external_data.set_base_dir(model.graph, folder or "")
    for function in prepared.functions:
        types = {each.name: each for each in function.value_info}
        key = function.domain, function.name, function.overload
        for value in model.functions[key].inputs:
            if value.name in types:
                ir.serde.deserialize_value_info_proto(types[value.name], value)
    rewriting = _Rewriting(model)
    # One after another, so that a part of a larger one is not taken before.
    present = {node.op_type for scope in scopes(prepared) for node in scope.node}
    for op, body in patterns():
        if op.name in allowed and present.issuperset(node.op_type for node in operators(body)):
            replace = functools.partial(rewriting.replace, op, body)
            rules = RewriteRuleSet([rule(body, replace)], commute=is_symmetric(body))
            rules.apply_to_model(model)
    rewriting.remove_constants(_annotating(prepared))
    for function in model.functions.values():
        for node in ir.traversal.RecursiveGraphIterator(function):
            # The rewriter does so for the graph that a node is in, which may be a subgraph.
            if (version := model.graph.opset_imports.get(node.domain)) is not None:
                function.opset_imports.setdefault(node.domain, version)
    return attach_definitions(ir.to_proto(model)), rewriting.report()


def _annotating(model: onnx.ModelProto) -> set[str]:
    """The tensors that quantization annotations name, such as scales."""
    return {
        entry.value
        for scope in scopes(model)
        if isinstance(scope, onnx.GraphProto)
        for each in scope.quantization_annotation
        for entry in each.quant_parameter_tensor_names
    }


class _Rewriting:
    """The replacing of nodes in one model, and what is to be reported of it."""

    def __init__(self, model: ir.Model) -> None:
        import onnx_ir as ir

        whole: list[Any] = [model.graph, *model.functions.values()]
        self._opsets: dict[ir.Node, int] = {  # a function may be of another than the model
            node: scope.opset_imports.get("", _C.DEFINITION_OPSET)
            for scope in whole
            for node in ir.traversal.RecursiveGraphIterator(scope)
        }
        self._names = {node: node.name or node.outputs[0].name for node in self._opsets}
        self._constants: list[ir.Value] = []
        self._replaced: list[Replaced] = []
        self._gone: set[ir.Node] = set()
        # By op and last node; of several reasons the first, since swapped operands tell less.
        self._left: dict[tuple[str, ir.Node], tuple[Left, Sequence[ir.Node]]] = {}
        self._with_another_attribute: dict[tuple[str, ir.Node], tuple[Left, Sequence[ir.Node]]] = {}

    def report(self) -> Report:
        # A node that another op has replaced since is not left.
        found = {**self._with_another_attribute, **self._left}.values()
        left = [each for each, nodes in found if not self._gone.issuperset(nodes)]
        return Report(self._replaced, left, [])

    def replace(
        self, op: OpInfo, body: onnx.FunctionProto, builder: Any, /, **values: Any
    ) -> ir.Value | None:
        """The node that stands for a match, or None where the match is none.

        Args:
            op: that the body means.
            body: that was matched.
            builder: makes nodes.
            values: the model's, by their names in the body.
        """
        from .patterns import operators, scalars, transposed

        nodes = [values[node.output[0]].producer() for node in operators(body)]
        root = nodes[-1]
        entry: dict[str, Any] = {
            "op": op.name,
            "node": self._names[root],
            "operators": tuple(node.op_type for node in nodes),
        }
        try:
            match = Match(op, body, values, nodes, self._opsets[root])
            match.check_uses()
            attributes = match.attributes()
            constants = match.check_inputs()
        except Kept as reason:
            is_attribute = isinstance(reason, AnotherAttribute)
            left = self._with_another_attribute if is_attribute else self._left
            left.setdefault((op.name, root), (Left(**entry, reason=str(reason)), nodes))
            return None
        self._replaced.append(Replaced(**entry))
        self._gone.update(nodes)
        self._constants += [values[name] for name in scalars(body) if name in values]
        self._constants += [values[name] for name in constants]
        # Data may be large and in a file of its own: readers fold the Transpose when they load it.
        values |= {name: builder.Transpose(values[name], perm=[1, 0]) for name in transposed(body)}
        values |= {name: builder.Constant(value=array) for name, array in constants.items()}
        inputs = [values[each.name] if each.name in body.input else None for each in op.inputs]
        while inputs[-1] is None:
            inputs.pop()
        result = getattr(builder, op.onnx.op_type)(
            *inputs,
            _domain=op.onnx.domain,
            _version=_C.ONNX_DOMAIN_VERSION,
            _name=root.name,
            **attributes,
        )
        _take_notes(result, values[body.output[0]], nodes)
        return result

    def remove_constants(self, kept: Collection[str]) -> None:
        """Those that became attributes, or others in the shape of a signature.

        Args:
            kept: the names of those that are needed elsewhere than by nodes.
        """
        found = self._constants
        while found:
            value = found.pop()
            node, graph = value.producer(), value.graph
            if graph is None or value.uses() or value.is_graph_output() or value.name in kept:
                continue
            if node is None:
                assert value.name
                del graph.initializers[value.name]
            else:
                found += filter(None, node.inputs[:1])  # of a cast, what is cast
                graph.remove(node, safe=True)


def _take_notes(new: ir.Value, old: ir.Value, nodes: Sequence[ir.Node]) -> None:
    """Gives a value and its node what is noted at the value and the nodes that they stand for."""
    notes = dict.fromkeys(node.doc_string for node in nodes if node.doc_string)
    node = new.producer()
    assert node is not None
    node.doc_string = "\n".join(notes) or None
    new.doc_string = old.doc_string
    new.metadata_props.update(old.metadata_props)
    new.meta.update(old.meta)  # the quantization annotation
