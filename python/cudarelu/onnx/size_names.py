"""Names of sizes. In a file they are hints: no runtime compares them, and exporters write one name,
such as "?" or "batch", for sizes that differ."""

from __future__ import annotations

import collections
import math
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any

import onnx
import onnx.helper

from .._onnx.graphs import scopes
from .type_inference import infer, key_of, types_of

_Dim = onnx.TensorShapeProto.Dimension


def inferred(model: onnx.ModelProto) -> tuple[onnx.ModelProto, dict[str, str]]:
    """A model with the types of its values, in which equal names of sizes mean equal sizes.

    Args:
        model: its names are changed.

    Returns:
        The model, and the names in the file, by its names; "" for a dimension that had none.

    Raises:
        onnx.shape_inference.InferenceError: for a model that is not valid.
    """
    names = _separate(model)
    result = _inferred(model)
    if _unify(result):
        _forget(result)
        result = _inferred(result)
        _unify(result)
    return result, names


def _separate(model: onnx.ModelProto) -> dict[str, str]:
    """Gives the sizes of a model, in place, names that are a proof.

    Every free dimension of an input gets a name of its own, `batch#1` and `batch#2` for two named
    `batch`. All others lose theirs, so that type inference derives them from the nodes.

    Returns:
        The names in the file, by the new names.
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
    _forget(model)
    for dim in inputs:
        dim.dim_param = names[id(dim)]
    return original


def _forget(model: onnx.ModelProto) -> None:
    """Removes the names of sizes of all values but tensors that are inputs, in place."""
    for scope in scopes(model):
        infos = list(scope.value_info)
        if isinstance(scope, onnx.GraphProto):
            infos += scope.output
            infos += (each for each in scope.input if not each.type.HasField("tensor_type"))
        for dim in (dim for each in infos for dim in _dims(each.type)):
            if dim.HasField("dim_param"):
                dim.ClearField("dim_param")


def _inferred(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with types. Inference gives one name to sizes in which the tensors of a sequence
    differ: it is removed from all values."""
    result = infer(model)
    infos = [each for scope in scopes(result) for each in _infos(scope)]
    sequences = [each for each in infos if not each.type.HasField("tensor_type")]
    several = {dim.dim_param for each in sequences for dim in _dims(each.type)}
    for dim in (dim for each in infos for dim in _dims(each.type)):
        if dim.dim_param in several:
            dim.ClearField("dim_param")
    return result


def _unify(model: onnx.ModelProto) -> bool:
    """Gives sizes of a model with types one name, in place, where its nodes do not run unless they
    are equal.

    Returns:
        Whether there are such; more may follow when names are inferred again.
    """
    types = types_of(model.graph)
    sizes = _Sizes()
    for node in model.graph.node:  # not of subgraphs, which may not run
        shapes = [[*types[each].tensor_type.shape.dim] for each in node.input if each in types]
        if node.domain or len(shapes) != len(node.input) or not all(shapes):
            continue
        result = [*types[node.output[0]].tensor_type.shape.dim] if node.output[0] in types else []
        if node.op_type == "MatMul":
            sizes.broadcast(shapes, result, first=3)
            sizes.join([shapes[0][-1], shapes[1][-2:][0]])
        elif node.op_type in ("Add", "Mul"):
            sizes.broadcast(shapes, result, first=1)
        elif node.op_type == "Concat":
            sizes.concatenate(shapes, onnx.helper.get_node_attr_value(node, "axis"))
        elif node.op_type == "Reshape":
            sizes.reshape(shapes[0], result)
    for each in (each for scope in scopes(model) for each in _infos(scope)):
        for dim in _dims(each.type):
            if dim.dim_param in sizes.names:
                dim.dim_param = sizes.last(dim.dim_param)
    return bool(sizes.names)


class _Sizes:
    """What nodes say about free sizes, by their names."""

    def __init__(self) -> None:
        #: Names, each by another one for the same size.
        self.names: dict[str, str] = {}
        # What Reshape makes of one free dimension: a multiple of another one; and the reverse.
        self._multiples: dict[str, tuple[str, Fraction]] = {}
        self._known: dict[tuple[str, Fraction], str] = {}

    def last(self, name: str) -> str:
        """The name that is kept of those for a size."""
        while name in self.names:
            name = self.names[name]
        return name

    def join(self, dims: Sequence[_Dim]) -> None:
        """Dimensions of one size, as those over which MatMul sums."""
        for dim in dims[1:]:
            pair = {self.last(dims[0].dim_param), self.last(dim.dim_param)}
            if len(pair) == 2 and all(pair):
                kept, other = sorted(pair, key=lambda name: (_is_inferred(name), name))
                self.names[other] = kept

    def concatenate(self, shapes: Sequence[Sequence[_Dim]], axis: int) -> None:
        """Concat joins tensors whose other sizes are equal."""
        dims = [*zip(*shapes, strict=True)]
        del dims[axis]
        for each in dims:
            self.join(each)

    def broadcast(
        self, shapes: Sequence[Sequence[_Dim]], result: Sequence[_Dim], first: int
    ) -> None:
        """A result has the size of operands that have one, from axis `first` from the back on."""
        for i in range(first, len(result) + 1):
            operands = {self.last(dims[-i].dim_param) for dims in shapes if len(dims) >= i}
            after = self.last(result[-i].dim_param)
            if len(operands) == 1 and _is_inferred(after):
                (before,) = operands
                if before and before != after:
                    self.names[after] = before

    def reshape(self, *shapes: Sequence[_Dim]) -> None:
        """Reshape keeps the product: one free size before is a multiple of the one after."""
        free = [
            [self.last(d.dim_param) for d in dims if not d.HasField("dim_value")] for dims in shapes
        ]
        counts = [
            math.prod(d.dim_value for d in dims if d.HasField("dim_value")) for dims in shapes
        ]
        if [*map(len, free)] != [1, 1] or not all(counts) or not all(map(all, free)):
            return
        ((before,), (after,)) = free
        base, factor = self._multiples.get(before, (before, Fraction(1)))
        key = base, factor * Fraction(*counts)
        name = self.last(base if key[1] == 1 else self._known.setdefault(key, after))
        self._multiples.setdefault(name, key)
        if name != after:
            self.names[after] = name


def _is_inferred(name: str) -> bool:
    """Whether a name is one that type inference gives to a new size."""
    return name.startswith("unk__")


def restore(model: onnx.ModelProto, source: onnx.ModelProto, original: Mapping[str, str]) -> None:
    """Gives the values of a model, in place, the names of sizes that they have in `source`.

    Args:
        model: made from the result of `inferred`.
        source: the model as it was.
        original: the names, as `inferred` returns them.
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
