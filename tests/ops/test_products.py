"""Tests of the matrix products, in addition to the tests of every op."""

import functools
import itertools
import os
import subprocess
import sys

import numpy as np
import pytest
import torch

import cudarelu
from cudarelu.testing.environment import torch_cuda_missing
from support.torch_calls import Calls, saved_by

NEEDS_GPU = pytest.mark.skipif(bool(torch_cuda_missing()), reason=torch_cuda_missing() or "")
DEVICES = ["cpu", pytest.param("cuda", marks=NEEDS_GPU)]
SIZES = {"m": 24, "n": 48, "k": 64}
PRODUCTS = [
    op
    for op in cudarelu.ops()
    if op.autocast == "lower" and all({*x.dims} <= {"*", *SIZES} for x in op.inputs)
]
HALVES = [torch.float16, torch.bfloat16]


def arguments(x, weight, bias, device="cpu", dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    shapes = [x, weight] + ([bias] if bias else [])
    return [
        torch.randn(shape, generator=generator, dtype=torch.float64).to(device, dtype)
        for shape in shapes
    ]


def tanh_gelu(function):
    return functools.partial(function, approximate="tanh")


FORMS = [
    (cudarelu.linear, lambda y: y),
    (cudarelu.linear_relu, torch.relu),
    (cudarelu.linear_gelu, torch.nn.functional.gelu),
    (tanh_gelu(cudarelu.linear_gelu), tanh_gelu(torch.nn.functional.gelu)),
]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("bias", [(5,), None])
@pytest.mark.parametrize(("ours", "activation"), FORMS)
def test_gradients_are_those_of_torch(ours, activation, bias, device):
    def theirs(*tensors):
        return activation(torch.nn.functional.linear(*tensors))

    tensors = arguments((2, 3, 7), (5, 7), bias, device)
    gradients = []
    for function in (ours, theirs):
        leaves = [x.clone().requires_grad_() for x in tensors]
        first = torch.autograd.grad(function(*leaves).square().sum(), leaves, create_graph=True)
        second = torch.autograd.grad(sum(x.sum() for x in first), leaves)
        gradients.append((*first, *second))
    torch.testing.assert_close(*gradients)


def test_the_form_in_training_is_called_where_a_gradient_is_wanted():
    tensors = arguments((2, 7), (5, 7), (5,))
    leaves = [x.clone().requires_grad_() for x in tensors]
    with Calls() as calls:
        cudarelu.linear_gelu(*tensors)
        with torch.no_grad():
            cudarelu.linear_gelu(*leaves)
        y = cudarelu.linear_gelu(*leaves)
        y.sum().backward()
    assert calls.names[:3] == ["linear_gelu", "linear_gelu", "linear_gelu_with_sum"]
    # The gradient of the sum is not needed, so no gradients are added.
    assert sorted(calls.names[3:]) == [
        "gelu_backward",
        "linear_input_backward",
        "linear_weight_backward",
        "sum_rows",
    ]


def test_what_is_saved_for_the_gradient():
    x, weight, bias = (x.requires_grad_() for x in arguments((2, 7), (5, 7), (5,)))
    total = torch.nn.functional.linear(x, weight, bias)
    for function, kept in ((cudarelu.linear_relu, total.relu()), (cudarelu.linear_gelu, total)):
        saved, _ = saved_by(lambda function=function: function(x, weight, bias))
        assert len(saved) == 3
        for expected in (x, weight, kept):
            assert any(t.shape == expected.shape and torch.allclose(t, expected) for t in saved)


@pytest.mark.parametrize("dtype", HALVES)
def test_halves_are_rounded_once(dtype):
    """The bias and the activation are computed in float32."""
    x, weight, bias = arguments((40, 300), (600, 300), (600,), dtype=dtype)
    exact = x.float().double() @ weight.mT.double() + bias.double()
    for ours, expected in ((cudarelu.linear, exact), (cudarelu.linear_relu, exact.relu())):
        y = ours(x, weight, bias)
        # Few float32 sums of 300 products are on the other side of a rounding boundary.
        assert (y != expected.to(dtype)).double().mean() < 0.005


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("threads", [1, 2])
def test_products_of_the_engines_and_of_the_host(threads, dtype):
    """The CPU, the number of threads and the sizes decide which of the two multiplies."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for m, n, k in (
            (48, 32, 16),
            (97, 257, 321),
            (200, 300, 40),
            (47, 64, 64),
            (27000, 32, 320),
        ):
            x, weight, bias = arguments((m, k), (n, k), (n,), dtype=dtype)
            grad = arguments((m, n), (1,), None, dtype=dtype)[0]
            for ours, theirs in (
                (cudarelu.linear(x, weight, bias), x.double() @ weight.mT.double() + bias.double()),
                (cudarelu.matmul(x, weight.mT.contiguous()), x.double() @ weight.mT.double()),
                (cudarelu.linear_input_backward(grad, weight), grad.double() @ weight.double()),
                (cudarelu.linear_weight_backward(grad, x), grad.mT.double() @ x.double()),
            ):
                error = 1e-5 if dtype == torch.float32 else 1e-12
                torch.testing.assert_close(ours.double(), theirs, rtol=error, atol=20 * error)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("offset", [0, 2])
@pytest.mark.parametrize(
    ("rows", "columns"), [(5, 4104), (17, 8200), (33, 4104), (40, 4106), (17, 16392), (64, 16392)]
)
@pytest.mark.parametrize(("ours", "activation"), FORMS)
def test_few_rows_of_many_columns(ours, activation, rows, columns, offset, device):
    """On CUDA, the rows, the columns and the alignment of the bias decide which kernel runs."""
    x, weight, bias = arguments((rows, 96), (columns, 96), (columns + offset,), device, HALVES[1])
    bias = bias[offset:]
    exact = [each.double() for each in (x, weight, bias)]
    expected = activation(torch.nn.functional.linear(*exact))
    y = ours(x, weight, bias).double()
    # A bfloat16 is rounded by up to 2^-9 of its value; tanh's GELU has an error of 1e-5.
    torch.testing.assert_close(y, expected, rtol=2**-8, atol=0.01)


def test_strips_of_rows_and_of_matrices():
    """The bias and the activation are applied in strips, of one matrix with many rows and of many
    matrices."""
    x, weight, bias = arguments((5000, 40), (300, 40), (300,), dtype=torch.float32)
    expected = torch.nn.functional.linear(x, weight, bias).relu()
    torch.testing.assert_close(cudarelu.linear_relu(x, weight, bias), expected)
    a, b = arguments((300, 90, 30), (300, 30, 50), None, dtype=torch.float16)
    expected = (a.float() @ b.float()).half()
    torch.testing.assert_close(cudarelu.matmul(a, b), expected)
    torch.testing.assert_close(cudarelu.matmul_tn(a.mT.contiguous(), b), expected)


@NEEDS_GPU
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16], ids=str)
def test_more_matrices_than_a_grid_has_in_y_and_z(dtype):
    a, b = arguments((70000, 16, 16), (70000, 16, 16), None, "cuda", dtype)
    torch.testing.assert_close(cudarelu.matmul(a, b), a @ b)
    torch.testing.assert_close(cudarelu.matmul_tn(a, b), a.mT @ b)


@pytest.mark.parametrize("device", DEVICES)
def test_weights_with_any_strides(device):
    x, weight = arguments((6, 7), (7, 5), None, device)
    for view in (weight.mT, weight.mT.repeat_interleave(2, 1)[:, ::2], weight[:1].mT.expand(5, 7)):
        torch.testing.assert_close(cudarelu.linear(x, view), x @ view.mT)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("leading", [(40,), (3, 40)], ids=str)
@pytest.mark.parametrize("op", PRODUCTS, ids=lambda op: op.name)
def test_transposed_inputs(op, leading, device):
    """Every subset of the matrices is transposed. None is copied, except one that is no factor,
    and an x with more than one leading dimension."""
    for dtype in (torch.float64, torch.bfloat16):
        shapes = [
            [size for dim in each.dims for size in (leading if dim == "*" else (SIZES[dim],))]
            for each in op.inputs
        ]
        tensors = [torch.randn(shape).to(device, dtype) for shape in shapes]
        call = getattr(cudarelu, op.name)
        expected = call(*tensors)
        matrices = [i for i, each in enumerate(tensors) if each.dim() > 1]
        for count in range(1, len(matrices) + 1):
            for chosen in itertools.combinations(matrices, count):
                views = [
                    each.mT.contiguous().mT if i in chosen else each
                    for i, each in enumerate(tensors)
                ]
                with torch.profiler.profile() as profile:
                    y = call(*views)
                # Another engine may round the sum before the activation, as PyTorch does.
                torch.testing.assert_close(y, expected, rtol=0.016, atol=2e-3)
                copied = any(event.name == "aten::clone" for event in profile.events())
                needs_copy = any(
                    i > 1 or (tensors[i].dim() > 2 and len(op.inputs[i].dims) == 2) for i in chosen
                )
                assert copied == needs_copy


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_transposed_rows_in_strips(dtype):
    """There are so many rows that the CPU processes them in strips."""
    x, weight, bias = arguments((1300, 16), (2048, 16), (2048,), dtype=dtype)
    y = cudarelu.linear_relu(x.mT.contiguous().mT, weight, bias)
    torch.testing.assert_close(y, cudarelu.linear_relu(x, weight, bias))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, *HALVES])
def test_nan_stays(dtype, device):
    """The ReLU of some of cuBLASLt's kernels makes 0 of it."""
    sizes = [1, 2, 3, 8, 17, 64]
    for m, n, k in itertools.product(sizes, sizes, [1, 3, 16, 31]):
        x, weight, bias = arguments((m, k), (n, k), (n,), device, dtype)
        x[m // 2, k // 2] = torch.nan
        for given in (None, bias):
            y = cudarelu.linear_relu(x, weight, given)
            assert y[m // 2].isnan().all(), (m, n, k, given is not None)
            assert y.isnan().sum() == n


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, *HALVES])
@pytest.mark.parametrize(
    "sizes", [(1, 8, 2), (3, 5, 40), (33, 130, 48), (64, 72, 64), (4100, 1032, 96)], ids=str
)
def test_linear_add_in_each_engine(sizes, dtype, device):
    """Few rows, rows that are not aligned, small and large products."""
    m, n, k = sizes
    x, weight, bias = arguments((m, k), (n, k), (n,), device, dtype)
    (other, _) = arguments((m, n), (1,), None, device, dtype)
    relative = {torch.float64: 1e-14, torch.float32: 2e-6}.get(dtype, 2 * torch.finfo(dtype).eps)
    for given in (bias, None):
        total = x.double() @ weight.double().mT + (0 if given is None else given.double())
        expected = total + other.double()
        y = cudarelu.linear_add(x, weight, other, given)
        assert (y.double() - expected).abs().max() <= relative * expected.abs().max()


@pytest.mark.parametrize("device", DEVICES)
def test_no_products_give_the_bias(device):
    x, weight, bias = arguments((4, 0), (3, 0), (3,), device)
    torch.testing.assert_close(cudarelu.linear(x, weight, bias), bias.expand(4, 3))
    assert cudarelu.linear(x, weight).count_nonzero() == 0
    other = bias.expand(4, 3)
    torch.testing.assert_close(cudarelu.linear_add(x, weight, other, bias), 2 * other)
    assert cudarelu.matmul(x, weight.mT).count_nonzero() == 0
    assert (
        cudarelu.linear_weight_backward(x.new_ones(0, 3), x.new_ones(0, 2)).tolist()
        == [[0.0, 0.0]] * 3
    )


def test_sizes_that_differ_are_named():
    x, weight, bias = arguments((4, 7), (5, 6), (5,))
    with pytest.raises(RuntimeError, match="linear: dimension k is 7 in x but 6 in weight"):
        cudarelu.linear(x, weight, bias)
    with pytest.raises(RuntimeError, match="matmul: dimension k is 7 in a but 5 in b"):
        cudarelu.matmul(x, weight)


def test_a_mode_and_autocast_of_the_callers_do_not_reach_inside():
    x, weight = (a.numpy() for a in arguments((4, 7), (5, 7), None, dtype=torch.float32))
    with torch.autocast("cpu", torch.bfloat16), torch.device("meta"):
        y = cudarelu.linear(x, weight)
    np.testing.assert_allclose(y, x @ weight.T, rtol=1e-5, atol=1e-5)


@NEEDS_GPU
def test_float32_is_float32_unless_told_otherwise():
    x, weight = arguments((512, 2048), (512, 2048), None, "cuda", torch.float32)
    expected = x.double() @ weight.mT.double()
    assert (cudarelu.linear(x, weight) - expected).abs().max() < 1e-3  # about 0.05 in TF32


def float32_product(precision):
    """Prints the error and the sum in a separate process, since the variable is read only once."""
    program = """
import torch, cudarelu
x, weight = torch.randn(2, 512, 2048, device="cuda", generator=torch.Generator("cuda"))
y = cudarelu.linear(x, weight)
print((y - x.double() @ weight.mT.double()).abs().max().item(), y.double().sum().item())
"""
    environment = {**os.environ, "CUDARELU_FLOAT32_MATMUL": precision}
    return subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True
    )


@NEEDS_GPU
def test_float32_as_three_products_of_tf32():
    runs = [float32_product(precision) for precision in ("ieee", "tf32x3")]
    assert [run.returncode for run in runs] == [0, 0], runs[0].stderr + runs[1].stderr
    (error, value), (error_of_three, value_of_three) = (run.stdout.split() for run in runs)
    assert max(float(error), float(error_of_three)) < 1e-3  # about 0.05 in plain TF32
    assert value != value_of_three


@NEEDS_GPU
def test_a_precision_that_is_none_is_named():
    run = float32_product("tf32")
    wanted = "linear: CUDARELU_FLOAT32_MATMUL is tf32; it must be ieee or tf32x3, or be unset"
    assert run.returncode == 1
    assert wanted in run.stderr
