"""The documentation of an op in words, from its declaration."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from ._table import Attribute, OpInfo, Parameter


def docstring(op: OpInfo) -> str:
    """The docstring of the function of an op, as numpydoc has it."""
    arguments = [_tensor_entry(each) for each in op.inputs]
    arguments += [
        _entry(f"{each.name} : {kind(each)}", attribute_text(each)) for each in op.attributes
    ]
    results = [_tensor_entry(each) for each in op.outputs]
    parts = [
        op.summary,
        _section("Parameters", "\n".join(arguments)),
        _section("Returns", "\n".join(results)),
        _section("Notes", "\n\n".join(f"{name}: {text}" for name, text in notes(op))),
        _section("Examples", "\n".join(f">>> {line}" for line in example(op))),
    ]
    return "\n\n".join(parts)


def _section(title: str, body: str) -> str:
    return f"{title}\n{'-' * len(title)}\n{body}"


def _entry(head: str, text: str) -> str:
    return f"{head}\n    {text}"


def _tensor_entry(parameter: Parameter) -> str:
    text = "; ".join(filter(None, (tensor_text(parameter), conditions(parameter))))
    return _entry(f"{parameter.name} : Tensor" + ", optional" * parameter.optional, text)


def tensor_text(parameter: Parameter) -> str:
    """The dtype and the shape of an input or output."""
    return f"{parameter.dtype_text}{parameter.shape_text}"


def conditions(parameter: Parameter) -> str:
    """What else an input may or must be, and what an absent one stands for."""
    texts = []
    if parameter.broadcasts:
        texts.append("or a shape that broadcasts to it")
    if parameter.offsets_into:
        texts.append(f"the end of each batch of {parameter.offsets_into}")
    if parameter.positive:
        texts.append("greater than 0")
    if parameter.optional:
        texts.append(f"if absent: {parameter.if_absent}")
    return "; ".join(texts)


def kind(attribute: Attribute) -> str:
    """The type of an attribute, or its possible values."""
    labels = " or ".join(map(repr, attribute.labels))
    return (labels or attribute.type) + " or None" * attribute.optional


def attribute_text(attribute: Attribute) -> str:
    """The range and the default of an attribute."""
    bounds = []
    if attribute.lowest is not None:
        bounds.append(f"{attribute.lowest} or more")
    if attribute.highest not in (None, math.inf):
        bounds.append(f"{attribute.highest} or less")
    bounds.append("required" if attribute.required else f"default {attribute.default!r}")
    return ", ".join(bounds)


def notes(op: OpInfo) -> Iterator[tuple[str, str]]:
    """Names and texts of all else that a declaration says."""
    yield "T", ", ".join(op.dtypes)
    if relations := [f"{multiple} is a multiple of {size}" for size, multiple in op.divisibilities]:
        yield "Sizes", ", ".join(relations)
    counted = [each.offsets_into for each in op.inputs if each.offsets_into]
    if limits := [f"{size} is {2**31 - 1} or less" for size in counted]:  # offsets are int32
        yield "Limits", ", ".join(limits)
    yield "Gradient", " ".join(op.gradient.split()) or "none"
    if op.in_place:
        output, _, target = op.in_place.partition(" = ")
        writer = f"torch.ops.{op.namespace}.{op.name}_ writes"
        yield "In place", f"{writer if op.has_in_place_op else 'may write'} {output} over {target}"
    if op.autocast == "lower":
        yield "Under torch.autocast", "the dtype of autocast"
    elif op.autocast == "float32":
        yield "Under torch.autocast", "float32"
    elif "float16" in op.dtypes and [each.dtype for each in op.inputs].count("T") > 1:
        yield "Under torch.autocast", "float32 if an input is float32"
    alias = ""
    if op.onnx.alias:
        alias = f", also {'::'.join(op.onnx.alias)}({', '.join(op.onnx.alias_inputs)})"
    yield "ONNX", f"{op.onnx.domain}::{op.onnx.op_type}{alias}, version {op.onnx.version}"


def example(op: OpInfo) -> list[str]:
    """Lines of Python that call the op with its required inputs."""
    sizes = op.with_multiples({name: 2 + i for i, name in enumerate(op.named_dimensions)})
    sizes |= {each.dims[0]: 2 for each in op.inputs if each.offsets_into}
    sizes |= {
        each.name: int(_value(each) if each.default is None else each.default)
        for each in op.attributes
        if each.type == "int"
    }
    rows = (3,) * max(1, op.fewest_rows(sizes))
    sizes = op.with_elements(rows, sizes)
    inputs = [each for each in op.inputs if not each.optional]
    lines = [f"{each.name} = {_made(op, each, rows, sizes)}" for each in inputs]
    arguments = [each.name for each in inputs]
    arguments += [f"{a.name}={_value(a)!r}" for a in op.attributes if a.required]
    results = ", ".join(each.name for each in op.outputs)
    return [*lines, f"{results} = {op.namespace}.{op.name}({', '.join(arguments)})"]


def _made(op: OpInfo, parameter: Parameter, rows: tuple[int, ...], sizes: dict[Any, int]) -> str:
    """An expression that makes an input."""
    if parameter.offsets_into:
        total = sizes[parameter.offsets_into]
        return f"torch.tensor([{total // 2}, {total}], dtype=torch.int32)"
    shape = ", ".join(map(str, parameter.shape(rows, sizes)))
    dtype = op.dtypes_of(parameter)[0]
    if dtype == "T" and "float32" in op.dtypes:
        return f"torch.rand({shape}) + 1" if parameter.positive else f"torch.randn({shape})"
    return f"torch.ones({shape}, dtype=torch.{op.dtypes[0] if dtype == 'T' else dtype})"


def _value(attribute: Attribute) -> int | float | str:
    if attribute.labels:
        return attribute.labels[0]
    return max(1, attribute.lowest or 0)
