"""torch.utils.flop_counter with our ops."""

from __future__ import annotations

import math

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import (
    FlopCounterMode,
    flop_registry,
    sdpa_backward_flop_count,
    sdpa_flop_count,
)

import cudarelu
import cudarelu.nn
from cudarelu import _flops
from cudarelu.testing.cases import is_product


def flops(run) -> int:
    with FlopCounterMode(display=False) as counter:
        run()
    return counter.get_total_flops()


def test_linear_layers_count_as_those_of_pytorch():
    torch.manual_seed(0)
    x = torch.randn(4, 8, 16, requires_grad=True)
    model = torch.nn.Sequential(
        torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.Linear(32, 8), torch.nn.ReLU()
    )
    forward, both = flops(lambda: model(x)), flops(lambda: model(x).sum().backward())
    assert both > forward > 0
    cudarelu.nn.replace(model)
    assert flops(lambda: model(x)) == forward
    assert flops(lambda: model(x).sum().backward()) == both
    with torch.no_grad():
        assert flops(lambda: model(x)) == forward


def test_attention_counts_as_that_of_pytorch():
    """Heads of k and v for several of q, other sizes of v, and a mask that broadcasts."""
    shapes = (2, 6, 10, 16), (2, 3, 7, 16), (2, 3, 7, 5)
    q, k, v = (torch.randn(shape, requires_grad=True) for shape in shapes)
    mask = torch.randn(10, 7)
    forward, grad_y = sdpa_flop_count(*shapes), (2, 6, 10, 5)
    assert flops(lambda: cudarelu.attention(q.detach(), k.detach(), v.detach())) == forward
    both = forward + sdpa_backward_flop_count(grad_y, *shapes)
    assert flops(lambda: cudarelu.attention(q, k, v, mask).sum().backward()) == both


def test_sequences_count_by_their_lengths():
    q, k = torch.randn(13, 4, 16), torch.randn(9, 2, 16)
    q_ends, k_ends = (torch.tensor(each, dtype=torch.int32) for each in ([3, 3, 11], [2, 5, 9]))

    def expected(*lengths: tuple[int, int]) -> int:
        return sum(4 * 4 * 16 * m * n for m, n in lengths)

    counted = flops(lambda: cudarelu.attention_varlen(q, k, k, q_ends, k_ends))
    assert counted == expected((3, 2), (0, 3), (8, 4))
    own = flops(lambda: cudarelu.attention_varlen(q, q[:, :2], q[:, :2], q_ends))
    assert own == expected((3, 3), (8, 8))
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        q, k, q_ends, k_ends = map(mode.from_tensor, (q, k, q_ends, k_ends))
        counted = flops(lambda: cudarelu.attention_varlen(q, k, k, q_ends, k_ends))
    assert counted == expected((13, 9))  # the values are not known


def test_empty_tensors_count_nothing():
    empty = torch.empty(2, 0, 10, 16)
    assert flops(lambda: cudarelu.attention(empty, empty, empty)) == 0


@pytest.mark.parametrize(
    "op", [op for op in cudarelu.ops() if is_product(op)], ids=lambda o: o.name
)
def test_every_op_with_a_product(op):
    assert getattr(torch.ops.cudarelu, op.name) in flop_registry
    attributes = tuple((each.name, each.default) for each in op.attributes)
    products = _flops._products(op, attributes)
    assert all(factor == 2 for factor, _ in products)
    if op.product:  # by all sizes
        ((_, dims),) = products
        assert set(dims) == {dim for each in op.inputs[:2] for dim in each.dims}
        assert math.prod(map(dims.count, dims)) == 1
