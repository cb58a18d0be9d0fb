"""Arrays of other libraries: a small library of this test, CuPy and JAX.

test_ops.py tests the results for all dtypes and cases.
"""

import contextlib
import ctypes
import gc
import threading
import types

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import cudarelu
from cudarelu.testing.environment import cupy_missing, jax_missing
from cudarelu.testing.torch_calls import as_tuple, attributes_of, inputs_of
from support.torch_calls import OPS


def skip_for(reason):
    return pytest.mark.skipif(bool(reason), reason=reason or "")


NEEDS_CUPY = skip_for(cupy_missing())
NEEDS_JAX = skip_for(jax_missing("cpu"))
NEEDS_JAX_CUDA = skip_for(jax_missing("cuda"))
SLOW = 200_000_000  # clock cycles, a tenth of a second: longer than a call on the host


class Array:
    """An array of a library that supports only the part of the array API that the ops need."""

    def __init__(self, data):
        self.data = np.asarray(data)

    def __dlpack__(self, **options):
        return self.data.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.data.__dlpack_device__()

    def __array_namespace__(self):
        return LIBRARY

    @property
    def pointer(self):
        return self.data.ctypes.data


class StridedArray(Array):
    @property
    def strides(self):
        return self.data.strides

    def copy(self):
        return StridedArray(self.data.copy())


def from_dlpack(tensor):
    # The tensor keeps the NumPy array alive whose memory it uses.
    return StridedArray(np.from_dlpack(tensor))


LIBRARY = types.SimpleNamespace(__name__="library", from_dlpack=from_dlpack)


class Record(TorchDispatchMode):
    """Records the addresses of the inputs and outputs of a call in PyTorch."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        if function.namespace == "cudarelu":
            self.inputs = [x.data_ptr() for x in args if isinstance(x, torch.Tensor)]
            self.outputs = [y.data_ptr() for y in as_tuple(result)]
        return result


def jax_array(data, device="cpu"):
    import jax

    return jax.device_put(data, jax.devices(device)[0])


def cupy_array(data):
    import cupy

    return cupy.asarray(data)


MAKERS = [
    pytest.param(Array, lambda x: x.pointer, id="library"),
    pytest.param(StridedArray, lambda x: x.pointer, id="library-with-strides"),
    pytest.param(jax_array, lambda x: x.unsafe_buffer_pointer(), id="jax-cpu", marks=NEEDS_JAX),
    pytest.param(
        lambda data: jax_array(data, "cuda"),
        lambda x: x.unsafe_buffer_pointer(),
        id="jax-cuda",
        marks=NEEDS_JAX_CUDA,
    ),
    pytest.param(cupy_array, lambda x: x.data.ptr, id="cupy", marks=NEEDS_CUPY),
]


@pytest.mark.parametrize(("make", "pointer"), MAKERS)
@pytest.mark.parametrize("name", OPS)
def test_no_copy_is_made(name, make, pointer):
    op = OPS[name]
    inputs = [make(x.numpy()) for x in inputs_of(op)]
    with Record() as record:
        outputs = as_tuple(getattr(cudarelu, name)(*inputs, **attributes_of(op)))
    assert record.inputs == [pointer(x) for x in inputs]
    assert record.outputs == [pointer(y) for y in outputs]


@pytest.mark.parametrize(("make", "pointer"), MAKERS)
def test_inputs_by_name_and_left_out(make, pointer):
    points, ends = make(np.float32([[0, 0, 0], [3, 4, 0]])), make(np.int32([2]))
    idx, distance = cudarelu.knn_query(xyz=points, offset=ends, new_offset=ends, nsample=2)
    assert torch.from_dlpack(idx).tolist() == [[0, 1], [1, 0]]
    assert torch.from_dlpack(distance).tolist() == [[0, 5], [0, 5]]


LAYOUTS = {
    "transposed": lambda x: x.T,
    "strided": lambda x: x[:, ::2],
    "reversed": lambda x: x[::-1, ::-1],
    "expanded": lambda x: np.broadcast_to(x[:1], x.shape),
    "empty": lambda x: x[:0],
    "scalar": lambda x: x[1, 2].reshape(()),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_strides_and_read_only_memory(layout):
    data = np.arange(-10.0, 10).reshape(4, 5)
    data.flags.writeable = False
    x = LAYOUTS[layout](data)
    expected = np.maximum(x, 0)
    y = cudarelu.relu(StridedArray(x))
    assert type(y) is StridedArray
    np.testing.assert_array_equal(y.data, expected)
    if layout == "transposed":
        assert y.strides == x.strides
    if layout != "reversed":  # a library without strides has no such arrays
        y = cudarelu.relu(Array(x))
        np.testing.assert_array_equal(y.data, expected)
        assert y.data.flags.c_contiguous


X, WRONG = np.float32([1, 2]), np.float32([1, 2, 3])


class Unreadable(Array):
    def __dlpack__(self, **options):
        raise BufferError("of a kind that has no name")


@pytest.mark.parametrize(
    ("name", "inputs", "attributes", "error", "message"),
    [
        ("add", (Array(X), Array(WRONG)), {}, ValueError, r"add: .* \[2\] in a but \[3\] in b"),
        (
            "tanh",
            (Array(np.int32([1])),),
            {},
            TypeError,
            "tanh: x is int32; supported dtypes: float32",
        ),
        ("relu", (Array(X > 0),), {}, TypeError, "relu: x is bool; supported dtypes:"),
        ("add", (Array(X), X), {}, TypeError, "but a is a .*Array and b is a numpy.ndarray$"),
        ("add", (torch.tensor(X), Array(X)), {}, TypeError, "a is a torch.Tensor and b is a .*Arr"),
        ("add", (X, 1), {}, TypeError, "but a is a numpy.ndarray and b is an int$"),
        ("add", (Array(X), [1.0]), {}, TypeError, "a is a test_arrays.Array and b is a list$"),
        ("relu", (Unreadable(X),), {}, TypeError, "relu: cannot read x: of a kind that has no nam"),
        ("scale", (Array(X),), {"factor": "1"}, TypeError, "factor must be a float, not str"),
    ],
)
def test_errors(name, inputs, attributes, error, message):
    with pytest.raises(error, match=message) as raised:
        getattr(cudarelu, name)(*inputs, **attributes)
    assert type(raised.value) is error


def test_an_error_of_the_device_is_not_one_of_the_arguments(monkeypatch):
    def fail(**tensors):
        raise RuntimeError("relu: CUDA failed")

    from cudarelu import _arrays

    monkeypatch.setitem(_arrays.FUNCTIONS, "cudarelu::relu", fail)
    with pytest.raises(RuntimeError, match="relu: CUDA failed"):
        _arrays.call("cudarelu::relu", [Array(X)], {})


@NEEDS_JAX
def test_errors_of_jax():
    with pytest.raises(TypeError, match="relu: x is float8_e4m3fn; supported dtypes:"):
        cudarelu.relu(jax_array(X).astype("float8_e4m3fn"))
    x = jax_array(X)
    x.delete()
    with pytest.raises(TypeError, match="relu: cannot read x"):
        cudarelu.relu(x)


# Streams


@NEEDS_CUPY
@pytest.mark.parametrize("kind", ["non-blocking", "null", "per-thread"])
def test_the_current_stream_of_cupy(kind):
    """The call runs after the work queued before it and before the work queued after it, and the
    host does not wait."""
    import cupy

    stream = {
        "non-blocking": cupy.cuda.Stream(non_blocking=True),
        "null": cupy.cuda.Stream.null,
        "per-thread": cupy.cuda.Stream.ptds,
    }[kind]
    x = cupy.full(1 << 22, -1, np.float32)
    with stream:
        (cudarelu.relu(x) + 1).sum().get()  # compiles and loads the kernels
        cupy.cuda.Device().synchronize()
        if kind == "non-blocking":
            with torch.cuda.stream(torch.cuda.ExternalStream(stream.ptr)):
                torch.cuda._sleep(SLOW)
        else:  # CUDA synchronizes the default streams with each other
            torch.cuda._sleep(SLOW)
        x.fill(3)
        y = cudarelu.relu(x)
        x.fill(-1)  # runs after x is read
        z = y + 1
        assert not stream.done
        assert cupy.cuda.get_current_stream().ptr == stream.ptr
    stream.synchronize()
    assert bool((y == 3).all())
    assert bool((z == 4).all())
    assert torch.cuda.current_stream() == torch.cuda.default_stream()


@NEEDS_CUPY
def test_graph_of_cupy():
    import cupy

    x = cupy.full(1000, -1, np.float32)
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        cudarelu.relu(x)
        stream.synchronize()
        stream.begin_capture()
        y = cudarelu.relu(x)
        graph = stream.end_capture()
        x.fill(5)
        graph.launch(stream)
    stream.synchronize()
    assert bool((y == 5).all())


@NEEDS_CUPY
def test_strides_of_cupy():
    import cupy

    for layout in LAYOUTS.values():
        x = layout(cupy.arange(-10.0, 10).reshape(4, 5))
        y = cudarelu.relu(x)
        assert type(y) is cupy.ndarray
        np.testing.assert_array_equal(y.get(), np.maximum(x.get(), 0))


@contextlib.contextmanager
def held(stream, at_most=20.0):
    """Blocks the stream within the `with` block, but for no more than `at_most` seconds, so that a
    test that waits for the stream does not wait forever."""
    gate = torch.zeros(1, dtype=torch.int32, pin_memory=True)
    wait = ctypes.CDLL("libcuda.so.1").cuStreamWaitValue32_v2
    wait.argtypes = [ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint32, ctypes.c_uint]
    assert wait(stream.cuda_stream, gate.data_ptr(), 1, 0) == 0
    timer = threading.Timer(at_most, gate.fill_, [1])
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        gate.fill_(1)
        stream.synchronize()  # before the memory of the gate is released


@NEEDS_JAX_CUDA
def test_an_input_of_jax_lives_until_it_is_read():
    import jax
    import jax.numpy as jnp

    (device, *_) = jax.devices("cuda")
    stream = torch.cuda.Stream()
    with jax.default_device(device), torch.cuda.stream(stream):
        expected = jnp.full(1 << 22, 3, jnp.float32)
        x = expected + 0
        cudarelu.relu(expected).block_until_ready()
        with held(stream):
            y = cudarelu.relu(x)
            del x
            gc.collect()
            # JAX would immediately reuse the memory of x for one of these.
            taken = [jnp.full(1 << 22, -1, jnp.float32).block_until_ready() for _ in range(4)]
            assert not stream.query()  # neither library has waited for the stream
        assert bool((y == expected).all())
        assert len(taken) == 4


@NEEDS_JAX_CUDA
def test_jax_waits_for_the_stream_and_the_stream_for_jax():
    import jax
    import jax.numpy as jnp

    (device, *_) = jax.devices("cuda")
    with jax.default_device(device), torch.cuda.stream(torch.cuda.Stream()):
        slow = jax.jit(lambda a: jax.lax.fori_loop(0, 200, lambda _, b: jnp.tanh(a @ b), a))
        a = jnp.full((2048, 2048), 0.5, jnp.float32)
        expected = slow(a) + 1
        expected.block_until_ready()
        x = slow(a)
        y = cudarelu.relu(x)  # while x is being computed
        torch.cuda._sleep(SLOW)
        z = cudarelu.relu(y) + 1  # JAX computes the sum; PyTorch's stream is still asleep
        assert bool((z == expected).all())


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="there is one CUDA device at most")
@NEEDS_CUPY
def test_cupy_device_that_is_not_current():
    import cupy

    with cupy.cuda.Device(1):
        x = cupy.full(1000, 3, np.float32)
    y = cudarelu.relu(x)
    assert y.device.id == 1
    assert cupy.cuda.runtime.getDevice() == torch.cuda.current_device() == 0
    with cupy.cuda.Device(1):
        assert bool((y == 3).all())
