"""Inputs whose elements are repeated: T[c, 1, 1] for T[*, c, h, w], as the weights of channels."""

from __future__ import annotations

import pytest
import torch

import cudarelu
from cudarelu.testing.environment import torch_cuda_missing

pytestmark = pytest.mark.xdist_group("repeated_rows")  # compiled once

NEEDS_GPU = pytest.mark.skipif(bool(torch_cuda_missing()), reason=torch_cuda_missing() or "")
DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16]


@pytest.fixture(scope="module")
def channels():
    with cudarelu.Library("repeated_rows") as library:

        @cudarelu.define(
            "channels(x: T[*, r, h, c], w: T[r, 1, 1], b: T[r, 1, 1], s: T[r, h, c]) "
            "-> y: T[*, r, h, c]",
            orders=0,
        )
        def channels(x, w, b, s):
            return (x * w + b) * s

    return library.load(cuda=not torch_cuda_missing()).channels


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("leading", [(), (1,), (3,), (2, 3), (0,)])
@pytest.mark.parametrize(
    "rows", [(1, 1, 1), (5, 7, 3), (64, 16, 8), (3, 1000, 3), (3, 2000, 8), (3, 0, 2), (0, 2, 2)]
)
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=NEEDS_GPU)])
def test_values(channels, leading, rows, dtype, device):
    x = torch.randn(*leading, *rows, dtype=dtype, device=device)
    w, b = torch.randn(2, rows[0], 1, 1, dtype=dtype, device=device)
    s = torch.randn(rows, dtype=dtype, device=device)
    wide = [each.float() if dtype.itemsize == 2 else each for each in (x, w, b, s)]
    expected = ((wide[0] * wide[1] + wide[2]) * wide[3]).to(dtype)
    torch.testing.assert_close(channels(x, w, b, s), expected)
    unaligned = torch.empty(x.numel() + 1, dtype=dtype, device=device)[1:].reshape(x.shape)
    torch.testing.assert_close(channels(unaligned.copy_(x), w, b, s), expected)


@pytest.mark.skipif(bool(torch_cuda_missing()), reason=torch_cuda_missing() or "")
@pytest.mark.parametrize(
    "rows", [(3, 1 << 19, 1000), (2, 1, (1 << 30) + 5), (1 << 15, 1 << 8, 300)]
)
def test_more_elements_than_a_launch_has(channels, rows):
    """A launch ends within a row, and where one element is longer than a launch, within that."""
    x = torch.ones(rows, dtype=torch.bfloat16, device="cuda")
    w = torch.arange(rows[0], device="cuda").remainder(128).to(torch.bfloat16)[:, None, None]
    y = channels(x, w, w, x)
    assert torch.equal(y, (2 * w).expand(rows))


def test_wrong_shapes(channels):
    x, w = torch.ones(2, 3, 4, 5), torch.ones(3, 1, 1)
    for wrong in (torch.ones(3), torch.ones(4, 1, 1), torch.ones(3, 4, 1), torch.ones(1, 3, 1, 1)):
        with pytest.raises(RuntimeError, match=r"w must be|4 in w"):
            channels(x, wrong, w, x[0])
