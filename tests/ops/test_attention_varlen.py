"""attention_varlen beside torch's attention for each sequence alone."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention as torch_attention

import cudarelu
from cudarelu.testing.environment import torch_cuda_missing

CUDA = pytest.mark.skipif(bool(torch_cuda_missing()), reason=torch_cuda_missing() or "")
DEVICES = ["cpu", pytest.param("cuda", marks=CUDA)]
DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
# The lengths of sequences in q and in k, and the rows past the last offset.
LENGTHS = {
    "one": ([37], None, 0, 0),
    "several": ([5, 130, 1, 64, 33], None, 0, 0),
    "rest": ([5, 20], None, 7, 7),
    "empty": ([0, 3, 0, 0, 8, 0], None, 2, 2),
    "other keys": ([5, 130, 1, 64], [40, 33, 300, 1], 3, 0),
    "without keys or queries": ([5, 0, 9], [0, 7, 4], 0, 5),
    "none": ([], None, 4, 4),
    "short": ([3] * 200, None, 0, 0),
    "long": ([700, 2, 300], None, 0, 0),
}


def inputs(lengths="several", device="cpu", dtype=torch.float32, heads=(4, 2), widths=(16, 24)):
    """q, k, v, and the offsets."""
    of_q, of_k, rest_of_q, rest_of_k = LENGTHS[lengths]
    shared = of_k is None
    of_k = of_q if of_k is None else of_k
    generator = torch.Generator().manual_seed(len(lengths))

    def tensor(rows, *shape):
        x = torch.randn(rows, *shape, generator=generator, dtype=torch.float64)
        return x.to(device, dtype)

    def ends(sizes):
        return torch.tensor(sizes, dtype=torch.int64).cumsum(0).to(device, torch.int32)

    (h, g), (d, e) = heads, widths
    n, m = sum(of_q) + rest_of_q, sum(of_k) + rest_of_k
    tensors = tensor(n, h, d), tensor(m, g, d), tensor(m, g, e)
    return (*tensors, ends(of_q), None if shared else ends(of_k))


def by_sequence(q, k, v, q_ends, k_ends=None, **options):
    """y and lse in float64, from the sequences one by one."""
    q, k, v = q.double(), k.double(), v.double()
    y = q.new_zeros(*q.shape[:2], v.shape[2])
    lse = q.new_full(q.shape[:2], -math.inf)
    q_begin = k_begin = 0
    k_ends = q_ends if k_ends is None else k_ends
    for q_end, k_end in zip(q_ends.tolist(), k_ends.tolist(), strict=True):
        rows, keys = slice(q_begin, q_end), slice(k_begin, k_end)
        q_begin, k_begin = q_end, k_end
        if rows.start == rows.stop or keys.start == keys.stop:
            continue
        parts = [x.transpose(0, 1) for x in (q[rows], k[keys], v[keys])]
        parts[1:] = [x.repeat_interleave(q.shape[1] // k.shape[1], 0) for x in parts[1:]]
        y = y.slice_scatter(torch_attention(*parts, **options).transpose(0, 1), 0, *_ends(rows))
        scores = parts[0] @ parts[1].mT * (options.get("scale") or q.shape[2] ** -0.5)
        if options.get("is_causal"):
            scores = scores.masked_fill(torch.ones_like(scores).tril() == 0, -math.inf)
        lse = lse.slice_scatter(scores.logsumexp(-1).T, 0, *_ends(rows))
    return y, lse


def _ends(rows):
    return rows.start, rows.stop


def tolerance(dtype):
    return {
        torch.float64: {"rtol": 1e-12, "atol": 1e-12},
        torch.float32: {"rtol": 1e-4, "atol": 2e-5},
        torch.float16: {"rtol": 1e-2, "atol": 1e-2},
        torch.bfloat16: {"rtol": 5e-2, "atol": 6e-2},
    }[dtype]


def check(given, **options):
    """Compares results and gradients."""
    leaves = [x.detach().requires_grad_() for x in given[:3]]
    wanted = [x.detach().double().requires_grad_() for x in given[:3]]
    y, lse = cudarelu.attention_varlen_with_lse(*leaves, *given[3:], **options)
    expected, expected_lse = by_sequence(*wanted, *given[3:], **options)
    limits = tolerance(y.dtype)
    torch.testing.assert_close(y.double(), expected, **limits)
    torch.testing.assert_close(lse.double(), expected_lse, **tolerance(lse.dtype))
    alone = cudarelu.attention_varlen(*(x.detach() for x in leaves), *given[3:], **options)
    assert torch.equal(alone, y)

    grad_y = torch.linspace(-1, 1, y.numel(), device=y.device).view(y.shape).to(y.dtype)
    grad_lse = torch.linspace(1, -1, lse.numel(), device=y.device).view(lse.shape)
    seen = torch.where(lse == -math.inf, 0, grad_lse)
    actual = torch.autograd.grad((y, lse), leaves, (grad_y, seen))
    if expected.requires_grad:
        expected_lse = torch.where(expected_lse == -math.inf, 0, expected_lse)
        outputs = (expected, expected_lse)
        gradients = (grad_y.double(), seen.double())
        expected = torch.autograd.grad(outputs, wanted, gradients, allow_unused=True)
    else:
        expected = [torch.zeros_like(x) for x in wanted]
    for x, y in zip(actual, expected, strict=True):
        torch.testing.assert_close(x.double(), y, **limits)


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("device", DEVICES)
def test_lengths(device, dtype, lengths, is_causal):
    check(inputs(lengths, device, dtype), is_causal=is_causal)


@pytest.mark.parametrize("lengths", ["several", "other keys"])
@pytest.mark.parametrize("heads", [(4, 4), (6, 2), (3, 1)], ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("device", DEVICES)
def test_dtypes_and_shared_heads(device, dtype, heads, lengths):
    for widths in ((64, 64), (128, 128), (5, 300), (16, 32), (40, 256)):
        check(inputs(lengths, device, dtype, heads, widths), is_causal=heads == (6, 2), scale=0.1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("device", DEVICES)
def test_other_sequences_have_no_effect(device, dtype):
    """Nor what is past the last offset. NaN is in all rows but those of the third sequence."""
    q, k, v, ends, _ = inputs("rest", device, dtype)
    ends = torch.tensor([5, 12, 25], dtype=torch.int32, device=device)
    own = slice(12, 25)
    results = []
    for value in (0.0, math.nan, math.inf):
        leaves = []
        for x in (q, k, v):
            changed = torch.full_like(x, value)
            changed[own] = x[own]
            leaves.append(changed.requires_grad_())
        y, lse = cudarelu.attention_varlen_with_lse(*leaves, ends)
        grad_y = torch.full_like(y, value)
        grad_y[own] = 1
        gradients = torch.autograd.grad((y, lse), leaves, (grad_y, torch.ones_like(lse)))
        assert all((x[25:] == 0).all() for x in (y, *gradients))
        assert (lse[25:] == -math.inf).all()
        results.append([x[own] for x in (y, lse, *gradients)])
    for other in results[1:]:
        for x, wanted in zip(other, results[0], strict=True):
            assert torch.equal(x, wanted)


@pytest.mark.parametrize("device", DEVICES)
def test_views_of_a_projection(device):
    """Views of [rows, 3, heads, d] and [rows, heads, 3, d] give what copies give."""
    ends = torch.tensor([9, 50, 61], dtype=torch.int32, device=device)
    for dim, shape in ((1, (61, 3, 4, 32)), (2, (61, 4, 3, 32))):
        parts = torch.randn(shape, device=device).requires_grad_()
        q, k, v = parts.unbind(dim)
        y = cudarelu.attention_varlen(q, k, v, ends, is_causal=True)
        copies = [x.detach().contiguous().requires_grad_() for x in (q, k, v)]
        expected = cudarelu.attention_varlen(*copies, ends, is_causal=True)
        assert torch.equal(y, expected)
        (gradient,) = torch.autograd.grad(y.square().sum(), parts)
        wanted = torch.autograd.grad(expected.square().sum(), copies)
        assert torch.equal(gradient, torch.stack(wanted, dim))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("lengths", ["several", "long"])
@pytest.mark.parametrize("device", DEVICES)
def test_results_do_not_depend_on_the_other_sequences(device, lengths, dtype):
    *tensors, ends, _ = inputs(lengths, device, dtype)

    def results(rows, ends):
        leaves = [x[rows].detach().requires_grad_() for x in tensors]
        y = cudarelu.attention_varlen(*leaves, ends, is_causal=True)
        return y, *torch.autograd.grad(y.float().square().sum(), leaves)

    whole = results(slice(None), ends)
    begin = 0
    for end in ends.tolist():
        own = slice(begin, end)
        length = torch.tensor([end - begin], dtype=torch.int32, device=device)
        for alone, all_rows in zip(results(own, length), whole, strict=True):
            assert torch.equal(alone, all_rows[own])
        begin = end


def test_bad_offsets():
    q, k, v, *_ = inputs("one")

    def call(*offsets):
        cudarelu.attention_varlen(
            q, k, v, *(torch.tensor(each, dtype=torch.int32) for each in offsets)
        )

    with pytest.raises(RuntimeError, match=r"q_offsets\[1\] is 4, less than 9 before it"):
        call([9, 4])
    with pytest.raises(RuntimeError, match=r"q_offsets\[1\] is 38, which exceeds dimension n, 37"):
        call([9, 38])
    with pytest.raises(RuntimeError, match=r"k_offsets\[0\] is -1, less than 0 before it"):
        call([9, 37], [-1, 37])
    with pytest.raises(RuntimeError, match="b"):
        call([9, 37], [37])
    with pytest.raises(RuntimeError, match="int32"):
        cudarelu.attention_varlen(q, k, v, torch.tensor([37]))
    with pytest.raises(RuntimeError, match=r"k_offsets\[0\] is 37, which exceeds dimension m, 30"):
        cudarelu.attention_varlen(q, k[:30], v[:30], torch.tensor([37], dtype=torch.int32))


@CUDA
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    "offsets",
    [[90, 4, 61], [-5, 200], [-9, -9], [2**31 - 1, -(2**31)], [700, 300, 1000, 0, 500, 1002]],
)
def test_bad_offsets_stay_within_the_tensors_on_cuda(offsets, dtype):
    """To run under compute-sanitizer too. No block waits for one that does not come."""
    q, k, v, *_ = inputs("long", "cuda", dtype)
    good = torch.linspace(1, len(q), len(offsets)).int().cuda()
    bad = torch.tensor(offsets, dtype=torch.int32, device="cuda")
    for pair in ((bad, bad), (bad, good), (good, bad)):
        for is_causal in (False, True):
            leaves = [x.detach().requires_grad_() for x in (q, k, v)]
            y = cudarelu.attention_varlen(*leaves, *pair, is_causal=is_causal)
            torch.autograd.grad(y.sum(), leaves)
    torch.cuda.synchronize()


@CUDA
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_graph_reads_new_offsets(dtype):
    *leaves, ends, _ = inputs("several", "cuda", dtype)
    leaves = [x.requires_grad_() for x in leaves]

    def results():
        y = cudarelu.attention_varlen(*leaves, ends)
        return y, *torch.autograd.grad(y, leaves, torch.ones_like(y))

    results()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = results()
    for other in ([5, 6, 7, 8, 233], [0, 100, 100, 200, 230]):
        ends.copy_(torch.tensor(other, dtype=torch.int32))
        graph.replay()
        for actual, expected in zip(captured, results(), strict=True):
            assert torch.equal(actual, expected)
        expected, _ = by_sequence(*leaves, ends)
        torch.testing.assert_close(captured[0].double(), expected, **tolerance(dtype))


def test_the_gradient_has_no_gradient():
    q, k, v, ends, _ = inputs("several")
    q.requires_grad_()
    y = cudarelu.attention_varlen(q, k, v, ends)
    (gradient,) = torch.autograd.grad(y.square().sum(), q, create_graph=True)
    with pytest.raises(RuntimeError, match="attention_varlen_backward"):
        torch.autograd.grad(gradient.sum(), q)
