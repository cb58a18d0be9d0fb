"""Common models in ort_infer: a model exported from PyTorch has the same outputs as in PyTorch."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
import torch

import cudarelu
import cudarelu.nn
import cudarelu.onnx
from cudarelu.testing.environment import ort_cuda_missing
from support.cases import slow_after
from support.ort_infer import BUILT, succeed_json

pytestmark = [BUILT, pytest.mark.usefixtures("model_folder")]
NO_CUDA = ort_cuda_missing()
PROVIDERS = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.skipif(NO_CUDA is not None, reason=NO_CUDA or "")),
]


class Transformer(torch.nn.Module):
    """Token embeddings, two encoder layers and a head."""

    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(100, 32)
        layer = torch.nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
        self.encoder = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = torch.nn.Linear(32, 10)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.encoder(self.embedding(tokens)))


def resnet18() -> tuple[torch.nn.Module, torch.Tensor]:
    models = pytest.importorskip("torchvision.models", reason="torchvision is not installed")
    return models.resnet18(), torch.randn(2, 3, 224, 224)


def transformer() -> tuple[torch.nn.Module, torch.Tensor]:
    return Transformer(), torch.randint(0, 100, (2, 7))


def with_our_ops() -> tuple[torch.nn.Module, torch.Tensor]:
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.convolution = torch.nn.Conv2d(3, 8, 3)
            self.activation = cudarelu.nn.LeakyReLU()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return cudarelu.relu(self.activation(self.convolution(x)).flatten(1))

    return Net(), torch.randn(2, 3, 16, 16)


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("make", slow_after(1, [with_our_ops, transformer, resnet18]))
def test_outputs_are_pytorchs(make, provider):
    torch.manual_seed(0)
    module, x = make()
    module.eval()
    with torch.no_grad():
        expected = module(x)
    cudarelu.onnx.export(module, (x,), "model.onnx")
    np.save("input.npy", x.numpy())
    np.save("expected.npy", expected.numpy())
    graph = onnx.load("model.onnx", load_external_data=False).graph
    arguments = ["--input", f"{graph.input[0].name}=input.npy", "--provider", provider]
    arguments += ["--compare", f"{graph.output[0].name}=expected.npy"]
    arguments += ["--tolerance", "1e-3,1e-4" if provider == "cpu" else "1e-3,1e-3"]
    report = succeed_json("model.onnx", *arguments, "--iterations", 3)
    (comparison,) = report["comparisons"]
    assert comparison["equal"]
    assert comparison["count"] == expected.numel()
