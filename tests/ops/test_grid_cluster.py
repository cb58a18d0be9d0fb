"""Tests specific to grid_cluster: cells against NumPy, absent and strided bounds, bad input."""

import numpy as np
import pytest
import torch

import cudarelu
from cudarelu.testing.environment import torch_cuda_missing

NEEDS_GPU = pytest.mark.skipif(bool(torch_cuda_missing()), reason=torch_cuda_missing() or "")
DEVICES = ["cpu", pytest.param("cuda", marks=NEEDS_GPU)]


def expected(pos, size, start=None, end=None):
    """The cells, computed in the dtype of the points; in float32 for float16 and bfloat16."""
    dtype = torch.float64 if pos.dtype == torch.float64 else torch.float32
    pos, size, start, end = (
        None if t is None else t.to(dtype).cpu().numpy() for t in (pos, size, start, end)
    )
    start = pos.min(0) if start is None else start
    end = pos.max(0) if end is None else end
    counts = ((end - start) / size).astype(np.int64) + 1
    strides = np.cumprod([1, *counts[:-1]])
    return torch.from_numpy((((pos - start) / size).astype(np.int64) * strides).sum(1))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("dims", [1, 2, 3, 4, 5, 7])
@pytest.mark.parametrize("n", [1, 2, 7, 1000, 20011])
def test_cells(n, dims, dtype, device):
    generator = torch.Generator().manual_seed(0)
    pos = (2 * torch.randn(n, dims, generator=generator)).to(device, dtype)
    size = (torch.rand(dims, generator=generator) + 0.5).to(device, dtype)
    start = torch.full((dims,), -3.0).to(device, dtype)
    end = torch.full((2 * dims,), 5.0).to(device, dtype)[::2]
    for bounds in ((start, end), (None, None), (start, None), (None, end)):
        cluster = cudarelu.grid_cluster(pos, size, *bounds)
        assert cluster.dtype == torch.int64
        assert torch.equal(cluster.cpu(), expected(pos, size, *bounds))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("size", [0.1, 0.3, 1 / 3, 7.7, 3e-5, 1e-30, 0.99999994, 1.1754944e-38])
def test_the_edges_of_cells_are_those_of_a_division(size, device):
    generator = torch.Generator().manual_seed(0)
    k = torch.randint(0, 1 << 20, (60000,), generator=generator).float()
    sizes = torch.full((1,), size)
    edge = k * sizes
    pos = torch.cat([edge, edge.nextafter(torch.zeros(1)), edge.nextafter(2 * edge)])[:, None]
    zero, end = torch.zeros(1), edge.max()[None]
    given = [t.to(device) for t in (pos, sizes, zero, end)]
    assert torch.equal(cudarelu.grid_cluster(*given).cpu(), expected(pos, sizes, zero, end))


def test_a_strided_end():
    pos, size = torch.rand(50, 3), torch.full((3,), 0.25)
    end = torch.tensor([1.0, 9.0, 1.0, 9.0, 1.0, 9.0])[::2]
    assert torch.equal(
        cudarelu.grid_cluster(pos, size, torch.zeros(3), end),
        cudarelu.grid_cluster(pos, size, torch.zeros(3), torch.ones(3)),
    )


@pytest.mark.parametrize("size", [0.0, -0.5, float("nan")])
def test_a_size_must_be_positive(size):
    text = rf"grid_cluster: size\[1\] is {size:g}, but must be greater than 0"
    with pytest.raises(RuntimeError, match=text):
        cudarelu.grid_cluster(torch.rand(5, 2), torch.tensor([1.0, size]))


@pytest.mark.parametrize("end", [1.0, -1.0, -1e-7])
def test_more_cells_than_int64_holds(end):
    bounds = torch.zeros(4), torch.tensor([1.0, 1.0, 1.0, end])
    with pytest.raises(RuntimeError, match="cells between start and end, more than int64 holds"):
        cudarelu.grid_cluster(torch.rand(5, 4), torch.full((4,), 1e-7), *bounds)


@NEEDS_GPU
def test_bad_values_on_cuda_stay_within_the_tensors():
    pos = torch.randn(5001, 3, device="cuda")
    pos[17, 1], pos[18, 2] = float("nan"), float("inf")
    for size in (0.0, -1.0, 1e-30, float("nan")):
        assert cudarelu.grid_cluster(pos, torch.full((3,), size, device="cuda")).shape == (5001,)


def test_no_points():
    assert cudarelu.grid_cluster(torch.empty(0, 3), torch.ones(3)).shape == (0,)
    assert cudarelu.grid_cluster(torch.empty(4, 0), torch.empty(0)).tolist() == [0] * 4


def test_is_not_differentiable():
    pos = torch.rand(5, 3, requires_grad=True)
    assert not cudarelu.grid_cluster(pos, torch.ones(3)).requires_grad
