"""The example examples/context_parallel, against attention over the whole sequence."""

import datetime
import os
import re
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing

import cudarelu
from cudarelu.testing.environment import torch_cuda_pair_missing
from support.commands import run

EXAMPLE = Path(__file__).parents[2] / "examples/context_parallel"
sys.path.insert(0, str(EXAMPLE))
try:
    from attention import context_parallel_attention
    from ring import shard
finally:
    sys.path.remove(str(EXAMPLE))

LAUNCHER = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
LIMITS = {torch.float64: 1e-6, torch.float32: 2e-6, torch.bfloat16: 2e-2}  # lse is float32
MISSING = torch_cuda_pair_missing()
NCCL = pytest.param(
    "nccl", 2, marks=pytest.mark.skipif(bool(MISSING), reason=MISSING or ""), id="nccl"
)


def slow(*values):
    return pytest.param(*values, marks=pytest.mark.slow)


@pytest.mark.parametrize(
    ("backend", "processes"), [slow("gloo", 1), ("gloo", 2), slow("gloo", 3), NCCL]
)
def test_equals_attention_over_the_whole_sequence(backend, processes, tmp_path):
    arguments = (processes, backend, f"file://{tmp_path}/store")
    torch.multiprocessing.spawn(compare, arguments, processes)


def compare(rank, processes, backend, store):
    """Compares the outputs and the gradients of a process, in several dtypes and orders."""
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    device = torch.device("cpu" if backend == "gloo" else "cuda", rank)
    if backend == "nccl":
        torch.cuda.set_device(device)
    timeout = datetime.timedelta(seconds=60)
    dist.init_process_group(backend, store, timeout, world_size=processes, rank=rank)
    for dtype, limit in LIMITS.items():
        for is_causal, scale, width in [(False, None, 32), (True, None, 32), (True, 0.3, 16)]:
            torch.manual_seed(0)
            shapes = [(2, 4, 64 * processes, 32), (2, 2, 64 * processes, 32)]
            shapes += [(2, heads, 64 * processes, width) for heads in (2, 4)]
            q, k, v, grad_y = (torch.randn(shape).to(device, dtype) for shape in shapes)
            options = {"is_causal": is_causal, "scale": scale}
            parts = [shard(x, rank, processes).requires_grad_() for x in (q, k, v)]
            y = context_parallel_attention(*parts, **options)
            y.backward(shard(grad_y, rank, processes))

            whole = [x.requires_grad_() for x in (q, k, v)]
            expected = cudarelu.attention(*whole, **options)
            expected.backward(grad_y)
            ours = [y, *(x.grad for x in parts)]
            for part, of in zip(ours, [expected, *(x.grad for x in whole)], strict=True):
                assert part.dtype == of.dtype
                difference = (part - shard(of, rank, processes)).abs().max() / of.abs().max()
                assert difference < limit, (dtype, options)
    dist.destroy_process_group()


@pytest.mark.slow
def test_the_program():
    """On GPUs if there is one for each process, else on the CPU."""
    output = run(*LAUNCHER, "--nproc-per-node", 2, EXAMPLE / "attention.py")
    differences = re.findall(r"process \d: differs .*? by ([-\d.e]+)", output)  # joined lines
    assert len(differences) == 2
    assert all(float(difference) < 2e-6 for difference in differences)


def test_shards_of_a_sequence():
    x = torch.arange(12.0)[:, None]
    assert [shard(x, rank, 3).flatten().tolist() for rank in range(3)] == [
        [0, 1, 10, 11],
        [2, 3, 8, 9],
        [4, 5, 6, 7],
    ]
