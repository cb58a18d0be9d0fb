"""The cases of an op, read off its signature: a new op has them without a line here."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import zlib

import ml_dtypes
import numpy as np

from cudarelu.onnx import function

DTYPES = {
    name: np.dtype(getattr(ml_dtypes if name == "bfloat16" else np, name))
    for name in (
        "float32",
        "float64",
        "float16",
        "bfloat16",
        "int8",
        "uint8",
        "int32",
        "int64",
    )
}


@dataclasses.dataclass(frozen=True, eq=False)
class Case:
    """One call: arrays by input name (None: left out) and the attributes that are given."""

    id: str
    inputs: dict[str, np.ndarray | None]
    attributes: dict[str, float | int | str]


@dataclasses.dataclass(frozen=True)
class Plan:
    """What a case is made of, before there is data."""

    id: str
    leading: tuple[int, ...]
    size: int  # of the first named dimension; those after it are a little larger
    layout: str = "contiguous"
    special: bool = False
    attributes: str = "default"  # "low", "high", or the number of the labels
    absent: tuple[str, ...] = ()


def is_float(dtype: np.dtype) -> bool:
    return dtype.kind in "fV"  # NumPy shows bfloat16 as V


def is_product(op) -> bool:
    return any(node.op_type in ("MatMul", "Gemm") for node in function(op).node)


def plans(op, dtype: np.dtype):
    """Yield the plans of an op's cases: sizes at the edges, layouts, special values, attributes,
    and inputs left out."""
    width = 16 // dtype.itemsize  # elements of a 16-byte vector
    yield Plan("no-rows", (0,), 3)
    yield Plan("no-columns", (2,), 0)
    yield Plan("scalar", (), 1)
    yield Plan("one", (1,), 1)
    for n in (width - 1, width, width + 1, 4 * width + 3):
        if n > 1:
            yield Plan(f"{n}", (n,), n)
    yield Plan("odd", (3, 5, 7), 13)
    yield Plan("large", (130, 257), 9)
    yield Plan("wide", (5,), 1031, attributes="high")
    yield Plan("rank-6", (2, 1, 3, 1, 2), 4)
    yield Plan("unaligned", (67,), 33, layout="unaligned")
    yield Plan("transposed", (6, 5), 7, layout="transposed")
    yield Plan("expanded", (6, 5), 7, layout="expanded")
    yield Plan("strided", (6, 5), 7, layout="strided")
    yield Plan("special", (48,), 24, special=True)
    if op.attributes:
        yield Plan("attributes-low", (3,), 21, attributes="low")
        yield Plan("attributes-high", (3,), 21, attributes="high")
    for number in range(max((len(a.labels) for a in op.attributes), default=0)):
        yield Plan(f"labels-{number}", (130, 57), 24, special=True, attributes=str(number))
    optional = [p.name for p in op.inputs if p.optional]
    for count in range(1, len(optional) + 1):
        for absent in itertools.combinations(optional, count):
            yield Plan("without-" + "-".join(absent), (5,), 11, absent=absent)


def sizes_of(op, plan: Plan) -> dict[str, int]:
    """A size for each named dimension, all different; with inputs left out all the same, since a
    stand-in binds the same dimension. There are four offsets. One dimension of a tensor may be
    wide, its last; the reference of a product of more would take long."""
    sizes: dict[str, int] = {}
    for parameter in op.inputs:
        named = [dim for dim in parameter.dims if isinstance(dim, str) and dim != "*"]
        for dim in reversed(named):
            if dim not in sizes:
                crowded = any(sizes.get(other, 0) > 256 for other in named)
                size = min(plan.size, 40) if crowded else plan.size
                apart = 0 if plan.absent else 2 * len(sizes)
                sizes[dim] = size + apart if size else 0
    for parameter in op.inputs:
        if parameter.offsets_into:
            sizes[parameter.dims[0]] = 4 if plan.size else 1
    return sizes


def special_values(dtype: np.dtype, subnormals: bool) -> np.ndarray:
    """Values that go wrong first."""
    if not is_float(dtype):
        limits = np.iinfo(dtype)
        return np.array([limits.min, limits.max, 0, limits.max - 1, 1, limits.min + 1], dtype)
    limits = ml_dtypes.finfo(dtype)
    values = [np.nan, np.inf, -np.inf, -0.0, 0.0, 1.0, -1.0]
    if subnormals:
        values += [float(limits.tiny), float(limits.smallest_subnormal)]
        values += [-float(limits.tiny), -float(limits.smallest_subnormal)]
    return np.array(values).astype(dtype)


def values(shape, dtype: np.dtype, exact: bool, extra: np.ndarray | None, rng) -> np.ndarray:
    if not is_float(dtype):
        data = rng.integers(0 if dtype.kind == "u" else -100, 100, shape).astype(dtype)
    elif exact:
        data = rng.integers(-4, 5, shape).astype(dtype)
    else:
        data = rng.normal(0, 2, shape).astype(dtype)
    if extra is not None and data.size:
        # One special value a row, so that a row's sum is not always NaN; places differ by input.
        flat = data.reshape(-1)
        step = 2 if data.ndim == 1 else data.shape[-1] + 1
        places = np.arange(int(rng.integers(0, 2)), flat.size, step)
        assert places.size >= extra.size or data.ndim > 1
        flat[places] = np.resize(extra, places.size)
    return data


def laid_out(array: np.ndarray, layout: str) -> np.ndarray:
    """The same values (for `expanded`, those of the first row) with other strides."""
    if layout == "unaligned" and array.size:
        buffer = np.empty(array.size + 1, array.dtype)
        buffer[1:] = array.reshape(-1)
        return buffer[1:].reshape(array.shape)
    if layout == "transposed":
        return np.ascontiguousarray(array.T).T
    if layout == "expanded" and array.ndim > 1:
        return np.broadcast_to(array[:1], array.shape)
    if layout == "strided" and array.size:
        buffer = np.zeros((*array.shape[:-1], 2 * array.shape[-1]), array.dtype)
        buffer[..., ::2] = array
        return buffer[..., ::2]
    return array


def attribute_values(op, choice: str) -> dict[str, float | int | str]:
    """Values that float32 holds exactly, since an ONNX attribute is a float32; of an enumeration, a
    label by its number."""
    given: dict[str, float | int | str] = {}
    for a in op.attributes:
        if choice == "default" and not a.required:
            continue
        if a.labels:
            numbers = {"low": 0, "high": len(a.labels) - 1, "default": 0}
            given[a.name] = a.labels[int(numbers.get(choice, choice)) % len(a.labels)]
        elif a.type == "int":
            given[a.name] = {"low": int(a.lowest or 1), "high": int(a.highest or 40)}.get(choice, 3)
        else:
            low = -0.5 if a.lowest is None else a.lowest
            given[a.name] = {"low": low, "high": 1.75}.get(choice, 0.375)
    return given


def make_case(op, dtype: np.dtype, plan: Plan) -> Case:
    rng = np.random.default_rng(zlib.crc32(f"{op.name} {dtype} {plan.id}".encode()))
    # Where an answer is an index, inputs whose arithmetic is exact make it the only one.
    exact = any(p.dtype != "T" for p in op.outputs)
    extra = None
    if plan.special:
        # The squares of subnormals vanish, and a CPU's products of bfloat16 take them for zeros.
        subnormals = not exact and not (is_product(op) and dtype == DTYPES["bfloat16"])
        extra = special_values(dtype, subnormals)
    sizes = sizes_of(op, plan)
    inputs: dict[str, np.ndarray | None] = {}
    for parameter in op.inputs:
        if parameter.name in plan.absent:
            inputs[parameter.name] = None
            continue
        shape: list[int] = []
        for dim in parameter.dims:
            shape += plan.leading if dim == "*" else [sizes.get(dim, dim)]
        if parameter.offsets_into:
            total = sizes[parameter.offsets_into]
            ends = np.sort(rng.integers(0, total + 1, shape)).astype(np.int32)
            ends[-1:] = total
            inputs[parameter.name] = ends
            continue
        if parameter.positive:  # ever larger, so that few quotients by them are not small
            data = np.arange(1, np.prod(shape, dtype=int) + 1).reshape(shape).astype(dtype)
        else:
            data = values(shape, dtype, exact, extra, rng)
        inputs[parameter.name] = laid_out(data, plan.layout)
    return Case(plan.id, inputs, attribute_values(op, plan.attributes))


def cases(op, dtype: np.dtype, *ids: str) -> list[Case]:
    """The cases of these ids, or all."""
    return [make_case(op, dtype, plan) for plan in plans(op, dtype) if not ids or plan.id in ids]


@contextlib.contextmanager
def unchanged(*runs: Case):
    """Fails where what runs inside overwrites an input."""
    before = [{n: None if a is None else a.tobytes() for n, a in c.inputs.items()} for c in runs]
    yield
    for case, inputs in zip(runs, before, strict=True):
        for name, array in case.inputs.items():
            if array is not None:
                assert array.tobytes() == inputs[name], f"{case.id}: {name} was overwritten"
