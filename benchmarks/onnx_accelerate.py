"""The effect of cudarelu.onnx.accelerate on whole models in ONNX Runtime, as ratios of times.

    python benchmarks/onnx_accelerate.py [--provider cpu|cuda] [--out FILE.json]

The models are torchvision's ResNet-18, a transformer of two layers, and the encoder of encoder.py
(64 sequences, 4 on the CPU), with random weights. `all` replaces every node that can be replaced;
`only_if_faster` replaces those of the ops that were measured to be faster. The models take turns in
one process. Inputs and outputs are in the provider's memory.
"""

from __future__ import annotations

import argparse
import statistics
from collections import Counter
from typing import Any

import encoder
import onnx
import onnxruntime
import report
import torch
import torchvision

import cudarelu
import cudarelu.onnx
from cudarelu.onnx.measure import Running, compare, random_inputs

ROUNDS = 21


def resnet(provider: str) -> tuple[torch.nn.Module, torch.Tensor]:
    return torchvision.models.resnet18(), torch.randn(1, 3, 224, 224)


def transformer(provider: str) -> tuple[torch.nn.Module, torch.Tensor]:
    layer = torch.nn.TransformerEncoderLayer(256, 4, 1024, dropout=0, batch_first=True)
    return torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), torch.randn(
        8, 128, 256
    )


def minilm(provider: str) -> tuple[torch.nn.Module, torch.Tensor]:
    return encoder.encoder(), torch.randn(4 if provider == "cpu" else 64, 128, 384)


def measure(model: onnx.ModelProto, provider: str) -> dict[str, Any]:
    every, report = cudarelu.onnx.accelerate(model)
    faster, decided = cudarelu.onnx.accelerate(model, only_if_faster=True, provider=provider)
    inputs = random_inputs(model, {}, {})
    before = Running(model, None, provider, inputs)
    results: dict[str, Any] = {
        "milliseconds": round(1e3 * statistics.median(before.seconds(1) for _ in range(ROUNDS)), 3)
    }
    for name, after in (("all", every), ("only_if_faster", faster)):
        ratio, quartiles = compare(before, Running(after, None, provider, inputs))
        results[name] = {
            "replaced": Counter(
                each.op for each in (report if name == "all" else decided).replaced
            ),
            "ratio": round(ratio, 3),
            "quartiles": [round(each, 3) for each in quartiles],
        }
    results["by op"] = {each.op: round(each.ratio, 3) for each in decided.measured}
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--provider", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--out", help="also write the results to this file")
    arguments = parser.parse_args()
    results: dict[str, Any] = {
        "onnxruntime": onnxruntime.__version__,
        "cudarelu": cudarelu.__version__,
        "provider": arguments.provider,
    }
    if arguments.provider == "cuda":
        results["device"] = torch.cuda.get_device_name()
    torch.manual_seed(0)
    for make in (resnet, transformer, minilm):
        module, x = make(arguments.provider)
        program = torch.onnx.export(module.eval(), (x,), dynamo=True, verbose=False)
        results[make.__name__] = measure(program.model_proto, arguments.provider)
    report.write(results, arguments.out)


if __name__ == "__main__":
    main()
