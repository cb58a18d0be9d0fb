"""Calls of torch's scaled_dot_product_attention by our op, within `cudarelu.nn.attention.sdpa`."""

from __future__ import annotations

import threading

import pytest
import torch
from torch.nn import functional
from torch.nn.functional import scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint

from cudarelu.nn.attention import sdpa
from support.torch_calls import Calls


def inputs(*, heads=2, batch=(2,), **options):
    """q of 4 heads, and k and v."""
    torch.manual_seed(0)
    shapes = [(*batch, 4, 5, 8), (*batch, heads, 7, 8), (*batch, heads, 7, 6)]
    return [torch.randn(shape, **options) for shape in shapes]


def names(function, *arguments, **named):
    with torch.no_grad(), Calls() as calls:
        function(*arguments, **named)
    return calls.names


CALLS = {
    "plain": {},
    "mask": {"attn_mask": torch.rand(5, 7) > 0.3},
    "numbers": {"attn_mask": torch.randn(2, 1, 5, 7)},
    "causal": {"is_causal": True, "scale": 0.3},
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize("heads", [4, 2])
def test_results_and_gradients_are_those_of_torch(heads, call):
    def run(function):
        leaves = [x.requires_grad_() for x in inputs(heads=heads)]
        y = function(*leaves, **call, enable_gqa=heads == 2)
        return y, torch.autograd.grad(y.square().sum(), leaves)

    expected = run(scaled_dot_product_attention)
    with sdpa():
        for function in (scaled_dot_product_attention, functional.scaled_dot_product_attention):
            torch.testing.assert_close(run(function), expected, rtol=1e-4, atol=1e-5)
            named = call | {"enable_gqa": heads == 2}
            assert names(function, *inputs(heads=heads), **named) == ["attention"]


def test_arguments_by_position_and_by_name():
    (q, k, v), mask = inputs(heads=4), torch.rand(5, 7) > 0.3
    expected = scaled_dot_product_attention(q, k, v, mask, scale=0.5)
    with sdpa():
        for positions, named in (
            ((q, k, v, mask, 0.0, False), {}),
            ((q,), {"key": k, "value": v, "attn_mask": mask}),
            ((), {"query": q, "key": k, "value": v, "attn_mask": mask, "dropout_p": 0.0}),
        ):
            y = scaled_dot_product_attention(*positions, **named, scale=0.5)
            torch.testing.assert_close(y, expected)
            assert names(scaled_dot_product_attention, *positions, **named) == ["attention"]


LEFT = {
    "dropout": (inputs(heads=4), {"dropout_p": 0.5}),
    "scale-tensor": (inputs(heads=4), {"scale": torch.tensor(0.5)}),
    "scale-bool": (inputs(heads=4), {"scale": True}),
    "broadcast-batch": ([inputs(heads=4)[0], *inputs(heads=4, batch=(1,))[1:]], {}),
    "broadcast-heads": (inputs(heads=1), {}),
    "heads-of-v": ([*inputs(heads=2)[:2], inputs(heads=4)[2]], {"enable_gqa": True}),
    "no-heads": ([x[0, 0] for x in inputs()], {}),
    "mask-of-more-dimensions": (inputs(heads=4, batch=()), {"attn_mask": torch.randn(1, 4, 5, 7)}),
    "mask-of-another-dtype": (
        inputs(heads=4, dtype=torch.bfloat16),
        {"attn_mask": torch.randn(5, 7)},
    ),
    "integers": ([x.int() for x in inputs(heads=4)], {}),
    "no-gqa": (inputs(heads=2), {}),
    "mask-and-causal": (inputs(heads=4), {"attn_mask": torch.ones(5, 7), "is_causal": True}),
    "one-dimension": (inputs(heads=2), {"attn_mask": torch.ones(7), "enable_gqa": True}),
}


@pytest.mark.parametrize(("tensors", "named"), LEFT.values(), ids=LEFT)
def test_other_calls_are_left_to_torch(tensors, named):
    def run():
        torch.manual_seed(1)
        try:
            return scaled_dot_product_attention(*tensors, **named)
        except (RuntimeError, IndexError) as error:
            return f"{type(error).__name__}: {error}"

    expected = run()
    with sdpa():
        actual = run()
    if isinstance(expected, str):
        assert actual == expected
    else:
        torch.testing.assert_close(actual, expected, rtol=0, atol=0)


def test_tensors_without_a_kernel():
    nested = torch.nested.nested_tensor([torch.randn(4, n, 8) for n in (3, 5)])
    x, *_ = inputs(dtype=torch.float64)
    math = torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH)
    with sdpa(), math:
        assert scaled_dot_product_attention(nested, nested, nested).is_nested
        _, tangent = torch.func.jvp(lambda x: scaled_dot_product_attention(x, x, x), (x,), (x,))
    assert tangent.any()


def test_forward_mode_runs_torchs_attention():
    """Forward mode over the gradients too, of which ours have none."""
    x = torch.randn(1, 1, 3, 2, dtype=torch.float64)

    def loss(x):
        return scaled_dot_product_attention(x, x, x).sin().sum()

    math = torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH)
    with math:
        expected = torch.func.hessian(loss)(x)
        with sdpa():
            actual = torch.func.hessian(loss)(x)
            ours = torch.func.jacrev(torch.func.jacrev(loss))(x)
    torch.testing.assert_close(actual, expected, rtol=0, atol=0)
    torch.testing.assert_close(ours, expected, rtol=1e-6, atol=1e-6)


def test_the_caller_decides():
    q, k, v = inputs(heads=4)
    with sdpa(when=lambda query, key, value: key.shape[-2] > 5):
        assert names(scaled_dot_product_attention, q, k, v) == ["attention"]
        assert names(scaled_dot_product_attention, q, k[:, :, :5], v[:, :, :5]) == []
        with sdpa():  # the inner context decides first
            assert names(scaled_dot_product_attention, q, k[:, :, :5], v[:, :, :5]) == ["attention"]
        assert names(scaled_dot_product_attention, q, k[:, :, :5], v[:, :, :5]) == []


def test_an_exception_ends_a_context():
    def fail():
        with context:
            assert names(scaled_dot_product_attention, *tensors) == ["attention"]
            raise KeyError

    tensors, context = inputs(heads=4), sdpa()
    for _ in range(2):
        with pytest.raises(KeyError):
            fail()
        assert names(scaled_dot_product_attention, *tensors) == []


def test_other_threads_are_not_affected():
    tensors, found = inputs(heads=4), []
    thread = threading.Thread(
        target=lambda: found.append(names(scaled_dot_product_attention, *tensors))
    )
    with sdpa():
        thread.start()
        thread.join()
    assert found == [[]]


def attend(q, k, v):
    return scaled_dot_product_attention(q * 2, k, v, is_causal=True) + 1


def attend_within(q, k, v):
    with sdpa():
        return attend(q, k, v)


class Attend(torch.nn.Module):
    forward = staticmethod(attend)


def test_torch_compile():
    tensors, graphs = inputs(heads=4), []

    def backend(graph, _):
        graphs.append(graph.code)
        return graph

    torch._dynamo.reset()
    expected = attend(*tensors)
    compiled = torch.compile(attend, backend=backend, fullgraph=True)
    with sdpa():
        torch.testing.assert_close(compiled(*tensors), expected)
    torch.testing.assert_close(compiled(*tensors), expected)  # compiled again, without our op
    inside = torch.compile(attend_within, backend=backend, fullgraph=True)
    torch.testing.assert_close(inside(*tensors), expected)
    assert ["ops.cudarelu.attention" in code for code in graphs] == [True, False, True]


@pytest.mark.parametrize("strict", [False, True])
def test_torch_export(strict):
    tensors = tuple(inputs(heads=4))
    with sdpa():
        program = torch.export.export(Attend(), tensors, strict=strict)
    assert "ops.cudarelu.attention" in program.graph_module.code
    torch.testing.assert_close(program.module()(*tensors), attend(*tensors))


def test_checkpoints():
    """They run the forward again, where the context must be entered again."""
    q, k, v = inputs(heads=4)
    expected = torch.autograd.grad(attend(q.requires_grad_(), k, v).square().sum(), q)
    with sdpa():
        y = checkpoint(attend, q, k, v, use_reentrant=False, context_fn=lambda: (sdpa(), sdpa()))
        with pytest.raises(torch.utils.checkpoint.CheckpointError):
            checkpoint(attend, q, k, v, use_reentrant=False).sum().backward()
    torch.testing.assert_close(torch.autograd.grad(y.square().sum(), q), expected)


def test_autocast_and_vmap():
    tensors = inputs(heads=4)
    with sdpa():
        with torch.autocast("cpu", torch.bfloat16):
            y = scaled_dot_product_attention(*tensors)
            assert names(scaled_dot_product_attention, *tensors) == ["attention"]
        batched = torch.vmap(scaled_dot_product_attention)
        assert names(batched, *tensors) == ["attention"]
        samples = batched(*tensors)
    expected = scaled_dot_product_attention(*tensors)
    assert y.dtype == torch.bfloat16
    torch.testing.assert_close(y.float(), expected, rtol=0.02, atol=0.02)
    torch.testing.assert_close(samples, expected)
