"""The kernels of attention on CUDA at the sizes that each of them is for, against float64."""

from __future__ import annotations

import math

import pytest
import torch

import cudarelu
from cudarelu.testing.environment import torch_cuda_missing
from support.attention_views import VIEWS, check_views

pytestmark = pytest.mark.skipif(bool(torch_cuda_missing()), reason=torch_cuda_missing() or "")

# Of the largest element; the first for y, the second for gradients.
TOLERANCES = {
    torch.float64: (1e-12, 1e-12),
    torch.float32: (5e-6, 2e-5),
    torch.float16: (2e-3, 4e-3),
    torch.bfloat16: (1.2e-2, 2.4e-2),
}
# Batch, heads, heads of k, queries, keys, d, e: tiles that are full, partly full and nearly empty;
# one query; more keys than a block holds; a whole head in a block; sizes without a tile of theirs.
SHAPES = [
    (2, 4, 4, 256, 256, 64, 64),
    (1, 4, 2, 300, 200, 128, 128),
    (1, 2, 1, 129, 513, 64, 128),
    (1, 2, 2, 65, 1000, 256, 256),
    (2, 6, 2, 128, 128, 32, 32),
    (3, 2, 2, 100, 77, 64, 64),
    (2, 8, 2, 1, 3000, 128, 128),
    (1, 2, 1, 200, 100, 80, 40),
    (1, 2, 2, 70, 90, 17, 33),
    (1, 1, 1, 1500, 1500, 128, 128),
    (1, 4, 2, 300, 200, 256, 256),
    (2, 1, 1, 1300, 1400, 256, 256),
    (1, 2, 2, 200, 513, 136, 256),
    (1, 2, 2, 513, 200, 256, 72),
]
MASKS = {
    "none": lambda b, h, s, t: None,
    "bool": lambda b, h, s, t: torch.rand(b, 1, s, t) > 0.3,
    "keys": lambda b, h, s, t: torch.rand(b, 1, 1, t) > 0.3,
    "empty rows": lambda b, h, s, t: torch.rand(s, 1).expand(s, t) > 0.3,
    "numbers": lambda b, h, s, t: torch.randn(h, s, t),
    "infinite": lambda b, h, s, t: torch.where(torch.rand(s, t) > 0.4, 0.5, -math.inf),
}


def made(shape, dtype):
    b, h, g, s, t, d, e = shape
    torch.manual_seed(sum(shape))
    sizes = ((b, h, s, d), (b, g, t, d), (b, g, t, e))
    return [torch.randn(size, device="cuda").to(dtype).requires_grad_() for size in sizes]


def reference(q, k, v, mask, causal):
    """y and lse in float64. A query without keys gives zeros."""
    group = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(group, 1) for x in (k, v))
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    hidden = torch.zeros_like(scores, dtype=torch.bool)
    if mask is not None and mask.dtype == torch.bool:
        hidden |= ~mask
    elif mask is not None:
        hidden |= torch.isneginf(mask)
        scores = scores + mask.double()
    if causal:
        hidden |= torch.ones_like(hidden[0, 0]).triu(1)
    scores = scores.masked_fill(hidden, -math.inf)
    lse = torch.logsumexp(scores.masked_fill(hidden.all(-1, True), 0), -1)
    weights = torch.exp(scores - lse[..., None])
    return weights @ v, lse.masked_fill(hidden.all(-1), -math.inf)


def largest_error(actual, expected):
    """Relative to the largest element, or to 1/4, since exact gradients of one key are 0."""
    assert torch.equal(torch.isneginf(actual), torch.isneginf(expected))
    expected = expected.masked_fill(torch.isneginf(expected), 0)
    apart = (actual.masked_fill(torch.isneginf(actual), 0).double() - expected).abs().max()
    return (apart / max(expected.abs().max().item(), 0.25)).item()


@pytest.mark.parametrize("causal", [False, True], ids=["", "causal"])
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: "-".join(map(str, shape)))
@pytest.mark.parametrize("dtype", TOLERANCES, ids=lambda dtype: str(dtype)[6:])
def test_values_and_gradients(dtype, shape, mask, causal):
    b, h, _, s, t, _, _ = shape
    q, k, v = leaves = made(shape, dtype)
    given = MASKS[mask](b, h, s, t)
    if given is not None:
        given = given.cuda() if given.dtype == torch.bool else given.cuda().to(dtype)
    wide = [x.detach().double().requires_grad_() for x in leaves]
    expected, expected_lse = reference(*wide, given, causal)
    y, lse = cudarelu.attention_with_lse(q, k, v, given, is_causal=causal)
    limit, gradient_limit = TOLERANCES[dtype]
    assert largest_error(y, expected) < limit
    assert largest_error(lse, expected_lse) < max(limit / 4, 1e-6)
    assert torch.equal(y, cudarelu.attention(q, k, v, given, is_causal=causal))

    grad_y = torch.randn_like(y)
    seen = torch.isfinite(expected_lse)
    grad_lse = torch.randn_like(lse).masked_fill(~seen, 0)
    for with_lse in (False, True):
        outputs, grads = ([y, lse], [grad_y, grad_lse]) if with_lse else ([y], [grad_y])
        ours = torch.autograd.grad(outputs, leaves, grads, retain_graph=True)
        again = torch.autograd.grad(outputs, leaves, grads, retain_graph=True)
        total = (expected * grad_y.double()).sum()
        if with_lse:
            total = total + (expected_lse.masked_fill(~seen, 0) * grad_lse.double()).sum()
        wanted = torch.autograd.grad(total, wide, retain_graph=True)
        for name, x, other, exact in zip("qkv", ours, again, wanted, strict=True):
            assert torch.equal(x, other), f"the gradient of {name} differs in a second run"
            assert largest_error(x, exact) < gradient_limit, (name, with_lse)


@pytest.mark.parametrize("shape", [(1, 2, 2, 4, 64, 64, 64), (2, 4, 2, 200, 300, 128, 64)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_rows_of_the_lowest_number_in_a_mask(dtype, shape):
    """Such a mask, which transformers makes for padding, hides no key: y is the mean of v."""
    b, h, _, s, t, _, _ = shape
    q, k, v = leaves = made(shape, dtype)
    mask = torch.zeros(s, t, device="cuda", dtype=dtype)
    mask[: s // 2] = torch.finfo(dtype).min
    mask[:, -1] = -math.inf
    y, lse = cudarelu.attention_with_lse(q, k, v, mask)
    limit, _ = TOLERANCES[dtype]
    means = v[:, :, :-1].double().mean(2, keepdim=True).repeat_interleave(h // v.shape[1], 1)
    assert largest_error(y[:, :, : s // 2], means.expand(b, h, s // 2, -1)) < limit
    assert bool(lse.isfinite().all())
    for grad in torch.autograd.grad(y, leaves, torch.randn_like(y)):
        assert bool(grad.isfinite().all())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("queries", [192, 200])
def test_gradients_of_an_infinite_key(dtype, queries):
    """It has the weight 0. The zeros of queries past the end of a tile must not make NaN of it."""
    q, k, _ = leaves = made((1, 2, 2, queries, 200, 64, 64), dtype)
    with torch.no_grad():
        q[..., 3] = 1
        k[:, :, 7, 3] = -math.inf
    y = cudarelu.attention(*leaves)
    _, grad_k, grad_v = torch.autograd.grad(y, leaves, torch.randn_like(y))
    assert bool(grad_k.isfinite().all())
    assert bool(grad_v.isfinite().all())
    assert not grad_v[:, :, 7].any()


@pytest.mark.parametrize("scale", [-0.125, 0.0])
@pytest.mark.parametrize("dtype", TOLERANCES, ids=lambda dtype: str(dtype)[6:])
def test_scales_that_are_not_positive(dtype, scale):
    """A hidden score is -infinity, not -infinity times the scale."""
    q, k, v = leaves = made((1, 4, 2, 70, 90, 64, 64), dtype)
    wide = [x.detach().double().requires_grad_() for x in leaves]
    expected, _ = reference(wide[0] * scale * 8, *wide[1:], None, True)
    y = cudarelu.attention(q, k, v, is_causal=True, scale=scale)
    limit, gradient_limit = TOLERANCES[dtype]
    assert largest_error(y, expected) < limit
    grad_y = torch.randn_like(y)
    wanted = torch.autograd.grad((expected * grad_y.double()).sum(), wide)
    for x, exact in zip(torch.autograd.grad(y, leaves, grad_y), wanted, strict=True):
        assert largest_error(x, exact) < gradient_limit


# Those of the gradients that they are derivatives of, and rounded y and lse.
SECOND_TOLERANCES = {
    torch.float64: 1e-5,
    torch.float32: 1e-4,
    torch.float16: 2e-2,
    torch.bfloat16: 0.15,
}


@pytest.mark.parametrize("causal", [False, True], ids=["", "causal"])
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize(
    "shape", [(1, 4, 2, 70, 90, 40, 300), (2, 2, 2, 33, 1, 8, 8), (1, 2, 1, 130, 200, 64, 64)]
)
@pytest.mark.parametrize("dtype", TOLERANCES, ids=lambda dtype: str(dtype)[6:])
def test_second_derivatives(dtype, shape, mask, causal):
    b, h, _, s, t, _, _ = shape
    leaves = made(shape, dtype)
    given = MASKS[mask](b, h, s, t)
    given = None if given is None else given.cuda()
    numbers = given is not None and given.is_floating_point()
    if numbers:
        leaves.append(given.to(dtype).requires_grad_())
    elif given is not None:
        leaves.append(given)
    wide = [x.detach().double().requires_grad_() if x.requires_grad else x for x in leaves]
    directions = [torch.randn_like(x) for x in leaves if x.requires_grad]

    def derivatives(call, inputs):
        chosen = [x for x in inputs if x.requires_grad]
        y, lse = call(*inputs)
        loss = y.square().sum() + torch.where(torch.isneginf(lse), 0, lse).square().sum()
        first = torch.autograd.grad(loss, chosen, create_graph=True)
        pairs = zip(first, directions, strict=True)
        total = torch.stack([(x * d.to(x.dtype)).double().sum() for x, d in pairs]).sum()
        return torch.autograd.grad(total, chosen)

    def exact(q, k, v, mask=None):
        return reference(q, k, v, mask, causal)

    def ours(*inputs):
        return cudarelu.attention_with_lse(*inputs, is_causal=causal)

    actual, again = derivatives(ours, leaves), derivatives(ours, leaves)
    for x, other, wanted in zip(actual, again, derivatives(exact, wide), strict=True):
        assert torch.equal(x, other)
        assert largest_error(x, wanted) < SECOND_TOLERANCES[dtype]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("width", [32, 64, 128])
def test_what_is_hidden_does_not_reach_the_result(dtype, width):
    limit, _ = TOLERANCES[dtype]
    q, k, v = (x.detach() for x in made((1, 2, 2, 300, 300, width, width), dtype))
    clean = cudarelu.attention(q, k, v, is_causal=True)
    for place in (299, 150, 3):
        for value in (math.nan, math.inf):
            for changed in (k, v):
                before = changed[:, :, place].clone()
                changed[:, :, place] = value
                y = cudarelu.attention(q, k, v, is_causal=True)
                changed[:, :, place] = before
                # A row that is computed again is rounded in another way.
                assert largest_error(y[:, :, :place], clean[:, :, :place].double()) < limit
                assert not torch.isfinite(y[:, :, place]).all()


@pytest.mark.parametrize("shape", [(4, 4, 4, 128, 128, 64, 64), (4, 8, 2, 1, 2000, 128, 128)])
def test_a_result_does_not_depend_on_the_batch(shape):
    q, k, v = (x.detach() for x in made(shape, torch.bfloat16))
    whole = cudarelu.attention(q, k, v)
    assert torch.equal(whole[:1], cudarelu.attention(q[:1], k[:1], v[:1]))


def test_in_a_graph_on_another_stream():
    q, k, v = made((2, 4, 2, 300, 300, 128, 128), torch.bfloat16)
    expected = cudarelu.attention(q, k, v, is_causal=True)
    wanted = torch.autograd.grad(expected.float().square().sum(), (q, k, v))
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):

        def step():
            # Leaves of this stream: PyTorch synchronises with the stream of a leaf.
            leaves = [x.detach().requires_grad_() for x in (q, k, v)]
            y = cudarelu.attention(*leaves, is_causal=True)
            return y, *torch.autograd.grad(y.float().square().sum(), leaves)

        step()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            results = step()
        for x in results:
            x.detach().zero_()
        graph.replay()
    stream.synchronize()
    for x, other in zip(results, (expected, *wanted), strict=True):
        assert torch.equal(x, other)


# Batch, heads, queries, d, heads of k, keys, e: for each engine, and for each of its tilings.
VIEWED = [
    (2, 4, 256, 64, 4, 256, 64),
    (2, 4, 300, 128, 2, 200, 128),
    (1, 2, 129, 64, 1, 513, 128),
    (1, 2, 65, 256, 2, 1000, 256),
    (2, 4, 300, 256, 2, 200, 192),
    (2, 6, 128, 32, 2, 128, 32),
    (3, 2, 100, 64, 2, 77, 64),
    (2, 8, 1, 128, 2, 3000, 128),
    (2, 8, 3, 128, 2, 3000, 64),
    (3, 6, 20, 64, 2, 50, 64),
    (1, 4, 200, 80, 2, 100, 40),
    (1, 2, 70, 17, 2, 90, 33),
    (2, 2, 400, 12, 1, 300, 20),
]


@pytest.mark.parametrize("options", ["", "causal", "mask"])
@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("shape", VIEWED, ids=lambda shape: "-".join(map(str, shape)))
@pytest.mark.parametrize("dtype", TOLERANCES, ids=lambda dtype: str(dtype)[6:])
def test_views(dtype, shape, view, options):
    given = {"is_causal": True} if options == "causal" else {}
    if options == "mask":
        given = {"attn_mask": torch.rand(shape[2], shape[5], device="cuda") > 0.3}
    check_views(view, shape, dtype, "cuda", **given)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("view", ["heads inside", "packed"])
def test_hidden_nan_in_views(view, dtype):
    """Rows that get NaN from hidden values are computed again, from the views."""
    tensors = [x.detach() for x in made((2, 4, 2, 300, 300, 64, 64), dtype)]
    for x in tensors[1:]:
        x[:, :, 299] = math.nan
    views = [VIEWS[view](x).requires_grad_() for x in tensors]
    dense = [x.detach().contiguous().requires_grad_() for x in views]
    results = []
    for given in (views, dense):
        y = cudarelu.attention(*given, is_causal=True)
        results.append([y, *torch.autograd.grad(y, given, torch.ones_like(y))])
    for x, other in zip(*results, strict=True):
        torch.testing.assert_close(x, other, rtol=0, atol=0, equal_nan=True)
    assert torch.isfinite(results[0][0][:, :, :299]).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_views_take_no_memory_for_copies(dtype):
    """Only y, lse, the gradients, and some numbers for each query are allocated."""
    b, s, h, d = 4, 1024, 16, 64
    packed = torch.randn(b, s, 3, h, d, device="cuda").to(dtype)
    q, k, v = (x.transpose(1, 2).requires_grad_() for x in packed.unbind(2))
    size = q.numel() * q.element_size()
    lse_size = b * h * s * 4

    def peak(function):
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        result = function()
        torch.cuda.synchronize()
        return result, torch.cuda.max_memory_allocated() - before

    y, used = peak(lambda: cudarelu.attention(q, k, v).transpose(1, 2).reshape(b, s, h * d))
    assert used < size + lse_size + size / 8
    grad_y = torch.randn_like(y)
    grads, used = peak(lambda: torch.autograd.grad(y, (q, k, v), grad_y))
    assert used < 3 * size + 3 * lse_size + size / 8
    assert all(x.transpose(1, 2).is_contiguous() for x in grads)


def test_strides_are_those_of_torch():
    q, k, v = (x.detach() for x in made((2, 4, 4, 256, 256, 64, 64), torch.bfloat16))
    for view in ("dense", "heads inside"):
        given = [VIEWS[view](x) for x in (q, k, v)]
        wanted = torch.nn.functional.scaled_dot_product_attention(*given)
        if view != "dense" or wanted.is_contiguous():  # some of torch's kernels turn dense ones
            assert cudarelu.attention(*given).stride() == wanted.stride()
