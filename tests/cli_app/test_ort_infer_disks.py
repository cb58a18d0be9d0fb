"""Disks that ort_infer cannot write, and a batch run that is killed."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest

from support.full_disks import unwritable
from support.ort_infer import BUILT, ORT_INFER, X, fail, succeed_json

pytestmark = [BUILT, pytest.mark.usefixtures("model_folder")]
RUN = ["model.onnx", "--provider", "cpu"]


@pytest.fixture
def items(model_folder) -> Path:
    folder = model_folder / "items"
    folder.mkdir()
    for i in range(200):
        np.save(folder / f"{i:03}.npy", X + i)
    return folder


@pytest.mark.parametrize("kind", ["full", "read-only"])
@pytest.mark.parametrize(
    "options",
    [
        ["--output-dir", "disk"],
        ["--output-dir", "disk", "--list", "items"],
        ["--profile", "disk/trace.json"],
    ],
    ids=["outputs", "batch", "profile"],
)
def test_a_disk_that_cannot_be_written(options, kind, items):
    """One error with its cause; the file that is there stays, and none is half written."""
    disk = Path("disk")
    disk.mkdir()
    (disk / "trace.json").write_text("before")
    with unwritable(disk, kind) as reason:
        assert fail(*RUN, *options).endswith(f": {reason}\n")
        left = {str(each.relative_to(disk)) for each in disk.rglob("*") if each.is_file()}
        empty = "manifest.jsonl"
        assert left <= {"trace.json", "filler", empty}
        assert empty not in left or (disk / empty).read_bytes() == b""
        assert (disk / "trace.json").read_text() == "before"


def test_an_output_whose_name_the_system_refuses():
    """No other file is written or removed in its place."""
    Path(".part").write_text("precious")
    Path("out").mkdir()
    Path("out/y.npy").symlink_to("y.npy")
    assert fail(*RUN, "--output-dir", "out").endswith(": Too many levels of symbolic links\n")
    assert Path(".part").read_text() == "precious"


def test_a_batch_that_is_killed(items):
    """Each run goes on where the last one ended, and reads nothing half written."""
    rng = random.Random(0)
    command = [ORT_INFER, *RUN, "--output-dir", "out", "--list", "items", "--resume"]
    manifest = Path("out/manifest.jsonl")
    for _ in range(5):
        done = manifest.read_bytes().count(b"\n") if manifest.exists() else 0
        running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        deadline = time.monotonic() + 60
        while running.poll() is None and time.monotonic() < deadline:
            if manifest.exists() and manifest.read_bytes().count(b"\n") > done:
                break
        time.sleep(rng.random() / 200)
        running.send_signal(signal.SIGKILL)
        _, errors = running.communicate()
        assert (running.returncode, errors) in ((-signal.SIGKILL, b""), (0, b""))
    report = succeed_json(*command[1:])
    assert report["done"] + report["done_before"] == 200
    lines = [json.loads(line) for line in manifest.read_text().splitlines()]
    assert [line["index"] for line in lines] == list(range(200))
    for i, line in enumerate(lines):
        y = np.load(Path("out") / line["outputs"]["y"])
        np.testing.assert_array_equal(y, np.where(X + i < 0, 0, X + i))
