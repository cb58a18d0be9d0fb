"""The custom-op library in ONNX Runtime, except for the results of the ops (test_ops.py)."""

from __future__ import annotations

import _ctypes
import ctypes
import gc
import itertools
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

import cudarelu.ort
from cudarelu.testing import DTYPES as ALL_DTYPES
from cudarelu.testing import Case, assert_close, cases, reference
from cudarelu.testing.cases import attribute_values
from cudarelu.testing.environment import ort_cuda_missing
from cudarelu.testing.hosts import one_op_model
from support.cases import tier
from support.models import OTHER, both_libraries, make_model, make_options, node, one_node, tensor
from support.ort_infer import BUILD

MINOR = int(ort.__version__.split(".")[1])  # this file also runs with old ONNX Runtimes
NAN = float("nan")
X = np.array([[-1, 2, NAN, -0.0], [0.5, -3, 4, 0]], np.float32)
DTYPES = {
    "float16": (TensorProto.FLOAT16, np.float16),
    "float32": (TensorProto.FLOAT, np.float32),
    "float64": (TensorProto.DOUBLE, np.float64),
    "int32": (TensorProto.INT32, np.int32),
}


def make_session(model: bytes, options: ort.SessionOptions | None = None) -> ort.InferenceSession:
    return ort.InferenceSession(
        model, options or make_options(), providers=["CPUExecutionProvider"]
    )


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


def check_both_libraries(options: ort.SessionOptions) -> None:
    ours, theirs = make_session(both_libraries(), options).run(None, {"x": X})
    np.testing.assert_array_equal(ours, relu(X))
    np.testing.assert_array_equal(theirs, -X)


def registered_domains(options: ort.SessionOptions) -> list[str]:
    return options.get_session_config_entry("cudarelu.registered").split(",")


@pytest.mark.parametrize("by_path", [False, True])
def test_the_domain_of_an_alias_is_left_to_a_library_that_comes_first(by_path):
    options = ort.SessionOptions()
    options.register_custom_ops_library(OTHER)
    if MINOR < 23:  # it does not report the registered domains
        cudarelu.ort.register(options, alias_domains=[])
    elif by_path:
        options.register_custom_ops_library(cudarelu.ort.library_path())
    else:
        cudarelu.ort.register(options)
    ours = ["cudarelu"] if MINOR < 23 else ["cudarelu", "custom"]  # without custom_domain
    assert registered_domains(options) == ours
    check_both_libraries(options)


@pytest.mark.parametrize("by_path", [False, True])
def test_the_domain_of_an_alias_is_left_to_a_library_that_comes_last(by_path):
    options = ort.SessionOptions()
    if by_path:
        options.add_session_config_entry("cudarelu.alias_domains", "")
        options.register_custom_ops_library(cudarelu.ort.library_path())
    else:
        cudarelu.ort.register(options, alias_domains=())
    options.register_custom_ops_library(OTHER)
    assert registered_domains(options) == ["cudarelu"]
    check_both_libraries(options)


def test_alias_domains_that_are_asked_for():
    options = cudarelu.ort.register(ort.SessionOptions(), alias_domains={"custom_domain"})
    assert registered_domains(options) == ["cudarelu", "custom_domain"]
    ours, alias = make_session(both_libraries(), options).run(None, {"x": X})
    np.testing.assert_array_equal(ours, relu(X))
    np.testing.assert_array_equal(alias, relu(X))


def test_alias_domains_that_there_are_not():
    with pytest.raises(Exception, match="has no alias domain mine; it has custom, custom_domain"):
        cudarelu.ort.register(ort.SessionOptions(), alias_domains=["custom_domain", "mine"])
    with pytest.raises(TypeError, match="not the string 'custom_domain'"):
        cudarelu.ort.register(ort.SessionOptions(), alias_domains="custom_domain")


def test_registration_leaves_no_trace_and_no_log(tmp_path, monkeypatch, capfd):
    """Registration creates a session internally, to find out which domains the options have."""
    monkeypatch.chdir(tmp_path)
    options = ort.SessionOptions()
    options.enable_profiling = True
    options.log_severity_level = 0
    options.register_custom_ops_library(OTHER)
    cudarelu.ort.register(options)
    assert list(tmp_path.iterdir()) == []
    assert capfd.readouterr() == ("", "")


def test_alone_it_sets_nothing_up_before_the_first_session(tmp_path):
    """The first session sets up the process according to its options, such as denormals as zero;
    registration of this library alone must not create a session before."""
    script = """
import sys
import numpy as np
import onnxruntime as ort

model, library = sys.argv[1:]
options = ort.SessionOptions()
options.register_custom_ops_library(library)
options.add_session_config_entry("session.set_denormal_as_zero", "1")
session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
print(session.run(None, {"x": np.full((2, 4), 1e-40, np.float32)})[0].any())
"""
    model = tmp_path / "model.onnx"
    nodes = [helper.make_node("Add", ["x", "x"], ["y"])]
    model.write_bytes(make_model(nodes, [tensor("x", ["N", 4])], [tensor("y", ["N", 4])]))
    command = [sys.executable, "-c", script, str(model), cudarelu.ort.library_path()]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.stdout == "False\n", done.stderr


@pytest.mark.slow
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


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_products_by_the_runtimes_own(dtype):
    """Our kernels call ONNX Runtime's MatMul and Gemm, here from many threads."""
    onnx_type, numpy_type = DTYPES[dtype]
    rng = np.random.default_rng(0)
    shapes = {"x": (2, 6, 7), "w": (5, 7), "b": (5,), "z": (2, 7, 3)}
    feeds = {name: rng.integers(-4, 5, shape).astype(numpy_type) for name, shape in shapes.items()}
    nodes = [
        node("LinearRelu", ["x", "w", "b"], ["with_bias"]),
        node("Linear", ["x", "w"], ["without"]),
        node("Matmul", ["x", "z"], ["batched"]),
        node("MatmulTn", ["z", "z"], ["transposed"]),
    ]
    inputs = [tensor(name, shape, onnx_type) for name, shape in shapes.items()]
    outputs = [tensor(each.output[0], None, onnx_type) for each in nodes]
    session = make_session(make_model(nodes, inputs, outputs))
    x, w, b, z = feeds.values()
    product = x @ w.T
    expected = [np.maximum(product + b, 0), product, x @ z, z.swapaxes(1, 2) @ z]
    with ThreadPoolExecutor(4) as pool:
        for results in pool.map(lambda _: session.run(None, feeds), range(16)):
            for actual, wanted in zip(results, expected, strict=True):
                np.testing.assert_array_equal(actual, wanted)  # sums of integers are exact


def test_register_returns_the_options():
    options = ort.SessionOptions()
    assert cudarelu.ort.register(options) is options


def test_every_op_and_alias_is_registered():
    """The error for a node without inputs concerns its inputs, so its name is known."""
    names = [(op.onnx.domain, op.onnx.op_type) for op in cudarelu.ops()]
    aliases = [op.onnx.alias for op in cudarelu.ops() if op.onnx.alias]
    assert ("custom_domain", "CustomRelu") in aliases
    for domain, op_type in names + aliases:
        model = make_model([node(op_type, [], ["y"], domain)], [], [tensor("y", None)])
        with pytest.raises(Exception, match="not in range"):
            make_session(model)


def test_unloaded_and_loaded_again(tmp_path):
    """A session is created after earlier ones have released the library. The library stays mapped,
    once."""
    copy = shutil.copy(cudarelu.ort.library_path(), tmp_path / "copy.so")
    for _ in range(3):
        options = ort.SessionOptions()
        options.register_custom_ops_library(str(copy))
        session = make_session(one_node("Relu"), options)
        np.testing.assert_array_equal(session.run(None, {"x": X})[0], relu(X))
        del session, options
        gc.collect()
        for _ in range(3):
            _ctypes.dlclose(ctypes.CDLL(copy)._handle)
    maps = Path("/proc/self/maps").read_text().splitlines()
    assert sum("r-xp" in line and str(copy) in line for line in maps) == 1


def registration_status(version: str, newest_api: int) -> str | None:
    """The library's answer to a fake ONNX Runtime that has the API up to `newest_api`."""
    messages = []

    def create_status(_code, message):
        messages.append(message.decode())
        return 1

    create = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p)(create_status)
    api = (ctypes.c_void_p * 1000)(ctypes.cast(create, ctypes.c_void_p))  # it comes first
    get_api = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_uint32)(
        lambda number: ctypes.addressof(api) if number <= newest_api else None
    )
    text = ctypes.create_string_buffer(version.encode())
    get_version = ctypes.CFUNCTYPE(ctypes.c_void_p)(lambda: ctypes.addressof(text))
    base = (ctypes.c_void_p * 2)(
        ctypes.cast(get_api, ctypes.c_void_p), ctypes.cast(get_version, ctypes.c_void_p)
    )
    register = ctypes.CDLL(cudarelu.ort.library_path()).RegisterCustomOps
    register.restype = ctypes.c_void_p
    assert register(None, base) == (1 if messages else None)
    return messages[0] if messages else None


@pytest.mark.parametrize(
    ("version", "newest_api"),
    [
        ("1.15.1", 15),
        ("0.5.0", 1),
        ("2.0.0", 40),
        ("1.", 40),
        ("made up", 40),
        ("", 40),
        ("1.20.0", 19),  # lacks the API of its version
    ],
)
def test_a_runtime_that_is_not_served_is_named(version, newest_api):
    assert registration_status(version, newest_api) == (
        f"cudarelu needs ONNX Runtime 1.16 or a later 1.x, but this is {version}"
    )


def test_a_runtime_without_any_api():
    assert registration_status("1.20.0", 0) is None


# Shapes when the model is loaded

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


# In place

IN_PLACE = [op for op in cudarelu.ops() if op.in_place]
every_in_place_op = pytest.mark.parametrize(
    "op", [pytest.param(op, id=op.name, marks=tier(op.name)) for op in IN_PLACE]
)


def probe_library() -> ctypes.CDLL:
    """The library of probe::Neg, which computes -x and records the addresses of its tensors."""
    return ctypes.CDLL(str(BUILD / "libcudarelu_ort_probe.so"))


def values_of(op) -> dict[str, np.ndarray]:
    """A float32 array for each input; `*` is 64 rows."""
    rng = np.random.default_rng(0)
    sizes = [[64 if dim == "*" else 4 for dim in p.dims] for p in op.inputs]
    arrays = [rng.standard_normal(shape).astype(np.float32) for shape in sizes]
    return dict(zip([p.name for p in op.inputs], arrays, strict=True))


def run_between_probes(op, symbolic: bool, make=make_session, others=(), outputs=("result",)):
    """Runs probe::Neg -> op -> probe::Neg, connected by the input that the op may overwrite.
    Returns the addresses of this input and of the op's output, and the results."""
    library = probe_library()
    target, source = op.in_place.split(" = ")
    nodes = [
        node("Neg", [source], ["before"], "probe"),
        node(
            op.onnx.op_type,
            ["before" if p.name == source else p.name for p in op.inputs],
            ["after" if p.name == target else f"{p.name}_out" for p in op.outputs],
            **attribute_values(op, "default"),
        ),
        node("Neg", ["after"], ["result"], "probe"),
        *others,
    ]
    values = values_of(op)
    dims = {p.name: [("N" if dim == "*" else dim) for dim in p.dims] for p in op.inputs}
    shapes = {name: dims[name] if symbolic else array.shape for name, array in values.items()}
    model = make_model(
        nodes,
        [tensor(name, shape) for name, shape in shapes.items()],
        [tensor(name, None) for name in outputs],
        value_info=[tensor("before", shapes[source])],
    )
    options = make_options()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.register_custom_ops_library(library._name)
    results = make(model, options).run(list(outputs), values)
    addresses = (ctypes.c_void_p * 4)()
    assert library.take_addresses(addresses, 4) == 4
    return addresses[1], addresses[2], results


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


# Aliases with inputs of their own

POINTS = np.random.default_rng(0).standard_normal((9, 3)).astype(np.float32)
CLOUD = {
    "xyz": POINTS,
    "offset": np.array([4, 9], np.int32),
    "new_xyz": POINTS[2:7] / 2,
    "new_offset": np.array([2, 5], np.int32),
}
CELLS = {"pos": POINTS, "size": np.float32([0.5, 1, 2]), "start": np.float32([-2, -2, -2])}
CELLS["end"] = np.float32([1, 1, 1])
OUTPUTS = {"idx": TensorProto.INT32, "distance": TensorProto.FLOAT, "cluster": TensorProto.INT64}


def run_node(
    domain: str, op_type: str, inputs, outputs, constants=(), make=make_options, **attributes
):
    """Runs one node. A name in `constants` is an initializer, an input of None is absent."""
    names = [name if array is not None else "" for name, array in inputs.items()]
    arrays = {name: array for name, array in inputs.items() if array is not None}
    model = onnx.ModelProto.FromString(
        make_model(
            [node(op_type, names, outputs, domain, **attributes)],
            [
                tensor(name, array.shape, helper.np_dtype_to_tensor_dtype(array.dtype))
                for name, array in arrays.items()
                if name not in constants
            ],
            [tensor(name, None, OUTPUTS[name]) for name in outputs],
        )
    )
    for name in constants:
        model.graph.initializer.append(onnx.numpy_helper.from_array(arrays.pop(name), name))
    session = make_session(model.SerializeToString(), make())
    return session.run(None, arrays)


def run_knnquery(nsample, cloud=CLOUD, constants=(), **options):
    inputs = {"nsample": nsample, **cloud}
    return run_node("custom", "knnquery", inputs, ["idx", "distance"], constants, **options)


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


# Tensors


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


# CUDA


@pytest.fixture
def cuda_session():
    if reason := ort_cuda_missing():
        pytest.skip(reason)

    def make(model: bytes, options=None, **provider_options) -> ort.InferenceSession:
        options = options or make_options()
        options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
        return ort.InferenceSession(
            model, options, providers=[("CUDAExecutionProvider", provider_options)]
        )

    return make


def test_cuda_keeps_to_the_stream(cuda_session):
    """A long chain of our nodes and ONNX Runtime's own, with tensors that take some time to
    fill."""
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
    """sum_rows stores partial sums in memory of ONNX Runtime's arena."""
    model = make_model(
        [node("SumRows", ["x"], ["y"])], [tensor("x", ["N", "c"])], [tensor("y", None)]
    )
    session = cuda_session(model)
    for rows in (0, 1, 100_000):
        x = np.ones((rows, 33), np.float32)
        np.testing.assert_array_equal(session.run(None, {"x": x})[0], np.full(33, rows, np.float32))


def test_cuda_workspace_that_cannot_be_had_is_a_status(cuda_session):
    """The arena has enough memory for the input, but not for the partial sums, which take 2 KiB for
    each multiprocessor."""
    rows, columns = 1 << 15, 128
    model = make_model(
        [node("SumRows", ["x"], ["y"])], [tensor("x", ["N", columns])], [tensor("y", [columns])]
    )
    x = np.ones((rows, columns), np.float32)
    session = cuda_session(
        model, gpu_mem_limit=x.nbytes + (1 << 15), arena_extend_strategy="kSameAsRequested"
    )
    with pytest.raises(Exception, match=r"sum_rows: cannot allocate \d+ bytes of workspace"):
        session.run(None, {"x": x})
    few = session.run(None, {"x": x[:10]})[0]
    np.testing.assert_array_equal(few, np.full(columns, 10, np.float32))


@every_in_place_op
def test_cuda_in_place(cuda_session, op):
    before, after, _ = run_between_probes(op, symbolic=True, make=cuda_session)
    assert before == after


@pytest.mark.parametrize("shape", [(0, 4), (5, 4)])
def test_cuda_in_many_threads(cuda_session, shape):
    session = cuda_session(one_node("Relu"))
    x = np.full(shape, -1, np.float32)
    with ThreadPoolExecutor(4) as pool:
        for y in pool.map(lambda _: session.run(None, {"x": x})[0], range(20)):
            np.testing.assert_array_equal(y, np.zeros(shape, np.float32))


def test_cuda_workspace_is_of_one_stream(cuda_session):
    """Concurrent runs have different streams, but share the arena."""
    nodes = [node("SumRows", ["x"], ["y"])]
    session = cuda_session(make_model(nodes, [tensor("x", ["N", 33])], [tensor("y", [33])]))

    def sums(value):
        x = np.full((50_000, 33), value, np.float32)
        return [session.run(None, {"x": x})[0] for _ in range(5)]

    with ThreadPoolExecutor(4) as pool:
        for value, results in enumerate(pool.map(sums, range(8))):
            for y in results:
                np.testing.assert_array_equal(y, np.full(33, 50_000 * value, np.float32))


@pytest.mark.parametrize("constant", [False, True])
def test_cuda_reads_an_attribute_in_host_memory(cuda_session, constant):
    """The value is computed on the device, or is constant."""
    nodes = [
        helper.make_node("Add", ["half", "half"], ["sum"]),
        node("knnquery", ["half" if constant else "sum", "xyz", "offset"], ["idx", "d"], "custom"),
    ]
    model = onnx.ModelProto.FromString(
        make_model(
            nodes[constant:],
            [tensor("half", [1], TensorProto.INT64)] * (not constant)
            + [tensor("xyz", ["n", 3]), tensor("offset", ["b"], TensorProto.INT32)],
            [tensor("idx", None, TensorProto.INT32), tensor("d", None)],
        )
    )
    feeds = {"xyz": POINTS, "offset": CLOUD["offset"]}
    if constant:
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.array([4]), "half"))
    else:
        feeds["half"] = np.array([2])
    cloud = {"xyz": POINTS, "offset": CLOUD["offset"]}
    expected = run_knnquery(np.array(4), cloud)
    found = cuda_session(model.SerializeToString()).run(None, feeds)
    np.testing.assert_array_equal(found[0], expected[0])
    np.testing.assert_allclose(found[1], expected[1], rtol=1e-6)


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


def test_a_build_without_onnx_runtime_is_named(monkeypatch):
    monkeypatch.setattr(cudarelu._build_info, "ORT", False)
    with pytest.raises(FileNotFoundError, match="CUDARELU_ORT=ON"):
        cudarelu.ort.library_path()
