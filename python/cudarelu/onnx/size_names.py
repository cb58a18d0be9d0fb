"""Names of sizes. In a file they are hints: no runtime compares them, and exporters write one name,
such as "?" or "batch", for sizes that differ."""

from __future__ import annotations

import collections
from collections.abc import Iterator, Mapping
from typing import Any

import onnx

from .graphs import scopes
from .type_inference import key_of, types_of

_Dim = onnx.TensorShapeProto.Dimension


def separate(model: onnx.ModelProto) -> dict[str, str]:
    """Makes equal names of sizes in a model, in place, mean equal sizes.

    Every free dimension of an input gets a name of its own, `batch#1` and `batch#2` for two named
    `batch`. All others lose theirs, so that type inference derives them from the nodes.

    Returns:
        The names in the file, by the new names; "" for a dimension that had none.
    """
    inputs = [
        dim
        for scope in scopes(model)
        if isinstance(scope, onnx.GraphProto)
        for each in scope.input
        for dim in each.type.tensor_type.shape.dim
        if not dim.HasField("dim_value")
    ]
    counts = collections.Counter(dim.dim_param for dim in inputs)
    numbers: collections.Counter[str] = collections.Counter()
    names = {}
    for dim in inputs:
        name = dim.dim_param
        while not name or counts[name] > (name == dim.dim_param):
            numbers[dim.dim_param] += 1
            name = f"{dim.dim_param}#{numbers[dim.dim_param]}"
        names[id(dim)] = name
    original = {names[id(dim)]: dim.dim_param for dim in inputs}
    for scope in scopes(model):
        for each in _infos(scope):
            for dim in _dims(each.type):
                if dim.HasField("dim_param"):
                    dim.ClearField("dim_param")
    for dim in inputs:
        dim.dim_param = names[id(dim)]
    return original


def have_one_name(a: str, b: str) -> bool:
    """Whether two names that `separate` made are of dimensions with one name in the file."""
    return a.rpartition("#")[0] == b.rpartition("#")[0] != ""


def restore(model: onnx.ModelProto, source: onnx.ModelProto, original: Mapping[str, str]) -> None:
    """Gives the values of a model, in place, the names of sizes that they have in `source`.

    Args:
        model: made from `source`, after `separate`.
        source: the model as it was.
        original: the result of `separate`.
    """
    functions = {key_of(each): types_of(each) for each in source.functions}
    wholes: list[tuple[Any, dict[str, onnx.TypeProto]]] = [
        (model.graph, types_of(source.graph)),
        *((each, functions.get(key_of(each), {})) for each in model.functions),
    ]
    for whole, known in wholes:
        for each in (each for scope in scopes(whole) for each in _infos(scope)):
            dims = [*_dims(each.type)]
            before = [*_dims(known[each.name])] if each.name in known else []
            for i, dim in enumerate(dims):
                old = before[i].dim_param if len(before) == len(dims) else ""
                name = old or original.get(dim.dim_param, dim.dim_param)
                if dim.HasField("dim_value") or name == dim.dim_param:
                    continue
                dim.ClearField("dim_param")
                if name:
                    dim.dim_param = name


def _infos(scope: onnx.GraphProto | onnx.FunctionProto) -> Iterator[onnx.ValueInfoProto]:
    yield from scope.value_info
    if isinstance(scope, onnx.GraphProto):
        yield from (*scope.input, *scope.output)


def _dims(kind: onnx.TypeProto) -> Iterator[_Dim]:
    """The dimensions of a tensor, or of the tensors that a sequence has."""
    yield from kind.tensor_type.shape.dim
    for name in ("sequence_type", "optional_type"):
        if kind.HasField(name):
            yield from _dims(getattr(kind, name).elem_type)
