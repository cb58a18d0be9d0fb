"""sum_rows of all numbers of rows: on CUDA, a block, clusters or two kernels sum them."""

import pytest
import torch

import cudarelu
from cudarelu.testing.environment import torch_cuda_missing

CUDA = pytest.mark.skipif(bool(torch_cuda_missing()), reason=torch_cuda_missing() or "")
DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
# A cluster takes more than 128 rows: up to 1,024 of 128 columns or more, and up to 32,768 of one.
ROWS = [1, 128, 129, 130, 255, 600, 1023, 1024, 1025, 2048, 2049, 5000]
COLUMNS = [1, 3, 8, 33, 64, 96, 257, 1024, 20000]


@pytest.mark.parametrize("misaligned", [0, 1])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=CUDA)])
def test_sums(device, dtype, misaligned):
    generator = torch.Generator(device).manual_seed(0)
    for rows in ROWS:
        for columns in COLUMNS:
            if rows * columns > 1 << 22:
                continue
            size = rows * columns + misaligned
            x = torch.randn(size, generator=generator, device=device).to(dtype)
            x = x[misaligned:].view(rows, columns)
            y = cudarelu.sum_rows(x)
            tolerance = 4 * torch.finfo(dtype).eps * x.double().abs().sum(0)
            assert bool(((y - x.double().sum(0)).abs() <= tolerance).all()), (rows, columns)
            assert torch.equal(y, cudarelu.sum_rows(x)), (rows, columns)


def test_threads_do_not_change_the_sums():
    """On the CPU, threads share the columns and, if there are few, parts of the rows."""
    number = torch.get_num_threads()
    try:
        for rows, columns in [(255, 8), (65536, 1), (5000, 33), (4096, 1024), (600, 20000)]:
            x = torch.randn(rows, columns, dtype=torch.float64)
            torch.set_num_threads(1)
            expected = cudarelu.sum_rows(x)
            for threads in (2, 3, 16):
                torch.set_num_threads(threads)
                assert torch.equal(cudarelu.sum_rows(x), expected), (rows, columns, threads)
    finally:
        torch.set_num_threads(number)
