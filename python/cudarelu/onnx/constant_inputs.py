"""Constant inputs that a boolean attribute of an op stands for, such as the mask of causal
attention, which exporters write out as a tensor."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx_ir as ir
from onnx.reference import ReferenceEvaluator

from .._pytorch.functions import FUNCTIONS
from .._table import Attribute, OpInfo
from .search import read_constant

_MAX_ELEMENTS = 1 << 26  # of an input


def replaced_by_attributes(
    op: OpInfo, values: Mapping[str, ir.Value], attributes: Mapping[str, Any], opset: int
) -> tuple[list[str], dict[str, Any]]:
    """The optional inputs that a call of an op does not need, and its attributes without them.

    An input is not needed if

    - it is computed from constants,
    - none of its dimensions broadcasts, and
    - a boolean attribute that is false now replaces it: the op has the same results for random
      numbers.

    Args:
        op: the op.
        values: its inputs, by name.
        attributes: of the call, by name.
        opset: of the model.
    """
    left_out, result = [], dict(attributes)
    flags = [each.name for each in op.attributes if each.type == "bool"]
    if not flags or "float64" not in op.dtypes:
        return [], result
    for parameter in op.inputs:
        value = values.get(parameter.name)
        if value is None or not parameter.optional or parameter.star > 0 or op.axes:
            continue
        dims = [each for each in parameter.dims if each != "*"]
        sizes = _sizes(op, values, dims, value)
        array = folded(value, opset) if sizes else None
        if array is None or sizes is None:
            continue
        array = array.reshape([sizes[each] for each in dims if each in sizes])
        for name in flags:
            if not result[name] and _are_same(op, parameter.name, array, sizes, result, name):
                left_out.append(parameter.name)
                result[name] = 1
                break
    return left_out, result


def folded(value: ir.Value, opset: int) -> np.ndarray | None:
    """The elements of a value that is computed from constants and from known shapes.

    None if the value is computed from others or is large.
    """

    @functools.cache
    def found(value: ir.Value) -> np.ndarray | None:
        if value.is_graph_input() or (value.shape is not None and not _is_small(value.shape)):
            return None
        if (array := read_constant(value)) is not None:
            return array
        node = value.producer()
        if node is None or node.domain or len(node.outputs) != 1 or not node.inputs:
            return None
        arrays: dict[str, Any] = {}
        for each in filter(None, node.inputs):
            if (
                node.op_type == "Shape"
                and each.shape is not None
                and _is_small(each.shape, 1 << 62)
            ):
                sizes = [size for size in each.shape if isinstance(size, int)]
                arrays[str(each.name)] = np.broadcast_to(np.float32(0), sizes)  # takes no memory
            elif (array := found(each)) is not None:
                arrays[str(each.name)] = array
            else:
                return None
        try:
            evaluator = ReferenceEvaluator(ir.to_proto(node), opsets={"": opset})
            (result,) = evaluator.run(None, arrays)
        # Of many types: for an operator that it lacks, or a value of an outer graph.
        except Exception:
            return None
        return np.asarray(result)

    return found(value)


def _is_small(shape: ir.Shape, max_elements: int = _MAX_ELEMENTS) -> bool:
    sizes = [each for each in shape if isinstance(each, int)]
    return len(sizes) == len(shape) and math.prod(sizes) <= max_elements


def _sizes(
    op: OpInfo, values: Mapping[str, ir.Value], dims: list[Any], value: ir.Value
) -> dict[Any, int] | None:
    """The sizes of an input's last dimensions by name, from the first one that is not 1.

    None if all are 1, or if other inputs do not have the same sizes.
    """
    shape = [] if value.shape is None else list(value.shape)
    while shape and shape[0] == 1:
        shape.pop(0)
    known = set()
    for each in op.inputs:
        other = values.get(each.name)
        if other is None or other is value or other.shape is None or each.star > 0:
            continue
        known |= {*zip(each.dims[::-1], list(other.shape)[::-1], strict=False)}
    found = dict(zip(dims[::-1], shape[::-1], strict=False))
    if not shape or len(shape) > len(dims) or not found.items() <= known:
        return None
    return found


def _are_same(
    op: OpInfo,
    name: str,
    array: np.ndarray,
    sizes: Mapping[Any, int],
    attributes: Mapping[str, Any],
    flag: str,
) -> bool:
    """Whether an op has the same results with an input as with a flag.

    Its required inputs are random float64 numbers. A dimension that the array lacks has size 3: in
    a dimension of size 1, an array that broadcasts could not be told from one that does not.
    """
    random = np.random.default_rng(0)
    arrays: list[np.ndarray | None] = []
    known = op.with_elements((), dict.fromkeys(op.named_dimensions, 3) | {**attributes, **sizes})
    for parameter in op.inputs:
        shape = parameter.shape((), known)
        arrays.append(None if parameter.optional else random.normal(size=shape))
    given = {each.name: _given(each, attributes[each.name]) for each in op.attributes}
    call = FUNCTIONS[op.qualified_name]
    without = call(*arrays, **given | {flag: True})
    index = [each.name for each in op.inputs].index(name)
    arrays[index] = array if array.dtype == bool else array.astype(np.float64)
    return np.allclose(call(*arrays, **given), without, rtol=1e-12, atol=1e-12, equal_nan=True)


def _given(attribute: Attribute, value: Any) -> Any:
    """The value of an attribute of a node as a call takes it."""
    if attribute.labels:
        return attribute.labels[attribute.onnx_labels.index(value)]
    return bool(value) if attribute.type == "bool" else value
