"""The custom-op library in ONNX Runtime: absent inputs, and attributes as nodes hold them."""

from __future__ import annotations

import re

import numpy as np
import pytest
from onnx import TensorProto, helper

from support.models import make_model, node, tensor
from support.ort_plugin import (
    CLOUD,
    OFFSET,
    POINTS,
    XYZ,
    X,
    make_session,
    run_knnquery,
    run_node,
    run_one,
)

# Optional inputs


def run_knn(names: list[str], **attributes) -> list[np.ndarray]:
    values = {"xyz": XYZ, "offset": OFFSET, "new_xyz": XYZ, "new_offset": OFFSET}
    feed = {name: values[name] for name in names if name}
    inputs = [
        tensor(name, [None] * value.ndim, helper.np_dtype_to_tensor_dtype(value.dtype))
        for name, value in feed.items()
    ]
    nodes = [node("KnnQuery", names, ["i", "d"], **attributes)]
    model = make_model(nodes, inputs, [tensor("i", None, TensorProto.INT32), tensor("d", None)])
    return make_session(model).run(None, feed)


@pytest.mark.parametrize(
    "names",
    [
        ["xyz", "offset"],
        ["xyz", "offset", "", ""],
        ["xyz", "offset", "new_xyz"],
        ["xyz", "offset", "", "new_offset"],
    ],
    ids=["end", "end-named", "last", "middle"],
)
def test_absent_inputs(names):
    expected = run_knn(["xyz", "offset", "new_xyz", "new_offset"], nsample=3)
    for given, wanted in zip(run_knn(names, nsample=3), expected, strict=True):
        np.testing.assert_array_equal(given, wanted)


def test_a_required_input_that_is_absent():
    with pytest.raises(Exception, match="KnnQuery"):
        run_knn(["xyz", ""])


# Aliases with inputs of their own


CELLS = {"pos": POINTS, "size": np.float32([0.5, 1, 2]), "start": np.float32([-2, -2, -2])}
CELLS["end"] = np.float32([1, 1, 1])


@pytest.mark.parametrize("constants", [(), ("nsample",)], ids=["input", "constant"])
@pytest.mark.parametrize("shape", [(), (1,)], ids=str)
@pytest.mark.parametrize("dtype", [np.int64, np.int32])
def test_an_attribute_as_an_input(dtype, shape, constants):
    expected = run_node("cudarelu", "KnnQuery", CLOUD, ["idx", "distance"], nsample=3)
    found = run_knnquery(np.full(shape, 3, dtype), constants=constants)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)
    assert found[0].shape == (5, 3)


def test_another_value_in_each_run():
    """The session keeps no value and no shape of an earlier run."""
    types = {"nsample": TensorProto.INT64, "xyz": TensorProto.FLOAT, "offset": TensorProto.INT32}
    shapes = {"nsample": [], "xyz": ["n", 3], "offset": ["b"]}
    nodes = [
        node("knnquery", list(types), ["idx", "distance"], "custom"),
        node("Relu", ["distance"], ["y"]),
    ]
    inputs = [tensor(name, shapes[name], types[name]) for name in types]
    session = make_session(make_model(nodes, inputs, [tensor("y", None)]))
    feeds = {name: CLOUD[name] for name in ("xyz", "offset")}
    for nsample in (2, 4, 1):
        (y,) = session.run(None, feeds | {"nsample": np.array(nsample)})
        assert y.shape == (9, nsample)


@pytest.mark.parametrize("absent", [(), ("new_xyz",), ("new_offset",), ("new_xyz", "new_offset")])
def test_an_alias_without_optional_inputs(absent):
    cloud = CLOUD | {"new_xyz": POINTS[::-1].copy(), "new_offset": CLOUD["offset"]}
    cloud |= dict.fromkeys(absent)
    expected = run_node("cudarelu", "KnnQuery", cloud, ["idx", "distance"], nsample=2)
    for one, other in zip(run_knnquery(np.array([2]), cloud), expected, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    "names", [["pos", "size"], ["pos", "size", "start"], list(CELLS), ["pos", "size", None, "end"]]
)
def test_an_alias_with_two_to_four_inputs(names):
    inputs = {name or "start": CELLS[name] if name else None for name in names}
    (expected,) = run_node("cudarelu", "GridCluster", inputs, ["cluster"])
    (found,) = run_node("custom", "torch_cluster_grid", inputs, ["cluster"])
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("constants", [(), ("nsample",)], ids=["input", "constant"])
@pytest.mark.parametrize(
    ("nsample", "message"),
    [
        (np.array([2, 3]), "a tensor of one element, of shape [] or [1] and of dtype int32, int64"),
        (np.array([[2]]), "a tensor of one element, of shape [] or [1] and of dtype int32, int64"),
        (np.float32(2), "a tensor of one element, of shape [] or [1] and of dtype int32, int64"),
        (np.float16(2), "a tensor of one element, of shape [] or [1] and of dtype int32, int64"),
        (np.array(0), "in [1, 1024], not 0"),
        (np.array(1025), "in [1, 1024], not 1025"),
    ],
)
def test_an_attribute_as_an_input_that_is_wrong(nsample, message, constants):
    with pytest.raises(Exception, match=re.escape(f"knn_query: nsample must be {message}")):
        run_knnquery(np.asarray(nsample), constants=constants)


def test_an_attribute_as_an_input_that_is_missing():
    with pytest.raises(Exception, match="input 0 is marked single but has an empty string"):
        run_knnquery(None)


# Attributes


def test_attributes():
    np.testing.assert_array_equal(run_one("LeakyRelu"), np.where(X > 0, X, X * np.float32(0.01)))
    np.testing.assert_array_equal(
        run_one("LeakyRelu", negative_slope=0.25), np.where(X > 0, X, X * np.float32(0.25))
    )
    assert run_knn(["xyz", "offset"])[0].shape == (7, 16)
    assert run_knn(["xyz", "offset"], nsample=2)[0].shape == (7, 2)


def test_a_default_is_what_a_node_that_states_it_holds():
    x = np.array([[-1, -3, 1, 2]], np.float64)
    np.testing.assert_array_equal(
        run_one("LeakyRelu", x), run_one("LeakyRelu", x, negative_slope=0.01)
    )


@pytest.mark.parametrize(
    "value", [1, "1.0", [1.0], [1], helper.make_tensor("t", TensorProto.FLOAT, [1], [1.0])]
)
def test_a_real_attribute_of_another_type(value):
    with pytest.raises(Exception, match="relu_scale: scale must be a floating-point number"):
        run_one("ReluScale", scale=value)


@pytest.mark.parametrize("value", [1.0, "1", [1.0], [1]])
def test_an_integer_attribute_of_another_type(value):
    with pytest.raises(Exception, match="knn_query: nsample must be an integer"):
        run_knn(["xyz", "offset"], nsample=value)


@pytest.mark.parametrize("value", [-1, 0, 1025, 2**62])
def test_an_attribute_out_of_range(value):
    with pytest.raises(Exception, match=r"knn_query: nsample must be in \[1, 1024\]"):
        run_knn(["xyz", "offset"], nsample=value)


@pytest.mark.parametrize("value", [2, -1, 2**62, 1.0, "tanh"])
def test_an_enumeration_out_of_range_or_of_another_type(value):
    with pytest.raises(Exception, match=r"approximate must be none \(0\) or tanh \(1\)"):
        run_one("Gelu", approximate=value)


def test_a_required_attribute_that_is_missing():
    with pytest.raises(Exception, match="relu_scale: attribute scale is missing"):
        run_one("ReluScale")
