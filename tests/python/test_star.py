"""Ops with `*` at any place, such as `T[n, c, *]`, and with dimensions that an attribute places,
such as `T[*, c @ axis]`, in every host on the CPU."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch._dynamo.testing

import cudarelu
import cudarelu.nn
import cudarelu.testing
from support.cases import hosts_on_the_cpu, slow_after

SOURCES = Path(__file__).parents[1] / "star_ops"
pytestmark = pytest.mark.xdist_group("star")


@pytest.fixture(scope="module")
def star():
    return cudarelu.load("star", [SOURCES / "star.h", SOURCES / "star.cpp"], cuda=False)


@pytest.mark.parametrize("sizes", [(), (5,), (2, 1, 4)], ids=str)
def test_values(star, sizes):
    data, warp = torch.randn(2, 3), torch.randn(2, *sizes, 2)
    wide = data.reshape(2, *[1] * len(sizes), 3)
    torch.testing.assert_close(star.affine(data, warp), wide * warp[..., :1] + warp[..., 1:])
    x, scale = torch.randn(2, 3, *sizes), torch.randn(3)
    wide = scale.reshape(3, *[1] * len(sizes))
    torch.testing.assert_close(star.channel_scale(x, scale), x * wide)
    turned = x.movedim(1, -1).contiguous().movedim(-1, 1)  # channels last
    torch.testing.assert_close(star.channel_scale(turned, scale), x * wide)
    torch.testing.assert_close(star.weigh(x), x)
    weight = torch.randn(2)
    torch.testing.assert_close(star.weigh(x, weight), x * weight.reshape(2, 1, *[1] * len(sizes)))


def test_shapes_that_do_not_fit(star):
    with pytest.raises(RuntimeError, match=r"warp must be \[b, \*, 2\], not \[2\]"):
        star.affine(torch.randn(1, 3), torch.randn(2))
    with pytest.raises(RuntimeError, match="dimension c is 3 in x but 4 in scale"):
        star.channel_scale(torch.randn(2, 3, 5), torch.randn(4))


def test_one_graph_for_all_sizes(star):
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(star.affine, backend=counter, fullgraph=True, dynamic=True)
    for size in (7, 12, 15):
        warp = torch.randn(3, size, size + 1, 2)
        assert compiled(torch.randn(3, 4), warp).shape == (3, size, size + 1, 4)
    assert counter.frame_count == 1


@pytest.mark.parametrize("axis", [0, 1, 2, -1, -3])
def test_values_along_an_axis(star, axis):
    x, weight = torch.randn(4, 4, 4).double(), torch.randn(4).double()
    torch.testing.assert_close(star.cumsum(x, axis=axis), x.cumsum(axis))
    torch.testing.assert_close(star.glu(x, axis=axis), torch.nn.functional.glu(x, axis))
    y, kept = star.total(x, weight, axis=axis)
    expected = (x.movedim(axis, -1) * weight).sum(-1)
    torch.testing.assert_close(y, expected)
    torch.testing.assert_close(kept, expected.unsqueeze(axis))
    batched = torch.vmap(lambda x: star.cumsum(x, axis=axis), 1)(torch.stack([x, -x], 1))
    torch.testing.assert_close(batched, torch.stack([x.cumsum(axis), -x.cumsum(axis)]))


def test_axes_out_of_range(star):
    x = torch.randn(2, 3)
    sentence = (
        r"axis is {}, but must be from -2 to 1: it counts 2 dimensions of x, \[\*, c @ axis\]"
    )
    for axis in (2, -3):
        with pytest.raises(RuntimeError, match=sentence.format(axis)):
            star.cumsum(x, axis=axis)
        with pytest.raises(RuntimeError, match=r"axis is .*, but must be from -3 to 2"):
            torch.vmap(lambda x, axis=axis: star.cumsum(x, axis=axis))(x.expand(4, 2, 3))
    with pytest.raises(
        RuntimeError, match=r"dimension 2\*d of x is 3, but must be a multiple of 2"
    ):
        star.glu(x)


def test_unknown_sizes(star):
    """As in TensorFlow's graphs."""
    for axis, expected in ((0, (2, None)), (1, (4, None))):
        x = ("float32", (4, None))
        assert cudarelu._C.infer("star", "glu", [x], [axis]) == [("float32", expected)]


def test_modules_and_help(star):
    assert cudarelu.nn.Op(star.glu, axis=2)(torch.randn(2, 3, 4)).shape == (2, 3, 2)
    assert "x : Tensor\n    T[*, c @ axis]" in star.cumsum.__doc__


PLACED = ("total", "cumsum", "cumsum_backward", "total_backward", "glu")
OPS = ["channel_scale", "total", "affine", "weigh", "channel_scale_backward"]
OPS += ["cumsum", "cumsum_backward", "total_backward", "glu"]


@pytest.mark.parametrize("op", slow_after(2, OPS))
@pytest.mark.parametrize("host", hosts_on_the_cpu())
def test_every_host(star, host, op):
    names = ["odd", "no-rows", *["without-weight"] * (op == "weigh")]
    for case in names + ["attributes-low"] * (op in PLACED):
        cudarelu.testing.check(f"star::{op}", host, "float32", case)


def test_features(star):
    for name in ("gradients", "opcheck", "compile"):
        cudarelu.testing.check("star::channel_scale", "torch-cpu", "float64", name)
    for name in ("gradients", "vmap-last", "vmap-gradients-first", "compile"):
        cudarelu.testing.check("star::total", "torch-cpu", "float64", name)
