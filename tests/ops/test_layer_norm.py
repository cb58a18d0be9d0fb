"""Tests specific to layer_norm: large means, long rows, absent inputs, determinism, the module.

test_ops.py tests the results for all dtypes and cases, and test_torch.py tests the gradients.
"""

import pytest
import torch

import cudarelu
import cudarelu.nn
from cudarelu.testing.environment import torch_cuda_missing

NEEDS_GPU = pytest.mark.skipif(bool(torch_cuda_missing()), reason=torch_cuda_missing() or "")
DEVICES = ["cpu", pytest.param("cuda", marks=NEEDS_GPU)]
ROW_LENGTHS = [3, 8, 10, 12, 30, 36, 50, 63, 64, 100, 150, 180, 257, 300, 500]
ROW_LENGTHS += [1024, 2056, 4096, 8192, 20000, 65536, 131072, 262144]
GIVEN = [(True, True), (True, False), (False, True), (False, False)]


def arguments(rows, columns, given=(True, True), mean=0.0, device="cpu", dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)

    def normal(*shape):
        return torch.randn(shape, generator=generator, dtype=torch.float64).to(device, dtype)

    weight, bias = (normal(columns) if each else None for each in given)
    return normal(rows, columns) + mean, weight, bias


def outputs_of(function, x, weight, bias):
    """The output of a function and the gradients of its inputs, converted to float64."""
    leaves = [t if t is None else t.detach().clone().requires_grad_() for t in (x, weight, bias)]
    y = function(*leaves)
    generator = torch.Generator().manual_seed(1)
    y.backward(torch.randn(y.shape, generator=generator, dtype=torch.float64).to(y))
    return [y.detach().double(), *(t.grad.double() for t in leaves if t is not None)]


def theirs(x, weight, bias):
    return torch.nn.functional.layer_norm(x, x.shape[-1:], weight, bias)


def exact(x, weight, bias):
    return outputs_of(theirs, *(t if t is None else t.double() for t in (x, weight, bias)))


def errors(actual, expected):
    return [
        float((a - e).abs().max() / e.abs().max().clamp_min(1e-30))
        for a, e in zip(actual, expected, strict=True)
    ]


def gradients(function, x, grad_y, weight):
    return [each.double() for each in function(grad_y, x, weight)]


def their_gradients(grad_y, x, weight):
    _, mean, rstd = torch.native_layer_norm(x, x.shape[-1:], weight, torch.zeros_like(weight), 1e-5)
    return torch.ops.aten.native_layer_norm_backward(
        grad_y, x, x.shape[-1:], mean, rstd, weight, torch.zeros_like(weight), [True] * 3
    )


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    "far", [[0, -1], [0], slice(8), slice(700), slice(None, None, 512)], ids=str
)
@pytest.mark.parametrize("columns", [50, 1001, 1024, 5000, 50257, 131072, 300001])
def test_columns_far_from_the_mean(columns, far, device):
    """For accuracy, the gradient's sums of a row subtract the mean of some elements, or one
    element. Both may be far from the row's mean."""
    x, weight, _ = arguments(3, columns, device=device)
    grad_y = x.flip(0) + x.roll(1, 1)
    x *= 0.1
    x[:, far] += 1000.7
    wide = (t.double() for t in (x, grad_y, weight))
    expected = gradients(their_gradients, *wide)
    ours = errors(gradients(torch.ops.cudarelu.layer_norm_backward, x, grad_y, weight), expected)
    of_torch = errors(gradients(their_gradients, x, grad_y, weight), expected)
    assert all(a <= max(b, 5e-6) for a, b in zip(ours, of_torch, strict=True)), (ours, of_torch)


@NEEDS_GPU
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("columns", [5003, 12290, 50257])
@pytest.mark.parametrize("rows", [7, 64, 300])
def test_gradients_of_rows_that_begin_anywhere(rows, columns, dtype):
    """A block processes rows that begin at one offset in a vector, then rows at another offset."""
    given = arguments(rows, columns, device="cuda", dtype=dtype)
    found = errors(outputs_of(cudarelu.layer_norm, *given), exact(*given))
    assert max(found) < (2e-6 if dtype is torch.float32 else 1.6e-2), found


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("columns", [64, 1000, 32768])
def test_a_large_mean_costs_no_accuracy(columns, device):
    given = arguments(5, columns, mean=1e4, device=device)
    expected = exact(*given)
    ours = errors(outputs_of(cudarelu.layer_norm, *given), expected)
    of_torch = errors(outputs_of(theirs, *given), expected)
    assert all(a <= max(b, 1e-6) for a, b in zip(ours, of_torch, strict=True)), (ours, of_torch)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("columns", ROW_LENGTHS)
def test_rows_of_any_length(columns, dtype, device):
    rows = 37 if columns < 10000 else 3
    given = arguments(rows, columns, device=device, dtype=dtype)
    found = errors(outputs_of(cudarelu.layer_norm, *given), exact(*given))
    assert max(found) < (2e-6 if dtype is torch.float32 else 1.6e-2), found


@NEEDS_GPU
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("given", GIVEN)
@pytest.mark.parametrize("columns", [8192, 8193, 32768, 50257, 131075])
def test_many_long_rows(columns, given, dtype):
    """There are more rows than the GPU processes at once, so a block processes several rows, which
    have the same alignment."""
    rows = 5_000_000 // columns
    x, weight, bias = arguments(rows, columns, given, device="cuda", dtype=dtype)
    wide = (t if t is None else t.double() for t in (x, weight, bias))
    found = errors([cudarelu.layer_norm(x, weight, bias).double()], [theirs(*wide)])
    assert max(found) < (2e-6 if dtype is torch.float32 else 1.6e-2), found


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("given", GIVEN)
@pytest.mark.parametrize("columns", [33, 64, 4096])
def test_absent_inputs_and_their_gradients(columns, given, device):
    given = arguments(9, columns, given, device=device)
    assert max(errors(outputs_of(cudarelu.layer_norm, *given), exact(*given))) < 2e-6


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("given", GIVEN)
def test_second_order_with_absent_inputs(given, device):
    x, weight, bias = arguments(3, 5, given, device=device, dtype=torch.float64)
    present = [t.requires_grad_() for t in (x, weight, bias) if t is not None]

    def call(*tensors):
        tensors = iter(tensors)
        full = [next(tensors) if t is not None else None for t in (x, weight, bias)]
        return cudarelu.layer_norm(*full)

    assert torch.autograd.gradcheck(call, present, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(call, present, check_fwd_over_rev=True)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("rows", "columns"), [(5000, 64), (700, 1024), (300, 16384), (70, 1001), (90, 50257)]
)
def test_gradients_are_the_same_bits_each_time(rows, columns, device):
    given = arguments(rows, columns, device=device)
    first, second = (outputs_of(cudarelu.layer_norm, *given) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@NEEDS_GPU
@pytest.mark.parametrize("columns", [64, 1024, 5000, 32768, 50257])
def test_gradients_while_another_kernel_runs(columns):
    """Blocks wait for others of the same kernel, which may not run yet, only for a time."""
    grad_y, x = torch.randn(2, 2**27 // columns, columns, device="cuda", dtype=torch.bfloat16)
    alone = torch.ops.cudarelu.layer_norm_backward(grad_y, x)
    wide = torch.randn(1024, 2**16, device="cuda")
    product = torch.empty(1024, 1024, device="cuda")
    other = torch.cuda.Stream()
    other.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(other):
        torch.mm(wide, wide.T, out=product)  # a few milliseconds
    beside = [torch.ops.cudarelu.layer_norm_backward(grad_y, x) for _ in range(3)]
    torch.cuda.synchronize()
    for found in beside:
        assert all(torch.equal(a, b) for a, b in zip(found, alone, strict=True))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("offset", [0, 1])
@pytest.mark.parametrize("columns", [1, 3, 9, 70, 1001, 9001])
def test_a_row_is_its_own(columns, offset, dtype, device):
    """A row that begins within a vector shares this vector with its neighbours, whose NaNs must not
    change its result."""
    rows = 21
    given = arguments(rows, columns, device=device, dtype=dtype)
    x = torch.empty(rows * columns + offset, device=device, dtype=dtype)[offset:]
    x = x.view(rows, columns).copy_(given[0])
    grad_y, weight = x.flip(0).contiguous(), given[1]
    expected = torch.ops.cudarelu.layer_norm_backward(grad_y, x, weight)[0]
    x[1::2] = torch.nan
    found = torch.ops.cudarelu.layer_norm_backward(grad_y, x, weight)[0]
    assert torch.equal(found[::2], expected[::2])
    assert found[1::2].isnan().all()


@pytest.mark.parametrize("device", DEVICES)
def test_rows_of_one_value(device):
    """The variance is 0, so the result is the bias."""
    x = torch.full((3, 100), 1e4 / 3, device=device)
    x[1] = 0
    bias = torch.randn(100, device=device)
    torch.testing.assert_close(cudarelu.layer_norm(x, bias=bias), bias.expand(3, 100))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("least", "eps"), [(1e9, 1e-5), (1e5, 1e-12), (1e30, 1e-5)])
@pytest.mark.parametrize("columns", [3, 100, 200, 540, 768, 1001, 5000, 9001, 50257])
def test_rows_of_one_large_value(columns, least, eps, device):
    """The square of the mean's rounding error may be larger than eps."""
    x = torch.linspace(least, 2 * least, 200, device=device)[:, None].repeat(1, columns)
    x[1::2, 0] *= -1  # every second row is an ordinary one
    grad_y = torch.cos(torch.arange(columns, device=device)).repeat(200, 1)
    y = cudarelu.layer_norm(x, eps=eps)
    grad_x, *grads = torch.ops.cudarelu.layer_norm_backward(grad_y, x, eps=eps)
    assert torch.equal(y[::2], torch.zeros_like(y[::2]))
    assert all(bool(each.isfinite().all()) for each in (y, grad_x, *grads))
    if least < 1e30:  # else the square of the rounding error overflows on CUDA: rstd is 0
        rstd = torch.ops.cudarelu.row_rstd(x, eps=eps)[::2]
        torch.testing.assert_close(rstd, torch.full_like(rstd, eps**-0.5), rtol=1e-4, atol=0)
        expected = (grad_y - grad_y.mean(-1, keepdim=True))[::2] * eps**-0.5
        close = {"rtol": 1e-3, "atol": 1e-5 * eps**-0.5}
        torch.testing.assert_close(grad_x[::2], expected, **close)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("value", [1e20, 1.7e12 + 0.3, 1e300])
@pytest.mark.parametrize("columns", [7, 127, 4096])
def test_rows_of_one_large_float64(columns, value, device):
    x = torch.full((2, columns), value, device=device, dtype=torch.float64)
    assert torch.equal(cudarelu.layer_norm(x), torch.zeros_like(x))
    if value < 1e100 or device == "cpu":
        rstd = torch.ops.cudarelu.row_rstd(x)
        torch.testing.assert_close(rstd, torch.full_like(rstd, 1e-5**-0.5))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("offset", "spread"), [(1e6, 0.0625), (1e7, 1.0), (-3e4, 2.0**-9)])
@pytest.mark.parametrize("columns", [128, 129, 768, 5000])
def test_an_offset_that_is_much_larger_than_the_spread(columns, offset, spread, device):
    """The mean has more digits than float32."""
    generator = torch.Generator().manual_seed(columns)
    x = (offset + spread * torch.randint(2, (3, columns), generator=generator)).to(device)
    expected = torch.nn.functional.layer_norm(x.double(), (columns,), eps=1e-12).float()
    y = cudarelu.layer_norm(x, eps=1e-12)
    torch.testing.assert_close(y, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("columns", [2, 5, 64, 129, 1000, 9001, 200001])
def test_rows_whose_sum_overflows(columns, dtype, device):
    """Their mean does not overflow. Where it is not exact, the square of its error does, and the
    result is 0 all the same."""
    x = torch.full((2, columns), torch.finfo(dtype).max / 3, dtype=dtype, device=device)
    x[1] *= -1
    tolerance = max(1e-5, torch.finfo(dtype).eps)
    torch.testing.assert_close(torch.ops.cudarelu.row_mean(x), x, rtol=tolerance, atol=0)
    grad_y = torch.cos(torch.arange(columns, device=device)).to(dtype).expand(2, columns)
    for offset in (0, 1):  # of x alone: without vectors that all tensors share
        x = torch.cat([x.new_zeros(offset), x.flatten()])[offset:].view(2, columns)
        assert torch.equal(cudarelu.layer_norm(x), torch.zeros_like(x))
        gradients = torch.ops.cudarelu.layer_norm_backward(grad_y, x)
        assert all(bool(gradient.isfinite().all()) for gradient in gradients)
    if device == "cpu" and dtype is not torch.float64:
        rstd = torch.full_like(x, 1e-5**-0.5)
        torch.testing.assert_close(torch.ops.cudarelu.row_rstd(x), rstd, rtol=1e-2, atol=0)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("columns", [31, 129, 1000, 9001, 50257])
def test_rows_whose_variance_overflows(columns, device):
    """The deviation is infinite, and so the result and the gradient in x are 0."""
    x = torch.full((2, columns), 1e38, device=device)
    x[:, ::2] *= -1
    x[1] *= 1e-10
    assert torch.equal(torch.ops.cudarelu.row_rstd(x), torch.zeros_like(x))
    assert torch.equal(cudarelu.layer_norm(x), torch.zeros_like(x))
    grad_y = torch.cos(torch.arange(columns, device=device)).expand(2, columns)
    grad_x, grad_weight, grad_bias = torch.ops.cudarelu.layer_norm_backward(grad_y, x)
    assert torch.equal(grad_x, torch.zeros_like(x))
    assert torch.equal(grad_weight, torch.zeros_like(x[0]))
    torch.testing.assert_close(grad_bias, 2 * grad_y[0])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("value", [torch.inf, -torch.inf, torch.nan])
@pytest.mark.parametrize("columns", [16, 200, 9001, 50257])
def test_a_row_that_is_not_finite_has_no_mean(columns, value, device):
    x = torch.zeros(2, columns, device=device)
    for place in (0, 7, columns - 1):
        x[1] = 0
        x[1, place] = value
        expected = x.mean(-1, keepdim=True).expand_as(x)
        torch.testing.assert_close(torch.ops.cudarelu.row_mean(x), expected, equal_nan=True)
        assert cudarelu.layer_norm(x)[1].isnan().all()
        assert torch.ops.cudarelu.layer_norm_backward(x[:1].expand_as(x), x)[0][1].isnan().all()


def test_the_gradient_at_elements_whose_variance_overflows():
    """The square of the distance of the first base, an outlier, from the mean overflows."""
    x = torch.zeros(1, 129, dtype=torch.float64)
    x[0, [0, 64]] = 1.5e154
    x[0, 1:64] = -1.5e154
    grad_y = torch.cos(torch.arange(129.0, dtype=torch.float64))[None]
    gradients = torch.ops.cudarelu.layer_norm_backward(grad_y, x)
    assert [bool(each.isfinite().all()) for each in gradients] == [True] * 3


def test_eps_must_not_be_negative():
    with pytest.raises(RuntimeError, match=r"layer_norm: eps must be in \[0, inf\], not -1"):
        cudarelu.layer_norm(torch.ones(2, 3), eps=-1.0)


def test_a_weight_of_another_size_is_refused():
    with pytest.raises(RuntimeError, match="dimension c is 3 in x but 4 in weight"):
        cudarelu.layer_norm(torch.ones(2, 3), torch.ones(4))


def test_the_backward_runs_once():
    """One call computes all three gradients."""
    x, weight, bias = (t.requires_grad_() for t in arguments(4, 8))
    with torch.profiler.profile() as profile:
        cudarelu.layer_norm(x, weight, bias).sum().backward()
    calls = [each.name for each in profile.events()]
    assert calls.count("cudarelu::layer_norm_backward") == 1


@pytest.mark.parametrize(
    "options", [{}, {"bias": False}, {"elementwise_affine": False}, {"eps": 0.1}]
)
def test_the_module(options):
    ours, torchs = cudarelu.nn.LayerNorm(8, **options), torch.nn.LayerNorm([8], **options)
    assert repr(ours) == repr(torchs)
    torchs.load_state_dict(ours.state_dict())
    x = torch.randn(3, 8)
    torch.testing.assert_close(ours(x), torchs(x))


def test_the_module_is_of_the_last_dimension_alone():
    with pytest.raises(ValueError, match=r"over \[4, 8\], not over the last dimension alone"):
        cudarelu.nn.LayerNorm([4, 8])
    model = torch.nn.Sequential(torch.nn.LayerNorm([4, 8]), torch.nn.LayerNorm(8))
    x = torch.randn(2, 4, 8)
    expected = model(x)
    found = cudarelu.nn.replace(model)
    assert found.swapped == {"1": "LayerNorm"}
    assert found.left == {"0": "LayerNorm over [4, 8], not over the last dimension alone"}
    torch.testing.assert_close(model(x), expected)


@pytest.mark.filterwarnings("ignore:.*torch.jit")
def test_the_module_is_of_one_size():
    """The size is checked even without a weight, which would tell the op the size."""
    replaced = torch.nn.LayerNorm(8, elementwise_affine=False)
    cudarelu.nn.replace(replaced)
    modules = [cudarelu.nn.LayerNorm(8, elementwise_affine=False), replaced]
    modules += [torch.jit.script(replaced), torch.compile(replaced, backend="eager")]
    for module in modules:
        for shape in [(2, 4), (8, 1), ()]:
            with pytest.raises(RuntimeError, match=r"Given normalized_shape=\[8\], expected input"):
                module(torch.randn(shape))
        x = torch.randn(2, 8)
        torch.testing.assert_close(module(x), torch.nn.functional.layer_norm(x, [8]))
    graph = torch.fx.symbolic_trace(replaced)
    traced = torch.jit.trace(replaced, x)
    for module in (graph, traced):
        torch.testing.assert_close(module(x), torch.nn.functional.layer_norm(x, [8]))
