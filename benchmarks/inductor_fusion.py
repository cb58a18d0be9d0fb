"""The gain of fusion: `relu(x * 2 + 1) + y` in eager mode, compiled, and compiled with fusion.

Prints one JSON object: medians in microseconds, their ratios, and the number of kernels that
Inductor generates for the forward pass. Without fusion, the op's own kernel is not counted there.
"""

import argparse
import platform

import report
import torch
from torch._inductor import metrics
from torch.utils.benchmark import Timer

import cudarelu
import cudarelu.inductor


def function(x, y):
    return cudarelu.relu(x * 2 + 1) + y


def train(call, x, y):
    return torch.autograd.grad(call(x, y), x, y)


def median(statement, **names):
    timer = Timer(statement, globals=names, num_threads=torch.get_num_threads())
    return round(timer.blocked_autorange(min_run_time=3).median * 1e6, 1)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("device", choices=["cpu", "cuda"])
    parser.add_argument("--elements", type=int, default=1 << 22)
    options = parser.parse_args()
    x, y = torch.randn(2, options.elements, device=options.device)
    leaf = x.clone().requires_grad_()
    compiled = torch.compile(function, fullgraph=True)
    times, kernels = {}, {}
    for name, call in {"eager": function, "compiled": compiled, "fused": compiled}.items():
        if name == "fused":
            cudarelu.inductor.enable_fusion()
        metrics.reset()
        forward = median("call(x, y)", call=call, x=x, y=y)
        kernels[name] = metrics.generated_kernel_count
        both = median("train(call, x, y)", train=train, call=call, x=leaf, y=y)
        times[name] = {"forward": forward, "forward and backward": both}
    cuda = options.device == "cuda"
    result = {
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name() if cuda else platform.machine(),
        "threads": torch.get_num_threads(),
        "elements": options.elements,
        "microseconds": times,
        "compiled / fused": {
            k: round(v / times["fused"][k], 2) for k, v in times["compiled"].items()
        },
        "kernels of Inductor": kernels,
    }
    report.write(result)


if __name__ == "__main__":
    main()
