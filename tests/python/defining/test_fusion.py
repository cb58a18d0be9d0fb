"""Groups of elementwise nodes as ops: `cudarelu.onnx.accelerate(model, fuse=True)`."""

from __future__ import annotations

import math
import re
import subprocess
import sys

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest

import cudarelu.onnx
from cudarelu import _build
from cudarelu.__main__ import main
from cudarelu._table import all_ops
from cudarelu.onnx import measure

ROWS = '<ir_version: 8, opset_import: ["" : 18]> g (float[N, 8] x, float[8] b) => (float[N, 8] y)'
SMALL = '<ir_version: 8, opset_import: ["" : 18]> g (float[5] x, float[5] w) => (float[5] y)'


@pytest.fixture(autouse=True)
def for_the_cpu(monkeypatch):
    """Compiles for the CPU alone, which is faster."""
    monkeypatch.setattr(_build, "_find_nvcc", lambda: None)


def model(text: str) -> onnx.ModelProto:
    result = onnx.parser.parse_model(text)
    onnx.checker.check_model(result)
    return result


def run(found: onnx.ModelProto, inputs, library=None) -> list[np.ndarray]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    if library is not None:
        options.register_custom_ops_library(library)
    session = onnxruntime.InferenceSession(
        found.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return session.run(None, inputs)


def check(text: str, *expected: tuple[str, ...]) -> onnx.ModelProto:
    """Fuses a model, compares what was replaced, and the outputs with the library and without."""
    before = model(text)
    after, report = cudarelu.onnx.accelerate(before, fuse=True)
    fused = [each.operators for each in report.replaced if "fused" in each.op]
    assert sorted(fused) == sorted(expected), report
    onnx.checker.check_model(after)
    rng = np.random.default_rng(0)
    inputs = {}
    for each in before.graph.input:
        kind = each.type.tensor_type
        shape = [dim.dim_value or 5 for dim in kind.shape.dim]
        dtype = onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type)
        inputs[each.name] = rng.normal(size=shape).astype(dtype)
    wanted = run(before, inputs)
    for library in (None, report.library):
        for a, b in zip(run(after, inputs, library), wanted, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    return after


@pytest.mark.filterwarnings("ignore:there is no nvcc")
class TestGroups:
    def test_rows_and_scalars(self):
        check(
            f"""{ROWS} <float k = {{0.5}}, float[1] two = {{2.0}}>
            {{ a = Add(x, b) s = Sigmoid(a) t = Mul(a, s) u = Mul(t, k) y = Div(u, two) }}""",
            ("Add", "Sigmoid", "Mul", "Mul", "Div"),
        )

    @pytest.mark.slow
    def test_rows_whose_elements_are_repeated(self):
        """As the weights of channels. The sum with d, which repeats other elements, does not
        join."""
        after = check(
            """<ir_version: 8, opset_import: ["" : 18]>
            g (float[2, 3, 5, 7] x, float[3, 1, 1] w, float[3, 1, 1] b, float[3, 5, 7] c,
               float[3, 5, 1] d, float[2, 3, 1, 1] e)
            => (float[2, 3, 5, 7] y, float[2, 3, 5, 7] z)
            { xw = Mul(x, w) xwb = Add(xw, b) s = Sigmoid(xwb) t = Mul(xwb, s) y = Sub(t, c)
              xd = Add(x, d) a = Abs(xd) f = Exp(a) z = Mul(f, e) }""",
            ("Mul", "Add", "Sigmoid", "Mul", "Sub"),
            ("Abs", "Exp", "Mul"),
        )
        assert [node.op_type for node in after.graph.node if not node.domain] == ["Add"]

    @pytest.mark.slow
    def test_rows_of_several_dimensions(self):
        """As in rotary embeddings. The product with d, a row of one dimension, does not join."""
        check(
            """<ir_version: 8, opset_import: ["" : 18]>
            g (float[2, 3, 5, 8] x, float[2, 3, 5, 8] w, float[5, 8] b, float[5, 8] c, float[8] d)
            => (float[2, 3, 5, 8] y, float[2, 3, 5, 8] z)
            { xb = Mul(x, b) wc = Mul(w, c) y = Sub(xb, wc)
              xd = Mul(x, d) e = Exp(xd) ec = Mul(e, c) z = Abs(ec) }""",
            ("Exp", "Mul", "Abs"),
            ("Mul", "Mul", "Sub"),
        )

    @pytest.mark.slow
    def test_a_condition_within(self):
        check(
            f"{SMALL} {{ c = Greater(x, w) d = Sub(x, w) e = Exp(d) y = Where(c, d, e) }}",
            ("Greater", "Sub", "Exp", "Where"),
        )

    @pytest.mark.slow
    def test_attributes_and_operators_of_several_operands(self):
        check(
            f"""{SMALL} {{ a = LeakyRelu<alpha = 0.25>(x) b = Celu<alpha = 2.0>(w)
            c = Max(a, b, x) y = Sum(c, a, w) }}""",
            ("LeakyRelu", "Celu", "Max", "Sum"),
        )

    def test_equal_groups_are_one_op(self):
        after = check(
            f"""{SMALL} {{ a = Tanh(x) b = Mul(a, x) s = Softmax(b) c = Tanh(s) y = Mul(c, s) }}""",
            ("Tanh", "Mul"),
            ("Tanh", "Mul"),
        )
        domains = [each.domain for each in after.functions if each.domain.startswith("fused0_")]
        assert len(domains) == 1

    @pytest.mark.slow
    def test_a_value_that_others_need(self):
        """It ends a group: e is a result, and Softmax needs a."""
        text = SMALL.replace("=> (float[5] y)", "=> (float[5] y, float[5] e)")
        check(
            f"""{text} {{ a0 = Neg(x) a = Exp(a0) s = Softmax(a) b = Mul(a, w) e = Abs(b)
            c = Sub(e, s) y = Erf(c) }}""",
            ("Neg", "Exp"),
            ("Mul", "Abs"),
            ("Sub", "Erf"),
        )

    def test_a_node_that_cannot_join(self):
        """Where has a condition from outside: it stays, and so do the nodes that it needs alone."""
        text = SMALL.replace("float[5] w)", "float[5] w, bool[5] c)")
        nodes = "a = Neg(x) b = Exp(a) d = Where(c, b, a) e = Abs(d) y = Erf(e)"
        _, report = cudarelu.onnx.accelerate(model(f"{text} {{ {nodes} }}"), fuse=True)
        fused = [each.operators for each in report.replaced if "fused" in each.op]
        assert sorted(fused) == [("Abs", "Erf")]

    def test_infinite_constants(self):
        """Kernels cannot have them: their nodes stay."""
        text = SMALL.replace("=> (float[5] y)", "=> (float[5] y, float[5] z, float[5] u)")
        nodes = """e = Abs(x) y = Erf(e) low = Constant<value_float = -1.0>() g = Greater(x, w)
        d = Where(g, x, low) z = Neg(d) f = Elu<alpha = 1.5>(w) u = Neg(f)"""
        before = model(f"{text} {{ {nodes} }}")
        for node in before.graph.node:
            for each in node.attribute:
                each.f *= math.inf
        _, report = cudarelu.onnx.accelerate(before, fuse=True)
        fused = [each.operators for each in report.replaced if "fused" in each.op]
        assert fused == [("Abs", "Erf")]

    @pytest.mark.parametrize(
        "text",
        [
            SMALL.replace("float", "int32") + "{ a = Neg(x) y = Abs(a) }",
            SMALL.replace("float[5] x", "float x") + "{ a = Mul(x, w) y = Exp(a) }",  # no constant
            f"{SMALL} {{ y = Exp(x) }}",
            f"{SMALL} {{ a = Softmax(x) y = Softmax(a) }}",
        ],
    )
    def test_no_group(self, text):
        _, report = cudarelu.onnx.accelerate(model(text), fuse=True)
        assert report.library is None
        assert not [each for each in report.replaced if "fused" in each.op]

    @pytest.mark.slow
    def test_one_name_of_two_sizes(self):
        """ONNX Runtime broadcasts m, so its sum is not in the group."""
        before = model(
            ROWS.replace("float[8] b", "float[N, 8] m")
            + "{ a = Add(x, m) s = Sigmoid(a) y = Mul(a, s) }"
        )
        after, report = cudarelu.onnx.accelerate(before, fuse=True)
        assert ("Sigmoid", "Mul") in [each.operators for each in report.replaced]
        x = np.random.default_rng(0).normal(size=(6, 8)).astype(np.float32)
        (wanted,) = run(before, inputs := {"x": x, "m": x[:1]})
        (y,) = run(after, inputs, report.library)
        np.testing.assert_allclose(y, wanted, rtol=1e-5, atol=1e-6)

    @pytest.mark.slow
    def test_no_ops_are_left_behind(self):
        """The ops are of one model: a further one does not get them."""
        count = len(all_ops())
        check(f"{SMALL} {{ a = Neg(x) b = Exp(a) y = Abs(b) }}", ("Neg", "Exp", "Abs"))
        assert len(all_ops()) == count

    def test_notes_stay(self):
        """Of all nodes; the last one's metadata comes first."""
        before = model(f"{SMALL} {{ a = Neg(x) b = Exp(a) y = Abs(b) }}")
        for node in before.graph.node:
            node.doc_string = f"of {node.op_type}"
            node.metadata_props.add(key="last", value=node.op_type)
            node.metadata_props.add(key=node.op_type, value="there")
        after, _ = cudarelu.onnx.accelerate(before, fuse=True)
        (node,) = after.graph.node
        assert node.doc_string == "of Neg\nof Exp\nof Abs"
        metadata = {each.key: each.value for each in node.metadata_props}
        assert metadata == {"last": "Abs", "Neg": "there", "Exp": "there", "Abs": "there"}


@pytest.mark.filterwarnings("ignore:there is no nvcc")
@pytest.mark.parametrize(("ratio", "kept"), [(0.5, True), (1.5, False)])
def test_only_if_faster(ratio, kept, monkeypatch, tmp_path):
    monkeypatch.setattr(measure, "compare", lambda before, after: (ratio, (ratio, ratio)))
    before = model(f"{SMALL} {{ a = Neg(x) b = Exp(a) y = Abs(b) }}")
    after, report = cudarelu.onnx.accelerate(before, fuse=True, only_if_faster=True)
    assert [each.op for each in report.measured] == ["fused"]
    assert bool(report.replaced) == kept
    assert (report.library is not None) == kept
    assert (after == before) != kept
    if not kept:
        assert [each.reason for each in report.left] == ["the model is not faster with it: 1.500"]


@pytest.mark.slow
def test_the_command(tmp_path):
    onnx.save(model(f"{SMALL} {{ a = Neg(x) y = Exp(a) }}"), tmp_path / "in.onnx")
    command = [sys.executable, "-m", "cudarelu", "accelerate", "in.onnx", "out.onnx", "--fuse"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr
    assert "fused0 for Neg + Exp" in done.stdout
    assert (tmp_path / "libout_ops.so").exists()
    x = np.arange(5, dtype=np.float32)
    (y,) = run(onnx.load(tmp_path / "out.onnx"), {"x": x, "w": x}, str(tmp_path / "libout_ops.so"))
    np.testing.assert_allclose(y, np.exp(-x), rtol=1e-6)


@pytest.mark.filterwarnings("ignore:there is no nvcc")
def test_a_module_that_does_not_compile(tmp_path, monkeypatch, capsys):
    compiler = tmp_path / "failing"
    compiler.write_text('#!/bin/sh\n[ "$1" = --version ] || ! echo no space\n')
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    onnx.save(model(f"{SMALL} {{ a = Neg(x) y = Exp(a) }}"), tmp_path / "in.onnx")
    command = ["accelerate", str(tmp_path / "in.onnx"), str(tmp_path / "out.onnx"), "--fuse"]
    assert main(command) == 2
    assert re.fullmatch(r"error: fused0_\w+: no space\n", capsys.readouterr().err)
    assert not (tmp_path / "out.onnx").exists()
