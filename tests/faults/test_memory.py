"""Allocations of hosts on the CPU that fail, each in turn: of outputs, copies and workspace."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest

import cudarelu
from cudarelu.testing.environment import jax_missing, ort_missing, tvm_ffi_missing
from cudarelu.testing.hosts import one_op_model
from support.cases import large_case
from support.ort_infer import BUILD, BUILT

LIBRARY = BUILD / "libfailing_memory.so"
pytestmark = pytest.mark.skipif(
    os.environ.get("CUDARELU_FAULTS") != "1", reason="takes 30 s a host: set CUDARELU_FAULTS=1"
)
HOSTS = {
    "torch": lambda: None,
    "gradient": lambda: None,
    "numpy": lambda: None,
    "ort": ort_missing,
    "tvm-ffi": lambda: tvm_ffi_missing("cpu"),
    "jax": lambda: jax_missing("cpu"),
}


@pytest.mark.parametrize("host", HOSTS)
def test_every_large_allocation_fails(host):
    """Of a call of each op. Each failure is one error that the host has for it, no memory is left,
    and the next call is right. A process of its own, since the library must be preloaded."""
    if reason := HOSTS[host]():
        pytest.skip(reason)
    if os.environ.get("LD_PRELOAD"):
        pytest.skip("a sanitizer has its own malloc")
    script = Path(__file__).with_name("failing_calls.py")
    paths = os.pathsep.join(filter(None, sys.path))
    done = subprocess.run(
        [sys.executable, script, host],
        env=os.environ | {"LD_PRELOAD": str(LIBRARY), "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, (done.returncode, done.stdout[-4000:], done.stderr[-4000:])
    assert int(done.stdout.split()[0]) >= 40, done.stdout
    print(done.stdout)


def run_with(blocks: int | None, *command: str | Path) -> subprocess.CompletedProcess:
    """Runs a program that gets so many large blocks; None: all."""
    failing = (
        {} if blocks is None else {"LD_PRELOAD": str(LIBRARY), "FAILING_MEMORY_AFTER": str(blocks)}
    )
    return subprocess.run(
        command, env=os.environ | failing, capture_output=True, text=True, timeout=60, check=False
    )


def crashes(*command: str | Path) -> tuple[int, int]:
    """Of how many runs, each with one more large block until one gets all, how many crashed. The
    others print one error, or what they print with all memory."""
    expected = run_with(None, *command)
    assert expected.returncode == 0, expected.stderr
    crashed = 0
    for blocks in range(200):
        done = run_with(blocks, *command)
        if done.returncode < 0:
            crashed += 1
            continue
        *errors, last = done.stderr.splitlines()
        if done.returncode == 0:
            assert (done.stdout, errors) == (expected.stdout, [])
        else:
            assert done.returncode == 2
            assert len(errors) == 1
            assert re.search("ort_infer: .*(memory|alloc|workspace)", errors[0]), errors
        if last == "refused 0":
            return blocks, crashed
    raise AssertionError("a program with more than 200 large blocks")


@BUILT
def test_ort_infer_with_less_memory(tmp_path):
    """ONNX Runtime 1.31 crashes if one of its own blocks is refused, with any model."""
    program = BUILD / "ort_infer"
    standard = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 18]>
        standard (float[130, 48] x) => (float[130, 48] y) { y = Softmax(x) }"""
    )
    onnx.save(standard, tmp_path / "standard.onnx")
    np.save(tmp_path / "x.npy", np.ones((130, 48), np.float32))
    _, allowed = crashes(program, tmp_path / "standard.onnx", "--input", f"x={tmp_path}/x.npy")
    total = 0
    for op in cudarelu.ops():
        case = large_case(op)
        path = tmp_path / f"{op.name}.onnx"
        onnx.save(one_op_model(op, [case]), path)
        command = [program, path, "--provider", "cpu"]
        for name, array in case.inputs.items():
            if array is not None:
                np.save(tmp_path / f"{name}.npy", array)
                command += ["--input", f"{name}_0={tmp_path}/{name}.npy"]
        runs, crashed = crashes(*command)
        assert crashed <= allowed, op.name
        total += runs
    print(total, "failed allocations")
