"""The ops in two processes: sharded tensors (DTensor), and data-parallel training (DDP).

The processes run functions of this file, whose first parameter is the mesh of both processes. One
pair of processes runs the functions of all tests.
"""

import copy
import datetime
import functools
import itertools
import os
import subprocess
import sys
import traceback

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import (
    DTensor,
    Partial,
    Replicate,
    Shard,
    distribute_tensor,
    init_device_mesh,
)
from torch.distributed.tensor.debug import CommDebugMode
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

import cudarelu
import cudarelu.nn
from cudarelu.testing.environment import torch_cuda_pair_missing
from cudarelu.testing.torch_calls import as_tuple, call_of, inputs_of
from support.cases import slow_after, tiered
from support.torch_calls import DIFFERENTIABLE, IN_PLACE, OPS

pytestmark = pytest.mark.xdist_group("distributed")

TIMEOUT = 120  # seconds
LEAD = (4, 3)  # the shape for *; the second dimension is sharded unevenly
WITH_ROWS = [name for name, op in OPS.items() if any("*" in each.dims for each in op.inputs)]


class Pair:
    """A group of two processes, which run the same functions."""

    def __init__(self, backend, folder):
        context = torch.multiprocessing.get_context("spawn")
        self.pipes, self.processes = [], []
        for rank in range(2):
            ours, theirs = context.Pipe()
            arguments = (rank, backend, f"file://{folder}/store", theirs)
            self.pipes.append(ours)
            self.processes.append(context.Process(target=serve, args=arguments, daemon=True))
            self.processes[-1].start()

    def run(self, function, *arguments):
        for pipe in self.pipes:
            pipe.send((function, arguments))
        errors = [pipe.recv() if pipe.poll(TIMEOUT) else "does not answer" for pipe in self.pipes]
        for rank, error in enumerate(errors):
            if error is not None:
                pytest.fail(f"process {rank}: {error}")

    def end(self):
        for pipe in self.pipes:
            pipe.send(None)
        for process in self.processes:
            process.join(TIMEOUT)
            process.kill()


def serve(rank, backend, store, pipe):
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    device = "cpu" if backend == "gloo" else "cuda"
    if device == "cuda":
        torch.cuda.set_device(rank)
    timeout = datetime.timedelta(seconds=TIMEOUT / 2)
    dist.init_process_group(backend, store, timeout, world_size=2, rank=rank)
    mesh = init_device_mesh(device, (2,))
    while (job := pipe.recv()) is not None:
        function, arguments = job
        try:
            function(mesh, *arguments)
            pipe.send(None)
        except BaseException:
            pipe.send(traceback.format_exc())
    dist.destroy_process_group()


MISSING = torch_cuda_pair_missing()
NEEDS_TWO_GPUS = pytest.mark.skipif(bool(MISSING), reason=MISSING or "")


@pytest.fixture(scope="module", params=["gloo", pytest.param("nccl", marks=NEEDS_TWO_GPUS)])
def pair(request, tmp_path_factory):
    pair = Pair(request.param, tmp_path_factory.mktemp("group"))
    yield pair
    pair.end()


# Sharded tensors. Both processes have the same complete inputs; `placements` has one entry for each
# input.


def whole_inputs(mesh, op):
    return inputs_of(op, LEAD, device=mesh.device_type)


def distributed_one(mesh, x, placements):
    return distribute_tensor(x, mesh, placements, src_data_rank=None)  # each process uses its x


def distributed(mesh, inputs, placements):
    pairs = zip(inputs, placements, strict=True)
    return [distributed_one(mesh, x, [placement]) for x, placement in pairs]


def on_rows(op, inputs, dim):
    """The placements of inputs whose leading dimension `dim` is sharded; None: none is."""
    axes = [each.axes_of(x.shape, len(LEAD)) for each, x in zip(op.inputs, inputs, strict=True)]
    return [Shard(each.index(dim)) if dim in each else Replicate() for each in axes]


def placements_of(results):
    assert all(type(y) is DTensor for y in results)
    return [y.placements for y in results]


def assert_same(actual, expected):
    torch.testing.assert_close([y.full_tensor() for y in actual], list(expected))


def keeps_the_sharding_of_rows(mesh, name):
    op = OPS[name]
    inputs = whole_inputs(mesh, op)
    expected = as_tuple(call_of(op)(*inputs))
    for dim in range(len(LEAD)):
        sharded = distributed(mesh, inputs, on_rows(op, inputs, dim))
        with CommDebugMode() as communication:
            results = as_tuple(call_of(op)(*sharded))
        assert communication.get_total_counts() == 0
        wanted = [(Shard(dim) if each.leads else Partial(),) for each in op.outputs]
        assert placements_of(results) == wanted
        assert_same(results, expected)


def has_gradients_sharded_alike(mesh, name):
    op = OPS[name]
    inputs = [x.requires_grad_() for x in whole_inputs(mesh, op)]
    # One output at a time; the others have no gradient.
    for output, dim in itertools.product(range(len(op.outputs)), range(len(LEAD))):
        y = as_tuple(call_of(op)(*inputs))[output]
        if not y.requires_grad:
            continue
        upstream = torch.linspace(-1, 1, y.numel(), dtype=y.dtype, device=y.device).view_as(y)
        expected = torch.autograd.grad(y, inputs, upstream, materialize_grads=True)
        placements = on_rows(op, inputs, dim)
        sharded = [x.detach().requires_grad_() for x in distributed(mesh, inputs, placements)]
        y = as_tuple(call_of(op)(*sharded))[output]
        placement = Shard(dim) if op.outputs[output].leads else Replicate()
        (upstream_sharded,) = distributed(mesh, [upstream], [placement])
        with CommDebugMode() as communication:
            gradients = torch.autograd.grad(y, sharded, upstream_sharded, allow_unused=True)
        assert communication.get_total_counts() == 0
        for gradient, x, placement in zip(gradients, expected, placements, strict=True):
            if gradient is None:
                assert not x.any()
                continue
            of_shared = [(Partial(),), (Replicate(),)]
            assert gradient.placements in ([(placement,)] if placement.is_shard() else of_shared)
            assert_same([gradient], [x])


def overwrites_its_shard(mesh, name):
    op = OPS[name]
    overload = getattr(torch.ops.cudarelu, f"{name}_").default
    inputs = whole_inputs(mesh, op)
    expected = call_of(op)(*inputs)
    for dim in range(len(LEAD)):
        target, *others = distributed(mesh, inputs, on_rows(op, inputs, dim))
        address = target.to_local().data_ptr()
        with CommDebugMode() as communication:
            call_of(op, overload)(target, *others)
        assert communication.get_total_counts() == 0
        assert placements_of([target]) == [(Shard(dim),)]
        assert target.to_local().data_ptr() == address
        assert_same([target], [expected])
    partial = DTensor.from_local(inputs[0], mesh, [Partial()])
    with pytest.raises(RuntimeError, match="in-place operations that require placement changes"):
        call_of(op, overload)(
            partial, *distributed(mesh, inputs[1:], [Replicate()] * (len(inputs) - 1))
        )


def has_gradients_in_place(mesh, name):
    op = OPS[name]
    overload = getattr(torch.ops.cudarelu, f"{name}_").default
    inputs = whole_inputs(mesh, op)

    def gradients(inputs):
        inputs = [x.detach().requires_grad_() for x in inputs]
        target = inputs[0] * 2
        call_of(op, overload)(target, *inputs[1:])
        found = torch.autograd.grad(target.square().sum(), inputs, allow_unused=True)
        return [x for x in found if x is not None]

    sharded = distributed(mesh, inputs, on_rows(op, inputs, 0))
    assert_same(gradients(sharded), gradients(inputs))


def is_right_on_any_placements(mesh, name):
    """One input at a time is sharded in each dimension, or is a partial sum."""
    op = OPS[name]
    inputs = whole_inputs(mesh, op)
    expected = as_tuple(call_of(op)(*inputs))
    for i, x in enumerate(inputs):
        whole = distributed(mesh, inputs, on_rows(op, inputs, 0))
        others = [distributed_one(mesh, x, [Shard(dim)]) for dim in range(x.ndim)]
        if x.is_floating_point():
            share = x * (0.25 if mesh.get_rank() == 0 else 0.75)
            others.append(DTensor.from_local(share, mesh, [Partial()]))
        for other in others:
            results = as_tuple(call_of(op)(*whole[:i], other, *whole[i + 1 :]))
            assert_same(results, expected)


def communicates_where_rows_are_cut(mesh, name):
    """All inputs are sharded in their last dimension, which `*` does not include. Products may keep
    it: the result is then a partial sum."""
    op = OPS[name]
    inputs = whole_inputs(mesh, op)
    cut = distributed(mesh, inputs, [Shard(x.ndim - 1) for x in inputs])
    with CommDebugMode() as communication:
        results = as_tuple(call_of(op)(*cut))
    partial = any(placement.is_partial() for (placement,) in placements_of(results))
    assert communication.get_total_counts() > 0 or (op.product and partial)
    assert_same(results, as_tuple(call_of(op)(*inputs)))
    if op.in_place:
        with pytest.raises(RuntimeError, match="in-place operations that require placement"):
            call_of(op, getattr(torch.ops.cudarelu, f"{name}_").default)(*cut)


@functools.cache
def two_dimensional(mesh):
    return init_device_mesh(mesh.device_type, (1, 2))


def keeps_the_sharding_on_two_dimensions_of_a_mesh(mesh, name):
    op = OPS[name]
    inputs = whole_inputs(mesh, op)
    pairs = zip(*(on_rows(op, inputs, dim) for dim in range(2)), strict=True)
    sharded = [
        distributed_one(two_dimensional(mesh), x, placements)
        for x, placements in zip(inputs, pairs, strict=True)
    ]
    with CommDebugMode() as communication:
        results = as_tuple(call_of(op)(*sharded))
    assert communication.get_total_counts() == 0
    assert_same(results, as_tuple(call_of(op)(*inputs)))


@pytest.mark.parametrize("name", tiered(OPS))
def test_any_placements(pair, name):
    pair.run(is_right_on_any_placements, name)


@pytest.mark.parametrize("name", tiered(WITH_ROWS))
def test_rows_stay_sharded(pair, name):
    pair.run(keeps_the_sharding_of_rows, name)
    pair.run(keeps_the_sharding_on_two_dimensions_of_a_mesh, name)


@pytest.mark.parametrize("name", tiered(name for name in DIFFERENTIABLE if name in WITH_ROWS))
def test_gradients(pair, name):
    pair.run(has_gradients_sharded_alike, name)


@pytest.mark.parametrize("name", tiered(IN_PLACE))
def test_in_place(pair, name):
    pair.run(overwrites_its_shard, name)
    if name in DIFFERENTIABLE:
        pair.run(has_gradients_in_place, name)


@pytest.mark.parametrize("name", tiered(name for name, op in OPS.items() if not op.elementwise))
def test_what_must_be_redistributed(pair, name):
    pair.run(communicates_where_rows_are_cut, name)


# Models


def net():
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(6, 8, bias=False),
        cudarelu.nn.BiasReLU(8, scale=0.5),
        torch.nn.Linear(8, 8),
        cudarelu.nn.ReLU(inplace=True),
        torch.nn.Linear(8, 4),
        cudarelu.nn.Softmax(),
    ).double()


def batch(mesh):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(8, 6, generator=generator, dtype=torch.float64)
    return x.to(mesh.device_type), torch.eye(4, dtype=x.dtype, device=mesh.device_type).repeat(2, 1)


def trained(model, x, target, steps=4):
    """The parameters of the model after some steps."""
    # In torch 2.11, foreach, the default on CUDA, is wrong for partial sums of any module.
    optimizer = torch.optim.SGD(model.parameters(), 0.5, momentum=0.9, foreach=False)
    for _ in range(steps):
        optimizer.zero_grad()
        (model(x) - target).square().mean().backward()
        optimizer.step()
    return list(model.parameters())


def trains_data_parallel(mesh):
    x, target = batch(mesh)
    half = slice(4 * mesh.get_rank(), 4 * mesh.get_rank() + 4)
    model = net().to(mesh.device_type)
    alone = copy.deepcopy(model)
    model = torch.nn.parallel.DistributedDataParallel(model)
    actual, expected = trained(model, x[half], target[half]), trained(alone, x, target)
    torch.testing.assert_close(actual, expected)
    assert not torch.equal(actual[0], net()[0].weight.to(mesh.device_type))  # weights changed


def trains_with_a_sharded_batch(mesh, compiled):
    model = net().to(mesh.device_type)
    alone = copy.deepcopy(model)
    torch.distributed.tensor.distribute_module(model, mesh)  # all parameters replicated
    x, target = batch(mesh)
    sharded = distributed(mesh, [x, target], [Shard(0)] * 2)
    if compiled:
        torch._dynamo.reset()
        model = torch.compile(model, backend="aot_eager", fullgraph=True)
    assert placements_of([model(sharded[0])]) == [(Shard(0),)]
    assert_same(trained(model, *sharded), trained(alone, x, target))


def mlp():
    torch.manual_seed(0)
    return torch.nn.Sequential(
        cudarelu.nn.LinearGELU(6, 8), cudarelu.nn.LayerNorm(8), cudarelu.nn.Linear(8, 4)
    ).double()


def trains_tensor_parallel(mesh):
    """Products along one dimension of the weights: no weight is gathered."""
    model = torch.nn.Sequential(mlp()[0], cudarelu.nn.Linear(8, 4).double()).to(mesh.device_type)
    alone = copy.deepcopy(model)
    parallelize_module(model, mesh, {"0": ColwiseParallel(), "1": RowwiseParallel()})
    assert placements_of(list(model.parameters()))[:3] == [(Shard(0),), (Shard(0),), (Shard(1),)]
    x, target = batch(mesh)
    with CommDebugMode() as communication:
        y = model(x)
    counts = {str(each): count for each, count in communication.get_comm_counts().items() if count}
    assert counts == {"c10d_functional.all_reduce": 1}, counts
    torch.testing.assert_close(y, alone(x))
    assert_same(trained(model, x, target), trained(alone, x, target))


class Block(torch.nn.Module):
    """Attention of two heads with a residual, as in a transformer."""

    def __init__(self):
        super().__init__()
        self.norm = cudarelu.nn.LayerNorm(8)
        self.q, self.k, self.v, self.out = (cudarelu.nn.Linear(8, 8) for _ in range(4))

    def forward(self, x):
        normed = self.norm(x)
        heads = (each(normed).unflatten(-1, (-1, 4)) for each in (self.q, self.k, self.v))
        y = cudarelu.attention(*(each.transpose(1, 2) for each in heads), is_causal=True)
        return x + self.out(y.transpose(1, 2).flatten(2))


def trains_a_block(mesh):
    """Tensor parallel with a sequence that is sharded between the products: each process has one of
    the heads, and the norm runs on its part of the sequence."""
    torch.manual_seed(0)
    model = Block().double().to(mesh.device_type)
    alone = copy.deepcopy(model)
    of_sequence = ColwiseParallel(input_layouts=Shard(1))
    plan = {"norm": SequenceParallel(), "q": of_sequence, "k": of_sequence, "v": of_sequence}
    parallelize_module(model, mesh, plan | {"out": RowwiseParallel(output_layouts=Shard(1))})
    x = torch.randn(2, 6, 8, dtype=torch.float64, device=mesh.device_type)
    part = x.chunk(2, 1)[mesh.get_rank()]
    torch.testing.assert_close(model(part), alone(x).chunk(2, 1)[mesh.get_rank()])
    for _ in range(2):
        for each, given in ((model, part), (alone, x)):
            each(given).square().sum().backward()
    gradients = [parameter.grad for parameter in model.parameters()]
    assert_same(gradients, [parameter.grad for parameter in alone.parameters()])


def trains_fully_sharded(mesh, checkpointed):
    """FSDP2, with each module's weights gathered for its turn; perhaps with activations computed
    again for the gradient."""
    x, target = batch(mesh)
    half = slice(4 * mesh.get_rank(), 4 * mesh.get_rank() + 4)
    model = mlp().to(mesh.device_type)
    alone = copy.deepcopy(model)
    if checkpointed:
        model = torch.nn.Sequential(*map(checkpoint_wrapper, model))
    for module in model:
        fully_shard(module, mesh=mesh)
    fully_shard(model, mesh=mesh)
    actual, expected = trained(model, x[half], target[half]), trained(alone, x, target)
    assert placements_of(actual) == [(Shard(0),)] * len(expected)
    assert_same(actual, expected)


def saves_what_is_sharded(mesh, folder):
    """torch.distributed.checkpoint: saved by two processes, loaded into another sharding."""
    model = mlp().to(mesh.device_type)
    expected = model.state_dict()
    expected = {name: value.clone() for name, value in expected.items()}
    fully_shard(model, mesh=mesh)
    dcp.save({"model": get_model_state_dict(model)}, checkpoint_id=folder)
    other = mlp().to(mesh.device_type)
    for parameter in other.parameters():
        torch.nn.init.zeros_(parameter)
    parallelize_module(other, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    state = get_model_state_dict(other)
    dcp.load({"model": state}, checkpoint_id=folder)
    set_model_state_dict(other, state)
    found = {name: getattr(x, "full_tensor", lambda x=x: x)() for name, x in state.items()}
    torch.testing.assert_close(found, dict(expected))


def test_tensor_parallel(pair):
    pair.run(trains_tensor_parallel)


def test_tensor_parallel_attention(pair):
    pair.run(trains_a_block)


@pytest.mark.parametrize("checkpointed", [False, True])
def test_fsdp(pair, checkpointed):
    pair.run(trains_fully_sharded, checkpointed)


def test_checkpoints(pair, tmp_path):
    pair.run(saves_what_is_sharded, str(tmp_path / "checkpoint"))


def test_ddp(pair):
    pair.run(trains_data_parallel)


@pytest.mark.parametrize("compiled", slow_after(1, [False, True]))
def test_training_with_dtensor(pair, compiled):
    pair.run(trains_with_a_sharded_batch, compiled)


def python_function_takes_dtensors(mesh):
    x = torch.arange(-4.0, 4.0, device=mesh.device_type)
    y = cudarelu.relu_scale(*distributed(mesh, [x], [Shard(0)]), scale=3)
    assert placements_of([y]) == [(Shard(0),)]
    assert_same([y], [cudarelu.relu_scale(x, scale=3)])


def test_the_python_functions(pair):
    pair.run(python_function_takes_dtensors)


# Importing


@pytest.mark.parametrize(
    "code",
    [
        """
import importlib.util, cudarelu
assert "torch.distributed.tensor" not in sys.modules
importlib.util.find_spec("torch.distributed.tensor")  # looks, and does not import
assert "cudarelu._pytorch.dtensor" not in sys.modules
import torch.distributed.fsdp  # which imports torch.distributed.tensor
""",
        pytest.param("import torch.distributed.tensor, cudarelu", marks=pytest.mark.slow),
    ],
    ids=["before", "after"],
)
def test_the_rules_come_with_dtensor(code):
    code = f"import sys{os.linesep}{code}{os.linesep}"
    code += "assert 'cudarelu._pytorch.dtensor' in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
