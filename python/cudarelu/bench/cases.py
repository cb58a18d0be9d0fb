"""The cases of an op, derived from its signature, so that a new op needs no code here."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from .._onnx.definitions import function
from .._table import OpInfo, Parameter
from ..testing.cases import is_product
from ..testing.inputs import draw, equal_batches

Inputs = list[torch.Tensor | None]


@dataclass(frozen=True)
class Case:
    """A call: the values of `*`, of the named dimensions and of the attributes.

    It has the optional inputs that `optional` names, and those that a number can replace.
    """

    op: OpInfo
    dtype: str
    leading: tuple[int, ...]
    sizes: dict[str, int]
    attributes: Mapping[str, Any]
    device: str = "cuda"
    threads: int = field(default=1, kw_only=True)  # on the CPU
    optional: tuple[str, ...] = field(default=(), kw_only=True)

    def _known_sizes(self) -> dict[Any, Any]:
        known: dict[Any, Any]  # an attribute may be the size of an output
        known = {**self.sizes, **self.attributes}
        for each in self.op.inputs:
            if each.optional and each.default_input:
                default_input = next(p for p in self.op.inputs if p.name == each.default_input)
                known |= {
                    name: known[other]
                    for name, other in zip(each.dims, default_input.dims, strict=True)
                    if isinstance(name, str) and name != "*" and name not in known
                }
        return known

    def shape(self, parameter: Parameter) -> tuple[int, ...]:
        sizes = self.op.with_elements(self.leading, self._known_sizes())
        return parameter.shape(self.leading, sizes)

    def torch_dtype(self, parameter: Parameter) -> torch.dtype:
        dtype = self.op.dtypes_of(parameter)[0]
        return getattr(torch, self.dtype if dtype == "T" else dtype)

    def has(self, parameter: Parameter) -> bool:
        named = parameter.name in self.optional or parameter.number is not None
        return not parameter.optional or named

    @property
    def given(self) -> list[Parameter]:
        return [each for each in self.op.inputs if self.has(each)]

    @property
    def label(self) -> str:
        """The shapes of the inputs: "8192x4096 4096". Optional inputs that show in none of them are
        named: "1000x3 3 with start, end"."""
        named = [each for each in self.given if each.name in self.optional]
        required = self._shapes(each for each in self.given if each not in named)
        label = self._shapes(self.given)
        if not named or label != required:
            return label
        return f"{label} with {', '.join(each.name for each in named)}"

    def _shapes(self, parameters: Iterable[Parameter]) -> str:
        shapes = ["x".join(map(str, self.shape(each))) or "scalar" for each in parameters]
        return " ".join(dict.fromkeys(shapes))

    @property
    def elements(self) -> int:
        """The elements of the largest input."""
        return max(math.prod(self.shape(each)) for each in self.given)

    @property
    def columns(self) -> int:
        """The last dimension of the largest input."""
        shapes = [self.shape(each) for each in self.given]
        return max(shapes, key=math.prod)[-1]

    @property
    def bytes(self) -> int:
        """The bytes that a call must move: each input that the op reads and each output, once."""
        moved = [each for each in self.given if each.name in _read_inputs(self.op)]
        return sum(
            math.prod(self.shape(each)) * self.torch_dtype(each).itemsize
            for each in (*moved, *self.op.outputs)
        )

    @property
    def operations(self) -> int | None:
        """The multiplications and additions of a matrix product, or one for each element of the
        largest input. None for other ops with products, such as attention."""
        if self.op.product:
            sizes = (self.sizes[name] for name in self.op.named_dimensions)
            return 2 * math.prod(self.leading) * math.prod(sizes)
        return None if is_product(self.op) else self.elements

    def inputs(self) -> Inputs:
        """Returns random data on the device: normal numbers, small integers, equal batches."""
        generator = torch.Generator(self.device).manual_seed(0)
        absent = [each.name for each in self.op.inputs if not self.has(each)]
        numbers = _Numbers(getattr(torch, self.dtype), self.device, generator)
        return list(draw(self.op, self.leading, self._known_sizes(), numbers, absent).values())


@dataclass
class _Numbers:
    """Random tensors, by `cudarelu.testing.inputs.Numbers`."""

    dtype: torch.dtype
    device: str
    generator: torch.Generator

    def offsets(self, batches: int, total: int) -> torch.Tensor:
        return torch.tensor(equal_batches(batches, total), dtype=torch.int32, device=self.device)

    def positive(self, shape: tuple[int, ...]) -> torch.Tensor:
        uniform = torch.rand(shape, generator=self.generator, device=self.device)
        return uniform.add_(0.5).to(self.dtype)

    def any(self, shape: tuple[int, ...], dtype: str) -> torch.Tensor:
        kind = self.dtype if dtype == "T" else getattr(torch, dtype)
        options: Any = {"generator": self.generator, "dtype": kind, "device": self.device}
        if kind.is_floating_point:
            # A statistic in float32, the logarithm of a sum of exponentials, is above most of them.
            return torch.randn(shape, **options) + (0 if dtype == "T" else 5)
        if kind == torch.bool:
            return torch.randint(0, 2, shape, **options)
        return torch.randint(max(-100, torch.iinfo(kind).min), 100, shape, **options)


@functools.cache
def _read_inputs(op: OpInfo) -> frozenset[str]:
    """Returns the inputs of which the op reads more than the shape."""
    nodes = function(op).node
    return frozenset(name for node in nodes if node.op_type != "Shape" for name in node.input)


def is_by_rows(op: OpInfo) -> bool:
    """Returns whether each row of the outputs depends only on the same row of the inputs."""
    return op.star_leads and not op.axes and all(each.leads for each in op.outputs)


def leads(op: OpInfo) -> bool:
    """Returns whether the op takes tensors of any number of dimensions."""
    return any(each.star >= 0 for each in op.inputs)


def streams(op: OpInfo) -> bool:
    """Returns whether the op takes rows or elements and no matrices.

    The products of matrices take longer than their reads and writes.
    """
    parameters = [*op.inputs, *op.outputs]
    return leads(op) and all(len(each.own_dims) <= 1 for each in parameters)


def default_attributes(op: OpInfo) -> dict[str, Any]:
    """Returns attributes; a float is 0.5, which changes every result and is exact in float32."""
    return {
        each.name: 0.5
        if each.type == "float" and not each.optional
        else each.default
        if not each.required
        else -1
        if each.name in op.axes
        else int(each.lowest or 1)
        for each in op.attributes
    }


def sized(op: OpInfo, dtype: str, elements: int, columns: int = 1024, **options: Any) -> Case:
    """Returns a case of one batch whose largest input has about `elements` elements.

    An op on rows gets rows of at most `columns` elements.
    """
    named = op.named_dimensions
    columns = min(columns, elements) if leads(op) else elements
    sizes: dict[Any, int] = dict.fromkeys(named, columns)
    sizes |= {each.dims[0]: 1 for each in op.inputs if each.offsets_into and not each.optional}
    if not leads(op):  # points, of three coordinates
        sizes |= {dim: 3 for each in op.inputs for dim in each.dims[1:] if isinstance(dim, str)}
    leading = (max(1, elements // columns if named else elements),) if leads(op) else ()
    return Case(op, dtype, leading, sizes, default_attributes(op), **options)


def with_rows(op: OpInfo, dtype: str, rows: int, columns: int, **options: Any) -> Case:
    sizes = dict.fromkeys(op.named_dimensions, columns)
    leading = (rows,) if sizes else (rows, columns)
    return Case(op, dtype, leading, sizes, default_attributes(op), **options)


def clones(inputs: Inputs, count: int) -> list[Inputs]:
    """Returns the inputs and `count - 1` copies."""
    copies: Iterable[Inputs] = (
        [None if each is None else each.clone() for each in inputs] for _ in range(count - 1)
    )
    return [inputs, *copies]
