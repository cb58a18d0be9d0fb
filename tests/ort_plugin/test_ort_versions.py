"""The custom-op library in old ONNX Runtimes: runs the tests of the plugin in each of them."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

import cudarelu.ort
from support.cases import slow_after
from support.onnx_runtimes import VERSIONS, run_with

TESTS = sorted(Path(__file__).parent.glob("test_ort_plugin_*.py"))
SKIPS = re.compile("needs CUDA|ONNX Runtime asks custom ops for shapes from 1.17 on")


@pytest.mark.parametrize("version", slow_after(1, VERSIONS))
def test_an_old_runtime(version, tmp_path):
    script = "import pytest\nsys.exit(pytest.main(sys.argv[1:]))"
    report = tmp_path / "report.xml"
    options = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", f"--junitxml={report}"]
    done = run_with(version, script, *options, *TESTS)
    assert done.returncode == 0, done.stdout + done.stderr
    reasons = [skip.get("message") for skip in ElementTree.parse(report).iter("skipped")]
    assert [reason for reason in reasons if not SKIPS.match(reason)] == []


def test_a_runtime_that_is_too_old():
    script = "onnxruntime.SessionOptions().register_custom_ops_library(sys.argv[1])"
    done = run_with("1.15.1", script, cudarelu.ort.library_path())
    assert done.returncode == 1
    wanted = "cudarelu needs ONNX Runtime 1.16 or a later 1.x, but this is 1.15.1"
    assert wanted in done.stderr.splitlines()[-1]
