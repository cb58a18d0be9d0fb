"""cudarelu.ort.Session: arrays on either provider, errors, and the order of work on streams."""

from __future__ import annotations

import contextlib
import copy
import os
import pickle
import subprocess
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import TensorProto, helper
from torch._subclasses.fake_tensor import FakeTensorMode

import cudarelu
import cudarelu.ort
from cudarelu.doctor import cuda_provider
from cudarelu.testing import DTYPES, assert_close, cases, reference
from cudarelu.testing.environment import (
    cupy_missing,
    jax_missing,
    ort_cuda_missing,
    torch_cuda_pair_missing,
)
from cudarelu.testing.hosts import Torch, numpy_of, one_op_model
from support.cases import reversed_rows, tier
from support.models import OTHER, both_libraries, make_model, node, one_node, tensor
from support.op_modules import LIBRARY

OPS = {op.name: op for op in cudarelu.ops()}
OP_DTYPES = [
    pytest.param(op.name, dtype, marks=tier(op.name, dtype))
    for op in cudarelu.ops()
    for dtype in op.dtypes
]
SLOW = 200_000_000  # clock cycles, a tenth of a second: longer than a call on the host
X = np.array([[-1, 2, -3, 4], [5, -6, 7, -8]], np.float32)
RELU = np.maximum(X, 0)

DEVICES = [
    "cpu",
    pytest.param(
        "cuda", marks=pytest.mark.skipif(bool(ort_cuda_missing()), reason=ort_cuda_missing() or "")
    ),
]
needs_cuda = pytest.mark.skipif(bool(ort_cuda_missing()), reason=ort_cuda_missing() or "")


def as_tuple(results):
    return results if isinstance(results, tuple) else (results,)


def make_jax(array):
    import jax

    return jax.device_put(array, jax.devices("cpu")[0])


MAKERS = {
    "numpy": (lambda x: x, np.ndarray),
    "torch": (torch.from_numpy, torch.Tensor),
    "jax": (make_jax, object),
}


@pytest.fixture(params=MAKERS)
def library(request):
    """A library of arrays on the CPU: the function that converts NumPy arrays, and the type."""
    if request.param == "jax" and (reason := jax_missing("cpu")):
        pytest.skip(reason)
    return MAKERS[request.param]


# Results


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("name", "dtype"), OP_DTYPES)
def test_ops(name, dtype, device):
    """Each op for each dtype, with tensors of any strides."""
    op, host = OPS[name], Torch(device)
    chosen = ("odd", "no-rows", "scalar", "unaligned", "transposed", "strided")
    runs = list(cases(op, DTYPES[dtype], *chosen))
    session = cudarelu.ort.Session(one_op_model(op, runs).SerializeToString(), device)
    inputs = [host.tensor(x) for case in runs for x in case.inputs.values()]
    outputs = iter(as_tuple(session(*inputs)))
    for case in runs:
        for p, expected in zip(op.outputs, reference(op, case), strict=True):
            y = next(outputs)
            assert y.device.type == device
            wanted = DTYPES[dtype] if p.dtype == "T" else np.dtype(p.dtype)
            assert_close(op, case, numpy_of(y), expected, wanted)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_numpy(dtype, device):
    """Arrays may be read-only and have any strides and either byte order, on either provider."""
    x = X.astype(DTYPES[dtype])
    x.flags.writeable = False
    onnx_type = helper.np_dtype_to_tensor_dtype(x.dtype)
    session = cudarelu.ort.Session(one_node("Relu", ("N", "M"), onnx_type), device)
    for view in (x, x.T, x[::-1, ::-2], x[:0], np.broadcast_to(x[:1], (3, 4))):
        y = session(view)
        assert type(y) is np.ndarray
        assert y.dtype == x.dtype
        assert y.flags.writeable
        np.testing.assert_array_equal(y, np.maximum(view, 0))
    if dtype != "bfloat16":  # it has only one byte order
        np.testing.assert_array_equal(session(x.astype(x.dtype.newbyteorder(">"))), RELU)


def test_bfloat16_of_jax():
    if reason := jax_missing("cpu"):
        pytest.skip(reason)
    session = cudarelu.ort.Session(one_node("Relu", dtype=TensorProto.BFLOAT16), "cpu")
    y = session(make_jax(X.astype(ml_dtypes.bfloat16)))
    np.testing.assert_array_equal(np.asarray(y), RELU.astype(ml_dtypes.bfloat16))


def test_what_came_in_goes_out(library):
    make, kind = library
    y = cudarelu.ort.Session(one_node("Relu"), "cpu")(make(X.copy()))
    assert isinstance(y, kind)
    assert type(y) is type(make(X))
    np.testing.assert_array_equal(np.asarray(y), RELU)


def test_beside_a_library_that_has_the_domain_of_an_alias():
    options = onnxruntime.SessionOptions()
    options.register_custom_ops_library(OTHER)
    ours, theirs = cudarelu.ort.Session(both_libraries(), "cpu", session_options=options)(X)
    np.testing.assert_array_equal(ours, RELU)
    np.testing.assert_array_equal(theirs, -X)
    nodes = [node("CustomRelu", ["x"], ["y"], "custom_domain")]
    model = make_model(nodes, [tensor("x", ["N", 4])], [tensor("y", None)])
    np.testing.assert_array_equal(cudarelu.ort.Session(model, "cpu")(X), RELU)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("onnx_type", [TensorProto.BOOL, TensorProto.UINT8, TensorProto.UINT64])
def test_dtypes_of_other_ops(onnx_type, device):
    """An output whose shape is not in the model is read through DLPack, which passes bool as
    uint8."""
    x = helper.tensor_dtype_to_np_dtype(onnx_type)
    x = np.array([[0, 1], [1, 1]], x)
    nodes = [helper.make_node("Reshape", ["x", "shape"], ["y"])]
    inputs = [tensor("x", ["a", "b"], onnx_type), tensor("shape", ["c"], TensorProto.INT64)]
    session = cudarelu.ort.Session(
        make_model(nodes, inputs, [tensor("y", None, onnx_type)]), device
    )
    y = session(x, np.int64([4, 1]))
    assert y.dtype == x.dtype
    np.testing.assert_array_equal(y, x.reshape(4, 1))


# Inputs and outputs


KNN = make_model(
    [node("KnnQuery", ["xyz", "offset"], ["i", "d"], nsample=2)],
    [tensor("xyz", ["n", 3]), tensor("offset", ["b"], TensorProto.INT32)],
    [tensor("i", None, TensorProto.INT32), tensor("d", None)],
)


@pytest.mark.parametrize("device", DEVICES)
def test_several_inputs_by_place_and_by_name(device):
    session = cudarelu.ort.Session(KNN, device)
    xyz = torch.tensor([[0.0, 0, 0], [3, 4, 0]], device=device)
    offset = torch.tensor([2], dtype=torch.int32, device=device)
    calls = (
        session(xyz, offset),
        session(xyz, offset=offset),
        session(offset=offset, xyz=xyz),
    )
    for results in calls:
        assert type(results) is tuple
        idx, distance = results
        assert idx.tolist() == [[0, 1], [1, 0]]
        assert distance.tolist() == [[0, 5], [0, 5]]


@pytest.mark.parametrize("device", DEVICES)
def test_shapes_change_and_a_name_for_two_sizes_tells_none(device):
    """The sizes of two inputs have the same name, but the op broadcasts one of the inputs. So the
    name has no known size."""
    nodes = [helper.make_node("Add", ["a", "b"], ["s"]), node("Relu", ["s"], ["y"])]
    model = make_model(nodes, [tensor("a", ["N"]), tensor("b", ["N"])], [tensor("y", ["N"])])
    session = cudarelu.ort.Session(model, device)
    for sizes in ((3, 3), (1, 3), (3, 1), (0, 0), (5, 5)):
        a, b = (torch.ones(size, device=device) for size in sizes)
        assert session(a, b).tolist() == (a + b).tolist()


@pytest.mark.parametrize("device", DEVICES)
def test_outputs_that_depend_on_values(device):
    nodes = [node("Relu", ["x"], ["r"]), helper.make_node("NonZero", ["r"], ["y"])]
    model = make_model(nodes, [tensor("x", ["N", 4])], [tensor("y", None, TensorProto.INT64)])
    session = cudarelu.ort.Session(model, device)
    for x in (X, -X, np.zeros_like(X)):
        y = session(torch.from_numpy(x).to(device))
        assert y.tolist() == np.array(np.nonzero(np.maximum(x, 0))).tolist()


@pytest.mark.parametrize("device", DEVICES)
def test_a_scalar(device):
    session = cudarelu.ort.Session(one_node("Relu", []), device)
    y = session(torch.tensor(-2.0, device=device))
    assert y.shape == ()
    assert y.item() == 0


@pytest.mark.parametrize("device", DEVICES)
def test_outputs_belong_to_the_caller(device):
    """Outputs that are inputs or weights of the model are copied."""
    weights = onnx.numpy_helper.from_array(np.float32([1, 2]), "w")
    graph = helper.make_graph(
        [helper.make_node("Identity", ["x"], ["y"])],
        "test",
        [tensor("x", ["N"])],
        [tensor("y", ["N"]), tensor("x", ["N"]), tensor("w", [2])],
        [weights],
    )
    model = helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 18)])
    session = cudarelu.ort.Session(model.SerializeToString(), device)
    x = torch.ones(3, device=device)
    for _ in range(2):
        outputs = session(x)
        assert [y.tolist() for y in outputs] == [[1, 1, 1], [1, 1, 1], [1, 2]]
        for y in outputs:
            y.zero_()
        assert x.tolist() == [1, 1, 1]


def test_a_model_without_inputs():
    nodes = [helper.make_node("Constant", [], ["y"], value_floats=[1.0, 2.0])]
    y = cudarelu.ort.Session(make_model(nodes, [], [tensor("y", [2])]), "cpu")()
    assert type(y) is np.ndarray
    assert y.tolist() == [1, 2]


def test_a_view_with_its_sign_still_to_come():
    x = torch.ones(1, dtype=torch.complex64).mul(1j).conj().imag
    assert x.is_neg()
    assert x.is_contiguous()
    assert cudarelu.ort.Session(one_node("Relu", ("N",)), "cpu")(x).tolist() == [0]


def test_results_outlive_the_session():
    session = cudarelu.ort.Session(one_node("Relu"), "cpu")
    y = session(X)
    del session
    for _ in range(5):
        cudarelu.ort.Session(one_node("Neg", domain=""), "cpu")(X)
    np.testing.assert_array_equal(y, RELU)


def test_many_threads_share_a_session():
    session = cudarelu.ort.Session(one_node("Relu", ("N", "M")), "cpu")
    with ThreadPoolExecutor(8) as pool:
        for i, y in enumerate(pool.map(lambda i: session(X - i), range(50))):
            np.testing.assert_array_equal(y, np.maximum(X - i, 0))


def test_a_file_and_options_of_ones_own(tmp_path):
    path = tmp_path / "model.onnx"
    path.write_bytes(one_node("Relu"))
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    for place in (path, str(path)):
        session = cudarelu.ort.Session(place, "cpu", session_options=options)
        np.testing.assert_array_equal(session(X), RELU)
        assert session.inference_session.get_session_options().intra_op_num_threads == 1


# What is refused


def gradient():
    return torch.from_numpy(X).requires_grad_()


MASKED = np.ma.masked_array(X, X < 0)


@pytest.mark.parametrize(
    ("arrays", "named", "error", "message"),
    [
        ((), {}, TypeError, r"^m.onnx takes x; x is missing$"),
        ((X, X), {}, TypeError, r"^m.onnx takes x; 2 are given$"),
        ((X,), {"x": X}, TypeError, r"^m.onnx takes x; x is given twice$"),
        ((X,), {"z": X}, TypeError, r"^m.onnx takes x; there is no z$"),
        (([1.0],), {}, TypeError, r"^m.onnx: takes torch tensors.* but x is a list$"),
        ((MASKED,), {}, TypeError, r"^m.onnx: .* but x is a numpy.ma.MaskedArray$"),
        ((X.astype(np.float64),), {}, TypeError, r"x is float64; the model takes float32$"),
        ((X.astype(str),), {}, TypeError, r"^m.onnx: cannot read x: "),
        ((X[0],), {}, ValueError, r"^m.onnx: x has shape \[4\]; the model takes \[N, 4\]$"),
        ((X[:, :3],), {}, ValueError, r"x has shape \[2, 3\]; the model takes \[N, 4\]$"),
        ((gradient(),), {}, ValueError, r"^m.onnx: x requires a gradient"),
        ((torch.ones(2, 4, device="meta"),), {}, ValueError, r"x is on meta, but .* on cpu$"),
    ],
)
def test_wrong_inputs_are_named(arrays, named, error, message, tmp_path):
    path = tmp_path / "m.onnx"
    path.write_bytes(one_node("Relu"))
    session = cudarelu.ort.Session(path, "cpu")
    with pytest.raises(error, match=message) as raised:
        session(*arrays, **named)
    assert type(raised.value) is error
    np.testing.assert_array_equal(session(X), RELU)  # the session still works


def test_two_libraries_in_one_call():
    session = cudarelu.ort.Session(KNN, "cpu")
    with pytest.raises(TypeError, match=r"xyz is a torch.Tensor and offset is a numpy.ndarray$"):
        session(torch.ones(2, 3), np.int32([2]))


def test_tensors_without_memory_of_their_own():
    session, x = cudarelu.ort.Session(one_node("Relu"), "cpu"), torch.from_numpy(X)
    with FakeTensorMode() as mode:
        fake = mode.from_tensor(x)
    calls = {
        "FakeTensor of layout torch.strided": lambda: session(fake),
        "Tensor of layout torch.sparse_coo": lambda: session(x.to_sparse()),
        "Tensor of layout torch.strided": lambda: torch.vmap(session)(x[None]),
    }
    for kind, call in calls.items():
        with pytest.raises(TypeError, match=f"^the model: x must be a plain .* not a {kind}$"):
            call()
    np.testing.assert_array_equal(session(torch.nn.Parameter(x, requires_grad=False)), RELU)


def test_a_gradient_that_nobody_wants():
    with torch.no_grad():
        y = cudarelu.ort.Session(one_node("Relu"), "cpu")(gradient())
    np.testing.assert_array_equal(y, RELU)


def test_what_an_op_refuses():
    nodes = [node("BiasRelu", ["x", "bias"], ["y"])]
    model = make_model(nodes, [tensor("x", ["N", "c"]), tensor("bias", ["k"])], [tensor("y", None)])
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = cudarelu.ort.Session(model, "cpu", session_options=options)
    with pytest.raises(RuntimeError, match="bias_relu: dimension c is 4 in x but 3 in bias"):
        session(X, np.ones(3, np.float32))


def test_inputs_that_are_no_tensors():
    text = helper.make_tensor_value_info("x", TensorProto.STRING, [1])
    model = make_model(
        [helper.make_node("Identity", ["x"], ["y"])],
        [text],
        [helper.make_tensor_value_info("y", TensorProto.STRING, [1])],
    )
    with pytest.raises(TypeError, match=r"^the model: x has unsupported type tensor\(string\)$"):
        cudarelu.ort.Session(model, "cpu")


def test_wrong_arguments():
    with pytest.raises(ValueError, match=r"^provider must be 'auto', 'cpu' or 'cuda', not 'gpu'$"):
        cudarelu.ort.Session(one_node("Relu"), "gpu")
    with pytest.raises(ValueError, match="cuda_graph=True needs provider='cuda'"):
        cudarelu.ort.Session(one_node("Relu"), "cpu", cuda_graph=True)


def test_an_onnxruntime_that_is_too_old(monkeypatch):
    monkeypatch.setattr(onnxruntime, "__version__", "1.23.2")
    with pytest.raises(RuntimeError, match=r"needs ONNX Runtime 1\.24 or later; this is 1\.23\.2$"):
        cudarelu.ort.Session(one_node("Relu"), "cpu")


# Which provider


def test_the_cpu_for_want_of_a_driver():
    """A machine with the CUDA provider and no driver."""
    if not cuda_provider.provider_path():
        pytest.skip("this onnxruntime has no CUDA provider")
    if not ort_cuda_missing():
        pytest.skip("there is a driver")
    with warnings.catch_warnings(action="error"):  # no warning, since there is no device
        session = cudarelu.ort.Session(one_node("Relu"))
    assert session.provider == "cpu"
    assert "libcuda.so.1 (install the NVIDIA driver)" in session.why_cpu
    for arguments in ({"provider": "cuda"}, {"cuda_graph": True}):
        with pytest.raises(RuntimeError, match=r"cannot run on CUDA: .*install the NVIDIA driver"):
            cudarelu.ort.Session(one_node("Relu"), **arguments)


def test_the_cpu_is_what_was_asked_for():
    session = cudarelu.ort.Session(one_node("Relu"), "cpu")
    assert session.provider == "cpu"
    assert session.why_cpu is None
    assert session.inference_session.get_providers() == ["CPUExecutionProvider"]


def test_a_warning_where_a_device_lies_idle(monkeypatch):
    monkeypatch.setattr(cuda_provider, "missing", lambda: "for a reason")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pytest.warns(UserWarning, match="the model runs on the CPU: for a reason") as record:
        session = cudarelu.ort.Session(one_node("Relu"))
    assert record[0].filename == __file__
    assert session.why_cpu == "for a reason"


def test_an_onnxruntime_without_cuda(monkeypatch):
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: ["CPUExecutionProvider"])
    with pytest.raises(RuntimeError, match="install onnxruntime-gpu in place of onnxruntime"):
        cudarelu.ort.Session(one_node("Relu"), "cuda")


def test_a_library_whose_file_has_another_name(tmp_path):
    """For example the driver's: libcuda.so.1 is a link to libcuda.so.<version>."""
    link = tmp_path / "libcuda.so.1"
    link.symlink_to(cuda_provider._load("libstdc++.so.6"))
    assert cuda_provider._load(str(link)).endswith((str(link), "libstdc++.so.6"))


@pytest.mark.parametrize(
    ("hidden", "package"),
    [
        ("libcublas.so.13", "nvidia-cublas"),
        ("libcudart.so.13", "nvidia-cuda-runtime"),
        ("libcurand.so.10", "nvidia-curand"),
        ("libcudnn.so.9", "nvidia-cudnn-cu13"),
    ],
)
def test_a_library_that_does_not_load_is_named(hidden, package, monkeypatch):
    """All libraries are required here, as in providers that load cuDNN before the first Conv."""
    load = cuda_provider._load

    def hide(name):
        if name == hidden:
            raise OSError(f"{name}: cannot open shared object file")
        return load(name)

    if not cuda_provider.provider_path():
        pytest.skip("this onnxruntime has no CUDA provider")
    names = ["libcublas.so.13", "libcurand.so.10", "libcudart.so.13", "libcudnn.so.9"]
    monkeypatch.setattr(cuda_provider, "needed", lambda path: names)
    if any(each.required and not each.path for each in cuda_provider.libraries()):
        pytest.skip("the installed libraries are of another CUDA version")
    monkeypatch.setattr(cuda_provider, "_load", hide)
    with pytest.raises(RuntimeError) as raised:
        cudarelu.ort.Session(one_node("Relu"), "cuda")
    assert str(raised.value).endswith(
        f"that do not load: {hidden} (install {package}): {hidden}: cannot open shared object file"
    )


def test_packages_of_older_cuda():
    packages = [cuda_provider._package(name, 12) for name in ("libcudart.so.12", "libcudnn.so.9")]
    assert packages == ["nvidia-cuda-runtime-cu12", "nvidia-cudnn-cu12"]


def test_what_the_provider_needs():
    if not (path := cuda_provider.provider_path()):
        pytest.skip("this onnxruntime has no CUDA provider")
    names = cuda_provider.needed(path)
    assert "libc.so.6" in names
    assert any(name.startswith("libcublasLt.so.") for name in names)
    libraries = {each.name.partition(".")[0]: each for each in cuda_provider.libraries()}
    assert {"libcublas", "libcublasLt", "libcudart", "libcudnn", "libcufft"} <= set(libraries)
    for each in libraries.values():
        assert (each.path is None) == bool(each.error)
        assert each.path is None or Path(each.path).is_file()


def test_names_in_an_elf_file():
    """The names are those that readelf shows, for a library with dependencies."""
    done = subprocess.run(
        ["readelf", "-d", cudarelu.ort.library_path()], capture_output=True, text=True
    )
    names = [line.split("[")[1][:-1] for line in done.stdout.splitlines() if "(NEEDED)" in line]
    assert names
    assert cuda_provider.needed(Path(cudarelu.ort.library_path())) == names


# The order of work on streams, without a device


class Stream:
    """A fake CUDA stream, which records its calls."""

    def __init__(self, name, log):
        self.name, self.log = name, log

    def wait_stream(self, other):
        self.log.append(f"{self.name} waits for {other.name}")

    def synchronize(self):
        self.log.append(f"the host waits for {self.name}")


@pytest.fixture
def pretended(monkeypatch):
    """Makes a session on the CPU execute the code for CUDA."""

    def pretend(model, cuda_graph=False, stays_on_cuda=True):
        log = []
        session = cudarelu.ort.Session(model, "cpu")
        session.provider = "cuda"
        session._cuda_graph, session._stays_on_cuda = cuda_graph, stays_on_cuda
        session._stream = Stream("session", log)
        run = session.inference_session.run_with_iobinding

        def logged(binding, options):
            synchronous = "disable_synchronize_execution_providers"
            try:
                assert options.get_run_config_entry(synchronous) == "1"
                wait = ""
            except RuntimeError:
                wait = ", and the host waits"
            graph = options.get_run_config_entry("gpu_graph_id")
            log.append(f"runs {graph}{wait}")
            run(binding, options)

        session.inference_session.run_with_iobinding = logged
        monkeypatch.setattr(torch.cuda, "current_stream", lambda: Stream("caller", log))
        monkeypatch.setattr(torch.cuda, "stream", lambda stream: contextlib.nullcontext())
        monkeypatch.setattr(
            cudarelu._arrays, "stream_of", lambda *arguments: contextlib.nullcontext()
        )
        monkeypatch.setattr(cudarelu._arrays, "release_when_read", lambda tensors: None)
        return session, log

    return pretend


WAITS, WAITED = "session waits for caller", "caller waits for session"


def test_a_run_waits_for_the_caller_and_the_caller_for_it(pretended):
    session, log = pretended(one_node("Relu"))
    np.testing.assert_array_equal(session(torch.from_numpy(X)), RELU)
    assert log == [WAITS, "runs -1", WAITED]


def test_the_caller_waits_after_an_error(pretended):
    nodes = [node("BiasRelu", ["x", "b"], ["y"])]
    model = make_model(nodes, [tensor("x", ["N", "c"]), tensor("b", ["k"])], [tensor("y", None)])
    session, log = pretended(model)
    with pytest.raises(RuntimeError, match="dimension c"):
        session(torch.ones(2, 4), torch.ones(3))
    assert log == [WAITS, "runs -1", WAITED]


def test_the_host_waits_for_nodes_on_the_cpu(pretended):
    session, log = pretended(one_node("Relu"), stays_on_cuda=False)
    session(torch.from_numpy(X))
    waits = "the host waits for caller"
    assert log == [waits, WAITS, "runs -1, and the host waits", WAITED]


def test_an_output_of_unknown_shape_is_copied_in_order(pretended):
    nodes = [helper.make_node("NonZero", ["x"], ["y"])]
    model = make_model(nodes, [tensor("x", ["N", 4])], [tensor("y", None, TensorProto.INT64)])
    session, log = pretended(model)
    session(torch.from_numpy(X))
    assert log == [WAITS, "runs -1", WAITS, WAITED]


def test_a_graph_is_captured_once_for_each_shape(pretended):
    """The CPU provider does not capture a graph, but runs the binding. Earlier outputs are not
    overwritten."""
    session, log = pretended(one_node("Relu"), cuda_graph=True)
    inputs = [X, -X, X[:1], X + 1, X[:0], X[:1] - 1]
    outputs = [session(torch.from_numpy(np.ascontiguousarray(x))) for x in inputs]
    for x, y in zip(inputs, outputs, strict=True):
        np.testing.assert_array_equal(y, np.maximum(x, 0))
    # The first run finds the shapes of the outputs. Empty inputs have no graph.
    expected = ["runs -1", "runs 0", "runs 0", "runs -1", "runs 1", "runs 0", "runs -1", "runs 1"]
    assert [each for each in log if each.startswith("runs")] == expected
    assert log[-1] == WAITED
    assert log[:2] == [WAITS, "runs -1"]


# CUDA


def sessions_stream(session):
    (options,) = [session.inference_session.get_provider_options()["CUDAExecutionProvider"]]
    return int(options["user_compute_stream"])


@needs_cuda
def test_cuda_is_chosen():
    session = cudarelu.ort.Session(one_node("Relu"))
    assert session.provider == "cuda"
    assert session.why_cpu is None
    assert session.inference_session.get_providers()[0] == "CUDAExecutionProvider"
    assert sessions_stream(session) == session._stream.cuda_stream != 0
    assert session._stays_on_cuda
    for each in cuda_provider.libraries():
        assert each.path or not each.required


@needs_cuda
def test_cuda_refuses_another_device():
    session = cudarelu.ort.Session(one_node("Relu"), "cuda")
    with pytest.raises(ValueError, match=r"x is on cpu, but the session on cuda:0$"):
        session(torch.from_numpy(X))
    with pytest.raises(ValueError, match=r"x is on cuda:0, but the session on cpu$"):
        cudarelu.ort.Session(one_node("Relu"), "cpu")(torch.from_numpy(X).cuda())
    count = torch.cuda.device_count()
    with pytest.raises(ValueError, match=f"no CUDA device {count}: PyTorch sees {count}"):
        cudarelu.ort.Session(one_node("Relu"), "cuda", device=count)


STREAMS = {"default": torch.cuda.default_stream, "side": torch.cuda.Stream}


@needs_cuda
@pytest.mark.parametrize("cuda_graph", [False, True])
@pytest.mark.parametrize("kind", STREAMS)
def test_the_current_stream_of_pytorch(kind, cuda_graph):
    """The call runs after the work queued before it and before the work queued after it. The host
    does not wait, except for a graph."""
    session = cudarelu.ort.Session(one_node("Relu", ("N",)), "cuda", cuda_graph)
    stream = STREAMS[kind]()
    with torch.cuda.stream(stream):
        x = torch.full((1 << 22,), -1.0, device="cuda")
        (session(x) + 1).sum().item()  # loads the kernels, and captures the graph
        torch.cuda.synchronize()
        torch.cuda._sleep(SLOW)
        x.fill_(3)
        y = session(x)
        assert cuda_graph or not stream.query()
        x.fill_(-1)  # runs after x is read
        z = y + 1
    stream.synchronize()
    assert bool((y == 3).all())
    assert bool((z == 4).all())


@needs_cuda
def test_two_streams_keep_their_outputs():
    """No other run gets the memory of an output before the output's stream has read it."""
    nodes = [helper.make_node("Neg", ["x"], ["a"]), node("Relu", ["a"], ["y"])]
    model = make_model(nodes, [tensor("x", ["N"])], [tensor("y", None)])
    session = cudarelu.ort.Session(model, "cuda")
    slow, fast = torch.cuda.Stream(), torch.cuda.Stream()
    x = [torch.full((1 << 20,), -float(i), device="cuda") for i in range(8)]
    session(x[0])
    torch.cuda.synchronize()
    sums = []
    for i in range(1, 8, 2):
        with torch.cuda.stream(slow):
            y = session(x[i])
            torch.cuda._sleep(SLOW // 10)
            sums.append((i, y.double().sum()))
            del y
        with torch.cuda.stream(fast):
            sums.append((i + 1 if i < 7 else i, session(x[min(i + 1, 7)]).double().sum()))
    torch.cuda.synchronize()
    for value, total in sums:
        assert total.item() == value * (1 << 20)


@needs_cuda
def test_cuda_in_many_threads():
    session = cudarelu.ort.Session(one_node("Relu", ("N",)), "cuda")

    def run(i):
        with torch.cuda.stream(torch.cuda.Stream()):
            x = torch.full((100_000,), float(i), device="cuda")
            return all(bool((session(x) == i).all()) for _ in range(10))

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(run, range(32)))


@needs_cuda
@pytest.mark.parametrize("on", ["default", "side"])
def test_nodes_on_the_cpu(on):
    """If ONNX Runtime runs nodes on the CPU, it copies tensors, and the host waits. The results are
    correct."""
    nodes = [
        node("Relu", ["x"], ["r"]),
        helper.make_node("Unique", ["r"], ["u"]),  # not available on CUDA
        node("Relu", ["u"], ["y"]),
        helper.make_node("Shape", ["x"], ["s"]),
    ]
    outputs = [tensor("y", None), tensor("s", [1], TensorProto.INT64)]
    session = cudarelu.ort.Session(make_model(nodes, [tensor("x", ["N"])], outputs), "cuda")
    assert not session._stays_on_cuda
    with torch.cuda.stream(STREAMS[on]()):
        for size in (1000, 2000):
            x = torch.zeros(size, device="cuda")
            torch.cuda._sleep(SLOW // 10)
            x.copy_(torch.arange(size, device="cuda").float() - 500)
            y, shape = session(x)
            assert y.tolist() == list(range(size - 500))
            assert shape.tolist() == [size]


@needs_cuda
@pytest.mark.parametrize(("name", "dtype"), OP_DTYPES)
def test_cuda_graphs(name, dtype):
    """A graph is captured, replayed with other values, and captured again for other shapes."""
    op, host = OPS[name], Torch("cuda")
    chosen = cases(op, DTYPES[dtype], "large", "transposed")
    model = one_op_model(op, chosen[:1]).SerializeToString()
    session = cudarelu.ort.Session(model, "cuda", cuda_graph=True)
    for case in [*chosen, *chosen, *map(reversed_rows, chosen)]:
        outputs = as_tuple(session(*map(host.tensor, case.inputs.values())))
        for p, y, expected in zip(op.outputs, outputs, reference(op, case), strict=True):
            wanted = DTYPES[dtype] if p.dtype == "T" else np.dtype(p.dtype)
            assert_close(op, case, numpy_of(y), expected, wanted)
    assert len(session._graphs) == 2


@needs_cuda
def test_outputs_of_a_graph_are_not_overwritten():
    session = cudarelu.ort.Session(one_node("Relu"), "cuda", cuda_graph=True)
    x = torch.from_numpy(X).cuda()
    first, second = session(x), session(-x)
    assert first.tolist() == RELU.tolist()
    assert second.tolist() == np.maximum(-X, 0).tolist()
    assert len(session._graphs) == 1
    np.testing.assert_array_equal(session(X), RELU)  # NumPy arrays replay it as well
    assert len(session._graphs) == 1


@needs_cuda
def test_a_graph_with_nodes_on_the_cpu_is_refused():
    nodes = [helper.make_node("Unique", ["x"], ["y"])]
    model = make_model(nodes, [tensor("x", ["N"])], [tensor("y", None)])
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    with pytest.raises(Exception, match="graph capture"):
        cudarelu.ort.Session(model, "cuda", cuda_graph=True, session_options=options)


@needs_cuda
@pytest.mark.parametrize("kind", ["non-blocking", "null"])
def test_the_current_stream_of_cupy(kind):
    if reason := cupy_missing():
        pytest.skip(reason)
    import cupy

    session = cudarelu.ort.Session(one_node("Relu", ("N",)), "cuda")
    stream = (
        cupy.cuda.Stream(non_blocking=True) if kind == "non-blocking" else cupy.cuda.Stream.null
    )
    x = cupy.full(1 << 22, -1, np.float32)
    with stream:
        (session(x) + 1).sum().get()
        cupy.cuda.Device().synchronize()
        torch_stream = torch.cuda.default_stream()
        if kind == "non-blocking":
            torch_stream = torch.cuda.ExternalStream(stream.ptr)
        with torch.cuda.stream(torch_stream):
            torch.cuda._sleep(SLOW)
        x.fill(3)
        y = session(x)
        assert type(y) is cupy.ndarray
        x.fill(-1)
        z = y + 1
        assert not stream.done
    stream.synchronize()
    assert bool((y == 3).all())
    assert bool((z == 4).all())


@needs_cuda
def test_jax_and_the_session_wait_for_each_other():
    if reason := jax_missing("cuda"):
        pytest.skip(reason)
    import jax
    import jax.numpy as jnp

    session = cudarelu.ort.Session(one_node("Relu", ("N", "M")), "cuda")
    (device, *_) = jax.devices("cuda")
    with jax.default_device(device), torch.cuda.stream(torch.cuda.Stream()):
        slow = jax.jit(lambda a: jax.lax.fori_loop(0, 200, lambda _, b: jnp.tanh(a @ b), a))
        a = jnp.full((2048, 2048), 0.5, jnp.float32)
        expected = slow(a) + 1
        expected.block_until_ready()
        y = session(slow(a))  # called while the input is computed; its memory is then released
        taken = [jnp.full((2048, 2048), -1, jnp.float32).block_until_ready() for _ in range(4)]
        torch.cuda._sleep(SLOW)
        z = session(y) + 1
        assert y.devices() == {device}
        assert bool((z == expected).all())
        assert len(taken) == 4


@pytest.mark.skipif(bool(torch_cuda_pair_missing()), reason=torch_cuda_pair_missing() or "")
@needs_cuda
def test_a_device_that_is_not_current():
    session = cudarelu.ort.Session(one_node("Relu"), "cuda", device=1)
    assert torch.cuda.current_device() == 0
    y = session(torch.from_numpy(X).to("cuda:1"))
    assert torch.cuda.current_device() == 0
    assert y.device.index == 1
    assert y.tolist() == RELU.tolist()
    np.testing.assert_array_equal(session(X), RELU)
    with pytest.raises(ValueError, match=r"x is on cuda:0, but the session on cuda:1$"):
        session(torch.from_numpy(X).to("cuda:0"))


@pytest.mark.slow
def test_onnxruntime_is_not_imported_before_it_is_needed():
    program = "import sys, cudarelu.ort; sys.exit('onnxruntime' in sys.modules)"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    assert subprocess.run([sys.executable, "-c", program], env=environment).returncode == 0


# Copies and other processes


def test_a_pickled_session_opens_the_model_again(tmp_path, monkeypatch):
    """In another process, from a relative path, with the ops of another library."""
    library = cudarelu.load_library(LIBRARY)
    (op,) = [op for op in library.ops() if op.name == "swish"]
    case = cases(op, np.dtype(np.float32))[0]
    x = next(iter(case.inputs.values()))
    monkeypatch.chdir(tmp_path)
    onnx.save(one_op_model(op, [case]), "model.onnx")
    np.save("x.npy", x)
    session = cudarelu.ort.Session("model.onnx", "cpu", session_options=onnxruntime.SessionOptions)
    np.save("y.npy", session(x))
    for name, copied in (("deep", copy.deepcopy(session)), ("shallow", copy.copy(session))):
        assert copied.inference_session is not session.inference_session, name
        np.testing.assert_array_equal(copied(x), session(x))
    Path("session").write_bytes(pickle.dumps(session))
    code = f"""
import os, pickle
import numpy as np
os.chdir("/")
folder = {str(tmp_path)!r}
session = pickle.load(open(folder + "/session", "rb"))
np.testing.assert_array_equal(session(np.load(folder + "/x.npy")), np.load(folder + "/y.npy"))
"""
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("proto", [False, True])
def test_a_session_of_bytes_is_pickled_with_them(proto):
    model = one_node("Relu")
    if proto:
        model = onnx.load_from_string(model)
    session = pickle.loads(pickle.dumps(cudarelu.ort.Session(model, "cpu")))
    np.testing.assert_array_equal(session(X), RELU)


def test_options_that_cannot_be_pickled():
    model = one_node("Relu")
    session = cudarelu.ort.Session(model, "cpu", session_options=onnxruntime.SessionOptions())
    with pytest.raises(TypeError, match="the session of the model cannot be pickled, since its"):
        pickle.dumps(session)


def test_a_model_that_is_gone_when_a_session_is_unpickled(tmp_path):
    (tmp_path / "model.onnx").write_bytes(one_node("Relu"))
    text = pickle.dumps(cudarelu.ort.Session(tmp_path / "model.onnx", "cpu"))
    (tmp_path / "model.onnx").unlink()
    with pytest.raises(Exception, match=r"model\.onnx"):
        pickle.loads(text)
