#!/usr/bin/env python3
"""Summarise the tests of a build folder as JSON: counts, skips with reasons, machine and versions.

usage: summarize_run.py BUILD_FOLDER COMMIT > docs/gpu-runs/DATE.json

Run `ctest --output-junit ctest.xml` in the folder first. Exits with 1 if a test failed, or if one
was skipped because it needs CUDA although this machine has a GPU. Tests that need two GPUs may be
skipped.
"""

import collections
import datetime
import importlib.metadata
import json
import platform
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path


def suite(path: Path) -> dict:
    """Return the counts of one JUnit file, and how often tests were skipped for each reason."""
    cases = list(ElementTree.parse(path).getroot().iter("testcase"))
    failed = [c.get("name") for c in cases if c.find("failure") is not None]
    failed += [c.get("name") for c in cases if c.find("error") is not None]
    skips = collections.Counter()
    for case in cases:
        if (skipped := case.find("skipped")) is not None:
            log = case.findtext("system-out") or ""
            reason = re.search(r"Skipped\n(.*)", log)
            skips[reason[1] if reason else skipped.get("message")] += 1
    return {
        "tests": len(cases),
        "passed": len(cases) - len(failed) - skips.total(),
        "failed": failed,
        "skipped": dict(skips),
    }


def version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def output_of(*command: str) -> str | None:
    try:
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def main() -> int:
    build, commit = Path(sys.argv[1]), sys.argv[2]
    gpu = output_of("nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader")
    nvcc = re.search(r"release ([\d.]+)", output_of("nvcc", "--version") or "")
    packages = ("torch", "onnxruntime-gpu", "onnx", "numpy", "nanobind")
    record = {
        "commit": commit,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "gpus": gpu.splitlines() if gpu else [],
        "versions": {"python": platform.python_version(), "nvcc": nvcc and nvcc[1]}
        | {name: version(name) for name in packages},
        "ctest": suite(build / "ctest.xml"),
        "pytest": suite(build / "pytest.xml"),
    }
    print(json.dumps(record, indent=2))
    suites = (record["ctest"], record["pytest"])
    wants_cuda = any(
        reason.startswith("needs CUDA") and "two devices" not in reason
        for each in suites
        for reason in each["skipped"]
    )
    return int(any(each["failed"] for each in suites) or bool(gpu and wants_cuda))


if __name__ == "__main__":
    sys.exit(main())
