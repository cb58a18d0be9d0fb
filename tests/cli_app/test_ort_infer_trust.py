"""Models and arrays are data: ort_infer reads and writes nothing but what the user names."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from support.onnx_runtimes import RUNTIMES
from support.ort_infer import BUILT, X, fail, identity, make_model, relu, start, succeed, tensor

pytestmark = [BUILT, pytest.mark.usefixtures("model_folder")]

W = np.arange(4, dtype=np.float32)


def external(location: str, *more: tuple[str, str]) -> TensorProto:
    weight = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[4])
    weight.data_location = TensorProto.EXTERNAL
    for key, value in (("location", location), *more):
        weight.external_data.add(key=key, value=value)
    return weight


def with_initializer(weight: TensorProto) -> onnx.ModelProto:
    node = helper.make_node("Add", ["x", "w"], ["y"])
    model = make_model([node], [tensor("x", [4])], [tensor("y", [4])])
    model.graph.initializer.append(weight)
    return model


def with_attribute(weight: TensorProto) -> onnx.ModelProto:
    nodes = [
        helper.make_node("Constant", [], ["w"], value=weight),
        helper.make_node("Add", ["x", "w"], ["y"]),
    ]
    return make_model(nodes, [tensor("x", [4])], [tensor("y", [4])])


def with_subgraph(weight: TensorProto) -> onnx.ModelProto:
    branch = with_initializer(weight).graph
    del branch.input[:]
    branches = {"then_branch": branch, "else_branch": branch}
    node = helper.make_node("If", ["c"], ["z"], **branches)
    inputs = [tensor("x", [4]), tensor("c", [], TensorProto.BOOL)]
    return make_model([node], inputs, [tensor("z", [4])])


def with_function(weight: TensorProto) -> onnx.ModelProto:
    body = with_attribute(weight).graph.node
    standard = [helper.make_opsetid("", 18)]
    function = helper.make_function("elsewhere", "F", ["x"], ["y"], body, standard)
    node = helper.make_node("F", ["x"], ["y"], domain="elsewhere")
    return make_model([node], [tensor("x", [4])], [tensor("y", [4])], [function])


MODELS = [with_initializer, with_attribute, with_subgraph, with_function]


@pytest.fixture
def weights(model_folder) -> None:
    for folder in (".", "models"):
        Path(folder).mkdir(exist_ok=True)
        (Path(folder) / "w.bin").write_bytes(W.tobytes())
    Path("models/link.bin").symlink_to("../w.bin")
    Path("models/up").symlink_to("..")


def save(model: onnx.ModelProto, hidden: bool = False) -> None:
    data = model.SerializeToString()
    if hidden:  # a group of protobuf, which ONNX Runtime skips, before the rest of the graph
        group = b"\xa3\x06\xa4\x06"  # the field 100
        model = onnx.ModelProto.FromString(data)
        graph = group + model.graph.SerializeToString()
        model.ClearField("graph")
        size = len(graph)
        data = model.SerializeToString() + bytes([0x3A, size & 127 | 128, size >> 7]) + graph
    Path("models/m.onnx").write_bytes(data)


@pytest.mark.usefixtures("weights")
@pytest.mark.parametrize("make", MODELS)
@pytest.mark.parametrize("location", ["../w.bin", "link.bin", "up/w.bin", "absolute"])
def test_data_outside_of_the_folder_is_not_read(make, location):
    save(make(external(os.path.abspath("w.bin") if location == "absolute" else location)))
    assert "is not in its folder" in fail("models/m.onnx", "--provider", "cpu")


@pytest.mark.usefixtures("weights")
@pytest.mark.parametrize("make", MODELS)
@pytest.mark.parametrize("version", ["1.20.1", "1.23.2"])  # older wheels have no such library
def test_data_outside_of_the_folder_is_not_read_by_an_old_runtime(make, version):
    libraries = list((RUNTIMES / version).glob("onnxruntime/capi/libonnxruntime.so.*"))
    if not libraries:
        pytest.skip(f"ONNX Runtime {version} is missing: tools/old_runtimes.sh installs it")
    save(make(external("../w.bin")))
    error = fail("models/m.onnx", "--provider", "cpu", "--ort", libraries[0])
    assert "is not in its folder" in error


@pytest.mark.usefixtures("weights")
def test_data_that_the_reader_might_miss_is_not_read():
    save(with_initializer(external("../w.bin")), hidden=True)
    assert "not an ONNX model" in fail("models/m.onnx", "--provider", "cpu")


@pytest.mark.usefixtures("weights")
def test_memory_is_not_read():
    tag = "*/_ORT_MEM_ADDR_/*"
    save(with_initializer(external(tag, ("offset", "4096"), ("length", "16"))))
    assert f"its external data {tag}: there is no such file" in fail("models/m.onnx")


@pytest.mark.usefixtures("weights")
@pytest.mark.parametrize("make", MODELS)
def test_data_in_the_folder_is_read(make, monkeypatch):
    save(make(external("w.bin")))
    succeed("models/m.onnx", "--provider", "cpu")
    monkeypatch.chdir("models")
    succeed("m.onnx", "--provider", "cpu")


@pytest.mark.usefixtures("weights")
def test_a_link_to_a_model_has_its_data_beside_either():
    save(with_initializer(external("w.bin")))
    Path("links").mkdir()
    Path("links/m.onnx").symlink_to("../models/m.onnx")
    Path("links/w.bin").symlink_to("../models/w.bin")
    succeed("links/m.onnx", "--provider", "cpu")


NAMES = ["../../y", "/tmp/y", "a/../../y", "..", ".", "/", "y\n", "~", "$(x)", "%s%n"]


@pytest.mark.parametrize("name", NAMES)
def test_outputs_are_written_to_the_folder_alone(name, tmp_path):
    node = helper.make_node("Identity", ["x"], [name])
    model = make_model([node], [tensor("x", [2])], [tensor(name, [2])])
    onnx.save(model, "model.onnx")
    before = set(tmp_path.rglob("*"))
    succeed("model.onnx", "--provider", "cpu", "--output-dir", "out")
    new = set(tmp_path.rglob("*")) - before
    assert len(new) == 2
    (file,) = new - {tmp_path / "out"}
    assert file.parent == tmp_path / "out"
    assert file.suffix == ".npy"
    assert file.is_file()


def test_names_in_an_archive_name_no_files():
    onnx.save(relu(), "model.onnx")
    np.save("x.npy", X)
    with zipfile.ZipFile("x.npz", "w") as archive:
        archive.write("x.npy", "../../x.npy")
    before = set(Path().rglob("*"))
    succeed("model.onnx", "--provider", "cpu", "--input", "x=x.npz")
    with zipfile.ZipFile("two.npz", "w") as archive:
        for name in ("../../x.npy", "/etc/x.npy"):
            archive.writestr(name, Path("x.npy").read_bytes())
    error = fail("model.onnx", "--provider", "cpu", "--input", "x=two.npz")
    assert "has no array x; it has ../../x.npy, /etc/x.npy" in error
    assert set(Path().rglob("*")) - before == {Path("two.npz")}


def test_node_names_do_not_change_how_the_trace_is_read():
    for name in ('r","args":3,"b":"', 'r","name":7,"b":"', "r\\", '"}]', "\u2028\n\x01"):
        model = relu()
        model.graph.node[0].name = name
        onnx.save(model, "model.onnx")
        succeed("model.onnx", "--provider", "cpu", "--explain")


def test_a_large_input_is_refused():
    np.savez_compressed("bomb.npz", x=np.zeros(1 << 22, np.float32))  # 16 kB that become 16 MB
    onnx.save(identity(TensorProto.FLOAT), "model.onnx")
    arguments = ["model.onnx", "--provider", "cpu", "--input", "x=bomb.npz", "--max-array"]
    succeed(*arguments, "17")
    error = fail(*arguments, "15")
    assert "bomb.npz, x.npy: has 16777344 bytes, and at most 15728640 are allowed" in error
    for file in ("x.npy", "x.pb"):
        x = np.zeros(1 << 18, np.float32)
        np.save(file, x) if file == "x.npy" else onnx.save_tensor(
            onnx.numpy_helper.from_array(x), file
        )
        arguments[4] = f"x={file}"
        succeed(*arguments, "1")
        assert f"{file}: has 1048576 bytes, and at most 0" in fail(*arguments, "0")


def test_a_large_input_that_a_model_declares_is_refused():
    onnx.save(identity(TensorProto.FLOAT, [1 << 20, 1 << 20]), "model.onnx")
    error = fail("model.onnx", "--provider", "cpu")
    assert "input x: has 4398046511104 bytes, and at most" in error


def test_an_archive_that_is_too_large_does_not_end_a_list():
    onnx.save(identity(TensorProto.FLOAT), "model.onnx")
    Path("list").mkdir()
    np.savez_compressed("list/a.npz", x=np.zeros(1 << 22, np.float32))
    np.save("list/b.npy", X.ravel())
    arguments = ["model.onnx", "--provider", "cpu", "--list", "list", "--output-dir", "out"]
    done = start(*arguments, "--max-array", "1")
    assert done.returncode == 2
    assert "2: 1 done, 1 failed" in done.stdout
    assert "a.npz" in done.stderr
