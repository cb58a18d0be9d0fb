"""Training of the encoder of encoder.py with FSDP2 on 1, 2, ... GPUs, with PyTorch's modules and
ours.

    python benchmarks/scaling.py [--device cuda|cpu] [--sizes 1,2] [--layers 6] [--batch 64]
                                 [--sequence 128] [--dtype bfloat16] [--seconds 2] [--out FILE.json]

A step is forward, backward and Adam. Weak scaling: each process has `batch` sequences; strong
scaling: they share them. The two models take turns in one process group. Results are tokens per
second of all processes, the median over rounds, and `efficiency`: tokens per second divided by
those of one process and by the number of processes.
"""

from __future__ import annotations

import argparse
import copy
import os
import statistics
import tempfile
import time
from pathlib import Path

import report
import torch
import torch.multiprocessing
from encoder import encoder
from torch import nn
from torch.distributed.fsdp import fully_shard

import cudarelu
import cudarelu.nn

HIDDEN = 384
STEPS = 10  # of a round


def models_of(layers: int, device: torch.device, dtype: torch.dtype) -> dict[str, nn.Module]:
    """The same weights in every process."""
    torch.manual_seed(0)
    theirs = encoder(layers, HIDDEN).to(device, dtype)
    ours = copy.deepcopy(theirs)
    cudarelu.nn.replace(ours)
    for layer in ours:
        layer.attention = cudarelu.attention
    for model in (theirs, ours):
        for layer in model:
            fully_shard(layer)
        fully_shard(model)
    return {"torch": theirs, "ours": ours}


class Training:
    """Steps of a model on the same numbers."""

    def __init__(self, model: nn.Module, x: torch.Tensor) -> None:
        self.model = model
        self.x = x
        self.optimizer = torch.optim.Adam(model.parameters(), 1e-4, fused=x.is_cuda)

    def round(self, steps: int) -> float:
        """Returns the seconds of a step."""
        wait(self.x)
        start = time.perf_counter()
        for _ in range(steps):
            self.optimizer.zero_grad()
            self.model(self.x).square().mean().backward()
            self.optimizer.step()
        wait(self.x)
        return (time.perf_counter() - start) / steps


def wait(x: torch.Tensor) -> None:
    if x.is_cuda:
        torch.cuda.synchronize()
    torch.distributed.barrier()


def measure(rank: int, size: int, options: argparse.Namespace, folder: str) -> None:
    """A process of a group of `size`; the first writes its results to a file."""
    device = torch.device(options.device, rank if options.device == "cuda" else None)
    if options.device == "cuda":
        torch.cuda.set_device(device)
    else:
        torch.set_num_threads(max(1, (os.cpu_count() or 1) // size))
    torch.distributed.init_process_group(
        "nccl" if options.device == "cuda" else "gloo",
        init_method=f"file://{folder}/group",
        rank=rank,
        world_size=size,
        device_id=device if options.device == "cuda" else None,
    )
    models = models_of(options.layers, device, getattr(torch, options.dtype))
    results = {}
    for way, batch in (("weak", options.batch), ("strong", options.batch // size)):
        shape = (batch, options.sequence, HIDDEN)
        x = torch.randn(shape, device=device, dtype=getattr(torch, options.dtype))
        runs = {name: Training(model, x) for name, model in models.items()}
        seconds: dict[str, list[float]] = {name: [] for name in runs}
        for run in runs.values():
            run.round(3)
        # All processes measure as often as the first.
        count = torch.tensor([options.seconds / (STEPS * runs["torch"].round(3))], device=device)
        torch.distributed.broadcast(count, 0)
        for _ in range(max(3, int(count))):
            for name, run in runs.items():
                seconds[name].append(run.round(STEPS))
        tokens = size * batch * options.sequence
        results[way] = {name: tokens / statistics.median(each) for name, each in seconds.items()}
    if rank == 0:
        torch.save(results, f"{folder}/results")
    torch.distributed.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description="Scaling of FSDP2 with our modules")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda")
    parser.add_argument("--sizes", default="1,2", help="numbers of processes, from 1 on")
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--sequence", type=int, default=128)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--seconds", type=float, default=2.0, help="of each model and way")
    parser.add_argument("--out", help="also write the results to this file")
    options = parser.parse_args()
    found: dict[str, dict[str, dict[str, dict[str, float]]]] = {"weak": {}, "strong": {}}
    for size in map(int, options.sizes.split(",")):
        with tempfile.TemporaryDirectory() as folder:
            torch.multiprocessing.spawn(measure, (size, options, folder), size)
            results = torch.load(Path(folder, "results"))
        for way, rates in results.items():
            for name, rate in rates.items():
                one = found[way].get("1", {}).get(name, {"tokens per second": rate})
                efficiency = rate / one["tokens per second"] / size
                found[way].setdefault(str(size), {})[name] = {
                    "tokens per second": round(rate),
                    "efficiency": round(efficiency, 3),
                }
    is_cuda = options.device == "cuda"
    header = {
        "device": torch.cuda.get_device_name() if is_cuda else "cpu",
        "torch": torch.__version__,
        "cudarelu": cudarelu.__version__,
        "model": {
            name: getattr(options, name) for name in ("layers", "batch", "sequence", "dtype")
        },
    }
    report.write(header | found, options.out)


if __name__ == "__main__":
    main()
