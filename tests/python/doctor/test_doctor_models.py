"""What the doctor says of a model."""

from __future__ import annotations

import subprocess
from pathlib import Path

import onnx
import onnx.parser
import onnxruntime
import pytest

import cudarelu.ort
from cudarelu.doctor import model
from cudarelu.doctor.context import Context
from cudarelu.doctor.records import Record
from support.doctor import NEEDS_CC, Here, by_id, compiled
from support.op_modules import LIBRARY as MY_LIBRARY
from support.op_modules import my

LEAKY = "cudarelu.LeakyRelu"
NODE = '<ir_version: 8, opset_import: ["" : {opset}, "cudarelu" : 1, "other" : 1]>'
GRAPH = "main ({dtype}[N] x) => ({dtype}[N] y) {{ y = {call}(x) }}"


def edited(path: Path, call="cudarelu.Relu", dtype="float", opset=18, ir=8, domain=1) -> Path:
    made = onnx.parser.parse_model((NODE + GRAPH).format(opset=18, call=call, dtype=dtype))
    made.ir_version, made.opset_import[0].version = ir, opset
    made.opset_import[1].version = domain
    onnx.save(made, path)
    return path


def examined(path: Path, library: Path | None = None) -> dict[str, Record]:
    return by_id(model.checks(Context(Here(), False, path, library)))


def test_a_model_that_runs(tmp_path):
    records = examined(edited(tmp_path / "model.onnx"))
    assert {each.status for each in records.values()} == {"ok"}
    assert "our ops: cudarelu::Relu" in records["model.content"].what


@pytest.mark.parametrize(
    ("edit", "id", "what"),
    [
        (
            {"call": "other.Relu"},
            "model.unknown.other::Relu",
            "other::Relu is neither an op of ONNX",
        ),
        ({"call": "other.Relu"}, "model.cpu", "other:Relu is neither an op"),
        ({"call": "cudarelu.Mish"}, "model.content", "there is no such op"),
        ({"call": "cudarelu.Relu<slope = 2>"}, "model.content", "there is no attribute slope"),
        ({"domain": 2}, "model.content", "version 2 of the domain cudarelu"),
        ({"call": LEAKY, "dtype": "int8"}, "model.cpu", "an input of LeakyRelu is int8, which no"),
        ({"ir": 99}, "model.cpu", "has IR version 99, but this ONNX Runtime reads versions up to"),
        ({"opset": 999}, "model.content", "opset is newer"),
        ({"opset": onnx.defs.onnx_opset_version()}, "model.content", "IR version 8"),
    ],
)
def test_an_edited_model(edit, id, what, tmp_path):
    record = examined(edited(tmp_path / "model.onnx", **edit))[id]
    assert what in record.what
    assert record.status == ("ok" if what == "IR version 8" else "failed")


def test_a_name_that_is_nearly_ours(tmp_path):
    record = examined(edited(tmp_path / "model.onnx", "other.Relu"))["model.unknown.other::Relu"]
    assert record.evidence == "the most similar op is cudarelu::Relu"


def test_an_opset_of_the_future(tmp_path):
    path = edited(tmp_path / "model.onnx", opset=onnx.defs.onnx_opset_version())
    try:
        onnxruntime.InferenceSession(path, cudarelu.ort.register(onnxruntime.SessionOptions()))
    except Exception:  # ONNX Runtime has no specific exception for it
        assert "model's opset is newer than this ONNX Runtime" in examined(path)["model.cpu"].what
    else:
        pytest.skip("ONNX Runtime knows every opset that onnx does")


def test_the_mend_of_an_ir_version(tmp_path):
    path = edited(tmp_path / "a model.onnx", ir=99)
    subprocess.run(examined(path)["model.cpu"].mend, shell=True, check=True)
    assert {each.status for each in examined(path).values()} == {"ok"}


@pytest.mark.parametrize("content", [None, b"", b"version https://git-lfs.github.com/spec/v1\n"])
def test_what_is_no_model(content, tmp_path):
    path = tmp_path / "model.onnx"
    if content is not None:
        path.write_bytes(content)
    records = examined(path)
    assert "the model cannot be read" in records["model.content"].what
    assert ("model.cpu" in records) == (content is not None)


def test_a_model_whose_data_is_elsewhere(tmp_path):
    path = edited(tmp_path / "model.onnx")
    model = onnx.load(path)
    weight = model.graph.initializer.add(name="w", data_type=1, dims=[4])
    weight.data_location = onnx.TensorProto.EXTERNAL
    weight.external_data.add(key="location", value="../w.bin")
    onnx.save(model, path)
    what = examined(path)["model.content"].what
    assert "cannot be read: the external data ../w.bin is not in the folder of the model" in what


@NEEDS_CC
def test_a_model_with_another_library(tmp_path):
    """The other library does not have the op of the model either. Our library is not checked."""
    code = "void* RegisterCustomOps(void* options, void* base) { return 0; }"
    library = compiled(tmp_path / "ops.so", code)
    records = examined(edited(tmp_path / "model.onnx", "other.Relu"), library)
    assert "is neither an op" in records["model.cpu"].what
    assert set(records) == {"model.content", "model.cpu"}


def two_modules(path: Path, op_type: str) -> Path:
    """A model with an op of ours and one of the domain `my`."""
    version = next(op.onnx.version for op in my().ops() if op.name == "swish")
    text = NODE.replace('"other" : 1', f'"my" : {version}').format(opset=18)
    text += f"main (float[N] x) => (float[N] y) {{ z = cudarelu.Relu(x) y = my.{op_type}(z) }}"
    onnx.save(onnx.parser.parse_model(text), path)
    return path


def test_a_model_with_an_op_module(tmp_path):
    """Its ops are used beside ours, and its nodes are checked as ours are."""
    path = two_modules(tmp_path / "model.onnx", "Swish")
    records = examined(path, MY_LIBRARY)
    assert {each.status for each in records.values()} == {"ok"}
    assert "our ops: cudarelu::Relu, my::Swish" in records["model.content"].what
    record = examined(two_modules(path, "Swosh"), MY_LIBRARY)["model.content"]
    assert "my::Swosh: there is no such op" in record.what


@NEEDS_CC
def test_a_module_that_cannot_be_loaded(tmp_path):
    code = "void* RegisterCustomOps(void* o, void* b) { return 0; } int cudarelu_get_module() {}"
    library = compiled(tmp_path / "ops.so", code.replace("{}", "{ return 0; }"))
    record = examined(edited(tmp_path / "model.onnx"), library)["model.content"]
    assert (record.status, "ops.so" in record.evidence) == ("failed", True)


def test_an_op_of_a_module_that_was_built(tmp_path, cache):
    """`cudarelu.load` has built the module. The doctor names the library and does not load it."""
    library = cache / "modules/other/0-1/2/libother.so"
    library.parent.mkdir(parents=True)
    library.write_text("It is no library: loading it would fail.")
    path = tmp_path / "model.onnx"
    node = onnx.helper.make_node("Op", ["x"], ["y"], domain="other")
    saved = onnx.load(edited(path))
    saved.graph.node[0].CopyFrom(node)
    saved.opset_import.append(onnx.helper.make_opsetid("other", 1))
    onnx.save(saved, path)
    record = examined(path)["model.unknown.other::Op"]
    assert "cudarelu.load has built a module other" in record.what
    fix = f"-m cudarelu doctor --model {path} --library {library}"
    assert f"{fix}  # and register this file" in record.mend
