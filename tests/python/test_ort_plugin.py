"""The custom-op library in ONNX Runtime: what is not the numbers, which test_ops.py holds."""

from __future__ import annotations

import itertools
import json
import shutil
from concurrent.futures import ThreadPoolExecutor

import ml_dtypes
import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

import cudarelu.ort
from environment import ort_cuda_missing

NAN = float("nan")
X = np.array([[-1, 2, NAN, -0.0], [0.5, -3, 4, 0]], np.float32)
DTYPES = {
    "float16": (TensorProto.FLOAT16, np.float16),
    "float32": (TensorProto.FLOAT, np.float32),
    "float64": (TensorProto.DOUBLE, np.float64),
    "int32": (TensorProto.INT32, np.int32),
}


def tensor(name: str, shape, dtype: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, shape)


def node(op_type: str, inputs: list[str], outputs: list[str], domain="cudarelu", **attributes):
    return helper.make_node(op_type, inputs, outputs, domain=domain, **attributes)


def make_model(nodes, inputs, outputs, functions=()) -> bytes:
    domains = {"": 18, "cudarelu": 1, "custom_domain": 1}
    opsets = [helper.make_opsetid(domain, version) for domain, version in domains.items()]
    graph = helper.make_graph(nodes, "test", inputs, outputs)
    model = helper.make_model(graph, ir_version=10, opset_imports=opsets, functions=functions)
    return model.SerializeToString()


def make_options() -> ort.SessionOptions:
    options = ort.SessionOptions()
    options.log_severity_level = 4  # the errors are looked at where they are raised
    return cudarelu.ort.register(options)


def make_session(model: bytes, options: ort.SessionOptions | None = None) -> ort.InferenceSession:
    return ort.InferenceSession(
        model, options or make_options(), providers=["CPUExecutionProvider"]
    )


def one_node(op_type: str, x_shape=("N", 4), dtype=TensorProto.FLOAT, **attributes) -> bytes:
    nodes = [node(op_type, ["x"], ["y"], **attributes)]
    return make_model(nodes, [tensor("x", x_shape, dtype)], [tensor("y", None, dtype)])


def run_one(op_type: str, x: np.ndarray = X, **attributes) -> np.ndarray:
    dtype = helper.np_dtype_to_tensor_dtype(x.dtype)
    model = one_node(op_type, [None] * x.ndim, dtype, **attributes)
    return make_session(model).run(None, {"x": x})[0]


def relu(x: np.ndarray) -> np.ndarray:
    return np.where(x < 0, np.zeros_like(x), x)


# Registration


@pytest.mark.parametrize(
    ("domain", "op_type"), [("cudarelu", "Relu"), ("custom_domain", "CustomRelu")]
)
def test_both_domains(domain, op_type):
    nodes = [node(op_type, ["x"], ["y"], domain)]
    model = make_model(nodes, [tensor("x", ["N", 4])], [tensor("y", ["N", 4])])
    np.testing.assert_array_equal(make_session(model).run(None, {"x": X})[0], relu(X))


def test_both_domains_in_one_model():
    nodes = [
        node("Relu", ["x"], ["z"]),
        node("CustomRelu", ["z"], ["y"], "custom_domain"),
    ]
    model = make_model(nodes, [tensor("x", ["N", 4])], [tensor("y", None)])
    np.testing.assert_array_equal(make_session(model).run(None, {"x": X})[0], relu(X))


def test_registered_twice():
    options = cudarelu.ort.register(make_options())
    np.testing.assert_array_equal(
        make_session(one_node("Relu"), options).run(None, {"x": X})[0], relu(X)
    )


def test_registered_by_two_copies_of_the_library(tmp_path):
    copy = shutil.copy(cudarelu.ort.library_path(), tmp_path / "copy.so")
    options = make_options()
    options.register_custom_ops_library(str(copy))
    np.testing.assert_array_equal(
        make_session(one_node("Relu"), options).run(None, {"x": X})[0], relu(X)
    )


def test_many_sessions_in_many_threads():
    model = one_node("LeakyRelu", negative_slope=0.5)

    def run(i: int) -> np.ndarray:
        return make_session(model).run(None, {"x": X + i})[0]

    with ThreadPoolExecutor(8) as pool:
        for i, y in enumerate(pool.map(run, range(50))):
            np.testing.assert_array_equal(y, np.where(X + i > 0, X + i, (X + i) * np.float32(0.5)))


def test_one_session_in_many_threads():
    session = make_session(one_node("Softmax", ("N", "M")))
    x = np.random.default_rng(0).standard_normal((64, 1000)).astype(np.float32)
    expected = session.run(None, {"x": x})[0]
    with ThreadPoolExecutor(8) as pool:
        for y in pool.map(lambda _: session.run(None, {"x": x})[0], range(50)):
            np.testing.assert_array_equal(y, expected)


def test_register_returns_the_options():
    options = ort.SessionOptions()
    assert cudarelu.ort.register(options) is options


def test_every_op_and_alias_is_registered():
    """A node without inputs is refused for its inputs, not for its name."""
    names = [(op.onnx.domain, op.onnx.op_type) for op in cudarelu.ops()]
    for domain, op_type in [*names, ("custom_domain", "CustomRelu")]:
        model = make_model([node(op_type, [], ["y"], domain)], [], [tensor("y", None)])
        with pytest.raises(Exception, match="not in range"):
            make_session(model)


# Shapes when the model is loaded


@pytest.mark.parametrize("shape", [["N", 4], ["N", "M"], [2, "M", 3], [2, 3]])
def test_shapes_are_inferred_and_symbols_kept(shape):
    assert make_session(one_node("Relu", shape)).get_outputs()[0].shape == shape


def test_inference_without_what_it_needs():
    """An unknown rank, a scalar and a size without a name are left open, and the model runs."""
    for shape, x in ((None, X), ([], np.array(-1, np.float32)), ([None, 4], X)):
        session = make_session(one_node("Relu", shape))
        assert session.get_outputs()[0].shape == []  # as Python shows an unknown shape
        np.testing.assert_array_equal(session.run(None, {"x": x})[0], relu(x))


def test_sizes_without_a_name_are_not_taken_for_equal():
    """Had they been, the sum would be written over the smaller of its operands."""
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
    assert [o.shape for o in make_session(model).get_outputs()] == [["m", 5], ["m", 5]]


def test_a_declared_shape_that_is_wrong_does_not_stop_the_model():
    nodes = [node("Relu", ["x"], ["y"])]
    model = make_model(nodes, [tensor("x", ["N", 4])], [tensor("y", ["N", 5])])
    np.testing.assert_array_equal(make_session(model).run(None, {"x": X})[0], relu(X))


# In place


def allocated_by(nodes, x_shape, tmp_path) -> dict[str, int]:
    """The bytes that each node asked ONNX Runtime's arena for, by the trace of a run."""
    options = make_options()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.enable_profiling = True
    options.profile_file_prefix = str(tmp_path / "trace")
    model = make_model(nodes, [tensor("x", x_shape)], [tensor("y", None)])
    session = make_session(model, options)
    session.run(None, {"x": np.ones((64, 4), np.float32)})
    with open(session.end_profiling()) as file:
        events = json.load(file)
    key = "mem_requested_in_use_delta"
    arguments = {e["name"]: e["args"] for e in events if e["name"].endswith("_kernel_time")}
    if not all(key in args for args in arguments.values()):
        pytest.skip(f"the trace of ONNX Runtime {ort.__version__} does not tell allocations")
    return {name.removesuffix("_kernel_time"): int(args[key]) for name, args in arguments.items()}


@pytest.mark.parametrize("x_shape", [[64, 4], ["N", 4]])
def test_in_place(x_shape, tmp_path):
    nodes = [
        helper.make_node("Neg", ["x"], ["a"], name="first"),
        node("Relu", ["a"], ["b"], name="op"),
        helper.make_node("Neg", ["b"], ["y"], name="last"),
    ]
    allocated = allocated_by(nodes, x_shape, tmp_path)
    assert allocated["first"] >= 64 * 4 * 4
    assert allocated["op"] == 0


def test_not_in_place_where_another_node_reads_the_input(tmp_path):
    nodes = [
        helper.make_node("Neg", ["x"], ["a"], name="first"),
        node("Relu", ["a"], ["b"], name="op"),
        helper.make_node("Add", ["a", "b"], ["y"], name="last"),
    ]
    assert allocated_by(nodes, ["N", 4], tmp_path)["op"] >= 64 * 4 * 4


def test_not_in_place_over_the_caller(tmp_path):
    x = X.copy()
    make_session(one_node("Relu")).run(None, {"x": x})
    np.testing.assert_array_equal(x, X)


# Optional inputs


XYZ = np.random.default_rng(0).random((7, 3)).astype(np.float32)
OFFSET = np.array([3, 7], np.int32)


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


# Tensors


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
    """Between casts, since ONNX Runtime's Python has no bfloat16 arrays of its own."""
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
    with pytest.raises(Exception, match=r"tensor\(int32\).*Tanh"):
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
    # The session goes on.
    y = session.run(None, {"x": X, "bias": np.zeros(4, np.float32)})[0]
    np.testing.assert_array_equal(y, relu(X))


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
    with pytest.raises(Exception, match=r"knn_query: offset\[0\] is 9, over dimension n"):
        make_session(model).run(None, {"x": XYZ, "o": np.array([9], np.int32)})


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


def test_a_required_attribute_that_is_missing():
    with pytest.raises(Exception, match="relu_scale: attribute scale is missing"):
        run_one("ReluScale")


# CUDA


@pytest.fixture
def cuda_session():
    if reason := ort_cuda_missing():
        pytest.skip(reason)

    def make(model: bytes) -> ort.InferenceSession:
        options = make_options()
        options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
        return ort.InferenceSession(model, options, providers=["CUDAExecutionProvider"])

    return make


def test_cuda_keeps_to_the_stream(cuda_session):
    """A long chain between ONNX Runtime's own nodes, of tensors that take a while to fill."""
    names = [f"t{i}" for i in range(41)]
    nodes = [
        helper.make_node("Neg", [a], [b]) if i % 2 else node("Scale", [a], [b], factor=-1.0)
        for i, (a, b) in enumerate(itertools.pairwise(names))
    ]
    model = make_model(nodes, [tensor(names[0], ["N"])], [tensor(names[-1], None)])
    session = cuda_session(model)
    for seed in range(3):
        x = np.random.default_rng(seed).standard_normal(1 << 22).astype(np.float32)
        np.testing.assert_array_equal(session.run(None, {names[0]: x})[0], x)


def test_cuda_workspace(cuda_session):
    """sum_rows puts partial sums into memory of ONNX Runtime's arena."""
    model = make_model(
        [node("SumRows", ["x"], ["y"])], [tensor("x", ["N", "c"])], [tensor("y", None)]
    )
    session = cuda_session(model)
    for rows in (0, 1, 100_000):
        x = np.ones((rows, 33), np.float32)
        np.testing.assert_array_equal(session.run(None, {"x": x})[0], np.full(33, rows, np.float32))


@pytest.mark.parametrize("shape", [(0, 4), (5, 4)])
def test_cuda_in_many_threads(cuda_session, shape):
    session = cuda_session(one_node("Relu"))
    x = np.full(shape, -1, np.float32)
    with ThreadPoolExecutor(4) as pool:
        for y in pool.map(lambda _: session.run(None, {"x": x})[0], range(20)):
            np.testing.assert_array_equal(y, np.zeros(shape, np.float32))


def test_cuda_workspace_is_of_one_stream(cuda_session):
    """Runs at the same time have streams of their own, and share the arena."""
    nodes = [node("SumRows", ["x"], ["y"])]
    session = cuda_session(make_model(nodes, [tensor("x", ["N", 33])], [tensor("y", [33])]))

    def sums(value):
        x = np.full((50_000, 33), value, np.float32)
        return [session.run(None, {"x": x})[0] for _ in range(5)]

    with ThreadPoolExecutor(4) as pool:
        for value, results in enumerate(pool.map(sums, range(8))):
            for y in results:
                np.testing.assert_array_equal(y, np.full(33, 50_000 * value, np.float32))


def test_cuda_says_what_is_wrong(cuda_session):
    nodes = [node("BiasRelu", ["x", "bias"], ["y"])]
    model = make_model(nodes, [tensor("x", ["N", "c"]), tensor("bias", ["k"])], [tensor("y", None)])
    with pytest.raises(Exception, match="bias_relu: dimension c is 4 in x but 3 in bias"):
        cuda_session(model).run(None, {"x": X, "bias": np.zeros(3, np.float32)})


# The library and the model's own definition


def test_the_library_beats_the_function_body():
    """The body would give zeros."""
    body = onnx.parser.parse_function(
        '<domain: "custom_domain", opset_import: ["" : 18]> CustomRelu (x) => (y) { y = Sub(x, x) }'
    )
    nodes = [node("CustomRelu", ["x"], ["y"], "custom_domain")]
    model = make_model(nodes, [tensor("x", ["N", 4])], [tensor("y", None)], [body])
    x = np.array([[-1, 2, 3, -4]], np.float32)
    alone = ort.InferenceSession(model, providers=["CPUExecutionProvider"])
    np.testing.assert_array_equal(alone.run(None, {"x": x})[0], np.zeros_like(x))
    np.testing.assert_array_equal(make_session(model).run(None, {"x": x})[0], relu(x))


def test_a_missing_library_is_named(monkeypatch, tmp_path):
    monkeypatch.setattr(cudarelu._build_info, "__file__", str(tmp_path / "_build_info.py"))
    with pytest.raises(FileNotFoundError, match="CUDARELU_ORT=ON"):
        cudarelu.ort.library_path()
