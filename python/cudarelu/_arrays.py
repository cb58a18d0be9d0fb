"""Runs the ops on arrays of other libraries, such as CuPy and JAX; converts arrays for sessions.

Arrays and tensors share memory through DLPack, in both directions. For CuPy, an op runs on CuPy's
current stream, so no stream has to wait. For other libraries it runs on PyTorch's current stream,
and DLPack synchronizes the streams.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from torch.utils.dlpack import DLDeviceType

from cudarelu._calls import type_name
from cudarelu._pytorch.functions import FUNCTIONS, overload_of
from cudarelu._table import OpInfo, op_named

Tensors = dict[str, torch.Tensor]
Attributes = dict[str, float | int | str]

_LEGACY_STREAM, _PER_THREAD_STREAM = 1, 2  # CUDA's handles of its two default streams
_RELEASER = ThreadPoolExecutor(1, "cudarelu")  # starts its thread with the first task


def call(name: str, inputs: list[Any], attributes: Attributes) -> Any:
    """Runs the op of a qualified name on arrays of one library. An absent input is None.

    Returns new arrays of that library. Raises TypeError for an unsupported kind of input or dtype,
    ValueError for an invalid shape, and RuntimeError for an invalid value.
    """
    op = op_named(name)
    jax = sys.modules.get("jax")
    if jax is not None and any(_needs_jax(x, jax) for x in inputs):
        from cudarelu.jax.primitives import call as call_jax

        return call_jax(op, inputs, attributes)
    tf = sys.modules.get("tensorflow")
    if tf is not None and any(_needs_tensorflow(x, tf) for x in inputs):
        from cudarelu.tensorflow import call as call_tensorflow

        return call_tensorflow(op, inputs, attributes)
    given = {p.name: x for p, x in zip(op.inputs, inputs, strict=True) if x is not None}
    library = common_library(op.name, given)
    example_name, example = next(iter(given.items()))
    with _reading(op.name, example_name):
        device = example.__dlpack_device__()
    with stream_of(library, device) as may_reuse_inputs:
        tensors = {each: tensor_of(op.name, each, x) for each, x in given.items()}
        result = _run(op, tensors, attributes)
        if may_reuse_inputs:
            release_when_read(list(tensors.values()))
        if isinstance(result, tuple):
            return tuple(array_of(library, y, example) for y in result)
        return array_of(library, result, example)


def _needs_jax(x: Any, jax: Any) -> bool:
    """Whether only JAX itself can read the array: a tracer, or shards on several devices."""
    return isinstance(x, jax.Array) and (
        isinstance(x, jax.core.Tracer) or len(x.sharding.device_set) > 1
    )


def _needs_tensorflow(x: Any, tf: Any) -> bool:
    """Whether it is a tensor or a variable of TensorFlow, or one of Keras."""
    kinds = "__tf_tensor__", "_keras_history"
    return tf.is_tensor(x) or any(hasattr(x, each) for each in kinds)


def _library_of(x: Any) -> Any:
    """The module of the array's library; None if `x` is not a supported array.

    Masked arrays are not supported, since the mask would be lost. Neither are JAX tracers, which
    lack one of DLPack's two methods; only a session gets them here: `call` leaves them to JAX.
    """
    if isinstance(x, torch.Tensor):
        return torch
    if isinstance(x, np.ndarray):
        return None if isinstance(x, np.ma.MaskedArray) else np
    if not (hasattr(x, "__dlpack__") and hasattr(x, "__dlpack_device__")):
        return None
    if hasattr(x, "__array_namespace__"):
        library = x.__array_namespace__()
    else:
        library = sys.modules.get(type(x).__module__.partition(".")[0])
    return library if hasattr(library, "from_dlpack") else None


def _kind_of(x: Any) -> str:
    name = type_name(x)
    return f"an {name}" if name[0] in "aeiou" else f"a {name}"


def common_library(name: str, given: dict[str, Any]) -> Any:
    """The module of the library of all arrays. Raises TypeError if they have no common library."""
    first, *others = [_library_of(x) for x in given.values()]
    if first is not None and all(library is first for library in others):
        return first
    kinds = " and ".join(f"{each} is {_kind_of(x)}" for each, x in given.items())
    raise TypeError(
        f"{name}: takes torch tensors, or arrays of one library (NumPy, CuPy, JAX or another with "
        f"DLPack), but {kinds}"
    )


@contextlib.contextmanager
def _reading(name: str, parameter: str) -> Iterator[None]:
    try:
        yield
    # DLPack does not support every dtype and every kind of memory.
    except (BufferError, RuntimeError, TypeError) as error:
        raise TypeError(f"{name}: cannot read {parameter}: {error}") from error


@contextlib.contextmanager
def stream_of(library: Any, device: tuple[int, int]) -> Iterator[bool]:
    """Makes the device and the stream of the op PyTorch's current ones.

    Yields whether the library may reuse the memory of an input before that stream has read it.
    """
    kind, index = device
    if kind != DLDeviceType.kDLCUDA:
        yield False
        return
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.cuda.device(index))
        stream = torch.cuda.current_stream()
        if library.__name__ == "cupy":
            pointer = library.cuda.get_current_stream().ptr
            if pointer == _PER_THREAD_STREAM:
                # PyTorch rejects this stream. CUDA synchronizes it with the legacy stream.
                stack.enter_context(library.cuda.ExternalStream(_LEGACY_STREAM))
            if pointer <= _PER_THREAD_STREAM:
                stream = torch.cuda.default_stream()
            else:
                stream = torch.cuda.ExternalStream(pointer, index)
        stack.enter_context(torch.cuda.stream(stream))
        yield library.__name__ not in ("cupy", "numpy", "torch")


def tensor_of(name: str, parameter: str, x: Any) -> torch.Tensor:
    """A tensor that shares the memory of an array, or a copy where tensors do not support its
    strides or byte order. Raises TypeError if DLPack cannot share the array."""
    if isinstance(x, torch.Tensor):
        return x.detach()
    if isinstance(x, np.ndarray):
        x = np.require(x, x.dtype.newbyteorder("="), "A")
    if any(stride < 0 for stride in getattr(x, "strides", ())):
        x = x.copy()  # tensors have no negative strides
    if isinstance(x, np.ndarray) and x.dtype.name == "bfloat16":  # not supported by NumPy's DLPack
        return torch.from_dlpack(x.view(np.int16)).view(torch.bfloat16)
    with _reading(name, parameter):
        return torch.from_dlpack(x)


def array_of(library: Any, y: torch.Tensor, example: Any) -> Any:
    """An array of the library that shares the memory of a tensor."""
    if library is torch:
        return y
    if library is np:
        if y.dtype != torch.bfloat16:
            return y.numpy()
        from ml_dtypes import bfloat16

        return y.view(torch.int16).numpy().view(bfloat16)
    # A library whose arrays have no strides, such as JAX, accepts only row-major memory.
    return library.from_dlpack(y if hasattr(example, "strides") else y.contiguous())


def _run(op: OpInfo, tensors: Tensors, attributes: Attributes) -> Any:
    try:
        device = next(iter(tensors.values())).device
        with torch.autocast(device.type, enabled=False):  # it applies to the user's tensors only
            return FUNCTIONS[op.qualified_name](**tensors, **attributes)
    except RuntimeError:
        _check(op, tensors, attributes)
        raise  # the arguments are valid


def _check(op: OpInfo, tensors: Tensors, attributes: Attributes) -> None:
    """Raises TypeError or ValueError if the op rejects the arguments; runs on the meta device."""
    overload = overload_of(op)
    try:
        overload(**{each: x.to("meta") for each, x in tensors.items()}, **attributes)
    except NotImplementedError as error:
        raise TypeError(str(error)) from None
    except RuntimeError as error:
        raise ValueError(str(error)) from None


def release_when_read(tensors: list[torch.Tensor]) -> None:
    """Keeps the inputs alive until the current stream has read them.

    JAX reuses memory as soon as no array and no tensor refers to it. It does not donate an array
    while a tensor refers to it.
    """
    read = torch.cuda.Event(blocking=True)
    read.record()
    _RELEASER.submit(_wait, read, tensors)


def finish_releases() -> None:
    """Waits until all kept inputs are released."""
    _RELEASER.submit(lambda: None).result()


def _wait(read: torch.cuda.Event, tensors: list[torch.Tensor]) -> None:
    read.synchronize()  # the tensors are released when this function returns
