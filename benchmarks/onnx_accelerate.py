"""The effect of cudarelu.onnx.accelerate on whole models in ONNX Runtime, as ratios of times.

    python benchmarks/onnx_accelerate.py [--provider cpu|cuda] [--dtype float32|float16]
                                         [--model NAME] [--library FILE.so] [--out FILE.json]

The models, with random weights: torchvision's ResNet-18 and a vision transformer; a transformer of
two layers; the encoder of encoder.py (64 sequences, 4 on the CPU); a block of a Llama model; one
of a diffusion U-Net with SiLU and group norm. `all` replaces every node that can be replaced;
`only_if_faster` replaces those of the ops that were measured to be faster. `fused` and
`fused_if_faster` are the same with groups of elementwise nodes as ops. The models take turns in one
process. Inputs and outputs are in the provider's memory.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections import Counter
from pathlib import Path
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

sys.path.insert(0, str(Path(__file__).parents[1] / "examples/llm_ops"))
import llama_block
import reference

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


def llama(provider: str) -> tuple[torch.nn.Module, torch.Tensor]:
    dim, tokens = (256, 128) if provider == "cpu" else (2048, 1024)

    class Block(llama_block.LlamaBlock):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            angles = torch.arange(x.shape[1])[:, None] / 10000 ** torch.linspace(0, 1, dim // 16)
            return super().forward(x, angles.cos().to(x.dtype), angles.sin().to(x.dtype))

    block = Block(reference, dim, heads=8, hidden=11 * dim // 4)
    return block, torch.randn(1, tokens, dim)


def vision_transformer(provider: str) -> tuple[torch.nn.Module, torch.Tensor]:
    images = 1 if provider == "cpu" else 32
    return torchvision.models.vit_b_16(), torch.randn(images, 3, 224, 224)


class UNetBlock(torch.nn.Module):
    """A residual block of Stable Diffusion's U-Net: twice group norm, SiLU and a convolution, with
    the embedding of the time between."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norms = torch.nn.ModuleList(torch.nn.GroupNorm(32, channels) for _ in range(2))
        self.convolutions = torch.nn.ModuleList(
            torch.nn.Conv2d(channels, channels, 3, padding=1) for _ in range(2)
        )
        self.time = torch.nn.Linear(channels, channels)
        self.register_buffer("embedding", torch.randn(1, channels))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        silu = torch.nn.functional.silu
        y = self.convolutions[0](silu(self.norms[0](x)))
        y = y + self.time(silu(self.embedding))[:, :, None, None]
        return x + self.convolutions[1](silu(self.norms[1](y)))


def unet_block(provider: str) -> tuple[torch.nn.Module, torch.Tensor]:
    channels, side = (64, 32) if provider == "cpu" else (320, 64)
    return UNetBlock(channels), torch.randn(2, channels, side, side)


MODELS = (resnet, transformer, minilm, llama, vision_transformer, unet_block)
VARIANTS: dict[str, dict[str, Any]] = {
    "all": {},
    "only_if_faster": {"only_if_faster": True},
    "fused": {"fuse": True},
    "fused_if_faster": {"fuse": True, "only_if_faster": True},
}


def measure(model: onnx.ModelProto, provider: str) -> dict[str, Any]:
    inputs = random_inputs(model, {}, {})
    before = Running(model, None, provider, inputs)
    results: dict[str, Any] = {
        "milliseconds": round(1e3 * statistics.median(before.seconds(1) for _ in range(ROUNDS)), 3)
    }
    for name, options in VARIANTS.items():
        after, output = cudarelu.onnx.accelerate(model, provider=provider, **options)
        running = Running(after, None, provider, inputs, output.library)
        ratio, quartiles = compare(before, running)
        results[name] = {
            "replaced": Counter(each.op for each in output.replaced),
            "ratio": round(ratio, 3),
            "quartiles": [round(each, 3) for each in quartiles],
        }
        if output.measured:
            results[name]["by op"] = {each.op: round(each.ratio, 3) for each in output.measured}
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--provider", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--dtype", choices=["float32", "float16"], default="float32")
    parser.add_argument("--model", action="append", choices=[each.__name__ for each in MODELS])
    parser.add_argument("--library", help="an op module, whose ops are replacements too")
    parser.add_argument("--out", help="also write the results to this file")
    arguments = parser.parse_args()
    if arguments.library:
        cudarelu.load_library(arguments.library)
    results: dict[str, Any] = {
        "onnxruntime": onnxruntime.__version__,
        "cudarelu": cudarelu.__version__,
        "provider": arguments.provider,
        "dtype": arguments.dtype,
    }
    if arguments.provider == "cuda":
        results["device"] = torch.cuda.get_device_name()
    torch.manual_seed(0)
    for make in MODELS:
        if arguments.model and make.__name__ not in arguments.model:
            continue
        module, x = make(arguments.provider)
        dtype = getattr(torch, arguments.dtype)
        module, x = module.eval().to(dtype), x.to(dtype)
        program = torch.onnx.export(module, (x,), dynamo=True, verbose=False)
        results[make.__name__] = measure(program.model_proto, arguments.provider)
    report.write(results, arguments.out)


if __name__ == "__main__":
    main()
