"""cudarelu.onnx.accelerate on files, models of onnx_ir and old opsets, and as a command."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import onnx.version_converter
import onnxruntime as ort
import pytest
from onnx import external_data_helper, numpy_helper

import cudarelu
import cudarelu.onnx
import cudarelu.ort
from cudarelu.__main__ import main
from cudarelu.onnx import measure
from cudarelu.onnx.accelerator import prepare
from support.accelerate import FIRST, TWO, body, linear_model, ours, parse, ratios, run
from support.large_model import save_large

# Models as files and as models of onnx_ir


@pytest.fixture
def with_weights(tmp_path, monkeypatch) -> Path:
    """A model whose weights are in a separate file. Loading them into the model is an error."""
    weight = np.linspace(-1, 1, 1024, dtype=np.float32)
    model = parse("main (float[N,1024] x) => (float[N,1024] y) { m = Mul(x, w) y = Relu(m) }")
    model.graph.node[0].op_type = "Add"
    model.graph.initializer.append(numpy_helper.from_array(weight, "w"))
    onnx.save(model, tmp_path / "model.onnx", save_as_external_data=True, location="weights.bin")

    def refuse(*args):
        raise AssertionError("the weights were loaded")

    for module in (onnx, external_data_helper):
        monkeypatch.setattr(module, "load_external_data_for_model", refuse, raising=False)
    return tmp_path / "model.onnx"


@pytest.mark.parametrize("measured", [False, True])
def test_external_data_stays_where_it_is(with_weights, measured, monkeypatch):
    monkeypatch.setattr(measure, "compare", lambda before, after: (0.5, (0.4, 0.6)))
    path, out = with_weights, with_weights.parent / "out.onnx"
    data = (path.parent / "weights.bin").stat()
    result, report = cudarelu.onnx.accelerate(path, out, only_if_faster=measured)
    assert [each.op for each in report.replaced] == ["bias_relu"]
    assert (path.parent / "weights.bin").stat().st_mtime_ns == data.st_mtime_ns
    assert sorted(os.listdir(path.parent)) == ["model.onnx", "out.onnx", "weights.bin"]
    assert onnx.load(out, load_external_data=False) == result
    assert external_data_helper.uses_external_data(result.graph.initializer[0])
    options = cudarelu.ort.register(ort.SessionOptions())
    x = np.zeros((2, 1024), np.float32)
    outputs = [
        ort.InferenceSession(file, options, ["CPUExecutionProvider"]).run(None, {"x": x})[0]
        for file in (path, out)
    ]
    np.testing.assert_array_equal(*outputs)


def test_a_factor_in_another_file(with_weights):
    model = onnx.load(with_weights, load_external_data=False)
    model.graph.node[0].op_type = "Mul"
    model.graph.initializer[0].dims[:] = [1]
    entries = {each.key: each for each in model.graph.initializer[0].external_data}
    entries["length"].value = "4"
    onnx.save(model, with_weights)
    result, report = cudarelu.onnx.accelerate(with_weights)
    assert [each.op for each in report.replaced] == ["relu", "scale"]
    assert result.graph.node[0].attribute[0].f == -1
    (with_weights.parent / "weights.bin").unlink()
    _, report = cudarelu.onnx.accelerate(with_weights)
    assert [each.op for each in report.replaced] == ["relu"]
    assert "the data of w cannot be read" in [each.reason for each in report.left]


def test_a_constant_in_another_file(with_weights):
    """A bias that must be reshaped is read. If it cannot be read, the nodes are left."""
    model = onnx.load(with_weights, load_external_data=False)
    model.graph.initializer[0].dims[:] = [1, 1024]
    onnx.save(model, with_weights)
    result, report = cudarelu.onnx.accelerate(with_weights)
    assert [each.op for each in report.replaced] == ["bias_relu"]
    (bias,) = [node for node in result.graph.node if node.op_type == "Constant"]
    assert list(bias.attribute[0].t.dims) == [1024]
    (with_weights.parent / "weights.bin").unlink()
    _, report = cudarelu.onnx.accelerate(with_weights)
    assert [each.op for each in report.replaced] == ["relu"]
    assert "the data of w cannot be read" in [each.reason for each in report.left]


def test_a_weight_in_another_file(tmp_path):
    """The weight is transposed when a session is created, so accelerate does not read it."""
    model, feeds = linear_model("matmul", "relu")
    (expected,) = run(model, False, feeds)
    path = tmp_path / "model.onnx"
    onnx.save(model, path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    cudarelu.onnx.accelerate(path, tmp_path / "out.onnx")
    options = cudarelu.ort.register(ort.SessionOptions())
    session = ort.InferenceSession(tmp_path / "out.onnx", options, ["CPUExecutionProvider"])
    np.testing.assert_allclose(session.run(None, feeds)[0], expected, rtol=1e-5, atol=1e-6)
    (tmp_path / "weights.bin").unlink()
    result, report = cudarelu.onnx.accelerate(path)
    assert [each.op for each in report.replaced] == ["linear_relu"]
    assert [node.op_type for node in result.graph.node] == ["Transpose", "LinearRelu"]


def test_more_than_two_gigabytes(tmp_path):
    path = tmp_path / "model.onnx"
    save_large(parse("main (float[N,4] x) => (float[N,4] y) { y = Relu(x) }"), path)
    result, _ = cudarelu.onnx.accelerate(path, path)
    assert ours(result) == ["relu"]
    assert ours(onnx.load(path, load_external_data=False)) == ["relu"]


def test_a_model_of_onnx_ir(with_weights):
    import onnx_ir as ir

    model = ir.load(with_weights)
    result, report = cudarelu.onnx.accelerate(model, with_weights.parent / "out.onnx")
    assert [each.op for each in report.replaced] == ["bias_relu"]
    assert [node.op_type for node in model.graph] == ["Add", "Relu"]
    assert [node.op_type for node in result.graph] == ["BiasRelu"]
    weight = model.graph.initializers["w"].const_value
    assert result.graph.initializers["w"].const_value is weight
    onnx.checker.check_model(with_weights.parent / "out.onnx", full_check=True)


# Models of old opsets


OLD = """<ir_version: 3, opset_import: ["" : 9]>
main (float[N,2,4] x, float[4,4] w) => (float[N,2,4] y) <float[4,4] w = {
    1,0,0,0, 0,1,0,0, 0,0,1,0, 1,1,1,1}> {
    m = MatMul(x, w) s = Softmax<axis = 1>(m) y = Relu(s) }"""


@pytest.mark.parametrize("external", [False, True], ids=["", "external"])
def test_an_opset_before_13(external, tmp_path):
    """It is converted. Before IR version 4 the weights are inputs, too."""
    model = onnx.parser.parse_model(OLD)
    x = np.arange(16, dtype=np.float32).reshape(2, 2, 4) / 10
    expected = run(model, False, {"x": x})[0]
    model.graph.node[0].metadata_props.add(key="made", value="by hand")
    if external:
        weights = numpy_helper.to_array(model.graph.initializer[0])
        model.graph.initializer[0].CopyFrom(numpy_helper.from_array(weights, "w"))
    onnx.save(model, tmp_path / "a.onnx", save_as_external_data=external, size_threshold=0)
    _, report = cudarelu.onnx.accelerate(tmp_path / "a.onnx", tmp_path / "b.onnx")
    assert {each.op for each in report.replaced} == {"relu", "softmax"}
    assert report.unchanged is None
    result = onnx.load(tmp_path / "b.onnx")
    assert result.opset_import[0].version == 18
    assert [each.name for each in result.graph.input] == ["x"]
    assert result.graph.node[0].metadata_props[0].key == "made"
    for library in False, True:
        np.testing.assert_allclose(run(result, library, {"x": x})[0], expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{ y = user.F(x) } <opset_import: ['' : 12]> F (x) => (y) { y = Relu(x) }", "functions"),
        ("{ y = user.F(x) }", "ONNX Runtime"),
        ("{ h = Relu(x) y = Unknown(h) }", "has no registered schema"),
    ],
)
def test_an_opset_that_stays(text, reason, tmp_path, capsys):
    text = text.replace("<opset", '<domain: "user", opset').replace("'", '"')
    model = parse(f"main (float[N] x) => (float[N] y) {text}", 12, ', "user" : 1')
    if reason == "ONNX Runtime":  # which does not accept the original either
        _, report = cudarelu.onnx.accelerate(model)
        assert report.unchanged is None
        return
    onnx.save(model, tmp_path / "a.onnx")
    assert main(["accelerate", str(tmp_path / "a.onnx"), str(tmp_path / "b.onnx")]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("the model is left as it is: the model has opset 12 and cannot be")
    assert reason in printed
    assert onnx.load(tmp_path / "b.onnx") == model


@pytest.mark.parametrize("wrong", ["Neg", "Unknown"])
def test_a_converter_that_errs(wrong, monkeypatch):
    def convert(model: onnx.ModelProto, opset: int) -> onnx.ModelProto:
        return parse(f"main (float[N] x) => (float[N] y) {{ y = {wrong}(x) }}", opset)

    model = parse("main (float[N] x) => (float[N] y) { y = Relu(x) }", 12)
    monkeypatch.setattr(onnx.version_converter, "convert_version", convert)
    result, report = cudarelu.onnx.accelerate(model)
    assert result == model
    assert re.search("cannot be converted to 15: (output 0 differs|ONNX Runtime)", report.unchanged)


def test_the_opset_that_fuse_needs(tmp_path):
    """A model of opset 13 is converted, but is not refused if that fails."""
    model = body("h = Tanh(x) g = Sin(h) y = Sigmoid(g)")
    model.opset_import[0].version = FIRST
    assert prepare(model, lowest=15)[0].opset_import[0].version == 18
    model.functions.add(domain="user", name="F")
    assert prepare(model, lowest=15)[0].opset_import[0].version == FIRST


# The command line


def test_the_command(tmp_path, capsys, monkeypatch):
    ratios(monkeypatch, 0.5, 1.5, 0.5)
    onnx.save(body(TWO), tmp_path / "model.onnx")
    command = ["accelerate", str(tmp_path / "model.onnx"), str(tmp_path / "out.onnx")]
    assert main(command) == 0
    out = capsys.readouterr().out
    assert out.endswith(f"wrote {tmp_path / 'out.onnx'}\n")
    assert "1 x bias_relu for Add + Relu (c)" in out
    assert ours(onnx.load(tmp_path / "out.onnx")) == ["bias_relu", "tanh"]

    assert main([*command, "--only-if-faster", "--dim", "N=2", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert [each["kept"] for each in report["measured"]] == [True, False]
    assert ours(onnx.load(tmp_path / "out.onnx")) == ["bias_relu"]
    for dim in ("N", "N=", "N=x", "=2"):
        assert main([*command, "--dim", dim]) == 2
        assert capsys.readouterr().err == f"error: --dim {dim}: must be NAME=SIZE\n"
