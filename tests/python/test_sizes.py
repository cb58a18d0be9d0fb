"""Ops whose sizes are expressions, such as `2*d`, in every host on the CPU."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch._dynamo.testing

import cudarelu
import cudarelu.testing
from support.cases import hosts_on_the_cpu, slow_after

SOURCES = Path(__file__).parents[1] / "sized_ops"
pytestmark = pytest.mark.xdist_group("sized")


@pytest.fixture(scope="module")
def sized():
    sources = [SOURCES / "sized.h", SOURCES / "sized.cpp"]
    return cudarelu.load("sized", sources, cuda=False)


def test_values(sized):
    x = torch.randn(3, 8)
    gate, up = x.chunk(2, -1)
    torch.testing.assert_close(sized.silu_and_mul(x), torch.nn.functional.silu(gate) * up)
    x, weight = torch.randn(2, 3, 9, 10).double(), torch.randn(4, 3, 3, 2).double()
    expected = torch.nn.functional.conv2d(x, weight, padding=1, stride=2)
    torch.testing.assert_close(sized.conv(x, weight, pad=1, stride=2), expected)


def test_sizes_that_do_not_fit(sized):
    with pytest.raises(RuntimeError, match=r"2\*d of x is 7, but must be a multiple of 2"):
        sized.silu_and_mul(torch.randn(3, 7))
    with pytest.raises(RuntimeError, match="of y would be -1: h is 2, pad is 0, p is 4, stride"):
        sized.conv(torch.randn(1, 1, 2, 5), torch.randn(1, 1, 4, 4))


def test_one_graph_for_all_sizes(sized):
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(
        lambda x, w: sized.conv(x, w, pad=1, stride=2) + 1,
        backend=counter,
        fullgraph=True,
        dynamic=True,
    )
    for size in (7, 12, 15):
        assert compiled(torch.randn(2, 3, size, size + 1), torch.randn(4, 3, 3, 2)).shape == (
            (2, 4, (size - 1) // 2 + 1, (size + 1) // 2 + 1)
        )
    assert counter.frame_count == 1


@pytest.mark.parametrize("op", slow_after(2, ["silu_and_mul", "conv", "silu_and_mul_backward"]))
@pytest.mark.parametrize("host", hosts_on_the_cpu())
def test_every_host(sized, host, op):
    for case in ("odd", "no-rows"):
        cudarelu.testing.check(f"sized::{op}", host, "float32", case)


def test_features(sized):
    for name in ("gradients", "opcheck", "compile"):
        cudarelu.testing.check("sized::silu_and_mul", "torch-cpu", "float64", name)
