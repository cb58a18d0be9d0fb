"""The parts of an ONNX model: scopes, names and the order of nodes."""

from __future__ import annotations

import graphlib
import itertools
from collections.abc import Iterable, Iterator

import onnx


def scopes(
    whole: onnx.ModelProto | onnx.GraphProto | onnx.FunctionProto,
) -> Iterator[onnx.GraphProto | onnx.FunctionProto]:
    """A graph or function with its subgraphs; for a model, its graph and functions with theirs."""
    found = [whole.graph, *whole.functions] if isinstance(whole, onnx.ModelProto) else [whole]
    while found:
        scope = found.pop()
        yield scope
        found += [graph for node in scope.node for graph in subgraphs(node)]


def subgraphs(node: onnx.NodeProto) -> list[onnx.GraphProto]:
    """The graphs that a node has as attributes, such as the branches of If."""
    found = [[each.g] if each.HasField("g") else each.graphs for each in node.attribute]
    return [graph for graphs in found for graph in graphs]


def names_read_by(node: onnx.NodeProto) -> set[str]:
    """The values of its scope that a node reads: its inputs, and those that its subgraphs use."""
    inner = [each for graph in subgraphs(node) for each in scopes(graph)]
    used = {*node.input, *(n for each in inner for i in each.node for n in i.input)}
    used |= {value.name for each in inner for value in each.output}
    for each in inner:
        used -= {value.name for value in (*each.input, *each.initializer)}
        used -= {name for i in each.node for name in i.output}
    return used


def remove_unused(scope: onnx.GraphProto | onnx.FunctionProto, needed: Iterable[str]) -> None:
    """Removes the nodes of a scope, in place, that only compute what is not needed."""
    used, kept = set(needed), []
    for node in reversed(scope.node):
        if not used.isdisjoint(node.output):
            kept.append(node)
            used |= names_read_by(node)
    nodes = onnx.FunctionProto(node=kept[::-1]).node
    scope.ClearField("node")
    scope.node.extend(nodes)


def standard_opset(model: onnx.ModelProto | onnx.FunctionProto) -> int | None:
    """The version of ONNX's own operators that a model or a function imports; None if it imports
    none."""
    versions = (each.version for each in model.opset_import if each.domain in ("", "ai.onnx"))
    return next(versions, None)


def names_of(model: onnx.ModelProto) -> set[str]:
    """The names of all values in a model."""
    names: set[str] = set()
    for scope in scopes(model):
        names.update(name for node in scope.node for name in (*node.input, *node.output))
        if isinstance(scope, onnx.GraphProto):
            names.update(each.name for each in (*scope.input, *scope.initializer))
    return names


class NewNames:
    """Makes unused names by appending a number where necessary."""

    def __init__(self, used: Iterable[str]) -> None:
        self._used = set(used)

    def __call__(self, name: str) -> str:
        names = (f"{name}_{i}" if i else name for i in itertools.count())
        found = next(each for each in names if each not in self._used)
        self._used.add(found)
        return found


def check_cycles(model: onnx.ModelProto) -> None:
    """Raises ValueError if a function calls itself or a value depends on itself."""
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
            used = names_read_by(node)
            for name in filter(None, node.output):
                sorter.add(name, *used)
        _check_sorts(sorter)


def _check_sorts(sorter: graphlib.TopologicalSorter[str]) -> None:
    try:
        sorter.prepare()
    except graphlib.CycleError as error:
        raise ValueError(f"the model has a cycle: {' -> '.join(error.args[1])}") from error


def _qualified(*names: str) -> str:
    return "::".join(filter(None, names))
