"""Ops whose tensors have dtypes beside T, in every host on the CPU."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import cudarelu
import cudarelu.onnx
import cudarelu.ort
import cudarelu.testing
from cudarelu._table import ops_of
from cudarelu.testing.cases import DTYPES, plans
from support.cases import hosts_on_the_cpu, slow_after

SOURCES = Path(__file__).parents[1] / "typed_ops"
OPS = ("gathered", "int8_matmul", "scaled", "twice", "greater")
pytestmark = pytest.mark.xdist_group("typed")


@pytest.fixture(scope="module")
def typed():
    return cudarelu.load("typed", [SOURCES / "typed.h", SOURCES / "typed.cpp"], cuda=False)


def test_an_attribute_chooses_the_dtype(typed):
    a, b = (torch.randint(-100, 100, (rows, 5), dtype=torch.int8) for rows in (3, 4))
    scale = torch.rand(3)
    exact = a.float() @ b.float().T * scale[:, None]
    torch.testing.assert_close(typed.int8_matmul(a, b, scale), exact.bfloat16())
    torch.testing.assert_close(typed.int8_matmul(a, b, scale, to="f32"), exact)
    with pytest.raises(ValueError, match=r"to must be f16 \(0\), bf16 \(1\) or f32 \(2\), not f64"):
        typed.int8_matmul(a, b, scale, to="f64")


def test_dtypes_that_do_not_fit(typed):
    x, index = torch.randn(3, 2).double(), torch.zeros(4, dtype=torch.int64)
    with pytest.raises(RuntimeError, match="weight is float16 but x is float64"):
        typed.gathered(x, index, torch.ones(4).half())
    with pytest.raises(RuntimeError, match="index is int8; supported dtypes: int32, int64"):
        typed.gathered(x, index.to(torch.int8), torch.ones(4))
    with pytest.raises(RuntimeError, match="weight is int32; supported dtypes: float32, float64"):
        typed.scaled(x, torch.ones(2, dtype=torch.int32))
    with pytest.raises(RuntimeError, match="x is float64; supported dtypes: float32, float16, u"):
        typed.twice(x)
    with pytest.raises(RuntimeError, match="a must be int8, not float64"):
        typed.int8_matmul(x, x, torch.ones(3))


def test_gradients_keep_the_dtype_of_their_input(typed):
    x = torch.randn(4, 3).half().requires_grad_()
    weight = torch.randn(3)
    typed.scaled(x, weight).sum().backward()
    torch.testing.assert_close(x.grad, weight.half().expand(4, 3))


@pytest.mark.parametrize("op", slow_after(4, OPS))
@pytest.mark.parametrize("host", hosts_on_the_cpu())
def test_every_host(typed, host, op):
    found = next(each for each in ops_of("typed") if each.name == op)
    dtype = found.dtypes[-1]
    wanted = [plan.id for plan in plans(found, DTYPES[dtype])]
    for case in wanted:
        if case in ("odd", "no-rows", "attributes-low", "labels-0") or "dtypes" in case:
            cudarelu.testing.check(f"typed::{op}", host, dtype, case)


def test_compile(typed):
    for op in ("gathered", "scaled"):
        cudarelu.testing.check(f"typed::{op}", "torch-cpu", "float64", "compile")
    for name in ("gradients", "opcheck"):
        cudarelu.testing.check("typed::scaled", "torch-cpu", "float64", name)


def test_export(typed):
    """A model has the dtypes that were exported, with and without the library."""
    import onnxruntime

    class Model(torch.nn.Module):
        def forward(self, a, b, scale):
            y = typed.int8_matmul(a, b, scale, to="f16")
            return y.transpose(0, 1)

    arguments = (
        torch.randint(-9, 9, (3, 5), dtype=torch.int8),
        torch.randint(-9, 9, (4, 5), dtype=torch.int8),
        torch.rand(3),
    )
    wanted = Model()(*arguments).numpy()
    model = cudarelu.onnx.export(Model(), arguments)
    feed = {each.name: x.numpy() for each, x in zip(model.graph.input, arguments, strict=True)}
    options = onnxruntime.SessionOptions()
    cudarelu.ort.register(options)
    for each in (None, options):
        session = onnxruntime.InferenceSession(
            model.SerializeToString(), each, ["CPUExecutionProvider"]
        )
        (y,) = session.run(None, feed)
        np.testing.assert_allclose(y.astype("f4"), wanted.astype("f4"), rtol=1e-3)
        assert y.dtype == np.float16
