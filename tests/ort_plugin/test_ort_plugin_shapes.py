"""The custom-op library in ONNX Runtime: shapes when the model is loaded."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper

from support.models import make_model, node, one_node, tensor
from support.ort_plugin import MINOR, X, make_session, relu

needs_shape_inference = pytest.mark.skipif(
    MINOR < 17, reason="ONNX Runtime asks custom ops for shapes from 1.17 on"
)


@needs_shape_inference
@pytest.mark.parametrize("shape", [["N", 4], ["N", "M"], [2, "M", 3], [2, 3]])
def test_shapes_are_inferred_and_symbols_kept(shape):
    assert make_session(one_node("Relu", shape)).get_outputs()[0].shape == shape


def test_inference_without_what_it_needs():
    """The output shape is unknown for an input of unknown rank, a scalar, and a size without a
    name. The model runs."""
    for shape, x in ((None, X), ([], np.array(-1, np.float32)), ([None, 4], X)):
        session = make_session(one_node("Relu", shape))
        assert session.get_outputs()[0].shape == []  # Python's form of an unknown shape
        np.testing.assert_array_equal(session.run(None, {"x": x})[0], relu(x))


def test_sizes_without_a_name_are_not_taken_for_equal():
    """If they were, ONNX Runtime would write the sum over the smaller of its operands."""
    nodes = [
        node("Relu", ["a"], ["c"]),
        node("Relu", ["c"], ["d"]),
        node("Relu", ["b"], ["e"]),
        node("Relu", ["e"], ["f"]),
        helper.make_node("Add", ["d", "f"], ["y"]),
    ]
    inputs = [tensor("a", [None, 4]), tensor("b", [None, 4])]
    session = make_session(make_model(nodes, inputs, [tensor("y", None)]))
    a, b = np.ones((1, 4), np.float32), np.ones((3, 4), np.float32)
    for feed in ({"a": a, "b": b}, {"a": b, "b": a}):
        np.testing.assert_array_equal(session.run(None, feed)[0], 2 * b)


def test_shapes_from_attributes_and_fixed_sizes():
    nodes = [node("KnnQuery", ["xyz", "offset", "q", "r"], ["i", "d"], nsample=5)]
    model = make_model(
        nodes,
        [
            tensor("xyz", ["n", 3]),
            tensor("offset", ["b"], TensorProto.INT32),
            tensor("q", ["m", 3]),
            tensor("r", ["b"], TensorProto.INT32),
        ],
        [tensor("i", None, TensorProto.INT32), tensor("d", None)],
    )
    # Before 1.24, ONNX Runtime crashes if an op with optional inputs infers shapes.
    expected = ["m", 5] if MINOR >= 24 else []
    assert [o.shape for o in make_session(model).get_outputs()] == [expected, expected]


def test_a_declared_shape_that_is_wrong_does_not_stop_the_model():
    nodes = [node("Relu", ["x"], ["y"])]
    model = make_model(nodes, [tensor("x", ["N", 4])], [tensor("y", ["N", 5])])
    np.testing.assert_array_equal(make_session(model).run(None, {"x": X})[0], relu(X))
