"""The custom-op library in ONNX Runtime: tensors of every op, dtype and shape."""

from __future__ import annotations

import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto, helper

import cudarelu.ort
from cudarelu.testing import DTYPES as ALL_DTYPES
from cudarelu.testing import assert_close, cases, reference
from cudarelu.testing.hosts import one_op_model
from support.cases import tier
from support.models import make_model, make_options, node, one_node, tensor
from support.ort_plugin import DTYPES, OFFSET, XYZ, X, make_session, relu, run_one


@pytest.mark.parametrize(
    "op", [pytest.param(op, id=op.name, marks=tier(op.name)) for op in cudarelu.ops()]
)
def test_every_op(op):
    """All cases of one dtype, as nodes of one model. test_ops.py tests the other dtypes, but only
    with the environment's ONNX Runtime."""
    dtype = ALL_DTYPES[op.dtypes[0]]
    runs = cases(op, dtype)
    feed = {
        f"{name}_{number}": np.ascontiguousarray(array).reshape(array.shape)
        for number, case in enumerate(runs)
        for name, array in case.inputs.items()
        if array is not None
    }
    results = iter(make_session(one_op_model(op, runs).SerializeToString()).run(None, feed))
    for case in runs:
        for parameter, expected in zip(op.outputs, reference(op, case), strict=True):
            expected_dtype = dtype if parameter.dtype == "T" else np.dtype(parameter.dtype)
            assert_close(op, case, next(results), expected, expected_dtype)


def test_an_op_in_a_subgraph():
    branches = {}
    for name, nodes in {
        "then_branch": [node("Relu", ["x"], ["chosen"])],
        "else_branch": [node("Scale", ["x"], ["chosen"], factor=2.0)],
    }.items():
        branches[name] = helper.make_graph(nodes, name, [], [tensor("chosen", ["N", 4])])
    nodes = [helper.make_node("If", ["condition"], ["y"], **branches)]
    inputs = [tensor("condition", [], TensorProto.BOOL), tensor("x", ["N", 4])]
    session = make_session(make_model(nodes, inputs, [tensor("y", None)]))
    for condition, expected in ((True, relu(X)), (False, 2 * X)):
        feed = {"condition": np.array(condition), "x": X}
        np.testing.assert_array_equal(session.run(None, feed)[0], expected)


def test_memory_that_cannot_be_had_is_a_status(tmp_path):
    """The memory of the output, since CPU kernels need no workspace. The process and the session
    can continue."""
    script = """
import resource, sys
import numpy as np
import onnxruntime as ort

model, library = sys.argv[1:]
options = ort.SessionOptions()
options.enable_cpu_mem_arena = False
options.register_custom_ops_library(library)
session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
x = np.full(1 << 24, -1, np.float32)
session.run(None, {"x": x[:1000]})
with open("/proc/self/statm") as file:
    used = int(file.read().split()[0]) * resource.getpagesize()
soft, hard = resource.getrlimit(resource.RLIMIT_AS)
resource.setrlimit(resource.RLIMIT_AS, (used + x.nbytes // 2, hard))
try:
    session.run(None, {"x": x})
except Exception as error:
    print(error)
resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
print("zeros afterwards:", not session.run(None, {"x": x})[0].any())
"""
    model = tmp_path / "model.onnx"
    model.write_bytes(one_node("Relu", ["N"]))
    command = [sys.executable, "-c", script, str(model), cudarelu.ort.library_path()]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    error, _, afterwards = done.stdout.strip().rpartition("\n")
    assert "running Relu node" in error
    assert afterwards == "zeros afterwards: True"


@pytest.mark.parametrize("shape", [(0,), (0, 4), (3, 0, 2)])
def test_empty_tensors(shape):
    y = run_one("Relu", np.zeros(shape, np.float32))
    assert y.shape == shape
    assert y.dtype == np.float32


@pytest.mark.parametrize("dtype", DTYPES)
def test_dtypes(dtype):
    onnx_type, np_type = DTYPES[dtype]
    x = np.array([[-2, 0, 1, 3]], np_type)
    y = make_session(one_node("Relu", dtype=onnx_type)).run(None, {"x": x})[0]
    assert y.dtype == np_type
    np.testing.assert_array_equal(y, relu(x))


def test_bfloat16():
    """The op is between casts, since ONNX Runtime's Python package has no bfloat16 arrays."""
    nodes = [
        helper.make_node("Cast", ["x"], ["a"], to=TensorProto.BFLOAT16),
        node("Scale", ["a"], ["b"], factor=1.7),
        helper.make_node("Cast", ["b"], ["y"], to=TensorProto.FLOAT),
    ]
    model = make_model(nodes, [tensor("x", ["N", 4])], [tensor("y", None)])
    x = np.array([[1, 1.5, -3, 100]], np.float32)
    expected = (x.astype(ml_dtypes.bfloat16).astype(np.float32) * np.float32(1.7)).astype(
        ml_dtypes.bfloat16
    )
    np.testing.assert_array_equal(
        make_session(model).run(None, {"x": x})[0], expected.astype(np.float32)
    )


def test_a_dtype_that_the_op_lacks():
    with pytest.raises(Exception, match=r"(tensor\(int32\).*|implementation for )Tanh"):
        make_session(one_node("Tanh", dtype=TensorProto.INT32))


@pytest.mark.parametrize("threads", [1, 4])
def test_numbers_are_the_same_on_any_number_of_threads(threads):
    options = make_options()
    options.intra_op_num_threads = threads
    x = np.random.default_rng(0).standard_normal((1000, 1001)).astype(np.float32)
    y = make_session(one_node("Relu", ("N", "M")), options).run(None, {"x": x})[0]
    np.testing.assert_array_equal(y, relu(x))


def test_wrong_shapes_are_named():
    nodes = [node("BiasRelu", ["x", "bias"], ["y"])]
    model = make_model(nodes, [tensor("x", ["N", "c"]), tensor("bias", ["k"])], [tensor("y", None)])
    session = make_session(model)
    with pytest.raises(Exception, match="bias_relu: dimension c is 4 in x but 3 in bias"):
        session.run(None, {"x": X, "bias": np.zeros(3, np.float32)})
    # The session still works.
    y = session.run(None, {"x": X, "bias": np.zeros(4, np.float32)})[0]
    np.testing.assert_array_equal(y, relu(X))


@pytest.mark.parametrize("other", [(8, 2), (16,), (2, 2, 4), (2, 7)])
def test_shapes_that_differ_are_named(other):
    """Also shapes with the same number of elements, for which every access would be in bounds."""
    nodes = [node("Add", ["a", "b"], ["c"])]
    session = make_session(
        make_model(nodes, [tensor("a", None), tensor("b", None)], [tensor("c", None)])
    )
    a = np.ones((2, 8), np.float32)
    with pytest.raises(Exception, match=r"add: dimensions \* are \[2, 8\] in a but \["):
        session.run(None, {"a": a, "b": np.ones(other, np.float32)})
    np.testing.assert_array_equal(session.run(None, {"a": a, "b": a})[0], a + a)


def test_too_many_dimensions_are_refused():
    """The tensor is an intermediate one, since NumPy also has at most 64 dimensions."""
    nodes = [
        helper.make_node("Reshape", ["x", "shape"], ["many"]),
        node("Relu", ["many"], ["y"]),
    ]
    inputs = [tensor("x", None), tensor("shape", ["rank"], TensorProto.INT64)]
    session = make_session(make_model(nodes, inputs, [tensor("y", None)]))
    with pytest.raises(Exception, match="has 65 dimensions"):
        session.run(None, {"x": np.ones(1, np.float32), "shape": np.ones(65, np.int64)})


def test_a_wrong_rank_is_named():
    model = make_model(
        [node("KnnQuery", ["x", "o"], ["i", "d"])],
        [tensor("x", None), tensor("o", ["b"], TensorProto.INT32)],
        [tensor("i", None, TensorProto.INT32), tensor("d", None)],
    )
    with pytest.raises(Exception, match=r"knn_query: xyz must be \[n, 3\], not \[3\]"):
        make_session(model).run(None, {"x": XYZ[0], "o": OFFSET})


def test_wrong_offsets_are_named():
    model = make_model(
        [node("KnnQuery", ["x", "o"], ["i", "d"])],
        [tensor("x", ["n", 3]), tensor("o", ["b"], TensorProto.INT32)],
        [tensor("i", None, TensorProto.INT32), tensor("d", None)],
    )
    with pytest.raises(Exception, match=r"knn_query: offset\[0\] is 9, which exceeds dimension n"):
        make_session(model).run(None, {"x": XYZ, "o": np.array([9], np.int32)})
