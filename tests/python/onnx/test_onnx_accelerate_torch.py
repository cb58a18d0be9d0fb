"""cudarelu.onnx.accelerate on models of PyTorch."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
import torch

import cudarelu
import cudarelu.onnx
from support.accelerate import run


class Transformer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        layer = torch.nn.TransformerEncoderLayer(32, 2, 64, dropout=0, batch_first=True)
        self.encoder = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = torch.nn.Linear(32, 5)

    def forward(self, x):
        return self.head(self.encoder(x)).tanh()


def exported(model: torch.nn.Module, x: torch.Tensor) -> onnx.ModelProto:
    program = torch.onnx.export(
        model.eval(), (x,), dynamo=True, dynamic_shapes=({0: "batch"},), verbose=False,
        input_names=["x"],
    )  # fmt: skip
    return program.model_proto


def check_model(model: torch.nn.Module, x: torch.Tensor) -> dict[str, int]:
    before = exported(model, x)
    result, report = cudarelu.onnx.accelerate(before)
    onnx.checker.check_model(result, full_check=True)
    feeds = {"x": x.numpy()}
    (expected,) = run(before, False, feeds)
    for library in (False, True):
        (y,) = run(result, library, feeds)
        np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())
    found = [each.op for each in report.replaced]
    return {op: found.count(op) for op in found}


@pytest.mark.slow
def test_a_transformer():
    torch.manual_seed(0)
    found = check_model(Transformer(), torch.randn(2, 6, 32))
    assert found == {
        "linear_relu": 2, "linear": 3, "linear_add": 2, "tanh": 1, "add": 2, "attention": 2,
        "layer_norm": 4,
    }  # fmt: skip


@pytest.mark.slow
def test_resnet18():
    models = pytest.importorskip("torchvision.models", reason="torchvision is not installed")
    torch.manual_seed(0)
    found = check_model(models.resnet18(), torch.randn(2, 3, 64, 64))
    assert found == {"relu": 17, "add": 8}
