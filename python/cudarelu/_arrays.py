"""The ops on arrays of other libraries, such as CuPy and JAX; and arrays as tensors, for sessions.

Memory is shared by DLPack, both ways. For CuPy an op runs on its current stream, so that nothing
has to wait; for others on PyTorch's current stream, and DLPack makes streams wait for each other.
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

from cudarelu._pytorch.functions import FUNCTIONS
from cudarelu._table import ops

Tensors = dict[str, torch.Tensor]
Attributes = dict[str, float | int | str]

_OPS = {op.name: op for op in ops()}
_LEGACY_STREAM, _PER_THREAD_STREAM = 1, 2  # handles of CUDA's that stand for its default streams
_RELEASER = ThreadPoolExecutor(1, "cudarelu")  # has no thread before its first task


def call(name: str, inputs: list[Any], attributes: Attributes) -> Any:
    """Run an op on arrays of one library; None is an input that is left out.

    Returns new arrays of that library. Raises TypeError for inputs of another kind or dtype and
    ValueError for shapes and values.
    """
    op = _OPS[name]
    given = {p.name: x for p, x in zip(op.inputs, inputs, strict=True) if x is not None}
    library = common_library(name, given)
    example_name, example = next(iter(given.items()))
    with _reading(name, example_name):
        device = example.__dlpack_device__()
    with stream_of(library, device) as may_reuse_inputs:
        tensors = {each: tensor_of(name, each, x) for each, x in given.items()}
        result = _run(name, tensors, attributes)
        if may_reuse_inputs:
            release_when_read(list(tensors.values()))
        if isinstance(result, tuple):
            return tuple(array_of(library, y, example) for y in result)
        return array_of(library, result, example)


def _library_of(x: Any) -> Any:
    """The module of the array's library; None for what is no array, for a masked one, whose mask
    would be lost, and for a tracer of JAX's, which lacks the second of DLPack's methods."""
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


def common_library(name: str, given: dict[str, Any]) -> Any:
    """The module of the library of all these arrays. Raises TypeError where there is none."""
    first, *others = [_library_of(x) for x in given.values()]
    if first is not None and all(library is first for library in others):
        return first
    kinds = " and ".join(f"{each} is a {_kind(x)}" for each, x in given.items())
    raise TypeError(
        f"{name}: takes torch tensors, or arrays of one library (NumPy, CuPy, JAX or another with "
        f"DLPack; no tracers), but {kinds}"
    )


def _kind(x: Any) -> str:
    return f"{type(x).__module__}.{type(x).__qualname__}".removeprefix("builtins.")


@contextlib.contextmanager
def _reading(name: str, parameter: str) -> Iterator[None]:
    try:
        yield
    except (
        BufferError,
        RuntimeError,
        TypeError,
    ) as error:  # of a dtype or a memory that DLPack does not share
        raise TypeError(f"{name}: cannot read {parameter}: {error}") from error


@contextlib.contextmanager
def stream_of(library: Any, device: tuple[int, int]) -> Iterator[bool]:
    """Make the device, and the stream that the op is to run on, PyTorch's current ones. Gives
    whether the library may reuse the memory of an input before that stream has read it."""
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
                # PyTorch refuses it. The legacy stream waits for it, and it for the legacy stream.
                stack.enter_context(library.cuda.ExternalStream(_LEGACY_STREAM))
            if pointer <= _PER_THREAD_STREAM:
                stream = torch.cuda.default_stream()
            else:
                stream = torch.cuda.ExternalStream(pointer, index)
        stack.enter_context(torch.cuda.stream(stream))
        yield library.__name__ not in ("cupy", "numpy", "torch")


def tensor_of(name: str, parameter: str, x: Any) -> torch.Tensor:
    """A tensor over the memory of an array. Raises TypeError where there can be none."""
    if isinstance(x, torch.Tensor):
        return x.detach()
    if isinstance(x, np.ndarray):
        x = np.require(x, x.dtype.newbyteorder("="), "A")
    if any(stride < 0 for stride in getattr(x, "strides", ())):
        x = x.copy()  # tensors have no negative strides
    if isinstance(x, np.ndarray) and x.dtype.name == "bfloat16":  # which its DLPack lacks
        return torch.from_dlpack(x.view(np.int16)).view(torch.bfloat16)
    with _reading(name, parameter):
        return torch.from_dlpack(x)


def array_of(library: Any, y: torch.Tensor, example: Any) -> Any:
    """An array of the library over the memory of a tensor."""
    if library is torch:
        return y
    if library is np:
        if y.dtype != torch.bfloat16:
            return y.numpy()
        from ml_dtypes import bfloat16

        return y.view(torch.int16).numpy().view(bfloat16)
    # A library whose arrays have no strides, such as JAX, takes row-major memory alone.
    return library.from_dlpack(y if hasattr(example, "strides") else y.contiguous())


def _run(name: str, tensors: Tensors, attributes: Attributes) -> Any:
    try:
        device = next(iter(tensors.values())).device
        with torch.autocast(device.type, enabled=False):  # is for tensors
            return FUNCTIONS[name](**tensors, **attributes)
    except RuntimeError:
        _check(name, tensors, attributes)
        raise  # not for the arguments' sake


def _check(name: str, tensors: Tensors, attributes: Attributes) -> None:
    """Raise what is wrong with the arguments as it is raised for arrays, without any data."""
    overload = getattr(torch.ops.cudarelu, name).default
    try:
        overload(**{each: x.to("meta") for each, x in tensors.items()}, **attributes)
    except NotImplementedError as error:
        raise TypeError(str(error)) from None
    except RuntimeError as error:
        raise ValueError(str(error)) from None


def release_when_read(tensors: list[torch.Tensor]) -> None:
    """Keep the inputs until the current stream has read them. JAX hands memory on as soon as no
    array and no tensor needs it; nor does it donate an array that a tensor still needs."""
    read = torch.cuda.Event(blocking=True)
    read.record()
    _RELEASER.submit(_wait, read, tensors)


def finish_releases() -> None:
    """Wait until nothing is kept any more."""
    _RELEASER.submit(lambda: None).result()


def _wait(read: torch.cuda.Event, tensors: list[torch.Tensor]) -> None:
    read.synchronize()  # the caller's reference to the tensors ends with the call
