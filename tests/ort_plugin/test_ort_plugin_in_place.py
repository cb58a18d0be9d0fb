"""The custom-op library in ONNX Runtime: results in the memory of inputs."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper

from cudarelu.testing import Case
from cudarelu.testing.cases import attribute_values
from cudarelu.testing.hosts import one_op_model
from support.models import one_node
from support.ort_plugin import (
    MINOR,
    X,
    every_in_place_op,
    make_session,
    run_between_probes,
    values_of,
)


@pytest.mark.parametrize("symbolic", [False, True], ids=["fixed", "symbolic"])
@every_in_place_op
def test_in_place(op, symbolic):
    before, after, (result,) = run_between_probes(op, symbolic)
    # Earlier versions do not ask custom ops which input they may overwrite.
    assert (before == after) == (MINOR >= 18)
    case = Case("alone", values_of(op), attribute_values(op, "default"))
    case.inputs[op.in_place.split(" = ")[1]] *= -1
    feed = {f"{name}_0": array for name, array in case.inputs.items()}
    alone = make_session(one_op_model(op, [case]).SerializeToString()).run(None, feed)[0]
    np.testing.assert_array_equal(result, -alone)


@every_in_place_op
def test_not_in_place_where_another_node_reads_the_input(op):
    other = helper.make_node("Add", ["before", "result"], ["sum"])
    before, after, (result, total) = run_between_probes(
        op, symbolic=True, others=[other], outputs=("result", "sum")
    )
    assert before != after
    overwritten = -values_of(op)[op.in_place.split(" = ")[1]]
    np.testing.assert_array_equal(total, overwritten + result)


def test_not_in_place_over_the_caller(tmp_path):
    x = X.copy()
    make_session(one_node("Relu")).run(None, {"x": x})
    np.testing.assert_array_equal(x, X)
