"""Many inputs in ort_infer: --list, its manifest, and --resume."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from support.ort_infer import (
    BUILT,
    ORT_INFER,
    X,
    fail,
    make_model,
    start,
    succeed,
    succeed_json,
    tensor,
)

pytestmark = [BUILT, pytest.mark.usefixtures("model_folder")]
RUN = ["model.onnx", "--provider", "cpu", "--output-dir", "out"]


@pytest.fixture
def items(model_folder) -> Path:
    """A folder of five inputs."""
    folder = model_folder / "items"
    folder.mkdir()
    for i in range(5):
        np.save(folder / f"{i}.npy", X + i)
    return folder


def manifest() -> list[dict]:
    return [json.loads(line) for line in Path("out/manifest.jsonl").read_text().splitlines()]


def check_outputs(expected: dict[str, np.ndarray]) -> None:
    done = {line["item"]: line for line in manifest() if line["status"] == "done"}
    assert set(done) == set(expected)
    for item, array in expected.items():
        y = np.load(Path("out") / done[item]["outputs"]["y"])
        np.testing.assert_array_equal(y, np.where(array < 0, 0, array))


def test_folder(items):
    report = succeed_json(*RUN, "--list", "items")
    assert (report["items"], report["done"], report["failed"], report["left"]) == (5, 5, 0, 0)
    assert report["manifest"] == "out/manifest.jsonl"
    check_outputs({f"items/{i}.npy": X + i for i in range(5)})
    assert [line["index"] for line in manifest()] == list(range(5))
    assert all(line["error"] is None and line["seconds"] > 0 for line in manifest())


def test_folder_with_an_entry_that_cannot_be_read(items):
    (items / "loop").symlink_to("loop")
    assert succeed_json(*RUN, "--list", "items")["done"] == 5


def test_file(items):
    """The lines of the file are paths relative to its folder. Two items with the same name have
    different outputs."""
    Path("items/deep").mkdir()
    np.save("items/deep/1.npy", X - 1)
    Path("items/list.txt").write_text("1.npy\r\n\ndeep/1.npy\n")
    text = succeed(*RUN, "--list", "items/list.txt")
    assert "items     2: 2 done, 0 failed, 0 done before, 0 left" in text
    check_outputs({"items/1.npy": X + 1, "items/deep/1.npy": X - 1})


def test_models_of_two_inputs():
    node = helper.make_node("Add", ["a", "b"], ["y"], domain="cudarelu")
    inputs = [tensor("a", ["N", 4]), tensor("b", ["N", 4])]
    onnx.save(make_model([node], inputs, [tensor("y", ["N", 4])]), "model.onnx")
    ones = np.ones((2, 4), np.float32)
    Path("items/set").mkdir(parents=True)
    np.savez("items/both.npz", a=ones, b=2 * ones)
    np.savez("items/one.npz", ones)
    np.save("items/single.npy", ones)
    for i in range(2):
        proto = numpy_helper.from_array(ones + i)
        Path(f"items/set/input_{i}.pb").write_bytes(proto.SerializeToString())
    done = start(*RUN, "--list", "items")
    assert done.returncode == 2
    assert "items/one.npz: has no array a; it has arr_0.npy; skipped\n" in done.stderr
    assert "items/single.npy: is one array, but the model has 2 inputs" in done.stderr
    check_outputs({"items/both.npz": 3 * ones, "items/set": 3 * ones})


def test_a_name_that_the_system_refuses(items):
    name = "0" * 300
    Path("items/list.txt").write_text(f"{name}\n1.npy\n")
    done = start(*RUN, "--list", "items/list.txt")
    assert done.returncode == 2
    assert done.stderr == f"ort_infer: items/{name}: File name too long; skipped\n"
    assert [line["status"] for line in manifest()] == ["failed", "done"]


def test_bad_items(items):
    Path("items/2.npy").write_bytes(b"nonsense")
    np.save("items/3.npy", X[:, :3])
    done = start(*RUN, "--list", "items")
    assert done.returncode == 2
    lines = done.stderr.splitlines()
    assert lines[0] == "ort_infer: items/2.npy: not a .npy file; skipped"
    assert lines[1].startswith("ort_infer: items/3.npy: input x: the model expects")
    assert len(lines) == 2
    assert [line["status"] for line in manifest()] == ["done"] * 2 + ["failed"] * 2 + ["done"]
    # Failed items are tried again; finished ones are not repeated.
    before = os.stat("out/000000_0/y.npy").st_mtime_ns
    np.save("items/2.npy", X + 2)
    np.save("items/3.npy", X + 3)
    report = succeed_json(*RUN, "--list", "items", "--resume")
    assert (report["done"], report["done_before"]) == (2, 3)
    assert os.stat("out/000000_0/y.npy").st_mtime_ns == before
    check_outputs({f"items/{i}.npy": X + i for i in range(5)})


def test_names_that_are_not_utf8():
    """The manifest is UTF-8 nevertheless, and distinguishes such names."""
    folder = Path("items")
    folder.mkdir()
    names = [b"a\xfe.npy", b"a\xff.npy", "\N{REPLACEMENT CHARACTER}.npy".encode()]
    for i, name in enumerate(names):
        np.save(folder / os.fsdecode(name), X + i)
    (folder / os.fsdecode(names[1])).write_bytes(b"nonsense")
    assert start(*RUN, "--list", "items").returncode == 2
    lines = manifest()
    assert [line["status"] for line in lines] == ["done", "failed", "done"]
    assert [line["item"] for line in lines[:2]] == ["items/a\N{REPLACEMENT CHARACTER}.npy"] * 2
    assert [bytes.fromhex(line["item_bytes"]) for line in lines[:2]] == [
        b"items/" + name for name in names[:2]
    ]
    assert (lines[2]["item"], lines[2]["item_bytes"]) == (f"items/{names[2].decode()}", None)
    np.save(folder / os.fsdecode(names[1]), X)
    report = succeed_json(*RUN, "--list", "items", "--resume")
    assert (report["done"], report["done_before"]) == (1, 2)
    (folder / os.fsdecode(names[0])).rename(folder / os.fsdecode(b"a\xfd.npy"))
    assert "belongs to another list" in fail(*RUN, "--list", "items", "--resume")


def test_a_manifest_without_the_bytes_of_names(items):
    """Earlier versions did not write these bytes."""
    succeed(*RUN, "--list", "items")
    lines = manifest()
    for line in lines:
        del line["item_bytes"]
    Path("out/manifest.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    assert succeed_json(*RUN, "--list", "items", "--resume")["done_before"] == 5


def test_stop_at_a_bad_item(items):
    Path("items/2.npy").write_bytes(b"nonsense")
    assert "items/2.npy: not a .npy file" in fail(*RUN, "--list", "items", "--on-error", "stop")
    assert [line["status"] for line in manifest()] == ["done", "done", "failed"]


def test_interrupt_and_resume():
    """Ctrl-C stops ort_infer after an item. No finished item is lost or repeated."""
    Path("items").mkdir()
    large = np.random.default_rng(0).standard_normal((20_000, 4)).astype(np.float32)
    for i in range(300):
        np.save(f"items/{i:03}.npy", large + i)
    command = [ORT_INFER, *RUN, "--list", "items", "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    deadline = time.monotonic() + 30
    while not (Path("out/manifest.jsonl").exists() and manifest()):
        assert time.monotonic() < deadline
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=20)
    assert (process.returncode, errors) == (130, b"")
    report = json.loads(output)
    done = len(manifest())
    assert 0 < report["done"] == done < 300
    assert report["left"] == 300 - done
    # A process that was killed may leave an incomplete line.
    with open("out/manifest.jsonl", "a") as file:
        file.write('{"index": 12, "it')
    report = succeed_json(*RUN, "--list", "items", "--resume")
    assert (report["done"], report["done_before"]) == (300 - done, done)
    check_outputs({f"items/{i:03}.npy": large + i for i in range(300)})


def test_memory_is_bounded():
    """The memory is that of one item, whatever the number of items."""
    Path("few").mkdir()
    Path("many").mkdir()
    big = np.zeros((500_000, 4), np.float32)  # 8 MB
    for i in range(40):
        np.save(f"many/{i}.npy", big)
    os.link("many/0.npy", "few/0.npy")

    def peak(folder: str) -> int:
        command = [ORT_INFER, *RUN[:-1], f"out_{folder}", "--list", folder]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        greatest = 0
        while process.poll() is None:
            status = Path(f"/proc/{process.pid}/status").read_text()
            for line in status.splitlines():
                if line.startswith("VmHWM"):
                    greatest = max(greatest, int(line.split()[1]))
        assert process.returncode == 0
        return greatest

    assert peak("many") < peak("few") + 40_000  # kB


def test_manifest_that_is_not_ours(items):
    succeed(*RUN, "--list", "items")
    assert "continue with --resume" in fail(*RUN, "--list", "items")
    Path("items/0.npy").unlink()
    assert "belongs to another list" in fail(*RUN, "--list", "items", "--resume")
    Path("out/manifest.jsonl").write_text("nonsense\n")
    assert "is damaged: nonsense" in fail(*RUN, "--list", "items", "--resume")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--list", "nowhere"], "--list nowhere: there is no such file or folder"),
        (["--list", "empty"], "--list empty: has no inputs"),
        (["--list", "items", "--input", "x=x.npy"], "--input cannot be combined with --list"),
        (["--list", "items", "--iterations", "3"], "options that measure cannot be combined"),
        (["--resume"], "--resume needs --list"),
        (["--on-error", "stop"], "--on-error needs --list"),
        (["--list", "items", "--on-error", "ask"], "--on-error"),
    ],
)
def test_bad_options(items, arguments, message):
    Path("empty").mkdir()
    assert message in fail(*RUN, *arguments)
    assert not Path("out").exists()


def test_list_wants_an_output_folder(items):
    assert "--list needs --output-dir" in fail("model.onnx", "--list", "items")
