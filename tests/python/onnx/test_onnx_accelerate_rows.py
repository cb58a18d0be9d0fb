"""cudarelu.onnx.accelerate finds the normalizations of rows."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper

import cudarelu
import cudarelu.onnx
from support.accelerate import accelerated, parse, run
from support.cases import slow_after

LAYER_NORM = """main ({inputs}) => (float[n, 8] y) {{
    {axes}
    mean = ReduceMean<keepdims = 1{attribute}>(x{axis})
    centred = Sub(x, mean)
    {squares}
    variance = ReduceMean<keepdims = 1{attribute}>(squares{axis})
    eps = Constant<value = float {{1e-5}}>()
    sum = Add(variance, eps)
    deviation = Sqrt(sum)
    {tail} }}"""
SQUARES = {
    "pow": "two = Constant<value = float {2.0}>() squares = Pow(centred, two)",
    "mul": "squares = Mul(centred, centred)",
}
TAILS = {
    (): "y = Div(centred, deviation)",
    ("rsqrt",): "rsqrt = Reciprocal(deviation) y = Mul(centred, rsqrt)",
    ("rsqrt", "weight"): "rsqrt = Reciprocal(deviation) normal = Mul(rsqrt, centred) "
    "y = Mul(normal, weight)",
    ("weight",): "normal = Div(centred, deviation) y = Mul(normal, weight)",
    ("bias",): "normal = Div(centred, deviation) y = Add(bias, normal)",
    ("weight", "bias"): "normal = Div(centred, deviation) scaled = Mul(normal, weight) "
    "y = Add(scaled, bias)",
}


@pytest.mark.parametrize(
    ("shape", "scale", "bias", "reason"),
    [
        ("N,2,3", "1.0, 1.0", "0.0, 0.0", ""),
        ("N,2,3", "1.0, 2.0", "0.0, 0.0", "no op"),
        ("N,2,3", "1.0, 1.0", "0.0, 0.5", "no op"),
        ("N,2,3,3", "1.0, 1.0", "0.0, 0.0", "not known to be rows"),
    ],
)
def test_the_instances_of_a_group_norm(shape, scale, bias, reason):
    model = parse(
        f"""main (float[{shape}] x) => (float[{shape}] y) {{
        s = Constant<value_floats = [{scale}]>() b = Constant<value_floats = [{bias}]>()
        y = InstanceNormalization<epsilon = 0.25>(x, s, b) }}"""
    )
    sizes = [5 if each == "N" else int(each) for each in shape.split(",")]
    feeds = {"x": np.random.default_rng(0).normal(3, 2, sizes).astype(np.float32)}
    result, replaced, reasons = accelerated(model, feeds)
    assert replaced == ([] if reason else ["layer_norm"])
    if "rows" in reason:
        assert any(reason in each for each in reasons)
    if not reason:
        (node,) = (node for node in result.graph.node if node.domain)
        assert helper.get_node_attr_value(node, "eps") == 0.25


@pytest.mark.parametrize("given", TAILS, ids="-".join)
@pytest.mark.parametrize("squares", SQUARES)
@pytest.mark.parametrize("axis", slow_after(1, [-1, 1]))
@pytest.mark.parametrize("opset", slow_after(1, [18, 17]))
def test_layer_norm_equivalent_forms(opset, axis, squares, given):
    weights = [each for each in given if each != "rsqrt"]
    model = parse(
        LAYER_NORM.format(
            inputs=", ".join(["float[n, 8] x", *(f"float[8] {name}" for name in weights)]),
            axes=f"axes = Constant<value_ints = [{axis}]>()" if opset >= 18 else "",
            axis=", axes" if opset >= 18 else "",
            attribute="" if opset >= 18 else f", axes = [{axis}]",
            squares=SQUARES[squares],
            tail=TAILS[given],
        ),
        opset,
    )
    result, report = cudarelu.onnx.accelerate(model)
    assert [each.op for each in report.replaced] == ["layer_norm"]
    ours = [node for node in result.graph.node if node.domain == "cudarelu"]
    assert [node.op_type for node in ours] == ["LayerNorm"]
    generator = np.random.default_rng(0)
    feeds = {"x": generator.normal(3, 2, (5, 8)).astype(np.float32)}
    feeds |= {name: generator.normal(size=8).astype(np.float32) for name in weights}
    (expected,) = run(model, False, feeds)
    for library in (False, True):
        (y,) = run(result, library, feeds)
        np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-5)
