"""What cudarelu.onnx.accelerate refuses, and models that are unusual."""

from __future__ import annotations

import itertools
import sys

import numpy as np
import onnx
import onnx.parser
import pytest

import cudarelu
import cudarelu.onnx
from cudarelu._onnx.definitions import lowest_opset
from cudarelu.onnx import measure
from support.accelerate import OPS, X, body, parse, run


def test_the_work_grows_as_the_model():
    """Counted, not timed: executed lines, with each step of a loop."""

    def work(count: int) -> int:
        names = ["x", *(f"v{i}" for i in range(1, count)), "y"]
        relus = "\n".join(
            f"{b} = cudarelu.LinearRelu({a}, w)" for a, b in itertools.pairwise(names)
        )
        inputs = "float[4,4] x, float[4,4] w"
        model = parse(f"main ({inputs}) => (float[4,4] y) {{ {relus} }}", more=', "cudarelu" : 1')
        steps = 0

        def count_step(*_: object):
            nonlocal steps
            steps += 1
            return count_step

        before = sys.gettrace()
        sys.settrace(count_step)
        try:
            cudarelu.onnx.attach_definitions(model)
        finally:
            sys.settrace(before)
        return steps

    work(1)  # fills caches
    assert work(800) < 5 * work(200)


def test_bytes_are_not_a_model():
    with pytest.raises(TypeError, match="takes a model or a path, not bytes"):
        cudarelu.onnx.accelerate(b"")


def test_lower_in_an_early_opset():
    model = onnx.parser.parse_model(
        """<ir_version: 7, opset_import: ["" : 11, "cudarelu" : 1]> main (float[N,4] x, float[4] b)
        => (float[N,4] y) { h = Clip(x) y = cudarelu.BiasRelu <scale = 0.5> (h, b) }"""
    )
    lowered = cudarelu.onnx.lower(model)
    assert lowered.opset_import[0].version == lowest_opset(OPS["bias_relu"])
    (y,) = run(lowered, False, {"x": X, "b": X[0]})
    np.testing.assert_allclose(y, 0.5 * np.maximum(X + X[0], 0), rtol=1e-6)
    model.functions.add(domain="user", name="F")
    with pytest.raises(ValueError, match=r"has opset 11 and cannot be .* loses functions \(F\)"):
        cudarelu.onnx.lower(model)


def test_the_other_name_of_the_domain():
    """ONNX Runtime itself does not find ai.onnx in subgraphs."""
    text = """main (float[N,4] x, bool c) => (float[N,4] y) { h = ai.onnx.Relu(x)
    y = ai.onnx.If (c) <then_branch = t () => (float[N,4] p) { p = ai.onnx.Tanh(h) },
                        else_branch = e () => (float[N,4] q) { q = ai.onnx.Softmax(h) }> }"""
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["ai.onnx" : 18]> {text}')
    result, report = cudarelu.onnx.accelerate(model)
    assert sorted(each.op for each in report.replaced) == ["relu", "softmax", "tanh"]
    assert {each.domain for each in result.opset_import} == {"", "cudarelu"}
    (y,) = run(result, True, {"x": X, "c": np.array(True)})
    np.testing.assert_allclose(y, np.tanh(np.maximum(X, 0)), rtol=1e-6)
    model.opset_import.add(domain="", version=17)
    with pytest.raises(ValueError, match="the model has opset 17 and opset 18"):
        cudarelu.onnx.accelerate(model)


def test_values_that_are_no_tensors():
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 18, "ai.onnx.ml" : 1]>
        main (float[N,4] x, seq(float[N,4]) s) => (seq(map(int64, float)) z, seq(float[N,4]) t,
            optional(float[N,4]) o, map(string, float) never) {
          h = Relu(x) p = Softmax(h) t = SequenceInsert(s, h) o = Optional(h)
          z = ai.onnx.ml.ZipMap <classlabels_int64s = [0, 1, 2, 3]> (p) }"""
    )
    del model.graph.output[3:]
    result, report = cudarelu.onnx.accelerate(model)
    assert sorted(each.op for each in report.replaced) == ["relu", "softmax"]
    assert result.graph.input == model.graph.input
    assert result.graph.output == model.graph.output
    feeds = {"x": X, "s": [X]}
    for library in False, True:
        (z, t, o), (zz, tt, oo) = run(model, False, feeds), run(result, library, feeds)
        assert [each.keys() for each in z] == [each.keys() for each in zz]
        np.testing.assert_allclose([*z[0].values()], [*zz[0].values()], rtol=1e-6)
        np.testing.assert_array_equal(t, tt)
        np.testing.assert_array_equal(o, oo)


def test_outputs_that_are_no_tensors_are_compared():
    text = """<ir_version: 8, opset_import: ["" : 18, "ai.onnx.ml" : 1]>
    main (float[2,2] x) => (seq(map(string, float)) z, seq(float[2,2]) s) { p = Relu(x)
    z = ai.onnx.ml.ZipMap <classlabels_strings = ["a", "b"]> (p) s = SequenceConstruct(p, x) }"""
    models = [onnx.parser.parse_model(each) for each in (text, text.replace('"b"', '"c"'))]
    running = [measure.Running(each, None, "cpu", {"x": X[:2, :2]}) for each in models]
    assert measure.difference(running[0], running[0]) is None
    assert measure.difference(*running) == "output 1 differs in 1 of 1 elements"


def test_a_function_that_calls_our_ops():
    """ONNX Runtime cannot type it without definitions, so they are attached."""
    text = """main (float[N,4] x) => (float[N,4] y) { h = user.F(x) y = user.F(h) }
    <domain: "user", opset_import: ["" : 18, "cudarelu" : 1]> F (x) => (y) {
        h = cudarelu.Relu(x) y = Identity(h) }"""
    model = parse(text, 18, ', "user" : 1, "cudarelu" : 1')
    result, report = cudarelu.onnx.accelerate(model)
    assert report.replaced == []
    assert [each.name for each in result.functions] == ["Relu", "F"]
    np.testing.assert_array_equal(run(result, True, {"x": X})[0], np.maximum(X, 0))


def test_what_would_be_lost():
    model = body("y = Relu(x)")
    model.graph.sparse_initializer.add()
    with pytest.raises(ValueError, match="sparse initializers"):
        cudarelu.onnx.accelerate(model)
