"""Tensors of more than 2^32 elements, and more than 2^31 rows, on a GPU with memory for them.

The last rows are compared with a call on these rows alone.
"""

import pytest
import torch

import cudarelu
from cudarelu.testing.environment import torch_cuda_missing

GIB = 1 << 30
SHAPES = {"rows": ((1 << 31) + 8, 2), "columns": (2, (1 << 31) + 9)}


@pytest.fixture(autouse=True)
def room():
    if reason := torch_cuda_missing():
        pytest.skip(reason)
    torch.cuda.empty_cache()
    if torch.cuda.mem_get_info()[0] < 64 * GIB:
        pytest.skip("needs a GPU with 64 GiB free")
    yield
    torch.cuda.empty_cache()


def tensor(shape, offset=0):
    """0.01 and -0.01 in turn, but other numbers at the end."""
    size = shape[0] * shape[1]
    x = torch.full((offset + size,), 0.01, dtype=torch.bfloat16, device="cuda")[offset:]
    x[::2] = -0.01
    x[-5:] = torch.tensor([0.5, -1, 2, 3, -0.25])
    return x.view(shape)


@pytest.mark.parametrize("offset", [0, 1])
@pytest.mark.parametrize("name", ["softmax", "layer_norm", "row_sum", "row_mean", "row_rstd"])
def test_many_rows(name, offset):
    function = getattr(cudarelu, name)
    x = tensor(SHAPES["rows"], offset)
    y = function(x)
    torch.testing.assert_close(y[-4:], function(x[-4:].clone()))
    torch.testing.assert_close(y[1 << 30 : (1 << 30) + 4], function(x[:4].clone()))


@pytest.mark.parametrize("offset", [0, 1])
def test_gradient_of_many_rows(offset):
    """With another alignment than x, each row has a block, and there are more than in a grid."""
    x = tensor(SHAPES["rows"])
    grad_y = torch.zeros(offset + x.numel(), dtype=x.dtype, device="cuda")[offset:].view(x.shape)
    grad_y[-3:] = torch.tensor([[1.0, 2], [-1, 1], [0.5, 0]])
    grad_x, grad_weight, grad_bias = torch.ops.cudarelu.layer_norm_backward(grad_y, x)
    expected = torch.ops.cudarelu.layer_norm_backward(grad_y[-4:].clone(), x[-4:].clone())
    torch.testing.assert_close(grad_x[-4:], expected[0])
    torch.testing.assert_close(grad_weight, expected[1])
    torch.testing.assert_close(grad_bias, expected[2])
    assert not grad_x[:-4].any()


def test_softmax_gradient_of_many_rows():
    x = tensor(SHAPES["rows"])
    found = torch.ops.cudarelu.softmax_backward(x, x)
    expected = torch.ops.cudarelu.softmax_backward(x[-4:].clone(), x[-4:].clone())
    torch.testing.assert_close(found[-4:], expected)


def test_sums_over_many_rows():
    x = torch.zeros(SHAPES["rows"], dtype=torch.bfloat16, device="cuda")
    x[-2:] = torch.tensor([[1.0, 2], [4, 8]])
    x[0] = 16
    assert torch.ops.cudarelu.sum_rows(x).tolist() == [21, 26]


@pytest.mark.parametrize("offset", [0, 1])
def test_long_rows(offset):
    rows, columns = SHAPES["columns"]
    x = torch.zeros(offset + rows * columns, dtype=torch.bfloat16, device="cuda")[offset:]
    x = x.view(rows, columns)
    x[:, -1] = 25
    exact = torch.tensor(25.0).exp()
    y = cudarelu.softmax(x)
    expected = exact / (exact + columns - 1)
    torch.testing.assert_close(y[:, -1].float().cpu(), expected.expand(2), rtol=1e-2, atol=0)
    assert torch.ops.cudarelu.row_sum(x)[:, -1].tolist() == [25, 25]
    x[:, : columns // 2] = -1
    x[:, columns // 2 :] = 1
    y = cudarelu.layer_norm(x)
    assert bool((y[:, [0, columns // 2 - 1]] == -1).all())
    assert bool((y[:, [columns // 2, -1]] == 1).all())
    del y
    grad_y = torch.zeros_like(x)
    grad_y[:, -1] = 1
    grad_x, grad_weight, grad_bias = torch.ops.cudarelu.layer_norm_backward(grad_y, x)
    assert grad_x[:, -1].tolist() == [1, 1]
    assert grad_weight[-3:].tolist() == grad_bias[-3:].tolist() == [0, 0, 2]
