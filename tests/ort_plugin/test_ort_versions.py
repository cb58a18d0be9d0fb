"""The custom-op library in old ONNX Runtimes: runs the tests of the plugin in each of them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

import cudarelu.ort

RUNTIMES = Path(__file__).parents[2] / ".venv/ort"
TESTS = Path(__file__).with_name("test_ort_plugin.py")
SKIPS = re.compile("needs CUDA|ONNX Runtime asks custom ops for shapes from 1.17 on")


def run(version: str, script: str, *arguments) -> subprocess.CompletedProcess[str]:
    """Runs a Python script that imports ONNX Runtime of this version."""
    folder = RUNTIMES / version
    if not folder.exists():
        pytest.skip(f"ONNX Runtime {version} is missing: tools/old_runtimes.sh installs it")
    path = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
    script = f"import onnxruntime, sys\nassert onnxruntime.__version__ == '{version}'\n{script}"
    return subprocess.run(
        [sys.executable, "-c", script, *map(str, arguments)],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize("version", ["1.16.3", "1.18.1", "1.20.1", "1.23.2"])
def test_an_old_runtime(version, tmp_path):
    script = "import pytest\nsys.exit(pytest.main(sys.argv[1:]))"
    report = tmp_path / "report.xml"
    options = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", f"--junitxml={report}"]
    done = run(version, script, *options, TESTS)
    assert done.returncode == 0, done.stdout + done.stderr
    reasons = [skip.get("message") for skip in ElementTree.parse(report).iter("skipped")]
    assert [reason for reason in reasons if not SKIPS.match(reason)] == []


def test_a_runtime_that_is_too_old():
    script = "onnxruntime.SessionOptions().register_custom_ops_library(sys.argv[1])"
    done = run("1.15.1", script, cudarelu.ort.library_path())
    assert done.returncode == 1
    wanted = "cudarelu needs ONNX Runtime 1.16 or a later 1.x, but this is 1.15.1"
    assert wanted in done.stderr.splitlines()[-1]
