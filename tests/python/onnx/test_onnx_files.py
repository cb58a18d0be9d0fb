"""Models as files: disks that cannot be written, and processes that end between two files."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx.numpy_helper
import pytest
import torch

import cudarelu.nn
import cudarelu.onnx
from cudarelu.__main__ import main
from cudarelu.onnx.files import placed
from support.full_disks import unwritable
from support.models import one_node

X = torch.ones(2, 4)


def export(path: Path) -> None:
    cudarelu.onnx.export(cudarelu.nn.Softmax(), (X,), path, dynamo=False)


def accelerate(path: Path) -> None:
    cudarelu.onnx.accelerate(onnx.load_from_string(one_node("Relu", ["N"])), path)


@pytest.mark.filterwarnings("ignore:You are using the legacy TorchScript")
@pytest.mark.filterwarnings("ignore:The feature will be removed")
@pytest.mark.parametrize("kind", ["full", "read-only"])
@pytest.mark.parametrize("write", [export, accelerate])
def test_a_disk_that_cannot_be_written(write: Callable[[Path], None], kind, tmp_path):
    """The file that is there stays, and nothing else."""
    path = tmp_path / "disk" / "model.onnx"
    path.parent.mkdir()
    path.write_bytes(b"before")
    with unwritable(path.parent, kind) as reason:
        with pytest.raises(OSError, match=reason):
            write(path)
        assert path.read_bytes() == b"before"
        assert {each.name for each in path.parent.iterdir()} <= {"model.onnx", "filler"}


def test_a_process_that_ends_between_the_data_and_the_model(tmp_path, monkeypatch):
    """No model of before is left with the data of now."""
    path = tmp_path / "model.onnx"
    replace = os.replace

    def write(text: str) -> None:
        with placed(path) as file:
            file.write_text(text)
            file.with_name("model.onnx.data").write_text(text)

    def end_before_the_model(source: Path, target: Path) -> None:
        if target == path:
            raise KeyboardInterrupt
        replace(source, target)

    write("before")
    assert {each.read_text() for each in tmp_path.iterdir()} == {"before"}
    monkeypatch.setattr(os, "replace", end_before_the_model)
    with pytest.raises(KeyboardInterrupt):
        write("now")
    assert {each.name: each.read_text() for each in tmp_path.iterdir()} == {
        "model.onnx.data": "now"
    }


@pytest.mark.parametrize("command", ["accelerate", "lower"])
def test_files_of_that_name_are_overwritten(command, tmp_path, monkeypatch):
    """Those of the result; not a file of that name in the working folder."""
    (source := tmp_path / "source").mkdir()
    (elsewhere := tmp_path / "elsewhere").mkdir()
    model = onnx.load_from_string(one_node("Relu", ["N"]))
    weights = np.arange(1024, dtype=np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    model.graph.node.append(onnx.helper.make_node("Add", ["w", "w"], ["z"]))
    onnx.save(model, source / "m.onnx", save_as_external_data=True, location="m.data")
    data = (source / "m.data").read_bytes()
    monkeypatch.chdir(tmp_path)
    for file in (tmp_path / "out.onnx.data", elsewhere / "out.onnx.data"):
        file.write_text("before")
    for _ in range(2):
        assert main([command, "source/m.onnx", "elsewhere/out.onnx"]) == 0
        assert (elsewhere / "out.onnx.data").read_bytes() == data
        onnx.load(elsewhere / "out.onnx")
    assert (tmp_path / "out.onnx.data").read_text() == "before"
    assert main([command, "elsewhere/out.onnx", "elsewhere/out.onnx"]) == 0  # the data stays
    onnx.load(elsewhere / "out.onnx")
    assert {each.name for each in elsewhere.iterdir()} == {"out.onnx", "out.onnx.data"}


def test_data_that_is_too_short(tmp_path):
    model = onnx.load_from_string(one_node("Relu", ["N"]))
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.ones(1024, np.float32), "w"))
    (tmp_path / "source").mkdir()
    path = tmp_path / "source" / "m.onnx"
    onnx.save(model, path, save_as_external_data=True, location="m.data")
    os.truncate(path.with_name("m.data"), 100)
    with pytest.raises(
        ValueError, match=r"external data m\.data of w cannot be read: .* truncated"
    ):
        cudarelu.onnx.accelerate(path, tmp_path / "out.onnx")
    assert {each.name for each in tmp_path.iterdir()} == {"source"}
