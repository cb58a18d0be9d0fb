"""Times the ops of libllm_ops.so on a GPU against a copy of as many bytes and against PyTorch.

usage: python benchmark.py LIBRARY [--dtype bfloat16] [--rounds 100] [--out llm_ops.json]

Contenders take turns in one process, on random data of more than 256 MB, which no L2 cache holds:
`ours`; `copy`, a device copy that reads and writes as many bytes as the op must; `torch`, PyTorch's
own ops in eager mode; `compiled`, the formula in torch.compile. Prints medians in microseconds, and
the fraction of the copy's speed that we reach. Writes all times to a JSON file.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import reference
import torch
from torch import Tensor
from torch.nn import functional

import cudarelu

Call = Callable[[], object]


@dataclass
class Case:
    """An op at a size. `moved` are the tensors that the op reads and writes."""

    op: str
    shape: tuple[int, ...]
    moved: list[Tensor]
    ours: Call
    torch: Call
    formula: Callable[..., object]
    arguments: tuple[Tensor, ...]
    flops: int = 0  # of a matrix product, which a copy does not limit


def as_tuple(outputs: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return outputs if isinstance(outputs, tuple) else (outputs,)


def cases(llm: cudarelu.OpModule, dtype: torch.dtype) -> list[Callable[[], Case]]:
    """What makes the cases, one at a time: all tensors together do not fit small GPUs."""

    def random(*shape: int, of: torch.dtype = dtype) -> Tensor:
        return torch.randn(shape, device="cuda", dtype=of)

    def case(name: str, *inputs: Tensor, **extra: object) -> Case:
        attributes = extra.pop("attributes", {})
        op = getattr(llm, name)
        formula = partial(getattr(reference, name), **attributes)
        outputs = as_tuple(op(*inputs, **attributes))
        fields = {
            "op": " ".join([name, *attributes.values()]),
            "shape": tuple(inputs[0].shape),
            "moved": [*inputs, *outputs],
            "ours": lambda: op(*inputs, **attributes),
            "torch": lambda: formula(*inputs),
            "formula": formula,
            "arguments": inputs,
        }
        return Case(**(fields | extra))

    def norm_cases(rows: int, columns: int) -> list[Callable[[], Case]]:
        def forward() -> Case:
            return case("rms_norm", random(rows, columns), random(columns))

        def backward() -> Case:
            grad_y, x, weight = random(rows, columns), random(rows, columns), random(columns)
            leaves = [x.detach().requires_grad_(), weight.detach().requires_grad_()]
            y = functional.rms_norm(leaves[0], weight.shape, leaves[1], 1e-6)
            native = lambda: torch.autograd.grad(y, leaves, grad_y, retain_graph=True)  # noqa: E731
            return case("rms_norm_backward", grad_y, x, weight, torch=native)

        return [forward, backward]

    def rotary_case(layout: str) -> Case:
        inputs = random(4, 32, 8192, 128), random(8192, 64), random(8192, 64)
        return case("rotary", *inputs, attributes={"layout": layout})

    def linear_case() -> Case:
        m, n, k = 8192, 8192, 4096
        flops = 2 * m * n * k
        return case("linear_swish", random(m, k), random(n, k), random(n), flops=flops)

    gates, odd = (16384, 11008), (16385, 4099)
    makers = [
        make
        for columns in (128, 1024, 4096, 8192, 16384)
        for make in norm_cases((1 << 27) // columns, columns)
    ]
    makers += [
        lambda: case("rms_norm", random(*odd), random(4099)),
        lambda: case("rms_norm_backward", random(*odd), random(*odd), random(4099)),
        lambda: case("swiglu", random(*gates), random(*gates)),
        lambda: case("swiglu_backward", random(*gates), random(*gates), random(*gates)),
        lambda: rotary_case("halves"),
        lambda: rotary_case("pairs"),
        linear_case,
        lambda: case("squared_relu", random(1 << 27, of=torch.float32)),
    ]
    return makers


def times(calls: dict[str, Call], rounds: int) -> dict[str, list[float]]:
    """The microseconds of each call on the GPU, sorted. The calls take turns."""
    for call in calls.values():
        for _ in range(3):
            call()
    events = {name: [] for name in calls}
    for _ in range(rounds):
        torch.cuda._sleep(500_000)  # the host gets ahead, so that the GPU never waits for it
        for name, call in calls.items():
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            call()
            end.record()
            events[name].append((start, end))
    torch.cuda.synchronize()
    return {
        name: sorted(1e3 * start.elapsed_time(end) for start, end in pairs)
        for name, pairs in events.items()
    }


def measure(case: Case, rounds: int) -> dict[str, object]:
    size = sum(each.nbytes for each in case.moved)
    source = torch.empty(size // 2, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    torch._dynamo.reset()  # it compiles a function for a few shapes only
    compiled = torch.compile(case.formula, fullgraph=True, dynamic=False)
    expected, actual = compiled(*case.arguments), case.ours()
    for ours, theirs in zip(as_tuple(actual), as_tuple(expected), strict=True):
        error = (ours.double() - theirs.double()).abs().max() / theirs.double().abs().max()
        assert error < 0.03, f"{case.op} {case.shape}: error {error}"
    results = times(
        {
            "ours": case.ours,
            "copy": lambda: target.copy_(source),
            "torch": case.torch,
            "compiled": lambda: compiled(*case.arguments),
        },
        rounds,
    )
    medians = {name: all_times[len(all_times) // 2] for name, all_times in results.items()}
    record = {
        "op": case.op,
        "shape": case.shape,
        "bytes": size,
        "median_us": medians,
        "p10_us": {name: all_times[len(all_times) // 10] for name, all_times in results.items()},
        "p90_us": {
            name: all_times[len(all_times) * 9 // 10] for name, all_times in results.items()
        },
        "gb_per_s": size / medians["ours"] / 1e3,
        "of_copy": medians["copy"] / medians["ours"],
    }
    if case.flops:
        record["tflops"] = case.flops / medians["ours"] / 1e6
    return record


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("library", type=Path)
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float16", "float32"])
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--out", type=Path, default=Path("llm_ops.json"))
    options = parser.parse_args()
    llm = cudarelu.load_library(options.library)
    torch.backends.cuda.matmul.allow_tf32 = False

    head = f"{'op':18} {'shape':20} {'ours':>8} {'copy':>8} {'torch':>8} {'compiled':>8}  of copy"
    print(head, flush=True)
    records = []
    for make in cases(llm, getattr(torch, options.dtype)):
        record = measure(make(), options.rounds)
        records.append(record)
        shape = "x".join(map(str, record["shape"]))
        columns = " ".join(f"{each:8.1f}" for each in record["median_us"].values())
        limit = (
            f"{record['tflops']:.0f} TFLOP/s" if "tflops" in record else f"{record['of_copy']:.3f}"
        )
        print(f"{record['op']:18} {shape:20} {columns}  {limit}", flush=True)
        torch.cuda.empty_cache()
    result = {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "dtype": options.dtype,
        "rounds": options.rounds,
        "results": records,
    }
    options.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
