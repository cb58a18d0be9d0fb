"""Models of earlier opsets, and with other names of ONNX's domain."""

from __future__ import annotations

import onnx
import onnx.helper
import onnx.version_converter

from .._onnx.graphs import check_cycles, scopes, standard_opset
from .nodes import is_ours

FUSION_OPSET = 15  # has CastLike, which the definitions of fused ops contain


class CannotConvert(ValueError):
    """A model stays in its opset."""


def normalise(model: onnx.ModelProto) -> None:
    """Writes what old and other tools write as newer ones do, in place.

    ONNX's own domain is "", also where a model calls it "ai.onnx", by which ONNX Runtime does not
    find the operators in subgraphs. Before IR version 4 every initializer is an input too, which
    from version 4 on means that a caller may replace it. PyTorch's exporter and onnx_ir write the
    type of an initializer once more in value_info, where onnxruntime.quantization, which transposes
    weights, leaves the old shape: onnx then refuses the model.

    Raises:
        ValueError: for two versions of ONNX's domain.
    """
    for whole in (model, *model.functions):
        versions = {e.version for e in whole.opset_import if e.domain in ("", "ai.onnx")}
        if len(versions) > 1:
            raise ValueError(f"the model has opset {min(versions)} and opset {max(versions)}")
        for each in [each for each in whole.opset_import if each.domain == "ai.onnx"]:
            each.domain = ""
        for each in [each for each in whole.opset_import if not each.domain][1:]:
            whole.opset_import.remove(each)
    for scope in scopes(model):
        for node in scope.node:
            if node.domain == "ai.onnx":
                node.domain = ""
        if isinstance(scope, onnx.GraphProto):
            initializers = {each.name for each in scope.initializer}
            for value in [each for each in scope.value_info if each.name in initializers]:
                scope.value_info.remove(value)
    if model.ir_version < 4:
        model.ir_version = 4
        initializers = {each.name for each in model.graph.initializer}
        for value in [each for each in model.graph.input if each.name in initializers]:
            model.graph.input.remove(value)


def converted(model: onnx.ModelProto, opset: int) -> onnx.ModelProto:
    """A copy of a model in a later opset, by onnx.version_converter.

    Args:
        model: after `normalise`. External data may be left unloaded. The definitions of our ops are
            not copied.
        opset: the opset of the copy.

    Raises:
        CannotConvert: for a model with other functions, which the converter would lose, and where
            the converter fails.
    """
    title = f"the model has opset {standard_opset(model)} and cannot be converted to {opset}"
    if others := [each.name for each in model.functions if not is_ours(each)]:
        raise CannotConvert(f"{title}: onnx.version_converter loses functions ({others[0]})")
    check_cycles(model)
    try:
        result = onnx.version_converter.convert_version(model, opset)
    except Exception as error:  # of several types, without a common one
        raise CannotConvert(f"{title}: {' '.join(str(error).split())}") from error
    kept = {each.name for scope in _graphs(model) for each in scope.value_info}
    metadata = {
        tuple(node.output): node.metadata_props for scope in _graphs(model) for node in scope.node
    }
    for scope in _graphs(result):
        # The converter calls the new values between its nodes scalars.
        for value in [each for each in scope.value_info if each.name not in kept]:
            scope.value_info.remove(value)
        for node in scope.node:
            node.metadata_props.extend(metadata.get(tuple(node.output), ()))
    result.graph.quantization_annotation.extend(model.graph.quantization_annotation)
    return result


def _graphs(model: onnx.ModelProto) -> list[onnx.GraphProto]:
    return [each for each in scopes(model.graph) if isinstance(each, onnx.GraphProto)]
