"""Decides whether nodes that match a pattern mean its op, and with which attributes."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import onnx.defs
import onnx.helper
import onnx_ir as ir

from .._onnx.definitions import lowest_opset
from .._onnx.expressions import SWAP, Attribute, Call, Input, Shape, is_linear, rows_of
from .._table import Parameter
from .patterns import Pattern
from .search import Found, constant, is_constant

_SHORT_MASKS = 24  # the opset from which Attention takes a mask for the first keys only


class Mismatch(Exception):
    """Why nodes that match a pattern are not replaced."""


class AttributeMismatch(Mismatch):
    """A mismatch of an attribute. A mismatch of another kind is reported before it."""


class Match:
    """Nodes that match a pattern."""

    def __init__(self, pattern: Pattern, found: Found, opset: int) -> None:
        if opset < (lowest := lowest_opset(pattern.op)):
            raise Mismatch(f"its definition needs opset {lowest}")
        self._op, self._labels, self._opset = pattern.op, pattern.labels, opset
        self._found = found
        self._result = found.values[pattern.expression]
        bound = {each: value for each, value in found.values.items() if isinstance(each, Input)}
        #: The values of the op's present inputs, by name.
        self.values: dict[str, Any] = {each.name: value for each, value in bound.items()}
        #: The names of the inputs to transpose.
        self.transposed = {each.name for each in bound if each.is_transposed}
        #: The inputs to expand to the first sizes of another one: its name, and how many of their
        #: last sizes stay.
        self.expanded: dict[str, tuple[str, int]] = {}
        self._constants = {
            each: value for each, value in found.values.items() if isinstance(each, Attribute)
        }
        self._inputs = [each for each in self._op.inputs if each.name in self.values]
        ranks = [self.values[each.name].shape for each in self._inputs if each.leads]
        self._rank = None if None in ranks else max(map(len, ranks), default=None)

    def check_uses(self, nodes: Collection[ir.Node], root: ir.Node) -> None:
        """Raises Mismatch if another node uses a value between the nodes, or if an output that the
        definition lacks is in use."""
        ours = [*self._found.values.values(), *(node.outputs[0] for node in nodes)]
        for node in nodes:
            for value in node.outputs:
                if value not in ours and (value.uses() or value.is_graph_output()):
                    raise Mismatch(f"{node.op_type} has outputs that the definition does not have")
        for node in (node for node in nodes if node is not root):
            for value in node.outputs:
                others = any(each.node not in nodes for each in value.uses())
                if others or value.is_graph_output() or value in self.values.values():
                    raise Mismatch(f"the result of {node.op_type} is used elsewhere too")

    def attributes(self) -> dict[str, int | float]:
        """The attributes of the op, from constants and from attributes of the nodes."""
        given: dict[str, Any] = dict(self._labels)
        for node, declared in self._found.nodes.items():
            given |= self._of_node(node, dict(declared))
        for attribute, constant_value in self._constants.items():
            array = _read(constant_value)
            assert array is not None
            if array.ndim > (self._rank or 0):
                raise Mismatch(f"its constant is of rank {array.ndim}, which may be more than x's")
            given[attribute.name] = _without_power(array.item(), attribute)
        result = {}
        for each in self._op.attributes:
            value = given.get(each.name)
            if value is None:
                value = each.onnx_value(each.default)
            with np.errstate(over="ignore"):
                exact = float(np.float32(value)) == value or value != value
            if each.type == "float" and not exact:
                raise Mismatch(f"{each.name} = {value} is not exact in float32, the type in ONNX")
            if each.labels and value not in each.onnx_labels:
                raise Mismatch(f"{each.name} = {value} is none of its {len(each.labels)} values")
            if wanted := each.outside(value):
                raise Mismatch(f"{each.name} = {value} is not in {wanted}")
            result[each.name] = float(value) if each.type == "float" else int(value)
        return result

    def _of_node(self, node: ir.Node, declared: dict[str, Any]) -> dict[str, Any]:
        """The op's attributes that a node gives. The node's others must be as declared."""
        x = node.inputs[0] if node.inputs else None
        if node.op_type == "InstanceNormalization" and len((x and x.shape) or ()) != 3:
            raise Mismatch(f"the instances of {node.op_type} are not known to be rows")
        bound = {}
        theirs = _defaults(node.op_type, self._opset)
        ours = _defaults(node.op_type, self._op.definition_opset)
        for name in sorted({*theirs, *ours, *declared, *node.attributes}):
            given = node.attributes.get(name)
            if given is not None and given.is_ref():
                raise Mismatch(f"the {name} of {node.op_type} is given by the function's caller")
            value: Any = theirs.get(name, ours.get(name)) if given is None else given.value
            written = value
            expected = declared.get(name, ours.get(name, theirs.get(name)))
            if isinstance(expected, Attribute):
                bound[expected.name] = value
                continue
            if isinstance(expected, Shape):
                continue
            if name == "axis" and _is_from_front(value) and not _is_from_front(expected):
                value -= self._rank_of(node, value)
            if name == "perm" and value is None and expected is not None:
                value = sorted(expected, reverse=True)
            if name == "perm" and expected is not None:  # of another rank
                value, expected = _from_back(value), _from_back(expected)
            if name == "axes" and value is not None and any(map(_is_from_front, value)):
                value = [each - self._rank_of(node, value) for each in value]
            if _plain(value) != _plain(expected):
                expected = _plain(expected)
                raise AttributeMismatch(
                    f"the {name} of {node.op_type} is {written}, not {expected}"
                )
        return bound

    @staticmethod
    def _rank_of(node: ir.Node, axis: Any) -> int:
        x = node.inputs[0]
        if x is None or x.shape is None:
            raise Mismatch(f"{node.op_type} has axis {axis} of a tensor of unknown rank")
        return len(x.shape)

    def check_inputs(self) -> dict[str, ir.TensorProtocol]:
        """Compares dtypes and shapes with the signature.

        Returns:
            The reshaped constants, by the op's inputs.
        """
        inputs = [(each, self.values[each.name]) for each in self._inputs]
        dtypes = {
            _dtype(value)
            for each, value in inputs
            if not each.or_bool or value.dtype != ir.DataType.BOOL
        }
        if len(dtypes) > 1 or not dtypes.issubset(self._op.dtypes):
            names = " and ".join(sorted(each or "of unknown dtype" for each in dtypes))
            raise Mismatch(f"{self._op.name} does not take inputs {names}")
        if len(inputs) == 1:
            return {}  # any shape fits the signature
        if self._op.axes:
            raise Mismatch(
                f"the attribute {min(self._op.axes)} of {self._op.name} places dimensions"
            )
        sizes: dict[Any, Any] = {}
        constants = {}
        # A shape that broadcasts is compared with the sizes of the others.
        for parameter, value in sorted(
            inputs, key=lambda each: (each[0].broadcasts, each[0].star < 0)
        ):
            if value.shape is None:
                raise Mismatch(f"the shape of {value.name} is not known")
            is_weight = parameter.name in self.transposed and parameter.star < 0
            if is_weight and not is_constant(value):
                raise Mismatch(f"{value.name} is not constant: it would be transposed in each run")
            if parameter.broadcasts:
                self._check_mask(parameter, sizes)
            elif not _fits(parameter, self._shape(parameter), sizes):
                constants[parameter.name] = self._broadcast(parameter, value, sizes)
        for divisor, multiple in self._op.divisibilities:
            if not _divides(sizes[divisor], sizes[multiple]):
                raise self._wrong_shapes()
        self._check_swaps()
        self._check_rows()
        return constants

    def _check_mask(self, mask: Parameter, sizes: dict[Any, Any]) -> None:
        """Checks an input that broadcasts: each size is 1 or the size of the other inputs.

        Separate nodes broadcast the other inputs, too. An input is expanded where its size is not
        known to be the size of the mask. The last size needs no proof: the product after it does
        not run otherwise.
        """
        shape, theirs = [*self.values[mask.name].shape], _full(mask, sizes)
        if len(shape) > len(theirs):
            raise self._wrong_shapes()
        if not any(node.op_type == "MatMul" for node in self._found.nodes):  # ONNX's Attention
            may_be_short = shape and shape[-1] != 1 and not _is_same(shape[-1], theirs[-1])
            if may_be_short and self._opset >= _SHORT_MASKS:
                raise self._wrong_shapes()
            return
        result = [*(self._result.shape or [None] * len(theirs))]
        unproven = [
            axis
            for axis, (size, other, y) in enumerate(
                zip(shape[::-1], theirs[::-1], result[::-1], strict=False)
            )
            if size != 1
            and not _is_same(size, other)
            and not _is_same(other, y)
            and not (isinstance(other, int) and other > 1)
        ]
        for each in self._inputs:
            pairs = zip(each.own_dims, mask.own_dims, strict=False)
            shared = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
            stay = len(each.own_dims) - shared
            if each is not mask and any(axis >= stay for axis in unproven):
                self.expanded[each.name] = mask.name, stay

    def _check_rows(self) -> None:
        """Raises Mismatch where a Reshape before and one after a product may do more than to make a
        matrix of the rows and to undo this."""
        values = self._found.values
        for each, result in values.items():
            if not is_linear(each) or each.operands[0] not in values:
                continue
            first, *parameters = each.operands
            assert first is not None
            if (rows := rows_of(first)) not in values:
                continue
            product = values[dataclasses.replace(each, operands=(rows, *parameters))]
            used = [values[first], values[rows], product, result]
            shapes = [[] if value.shape is None else [*value.shape] for value in used]
            if [] in shapes:
                raise Mismatch(f"the shape of {used[shapes.index([])].name} is not known")
            x, matrix, columns, y = shapes
            if len(matrix) != 2 or not _is_same(matrix[-1], x[-1]):
                raise Mismatch(f"{used[1].name} is not known to have the rows of {used[0].name}")
            expected = [*x[:-1], columns[-1]]
            if not _are_same(y, expected) and not _differ_in_one_size(y, expected):
                raise Mismatch(f"{result.name} is not known to have the shape of {used[0].name}")

    def _check_swaps(self) -> None:
        """Raises Mismatch where a Reshape before and one after a Transpose may do more than it."""
        for each, value in self._found.values.items():
            if not isinstance(each, Call) or Shape() not in each.operands or each.attributes:
                continue
            (x, _), values = each.operands, self._found.values
            assert x is not None
            whole, flat = values[x].shape, value.shape
            transposed = values[Call("Transpose", (x,), SWAP)].shape
            if whole is None or transposed is None or flat is None:
                raise Mismatch(f"the shape of {value.name} is not known")
            *leading, rows, columns = whole
            if not (
                _are_same([*transposed], [*leading, columns, rows])
                and len(flat) == 3
                and _are_same([*flat][1:], [rows, columns])
            ):
                raise Mismatch(f"{value.name} has another shape than a matrix of each head")

    def _broadcast(self, parameter: Parameter, value: Any, sizes: dict) -> ir.TensorProtocol:
        """A constant in the shape of the signature, where it broadcasts to that."""
        if parameter.star >= 0:
            raise self._wrong_shapes()
        shape = [sizes.get(dim, dim) for dim in parameter.dims]
        known = all(isinstance(dim, int) for dim in (*shape, *value.shape))
        own = list(value.shape)[max(0, len(value.shape) - len(shape)) :]
        more = list(value.shape)[: len(value.shape) - len(own)]
        fits = known and all(
            dim in (1, wanted) for dim, wanted in zip(own[::-1], shape[::-1], strict=False)
        )
        if not fits or len(value.shape) > (self._rank or 0) or not {*more} <= {1}:
            raise self._wrong_shapes()
        if (array := _read(value)) is None:
            raise self._wrong_shapes()
        return ir.tensor(np.ascontiguousarray(np.broadcast_to(array.reshape(own), shape)))

    def _shape(self, parameter: Parameter) -> list[Any]:
        shape = list(self.values[parameter.name].shape)
        is_matrix = parameter.name in self.transposed and len(shape) > 1
        return [*shape[:-2], *shape[:-3:-1]] if is_matrix else shape

    def _wrong_shapes(self) -> Mismatch:
        shapes = [
            f"{each.name} [{', '.join(map(_size, self._shape(each)))}]" for each in self._inputs
        ]
        wanted = [f"{each.name} [{', '.join(map(str, each.dims))}]" for each in self._inputs]
        return Mismatch(f"{', '.join(shapes)} is not known to be {', '.join(wanted)}")


def _read(value: ir.Value) -> np.ndarray | None:
    """The elements of a constant; None if the value is not constant."""
    try:
        return constant(value)
    except OSError as error:
        raise Mismatch(f"the data of {value.name} cannot be read") from error


def _fits(parameter: Parameter, shape: list[Any], sizes: dict[Any, Any]) -> bool:
    """Whether a shape fits the signature with the sizes in `sizes`, which gets the new ones."""
    own = parameter.own_dims
    if len(shape) < len(own) or (len(shape) > len(own) and parameter.star < 0):
        return False
    own_sizes, rows = parameter.without_star(shape)
    found: dict[Any, Any] = dict(zip(own, own_sizes, strict=True))
    if parameter.star >= 0:
        found |= {"*": len(rows)} | {("*", axis): size for axis, size in enumerate(rows)}
    for name, size in found.items():
        if isinstance(name, int):
            sizes.setdefault(name, name)
        if not _is_same(size, sizes.setdefault(name, size)):
            return False
    return True


def _full(parameter: Parameter, sizes: dict[Any, Any]) -> list[Any]:
    """The shape to which an input broadcasts."""
    rows = [sizes["*", axis] for axis in range(sizes["*"])] if parameter.star >= 0 else []
    return parameter.with_star([sizes.get(each, each) for each in parameter.own_dims], rows)


def _is_from_front(axis: Any) -> bool:
    return isinstance(axis, int) and axis >= 0


def _from_back(perm: Sequence[int]) -> list[int]:
    """The part of a permutation after the first dimensions that stay, counted from the back."""
    rank = len(perm)
    stay = next((i for i, axis in enumerate(perm) if i != axis), rank)
    return [axis - rank for axis in perm[stay:]]


def _plain(value: Any) -> Any:
    """An attribute's value, of onnx or of onnx_ir, to be compared."""
    if isinstance(value, bytes):
        return value.decode()
    return list(map(_plain, value)) if isinstance(value, list | tuple) else value


def _is_same(a: Any, b: Any) -> bool:
    """Whether two sizes are known to be equal; their names are given by `inferred`."""
    return a is b or (a == b and (isinstance(a, int) or a.value is not None))


def _differ_in_one_size(a: Sequence[Any], b: Sequence[Any]) -> bool:
    """Whether all sizes but one are the same numbers above 0: if the tensors have as many elements,
    so is this one."""
    same = [y for x, y in zip(a, b, strict=False) if _is_same(x, y)]
    known = all(isinstance(size, int) and size > 0 for size in same)
    return len(a) == len(b) == len(same) + 1 and known


def _are_same(a: Sequence[Any], b: Sequence[Any]) -> bool:
    return len(a) == len(b) and all(map(_is_same, a, b))


def _divides(divisor: Any, size: Any) -> bool:
    if isinstance(divisor, int) and isinstance(size, int):
        return size % divisor == 0 if divisor else size == 0
    return divisor == 1 or _is_same(divisor, size)


def _without_power(value: float, attribute: Attribute) -> float:
    """The attribute, given a constant that is a power of it, in float32 as in a model."""
    if attribute.power == 1:
        return value
    if value == 0:
        raise Mismatch(f"{attribute.name} is given by a constant that is 0")
    return float(np.float32(value ** (1 / attribute.power)))


def _size(dim: Any) -> str:
    return str(dim) if isinstance(dim, int) else dim.value or "?"


def _dtype(value: ir.Value) -> str | None:
    return None if value.dtype is None else value.dtype.numpy().name


@functools.cache
def _defaults(op_type: str, opset: int) -> dict[str, Any]:
    """The attributes of an operator, with their defaults; none in an opset that lacks it."""
    if not onnx.defs.has(op_type, opset, ""):
        return {}
    attributes = onnx.defs.get_schema(op_type, opset, "").attributes
    return {
        name: onnx.helper.get_attribute_value(each.default_value)
        if each.default_value.name
        else None
        for name, each in attributes.items()
    }
