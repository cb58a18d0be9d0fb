"""A model file is data: what it names is neither read nor written outside of its folder."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

import cudarelu.onnx
from cudarelu.__main__ import main

W = np.arange(4, dtype=np.float32)


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """A folder for models, with a file of weights, and one beside it."""
    (folder := tmp_path / "models").mkdir()
    for file in (folder / "w.bin", tmp_path / "outside.bin"):
        file.write_bytes(W.tobytes())
    (folder / "link.bin").symlink_to("../outside.bin")
    (folder / "up").symlink_to("..")
    monkeypatch.chdir(folder)
    return folder


def external(location: str, raw: bytes | None = None) -> TensorProto:
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[4], raw_data=raw)
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=location)
    return tensor


def with_initializer(tensor: TensorProto) -> onnx.ModelProto:
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [4]) for name in "xy")
    nodes = [helper.make_node("Add", ["x", "w"], ["z"]), helper.make_node("Relu", ["z"], ["y"])]
    graph = helper.make_graph(nodes, "test", [x], [y], [tensor])
    return helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 18)])


def with_attribute(tensor: TensorProto) -> onnx.ModelProto:
    model = with_initializer(tensor)
    del model.graph.initializer[:]
    model.graph.node.insert(0, helper.make_node("Constant", [], ["w"], value=tensor))
    return model


def with_subgraph(tensor: TensorProto) -> onnx.ModelProto:
    model = with_initializer(tensor)
    inner = with_attribute(tensor).graph
    del inner.input[:]
    model.graph.node[1].CopyFrom(helper.make_node("If", ["c"], ["y"], then_branch=inner))
    model.graph.node[1].attribute.append(helper.make_attribute("else_branch", inner))
    model.graph.input.append(helper.make_tensor_value_info("c", TensorProto.BOOL, []))
    del model.graph.initializer[:], model.graph.node[0]
    return model


def with_function(tensor: TensorProto) -> onnx.ModelProto:
    model = with_initializer(tensor)
    nodes = [helper.make_node("Constant", [], ["y"], value=tensor)]
    standard = [helper.make_opsetid("", 18)]
    model.functions.append(helper.make_function("own", "F", [], ["y"], nodes, standard))
    model.opset_import.append(helper.make_opsetid("own", 1))
    model.graph.node.insert(0, helper.make_node("F", [], ["w"], domain="own"))
    del model.graph.initializer[:]
    return model


MODELS = [with_initializer, with_attribute, with_subgraph, with_function]


@pytest.mark.parametrize("make", MODELS)
@pytest.mark.parametrize("location", ["../outside.bin", "link.bin", "up/outside.bin", "absolute"])
def test_data_outside_of_the_folder_is_not_read(folder, make, location):
    location = str(folder.parent / "outside.bin") if location == "absolute" else location
    model = make(external(location))
    (folder / "m.onnx").write_bytes(model.SerializeToString())
    for source in ("m.onnx", model):
        with pytest.raises(ValueError, match="is not in the folder of the model"):
            cudarelu.onnx.accelerate(source, "accelerated.onnx")
    assert not Path("accelerated.onnx").exists()


def test_data_of_an_ir_model_outside_of_its_folder_is_not_read(folder):
    model = ir.from_proto(with_initializer(external("../outside.bin")))
    ir.external_data.set_base_dir(model.graph, folder)
    with pytest.raises(ValueError, match="is not in the folder of the model"):
        cudarelu.onnx.accelerate(model)


@pytest.mark.parametrize("make", [with_initializer, with_attribute])
def test_data_in_the_folder_follows_the_model_to_another(folder, make):
    (folder / "m.onnx").write_bytes(make(external("w.bin")).SerializeToString())
    (elsewhere := folder.parent / "elsewhere").mkdir()
    cudarelu.onnx.accelerate("m.onnx", elsewhere / "accelerated.onnx")
    (folder / "w.bin").unlink()
    (elsewhere / "w.bin").unlink(missing_ok=True)
    onnx.load(elsewhere / "accelerated.onnx")  # raises if its data is missing


@pytest.mark.parametrize("command", ["accelerate", "lower"])
def test_data_in_the_model_is_not_written_to_the_file_that_it_names(folder, command):
    model = with_initializer(external("precious.txt", raw=b"0123456789abcdef"))
    (folder / "m.onnx").write_bytes(model.SerializeToString())
    (folder / "precious.txt").write_text("precious")
    if command == "accelerate":
        cudarelu.onnx.accelerate("m.onnx", "result.onnx")
    else:
        assert main(["lower", "m.onnx", "result.onnx"]) == 0
    assert (folder / "precious.txt").read_text() == "precious"
    assert (folder / "result.onnx").exists()


@pytest.fixture
def hub(folder) -> Path:
    """A model and its data as links into a folder of blobs, as in the cache of Hugging Face."""
    blobs, snapshot = folder.parent / "blobs", folder.parent / "snapshots" / "x"
    blobs.mkdir()
    snapshot.mkdir(parents=True)
    weights = np.arange(4096, dtype=np.float32)
    model = with_initializer(external("model.onnx.data"))
    model.graph.initializer[0].dims[:] = [1024, 4]
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim.insert(0, onnx.TensorShapeProto.Dimension(dim_value=1024))
    (blobs / "aaa").write_bytes(model.SerializeToString())
    (blobs / "bbb").write_bytes(weights.tobytes())
    (snapshot / "model.onnx").symlink_to("../../blobs/aaa")
    (snapshot / "model.onnx.data").symlink_to("../../blobs/bbb")
    return snapshot


@pytest.mark.parametrize("command", ["accelerate", "lower"])
def test_a_model_and_its_data_that_are_links(hub, folder, command):
    for _ in range(2):  # the second time, the files are there
        assert main([command, str(hub / "model.onnx"), "result.onnx"]) == 0
    assert {each.name for each in folder.glob("result*")} == {"result.onnx", "result.onnx.data"}
    assert (folder / "result.onnx.data").read_bytes() == (hub / "model.onnx.data").read_bytes()
    assert main(["inspect", str(hub / "model.onnx")]) == 0


def test_a_link_to_a_model_is_overwritten_beside_its_data(hub):
    """The file of the model is rewritten; the links and the data stay."""
    before = (hub / "model.onnx.data").read_bytes()
    _, report = cudarelu.onnx.accelerate(hub / "model.onnx", hub / "model.onnx")
    assert report.replaced
    assert {each.name: each.is_symlink() for each in hub.iterdir()} == {
        "model.onnx": True,
        "model.onnx.data": True,
    }
    assert (hub / "model.onnx.data").read_bytes() == before
    assert any(
        node.domain for node in onnx.load(hub / "model.onnx", load_external_data=False).graph.node
    )


def test_constants_of_a_model_that_is_a_link(hub):
    """They are read in ONNX Runtime, too."""
    _, report = cudarelu.onnx.accelerate(hub / "model.onnx", only_if_faster=True)
    assert report.measured


def test_a_link_to_a_model_whose_data_is_beside_the_file(folder):
    (folder / "m.onnx").write_bytes(with_initializer(external("w.bin")).SerializeToString())
    (work := folder.parent / "work").mkdir()
    (work / "m.onnx").symlink_to("../models/m.onnx")
    cudarelu.onnx.accelerate(work / "m.onnx", work / "result.onnx")
    onnx.load(work / "result.onnx")


def test_data_of_a_link_elsewhere_is_not_read(hub):
    (hub / "model.onnx.data").unlink()
    (hub / "model.onnx.data").symlink_to("../../outside.bin")
    with pytest.raises(ValueError, match=r"model\.onnx\.data is not in the folder of the model"):
        cudarelu.onnx.accelerate(hub / "model.onnx")
