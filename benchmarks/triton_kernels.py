"""A kernel in Triton, launched by Triton, by PyTorch's op and by a node in ONNX Runtime.

    python benchmarks/triton_kernels.py [--rounds 50] [--out FILE.json]

The kernel is that of rms_norm in examples/triton_ops, on CUDA. `kernel` is its time on the GPU,
from the profiler, and `host` the time of a call on the host, which does not wait for the GPU, of 8
rows of 256 elements. The three take turns; times are medians in microseconds.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import onnx
import onnxruntime as ort
import report
import torch
from onnx import TensorProto, helper
from torch.profiler import ProfilerActivity, profile

import cudarelu
import cudarelu.ort

sys.path.insert(0, str(Path(__file__).parents[1] / "examples/triton_ops"))
from rms_norm import library, rms_norm
from rms_norm_kernels import rms_norm_kernel

SHAPES = [(8192, 1024), (8192, 4096), (16384, 8192)]
SMALL = (8, 256)
EPSILON = 1e-6


def by_triton(x: torch.Tensor, weight: torch.Tensor) -> Callable[[], object]:
    """The launch that a user of Triton writes."""
    rows, columns = x.shape
    y = torch.empty_like(x)
    block = max(1024, 1 << (columns - 1).bit_length())
    options = {"BLOCK": block, "num_warps": min(max(block // 512, 1), 16)}
    return lambda: rms_norm_kernel[(rows,)](x, weight, y, columns, EPSILON, **options)


def in_pytorch(x: torch.Tensor, weight: torch.Tensor) -> Callable[[], object]:
    """The op, which allocates its output."""
    function = rms_norm.function()
    return lambda: function(x, weight, eps=EPSILON)


def in_onnx_runtime(x: torch.Tensor, weight: torch.Tensor) -> Callable[[], object]:
    """A model of one node, whose inputs and output are bound to tensors."""
    element = TensorProto.BFLOAT16 if x.dtype == torch.bfloat16 else TensorProto.FLOAT
    domain = library.name
    node = helper.make_node("RmsNorm", ["x", "weight"], ["y"], domain=domain, eps=EPSILON)
    tensors = [
        helper.make_tensor_value_info(name, element, shape)
        for name, shape in (("x", x.shape), ("weight", weight.shape), ("y", x.shape))
    ]
    graph = helper.make_graph([node], "rms_norm", tensors[:2], tensors[2:])
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid(domain, 1)]
    model = helper.make_model(graph, ir_version=8, opset_imports=opsets)
    onnx.checker.check_model(model)
    options = ort.SessionOptions()
    cudarelu.ort.register(options)
    stream = str(torch.cuda.current_stream().cuda_stream)
    provider = ("CUDAExecutionProvider", {"user_compute_stream": stream})
    session = ort.InferenceSession(model.SerializeToString(), options, providers=[provider])
    binding = session.io_binding()
    y = torch.empty_like(x)
    for name, tensor in (("x", x), ("weight", weight)):
        binding.bind_input(name, "cuda", 0, element, tensor.shape, tensor.data_ptr())
    binding.bind_output("y", "cuda", 0, element, y.shape, y.data_ptr())
    run = ort.RunOptions()
    run.add_run_config_entry("disable_synchronize_execution_providers", "1")
    return lambda: (session.run_with_iobinding(binding, run), y)


CONTENDERS = {"triton": by_triton, "pytorch": in_pytorch, "onnxruntime": in_onnx_runtime}


def kernel_times(call: Callable[[], object], rounds: int) -> list[float]:
    """The times of the kernel on the GPU, in microseconds."""
    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        for _ in range(rounds):
            call()
        torch.cuda.synchronize()
    events = profiled.events() or []
    return [each.device_time for each in events if "rms_norm_kernel" in each.name]


def host_time(call: Callable[[], object], count: int = 200) -> float:
    """The time of a call on the host, in microseconds."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(count):
        call()
    elapsed = time.perf_counter() - start
    torch.cuda.synchronize()
    return elapsed / count * 1e6


def turns(
    calls: dict[str, Callable[[], object]], measure: Callable[[Callable[[], object]], list[float]]
) -> dict[str, float]:
    """The median for each contender, which take turns ten times."""
    found: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(10):
        for name, call in calls.items():
            found[name] += measure(call)
    return {name: round(statistics.median(each), 3) for name, each in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=50, help="calls for each turn")
    parser.add_argument("--out", help="a file for the results, in JSON")
    options = parser.parse_args()
    library.load()
    found: dict[str, object] = {
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "onnxruntime": ort.__version__,
        "cudarelu": cudarelu.__version__,
    }
    for dtype in (torch.float32, torch.bfloat16):
        name = str(dtype).removeprefix("torch.")
        for shape in (*SHAPES, SMALL):
            x = torch.randn(shape, device="cuda").to(dtype)
            weight = torch.randn(shape[1], device="cuda").to(dtype)
            calls = {each: make(x, weight) for each, make in CONTENDERS.items()}
            results = [call() for call in calls.values()]
            torch.cuda.synchronize()
            assert torch.equal(results[1], results[2][1])
            size = "x".join(map(str, shape))
            found[f"kernel, {name}, {size}"] = turns(
                calls, lambda call: kernel_times(call, options.rounds)
            )
            if shape == SMALL:
                found[f"host, {name}, {size}"] = turns(calls, lambda call: [host_time(call)])
    report.write(found, options.out)


if __name__ == "__main__":
    main()
