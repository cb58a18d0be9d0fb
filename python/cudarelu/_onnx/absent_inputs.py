"""The values of absent inputs, as nodes that compute them in a model and as arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx
import onnx.helper
import onnx.numpy_helper

from .._table import OpInfo, Parameter
from .graphs import NewNames


def add_default_inputs(
    op: OpInfo, given: dict[str, str], new_name: Callable[[str], str]
) -> list[onnx.NodeProto]:
    """Gives a value to each absent input that stands for one.

    Args:
        op: the op that is called.
        given: the name of the value of each input; an input is absent if its value is "" or it has
            no entry. This function fills in absent inputs, with "" if the op runs without a value.
        new_name: makes a name unique.

    Returns:
        The nodes that compute the values.
    """
    nodes: list[onnx.NodeProto] = []
    for each in op.inputs:
        if not given.get(each.name):
            added = _nodes(op, each, given, new_name)
            given[each.name] = (
                added[-1].output[0] if added else given.get(each.default_input or "", "")
            )
            nodes += added
    return nodes


def _nodes(
    op: OpInfo, parameter: Parameter, given: Mapping[str, str], new_name: Callable[[str], str]
) -> list[onnx.NodeProto]:
    """The nodes that compute the value of an absent input; empty if no value must be computed."""
    nodes: list[onnx.NodeProto] = []

    def add(op_type: str, *inputs: str, **attributes: Any) -> str:
        output = new_name(f"{parameter.name}_{op_type}")
        nodes.append(onnx.helper.make_node(op_type, inputs, [output], **attributes))
        return output

    # Tensors, since tools read no other attribute of a Constant.
    own = np.float32 if parameter.variable else np.dtype(parameter.dtype).type
    number = _tensor([parameter.number or 0], own)
    typed = next(
        (x.name for x in op.inputs if x.required and x.dtype == parameter.variable), None
    )  # an input that has its dtype
    if parameter.number is not None and parameter.broadcasts:
        scalar = add("Constant", value=_tensor(parameter.number, own))
        if typed:
            add("CastLike", scalar, given[typed])
    elif parameter.number is not None:
        required = [each for each in op.inputs if not (each.optional or each.broadcasts)]
        like = next((each for each in required if each.dims == parameter.dims), None)
        if like is not None:
            shape = add("Shape", given[like.name])
        else:
            sizes = []
            for dim in parameter.dims:
                source = next(each for each in required if dim in each.dims)
                # An end of 0 is the last one. That of `*` counts from the end: it has any rank.
                i = source.dims.index(dim)
                start, end = source.axis_of(i), source.axis_of(i) + 1
                if dim == "*":
                    start, end = i, i + 1 - len(source.dims)
                bounds = {"start": start} if dim != "*" or start else {}
                bounds |= {"end": end} if end else {}
                sizes.append(add("Shape", given[source.name], **bounds))
            shape = add("Concat", *sizes, axis=0) if len(sizes) > 1 else sizes[0]
        filled = add("ConstantOfShape", shape, value=number)
        if typed:
            add("CastLike", filled, given[typed])
    elif parameter.extreme:
        kind, name = parameter.extreme
        axes = add("Constant", value=_tensor([0], np.int64))
        add({"min": "ReduceMin", "max": "ReduceMax"}[kind], given[name], axes, keepdims=0)
    return nodes


def _tensor(elements: Any, dtype: type) -> onnx.TensorProto:
    return onnx.numpy_helper.from_array(np.array(elements, dtype))


def with_default_inputs(
    op: OpInfo, arrays: Mapping[str, np.ndarray | None]
) -> dict[str, np.ndarray | None]:
    """The arrays of all inputs by name, where the values of absent inputs replace None."""
    values: dict[str, Any] = {name: each for name, each in arrays.items() if each is not None}
    given = {name: name for name in values}
    nodes = add_default_inputs(op, given, NewNames(values))
    if nodes:
        from onnx.reference import ReferenceEvaluator  # takes long to import

        opset = onnx.helper.make_opsetid("", op.definition_opset)
        outputs = [name for name in given.values() if name and name not in values]
        body = onnx.helper.make_function("", "absent", list(values), outputs, nodes, [opset])
        computed = ReferenceEvaluator(body).run(None, values, attributes={})
        values |= zip(outputs, computed, strict=True)
    return {each.name: values.get(given[each.name]) for each in op.inputs}
