"""A transformer encoder in PyTorch, with and without our modules and attention, as ratios of times.

    python benchmarks/encoder.py [--device cuda|cpu] [--dtype bfloat16] [--out FILE.json]

The encoder has MiniLM's size: 6 layers, hidden size 384, 12 heads, 64 sequences of 128, random
weights. PyTorch eager, compiled, replaced, and replaced and compiled take turns, in inference and
in a training step (forward and backward, without an optimizer). Replaced is after
`cudarelu.nn.replace`, with `cudarelu.attention`. The forward and backward pass of
linear_gelu is measured alone too.
"""

from __future__ import annotations

import argparse
import copy
import time
from collections.abc import Callable

import report
import torch
from torch import nn

import cudarelu
import cudarelu.nn
from cudarelu.bench.regimes import in_turns
from cudarelu.bench.statistics import ratio, spread

SECONDS = 2.0


class Layer(nn.Module):
    """A layer of BERT: attention, then two linear layers, each with a residual and LayerNorm."""

    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.projections = nn.Linear(hidden, 3 * hidden)
        self.output = nn.Linear(hidden, hidden)
        self.forwards = nn.Sequential(
            nn.Linear(hidden, 4 * hidden), nn.GELU(), nn.Linear(4 * hidden, hidden)
        )
        self.attention = nn.functional.scaled_dot_product_attention
        self.after_attention = nn.LayerNorm(hidden)
        self.after_forwards = nn.LayerNorm(hidden)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shape = (*x.shape[:2], 3, self.heads, x.shape[2] // self.heads)
        query, key, value = self.projections(x).view(shape).permute(2, 0, 3, 1, 4)
        mixed = self.attention(query, key, value)
        x = self.after_attention(x + self.output(mixed.transpose(1, 2).reshape(x.shape)))
        return self.after_forwards(x + self.forwards(x))


def encoder(layers: int = 6, hidden: int = 384, heads: int = 12) -> nn.Module:
    return nn.Sequential(*(Layer(hidden, heads) for _ in range(layers)))


def inference(model: nn.Module, x: torch.Tensor) -> Callable[[], object]:
    def run() -> None:
        with torch.no_grad():
            model(x)

    return run


def training(model: nn.Module, x: torch.Tensor) -> Callable[[], object]:
    def run() -> None:
        model.zero_grad()
        model(x).sum().backward()

    return run


def compare(calls: dict[str, Callable[[], object]], device: str) -> dict:
    """Returns the time of each in microseconds, and divided by the time of "replaced"."""

    def sampler(call: Callable[[], object]) -> Callable[[], float]:
        def sample() -> float:
            wait()
            start = time.perf_counter()
            for _ in range(10):
                call()
            wait()
            return (time.perf_counter() - start) / 10

        return sample

    def wait() -> None:
        if device == "cuda":
            torch.cuda.synchronize()

    for call in calls.values():
        for _ in range(3):
            call()
    times, failed = in_turns({name: sampler(call) for name, call in calls.items()}, SECONDS)
    ours = times["replaced"]
    return {
        name: {
            "microseconds": [round(1e6 * each, 1) for each in spread(samples)],
            "times ours": [round(each, 3) for each in ratio(samples, ours)],
        }
        for name, samples in times.items()
        if name not in failed
    } | {name: {"failed": text} for name, text in failed.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda")
    parser.add_argument("--dtype", choices=["float32", "bfloat16", "float16"], default="bfloat16")
    parser.add_argument("--out", help="also write the results to this file")
    arguments = parser.parse_args()
    options = {"device": arguments.device, "dtype": getattr(torch, arguments.dtype)}
    torch.manual_seed(0)
    model = encoder().to(**options)
    replaced = copy.deepcopy(model)
    replacement = cudarelu.nn.replace(replaced)
    for layer in replaced:
        layer.attention = cudarelu.attention
    models = {
        "torch": model,
        "torch.compile": torch.compile(copy.deepcopy(model)),
        "replaced": replaced,
        "replaced, compiled": torch.compile(copy.deepcopy(replaced)),
    }
    x = torch.randn(64, 128, 384, **options)
    apart = (model(x) - replaced(x)).abs().max().item()
    results = {
        "device": torch.cuda.get_device_name() if arguments.device == "cuda" else "cpu",
        "dtype": arguments.dtype,
        "torch": torch.__version__,
        "cudarelu": cudarelu.__version__,
        "swapped": len(replacement.swapped),
        "largest difference": apart,
        "inference": compare(
            {name: inference(each, x) for name, each in models.items()}, arguments.device
        ),
        "training": compare(
            {name: training(each, x) for name, each in models.items()}, arguments.device
        ),
    }
    if arguments.device == "cuda":
        results["linear_gelu, 8192x1024x4096, training"] = _linear_gelu(options)
    report.write(results, arguments.out)


def _linear_gelu(options: dict) -> dict:
    model = nn.Sequential(nn.Linear(1024, 4096), nn.GELU(approximate="tanh")).to(**options)
    replaced = copy.deepcopy(model)
    cudarelu.nn.replace(replaced)
    x = torch.randn(8192, 1024, requires_grad=True, **options)
    grad = torch.randn(8192, 4096, **options)

    def step(module: nn.Module) -> Callable[[], object]:
        def run() -> None:
            x.grad = None
            module.zero_grad()
            module(x).backward(grad)

        return run

    return compare({"torch": step(model), "replaced": step(replaced)}, "cuda")


if __name__ == "__main__":
    main()
