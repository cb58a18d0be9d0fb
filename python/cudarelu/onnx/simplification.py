"""Removes what the definitions of ops do for tensors of any rank, where shapes are known."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np
import onnx
import onnx.helper
import onnx.numpy_helper
import onnx.shape_inference

from .._onnx.graphs import remove_unused, scopes
from .type_inference import infer, types_of

_Shape = list[int | str | None]  # a size may be known, named or unknown


def simplify(model: onnx.ModelProto, kept: Collection[str]) -> None:
    """Removes each Reshape that changes no shape, and the nodes that only it needs, in place. The
    shape of a weight becomes a constant: onnxruntime.quantization transposes the weight and leaves
    the nodes that read its shape.

    Args:
        model: any.
        kept: the outputs of nodes that stay.
    """
    try:
        typed = infer(model)
    except onnx.shape_inference.InferenceError:
        return
    wholes = zip((model.graph, *model.functions), (typed.graph, *typed.functions), strict=True)
    for whole, with_types in wholes:
        shapes = {name: _shape(each) for name, each in types_of(with_types).items()}
        graphs = [each for each in scopes(whole) if isinstance(each, onnx.GraphProto)]
        weights = {tensor.name for graph in graphs for tensor in graph.initializer}
        for scope in scopes(whole):
            _write_shapes(scope, {name: shapes.get(name) for name in weights}, kept)
            _remove_reshapes(scope, shapes, kept)


def _write_shapes(
    scope: onnx.GraphProto | onnx.FunctionProto,
    shapes: Mapping[str, _Shape | None],
    kept: Collection[str],
) -> None:
    """Makes each Shape of these tensors a Constant, where their sizes are known."""
    for node in scope.node:
        if node.domain or node.op_type != "Shape" or node.output[0] in kept:
            continue
        sizes = shapes.get(node.input[0])
        if sizes is not None and all(isinstance(each, int) for each in sizes):
            ends = {each.name: each.i for each in node.attribute}
            part = np.array(sizes[ends.get("start") : ends.get("end")], np.int64)
            value = onnx.numpy_helper.from_array(part)
            node.CopyFrom(onnx.helper.make_node("Constant", [], node.output, value=value))


def _remove_reshapes(
    scope: onnx.GraphProto | onnx.FunctionProto,
    shapes: dict[str, _Shape | None],
    kept: Collection[str],
) -> None:
    made = {name for node in scope.node for name in node.output} - {*kept}
    results = {each if isinstance(each, str) else each.name for each in scope.output}
    renamed: dict[str, str] = {}

    def name_of(name: str) -> str:
        while name in renamed:
            name = renamed[name]
        return name

    for node in scope.node:
        if node.domain or node.op_type != "Reshape" or node.output[0] in kept:
            continue
        value, result = name_of(node.input[0]), node.output[0]
        if not _is_same(shapes.get(node.input[0]), shapes.get(result)):
            continue
        if value in made and value not in results:
            renamed[value] = result  # the name that the model has
            shapes[result] = shapes.get(result) or shapes.get(value)
        elif result not in results:
            renamed[result] = value
        else:
            continue
        node.ClearField("output")  # it is not needed
    if not renamed:
        return
    for node in (node for each in scopes(scope) for node in each.node):
        node.input[:] = map(name_of, node.input)
        node.output[:] = map(name_of, node.output)
    remove_unused(scope, {*results, *kept})


def _shape(kind: onnx.TypeProto) -> _Shape | None:
    tensor = kind.tensor_type
    if not tensor.HasField("shape"):
        return None
    return [getattr(dim, dim.WhichOneof("value") or "", None) for dim in tensor.shape.dim]


def _is_same(before: _Shape | None, after: _Shape | None) -> bool:
    """Whether a Reshape keeps a shape: one size that is unknown, or has a name that type inference
    made, follows from the others, which then must not be 0."""
    if before is None or after is None or len(before) != len(after):
        return False
    other = [(a, b) for a, b in zip(before, after, strict=True) if a is None or a != b]
    if len(other) > 1:
        return False
    same = [a for a, b in zip(before, after, strict=True) if a is not None and a == b]
    return not other or all(isinstance(each, int) and each > 0 for each in same)
