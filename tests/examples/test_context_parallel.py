"""The example examples/context_parallel.py, which compares its results with the whole sequence."""

import sys
from pathlib import Path

import pytest
import torch

from support.commands import run

EXAMPLE = Path(__file__).parents[2] / "examples/context_parallel.py"


@pytest.mark.parametrize("processes", [2, 3])
def test_equals_attention_over_the_whole_sequence(processes):
    """On GPUs if there is one for each process, else on the CPU."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    said = run(*launcher, "--nproc-per-node", processes, EXAMPLE)
    assert said.count("of the largest number") == 3


def test_shards_of_a_sequence():
    sys.path.insert(0, str(EXAMPLE.parent))
    try:
        from context_parallel import shard
    finally:
        sys.path.pop(0)
    x = torch.arange(12.0)[:, None]
    assert [shard(x, rank, 3).flatten().tolist() for rank in range(3)] == [
        [0, 1, 10, 11],
        [2, 3, 8, 9],
        [4, 5, 6, 7],
    ]
