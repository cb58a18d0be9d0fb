"""cudarelu.onnx.accelerate on ONNX's own tests of the operators."""

from __future__ import annotations

import importlib
import re

import numpy as np
import onnx
import pytest
from onnx import helper
from onnx.backend.test.case import node as backend

import cudarelu
import cudarelu.onnx
from cudarelu._onnx.expressions import Call, forms, is_linear
from cudarelu.onnx.patterns import patterns
from support.accelerate import run

SINGLE = {
    form.op_type
    for each in patterns()
    for form in forms(each.expression)
    if isinstance(form, Call)
    if each.size == 1 and not is_linear(each.expression)  # that is the runtime's
}
DTYPES_LEFT = {
    *(f"test_add_{dtype}" for dtype in ("int16", "uint16", "uint32", "uint64")),
    *(f"test_mul_{dtype}" for dtype in ("int8", "int16", "uint8", "uint16", "uint32", "uint64")),
}
LEFT = {
    **dict.fromkeys(DTYPES_LEFT, "does not take inputs"),
    "test_add_bcast": r"b \[5\] is not known to be a",
    "test_mul_bcast": r"b \[5\] is not known to be a",
    "test_softmax_axis_0": "the axis of Softmax is 0, not -1",
    "test_softmax_axis_1": "the axis of Softmax is 1, not -1",
    "test_prelu_example": None,  # the slope is not a constant, so no op matches
    "test_prelu_broadcast": None,
    "test_instancenorm_example": None,  # the same for scale and bias
    "test_instancenorm_epsilon": None,
}


def backend_cases() -> list:
    for op_type in sorted(SINGLE):
        name = "instance_normalization" if op_type == "InstanceNormalization" else op_type.lower()
        importlib.import_module(f"{backend.__name__}.{name}")
    cases = backend._NodeTestCases  # collect_testcases() imports all operators, for 10 s
    return [
        each
        for each in cases
        if [(node.domain, node.op_type in SINGLE) for node in each.model.graph.node] == [("", True)]
    ]


LEFT |= {
    case.name: "LayerNormalization has outputs that the definition does not have"
    for case in backend_cases()
    if case.name.startswith("test_layer_normalization_")
}


def why_left(attention: onnx.NodeProto) -> str | None:
    """Why a call of Attention stays; empty if it is none of our op."""
    given = {each.name: helper.get_attribute_value(each) for each in attention.attribute}
    if any(attention.input[4:]):  # keys and values of earlier calls, or their number
        return None
    reasons = [f"the {name} of Attention" for name in given if "_num_heads" in name]
    reasons += ["the softcap of Attention"] * bool(given.get("softcap"))
    reasons += [
        f"the {name} of Attention" for name in given if "window" in name and given[name] >= 0
    ]
    reasons += ["Attention has outputs that the definition does not have"] * (
        len(attention.output) > 1
    )
    return "|".join(reasons)


ATTENTION = {
    case.name: why_left(case.model.graph.node[0])
    for case in backend_cases()
    if case.model.graph.node[0].op_type == "Attention"
}
LEFT |= {name: reason for name, reason in ATTENTION.items() if reason != ""}


@pytest.mark.parametrize("case", backend_cases(), ids=lambda case: case.name)
def test_onnx_backend_test(case):
    result, report = cudarelu.onnx.accelerate(case.model)
    (operator,) = case.model.graph.node
    if case.name in LEFT:
        assert result == case.model
        reason = LEFT[case.name]
        assert [each.operators for each in report.left] == [(operator.op_type,)] * bool(reason)
        assert all(re.search(reason, each.reason) for each in report.left)
        return
    others = ("Constant", "CastLike")  # of the number that stands for an absent input
    assert [x.domain for x in result.graph.node if x.op_type not in others] == ["cudarelu"]
    if case.name.endswith("_bf16"):
        return  # ONNX Runtime takes no such arrays
    names = [each.name for each in case.model.graph.input]
    for inputs, outputs in case.data_sets:
        (y,) = run(result, True, dict(zip(names, inputs, strict=True)))
        np.testing.assert_allclose(y, outputs[0], rtol=case.rtol, atol=case.atol)
        assert y.dtype == outputs[0].dtype


def test_onnx_backend_tests_are_there():
    names = {case.name for case in backend_cases()}
    assert names >= LEFT.keys()
    assert {"test_relu", "test_leakyrelu", "test_tanh", "test_asinh", "test_add"} <= names
