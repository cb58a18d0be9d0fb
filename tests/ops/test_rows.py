"""The row-wise ops on rows of all lengths; on CUDA, different lengths use different kernels."""

import itertools

import pytest
import torch

import cudarelu
from cudarelu.testing.environment import torch_cuda_missing

CUDA = pytest.mark.skipif(bool(torch_cuda_missing()), reason=torch_cuda_missing() or "")
DEVICES = ["cpu", pytest.param("cuda", marks=CUDA)]
DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
# From a single column to rows that do not fit in the memory of a multiprocessor of any GPU (LONG).
COLUMNS = [1, 2, 3, 5, 16, 31, 64, 100, 255, 256, 257, 1000, 1024, 2047, 2048, 2056, 4096, 5000]
LONG = [8192, 8200, 16384, 20000, 32768, 40000, 65536, 100000, 131072, 262144, 300000, 600000]
LONG += [8193, 50257, 131075]  # not divisible by any vector width


def rows_of(rows, columns, dtype, device, misaligned=0):
    generator = torch.Generator(device).manual_seed(columns)
    size = rows * columns
    x = torch.randn(size + misaligned, generator=generator, device=device, dtype=torch.float32)
    return x.to(dtype)[misaligned:].view(rows, columns)


def softmax(x):
    return x.double().softmax(-1)


def softmax_backward(grad_y, y):
    grad_y, y = grad_y.double(), y.double()
    return y * (grad_y - (grad_y * y).sum(-1, keepdim=True))


def row_sum(x):
    return x.double().sum(-1, keepdim=True).expand_as(x)


def largest(x):
    return x.double().abs().amax(-1)


def check(x):
    """Compares errors with the largest number that contributes to a result of the row."""
    # For float64, the expected numbers have errors of the same size.
    tolerance = (64 if x.dtype == torch.float64 else 4) * torch.finfo(x.dtype).eps
    other = x.flip(-1).contiguous()
    y = softmax(other).to(x.dtype)
    for actual, expected, scale in (
        (cudarelu.softmax(x), softmax(x), largest(softmax(x))),
        (cudarelu.softmax_backward(x, y), softmax_backward(x, y), 2 * largest(y) * largest(x)),
        (cudarelu.row_sum(x), row_sum(x), x.double().abs().sum(-1)),
    ):
        assert bool((largest(actual - expected) <= tolerance * scale).all())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("device", DEVICES)
def test_lengths(device, dtype):
    for columns, rows in itertools.product(COLUMNS, (1, 7, 300)):
        check(rows_of(rows, columns, dtype, device))


@CUDA
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("columns", LONG)
def test_long_rows(columns, dtype):
    for rows in (1, 3, 300):
        if rows * columns <= 1 << 25:
            check(rows_of(rows, columns, dtype, "cuda"))
    check(rows_of(2, columns, dtype, "cuda", misaligned=1))


@CUDA
@pytest.mark.parametrize("columns", [64, 1024, 4096, 8193, 32768, 50257, 131072])
def test_rows_in_place_and_again(columns):
    """Results are equal in place, and from run to run.

    If the vector width does not divide the length of a row, a row shares vectors with its
    neighbours, which may already be overwritten.
    """
    x = rows_of(200, columns, torch.float32, "cuda")
    expected = cudarelu.softmax_backward(x, x)
    for _ in range(3):
        assert torch.equal(cudarelu.softmax_backward(x, x), expected)
    target = x.clone()
    torch.ops.cudarelu.softmax_backward_(target, x)
    assert torch.equal(target, expected)


@CUDA
@pytest.mark.parametrize("columns", [16384, 50257])
def test_rows_are_shared_out_in_each_launch(columns):
    """Clusters draw tickets for rows. Each launch, and each replay of a graph, has its own."""
    x = rows_of(700, columns, torch.float32, "cuda")
    weight = rows_of(1, columns, torch.float32, "cuda")[0]
    expected = cudarelu.softmax(x), cudarelu.layer_norm(x, weight, weight)
    torch.cuda.synchronize()
    streams = [torch.cuda.Stream() for _ in range(4)]
    found = []
    for _ in range(5):
        for stream in streams:
            with torch.cuda.stream(stream):
                found.append((cudarelu.softmax(x), cudarelu.layer_norm(x, weight, weight)))
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found.append((cudarelu.softmax(x), cudarelu.layer_norm(x, weight, weight)))
    for _ in range(3):
        for tensor in found[-1]:
            tensor.zero_()
        graph.replay()
        torch.cuda.synchronize()
        for pair in found:
            assert all(map(torch.equal, pair, expected))


@CUDA
@pytest.mark.parametrize("columns", [64, 1024, 32768, 50257, 131072])
def test_softmax_errs_no_more_than_torch(columns):
    """The kernel computes exponentials relative to the maximum of a few elements, and then scales
    them."""
    x = rows_of(64, columns, torch.float32, "cuda")
    exact = softmax(x)
    ours, theirs = (
        ((y.double() - exact).abs() / exact).max() for y in (cudarelu.softmax(x), x.softmax(-1))
    )
    assert ours < 1.2 * theirs


@pytest.mark.parametrize("device", DEVICES)
def test_sums_of_long_rows(device):
    """A thread adds up 64 elements of a row in parts: in one sum, the error is 1.7e-7."""
    columns = 131072
    x = rows_of(300, columns, torch.float32, device)
    error = (cudarelu.row_sum(x)[:, 0] - row_sum(x)[:, 0]) / columns**0.5
    assert error.square().mean().sqrt() < 1.48e-7


@pytest.mark.parametrize("columns", [3, 64, 1000, 8192, 16384, 40000, 131072])
@pytest.mark.parametrize("device", DEVICES)
def test_special_values_of_softmax(device, columns):
    inf, nan = float("inf"), float("nan")
    x = torch.zeros(6, columns, device=device)
    x[0] = -inf
    x[1, 1] = nan
    x[2, 2] = inf
    x[3, : columns // 2 + 1] = -inf
    x[4] = -3e38
    x[4, 0] = 3e38
    x[5] = 1e4
    y = cudarelu.softmax(x)
    assert bool(y[:3].isnan().all())
    kept = columns - columns // 2 - 1
    torch.testing.assert_close(y[3, columns // 2 + 1 :], torch.full_like(y[3, :kept], 1 / kept))
    assert bool((y[3, : columns // 2 + 1] == 0).all())
    assert y[4, 0] == 1
    assert bool((y[4, 1:] == 0).all())
    torch.testing.assert_close(y[5], torch.full_like(y[5], 1 / columns))
