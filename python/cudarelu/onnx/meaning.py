"""What the bodies of ONNX functions compute, however tools have written them."""

from __future__ import annotations

import collections
import dataclasses
import functools
import textwrap
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import onnx
import onnx.defs
import onnx.external_data_helper
import onnx.helper
import onnx.numpy_helper

from .._onnx.graphs import standard_opset

_COMMUTATIVE = {"Add", "And", "Equal", "Max", "Min", "Mul", "Or", "Xor"}


@dataclasses.dataclass(frozen=True)
class _Meaning:
    """How a value is computed from others, which are given by their numbers."""

    title: str  # the operator, or another kind of value
    operands: tuple[int, ...] = ()
    details: tuple[Any, ...] = ()  # attributes and the output; what else tells the value


@dataclasses.dataclass(frozen=True)
class _Scope:
    known: dict[str, int]  # the numbers of values by name
    opset: int
    folds: bool
    depth: int = 0
    arrays: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)  # of constants


class Meanings:
    """Numbers values of functions, so that values which are computed in one way have one number.

    Names, notes, the order of nodes and of the operands of a sum, how a constant is written,
    Identity, unused nodes and attributes with ONNX's defaults make no difference.
    """

    def __init__(self, others: Meanings | None = None) -> None:
        """Begins with the values of other functions."""
        self._numbers: dict[_Meaning, int] = {} if others is None else dict(others._numbers)
        self._meanings: list[_Meaning] = [] if others is None else list(others._meanings)

    def add(self, function: onnx.FunctionProto, *, fold: bool = False) -> dict[str, int]:
        """Numbers the values of a function, by name.

        Args:
            function: its nodes come after those whose results they take.
            fold: whether a result of constants means a constant, from now on. The function must be
                trusted, since the result may be large.
        """
        known = {name: self._number("input", details=(i,)) for i, name in enumerate(function.input)}
        opset = standard_opset(function) or onnx.defs.onnx_opset_version()
        scope = _Scope(known, opset, fold)
        self._add_nodes(function.node, scope)
        return known | {name: self._of(name, scope) for name in function.output}

    def difference(
        self, values: dict[str, int], outputs: Iterable[str], wanted: Iterable[int]
    ) -> str | None:
        """How an output is computed otherwise than wanted, as text; None: none is.

        Args:
            values: the numbers of a function's values, by name.
            outputs: the names of its outputs.
            wanted: the numbers that they should have.
        """
        names = {number: name for name, number in reversed(values.items())}
        for name, there in zip(outputs, wanted, strict=True):
            here, where = values[name], f"the output {name}"
            while here != there:
                ours, theirs = self._meanings[here], self._meanings[there]
                inner = self._unequal(ours, theirs)
                if inner is None:
                    texts = _text(ours), _text(theirs)
                    if texts[0] == texts[1]:
                        texts = f"of {len(ours.operands)} operands", f"of {len(theirs.operands)}"
                    return f"{where} is {texts[0]}, not {texts[1]}"
                where = f"an operand of {ours.title} {names.get(here, '')}".rstrip()
                here, there = inner
        return None

    def _unequal(self, here: _Meaning, there: _Meaning) -> tuple[int, int] | None:
        """The first operands that differ; None if more differs."""
        if (here.title, here.details) != (there.title, there.details):
            return None
        if len(here.operands) != len(there.operands):
            return None
        pairs = [*zip(here.operands, there.operands, strict=True)]
        if here.title in _COMMUTATIVE:
            counts = collections.Counter(here.operands), collections.Counter(there.operands)
            sides = [(counts[i] - counts[1 - i]).elements() for i in (0, 1)]
            ordered = [sorted(side, key=lambda each: self._meanings[each].title) for side in sides]
            pairs = [*zip(*ordered, strict=True)]
        return next((a, b) for a, b in pairs if a != b)

    def _number(
        self, title: str, operands: Sequence[int] = (), details: tuple[Any, ...] = ()
    ) -> int:
        meaning = _Meaning(title, tuple(operands), details)
        if meaning not in self._numbers:
            self._numbers[meaning] = len(self._meanings)
            self._meanings.append(meaning)
        return self._numbers[meaning]

    def _of(self, name: str, scope: _Scope) -> int:
        if name in scope.known:
            return scope.known[name]
        return self._number("undefined", details=(name,)) if name else self._number("absent")

    def _add_nodes(self, nodes: Iterable[onnx.NodeProto], scope: _Scope) -> None:
        for node in nodes:
            domain = node.domain.removeprefix("ai.onnx")
            title = "::".join(filter(None, (domain, node.op_type, node.overload)))
            operands = [self._of(name, scope) for name in node.input]
            while operands and not node.input[len(operands) - 1]:  # absent
                operands.pop()
            attributes = self._attributes(node, domain, scope)
            if title == "Identity":
                results = operands
            elif title == "Constant" and (array := constant_of(node)) is not None:
                results = [self._array(array)]
                scope.arrays[node.output[0]] = array
            else:
                if title in _COMMUTATIVE:
                    operands.sort()
                if scope.folds and (array := _folded(node, scope)) is not None:
                    scope.arrays[node.output[0]] = array
                    folded = self._array(array)
                    self._numbers[_Meaning(title, tuple(operands), (*attributes, 0))] = folded
                results = [
                    self._number(title, operands, (*attributes, i)) for i in range(len(node.output))
                ]
            scope.known.update(zip(node.output, results, strict=False))

    def _attributes(self, node: onnx.NodeProto, domain: str, scope: _Scope) -> list[Any]:
        defaults = {} if domain else _defaults(node.op_type, scope.opset)
        found = {each.name: self._attribute(each, scope) for each in node.attribute}
        return [(name, *found[name]) for name in sorted(found) if found[name] != defaults.get(name)]

    def _attribute(self, attribute: onnx.AttributeProto, scope: _Scope) -> tuple[Any, ...]:
        """A type and a value."""
        if attribute.ref_attr_name:
            return "reference", attribute.ref_attr_name
        if attribute.type == attribute.TENSOR:
            return "tensor", self._tensor(attribute.t)
        graphs = [attribute.g] if attribute.type == attribute.GRAPH else attribute.graphs
        if graphs:
            return "graphs", *(self._graph(each, scope) for each in graphs)
        return _plain(attribute)

    def _graph(self, graph: onnx.GraphProto, scope: _Scope) -> tuple[int, ...]:
        depth = scope.depth + 1
        inner = _Scope(dict(scope.known), scope.opset, False, depth)
        for i, each in enumerate(graph.input):
            inner.known[each.name] = self._number("input", details=(depth, i))
        for tensor in graph.initializer:
            inner.known[tensor.name] = self._tensor(tensor)
        self._add_nodes(graph.node, inner)
        return len(graph.input), *(self._of(each.name, inner) for each in graph.output)

    def _tensor(self, tensor: onnx.TensorProto) -> int:
        if onnx.external_data_helper.uses_external_data(tensor):
            return self._number("external data", details=(tensor.SerializeToString(),))
        return self._array(onnx.numpy_helper.to_array(tensor))

    def _array(self, array: np.ndarray) -> int:
        """A constant. Tools write a float as a double; no operator takes both, so that a difference
        of dtypes that matters is one of other nodes."""
        if array.dtype == object:
            return self._number("constant", details=("text", array.shape, *array.ravel().tolist()))
        plain = array.astype(np.float64) if array.dtype.name in _REAL else array
        # The bytes tell -0.0 from 0.0.
        return self._number("constant", details=(plain.dtype, plain.shape, plain.tobytes()))


#: The dtypes of a Constant.
_CONSTANTS = {
    "value": None,
    "value_float": np.float32,
    "value_floats": np.float32,
    "value_int": np.int64,
    "value_ints": np.int64,
    "value_string": object,
    "value_strings": object,
}


_REAL = {"bfloat16", "float16", "float32", "float64"}


def constant_of(node: onnx.NodeProto) -> np.ndarray | None:
    """The value of a Constant; None if the caller of the function or a file gives it."""
    given = next(iter(node.attribute), None)
    if given is None or given.ref_attr_name or given.name not in _CONSTANTS:
        return None
    if given.type == given.TENSOR:
        is_elsewhere = onnx.external_data_helper.uses_external_data(given.t)
        return None if is_elsewhere else onnx.numpy_helper.to_array(given.t)
    return np.array(onnx.helper.get_attribute_value(given), _CONSTANTS[given.name])


def _folded(node: onnx.NodeProto, scope: _Scope) -> np.ndarray | None:
    """The first result of a node whose operands are constants; None if they are not."""
    if not node.input or not scope.arrays.keys() >= {*node.input}:
        return None
    if any(each.ref_attr_name or each.type == each.GRAPH for each in node.attribute):
        return None
    from onnx.reference import ReferenceEvaluator  # takes long to import

    feeds = {name: scope.arrays[name] for name in node.input}
    with np.errstate(all="ignore"):
        results: Any = ReferenceEvaluator(node, opsets={"": scope.opset}).run(None, feeds)
    return np.asarray(results[0])


def _plain(attribute: onnx.AttributeProto) -> tuple[Any, ...]:
    """A type and a value that can be compared."""
    value = onnx.helper.get_attribute_value(attribute)
    values = value if isinstance(value, list) else [value]
    return attribute.type, *(x if isinstance(x, int | float | bytes) else str(x) for x in values)


@functools.cache
def _defaults(op_type: str, opset: int) -> dict[str, tuple[Any, ...]]:
    if not onnx.defs.has(op_type, opset, ""):
        return {}
    schema = onnx.defs.get_schema(op_type, opset, "")
    given = {name: each.default_value for name, each in schema.attributes.items()}
    return {name: _plain(each) for name, each in given.items() if each.name}


def _text(meaning: _Meaning) -> str:
    if meaning.title == "constant":
        dtype, shape, *elements = meaning.details
        if dtype != "text":
            elements = np.frombuffer(elements[0], dtype).reshape(shape).tolist()
        return f"the constant {textwrap.shorten(str(elements), 60)}"
    if meaning.title == "input":
        return f"input {meaning.details[-1]}"
    if meaning.title == "undefined":
        return f"{meaning.details[0]}, which is not defined"
    attributes = [f"{each[0]} = {each[-1]}" for each in meaning.details if isinstance(each, tuple)]
    text = f"{meaning.title}<{', '.join(attributes)}>" if attributes else meaning.title
    output = meaning.details[-1] if meaning.details else 0
    return f"{f'output {output} of ' if output else ''}{text}"
