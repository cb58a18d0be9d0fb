"""The cost of a call without its kernel: cudarelu.relu against torch.relu, as ratios.

    python benchmarks/call_cost.py [--out FILE.json]

The tensors have one element on the CPU and 1,024 in CUDA memory. `plain` goes directly to the
kernel. `dispatched` goes through PyTorch's dispatcher, because autocast is on. `grad` records a
gradient. The two functions take turns, in one process and on one thread. CUDA calls are timed in an
asynchronous loop until the loop has issued them; the device keeps pace.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import time
from collections.abc import Callable

import report
import torch

import cudarelu

CALLS, ROUNDS = 2000, 101


def nanoseconds(function: Callable, x: torch.Tensor) -> float:
    start = time.perf_counter_ns()
    for _ in range(CALLS):
        function(x)
    end = time.perf_counter_ns()
    if x.is_cuda:
        torch.cuda.synchronize()
    return (end - start) / CALLS


def compare(x: torch.Tensor) -> dict[str, float]:
    """Returns the medians in nanoseconds, and the median of the rounds' ratios."""
    times = {torch.relu: [], cudarelu.relu: []}
    for _ in range(ROUNDS):
        for function, measured in times.items():
            measured.append(nanoseconds(function, x))
    theirs, ours = times.values()
    ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
    return {
        "torch.relu ns": round(statistics.median(theirs)),
        "cudarelu.relu ns": round(statistics.median(ours)),
        "ratio": round(statistics.median(ratios), 3),
    }


def measure(device: str) -> dict[str, dict[str, float]]:
    x = torch.randn(1 if device == "cpu" else 1024, device=device)
    ways = {
        "plain": (x, contextlib.nullcontext()),
        "dispatched": (x, torch.autocast(device)),
        "grad": (x.clone().requires_grad_(), contextlib.nullcontext()),
    }
    results = {}
    for name, (tensor, context) in ways.items():
        with context:
            compare(tensor) if name == "plain" else None  # a warm-up
            results[name] = compare(tensor)
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", help="also write the results to this file")
    torch.set_num_threads(1)
    arguments = parser.parse_args()
    results = {"torch": torch.__version__, "cudarelu": cudarelu.__version__}
    results["cpu"] = measure("cpu")
    if torch.cuda.is_available():
        results["device"] = torch.cuda.get_device_name()
        results["cuda"] = measure("cuda")
    report.write(results, arguments.out)


if __name__ == "__main__":
    main()
