"""The suites: what is measured, and the targets."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

from .._table import OWN_NAMESPACE, OpInfo, all_ops, op_named
from ..testing.cases import has_many_dimensions
from .cases import Case, default_attributes, leads, sized, streams, with_rows
from .contenders import hand_written
from .measure import Point
from .rivals import TORCH

Record = dict[str, Any]
_Points = Callable[[], Iterator[tuple[Case, str, tuple[str, ...]]]]
MIB = 1 << 20


@dataclass(frozen=True)
class Target:
    """The rival's time divided by ours must be at least `times` at every point that `keep` keeps,
    and at least `median` at half of them.

    Against a copy, `times` is a fraction of its bandwidth, since copy and op move the same bytes.
    """

    what: str
    rival: str
    times: float
    keep: Callable[[Record], bool] = lambda record: True
    median: float | None = None


@dataclass(frozen=True)
class Suite:
    name: str
    device: str
    title: str
    points: _Points  # case, regime, contenders
    seconds: float  # for each point, without its preparation


SUITES: dict[str, Suite] = {}


def _suite(device: str, title: str, seconds: float = 0.1) -> Callable[[_Points], _Points]:
    """Makes a suite of a function that yields its points, with the function's name."""

    def decorate(points: _Points) -> _Points:
        name = points.__name__.strip("_").replace("_", "-")
        SUITES[name] = Suite(name, device, title, points, seconds)
        return points

    return decorate


def _itemsize(dtype: str) -> int:
    return getattr(torch, dtype).itemsize


@_suite("cuda", "every op with rows or elements, every dtype, tensors of 64 and 256 MiB", 0.04)
def _bandwidth() -> Iterator:
    for op in all_ops():
        if streams(op):
            for dtype in op.dtypes:
                for size in (64 * MIB, 256 * MIB):
                    case = sized(op, dtype, size // _itemsize(dtype), columns=4096)
                    yield case, "graph, rotating", ("cudarelu", "copy")


@_suite("cuda", "relu of 2^0 to 2^30 elements", 0.05)
def _relu_sizes() -> Iterator:
    for dtype in ("float32", "float16", "int8", "uint8"):
        for exponent in range(0, 31, 2):
            for regime in ("graph, hot", "graph, rotating"):
                case = sized(op_named("relu"), dtype, 1 << exponent)
                yield case, regime, ("cudarelu", "torch", "cub", "naive", "copy")


def _whole(case: Case) -> Case:
    """The case with all optional inputs."""
    return replace(case, optional=tuple(each.name for each in case.op.inputs if each.optional))


@_suite("cuda", "relu, add, softmax and layer_norm of up to 2^31 float16", 0.05)
def _growth() -> Iterator:
    # At 2^31, add needs about 40 GB: tensors of 4 GB, and outputs of each graph and of the warm-up.
    for name, exponents in (
        ("relu", (*range(0, 31, 3), 31)),
        ("add", (*range(0, 31, 3), 31)),
        ("softmax", range(10, 32, 3)),
        ("layer_norm", range(10, 32, 3)),
    ):
        for exponent in exponents:
            case = _whole(sized(op_named(name), "float16", 1 << exponent))
            yield case, "graph, rotating", ("cudarelu", "torch", "copy")


def _rivals_of(op: OpInfo, contenders: tuple[str, ...]) -> tuple[str, ...]:
    """The contenders for an op of this library. Ops of other modules are compared with their
    definitions in torch's operators too, and with a copy, which is the limit."""
    if op.namespace == OWN_NAMESPACE or "cudarelu" not in contenders:
        return contenders
    known = ("hand-written",) if hand_written(op) else ()
    return ("cudarelu", *known, "torch", "torch.compile", "copy")


def _listed(op: OpInfo) -> tuple[str, ...]:
    return ("cudarelu", "torch") if op.name in TORCH else ("cudarelu",)


@_suite("cuda", "every elementwise op, 2^0 to 2^28 elements", 0.05)
def _sizes() -> Iterator:
    for op in all_ops():
        if op.elementwise:
            for exponent in (0, 10, 17, 20, 24, 28):
                for regime in ("graph, hot", "graph, rotating"):
                    case = sized(op, op.dtypes[0], 1 << exponent)
                    yield case, regime, _rivals_of(op, _listed(op))


def _of_libraries(exponents: Iterable[int]) -> Iterator[tuple[OpInfo, str, int]]:
    """Elementwise ops of other modules, dtypes and numbers of elements."""
    for op in all_ops():
        if op.elementwise and op.namespace != OWN_NAMESPACE:
            for dtype in sorted({"float32", "bfloat16"} & {*op.dtypes}, reverse=True):
                for exponent in exponents:
                    yield op, dtype, 1 << exponent


@_suite("cuda", "elementwise ops of other libraries, 2^14 to 2^28 elements", 0.03)
def _libraries() -> Iterator:
    for op, dtype, elements in _of_libraries((14, 17, 20, 24, 28)):
        regime = "graph, rotating" if elements > 1 << 20 else "graph, hot"
        yield sized(op, dtype, elements), regime, _rivals_of(op, ("cudarelu",))


@_suite("cuda", "relu of 2^20 float32 in every regime")
def _regimes() -> Iterator:
    case = sized(op_named("relu"), "float32", 1 << 20)
    for regime in ("cold", "hot", "graph, rotating", "graph, hot", "loop", "synchronised"):
        yield case, regime, ("cudarelu", "torch", "torch.compile", "cub", "naive", "copy")


@_suite("cuda", "bias_relu of 8192x4096 with a scale")
def _bias_relu() -> Iterator:
    for dtype in ("float32", "bfloat16"):
        case = with_rows(op_named("bias_relu"), dtype, 8192, 4096)
        yield case, "graph, rotating", ("cudarelu", "torch", "torch.compile", "copy")


def _rows(*names: str) -> Iterator:
    for name in names:
        for dtype in ("float32", "bfloat16"):
            for columns in (64, 1000, 1024, 4096, 5000, 8192, 32768, 50257, 131072):
                rows = 256 * MIB // _itemsize(dtype) // columns
                case = _whole(with_rows(op_named(name), dtype, rows, columns))
                yield case, "graph, rotating", ("cudarelu", "torch", "torch.compile", "copy")


@_suite("cuda", "softmax and its backward, 256 MiB in rows of 64 to 131,072")
def _softmax() -> Iterator:
    return _rows("softmax", "softmax_backward")


@_suite("cuda", "softmax and its backward, 1 to 64 rows of 128 to 8192")
def _softmax_small() -> Iterator:
    for name in ("softmax", "softmax_backward"):
        for dtype in ("float32", "bfloat16"):
            for rows in (1, 8, 64):
                for columns in (128, 1024, 8192):
                    case = with_rows(op_named(name), dtype, rows, columns)
                    yield case, "graph, hot", ("cudarelu", "torch", "torch.compile")


@_suite("cuda", "knn_query: one batch of 8 k to 1 M points, 64 batches of 1,024, 64 neighbours")
def _knn() -> Iterator:
    shapes = ((8192, 1, 16), (100_000, 1, 16), (1_000_000, 1, 16), (65_536, 64, 16), (8192, 1, 64))
    for points, batches, nsample in shapes:
        sizes, attributes = {"n": points, "b": batches}, {"nsample": nsample}
        case = Case(op_named("knn_query"), "float32", (), sizes, attributes)
        yield case, "graph, hot", ("cudarelu", "pointops")


def _layer(name: str, dtype: str, m: int, k: int, n: int, **attributes: Any) -> Case:
    return Case(op_named(name), dtype, (m,), {"k": k, "n": n}, attributes, optional=("bias",))


def _layers(dtype: str, m: int, k: int, n: int) -> Iterator[Case]:
    yield _layer("linear_relu", dtype, m, k, n)
    for approximate in ("none", "tanh"):
        yield _layer("linear_gelu", dtype, m, k, n, approximate=approximate)


@_suite("cuda", "a linear layer with its activation, bfloat16")
def _linear() -> Iterator:
    for m, k, n in ((8192, 768, 3072), (8192, 1024, 4096), (8192, 4096, 16384)):
        for case in _layers("bfloat16", m, k, n):
            # It takes a minute per case.
            tuned = ("max-autotune",) if case.attributes.get("approximate") == "tanh" else ()
            contenders = "cudarelu", "torch", "torch.compile", *tuned, "cublaslt"
            yield case, "graph, rotating", contenders
        case = _layer("linear_add", "bfloat16", m, k, n)
        yield case, "graph, rotating", ("cudarelu", "torch", "torch.compile")


@_suite("cuda", "a linear layer with its activation, 32x768x3072")
def _linear_small() -> Iterator:
    for dtype in ("bfloat16", "float32"):
        for case in _layers(dtype, 32, 768, 3072):
            # cuBLASLt has no epilogue for the exact GELU.
            is_exact = case.attributes.get("approximate") == "none"
            fused = () if is_exact else ("cublaslt, fused",)
            contenders = "cudarelu", "torch", "torch.compile", "cublaslt", *fused
            yield case, "graph, hot", contenders


def _small(dtype: str, m: int, k: int, n: int) -> Iterator:
    for regime in ("graph, hot", "graph, rotating"):
        case = _layer("linear_relu", dtype, m, k, n)
        yield case, regime, ("cudarelu", "torch", "cublaslt", "cublaslt, fused")


@_suite("cuda", "a linear layer with relu, 1 to 256 rows, k from 384 to 11,008")
def _linear_few_rows() -> Iterator:
    for dtype in ("bfloat16", "float32"):
        for k, n in ((1536, 384), (3072, 768), (4096, 1024), (11008, 768), (4096, 4096)):
            for m in (1, 16, 32, 40, 64):
                yield from _small(dtype, m, k, n)
    for k, n in ((384, 384), (384, 1536), (1536, 384), (768, 768), (3072, 768), (11008, 768)):
        for m in (65, 128, 256):
            yield from _small("bfloat16", m, k, n)


@_suite("cuda", "linear layers of small networks and their gradients, 64x64x64 to 128x768x768")
def _linear_tiny() -> Iterator:
    names = ("linear", "linear_gelu", "linear_input_backward", "linear_weight_backward")
    shapes = (64, 64, 64), (200, 256, 256), (600, 2, 64), (600, 64, 64), (600, 64, 3)
    for name in names:
        for shape in (*shapes, (128, 768, 768)):
            case = _layer(name, "float32", *shape, **default_attributes(op_named(name)))
            yield case, "graph, hot", ("cudarelu", "torch")


@_suite("cuda", "products of square matrices, also batched")
def _matmul() -> Iterator:
    shapes: list[tuple[str, tuple[int, ...], int]]
    shapes = [("float32", (), side) for side in (1024, 2048, 4096, 8192)]
    shapes += [("bfloat16", (), 4096), ("bfloat16", (), 8192), ("bfloat16", (64,), 256)]
    for dtype, leading, side in shapes:
        case = Case(op_named("matmul"), dtype, leading, dict.fromkeys("mkn", side), {})
        yield case, "graph, rotating", ("cudarelu", "torch", "cublaslt")


@_suite("cuda", "layer_norm and its backward, 256 MiB in rows of 64 to 131,072")
def _layer_norm() -> Iterator:
    return _rows("layer_norm", "layer_norm_backward")


@_suite("cuda", "grid_cluster of 1,000,000 points, without and with the bounds")
def _grid_cluster() -> Iterator:
    for optional in ((), ("start", "end")):
        sizes = {"n": 1_000_000, "d": 3}
        case = Case(op_named("grid_cluster"), "float32", (), sizes, {}, optional=optional)
        yield case, "graph, rotating", ("cudarelu", "torch", "copy")


def _in_ort(device: str, dtypes: tuple[str, ...]) -> Iterator:
    for name in ("relu", "bias_relu"):
        for dtype in dtypes:
            for side in (4, 64, 256, 1024, 4096, 16384):
                case = with_rows(op_named(name), dtype, side, side, device=device, threads=2)
                yield case, "loop", ("cudarelu in ORT", "ORT")


@_suite("cuda", "relu and bias_relu as nodes of ONNX Runtime, 4x4 to 16384x16384", 0.15)
def _ort_cuda() -> Iterator:
    return _in_ort("cuda", ("float32", "float16"))


def _few_matrices(op: OpInfo, dtype: str, device: str) -> Case:
    """A case of an op that does not stream: matrices, points or packed sequences."""
    if leads(op):
        side = 32 if has_many_dimensions(op) else 256
        sizes = op.with_multiples(dict.fromkeys(op.named_dimensions, side))
        return Case(op, dtype, (4,), sizes, default_attributes(op), device=device)
    case = sized(op, dtype, 1 << 11, device=device)
    if has_many_dimensions(op):  # packed sequences, not points
        inner = {str(dim): 32 for each in op.inputs for dim in each.dims[1:]}
        case = replace(case, sizes=case.sizes | inner)
    return case


def _one_size(device: str, regime: str) -> Iterator:
    """Every op in each dtype of floating-point numbers, 2^20 of them or a few matrices."""
    for op in all_ops():
        for dtype in (each for each in op.dtypes if getattr(torch, each).is_floating_point):
            case = (
                sized(op, dtype, 1 << 20, device=device)
                if streams(op)
                else _few_matrices(op, dtype, device)
            )
            yield case, regime, _rivals_of(op, _listed(op)) if op.elementwise else _listed(op)


@_suite("cuda", "every op, each dtype, one size")
def _every_op() -> Iterator:
    return _one_size("cuda", "graph, hot")


@_suite("cpu", "every op, each dtype, one size, 1 thread")
def _cpu_every_op() -> Iterator:
    return _one_size("cpu", "loop")


def _cpu(*contenders: str) -> Iterator:
    for op in all_ops():
        dtype, kept = op.dtypes[0], contenders[:1]
        cases = [_few_matrices(op, dtype, "cpu")]
        if streams(op):
            kept = _rivals_of(op, contenders)
            cases = [sized(op, dtype, 1 << each, device="cpu") for each in range(10, 27, 4)]
        for case in cases[:1] if cases[0] == cases[-1] else cases:  # shapes may be fixed numbers
            for threads in (1, 2):
                yield replace(case, threads=threads), "loop", kept


@_suite("cpu", "every op, 2^10 to 2^26 float32, 1 and 2 threads", 0.15)
def _cpu_sizes() -> Iterator:
    return _cpu("cudarelu", "torch")


@_suite("cpu", "every op as a node of ONNX Runtime, 2^10 to 2^26 float32, 1 and 2 threads", 0.15)
def _ort_cpu_sizes() -> Iterator:
    return _cpu("cudarelu in ORT", "ORT")


@_suite("cpu", "softmax, layer_norm and their gradients, rows of 2 to 128 elements, 1 thread")
def _cpu_short_rows() -> Iterator:
    for name in ("softmax", "softmax_backward", "layer_norm", "layer_norm_backward"):
        for dtype in ("float32", "bfloat16"):
            for columns in (2, 8, 16, 21, 33, 64, 100, 128):
                rows = (1 << 16) // columns
                case = with_rows(op_named(name), dtype, rows, columns, device="cpu", threads=1)
                yield _whole(case), "loop", ("cudarelu", "torch")


@_suite("cpu", "seven ops, float32, 1 to 64 threads, at most as many as the process may use", 0.3)
def _cpu_threads() -> Iterator:
    names = ("relu", "gelu", "softmax", "layer_norm", "sum_rows")
    cases = [_whole(sized(op_named(name), "float32", 1 << 22)) for name in names]
    cases.append(_layer("linear_gelu", "float32", 512, 768, 3072, approximate="none"))
    heads = {"h": 12, "g": 12, "s": 512, "t": 512, "d": 64, "e": 64}
    attention = op_named("attention")
    cases.append(Case(attention, "float32", (2,), heads, default_attributes(attention)))
    for case in cases:
        for exponent in range(7):
            if 1 << exponent <= len(os.sched_getaffinity(0)):
                limited = replace(case, device="cpu", threads=1 << exponent)
                yield limited, "loop", ("cudarelu", "torch")


@_suite("cpu", "elementwise ops of other libraries, 2^14 to 2^22 elements, 1 thread")
def _cpu_libraries() -> Iterator:
    for op, dtype, elements in _of_libraries((14, 18, 22)):
        contenders = [each for each in _rivals_of(op, ("cudarelu",)) if each != "copy"]
        yield sized(op, dtype, elements, device="cpu", threads=1), "loop", (*contenders,)


def _products_on_cpu(*contenders: str) -> Iterator:
    cases: list[Case] = []
    for rows in (32, 512):
        shape = ("float32", rows, 768, 3072)
        cases += [_layer("linear", *shape), *_layers(*shape)]
        cases += [_layer(f"linear_{of}_backward", *shape) for of in ("input", "weight")]
    for leading, side in (((), 256), ((), 1024), ((16,), 128)):
        cases.append(Case(op_named("matmul"), "float32", leading, dict.fromkeys("mkn", side), {}))
    for threads in (1, 2):
        for case in cases:
            yield replace(case, device="cpu", threads=threads), "loop", contenders


@_suite("cpu", "linear layers and products of matrices, float32, 1 and 2 threads", 0.3)
def _cpu_products() -> Iterator:
    return _products_on_cpu("cudarelu", "torch")


@_suite("cpu", "linear layers and products as nodes of ONNX Runtime, float32, 1 and 2 threads", 0.3)
def _ort_cpu_products() -> Iterator:
    return _products_on_cpu("cudarelu in ORT", "ORT")


@_suite("cpu", "relu and bias_relu as nodes of ONNX Runtime, 4x4 to 16384x16384", 0.15)
def _ort_cpu() -> Iterator:
    return _in_ort("cpu", ("float32",))


def _elementwise(record: Record) -> bool:
    return any(op.elementwise and op.short_name == record["op"] for op in all_ops())


def _of(least: int = 0, **wanted: Any) -> Callable[[Record], bool]:
    """The records with these values, or one of these, and with so many elements or more."""
    return lambda record: (
        (not least or record["elements"] >= least)
        and all(
            record[key] in value if isinstance(value, tuple) else record[key] == value
            for key, value in wanted.items()
        )
    )


#: By the names of the suites.
TARGETS: dict[str, list[Target]] = {
    "bandwidth": [Target("elementwise, 64 MiB and more", "copy", 1.0, _elementwise)],
    "relu-sizes": [
        *(
            Target(f"relu, 2^0 to 2^30, {state}", rival, 1.0, _of(regime=f"graph, {state}"))
            for rival in ("torch", "cub")
            for state in ("hot", "rotating")
        ),
        *(
            Target("relu, 2^20 float32, hot", rival, 1.35, keep)
            for rival in ("torch", "cub")
            for keep in (_of(dtype="float32", regime="graph, hot", elements=1 << 20),)
        ),
        Target("relu of int8 and uint8, 2^28", "cub", 2.2, _of(1 << 28, dtype=("int8", "uint8"))),
    ],
    "sizes": [
        Target("elementwise, 2^0 to 2^28, hot", "torch", 1.0, _of(regime="graph, hot")),
        Target("elementwise, 2^0 to 2^28, rotating", "torch", 1.0, _of(regime="graph, rotating")),
    ],
    "libraries": [
        Target("elementwise of --library, 2^24 and more", "copy", 0.97, _of(1 << 24)),
        Target("elementwise of --library", "torch.compile", 0.9, median=1.0),
        Target("elementwise of --library", "torch", 1.0),
        Target("elementwise of --library", "hand-written", 0.98),
    ],
    "regimes": [Target("relu of 2^20, asynchronous loop", "torch", 1.4, _of(regime="loop"))],
    "bias-relu": [
        Target(f"bias_relu, 8192x4096, {dtype}", rival, times, _of(dtype=dtype))
        for dtype, rival, times in (
            ("float32", "torch", 3.3),
            ("bfloat16", "torch", 4.3),
            ("float32", "torch.compile", 1.05),
            ("bfloat16", "torch.compile", 1.1),
        )
    ],
    "softmax": [
        Target(name, rival, times, _of(op=name))
        for name, part in (("softmax", 0.96), ("softmax_backward", 0.97))
        for rival, times in (("copy", part), ("torch", 1.0), ("torch.compile", 1.0))
    ],
    "softmax-small": [
        Target("softmax, few rows", "torch", 1.2, _of(op="softmax")),
        Target("softmax, few rows", "torch.compile", 1.0, _of(op="softmax")),
    ],
    "knn": [
        Target(f"knn_query, {shape}, {nsample} neighbours", "pointops", times, keep)
        for shape, nsample, times in (
            ("8192x3 1", 16, 25.0),
            ("100000x3 1", 16, 60.0),
            ("1000000x3 1", 16, 600.0),
            ("65536x3 64", 16, 12.0),
            ("8192x3 1", 64, 15.0),
        )
        for keep in (_of(shape=shape, attributes={"nsample": nsample}),)
    ],
    "linear": [
        Target("linear with its activation", "cublaslt", 0.97),
        Target("linear_add", "torch", 1.0, _of(op="linear_add")),
        *(
            Target(f"linear_gelu, {label}, {shape}", rival, times, keep)
            for label, approximate, shape, rival, times in (
                ("tanh", "tanh", "8192x768 3072x768 3072", "torch", 1.5),
                ("tanh", "tanh", "8192x768 3072x768 3072", "max-autotune", 1.5),
                ("tanh", "tanh", "8192x4096 16384x4096 16384", "torch", 1.1),
                ("tanh", "tanh", "8192x4096 16384x4096 16384", "max-autotune", 1.15),
                ("exact", "none", "8192x768 3072x768 3072", "torch", 1.45),
                ("exact", "none", "8192x4096 16384x4096 16384", "torch", 1.08),
            )
            for keep in (_of(shape=shape, attributes={"approximate": approximate}),)
        ),
    ],
    "linear-small": [
        Target(f"linear_gelu, 32 rows, {dtype}", "cublaslt, fused", times, keep)
        for dtype, times in (("bfloat16", 2.0), ("float32", 3.5))
        for keep in (_of(op="linear_gelu", dtype=dtype, attributes={"approximate": "tanh"}),)
    ],
    "linear-few-rows": [
        Target("linear_relu, 1 to 256 rows", "cublaslt", 1.0),
        Target("linear_relu, 1 to 256 rows", "cublaslt, fused", 1.0),
    ],
    "linear-tiny": [Target("small products in float32", "torch", 1.0)],
    "matmul": [
        Target("matmul, float32", "cublaslt", 0.97, _of(dtype="float32")),
        Target(
            "matmul, bfloat16, 4096 and 8192",
            "cublaslt",
            1.0,
            _of(dtype="bfloat16", columns=(4096, 8192)),
        ),
        Target("matmul, bfloat16, 64 of 256", "cublaslt", 1.1, _of(columns=256)),
    ],
    "layer-norm": [
        Target(name, rival, times, _of(op=name))
        for name, rival, times in (
            ("layer_norm", "copy", 0.96),
            ("layer_norm", "torch", 1.0),
            ("layer_norm", "torch.compile", 1.0),
            ("layer_norm_backward", "copy", 0.85),
        )
    ],
    "grid-cluster": [
        Target("grid_cluster, 1,000,000 points", "torch", 3.0),
        Target("grid_cluster, 1,000,000 points", "copy", 0.7),
    ],
    "ort-cuda": [
        Target("relu and bias_relu, ONNX Runtime, CUDA", "ORT", 1.0),
        Target(
            "bias_relu, 4096x4096 and more, ONNX Runtime, CUDA",
            "ORT",
            1.5,
            _of(1 << 24, op="bias_relu"),
        ),
    ],
    "cpu-sizes": [Target("every op, CPU", "torch", 1.0)],
    "ort-cpu-sizes": [Target("every op, ONNX Runtime, CPU", "ORT", 1.0)],
    "cpu-short-rows": [Target("short rows, CPU", "torch", 1.0)],
    "cpu-libraries": [
        Target("elementwise of --library, CPU", "torch.compile", 0.9, median=1.0),
        Target("elementwise of --library, CPU", "torch", 1.0, median=1.5),
        Target("elementwise of --library, CPU", "hand-written", 0.98),
    ],
    "cpu-products": [Target("products, CPU", "torch", 0.95)],
    "ort-cpu-products": [Target("products, ONNX Runtime, CPU", "ORT", 0.95)],
    "ort-cpu": [Target("relu and bias_relu, ONNX Runtime, CPU", "ORT", 1.0)],
}


def suites(names: Iterable[str]) -> list[Suite]:
    """Returns the suites of these names; "cuda" and "cpu" stand for all suites of the device.

    Raises ValueError for an unknown name.
    """
    found: dict[str, Suite] = {}
    for name in names:
        named = [each for each in SUITES.values() if name in (each.name, each.device)]
        if not named:
            raise ValueError(f"no suite {name!r}: there are cuda, cpu, {', '.join(SUITES)}")
        found |= {each.name: each for each in named}
    return list(found.values())


def points(
    names: Iterable[str],
    only_ops: Iterable[str] = (),
    largest: int | None = None,
    without: Iterable[str] = (),
) -> Iterator[Point]:
    """Yields the points of suites in order: of some ops, up to a size, without some contenders.

    Raises ValueError for an unknown suite or op.
    """
    chosen = [op_named(name) for name in only_ops]
    for suite in suites(names):
        for case, regime, contenders in suite.points():
            if chosen and case.op not in chosen:
                continue
            if largest is None or case.elements <= largest:
                kept = tuple(each for each in contenders if each not in without)
                yield Point(suite.name, case, regime, kept)
