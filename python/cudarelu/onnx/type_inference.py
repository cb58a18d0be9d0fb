"""Infers the types and shapes of all values of a model, including those in functions."""

from __future__ import annotations

import collections
import graphlib
from collections.abc import Sequence

import onnx
import onnx.helper
import onnx.shape_inference

from .._onnx.graphs import scopes
from .nodes import is_ours

_Types = dict[str, onnx.TypeProto]


def infer(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy of a model with the types of its values.

    The values in a function get types if all calls of the function have the same input types. These
    types are in `value_info` of the function, whatever the IR version. The definitions of our ops
    do not change.

    Raises:
        onnx.shape_inference.InferenceError: for a model that is not valid.
    """
    result = onnx.shape_inference.infer_shapes(model, data_prop=True)
    functions = {key_of(each): each for each in result.functions if not is_ours(each)}
    calls: dict[tuple[str, ...], list[list[onnx.TypeProto | None]]] = collections.defaultdict(list)

    def note_calls(scope: onnx.GraphProto | onnx.FunctionProto) -> None:
        known = types_of(scope)
        for node in (node for each in scopes(scope) for node in each.node):
            if key_of(node) in functions:
                calls[key_of(node)].append([known.get(name) for name in node.input])

    callers: dict[tuple[str, ...], set[tuple[str, ...]]] = {key: set() for key in functions}
    for key, each in functions.items():
        for node in (node for scope in scopes(each) for node in scope.node):
            if key_of(node) in functions:
                callers[key_of(node)].add(key)
    note_calls(result.graph)
    for key in graphlib.TopologicalSorter(callers).static_order():
        types = calls[key]
        if types and None not in types[0] and all(each == types[0] for each in types):
            _infer_function(functions[key], types[0], result)
        note_calls(functions[key])
    return result


def key_of(called: onnx.NodeProto | onnx.FunctionProto) -> tuple[str, ...]:
    name = called.op_type if isinstance(called, onnx.NodeProto) else called.name
    return called.domain, name, called.overload


def types_of(scope: onnx.GraphProto | onnx.FunctionProto) -> _Types:
    """The types of the values in a scope and its subgraphs, except of names with several types."""
    found: _Types = {}
    several = set()
    for each in scopes(scope):
        infos = list(each.value_info)
        if isinstance(each, onnx.GraphProto):
            infos += [*each.input, *each.output]
            for tensor in each.initializer:
                info = onnx.helper.make_tensor_value_info(
                    tensor.name, tensor.data_type, tensor.dims
                )
                infos.append(info)
        for info in infos:
            if found.setdefault(info.name, info.type) != info.type:
                several.add(info.name)
    return {name: each for name, each in found.items() if name not in several}


def _infer_function(
    function: onnx.FunctionProto, inputs: Sequence[onnx.TypeProto | None], model: onnx.ModelProto
) -> None:
    """Fills in the types of the values of a function with inputs of these types."""
    body = onnx.GraphProto(name=function.name, node=function.node)
    for name, kind in zip(function.input, inputs, strict=False):
        body.input.add(name=name, type=kind)
    for name in function.output:
        body.output.add(name=name)
    whole = onnx.ModelProto(
        ir_version=model.ir_version,
        graph=body,
        opset_import=function.opset_import,
        functions=model.functions,
    )
    typed = onnx.shape_inference.infer_shapes(whole, data_prop=True).graph
    del function.node[:]  # the inferred nodes also have types in their subgraphs
    function.node.extend(typed.node)
    del function.value_info[:]
    function.value_info.extend([*typed.input, *typed.value_info, *typed.output])
