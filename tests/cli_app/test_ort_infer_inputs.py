"""The inputs that ort_infer accepts, and its comparison of outputs with expected ones."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from support.cases import slow_after
from support.ort_infer import (
    BUILT,
    X,
    array_of,
    fail,
    identity,
    make_model,
    start,
    succeed,
    succeed_json,
    tensor,
)

pytestmark = [BUILT, pytest.mark.usefixtures("model_folder")]
Y = np.where(X < 0, 0, X)
NUMPY_TYPES = "float16 float32 float64 int8 int16 int32 int64 uint8 uint16 uint32 uint64 bool"


def differ(*arguments) -> str:
    """The output of a run whose outputs differ from the expected ones."""
    done = start(*arguments)
    assert (done.returncode, done.stderr) == (1, "")
    return done.stdout


def two_inputs() -> onnx.ModelProto:
    node = helper.make_node("Add", ["a", "b"], ["c"])
    return make_model(
        [node], [tensor("a", ["N", 4]), tensor("b", ["N", 4])], [tensor("c", ["N", 4])]
    )


def given(source: str, *arguments) -> np.ndarray:
    (input_,) = succeed_json("model.onnx", "--input", f"x={source}", *arguments)["inputs"]
    assert input_["source"] == source
    assert input_["file"] == (source if source.startswith("x.") else None)
    return array_of(input_)


# Names and files with =


def add_model(a: str, b: str, c: str, size: str) -> None:
    inputs, outputs = [tensor(a, [size, 4]), tensor(b, [size, 4])], [tensor(c, [size, 4])]
    onnx.save(make_model([helper.make_node("Add", [a, b], [c])], inputs, outputs), "model.onnx")


def test_names_with_equals_signs():
    add_model("a", "a=b", "c=", "N=1")
    np.save("c.npy", Y)
    np.save("b=c.npy", X)
    np.save("sum.npy", X + Y)
    arguments = ["model.onnx", "--input", "a=b=c.npy", "--input", "a=./b=c.npy"]
    report = succeed_json(*arguments, "--compare", "c==sum.npy", "--dim", "N=1=2")
    assert report["sizes"] == {"N=1": 2}
    assert [each["file"] for each in report["inputs"]] == ["./b=c.npy", "c.npy"]
    assert report["comparisons"][0]["equal"]
    add_model("=", "==", "c", "N")
    report = succeed_json("model.onnx", "--input", "==1", "--input", "===2")
    np.testing.assert_array_equal(array_of(report["outputs"][0]), np.full((4, 4), 3))


def test_files_with_equals_signs():
    np.save("z=x.npy", X)
    arguments = ["model.onnx", "--input", "x=z=x.npy"]
    assert succeed_json(*arguments)["inputs"][0]["file"] == "z=x.npy"
    np.save("z=y.npy", Y)
    assert "compare y with z=y.npy: equal" in succeed(*arguments, "--compare", "y=z=y.npy")


def test_names_with_equals_signs_that_there_are_not():
    assert "--input z: the model has no such input" in fail("model.onnx", "--input", "z=x=x.npy")
    assert "--dim N=2: the model has no such" in fail("model.onnx", "--dim", "N=2=3")
    assert "--dim N: given twice" in fail("model.onnx", "--dim", "N=2", "--dim", "N=3")
    assert "NAME=VALUE" in fail("model.onnx", "--compare", "=y.npy")


# Archives


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_archive(save):
    save("x.npz", other=np.zeros(3), x=X)
    np.testing.assert_array_equal(given("x.npz"), X)
    save("x.npz", X)  # a single array, which NumPy names arr_0
    np.testing.assert_array_equal(given("x.npz"), X)
    large = np.random.default_rng(0).integers(0, 3, (100_000, 4)).astype(np.float32)
    save("x.npz", x=large)
    succeed("model.onnx", "--input", "x=x.npz", "--output-dir", "out", "--compare", "y=x.npz")
    np.testing.assert_array_equal(np.load("out/y.npy"), large)


def test_archive_of_two_inputs():
    onnx.save(two_inputs(), "model.onnx")
    np.savez("both.npz", a=Y, b=X)
    arguments = ["--input", "a=both.npz", "--input", "b=both.npz"]
    report = succeed_json("model.onnx", *arguments)
    np.testing.assert_array_equal(array_of(report["outputs"][0]), Y + X)
    np.savez("both.npz", a=Y)
    assert "both.npz: has no array b; it has a.npy" in fail("model.onnx", *arguments)


def test_bad_archives():
    np.savez_compressed("x.npz", a=np.zeros((1000, 4), np.float32), b=X)
    assert "has no array x; it has a.npy, b.npy" in fail("model.onnx", "--input", "x=x.npz")
    np.savez_compressed("x.npz", x=np.zeros((1000, 4), np.float32), y=X)
    whole = Path("x.npz").read_bytes()
    for length in (0, 10, len(whole) - 30):
        Path("x.npz").write_bytes(whole[:length])
        assert "not a .npz file, or a truncated one" in fail("model.onnx", "--input", "x=x.npz")
    Path("x.npz").write_bytes(whole[:60] + b"\0\0\0\0" + whole[64:])
    assert "x.npz, x.npy: damaged" in fail("model.onnx", "--input", "x=x.npz")


def test_archive_that_unpacks_to_more_than_can_be():
    """Memory is allocated only if the packed bytes could fill it."""
    np.savez_compressed("x.npz", x=X)
    bytes_ = bytearray(Path("x.npz").read_bytes())
    entry = bytes_.find(b"PK\x01\x02")
    bytes_[entry + 24 : entry + 28] = b"\xfe\xff\xff\xff"
    Path("x.npz").write_bytes(bytes_)
    assert "damaged" in fail("model.onnx", "--input", "x=x.npz")


# Files of ONNX tensors


def write_tensor(path: str, array: np.ndarray) -> None:
    Path(path).parent.mkdir(exist_ok=True)
    Path(path).write_bytes(numpy_helper.from_array(array).SerializeToString())


def test_folder():
    write_tensor("set/input_0.pb", X)
    write_tensor("set/output_0.pb", Y)
    report = succeed_json("model.onnx", "--inputs", "set")
    assert report["inputs"][0]["file"] == "set/input_0.pb"
    (comparison,) = report["comparisons"]
    assert (comparison["name"], comparison["file"]) == ("y", "set/output_0.pb")
    assert comparison["equal"] is True
    write_tensor("set/output_0.pb", Y + 1)
    assert "compare y with set/output_0.pb: DIFFERS" in differ("model.onnx", "--inputs", "set")
    Path("set/output_0.pb").unlink()
    assert succeed_json("model.onnx", "--inputs", "set")["comparisons"] == []
    Path("set/input_0.pb").unlink()
    message = fail("model.onnx", "--inputs", "set")
    assert "set/input_0.pb: there is no such file, for input x" in message


@pytest.mark.parametrize("name", slow_after(4, ["bfloat16", *NUMPY_TYPES.split()]))
@pytest.mark.parametrize("typed", [False, True])
def test_tensor_types(name, typed):
    """The data is in raw bytes, or in the typed field for the type."""
    dtype = np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)
    x = np.array([1, 0, 1, 1], dtype)
    if dtype.kind in "iu":
        x[:2] = np.iinfo(dtype).min, np.iinfo(dtype).max
    element = helper.np_dtype_to_tensor_dtype(dtype)
    proto = numpy_helper.from_array(x)
    if typed:
        views = {"float16": np.uint16, "bfloat16": np.uint16, "bool": np.uint8}
        bits = x.view(views.get(name, dtype))
        proto = onnx.TensorProto(data_type=element, dims=[4])
        field = helper.tensor_dtype_to_field(element)
        getattr(proto, field).extend(bits.tolist())
    Path("x.pb").write_bytes(proto.SerializeToString())
    node = helper.make_node("Cast", ["x"], ["y"], to=TensorProto.DOUBLE)
    model = make_model([node], [tensor("x", ["N"], element)], [tensor("y", ["N"], 11)])
    onnx.save(model, "model.onnx")
    report = succeed_json("model.onnx", "--input", "x=x.pb")
    assert report["inputs"][0]["dtype"] == name
    np.testing.assert_array_equal(array_of(report["outputs"][0]), x.astype(np.float64))


def tensor_with(**fields) -> bytes:
    return onnx.TensorProto(**{"data_type": 1, "dims": [2, 4], **fields}).SerializeToString()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not a TensorProto"),
        (b"Hello, world!", "not a TensorProto"),
        (tensor_with(raw_data=bytes(31)), "its shape does not fit its 31 bytes of data"),
        (tensor_with(float_data=[1] * 9), "its shape does not fit its 36 bytes of data"),
        (tensor_with(dims=[2**40, 2**40]), "its shape does not fit its 0 bytes"),
        (tensor_with(dims=[-2, 4]), "not a TensorProto"),
        (tensor_with(raw_data=bytes(32))[:-1], "not a TensorProto, or a truncated one"),
        (tensor_with(data_type=8, string_data=[b"a"] * 8), "a tensor of strings"),
        (tensor_with(data_type=14), "ONNX's type 14 are not supported"),
        (tensor_with(data_location=1), "its data is in another file"),
    ],
)
def test_bad_tensors(content, message):
    Path("x.pb").write_bytes(content)
    line = fail("model.onnx", "--input", "x=x.pb")
    assert "x.pb: " in line
    assert message in line


# Generated inputs


def test_made_inputs():
    assert (given("zeros") == 0).all()
    assert (given("ones", "--dim", "N=3") == np.ones((3, 4))).all()
    assert (given("2.5") == 2.5).all()
    assert (given("-0.5") == -0.5).all()
    assert np.isnan(given("nan")).all()
    assert len(set(given("random").flat)) > 8


@pytest.mark.parametrize(
    ("dtype", "number", "fits"),
    [
        (TensorProto.UINT8, "255", True),
        (TensorProto.UINT8, "256", False),
        (TensorProto.UINT8, "-1", False),
        (TensorProto.INT64, "2.5", False),
        (TensorProto.INT64, "1e30", False),
        (TensorProto.INT64, "nan", False),
        (TensorProto.BOOL, "1", True),
        (TensorProto.BOOL, "2", False),
        (TensorProto.FLOAT16, "65504", True),
        (TensorProto.FLOAT16, "1e6", False),
        (TensorProto.FLOAT, "inf", True),
    ],
)
def test_numbers_that_a_type_holds(dtype, number, fits):
    onnx.save(identity(dtype), "model.onnx")
    if fits:
        (input_,) = succeed_json("model.onnx", "--input", f"x={number}")["inputs"]
        assert (array_of(input_) == float(number)).all()
    else:
        assert "does not hold" in fail("model.onnx", "--input", f"x={number}")


# Comparisons


def test_compare():
    expected = Y.copy()
    expected[1, 2] += 0.5
    np.save("y.npy", expected)
    arguments = ["model.onnx", "--input", "x=x.npy", "--compare", "y=y.npy"]
    text = differ(*arguments)
    line = "compare y with y.npy: DIFFERS in 1 of 8 elements, largest error 0.5 at [1, 2]"
    assert line in text
    done = start(*arguments, "--json")
    assert done.returncode == 1
    for tolerance in ("0.12", "0,0.5"):
        assert "equal" in succeed(*arguments, "--tolerance", tolerance)
    for tolerance in ("0.11", "0,0.49"):
        differ(*arguments, "--tolerance", tolerance)
    (comparison,) = succeed_json(*arguments, "--tolerance", "1")["comparisons"]
    assert comparison["max_absolute_error"] == 0.5
    np.testing.assert_allclose(comparison["max_relative_error"], 0.5 / 4.5)
    assert comparison["worst_index"] == [1, 2]


def test_compare_is_not_fooled():
    """NaN equals only NaN, and an infinity equals only itself. Types and shapes must be equal.
    Integers are compared without a tolerance."""
    arguments = ["model.onnx", "--input", "x=x.npy", "--tolerance", "1e9", "--compare", "y=y.npy"]
    np.save("y.npy", Y)
    succeed(*arguments)
    for place, value in (((0, 2), 0), ((1, 3), -np.inf), ((1, 3), 1), ((0, 0), np.nan)):
        other = Y.copy()
        other[place] = value
        np.save("y.npy", other)
        assert "DIFFERS in 1 of 8" in differ(*arguments)
    np.save("y.npy", Y.astype(np.float64))
    assert "DIFFERS: it is float32 [2, 4], expected float64 [2, 4]" in differ(*arguments)
    np.save("y.npy", Y[:1])
    assert "expected float32 [1, 4]" in differ(*arguments)
    onnx.save(identity(TensorProto.INT32), "model.onnx")
    np.save("x.npy", np.array([1000], np.int32))
    np.save("y.npy", np.array([1001], np.int32))
    assert "DIFFERS in 1 of 1" in differ(*arguments)


def test_bad_comparisons():
    assert "no such output; it has y" in fail("model.onnx", "--compare", "z=x.npy")
    assert "nowhere.npy: there is no such file" in fail("model.onnx", "--compare", "y=nowhere.npy")
    for text in ("a", "1,2,3", "-1", "1,", "nan"):
        assert "--tolerance" in fail("model.onnx", f"--tolerance={text}")
