"""Allocations of hosts on the CPU that fail, each in turn: of outputs, copies and workspace."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cudarelu.testing.environment import ort_missing
from support.ort_infer import BUILD

LIBRARY = BUILD / "libfailing_memory.so"
pytestmark = pytest.mark.skipif(
    os.environ.get("CUDARELU_FAULTS") != "1", reason="takes 30 s a host: set CUDARELU_FAULTS=1"
)
HOSTS = {"torch": lambda: None, "numpy": lambda: None, "ort": ort_missing}


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
