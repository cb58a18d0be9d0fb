"""The ONNX Runtimes that tools/old_runtimes.sh installs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

RUNTIMES = Path(__file__).parents[2] / ".venv/ort"
VERSIONS = ("1.16.3", "1.18.1", "1.20.1", "1.23.2")


def run_with(version: str, script: str, *arguments: object) -> subprocess.CompletedProcess[str]:
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
