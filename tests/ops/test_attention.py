"""Attention beside torch's scaled_dot_product_attention, of which it has the arguments."""

from __future__ import annotations

import math

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from torch.nn.functional import scaled_dot_product_attention as torch_attention

import cudarelu
from cudarelu.testing.environment import torch_cuda_missing
from support.attention_views import COPIED, VIEWS, check_views


def inputs(shape=(2, 4, 37, 16), keys=53, kv_heads=2, width=24, **options):
    generator = torch.Generator().manual_seed(0)
    *batch, _, _, d = shape
    q = torch.randn(shape, generator=generator, **options)
    k = torch.randn((*batch, kv_heads, keys, d), generator=generator, **options)
    v = torch.randn((*batch, kv_heads, keys, width), generator=generator, **options)
    return q, k, v


def check(q, k, v, mask=None, **attributes):
    # torch takes no masks of one dimension or none.
    whole = mask if mask is None or mask.ndim > 1 else mask.expand(q.shape[-2], k.shape[-2])
    expected = torch_attention(q, k, v, whole, enable_gqa=True, **attributes)
    torch.testing.assert_close(cudarelu.attention(q, k, v, mask, **attributes), expected)


MASKS = {
    "none": None,
    "numbers": torch.randn(37, 53),
    "bool": torch.rand(2, 1, 37, 53) > 0.3,
    "of a head": torch.randn(4, 1, 53),
    "of keys": torch.rand(53) > 0.5,
    "a number": torch.tensor(0.5),
}


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_masks(mask):
    check(*inputs(), mask)


@pytest.mark.parametrize("keys", [1, 31, 37, 241, 700])
def test_causal_attention_is_aligned_to_the_upper_left(keys):
    check(*inputs(keys=keys), is_causal=True)
    check(*inputs((3, 8, 300, 8), keys=keys, kv_heads=8), is_causal=True, scale=0.3)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_dtypes(dtype):
    check(*inputs(dtype=dtype))


def test_a_query_without_keys_gives_zeros():
    mask = torch.ones(37, 53, dtype=torch.bool)
    mask[5] = False
    check(*inputs(), mask)
    y, lse = cudarelu.attention_with_lse(*inputs(), mask)
    assert (y[:, :, 5] == 0).all()
    assert (lse[:, :, 5] == -math.inf).all()
    check(*inputs(keys=0))


def test_nan_in_a_hidden_key_does_not_reach_the_result():
    q, k, v = inputs()
    mask = torch.ones(53, dtype=torch.bool)
    mask[7] = False
    expected = cudarelu.attention(q, k, v, mask)
    k[:, :, 7] = math.nan
    torch.testing.assert_close(cudarelu.attention(q, k, v, mask), expected, rtol=0, atol=0)


def test_parts_of_the_keys_can_be_combined():
    q, k, v = inputs()
    whole, lse = cudarelu.attention_with_lse(q, k, v)
    parts = [
        cudarelu.attention_with_lse(q, k[:, :, keys], v[:, :, keys])
        for keys in (slice(0, 20), slice(20, None))
    ]
    torch.testing.assert_close(lse, torch.logsumexp(torch.stack([each for _, each in parts]), 0))
    combined = sum(y * (each - lse).exp()[..., None] for y, each in parts)
    torch.testing.assert_close(combined, whole)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("mask", [None, torch.randn(4, 1, 53), torch.rand(37, 53) > 0.3])
def test_gradients(mask, causal):
    if causal and mask is not None:
        pytest.skip("torch accepts no mask then")

    def gradients(function, **options):
        leaves = [x.requires_grad_() for x in inputs()]
        given = mask
        if mask is not None and mask.is_floating_point():
            given = mask.clone().requires_grad_()
            leaves.append(given)
        y = function(*leaves[:3], given, is_causal=causal, **options)
        return torch.autograd.grad(y.square().sum(), leaves)

    expected = gradients(torch_attention, enable_gqa=True)
    for actual, wanted in zip(gradients(cudarelu.attention), expected, strict=True):
        torch.testing.assert_close(actual, wanted, rtol=1e-4, atol=1e-4)


IN_FLOAT64 = {
    "none": {},
    "causal": {"is_causal": True, "scale": 0.3},
    "numbers": {"attn_mask": torch.randn(4, 300, 1).expand(4, 300, 500).double()},
    "bool": {"attn_mask": torch.rand(300, 500) > 0.3},
}


@pytest.mark.parametrize("options", IN_FLOAT64.values(), ids=IN_FLOAT64)
def test_gradients_in_float64(options):
    """They are exact, though lse is float32."""

    def gradients(function, **more):
        leaves = list(inputs((2, 4, 300, 40), keys=500, dtype=torch.float64))
        given = options | more
        mask = options.get("attn_mask")
        if mask is not None and mask.is_floating_point():
            given["attn_mask"] = mask.clone()
            leaves.append(given["attn_mask"])
        leaves = [x.requires_grad_() for x in leaves]
        y = function(*leaves[:3], **given)
        return torch.autograd.grad(y.square().sum(), leaves)

    expected = gradients(torch_attention, enable_gqa=True)
    for actual, wanted in zip(gradients(cudarelu.attention), expected, strict=True):
        assert (actual - wanted).abs().max() < 1e-12 * wanted.abs().max()


def combined(q, k, v, mask=None):
    """Attention, from the results for two parts of the keys."""
    parts = []
    for keys in (slice(0, 20), slice(20, None)):
        given = None if mask is None else mask[..., keys]
        parts.append(cudarelu.attention_with_lse(q, k[:, :, keys], v[:, :, keys], given))
    weights = torch.softmax(torch.stack([lse for _, lse in parts]), 0)
    return sum(weight[..., None] * y for weight, (y, _) in zip(weights, parts, strict=True))


@pytest.mark.parametrize("numbers", [False, True], ids=["no mask", "mask"])
def test_gradients_of_combined_parts(numbers):
    def gradients(function):
        leaves = [x.requires_grad_() for x in inputs()]
        if numbers:
            leaves.append(torch.linspace(-1, 1, 37 * 53).reshape(37, 53).requires_grad_())
        return torch.autograd.grad(function(*leaves).square().sum(), leaves)

    for actual, wanted in zip(gradients(combined), gradients(cudarelu.attention), strict=True):
        torch.testing.assert_close(actual, wanted, rtol=1e-4, atol=1e-4)


def test_gradients_of_lse_alone():
    def gradients(lse_of):
        q, k, v = (x.requires_grad_() for x in inputs(kv_heads=4))
        return torch.autograd.grad(lse_of(q, k, v).sin().sum(), (q, k, v), materialize_grads=True)

    expected = gradients(lambda q, k, v: torch.logsumexp(q @ k.mT / 4 + 0 * v.sum(), -1))
    ours = gradients(lambda q, k, v: cudarelu.attention_with_lse(q, k, v)[1])
    for actual, wanted in zip(ours, expected, strict=True):
        torch.testing.assert_close(actual, wanted, rtol=1e-4, atol=1e-5)


def composed(q, k, v, mask=None, is_causal=False, scale=None):
    """Attention as torch's operators, in which a query without keys has finite derivatives."""
    group = q.shape[-3] // k.shape[-3]
    k, v = (x.repeat_interleave(group, -3) for x in (k, v))
    scores = q @ k.mT * (1 / math.sqrt(q.shape[-1]) if scale is None else scale)
    hidden = torch.zeros_like(scores, dtype=torch.bool)
    if mask is not None and mask.dtype == torch.bool:
        hidden |= ~mask
    elif mask is not None:
        hidden |= torch.isneginf(mask)
        scores = scores + mask
    if is_causal:
        hidden |= torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
    empty = hidden.all(-1, keepdim=True)
    weights = torch.softmax(scores.masked_fill(hidden & ~empty, -math.inf), -1)
    return weights.masked_fill(empty, 0) @ v


def first_and_second(function, leaves):
    """The gradients of a loss, and those of a loss of them."""
    first = torch.autograd.grad(function(*leaves).square().sum(), leaves, create_graph=True)
    loss = torch.stack([x.cos().sum() for x in first]).sum()
    return [*first, *torch.autograd.grad(loss, leaves)]


def check_first_and_second(actual, expected):
    """In float64. The second derivatives have the rounding of the gradient of lse, float32."""
    first = len(actual) // 2
    for i, (x, wanted) in enumerate(zip(actual, expected, strict=True)):
        limit = 1e-12 if i < first else 1e-6
        torch.testing.assert_close(x, wanted, rtol=limit, atol=limit)


HIDDEN_ROWS = torch.tensor([True, False, True, True, False])[:, None].expand(5, 6)
SECOND = {
    "none": {},
    "scale": {"scale": 0.25},
    "causal": {"is_causal": True},
    "bool": {"mask": torch.rand(2, 1, 5, 6, generator=torch.Generator().manual_seed(1)) > 0.3},
    "numbers": {"mask": torch.linspace(-1, 1, 30).reshape(5, 6).double()},
    "of a head": {"mask": torch.linspace(-1, 1, 24).reshape(4, 1, 6).double()},
    "of keys": {"mask": torch.linspace(-1, 1, 6).double(), "is_causal": True},
    "empty rows": {"mask": HIDDEN_ROWS, "is_causal": True},
}


def second_leaves(mask=None, shape=(2, 4, 5, 3), keys=6, dtype=torch.float64):
    leaves = list(inputs(shape, keys=keys, width=2, dtype=dtype))
    if mask is not None and mask.is_floating_point():
        leaves.append(mask.to(dtype).clone())
    return [x.requires_grad_() for x in leaves]


@pytest.mark.parametrize("case", SECOND.values(), ids=SECOND)
def test_second_derivatives(case):
    mask, attributes = case.get("mask"), {n: x for n, x in case.items() if n != "mask"}
    leaves = second_leaves(mask)

    def call(function):
        return lambda q, k, v, numbers=None: function(
            q, k, v, mask if numbers is None else numbers, **attributes
        )

    actual = first_and_second(call(cudarelu.attention), leaves)
    check_first_and_second(actual, first_and_second(call(composed), leaves))
    assert torch.autograd.gradgradcheck(call(cudarelu.attention), leaves)


def test_second_derivatives_of_large_heads():
    """Several blocks of queries and keys."""
    leaves = second_leaves(shape=(1, 4, 300, 8), keys=500)
    actual = first_and_second(cudarelu.attention, leaves)
    check_first_and_second(actual, first_and_second(composed, leaves))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_second_derivatives_are_those_of_torch(dtype, causal):
    limit = {torch.float64: 1e-5, torch.float32: 1e-4, torch.float16: 5e-2, torch.bfloat16: 0.3}
    leaves = second_leaves(dtype=dtype)
    wide = [x.detach().double().requires_grad_() for x in leaves]
    actual = first_and_second(lambda *x: cudarelu.attention(*x, is_causal=causal), leaves)
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        expected = first_and_second(
            lambda *x: torch_attention(*x, is_causal=causal, enable_gqa=True), wide
        )
    for x, wanted in zip(actual, expected, strict=True):
        assert x.dtype == dtype
        torch.testing.assert_close(x.double(), wanted, rtol=limit[dtype], atol=limit[dtype])


@pytest.mark.parametrize(("queries", "keys"), [(0, 6), (5, 0)])
def test_second_derivatives_without_queries_or_keys_are_zero(queries, keys):
    leaves = second_leaves(shape=(2, 4, queries, 3), keys=keys)
    for x in first_and_second(cudarelu.attention, leaves):
        assert (x == 0).all()


@pytest.mark.skipif(bool(torch_cuda_missing()), reason=torch_cuda_missing() or "")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_a_weight_of_nan_is_not_hidden(dtype):
    """Infinity less itself, whose sign is that of a hidden weight in float64 on CUDA."""
    q, k, v = (x.to(dtype) for x in inputs((1, 2, 70, 16)))
    q.abs_()
    k[..., 3, :] = torch.inf

    def gradients(device):
        leaves = [x.to(device).requires_grad_() for x in (q, k, v)]
        y = cudarelu.attention(*leaves)
        return [x.cpu() for x in torch.autograd.grad(y, leaves, torch.ones_like(y))]

    for actual, expected in zip(gradients("cuda"), gradients("cpu"), strict=True):
        assert expected.isnan().any()
        assert torch.equal(actual.isnan(), expected.isnan())


@pytest.mark.parametrize("is_absent", [True, False])
def test_absent_gradients_are_not_multiplied(is_absent):
    """0 times the infinity of a hidden key would be NaN, as it is for a gradient of zeros."""
    q, k, v = inputs()
    mask = torch.zeros(2, 4, 37, 53)
    mask[..., 5] = -torch.inf
    y, lse = cudarelu.attention_with_lse(q, k, v, mask)
    k[..., 5, :] = torch.inf
    zeros = None if is_absent else torch.zeros_like(q)
    of_mask = torch.ops.cudarelu.attention_mask_second_derivative(
        torch.ones_like(y), q, k, v, y, lse, None, zeros, None, None, torch.ones_like(mask), mask
    )
    assert of_mask[..., 5].isnan().all() != is_absent
    of_mask[..., 5] = 0
    assert of_mask.isfinite().all()


def test_second_derivatives_of_combined_parts():
    """The gradients of lse have gradients too."""
    leaves = second_leaves(shape=(2, 4, 37, 16), keys=53)
    expected = first_and_second(cudarelu.attention, leaves)
    for x, wanted in zip(first_and_second(combined, leaves), expected, strict=True):
        torch.testing.assert_close(x, wanted, rtol=1e-5, atol=1e-5)


def test_forward_mode():
    primals = tuple(inputs(dtype=torch.float64))
    tangents = tuple(x.cos() for x in primals)
    actual = torch.func.jvp(cudarelu.attention, primals, tangents)
    expected = torch.func.jvp(composed, primals, tangents)
    torch.testing.assert_close(actual, expected, rtol=1e-6, atol=1e-6)


def test_forward_mode_of_a_mask_that_broadcasts():
    q, k, v = inputs(dtype=torch.float64)
    mask = torch.linspace(-1, 1, 4 * 53, dtype=torch.float64).reshape(4, 1, 53)
    results = [
        torch.func.jvp(lambda mask, f=f: f(q, k, v, mask), (mask,), (mask.cos(),))
        for f in (cudarelu.attention, composed)
    ]
    torch.testing.assert_close(*results, rtol=1e-6, atol=1e-6)


def test_a_third_derivative_is_an_error():
    leaves = second_leaves()
    first = torch.autograd.grad(
        cudarelu.attention(*leaves).square().sum(), leaves, create_graph=True
    )
    loss = sum(x.square().sum() for x in first)
    (again,) = torch.autograd.grad(loss, leaves[:1], create_graph=True)
    with pytest.raises(NotImplementedError, match="derivative for 'cudarelu::attention_second_der"):
        again.sum().backward()


@pytest.mark.parametrize("causal", [False, True])
def test_gradients_of_many_keys(causal):
    """On the CPU, the keys are divided into parts, each with its own sums for the gradient of q,
    and the queries of the heads that share a head of k and v are processed 3,840 at a time."""

    def gradients(function, *given, **options):
        leaves = [x.requires_grad_() for x in given]
        y = function(*leaves, is_causal=causal, **options)
        return torch.autograd.grad(y.square().sum(), leaves)

    given = inputs((1, 4, 2100, 40), keys=1700)
    wide = gradients(torch_attention, *(x.double() for x in given), enable_gqa=True)
    for actual, wanted in zip(gradients(cudarelu.attention, *given), wide, strict=True):
        torch.testing.assert_close(actual, wanted.float(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("keys", [500, 1700])
def test_the_result_does_not_depend_on_the_threads(keys):
    leaves = [x.requires_grad_() for x in inputs((2, 4, 200, 16), keys=keys)]
    before = torch.get_num_threads()
    results = []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            y = cudarelu.attention(*leaves)
            results.append((y, *torch.autograd.grad(y.square().sum(), leaves)))
    finally:
        torch.set_num_threads(before)
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


def test_bad_arguments():
    q, k, v = inputs()
    with pytest.raises(TypeError, match="is_causal must be a bool, not int"):
        cudarelu.attention(q, k, v, is_causal=1)
    with pytest.raises(RuntimeError, match="h is 4, which is not a multiple of dimension g, 3"):
        cudarelu.attention(q, *(torch.randn(2, 3, 53, n) for n in (16, 24)))
    with pytest.raises(RuntimeError, match=r"attn_mask is \[53, 37\], which does not broadcast"):
        cudarelu.attention(q, k, v, torch.ones(53, 37))
    assert torch.equal(cudarelu.attention(q, k, v, scale=None), cudarelu.attention(q, k, v))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("shape", [(2, 4, 37, 16, 2, 53, 24), (3, 2, 5, 7, 2, 300, 9)])
def test_views(shape, view, causal):
    check_views(view, shape, torch.float32, "cpu", is_causal=causal)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_views_of_other_dtypes(dtype):
    check_views("packed", (2, 4, 37, 16, 2, 53, 24), dtype, "cpu", attn_mask=MASKS["of keys"])


def test_views_with_other_leading_dimensions():
    q, k, v = (x.transpose(-3, -2).contiguous() for x in inputs((2, 3, 4, 9, 8), keys=11))
    expected = cudarelu.attention(*(x.transpose(-3, -2).contiguous() for x in (q, k, v)))
    heads_inside = [x.transpose(-3, -2) for x in (q, k, v)]
    y = cudarelu.attention(*heads_inside)  # the leading dimensions are one in memory
    assert torch.equal(y, expected)
    assert y.transpose(-3, -2).is_contiguous()
    turned = [x.transpose(0, 1).contiguous().transpose(0, 1) for x in heads_inside]
    y = cudarelu.attention(*turned)  # they are not
    assert torch.equal(y, expected)
    assert y.is_contiguous()
    y = cudarelu.attention(*(x[0, 0] for x in heads_inside))  # there are none
    assert torch.equal(y, expected[0, 0])
    assert y.transpose(0, 1).is_contiguous()


@pytest.mark.parametrize("numbers", [False, True], ids=["no mask", "mask"])
def test_no_tensor_is_copied_between_projections(numbers):
    """The heads of q, k and v are slices of one projection, and the next one reads y in rows."""
    packed = torch.randn(2, 37, 3, 4, 16, requires_grad=True)
    mask = torch.randn(2, 4, 37, 37) if numbers else None
    with torch.profiler.profile() as profile:
        q, k, v = (x.transpose(1, 2) for x in packed.unbind(2))
        y = cudarelu.attention(q, k, v, mask).transpose(1, 2).reshape(2, 37, 64)
        grads = torch.autograd.grad(y, (q, k, v), torch.ones_like(y))
    names = [event.name for event in profile.events()]
    assert "cudarelu::attention" in names
    assert "cudarelu::attention_backward" in names
    assert not {"aten::copy_", "aten::clone", "aten::contiguous"} & set(names)
    assert all(grad.transpose(1, 2).is_contiguous() for grad in grads)


def test_strides_are_those_of_torch():
    q, k, v = (VIEWS["heads inside"](x) for x in inputs(kv_heads=4, width=16))
    assert cudarelu.attention(q, k, v).stride() == torch_attention(q, k, v).stride()


@pytest.mark.parametrize("view", VIEWS)
def test_fake_tensors_have_the_strides(view):
    given = [VIEWS[view](x) for x in inputs()]
    attention = torch.ops.cudarelu.attention_with_lse
    real = attention(*given)
    meta = attention(*(x.to("meta") if view in COPIED else _on_meta(x) for x in given))
    assert [x.stride() for x in real] == [x.stride() for x in meta]
    torch.library.opcheck(attention, given)
    torch.library.opcheck(attention, [x.detach().requires_grad_() for x in given])


def _on_meta(x):
    return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="meta")


@pytest.mark.parametrize("view", ["heads inside", "packed", "expanded heads", "sequence first"])
def test_one_graph_serves_views_of_all_sizes(view):
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")

    def run(function, size):
        leaves = [VIEWS[view](x).requires_grad_() for x in inputs((size, 4, 3 + size, 16))]
        y = function(*leaves)
        return y, *torch.autograd.grad(y.square().sum(), leaves)

    compiled = torch.compile(cudarelu.attention, backend=counter, dynamic=True, fullgraph=True)
    for size in (5, 6, 9):  # different from the other sizes
        for x, y in zip(run(compiled, size), run(cudarelu.attention, size), strict=True):
            assert torch.equal(x, y)
            assert x.stride() == y.stride()
    assert counter.frame_count == 1


def test_vmap_of_views():
    q, k, v = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in inputs((3, 4, 37, 16)))
    expected = cudarelu.attention(q, k, v)
    for dim in (0, 1, 2):
        moved = [x.movedim(0, dim) for x in (q, k, v)]
        y = torch.vmap(cudarelu.attention, in_dims=dim, out_dims=0)(*moved)
        assert torch.equal(y, expected)
