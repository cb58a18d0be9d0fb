"""Fuses groups of elementwise nodes of an ONNX model into ops that are defined for it."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import onnx_ir as ir

from .._onnx.definitions import IR_VERSION, function
from .._onnx.expressions import Call, Expression, Input, Literal
from .._onnx.graphs import standard_opset
from .._table import FLOATING, OpInfo
from ..defining.expr import attributes_of, kind_of, parts, rewritten
from ..defining.library import Library
from ..defining.operators import OPERATORS
from ..defining.ops import declared, defined, last_ones
from ..defining.reading import DECOMPOSED, decomposed
from .ir_models import from_proto, to_proto
from .opsets import FUSION_OPSET
from .report import Replaced
from .rewriting import annotating, remove_constants, replace_by_call

if TYPE_CHECKING:
    from ..defining.ops import Draft

_MAX_INPUTS = 8  # of an op


class _NotFusable(Exception):
    pass


@dataclasses.dataclass(frozen=True)
class _Row:
    """The shape of an input that has the last dimensions of the output, as [c, 1, 1] in place of
    [*, c, h, w]."""

    rank: int
    ones: int  # dimensions at the end in which it broadcasts


@dataclasses.dataclass
class _Group:
    """Nodes whose last one becomes a node of an op."""

    root: ir.Node
    nodes: list[ir.Node]
    inputs: list[ir.Value]
    rows: list[_Row | None]  # by input
    y: Expression  # of the inputs x0, x1, ...
    dtype: str


@dataclasses.dataclass(frozen=True)
class Fused:
    """A model with fused ops.

    Attributes:
        model: without the definitions of the ops.
        definitions: the ONNX functions of the ops.
        replaced: what they replace.
        library: the module of the ops, which is not loaded: they are of this model alone.
    """

    model: onnx.ModelProto
    definitions: list[onnx.FunctionProto]
    replaced: list[Replaced]
    library: Path

    def attach_definitions(self, model: onnx.ModelProto) -> None:
        """Adds the definitions to a model, in place, so that it runs without the module."""
        model.functions.extend(self.definitions)
        model.ir_version = max(model.ir_version, IR_VERSION)


def fuse(
    model: onnx.ModelProto, folder: Path | None, library: str | os.PathLike[str] | None
) -> Fused | None:
    """Replaces each maximal group of elementwise nodes by one node of an op that is defined for it.

    A group has one output, and its inputs have the shape of the output, have its last dimensions
    (the same number for all of them), of which the last ones may be 1 (again the same number), or
    are constant scalars. The module of the ops is built.

    Args:
        model: with the types of its values.
        folder: of external data.
        library: the file to write the module to; None leaves it in the cache of `cudarelu.load`.

    Returns:
        The model, or None if there is no group.

    Raises:
        RuntimeError: if the module does not compile.
        OSError: if the file cannot be written.
    """
    converted = from_proto(model, folder)
    equal: dict[tuple[Expression, tuple[_Row | None, ...]], list[_Group]] = {}
    if (opset := standard_opset(model) or 0) >= FUSION_OPSET:
        for group in _groups(converted):
            equal.setdefault((group.y, tuple(group.rows)), []).append(group)
    if not equal:
        return None
    drafts = [_draft(*key, groups, f"fused{i}") for i, (key, groups) in enumerate(equal.items())]
    made = Library.of(drafts)
    file = made.build(library)
    replaced = []
    definitions = []
    constants: list[ir.Value] = []
    for draft, groups in zip(drafts, equal.values(), strict=True):
        op = dataclasses.replace(
            draft.op, onnx=dataclasses.replace(draft.op.onnx, domain=made.name)
        )
        definitions.append(function(op))
        definitions[-1].opset_import[0].version = opset
        for group in groups:
            constants += [each for node in group.nodes for each in node.inputs if each is not None]
            replaced.append(_replace(converted, group, op, f"{made.name}::{op.name}"))
    remove_constants(constants, annotating(model))
    return Fused(to_proto(converted), definitions, replaced, file)


def _replace(model: ir.Model, group: _Group, op: OpInfo, name: str) -> Replaced:
    root = group.root
    operators = tuple(node.op_type for node in group.nodes)
    model.graph.opset_imports[op.onnx.domain] = op.onnx.version
    replace_by_call(group.nodes, root, op, list(group.inputs), {})
    return Replaced(name, root.name or root.outputs[0].name or "", operators)


def _draft(y: Expression, rows: tuple[_Row | None, ...], groups: list[_Group], name: str) -> Draft:
    """The op of some equal groups."""
    rank = max((row.rank for row in rows if row), default=0)
    dims = [*(f"r{i}" for i in range(rank - 1)), *["c"] * (rank > 0)]
    shape = f"T[{', '.join(['*', *dims])}]"

    def shape_of(row: _Row | None) -> str:
        return f"T[{', '.join([*dims[: rank - row.ones], *['1'] * row.ones])}]" if row else shape

    inputs = (f"x{i}: {shape_of(row)}" for i, row in enumerate(rows))
    dtypes = [each for each in FLOATING if any(group.dtype == each for group in groups)]
    operators = " ".join(node.op_type for node in groups[0].nodes)
    signature = f"{name}({', '.join(inputs)}) -> y: {shape}"
    return defined(declared("fused", signature, dtypes, f"{operators}, of a model."), y)


def _groups(model: ir.Model) -> Iterator[_Group]:
    """The groups of at least two nodes in a graph and its subgraphs; no node is in two of them."""
    taken: set[ir.Node] = set()
    # Backwards: the last node of a group comes first.
    for node in reversed(list(ir.traversal.RecursiveGraphIterator(model.graph))):
        if node in taken or not _is_elementwise(node):
            continue
        try:
            group = _Growing(node, taken).group()
        except (_NotFusable, ValueError):
            continue
        if len(group.nodes) > 1 and len(group.inputs) <= _MAX_INPUTS:
            taken.update(group.nodes)
            yield group


def _is_elementwise(node: ir.Node) -> bool:
    known = node.op_type in OPERATORS or node.op_type in DECOMPOSED
    plain = all(not each.is_ref() for each in node.attributes.values())
    return node.domain == "" and known and plain and len(node.outputs) == 1


def _shape(value: ir.Value) -> tuple[Any, ...] | None:
    """The shape, whose dimensions are numbers or names; None if one of them is unknown."""
    if value.shape is None:
        return None
    dims = tuple(each if isinstance(each, int) else each.value for each in value.shape)
    return None if None in dims else dims


class _Growing:
    """A group from its last node back to the nodes before it that nothing else needs."""

    def __init__(self, root: ir.Node, taken: set[ir.Node]) -> None:
        shape, dtype = _shape(root.outputs[0]), root.outputs[0].dtype
        if shape is None or dtype not in _DTYPES:
            raise _NotFusable
        self._root, self._shape, self._dtype = root, shape, dtype
        self._candidates = {root}
        found = [root]
        while found:
            for value in filter(None, found.pop().inputs):
                node = value.producer()
                if node is not None and node not in taken and self._may_join(node, value):
                    self._candidates.add(node)
                    found.append(node)

    def _may_join(self, node: ir.Node, value: ir.Value) -> bool:
        return (
            node.graph is self._root.graph
            and _is_elementwise(node)
            and _shape(value) == self._shape
            and not value.is_graph_output()
            and all(use.node in self._candidates for use in value.uses())
        )

    def group(self) -> _Group:
        while True:
            self._calls: dict[ir.Node, Call] = {}
            self._inputs: dict[str, ir.Value] = {}
            self._rows: list[_Row] = []  # so far
            y = rewritten(self._call(self._root), decomposed)
            nodes = self._nodes()
            # A node that could not join may need the result of another one, which then cannot.
            needed = {
                node
                for node in nodes - {self._root}
                if any(use.node not in nodes for use in node.outputs[0].uses())
            }
            if not needed:
                break
            self._candidates -= needed
        # Equal groups have equal names: inputs are numbered in the order of their first use.
        inputs = [self._inputs[each.name] for each in parts(y) if isinstance(each, Input)]
        rows = [self._row(each) for each in inputs]
        if kind_of(y) != "real" or all(rows):
            raise _NotFusable
        numbered = {each.name: Input(f"x{i}") for i, each in enumerate(inputs)}
        y = rewritten(y, lambda part: numbered[part.name] if isinstance(part, Input) else part)
        ordered = [node for node in self._calls if node in nodes]
        return _Group(self._root, ordered, inputs, rows, y, _DTYPES[self._dtype])

    def _nodes(self) -> set[ir.Node]:
        """The nodes that the result of the group is computed by."""
        nodes, found = {self._root}, [self._root]
        while found:
            producers = {each.producer() for each in found.pop().inputs if each is not None}
            new = [each for each in producers if each in self._calls and each not in nodes]
            nodes.update(new)
            found += new
        return nodes

    def _call(self, node: ir.Node) -> Call:
        if node not in self._calls:
            given = [each for each in node.inputs if each is not None]
            # Inputs of the group first: the rows nearest to its result decide on the rank of all.
            given.sort(key=lambda each: each.producer() in self._candidates)
            found = {each: self._operand(each) for each in given}
            operands = tuple(None if each is None else found[each] for each in node.inputs)
            attributes = tuple(sorted((each.name, each.value) for each in node.attributes.values()))
            result = Call(node.op_type, operands, attributes)
            for part in (rewritten(result, decomposed), *attributes_of(result).values()):
                kind_of(part)  # raises ValueError
            self._calls[node] = result
        return self._calls[node]

    def _operand(self, value: ir.Value) -> Expression:
        if (number := _scalar(value)) is not None:
            return Literal((), (number,))
        producer = value.producer()
        if producer in self._candidates:
            try:
                return self._call(producer)
            except (_NotFusable, ValueError):
                self._candidates.discard(producer)
        if value.dtype != self._dtype:
            raise _NotFusable
        if row := self._row(value):
            rows = [*self._rows, row]
            ones = {each.ones for each in rows if each.ones}
            if len({each.rank for each in rows}) > 1 or len(ones) > 1:
                raise _NotFusable
            self._rows = rows
        assert value.name
        self._inputs[value.name] = value
        return Input(value.name)

    def _row(self, value: ir.Value) -> _Row | None:
        """The shape of an input of the group; None if it is the shape of the result."""
        shape = _shape(value)
        if shape == self._shape:
            return None
        if not shape or len(shape) > len(self._shape):
            raise _NotFusable
        last = self._shape[-len(shape) :]
        ones = 0 if shape == last else last_ones(shape)
        own = len(shape) - ones
        if own == 0 or shape[:own] != last[:own]:
            raise _NotFusable
        return _Row(len(shape), ones)


_DTYPES = {
    ir.DataType.FLOAT: "float32",
    ir.DataType.DOUBLE: "float64",
    ir.DataType.FLOAT16: "float16",
    ir.DataType.BFLOAT16: "bfloat16",
}


def _scalar(value: ir.Value) -> float | bool | None:
    """The value of a constant of one element."""
    constant = ir.convenience.get_const_tensor(value)
    if constant is None or value.is_graph_input() or constant.size != 1:
        return None
    (element,) = np.asarray(constant.numpy()).reshape(-1).tolist()
    return element if isinstance(element, bool) else float(element)
