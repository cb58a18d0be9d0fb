"""The ops in torch.vmap and in transforms that use it, compared with a loop over the samples."""

import pytest
import torch
from torch.func import grad, jacfwd, jacrev, vmap

import cudarelu
from cudarelu.testing.features import BATCH, looped, samples_of, subsets
from cudarelu.testing.torch_calls import (
    as_tuple,
    call_of,
    in_place_of,
    inputs_of,
    loss_of,
    with_grad,
)
from support.torch_calls import DIFFERENTIABLE, IN_PLACE, OPS, Calls

# torch's warning if an op has no batching rule and runs with the slow general one.
pytestmark = pytest.mark.filterwarnings("error:There is a performance drop")

WHOLE = [  # the ops that run once on a batch of all inputs with `*`
    name
    for name, op in OPS.items()
    if any(each.dims[0] == "*" for each in op.inputs)
    and all(each.dims[0] == "*" for each in op.outputs)
]


@pytest.mark.parametrize("name", OPS)
def test_nested(name):
    """The inner batch is the last dimension of every input, the outer one is the first of some."""
    function, inputs = call_of(OPS[name]), inputs_of(OPS[name])
    inner = vmap(function, in_dims=-1)
    inner_batches = [torch.stack(samples_of(x, 2), -1) for x in inputs]
    for batched in subsets(inputs):
        outer = [
            [x.flip(-1), x, x.flip(-1)] if b else x
            for x, b in zip(inner_batches, batched, strict=True)
        ]
        arguments = [torch.stack(x) if b else x for x, b in zip(outer, batched, strict=True)]
        actual = vmap(inner, tuple(0 if b else None for b in batched))(*arguments)

        def by_sample(*tensors):
            return looped(function, [x.unbind(-1) for x in tensors], [True] * len(tensors))

        torch.testing.assert_close(as_tuple(actual), looped(by_sample, outer, batched))


def scalar_of(function):
    return lambda *tensors: loss_of(function(*tensors))


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_gradients_through_a_batch(name):
    function, inputs = call_of(OPS[name]), inputs_of(OPS[name])
    for batched in subsets(inputs):
        in_dims = tuple(0 if b else None for b in batched)
        given = with_grad(
            [torch.stack(samples_of(x)) if b else x for x, b in zip(inputs, batched, strict=True)]
        )
        leaves = [x for x in given if x.requires_grad]
        actual, expected = (
            torch.autograd.grad(loss_of(outputs), leaves, materialize_grads=True)
            for outputs in (vmap(function, in_dims)(*given), looped(function, given, batched))
        )
        # With the order of the sums, the second derivatives of attention differ more than others.
        torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("jacobian", [jacfwd, jacrev])
def test_jacobians(jacobian):
    x = torch.randn(3, 4, dtype=torch.float64)
    torch.testing.assert_close(jacobian(cudarelu.softmax)(x), jacobian(lambda x: x.softmax(-1))(x))
    torch.testing.assert_close(jacobian(cudarelu.sum_rows)(x), jacobian(lambda x: x.sum(0))(x))


@pytest.mark.parametrize("name", OPS)
def test_a_batch_is_one_call_where_it_can_be(name):
    op = OPS[name]
    inputs = inputs_of(op)
    in_dims = tuple(0 if name not in WHOLE or "*" in x.dims else None for x in op.inputs)
    arguments = [
        x if dim is None else torch.stack(samples_of(x))
        for x, dim in zip(inputs, in_dims, strict=True)
    ]
    with Calls() as calls:
        vmap(call_of(op), in_dims)(*arguments)
    assert calls.names == [name] * (1 if name in WHOLE else BATCH)
    assert {"relu", "bias_relu", "softmax"} <= set(WHOLE)


def test_inputs_left_out_and_options_of_vmap():
    points = torch.rand(5, BATCH, 3, dtype=torch.float64)
    offset = torch.tensor([2, 5], dtype=torch.int32)

    def nearest(xyz):
        return cudarelu.knn_query(xyz, offset, nsample=2)

    idx, distance = vmap(nearest, in_dims=1, out_dims=(1, -1), chunk_size=2)(points)
    expected = [nearest(xyz) for xyz in points.unbind(1)]
    assert torch.equal(idx, torch.stack([e[0] for e in expected], 1))
    assert torch.equal(distance, torch.stack([e[1] for e in expected], -1))


def test_batches_of_no_sample():
    rows = torch.zeros(0, 2, 4)
    assert vmap(cudarelu.softmax)(rows).shape == (0, 2, 4)
    assert vmap(cudarelu.sum_rows)(rows).shape == (0, 4)
    offset = torch.tensor([5], dtype=torch.int32)
    found = vmap(lambda xyz: cudarelu.knn_query(xyz, offset, nsample=2))(torch.zeros(0, 5, 3))
    assert [(x.shape, x.dtype, x.device.type) for x in found] == [
        ((0, 5, 2), torch.int32, "cpu"),
        ((0, 5, 2), torch.float32, "cpu"),
    ]


@pytest.mark.parametrize("name", ["relu", "bias_relu", "sum_rows"])
def test_compiled(name):
    inputs = [torch.stack(samples_of(x)) for x in inputs_of(OPS[name])]
    torch._dynamo.reset()
    batched = vmap(grad(scalar_of(call_of(OPS[name], getattr(cudarelu, name)))))
    compiled = torch.compile(batched, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(*inputs), batched(*inputs))


# In place


@pytest.mark.parametrize("name", IN_PLACE)
def test_in_place_nested_and_of_no_sample(name):
    function, target = in_place_of(OPS[name])
    inputs = inputs_of(OPS[name])
    batches = [torch.stack(samples_of(x, 2), -1) for x in inputs]
    batches = [torch.stack([x, x.flip(-1), x]) for x in batches]
    expected = vmap(vmap(call_of(OPS[name]), -1))(*batches)
    vmap(vmap(function, -1))(*batches)
    torch.testing.assert_close(batches[target].movedim(-1, 1), expected)
    vmap(function)(*(x[None][:0] for x in inputs))


@pytest.mark.parametrize("name", [name for name in IN_PLACE if OPS[name].gradient])
def test_in_place_gradients_of_each_sample(name):
    function, target = in_place_of(OPS[name])
    inputs = inputs_of(OPS[name])

    def on_a_copy(*tensors):
        tensors = list(tensors)
        tensors[target] = tensors[target] * 1
        return function(*tensors)

    argnums = tuple(range(len(inputs)))
    batches = [torch.stack(samples_of(x)) for x in inputs]
    expected = vmap(grad(scalar_of(call_of(OPS[name])), argnums))(*batches)
    actual = vmap(grad(scalar_of(on_a_copy), argnums))(*batches)
    torch.testing.assert_close(actual, expected)

    def total(*tensors):
        return vmap(scalar_of(on_a_copy))(*tensors).sum()

    torch.testing.assert_close(grad(total, argnums)(*batches), expected)


def test_compiled_in_place():
    function, target = in_place_of(OPS["bias_relu"])
    inputs = [torch.stack(samples_of(x)) for x in inputs_of(OPS["bias_relu"])]
    expected = vmap(call_of(OPS["bias_relu"]))(*inputs)
    torch._dynamo.reset()
    torch.compile(vmap(function), backend="aot_eager", fullgraph=True)(*inputs)
    torch.testing.assert_close(inputs[target], expected)
