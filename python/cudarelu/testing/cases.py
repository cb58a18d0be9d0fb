"""The test cases of an op, derived from its signature."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
import zlib
from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np

from .._onnx.definitions import function
from .._table import ONNX_NUMBERS, OpInfo, SizeExpression
from .inputs import draw

DTYPES = {
    name: np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name) for name in ONNX_NUMBERS
}


@dataclasses.dataclass(frozen=True, eq=False)
class Case:
    """A call: arrays by input name (None for an absent input), and the given attributes."""

    id: str
    inputs: dict[str, np.ndarray | None]
    attributes: dict[str, float | int | str]
    dtype: np.dtype = DTYPES["float32"]  # of T


@dataclasses.dataclass(frozen=True)
class Plan:
    """A case without its data."""

    id: str
    leading: tuple[int, ...]  # the dimensions for `*`
    size: int  # of the first named dimension; each further one is 2 larger
    layout: str = "contiguous"  # "unaligned", "transposed", "swapped", "expanded" or "strided"
    special: bool = False  # with NaN, infinities, -0.0 and subnormal numbers
    attributes: str = "default"  # "low", "high", or the index of the labels
    absent: tuple[str, ...] = ()
    broadcast: str = "not"  # of inputs that may broadcast; see `inputs.draw`
    choice: int = (
        0  # of the dtypes of inputs and variables that may have several; see `inputs.draw`
    )
    magnitude: float = 0.0  # the power of the dtype's largest number that values are multiplied by


def is_float(dtype: np.dtype) -> bool:
    return dtype.kind in "fV"  # the kind of bfloat16 is V


def is_product(op: OpInfo) -> bool:
    """Whether the definition has a matrix product."""
    return any(node.op_type in ("MatMul", "Gemm") for node in function(op).node)


def has_many_dimensions(op: OpInfo) -> bool:
    """Whether sizes must be small, since the operations for each row are their product."""
    return len(op.named_dimensions) > 4


def plans(op: OpInfo, dtype: np.dtype) -> Iterator[Plan]:
    """The plans of an op's cases: edge sizes, layouts, special values, attributes and absent
    inputs. Those whose sizes the op's expressions exclude are left out."""
    return (plan for plan in _plans(op, dtype) if sizes_of(op, plan) is not None)


def _plans(op: OpInfo, dtype: np.dtype) -> Iterator[Plan]:
    width = 16 // dtype.itemsize  # elements of a 16-byte vector
    many = has_many_dimensions(op)
    yield Plan("no-rows", (0,), 3)
    yield Plan("no-columns", (2,), 0)
    yield Plan("scalar", (), 1)
    yield Plan("one", (1,), 1)
    for n in (width - 1, width, width + 1, 4 * width + 3):
        if n > 1:
            yield Plan(f"{n}", (2 if many else n,), n)
    yield Plan("odd", (3, 1, 2) if many else (3, 5, 7), 13)
    yield Plan("large", (13, 5) if many else (130, 257), 9)
    yield Plan("wide", (), 259) if many else Plan("wide", (5,), 1031, attributes="high")
    yield Plan("rank-6", (2, 1, 3, 1, 2), 4)
    yield Plan("unaligned", (3 if many else 67,), 33, layout="unaligned")
    for layout in ("transposed", "swapped", "expanded", "strided"):
        yield Plan(layout, (6, 5), 7, layout=layout)
    yield Plan("special", (4 if many else 48,), 24, special=True)
    if op.attributes:
        yield Plan("attributes-low", (3,), 21, attributes="low")
        yield Plan("attributes-high", (3,), 21, attributes="high")
    for number in range(max((len(a.labels) for a in op.attributes), default=0)):
        yield Plan(f"labels-{number}", (130, 57), 24, special=True, attributes=str(number))
    if any(p.broadcasts for p in op.inputs):
        yield Plan("broadcast", (4, 3), 6, broadcast="partly")
        yield Plan("broadcast-leading", (3,), 17, broadcast="leading")
    if any(p.or_bool for p in op.inputs):
        yield Plan("boolean", (4, 3), 7, choice=1)
        # Without special values: what is not finite must not be hidden, see the op `attention`.
        yield Plan("boolean-broadcast", (3,), 19, broadcast="partly", choice=1)
    elif (count := max(len(op.dtypes_of(p)) for p in op.inputs)) > 1:
        for choice in range(1, count):
            yield Plan(f"dtypes-{choice}", (4, 3), 7, choice=choice)
    optional = [p.name for p in op.inputs if p.optional]
    counts = range(1, len(optional) + 1) if len(optional) <= 3 else (1, len(optional))
    for count in counts:
        for absent in itertools.combinations(optional, count):
            yield Plan("without-" + "-".join(absent), (5,), 11, absent=absent)


MAX_ELEMENTS = 1 << 23  # of a tensor of a case
MAX_OUTPUT_SIZE = 1024  # of an attribute that is a size of an output
MAX_TERM = 4  # of an attribute in an expression, which may multiply a size


def sizes_of(op: OpInfo, plan: Plan) -> dict[Any, int] | None:
    """A size for each name in dimensions, of attributes too; None if no sizes fit.

    The sizes differ, except with absent inputs: the input whose value an absent one takes must have
    the same shape. There are four offsets. Only the last dimension of a tensor may exceed 256,
    since the reference of a larger product takes long. All are halved until no tensor has more than
    `MAX_ELEMENTS`.
    """
    values = attribute_values(op, plan.attributes)
    given = {a.name: values.get(a.name, a.default) for a in op.attributes}
    attributes: dict[Any, Any] = {name: given[name] for name in op.size_attributes}
    if len(plan.leading) < op.fewest_rows(given):
        return None
    while True:
        sizes = fitting_sizes(op, plan.leading, _sizes_of(op, plan) | attributes)
        if sizes is None:
            return None
        tensors = (*op.inputs, *op.outputs)
        if all(math.prod(p.shape(plan.leading, sizes)) <= MAX_ELEMENTS for p in tensors):
            return sizes
        plan = dataclasses.replace(plan, size=plan.size // 2)


def fitting_sizes(
    op: OpInfo, leading: tuple[int, ...], sizes: dict[Any, int]
) -> dict[Any, int] | None:
    """The sizes, of which some are halved until no expression is negative; None if that fails."""
    dims = {dim for each in (*op.inputs, *op.outputs) for dim in each.dims}
    expressions = sorted((dim for dim in dims if isinstance(dim, SizeExpression)), key=str)
    while True:
        sizes = op.with_elements(leading, sizes)
        try:
            negative = next((each for each in expressions if each.value(sizes) < 0), None)
        except ZeroDivisionError:
            return None
        if negative is None:
            return sizes
        smaller = (
            sizes | {name: sizes[name] // 2}
            for name in negative.names
            if name not in op.size_attributes and sizes[name] > 1
        )
        value = negative.value(sizes)
        found = next((each for each in smaller if negative.value(each) > value), None)
        if found is None:
            return None
        sizes = found


def _sizes_of(op: OpInfo, plan: Plan) -> dict[Any, int]:
    sizes: dict[Any, int] = {}
    for parameter in op.inputs:
        named = [name for name in parameter.names if name not in op.size_attributes]
        for dim in reversed(named):
            if dim not in sizes:
                crowded = any(sizes.get(other, 0) > 256 for other in named)
                size = min(plan.size, 40) if crowded else plan.size
                apart = 0 if plan.absent else 2 * len(sizes)
                sizes[dim] = size + apart if size else 0
    sizes = op.with_multiples(sizes)
    for parameter in op.inputs:
        if parameter.offsets_into:
            sizes[parameter.dims[0]] = 4 if plan.size else 1
    return sizes


def special_values(dtype: np.dtype, subnormals: bool) -> np.ndarray:
    """The values for which kernels are most likely to be wrong."""
    if not is_float(dtype):
        limits = np.iinfo(dtype)
        return np.array([limits.min, limits.max, 0, limits.max - 1, 1, limits.min + 1], dtype)
    info: Any = ml_dtypes.finfo(dtype)
    values = [np.nan, np.inf, -np.inf, -0.0, 0.0, 1.0, -1.0]
    if subnormals:
        values += [float(info.tiny), float(info.smallest_subnormal)]
        values += [-float(info.tiny), -float(info.smallest_subnormal)]
    return np.array(values).astype(dtype)


@dataclasses.dataclass
class _Numbers:
    """Makes random arrays; implements `cudarelu.testing.inputs.Numbers`."""

    dtype: np.dtype  # of "T"
    exact: bool  # whether to use small integers, for which arithmetic is exact
    deviation: float  # of random numbers
    extra: np.ndarray | None  # special values to insert
    layout: str
    rng: np.random.Generator

    def offsets(self, batches: int, total: int) -> np.ndarray:
        ends = np.sort(self.rng.integers(0, total + 1, batches)).astype(np.int32)
        ends[-1:] = total
        return ends

    def positive(self, shape: tuple[int, ...]) -> np.ndarray:
        # Increasing values: few quotients by them are large.
        data = np.arange(1, np.prod(shape, dtype=int) + 1).reshape(shape).astype(self.dtype)
        return laid_out(data, self.layout)

    def any(self, shape: tuple[int, ...], dtype: str) -> np.ndarray:
        if dtype == "bool":
            return laid_out(self.rng.integers(0, 2, shape).astype(bool), self.layout)
        kind = self.dtype if dtype == "T" else DTYPES[dtype]
        return laid_out(self._values(shape, kind), self.layout)

    def _values(self, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        if not is_float(dtype):
            low = 0 if dtype.kind == "u" else -100
            data = self.rng.integers(low, 100, shape).astype(dtype)
        elif self.exact:
            data = self.rng.integers(-4, 5, shape).astype(dtype)
        else:
            data = self.rng.normal(0, self.deviation, shape).astype(dtype)
        extra = self.extra
        if extra is not None and is_float(extra.dtype) != is_float(dtype):
            extra = special_values(dtype, subnormals=False)
        if extra is not None and data.size:
            # At most one special value in a row, or the sum of each row would be NaN. The positions
            # differ between the inputs.
            flat = data.reshape(-1)
            step = 2 if data.ndim < 2 else data.shape[-1] + 1
            positions = np.arange(int(self.rng.integers(0, 2)), flat.size, step)
            values = extra if positions.size >= extra.size else self.rng.permutation(extra)
            flat[positions] = np.resize(values, positions.size)
        return data


def laid_out(array: np.ndarray, layout: str) -> np.ndarray:
    """The array with other strides and the same values; "expanded" repeats the first row."""
    if layout == "unaligned" and array.size:
        buffer = np.empty(array.size + 1, array.dtype)
        buffer[1:] = array.reshape(-1)
        return buffer[1:].reshape(array.shape)
    if layout == "transposed":
        return np.ascontiguousarray(array.T).T
    if layout == "swapped" and array.ndim > 2:  # as heads, whose rows are side by side
        return np.ascontiguousarray(array.swapaxes(-2, -3)).swapaxes(-2, -3)
    if layout == "expanded" and array.ndim > 1:
        return np.broadcast_to(array[:1], array.shape)
    if layout == "strided" and array.ndim > 0 and array.size:
        buffer = np.zeros((*array.shape[:-1], 2 * array.shape[-1]), array.dtype)
        buffer[..., ::2] = array
        return buffer[..., ::2]
    return array


def _stands_alone(op: OpInfo, attribute: str) -> bool:
    dims = {str(dim) for each in (*op.inputs, *op.outputs) for dim in each.dims}
    return attribute in dims


def attribute_values(op: OpInfo, choice: str) -> dict[str, Any]:
    """Attribute values that are exact in float32, ONNX's type; `choice` is a Plan's."""
    given: dict[str, Any] = {}
    for a in op.attributes:
        if choice == "default" and not a.required:
            continue
        if a.labels:
            numbers = {"low": 0, "high": len(a.labels) - 1, "default": 0}
            given[a.name] = a.labels[int(numbers.get(choice, choice)) % len(a.labels)]
            continue
        if a.type == "bool":
            given[a.name] = choice == "high"
            continue
        if a.name in op.axes:
            given[a.name] = 0 if choice == "low" else -1
        elif a.type == "int":
            high = int(a.highest or 40)
            if a.name in op.size_attributes:
                high = min(high, MAX_OUTPUT_SIZE if _stands_alone(op, a.name) else MAX_TERM)
            given[a.name] = {"low": int(a.lowest or 1), "high": high}.get(choice, 3)
        else:
            low = -0.5 if a.lowest is None else a.lowest
            given[a.name] = {"low": low, "high": 1.75}.get(choice, 0.375)
        if a.lowest is not None:
            given[a.name] = max(a.lowest, given[a.name])
        if a.highest is not None:
            given[a.name] = min(a.highest, given[a.name])
    return given


def make_case(op: OpInfo, dtype: np.dtype, plan: Plan) -> Case:
    """The case of a plan, with the same data in each process."""
    rng = np.random.default_rng(zlib.crc32(f"{op.short_name} {dtype} {plan.id}".encode()))
    # An output of indices is unique only if the arithmetic is exact.
    exact = any(p.dtype in ("int32", "int64") for p in op.outputs)
    # Exponentials of large sums would have the rounding of the sums in front of the decimal point.
    deviation = 0.5 if is_product(op) and "Exp(" in op.definition else 2.0
    if is_float(dtype):
        deviation *= float(ml_dtypes.finfo(dtype).max) ** plan.magnitude
    extra = None
    if plan.special:
        # Squares of subnormals are 0, and in bfloat16 products CPUs treat subnormals as 0.
        # A definition may scale a factor, which makes them 0, where a kernel scales the product.
        scales = is_product(op) and "Exp(" in op.definition
        bfloat16_product = is_product(op) and dtype == DTYPES["bfloat16"]
        subnormals = not (exact or scales or bfloat16_product)
        extra = special_values(dtype, subnormals)
    numbers = _Numbers(dtype, exact, deviation, extra, plan.layout, rng)
    sizes = sizes_of(op, plan)
    if sizes is None:
        raise ValueError(f"{op.short_name} has no sizes for the case {plan.id}")
    inputs = draw(op, plan.leading, sizes, numbers, plan.absent, plan.broadcast, plan.choice)
    return Case(plan.id, inputs, attribute_values(op, plan.attributes), dtype)


def output_dtypes(op: OpInfo, case: Case) -> list[np.dtype]:
    """The dtypes of the outputs of a case."""
    given = {name: array.dtype.name for name, array in case.inputs.items() if array is not None}
    return [DTYPES[name] for name in op.output_dtypes(case.dtype.name, given, case.attributes)]


def cases(op: OpInfo, dtype: np.dtype, *ids: str) -> list[Case]:
    """The cases of an op with these ids; all cases if no id is given.

    Args:
        op: an op of this library or of a loaded module.
        dtype: a value of `DTYPES`, for the type variable "T" of the signature.
        ids: ids of `plans(op, dtype)`.
    """
    return [make_case(op, dtype, plan) for plan in plans(op, dtype) if not ids or plan.id in ids]


@contextlib.contextmanager
def unchanged(*runs: Case) -> Iterator[None]:
    """Raises AssertionError if the block overwrites an input of a case."""
    before = [{n: None if a is None else a.tobytes() for n, a in c.inputs.items()} for c in runs]
    yield
    for case, inputs in zip(runs, before, strict=True):
        for name, array in case.inputs.items():
            if array is not None:
                assert array.tobytes() == inputs[name], f"{case.id}: {name} was overwritten"
