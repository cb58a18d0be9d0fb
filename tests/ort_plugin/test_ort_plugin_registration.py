"""The custom-op library in ONNX Runtime: its registration."""

from __future__ import annotations

import _ctypes
import ctypes
import gc
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper

import cudarelu.ort
from support.models import OTHER, both_libraries, make_model, make_options, node, one_node, tensor
from support.ort_plugin import DTYPES, MINOR, X, make_session, relu


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
