"""Replaces standard operators in a model by our ops."""

from __future__ import annotations

import dataclasses
import importlib.util
import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx

from .._onnx.definitions import LOWEST_OPSET
from .._onnx.graphs import scopes, standard_opset
from .._table import all_ops
from .files import check_external_data, data_folder, in_a_line, load, save_beside
from .models import attach_definitions
from .nodes import is_ours
from .opsets import FUSION_OPSET, CannotConvert, converted, normalise
from .report import Measured, NotReplaced, Replaced, Report
from .size_names import inferred, restore

if TYPE_CHECKING:
    import onnx_ir as ir

    from .measure import Running


_TARGET_OPSETS = 18, FUSION_OPSET  # of the ops' definitions, and of the fused ops' definitions
_FASTER = 0.99  # below this ratio of times a model is faster; and so it must be in 3 rounds of 4


@dataclasses.dataclass(frozen=True)
class _Benchmark:
    """What a model is measured with."""

    folder: Path | None  # of the external data
    provider: str
    inputs: Mapping[str, np.ndarray]

    def load(self, model: onnx.ModelProto, library: Path | None = None) -> Running:
        from .measure import Running

        return Running(model, self.folder, self.provider, self.inputs, library)


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
    benchmark = None
    if only_if_faster:
        from .measure import random_inputs

        arrays = random_inputs(source, dims or {}, inputs or {})
        benchmark = _Benchmark(folder, provider, arrays)
    lowest = FUSION_OPSET if fuse else LOWEST_OPSET
    try:
        result, names = prepare(source, replace_definitions, folder, lowest)
    except CannotConvert as reason:
        report = Report([], [], [], unchanged=str(reason))
    else:
        result, report = _replace_nodes(result, folder, benchmark, without_elementwise=fuse)
        if fuse:
            library = None if path is None else Path(path).with_name(f"lib{Path(path).stem}_ops.so")
            result, report = _fuse_nodes(result, report, folder, benchmark, library)
        restore(result, source, names)
    if not report.replaced:
        result = _unchanged(source, replace_definitions, report)
    if path is not None:
        save_beside(result, Path(path), folder or Path())
    if isinstance(model, onnx.ModelProto | str | os.PathLike):
        return result, report
    return _as_ir(result, model), report


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


def _replace_nodes(
    prepared: onnx.ModelProto,
    folder: Path | None,
    benchmark: _Benchmark | None,
    without_elementwise: bool,
) -> tuple[onnx.ModelProto, Report]:
    """Replaces nodes by our ops, or by those of them that make the model faster."""
    from .rewriting import rewrite

    ops = [op.short_name for op in all_ops() if not (without_elementwise and op.elementwise)]
    if benchmark is None:
        return rewrite(prepared, folder, ops)
    return _replace_if_faster(prepared, benchmark, ops)


def _replace_if_faster(
    prepared: onnx.ModelProto, benchmark: _Benchmark, candidates: Collection[str]
) -> tuple[onnx.ModelProto, Report]:
    """As `rewrite`, with the ops that make the model faster.

    Ops are tried one after another, those with larger definitions first. An op is kept if the model
    with it and the ops kept so far is faster than the model without it.

    Raises:
        ValueError: where the model does not run.
    """
    from .measure import compare
    from .patterns import patterns
    from .rewriting import rewrite

    folder = benchmark.folder
    original = best = benchmark.load(prepared)
    result, report = rewrite(prepared, folder, [])
    kept: list[str] = []
    left: list[NotReplaced] = []
    measured: list[Measured] = []
    tried = [each for each in patterns() if each.op.short_name in candidates]
    by_size = sorted(tried, key=lambda each: each.size, reverse=True)
    for name in dict.fromkeys(each.op.short_name for each in by_size):
        candidate, found = rewrite(prepared, folder, [*kept, name])
        nodes = [each for each in found.replaced if each.op == name]
        if not nodes:
            left += [each for each in found.left if each.op == name]
            continue
        running = benchmark.load(candidate)
        measurements, rejected = _measure(name, nodes, original, best, running)
        measured += measurements
        left += rejected
        if not rejected:
            kept.append(name)
            best, result, report = running, candidate, found
    ratio: float | None = None
    if kept:
        ratio, (low, _) = compare(original, best)
        if low > 1:  # each was faster than the one before, and yet
            reason = f"the model is not faster with all that were kept: {ratio:.3f}"
            left += _not_replaced(report.replaced, reason)
            result, report = rewrite(prepared, folder, [])
    done = {(each.node, each.operators) for each in report.replaced}  # by another op in the end
    left = report.left + [each for each in left if (each.node, each.operators) not in done]
    return result, dataclasses.replace(report, left=left, measured=measured, ratio=ratio)


def _measure(
    op: str, nodes: Sequence[Replaced], original: Running, before: Running, after: Running
) -> tuple[list[Measured], list[NotReplaced]]:
    """The effect of an op on a model.

    Args:
        op: its name in the report.
        nodes: of the op.
        original: the model whose outputs are expected.
        before: the model without the op.
        after: the model with the op.

    Returns:
        The measurement, none if the outputs differ, and the nodes if the op is not to be kept.
    """
    from .measure import compare, difference

    if reason := difference(original, after):
        return [], _not_replaced(nodes, reason)
    ratio, quartiles = compare(before, after)
    faster = ratio < _FASTER and quartiles[1] < 1
    reason = f"the model is not faster with it: {ratio:.3f}"
    measured = Measured(op, len(nodes), ratio, quartiles, faster)
    return [measured], [] if faster else _not_replaced(nodes, reason)


def _not_replaced(nodes: Sequence[Replaced], reason: str) -> list[NotReplaced]:
    return [NotReplaced(**dataclasses.asdict(each), reason=reason) for each in nodes]


def _fuse_nodes(
    model: onnx.ModelProto,
    report: Report,
    folder: Path | None,
    benchmark: _Benchmark | None,
    library: Path | None,
) -> tuple[onnx.ModelProto, Report]:
    """Fuses groups of elementwise nodes, if that makes the model faster. Without a benchmark, our
    ops replace those that are in no group."""
    from .fusion import fuse
    from .rewriting import rewrite

    fused = fuse(model, folder, library)
    if fused is not None and benchmark is not None:
        before, after = benchmark.load(model), benchmark.load(fused.model, fused.library)
        measured, rejected = _measure("fused", fused.replaced, before, before, after)
        report = report.extended(left=rejected, measured=measured)
        if rejected:
            fused = None
    if fused is not None:
        model = fused.model
        report = dataclasses.replace(
            report.extended(replaced=fused.replaced), library=str(fused.library)
        )
    if benchmark is None:
        elementwise = [op.short_name for op in all_ops() if op.elementwise]
        model, rest = rewrite(_without_definitions(model), folder, elementwise)
        report = report.extended(replaced=rest.replaced, left=rest.left)
    if fused is not None:
        fused.attach_definitions(model)
    return model, report


def _unchanged(
    source: onnx.ModelProto, replace_definitions: bool, report: Report
) -> onnx.ModelProto:
    """A copy of a model in which nothing was replaced: not even types are added."""
    calls_ours = any(is_ours(node) for each in scopes(source) for node in each.node)
    # Without definitions, ONNX Runtime cannot type functions that call our ops.
    if (calls_ours or replace_definitions) and report.unchanged is None:
        return attach_definitions(source, replace_definitions=replace_definitions)
    result = onnx.ModelProto()
    result.CopyFrom(source)
    return result


def _as_ir(result: onnx.ModelProto, model: ir.Model) -> ir.Model:
    """A model of onnx_ir, with the data of the initializers that are in `model`."""
    import onnx_ir as ir

    graph = (converted := ir.from_proto(result)).graph
    for name, value in model.graph.initializers.items():
        if name in graph.initializers:
            graph.initializers[name].const_value = value.const_value
    return converted
