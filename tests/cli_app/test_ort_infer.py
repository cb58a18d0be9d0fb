"""The executable ort_infer, as a process. test_ops.py tests the results of all ops."""

from __future__ import annotations

import os
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

from cudarelu.testing.environment import ort_cuda_missing
from support.cases import slow_after
from support.ort_infer import (
    BUILD,
    BUILT,
    ORT_INFER,
    X,
    array_of,
    fail,
    identity,
    make_model,
    relu,
    succeed,
    succeed_json,
    tensor,
)

pytestmark = [BUILT, pytest.mark.usefixtures("model_folder")]


# Runs


def test_text():
    text = succeed("model.onnx", "--provider", "cpu", "--input", "x=x.npy")
    assert f"ONNX Runtime {onnxruntime.__version__}" in text
    assert "provider  cpu\n" in text
    assert "sizes     N=2" in text
    assert f"input x: float32 [2, 4], x.npy\n{X}\n" in text
    assert f"output y: float32 [2, 4]\n{np.where(X < 0, 0, X)}\n" in text
    assert "1 x custom_domain::CustomRelu on CPUExecutionProvider" in text


def test_json():
    report = succeed_json("model.onnx", "--provider", "cpu", "--input", "x=x.npy")
    assert report["provider"] == "cpu"
    assert report["runtime"]["version"] == onnxruntime.__version__
    assert Path(report["runtime"]["library"]).exists()
    assert report["sizes"] == {"N": 2}
    (given,), (output,), (node,) = report["inputs"], report["outputs"], report["nodes"]
    assert (given["name"], given["dtype"], given["shape"]) == ("x", "float32", [2, 4])
    assert given["file"] == "x.npy"
    assert (output["name"], output["dtype"], output["file"]) == ("y", "float32", None)
    np.testing.assert_array_equal(array_of(output), np.where(X < 0, 0, X))
    assert output["values"][2] == "nan"
    assert (node["domain"], node["op_type"]) == ("custom_domain", "CustomRelu")
    assert node["provider"] == "CPUExecutionProvider"


def test_output_files():
    report = succeed_json("model.onnx", "--input", "x=x.npy", "--output-dir", "a/b")
    assert report["outputs"][0]["file"] == "a/b/y.npy"
    y = np.load("a/b/y.npy")
    assert y.dtype == np.float32
    np.testing.assert_array_equal(y, np.where(X < 0, 0, X))
    assert os.listdir("a/b") == ["y.npy"]


def test_output_names_become_file_names():
    nodes = [helper.make_node("Neg", ["x"], [name]) for name in ("../a/b", ".._a_b", ".c d")]
    outputs = [tensor(node.output[0], ["N", 4]) for node in nodes]
    onnx.save(make_model(nodes, [tensor("x", ["N", 4])], outputs), "model.onnx")
    succeed("model.onnx", "--input", "x=x.npy", "--output-dir", "out")
    assert sorted(os.listdir("out")) == ["_._a_b.npy", "_._a_b_.npy", "_c_d.npy"]


def test_random_inputs_are_seeded():
    def values(*arguments) -> list:
        return succeed_json("model.onnx", *arguments)["inputs"][0]["values"]

    assert values() == values("--seed", 0)
    assert values() != values("--seed", 1)
    assert len(values()) == 16
    assert all(-1 <= value < 1 for value in values("--dim", "N=50"))


@pytest.mark.parametrize("size", [0, 1, 32])
def test_dim(size):
    report = succeed_json("model.onnx", "--dim", f"N={size}")
    assert report["sizes"] == {"N": size}
    assert report["outputs"][0]["shape"] == [size, 4]


def test_a_file_fixes_the_sizes_of_the_other_inputs():
    node = helper.make_node("Add", ["a", "b"], ["c"], domain="cudarelu")
    inputs = [tensor("a", ["N", 4]), tensor("b", ["N", 4])]
    onnx.save(make_model([node], inputs, [tensor("c", ["N", 4])]), "model.onnx")
    report = succeed_json("model.onnx", "--input", "b=x.npy")
    assert [given["shape"] for given in report["inputs"]] == [[2, 4], [2, 4]]
    assert [given["file"] for given in report["inputs"]] == [None, "x.npy"]


def test_who_ran_ops_of_one_name():
    nodes = [
        helper.make_node("Relu", ["x"], ["z"], name="ours", domain="cudarelu"),
        helper.make_node("Relu", ["z"], ["y"], name="theirs"),
    ]
    onnx.save(make_model(nodes, [tensor("x", ["N", 4])], [tensor("y", None)]), "model.onnx")
    nodes = succeed_json("model.onnx")["nodes"]
    assert [(n["name"], n["domain"]) for n in nodes] == [("ours", "cudarelu"), ("theirs", "")]


def test_library_from_elsewhere():
    """The library is a second copy of the ops. Its registration has no effect and is no error."""
    library = BUILD / "python/cudarelu/libcudarelu_ops.so"
    assert "1 x custom_domain::CustomRelu" in succeed("model.onnx", "--library", library)


def test_a_library_that_is_incomplete():
    """The dynamic linker would end the process."""
    whole = (BUILD / "python/cudarelu/libcudarelu_ops.so").read_bytes()
    Path("part.so").write_bytes(whole[: len(whole) // 2])
    message = fail("model.onnx", "--library", "./part.so")
    assert f"part.so: the library is incomplete: it has {len(whole) // 2} bytes of " in message


OTHER = BUILD / "libcudarelu_ort_other.so"  # its custom_domain::CustomRelu is -x


def test_a_library_that_has_the_domain_of_an_alias():
    """Its op runs beside ours. Its attributes are not checked, since they are unknown."""
    nodes = [
        helper.make_node("Relu", ["x"], ["y"], domain="cudarelu"),
        helper.make_node("CustomRelu", ["x"], ["z"], domain="custom_domain", alpha=1.0),
    ]
    outputs = [tensor("y", ["N", 4]), tensor("z", ["N", 4])]
    onnx.save(make_model(nodes, [tensor("x", ["N", 4])], outputs), "model.onnx")
    arguments = ["model.onnx", "--provider", "cpu", "--input", "x=x.npy"]
    ours, theirs = map(array_of, succeed_json(*arguments, "--library", OTHER)["outputs"])
    np.testing.assert_array_equal(ours, np.where(X < 0, 0, X))
    np.testing.assert_array_equal(theirs, -X)
    assert "CustomRelu has no attribute alpha" in fail(*arguments)


def test_an_alias_whose_domain_is_of_a_library_that_lacks_it():
    message = fail("model.onnx", "--library", BUILD / "libcudarelu_ort_other_neg.so")
    assert "custom_domain::CustomRelu (its domain is that of a --library)" in message
    assert "custom_domain (" not in message


def test_ort_by_variable(monkeypatch):
    monkeypatch.setenv("CUDARELU_ORT_LIBRARY", "/nowhere/libonnxruntime.so")
    assert "/nowhere/libonnxruntime.so" in fail("model.onnx")
    (library,) = (Path(onnxruntime.__file__).parent / "capi").glob("libonnxruntime.so.*")
    assert str(library) in succeed("model.onnx", "--ort", library)


def test_libraries_in_the_current_folder():
    """A name without a slash is first a file of the current folder; the loader alone would not look
    there."""
    Path("mine.so").symlink_to(OTHER)
    report = succeed_json("model.onnx", "--provider", "cpu", "--library", "mine.so", "--dim", "N=1")
    given, output = array_of(report["inputs"][0]), array_of(report["outputs"][0])
    np.testing.assert_array_equal(output, -given)


def test_onnx_runtime_in_the_current_folder(monkeypatch):
    (library,) = (Path(onnxruntime.__file__).parent / "capi").glob("libonnxruntime.so.*")
    here = Path("runtime.so").absolute()
    here.symlink_to(library)
    for arguments in (["--ort", "runtime.so"], []):
        report = succeed_json("model.onnx", "--provider", "cpu", *arguments)
        assert report["runtime"]["library"] == str(here)
        monkeypatch.setenv("CUDARELU_ORT_LIBRARY", "runtime.so")


def test_libraries_that_the_loader_finds(monkeypatch):
    (library,) = (Path(onnxruntime.__file__).parent / "capi").glob("libonnxruntime.so.*")
    Path("libraries").mkdir()
    Path("libraries/mine.so").symlink_to(OTHER)
    Path("libraries/runtime.so").symlink_to(library)
    Path("mine.so").mkdir()  # not a file
    arguments = ["model.onnx", "--provider", "cpu", "--library", "mine.so", "--ort", "runtime.so"]
    assert "runtime.so" in fail(*arguments)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(Path("libraries").absolute()))
    succeed(*arguments)


def test_help_fits_a_screen():
    text = succeed("--help")
    lines = text.splitlines()
    assert len(lines) <= 45
    assert max(map(len, lines)) <= 100
    assert "Examples:" in text


# Element types and files


NUMPY_TYPES = "float16 float32 float64 int8 int16 int32 int64 uint8 uint16 uint32 uint64 bool"


@pytest.mark.parametrize("name", slow_after(4, NUMPY_TYPES.split()))
def test_element_types(name):
    dtype = np.dtype(name)
    onnx.save(identity(helper.np_dtype_to_tensor_dtype(dtype)), "model.onnx")
    info = np.iinfo(dtype) if dtype.kind in "iu" else None
    x = np.array([0, 1, info.min, info.max] if info else [0, 1, 0.1, 60000], dtype)
    np.save("x.npy", x)
    text = succeed("model.onnx", "--input", "x=x.npy", "--output-dir", "out")
    assert f"input x: {name} [4], x.npy\n{x}\n" in text
    y = np.load("out/y.npy")
    assert y.dtype == dtype
    np.testing.assert_array_equal(y, x)
    made = succeed_json("model.onnx")["inputs"][0]["values"]
    if info:
        assert all(0 <= value < 10 for value in made)


def test_bfloat16():
    node = helper.make_node("Relu", ["x"], ["y"], domain="cudarelu")
    shape, dtype = ["N"], TensorProto.BFLOAT16
    onnx.save(
        make_model([node], [tensor("x", shape, dtype)], [tensor("y", shape, dtype)]), "model.onnx"
    )
    x = np.array([1.5, -2, 1 / 3], ml_dtypes.bfloat16)
    np.save("x.npy", x)
    report = succeed_json("model.onnx", "--input", "x=x.npy", "--output-dir", "out")
    assert report["outputs"][0]["dtype"] == "bfloat16"
    assert report["outputs"][0]["values"] == [1.5, 0, float(x[2])]
    y = np.load("out/y.npy")
    assert y.dtype == np.load("x.npy").dtype
    assert y.view(ml_dtypes.bfloat16).tolist() == [1.5, 0, float(x[2])]


@pytest.mark.parametrize(
    "x",
    [
        np.array(3.5, np.float32),
        np.zeros((0, 4), np.float32),
        np.asfortranarray(np.arange(24, dtype=np.float32).reshape(2, 3, 4)),
        np.array([1e-7, 1, 1e9], np.float32),
        np.array([1e-7, np.nan, -np.inf], np.float32),
        np.array([[0.1, 100.25], [-3, 7]], np.float32),
        np.linspace(-1, 1, 30, dtype=np.float32),
        np.arange(3000, dtype=np.float32).reshape(3, 1000) / 8,
        np.arange(4096, dtype=np.float32).reshape(16, 16, 16),
    ],
    ids=lambda x: "x".join(map(str, x.shape)) or "scalar",
)
def test_prints_as_numpy_does(x):
    np.save("x.npy", x)
    shape = [f"d{axis}" for axis in range(x.ndim)]
    onnx.save(identity(TensorProto.FLOAT, shape), "model.onnx")
    text = succeed("model.onnx", "--input", "x=x.npy", "--output-dir", "out")
    assert f"x.npy\n{x}\n" in text
    np.testing.assert_array_equal(np.load("out/y.npy"), x)


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_npy_versions(version):
    with open("x.npy", "wb") as file:
        np.lib.format.write_array(file, X, version=version)
    succeed("model.onnx", "--input", "x=x.npy")


# Bad input: exit code 2, and one line that names the problem and its solution


def test_bad_models():
    assert "there is no such model" in fail("nowhere.onnx")
    assert "not a file" in fail(".")
    whole = Path("model.onnx").read_bytes()
    for length in (0, 1, 10, len(whole) // 2, len(whole) - 20):
        Path("cut.onnx").write_bytes(whole[:length])
        assert "not an ONNX model, or a truncated one" in fail("cut.onnx")
    Path("text.onnx").write_text("Hello, world! " * 50)
    assert "not an ONNX model" in fail("text.onnx")


def test_ops_of_another_domain():
    onnx.save(relu("elsewhere", "Other"), "model.onnx")
    message = fail("model.onnx")
    for part in ("elsewhere::Other", "cudarelu (", "custom_domain (CustomRelu)", "--library"):
        assert part in message


def test_an_op_that_our_domain_lacks():
    onnx.save(relu("cudarelu", "Rleu"), "model.onnx")
    assert "cudarelu::Rleu" in fail("model.onnx")


def test_a_domain_that_the_model_does_not_import():
    model = relu("unknown", "Other")
    onnx.save(model, "model.onnx")
    assert "unknown::Other" in fail("model.onnx")


def test_a_model_with_the_definition_of_its_op_runs():
    body = onnx.parser.parse_function(
        '<domain: "elsewhere", opset_import: ["" : 18]> Other (x) => (y) { y = Neg(x) }'
    )
    node = helper.make_node("Other", ["x"], ["y"], domain="elsewhere")
    model = make_model([node], [tensor("x", ["N", 4])], [tensor("y", ["N", 4])], [body])
    onnx.save(model, "model.onnx")
    assert succeed_json("model.onnx")["nodes"][0]["op_type"] == "Neg"


def test_a_wrong_attribute():
    node = helper.make_node("ReluScale", ["x"], ["y"], domain="cudarelu", scale=1)
    onnx.save(make_model([node], [tensor("x", ["N"])], [tensor("y", ["N"])]), "model.onnx")
    assert "relu_scale: scale must be a floating-point number" in fail("model.onnx")


def test_strings_are_refused():
    onnx.save(identity(TensorProto.STRING), "model.onnx")
    assert "input x is a tensor of strings" in fail("model.onnx")


@pytest.mark.parametrize(
    ("array", "text"),
    [
        (np.zeros((2, 5), np.float32), "float32 [2, 5]"),
        (np.zeros((2, 4, 1), np.float32), "float32 [2, 4, 1]"),
        (np.zeros((2, 4), np.float64), "float64 [2, 4]"),
        (np.zeros((2, 4), np.int32), "int32 [2, 4]"),
        (np.zeros((2, 4), ml_dtypes.bfloat16), "bfloat16 [2, 4]"),
    ],
)
def test_an_input_of_another_type_or_shape(array, text):
    np.save("x.npy", array)
    message = fail("model.onnx", "--input", "x=x.npy")
    assert f"input x: the model expects float32 [N, 4], but x.npy has {text}" in message


def header(text: str, version: int = 1) -> bytes:
    size = len(text).to_bytes(2 if version == 1 else 4, "little")
    return b"\x93NUMPY" + bytes([version, 0]) + size + text.encode()


PLAIN = "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 4), }\n"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not a .npy file"),
        (b"\x93NUM", "not a .npy file"),
        (b"PK\x03\x04 an archive of arrays", "not a .npy file"),
        (header(PLAIN, 4) + bytes(32), "version 4"),
        (header(PLAIN)[:20], "truncated"),
        (header(PLAIN) + bytes(31), "truncated"),
        (header(PLAIN) + bytes(33), "too long"),
        (header(PLAIN, 2)[:11], "truncated"),
        (b"\x93NUMPY\x02\x00\xff\xff\xff\xff" + bytes(50), "truncated"),
        (header(PLAIN.replace("(2, 4)", "(4294967296, 4294967296, 4)")), "overflow"),
        (header(PLAIN.replace("(2, 4)", "(99999999999999999999, 4)")), "its header"),
        (header(PLAIN.replace("(2, 4)", "(1099511627776,)")) + bytes(32), "truncated"),
        (header(PLAIN.replace("(2, 4)", "(-2, 4)")) + bytes(32), "its header"),
        (header(PLAIN.replace("(2, 4)", f"({'1, ' * 65})")) + bytes(4), "its header"),
        (header(PLAIN.replace("'<f4'", "[('a', '<f4')]")) + bytes(32), "its header"),
        (header(PLAIN.replace("False", "Maybe")) + bytes(32), "its header"),
        (header(PLAIN.replace("<f4", ">f4")) + bytes(32), "little-endian"),
        (header(PLAIN.replace("<f4", "<c8")) + bytes(64), "<c8 are not supported"),
        (header(PLAIN.replace("<f4", "<U2")) + bytes(64), "<U2 are not supported"),
        (header(PLAIN.replace("<f4", "|O")) + bytes(64), "|O are not supported"),
        (header("{'descr': '<f4', 'shape': (2, 4)}") + bytes(32), "its header"),
        (header("{" * 100) + bytes(32), "its header"),
    ],
)
def test_bad_npy_files(content, message):
    Path("x.npy").write_bytes(content)
    line = fail("model.onnx", "--input", "x=x.npy")
    assert "x.npy: " in line
    assert message in line


def test_inputs_that_are_not_there():
    assert "nowhere.npy: there is no such file" in fail("model.onnx", "--input", "x=nowhere.npy")
    assert "no such input; it has x" in fail("model.onnx", "--input", "z=x.npy")
    assert "given twice" in fail("model.onnx", "--input", "x=x.npy", "--input", "x=x.npy")


def test_attribute_that_the_op_lacks():
    """ONNX Runtime would ignore the attribute and use the default."""
    node = helper.make_node("LeakyRelu", ["x"], ["y"], domain="cudarelu", alpha=0.5)
    onnx.save(make_model([node], [tensor("x", ["N"])], [tensor("y", None)]), "model.onnx")
    message = fail("model.onnx")
    assert "LeakyRelu has no attribute alpha; it has negative_slope" in message


def knnquery(**attributes) -> onnx.ModelProto:
    inputs = ["nsample", "xyz", "offset"]
    node = helper.make_node("knnquery", inputs, ["idx", "distance"], domain="custom", **attributes)
    types = {"nsample": (TensorProto.INT64, []), "offset": (TensorProto.INT32, ["b"])}
    types |= {"xyz": (TensorProto.FLOAT, ["n", 3])}
    return make_model(
        [node],
        [tensor(name, types[name][1], types[name][0]) for name in inputs],
        [tensor("idx", None, TensorProto.INT32), tensor("distance", None)],
    )


def test_an_attribute_as_an_input():
    onnx.save(knnquery(), "model.onnx")
    np.save("xyz.npy", np.float32([[0, 0, 0], [3, 0, 0], [1, 0, 0]]))
    np.save("offset.npy", np.int32([3]))
    arguments = ["model.onnx", "--provider", "cpu"]
    for name in ("xyz", "offset", "nsample"):
        arguments += ["--input", f"{name}={name}.npy"]
    np.save("nsample.npy", np.int64(2))
    report = succeed_json(*arguments)
    (node,) = report["nodes"]
    assert (node["domain"], node["op_type"]) == ("custom", "knnquery")
    np.testing.assert_array_equal(array_of(report["outputs"][0]), [[0, 2], [1, 2], [2, 0]])
    np.save("nsample.npy", np.int64(0))
    assert "knn_query: nsample must be in [1, 1024], not 0" in fail(*arguments)


def test_an_input_as_an_attribute():
    onnx.save(knnquery(nsample=2), "model.onnx")
    assert "knnquery has the attribute nsample as an input" in fail("model.onnx")


def test_scalar_input_takes_a_scalar():
    node = helper.make_node("Relu", ["x"], ["y"], domain="cudarelu")
    onnx.save(make_model([node], [tensor("x", [])], [tensor("y", None)]), "model.onnx")
    np.save("scalar.npy", np.float32(-1))
    np.save("vector.npy", np.zeros(1, np.float32))
    succeed("model.onnx", "--input", "x=scalar.npy")
    assert "vector.npy has float32 [1]" in fail("model.onnx", "--input", "x=vector.npy")


def test_symbol_of_two_sizes():
    node = helper.make_node("Relu", ["x"], ["y"], domain="cudarelu")
    onnx.save(make_model([node], [tensor("x", ["N", "N"])], [tensor("y", None)]), "model.onnx")
    np.save("x.npy", np.zeros((2, 3), np.float32))
    report = succeed_json("model.onnx", "--input", "x=x.npy")
    assert (report["outputs"][0]["shape"], report["sizes"]) == ([2, 3], {})
    text = succeed("model.onnx", "--input", "x=x.npy")
    assert "note      dimension N has several sizes: 2, 3" in text
    report = succeed_json("model.onnx", "--input", "x=x.npy", "--dim", "N=3")
    assert report["notes"] == ["--dim N=3, but files have 2"]
    message = fail("model.onnx", "--batch-sweep", "1", "--input", "x=x.npy")
    assert "--batch-sweep sets N to 1, but it is 2 in x.npy" in message


def test_a_size_fills_where_no_file_decides():
    inputs = [tensor("a", ["?", "?"]), tensor("b", ["?"])]
    nodes = [helper.make_node("Neg", [name], [f"{name}_y"]) for name in "ab"]
    outputs = [tensor("a_y", None), tensor("b_y", None)]
    onnx.save(make_model(nodes, inputs, outputs), "model.onnx")
    for size, given in ((2, []), (3, ["--dim", "?=3"])):
        report = succeed_json("model.onnx", "--input", "a=x.npy", *given)
        assert [each["shape"] for each in report["outputs"]] == [[2, 4], [size]]


def test_output_goes_through_a_link():
    Path("out").mkdir()
    np.save("kept.npy", np.int8(0))
    Path("out/y.npy").symlink_to(Path("kept.npy").absolute())
    succeed("model.onnx", "--output-dir", "out")
    assert Path("out/y.npy").is_symlink()
    assert np.load("kept.npy").dtype == np.float32


def test_numbers_that_cannot_be_guessed():
    node = helper.make_node("KnnQuery", ["xyz", "offset"], ["i", "d"], domain="cudarelu")
    inputs = [tensor("xyz", ["n", 3]), tensor("offset", ["b"], TensorProto.INT32)]
    outputs = [tensor("i", None, TensorProto.INT32), tensor("d", None)]
    onnx.save(make_model([node], inputs, outputs), "model.onnx")
    # On CUDA, offsets are not checked, since this would wait for the device.
    message = fail("model.onnx", "--provider", "cpu")
    assert "knn_query: offset" in message
    assert "--input offset=FILE.npy" in message


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "MODEL is required"),
        (["model.onnx", "--bogus"], "--bogus"),
        (["model.onnx", "--provider", "tpu"], "tpu"),
        (["model.onnx", "--seed", "-1"], "--seed: must be an integer from 0"),
        (["model.onnx", "--seed", str(2**64)], "--seed: must be an integer from 0"),
        (["model.onnx", "--input", "x"], "NAME=VALUE"),
        (["model.onnx", "--inputs", ""], "--inputs: must not be empty"),
        (["model.onnx", "--compare", "", "--library", ""], ": must not be empty"),
        (["model.onnx", "--input", "x="], "NAME=VALUE"),
        (["model.onnx", "--dim", "N=-1"], "--dim N: must be an integer from 0"),
        (["model.onnx", "--dim", "N=2.5"], "integer"),
        (["model.onnx", "--dim", "N=9223372036854775807"], "overflow"),
        (["model.onnx", "--dim", "M=2"], "no such free dimension; it has N"),
        (["model.onnx", "--ort", "nowhere.so"], "nowhere.so"),
        (["model.onnx", "--ort", ORT_INFER], "--ort FILE"),
        (["model.onnx", "--library", "nowhere.so"], "nowhere.so"),
        (["model.onnx", "--library", "x.npy"], "x.npy"),
        (["model.onnx", "--output-dir", "x.npy"], "x.npy"),
        (["model.onnx", "--output-dir", "/proc/nowhere"], "/proc/nowhere"),
    ],
)
def test_bad_options(arguments, message):
    assert message in fail(*arguments)


# CUDA


NO_CUDA = ort_cuda_missing()


@pytest.mark.skipif(NO_CUDA is None, reason="needs a machine without CUDA")
def test_cuda_that_cannot_be_had():
    line = fail("model.onnx", "--provider", "cuda")
    assert "--provider cuda is not available" in line
    if "CUDAExecutionProvider" in onnxruntime.get_available_providers():
        assert "libcu" in line


@pytest.mark.skipif(NO_CUDA is None, reason="needs a machine without CUDA")
def test_auto_without_cuda():
    assert "provider  cpu (auto: no NVIDIA GPU)" in succeed("model.onnx")


@pytest.mark.skipif(NO_CUDA is not None, reason=NO_CUDA or "")
@pytest.mark.parametrize("provider", ["cuda", "auto"])
def test_cuda(provider):
    report = succeed_json("model.onnx", "--provider", provider, "--input", "x=x.npy")
    assert report["provider"] == "cuda"
    np.testing.assert_array_equal(array_of(report["outputs"][0]), np.where(X < 0, 0, X))
    assert [node["provider"] for node in report["nodes"]] == ["CUDAExecutionProvider"]
