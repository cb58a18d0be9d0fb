"""Tests of calls in JAX that XLA captures into CUDA graphs."""

import os
import subprocess
import sys

import numpy as np
import pytest

import cudarelu
from cudarelu.testing.environment import jax_missing

if reason := jax_missing("cuda"):
    pytest.skip(reason, allow_module_level=True)

import jax
import jax.numpy as jnp

(CUDA, *_) = jax.devices("cuda")


def arrays(seed, rows, columns):
    random = np.random.default_rng(seed)
    shapes = (rows, columns), (96, columns), (96,), (rows, 96)
    return [jax.device_put(random.standard_normal(s).astype(np.float32), CUDA) for s in shapes]


def calls(x, weight, bias, grad_y):
    """Ops that take workspace for these sizes, such as sums over many rows. Each array is a result,
    so that XLA needs no other memory."""
    y, total = cudarelu.linear_gelu_with_sum(x, weight, bias)
    grad_sum = cudarelu.gelu_backward(grad_y, total)
    grad_x = cudarelu.linear_input_backward(grad_sum, weight)
    gradients = cudarelu.layer_norm_backward(grad_x, x)
    of_weight = cudarelu.linear_weight_backward(grad_sum, x)
    sums = cudarelu.sum_rows(grad_sum), cudarelu.sum_rows(y)
    return y, total, grad_sum, grad_x, of_weight, *sums, *gradients


def test_graphs_write_only_to_their_own_memory():
    """Programs whose results take the places of those before, so that XLA launches the graphs that
    it has, beside arrays that took all the memory that was free, and with it what XLA had lent."""
    sizes = [(9000, 64), (5000, 200), (10000, 32)]
    given = [arrays(0, *size) for size in sizes]
    # Outside of programs, the ops run without XLA.
    expected = [[np.asarray(y) for y in calls(*each)] for each in given]
    programs = [
        jax.jit(lambda previous, *xs: calls(*xs), donate_argnums=0, keep_unused=True) for _ in sizes
    ]
    results = [tuple(jax.device_put(y, CUDA) for y in each) for each in expected]

    def run_all(results):
        return [
            jax.block_until_ready(f(previous, *xs))
            for f, previous, xs in zip(programs, results, given, strict=True)
        ]

    def places(results):
        return [y.unsafe_buffer_pointer() for each in results for y in each]

    for _ in range(4):  # XLA captures the second run, or the first at these places
        results = run_all(results)
    before = places(results)
    # Up to 4 MB each, which XLA puts where it fits.
    others = [jnp.full(1 << size, 7, jnp.float32) for size in range(6, 21) for _ in range(20)]
    jax.block_until_ready(others)
    for _ in range(4):
        results = run_all(results)
        assert places(results) == before
        for of_program, found in zip(expected, results, strict=True):
            for a, b in zip(of_program, found, strict=True):
                np.testing.assert_array_equal(a, np.asarray(b))
    for i, other in enumerate(others):
        assert (other == 7).all(), f"array {i} has changed"


CAPTURED = """
import glob, sys
import jax, jax.numpy as jnp, cudarelu
def small(x):
    for _ in range(6):
        x = cudarelu.relu(cudarelu.softmax(x))
    return x
def large(x):
    return small(x)
for program, rows in ((small, 8), (large, 1 << 17)):
    jax.block_until_ready(jax.jit(program)(jnp.ones((rows, 64), jnp.float32)))
for name in ("small", "large"):
    passes = glob.glob(f"{sys.argv[1]}/*jit_{name}.*thunk_sequence*")
    assert passes, name
    print(any("kCommandBuffer" in open(path).read() for path in passes))
"""


def test_calls_of_small_arrays_are_captured(tmp_path):
    flags = f"--xla_dump_to={tmp_path} --xla_dump_hlo_as_text"
    done = run_script(CAPTURED, str(tmp_path), XLA_FLAGS=flags)
    assert done.split() == ["True", "False"]


WORKSPACE = """
import gc
import jax, numpy as np, torch, cudarelu
def program(points, offset):
    # Each call has some MB of workspace, for a sort.
    found = [cudarelu.knn_query(points + i, offset, nsample=1) for i in range(5)]
    return sum(distance for _, distance in found)
def free_after(count):
    points = np.random.default_rng(0).standard_normal((count, 3)).astype(np.float32)
    step = jax.jit(program)
    for _ in range(4):  # XLA may capture the second run only
        jax.block_until_ready(step(points, np.array([count], np.int32)))
    del step
    jax.clear_caches()
    gc.collect()
    return torch.cuda.mem_get_info()[0]
free = [free_after(100_000 + more) for more in range(22)]
print(int(np.median(-np.diff(free[2:]))))
"""


def test_workspace_ends_with_its_program():
    """XLA takes each array from the driver here, and returns it. Other processes may take and
    return memory at the same time, so that the median of the programs counts."""
    lost = int(run_script(WORKSPACE, XLA_PYTHON_CLIENT_ALLOCATOR="platform"))
    assert 19 * lost < 32 << 20


def run_script(code, *arguments, **settings):
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, **settings},
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout
