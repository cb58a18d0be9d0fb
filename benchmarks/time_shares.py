"""Where the time of whole models goes: the kernels of each kind, and the time without a kernel.

    python benchmarks/time_shares.py --device cuda [--dtype bfloat16] [--llm libllm_ops.so]
                                     [--model "Llama block"] [--without-ort] [--out FILE.json]

The models are the encoder of encoder.py and the Llama block of examples/llm_ops, in inference and
in a training step (forward and backward), with PyTorch's modules and with ours, each compiled too;
and in inference in ONNX Runtime, in float16 on CUDA and float32 on the CPU, before and after
`cudarelu.onnx.accelerate`. With `--llm`, the block has the ops of that library, which
examples/llm_ops/README.md says how to build.

`us` is the time of a step, the median of rounds in which the contenders take turns. PyTorch's
profiler, in a run of its own, gives the duration and the number of the kernels of a step, those of
ONNX Runtime too. `waiting` is what the union of their durations leaves of the step. On the CPU, the
operators of PyTorch and the nodes of ONNX Runtime, by its own profiler, take the place of kernels.
"""

from __future__ import annotations

import argparse
import copy
import json
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import encoder
import numpy as np
import onnx
import onnxruntime
import report
import torch
from torch import nn

import cudarelu
import cudarelu.inductor
import cudarelu.nn
import cudarelu.onnx
import cudarelu.ort
from cudarelu.bench.regimes import in_turns
from cudarelu.onnx.measure import Running, random_inputs

sys.path.insert(0, str(Path(__file__).parents[1] / "examples/llm_ops"))
import llama_block
import reference

ROUNDS, CALLS = 9, 10
# The first that is found in the name of a kernel or an operator. Kernels of attention and norms
# contain products and sums, and those of the compiler have the names of all that they fuse.
KINDS = {
    "attention": r"attention|attend|flash|fmha|sdpa",
    "products": r"gemm|nvjet|cutlass|xmma|cublas|addmm|mm$|linear|matmul"
    r"|multiply|(mma|skinny|float32)_kernel",
    "norms": r"norm|GammaBeta|ComputeGrad|rows_of_blocks|add_sums",
}
REST = "elementwise, sums, copies"


class Block(nn.Module):
    """The Llama block, with the angles of its positions."""

    def __init__(self, ops: object, dim: int, tokens: int) -> None:
        super().__init__()
        self.block = llama_block.LlamaBlock(ops, dim, dim // 128, 11 * dim // 4)
        for name, angles in zip(("cos", "sin"), llama_block.angles(tokens, 128), strict=True):
            self.register_buffer(name, angles)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.block(x, self.cos, self.sin)


def models(llm: str | None, on_cuda: bool) -> dict[str, tuple[nn.Module, nn.Module, torch.Tensor]]:
    """For each name the model of PyTorch's modules, the same with ours, and its input."""
    theirs = encoder.encoder()
    ours = copy.deepcopy(theirs)
    cudarelu.nn.replace(ours)
    for layer in ours:
        layer.attention = cudarelu.attention
    sequences = 64 if on_cuda else 4
    dim, tokens = (2048, 1024) if on_cuda else (256, 128)
    block = Block(reference, dim, tokens)
    block.block.linear_add = reference.linear_add
    ops = cudarelu.load_library(llm) if llm else reference
    own_block = Block(ops, dim, tokens)
    own_block.block.attend = cudarelu.attention
    own_block.load_state_dict(block.state_dict())
    cudarelu.nn.replace(own_block)
    return {
        "encoder": (theirs, ours, torch.randn(sequences, 128, 384)),
        "Llama block": (block, own_block, torch.randn(4 if on_cuda else 1, tokens, dim)),
    }


def kind_of(name: str) -> str:
    return next((kind for kind, pattern in KINDS.items() if re.search(pattern, name, re.I)), REST)


def summary(times: dict[str, float], counts: int, busy: float) -> dict[str, object]:
    """The results of a profile of `CALLS` calls, for one."""
    return {
        "kinds": {kind: round(us / CALLS, 1) for kind, us in times.items()},
        "kernels": round(counts / CALLS),
        "busy": busy / CALLS,
    }


def profiled(call: Callable[[], object], on_cuda: bool) -> dict[str, object]:
    """The microseconds and the number of kernels of each kind in a call, and of their union."""
    activity = torch.profiler.ProfilerActivity
    with torch.profiler.profile(activities=[activity.CUDA if on_cuda else activity.CPU]) as profile:
        for _ in range(CALLS):
            call()
        if on_cuda:
            torch.cuda.synchronize()
    times: dict[str, float] = dict.fromkeys([*KINDS, REST], 0.0)
    spans, counts = [], 0
    wanted = torch.autograd.DeviceType.CUDA if on_cuda else torch.autograd.DeviceType.CPU
    for event in profile.events():
        if event.device_type != wanted:
            continue
        own = event.time_range.elapsed_us() if on_cuda else event.self_cpu_time_total
        times[kind_of(event.name)] += own
        counts += 1
        spans.append((event.time_range.start, event.time_range.end))
    busy, last = 0.0, float("-inf")
    for start, end in sorted(spans):
        busy += max(0.0, end - max(start, last))
        last = max(last, end)
    return summary(times, counts, busy)


def profiled_nodes(
    model: onnx.ModelProto, inputs: dict[str, np.ndarray], library: Path | None
) -> dict[str, object]:
    """The same of the nodes of a session on the CPU."""
    options = cudarelu.ort.register(onnxruntime.SessionOptions())
    if library is not None:
        options.register_custom_ops_library(str(library))
    options.enable_profiling = True
    times: dict[str, float] = dict.fromkeys([*KINDS, REST], 0.0)
    counts = 0
    with tempfile.TemporaryDirectory() as folder:
        options.profile_file_prefix = str(Path(folder) / "nodes")
        session = onnxruntime.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        for _ in range(CALLS):
            session.run(None, inputs)
        events = json.loads(Path(session.end_profiling()).read_text())
    for event in events:
        if event.get("cat") == "Node" and event["name"].endswith("_kernel_time"):
            times[kind_of(event["args"]["op_name"])] += event["dur"]
            counts += 1
    return summary(times, counts, sum(times.values()))


def shares(
    calls: dict[str, Callable[[], object]],
    on_cuda: bool,
    profiles: dict[str, Callable[[], dict[str, object]]] | None = None,
) -> dict[str, object]:
    """The times of each contender. Those that fail have the error instead.

    `profiles` profile the contenders in place of PyTorch's profiler.
    """

    def seconds(call: Callable[[], object]) -> float:
        start = time.perf_counter()
        for _ in range(CALLS):
            call()
        if on_cuda:
            torch.cuda.synchronize()
        return (time.perf_counter() - start) / CALLS

    samplers = {name: partial(seconds, call) for name, call in calls.items()}
    # The first round compiles; a compiler may refuse a model.
    able, failed = in_turns(samplers, 0, least=1)
    times, later = in_turns({name: samplers[name] for name in able}, 0, least=ROUNDS)
    found: dict[str, object] = {name: {"failed": text} for name, text in (failed | later).items()}
    for name, each in times.items():
        us = 1e6 * statistics.median(each)
        parts = profiles[name]() if profiles else profiled(calls[name], on_cuda)
        waiting = round(max(0.0, us - parts.pop("busy")), 1)
        found[name] = {"us": round(us, 1), **parts, "waiting": waiting}
    return found


def in_onnxruntime(model: nn.Module, x: torch.Tensor, on_cuda: bool) -> dict[str, object]:
    dtype, provider = (torch.float16, "cuda") if on_cuda else (torch.float32, "cpu")
    program = torch.onnx.export(
        model.eval().to("cpu", dtype), (x.to("cpu", dtype),), dynamo=True, verbose=False
    )
    before = program.model_proto
    inputs = random_inputs(before, {}, {})
    after, output = cudarelu.onnx.accelerate(
        before, provider=provider, fuse=True, only_if_faster=True
    )
    variants = {
        "ONNX Runtime": (before, None),
        "ours in ONNX Runtime": (after, output.library),
    }
    calls = {
        name: Running(each, None, provider, inputs, library).run
        for name, (each, library) in variants.items()
    }
    profiles = {
        name: partial(profiled_nodes, each, inputs, library)
        for name, (each, library) in variants.items()
    }
    return shares(calls, on_cuda, None if on_cuda else profiles)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda")
    parser.add_argument("--dtype", choices=["float32", "bfloat16", "float16"], default="bfloat16")
    parser.add_argument("--llm", help="the library of examples/llm_ops")
    parser.add_argument("--model", help="only this model")
    parser.add_argument("--without-ort", action="store_true")
    parser.add_argument("--out", help="also write the results to this file")
    options = parser.parse_args()
    on_cuda = options.device == "cuda"
    place = {"device": options.device, "dtype": getattr(torch, options.dtype)}
    torch.manual_seed(0)
    results: dict[str, object] = {
        "device": torch.cuda.get_device_name() if on_cuda else "cpu",
        "dtype": options.dtype,
        "torch": torch.__version__,
        "cudarelu": cudarelu.__version__,
    }
    cudarelu.inductor.enable_fusion()
    for name, (theirs, ours, x) in models(options.llm, on_cuda).items():
        if options.model not in (None, name):
            continue
        theirs, ours, x = theirs.to(**place), ours.to(**place), x.to(**place)
        contenders = {
            "PyTorch": theirs,
            "torch.compile": torch.compile(theirs),
            "ours": ours,
            "ours, compiled": torch.compile(ours),
        }
        for way in (encoder.inference, encoder.training):
            calls = {each: way(model, x) for each, model in contenders.items()}
            results[f"{name}, {way.__name__}"] = shares(calls, on_cuda)
        if not options.without_ort:
            results[f"{name}, ONNX Runtime"] = in_onnxruntime(theirs, x, on_cuda)
    report.write(results, options.out)


if __name__ == "__main__":
    main()
