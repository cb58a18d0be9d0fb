"""cudarelu.attention against the kernels of torch.nn.functional.scaled_dot_product_attention.

    python benchmarks/attention.py [--only PART] [--out FILE.json]

The kernels of PyTorch are FlashAttention's, cuDNN's and that of xFormers (`efficient`), each where
it takes the call. All take turns on random normal numbers, on a GPU that is busy until the host has
issued the calls; times are medians in microseconds, by CUDA events. `of best` is the least time of
PyTorch's kernels divided by ours. TFLOP/s count 4 b h s t d operations, half of them if causal, and
2.5 times as many for the gradients. `error` is the largest error against float64 of the first two
heads, divided by the largest result.

Of packed sequences (varlen), whose lengths are log-uniform from 16 to 2,048, the rivals are
attention over padded tensors with a mask of the keys, attention over torch's nested tensors (of the
jagged layout) and torch.nn.attention.varlen. `times` says how much faster ours is than each.
"""

from __future__ import annotations

import argparse
import functools
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import report
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.varlen import varlen_attn
from torch.nn.functional import scaled_dot_product_attention

import cudarelu
from cudarelu.bench.regimes import in_turns
from cudarelu.bench.statistics import ratio, spread

SECONDS = 0.3
KERNELS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
}
Call = Callable[[], Any]


@dataclass(frozen=True)
class Shape:
    batch: int
    heads: int
    queries: int
    keys: int
    width: int
    kv_heads: int = 0  # 0: as many as heads
    causal: bool = False
    dtype: torch.dtype = torch.bfloat16

    @property
    def label(self) -> str:
        shared = f" ({self.kv_heads} of k)" if self.kv_heads else ""
        name = str(self.dtype).removeprefix("torch.")
        sizes = f"{self.batch}x{self.heads}{shared}, {self.queries} of {self.keys}, {self.width}"
        return f"{sizes}{', causal' if self.causal else ''}, {name}"

    @property
    def operations(self) -> float:
        scores = self.batch * self.heads * self.queries * self.keys
        return 4 * scores * self.width / (2 if self.causal else 1)

    def inputs(self) -> list[Tensor]:
        kv = (self.batch, self.kv_heads or self.heads, self.keys, self.width)
        shapes = [(self.batch, self.heads, self.queries, self.width), kv, kv]
        return [torch.randn(shape, device="cuda").to(self.dtype) for shape in shapes]


LONG = [
    Shape(batch, 16, size, size, width, causal=causal)
    for batch, size in ((8, 2048), (2, 8192), (1, 16384))
    for width in (64, 128, 256)
    for causal in (False, True)
]
SHORT = [Shape(64, 12, 128, 128, width) for width in (32, 64)]
FLOAT32 = [Shape(4, 8, 1024, 1024, 64, dtype=torch.float32)]
DECODING = [
    Shape(32, 32, 1, keys, 128, kv_heads=kv_heads)
    for kv_heads in (0, 8)
    for keys in (1024, 4096, 16384)
] + [Shape(1, 32, 1, 131072, 128, kv_heads=8)]


def sampler(call: Call, calls: int, cycles: int = 3_000_000) -> Callable[[], float]:
    def sample() -> float:
        torch.cuda._sleep(cycles)
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(calls):
            call()
        end.record()
        end.synchronize()
        return 1e3 * start.elapsed_time(end) / calls

    return sample


def compare(calls: dict[str, Call], shape: Shape) -> dict[str, Any]:
    count = 10 if shape.operations < 1e12 else 3
    for call in calls.values():
        call()
    torch.cuda.synchronize()
    times, failed = in_turns({name: sampler(call, count) for name, call in calls.items()}, SECONDS)
    rivals = {name: spread(each)[0] for name, each in times.items() if name in KERNELS}
    found: dict[str, Any] = {
        "us": {name: [round(t, 1) for t in spread(each)] for name, each in times.items()}
    }
    if rivals:
        best = min(rivals, key=rivals.__getitem__)
        found["of best"] = [round(each, 3) for each in ratio(times[best], times["cudarelu"])]
    return found | ({"failed": failed} if failed else {})


def taken(make: Callable[[SDPBackend], Call]) -> dict[str, Call]:
    """The calls of PyTorch's kernels that take them."""
    calls = {}
    for name, backend in KERNELS.items():
        try:
            call = make(backend)
            call()
        except RuntimeError:
            continue
        calls[name] = call
    return calls


def attend(shape: Shape, backend: SDPBackend, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    with sdpa_kernel(backend):
        return scaled_dot_product_attention(
            q, k, v, is_causal=shape.causal, enable_gqa=bool(shape.kv_heads)
        )


def largest_error(shape: Shape, q: Tensor, k: Tensor, v: Tensor, y: Tensor) -> float:
    with sdpa_kernel(SDPBackend.MATH):
        exact = scaled_dot_product_attention(
            *(each[:1, :2].double() for each in (q, k, v)), is_causal=shape.causal
        )
    return ((y[:1, :2] - exact).abs().max() / exact.abs().max()).item()


def forward(shape: Shape) -> dict[str, Any]:
    q, k, v = shape.inputs()

    def ours() -> Tensor:
        return cudarelu.attention(q, k, v, is_causal=shape.causal)

    rivals = taken(lambda backend: functools.partial(attend, shape, backend, q, k, v))
    found = compare({"cudarelu": ours} | rivals, shape)
    found["TFLOP/s"] = round(shape.operations / found["us"]["cudarelu"][0] / 1e6, 1)
    if not shape.kv_heads and shape.queries <= 8192:
        found["error"] = {
            name: float(f"{largest_error(shape, q, k, v, call()):.3g}")
            for name, call in ({"cudarelu": ours} | rivals).items()
        }
    return found


def decoding(shape: Shape) -> dict[str, Any]:
    found = forward(shape)
    _, k, _ = shape.inputs()
    target = torch.empty_like(k)  # a copy of k moves as many bytes as attention reads
    copied = compare({"cudarelu": lambda: target.copy_(k)}, shape)
    found["copy"] = copied["us"]["cudarelu"]
    found["of copy"] = round(found["copy"][0] / found["us"]["cudarelu"][0], 3)
    return found


def backward(shape: Shape) -> dict[str, Any]:
    leaves = [each.requires_grad_() for each in shape.inputs()]
    ours = gradients(cudarelu.attention(*leaves, is_causal=shape.causal), leaves)
    calls = taken(lambda backend: gradients(attend(shape, backend, *leaves), leaves))
    found = compare({"cudarelu": ours} | calls, shape)
    found["TFLOP/s"] = round(2.5 * shape.operations / found["us"]["cudarelu"][0] / 1e6, 1)
    first, second = ours(), ours()
    found["equal in two runs"] = all(map(torch.equal, first, second))
    return found


@dataclass(frozen=True)
class Packed:
    """`sequences` sequences, one after the other."""

    sequences: int
    heads: int
    width: int
    causal: bool
    dtype: torch.dtype

    @property
    def label(self) -> str:
        kind = ", causal" if self.causal else ""
        name = str(self.dtype).removeprefix("torch.")
        return f"{self.sequences} sequences, {self.heads} heads, {self.width}{kind}, {name}"

    def lengths(self) -> Tensor:
        uniform = torch.rand(self.sequences, generator=torch.Generator().manual_seed(0))
        return (16 * 128**uniform).int()


PACKED = [
    Packed(64, 16, width, causal, dtype)
    for dtype in (torch.bfloat16, torch.float32)
    for width in (64, 128)
    for causal in (False, True)
]


def varlen(packed: Packed) -> dict[str, Any]:
    lengths = packed.lengths().cuda()
    ends = lengths.cumsum(0).int()
    starts = torch.cat([ends.new_zeros(1), ends])
    total, longest = int(ends[-1]), int(lengths.max())
    shape = (packed.heads, packed.width)
    leaves = [
        torch.randn(total, *shape, device="cuda", dtype=packed.dtype).requires_grad_()
        for _ in range(3)
    ]
    inside = torch.arange(longest, device="cuda") < lengths[:, None]
    padded = [
        x.new_zeros(packed.sequences, longest, *shape).masked_scatter(inside[..., None, None], x)
        for x in (each.detach() for each in leaves)
    ]
    padded = [x.transpose(1, 2).requires_grad_() for x in padded]
    bounds = {"min_seqlen": int(lengths.min()), "max_seqlen": longest}
    causal: dict[str, Any]
    if "is_causal" in inspect.signature(varlen_attn).parameters:  # before PyTorch 2.11
        causal = {"is_causal": packed.causal}
    else:
        causal = {"window_size": (-1, 0 if packed.causal else -1)}

    def ours() -> Tensor:
        return cudarelu.attention_varlen(*leaves, ends, is_causal=packed.causal)

    def with_padding() -> Tensor:
        mask = inside[:, None, None]
        if packed.causal:
            mask = mask & torch.ones(longest, longest, dtype=torch.bool, device="cuda").tril()
        return scaled_dot_product_attention(*padded, attn_mask=mask)

    def nested() -> Tensor:
        q, k, v = (
            torch.nested.nested_tensor_from_jagged(x, starts, **bounds).transpose(1, 2)
            for x in leaves
        )
        y = scaled_dot_product_attention(q, k, v, is_causal=packed.causal)
        return y.transpose(1, 2).values()

    def packed_by_torch() -> Tensor:
        return varlen_attn(*leaves, starts, starts, longest, longest, **causal)

    calls = {"cudarelu": ours, "padded": with_padding, "nested": nested}
    if packed.dtype != torch.float32:
        calls["varlen"] = packed_by_torch
    found: dict[str, Any] = {"rows": total}
    for direction in ("forward", "backward"):
        if direction == "backward":
            calls = {
                name: gradients(call(), padded if name == "padded" else leaves)
                for name, call in calls.items()
            }
        for call in calls.values():
            call()
        samplers = {name: sampler(call, 10, 30_000_000) for name, call in calls.items()}
        times, failed = in_turns(samplers, SECONDS)
        found[direction] = {
            "us": {name: [round(t, 1) for t in spread(each)] for name, each in times.items()},
            "times": {
                name: [round(t, 2) for t in ratio(each, times["cudarelu"])]
                for name, each in times.items()
                if name != "cudarelu"
            },
        } | ({"failed": failed} if failed else {})
        if direction == "forward":
            exact = exact_of(packed, leaves, ends)
            found["error"] = {
                name: float(f"{((call() - exact).abs().max() / exact.abs().max()).item():.3g}")
                for name, call in calls.items()
                if name != "padded"
            }
    return found


def exact_of(packed: Packed, tensors: list[Tensor], ends: Tensor) -> Tensor:
    parts = []
    packed_rows = (x.detach().double().tensor_split(ends.tolist()) for x in tensors)
    for rows in zip(*packed_rows, strict=True):
        with sdpa_kernel(SDPBackend.MATH):
            q, k, v = (x.transpose(0, 1) for x in rows)
            y = scaled_dot_product_attention(q, k, v, is_causal=packed.causal)
        parts.append(y.transpose(0, 1))
    return torch.cat(parts)


def gradients(y: Tensor, inputs: list[Tensor]) -> Call:
    grad = torch.randn_like(y)
    return lambda: torch.autograd.grad(y, inputs, grad, retain_graph=True)


def memory(shape: Shape) -> dict[str, Any]:
    """The largest memory in use during forward and backward, in MiB, beyond q, k and v."""

    def used(call: Callable[..., Tensor]) -> float:
        q, k, v = (each.requires_grad_() for each in shape.inputs())
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        y = call(q, k, v)
        torch.autograd.grad(y, (q, k, v), torch.ones_like(y))
        return round((torch.cuda.max_memory_allocated() - before) / 2**20, 1)

    found = {"cudarelu": used(functools.partial(cudarelu.attention, is_causal=shape.causal))}
    for name, backend in KERNELS.items():
        try:
            found[name] = used(functools.partial(attend, shape, backend))
        except RuntimeError:
            continue
    return found


def points() -> Iterator[tuple[str, Callable[..., dict[str, Any]], Shape | Packed]]:
    for shape in (*LONG, *SHORT, *FLOAT32):
        yield "forward", forward, shape
    for shape in (*LONG, *SHORT, *FLOAT32):
        yield "backward", backward, shape
    for shape in DECODING:
        yield "decoding", decoding, shape
    yield "memory", memory, Shape(1, 16, 16384, 16384, 128)
    for packed in PACKED:
        yield "varlen", varlen, packed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=["forward", "backward", "decoding", "memory", "varlen"])
    parser.add_argument("--out", help="also write the results to this file")
    options = parser.parse_args()
    found: dict[str, Any] = {
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "cudnn": torch.backends.cudnn.version(),
        "cudarelu": cudarelu.__version__,
    }
    for name, measure, shape in points():
        if options.only in (None, name):
            found[f"{name}: {shape.label}"] = measure(shape)
            torch.cuda.empty_cache()
    ratios = [
        each["of best"][0]
        for each in found.values()
        if isinstance(each, dict) and "of best" in each
    ]
    if ratios:
        found["median of best"] = round(sorted(ratios)[len(ratios) // 2], 3)
    report.write(found, options.out)


if __name__ == "__main__":
    main()
