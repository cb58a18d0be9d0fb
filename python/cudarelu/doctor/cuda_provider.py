"""What ONNX Runtime's CUDA provider needs: which of its libraries load here, and what brings them.

The provider is a library of its own, which ONNX Runtime opens when a session asks for it, and goes
on without where it does not load.
"""

from __future__ import annotations

import contextlib
import ctypes
import io
import struct
from dataclasses import dataclass
from pathlib import Path

_PT_LOAD, _PT_DYNAMIC = 1, 2  # of ELF
_DT_NULL, _DT_NEEDED, _DT_STRTAB = 0, 1, 5

_RTLD_DI_LINKMAP = 2  # of dlinfo

_PACKAGES = {
    "libcublas": "nvidia-cublas",
    "libcublasLt": "nvidia-cublas",
    "libcudart": "nvidia-cuda-runtime",
    "libcudnn": "nvidia-cudnn",
    "libcufft": "nvidia-cufft",
    "libcurand": "nvidia-curand",
    "libnvrtc": "nvidia-cuda-nvrtc",
}


@dataclass(frozen=True)
class Library:
    """A library that the CUDA provider opens."""

    name: str  # as the provider asks for it, such as libcublas.so.13
    required: bool  # or else only some operators need it, such as Conv
    path: str | None  # None: it does not load
    error: str  # why it does not load, as the loader says it
    package: str  # what to install for it


def provider_path() -> Path | None:
    """The file of the CUDA provider; None where this onnxruntime has none."""
    import onnxruntime

    path = Path(onnxruntime.__file__).parent / "capi/libonnxruntime_providers_cuda.so"
    return path if path.exists() else None


def needed(path: Path) -> list[str]:
    """The names of the libraries that an ELF file of 64 bits (DT_NEEDED) loads with it."""
    with path.open("rb") as file:

        def read(form: str, offset: int) -> tuple[int, ...]:
            file.seek(offset)
            return struct.unpack(form, file.read(struct.calcsize(form)))

        def string(offset: int) -> str:
            file.seek(offset)
            return file.read(256).split(b"\0")[0].decode()

        (headers,) = read("<Q", 32)
        size, count = read("<HH", 54)
        # Of each: type, flags, offset, virtual address, physical address, size in the file.
        segments = [read("<IIQQQQ", headers + size * i) for i in range(count)]
        (dynamic,) = [each for each in segments if each[0] == _PT_DYNAMIC]
        entries = []
        for i in range(dynamic[5] // 16):
            tag, value = read("<QQ", dynamic[2] + 16 * i)
            if tag == _DT_NULL:
                break
            entries.append((tag, value))
        (address,) = [value for tag, value in entries if tag == _DT_STRTAB]
        (strings,) = [
            offset + address - start
            for kind, _, offset, start, _, extent in segments
            if kind == _PT_LOAD and start <= address < start + extent
        ]
        return [string(strings + value) for tag, value in entries if tag == _DT_NEEDED]


def libraries() -> list[Library]:
    """The libraries of NVIDIA's that the provider needs, in its order; loads them, as it would.

    Those of the `nvidia-*` packages and of PyTorch are found by themselves. Empty where this
    onnxruntime has no CUDA provider.
    """
    path = provider_path()
    if path is None:
        return []
    _preload()
    names = [name for name in needed(path) if name.startswith(("libcu", "libnv"))]
    (cuda,) = [int(name.rsplit(".", 1)[1]) for name in names if name.startswith("libcudart.so.")]
    # Older providers need these two as well; newer ones open them with the first node that asks.
    later = [name for name in ("libcudnn.so.9", f"libcufft.so.{cuda - 1}") if name not in names]
    return [_library(name, name in names, cuda) for name in names + later]


def missing() -> str | None:
    """Why ONNX Runtime cannot use CUDA here, and what to do about it; None where it should."""
    import onnxruntime
    import torch  # only here: the rest is asked where PyTorch may be missing

    if "CUDAExecutionProvider" not in onnxruntime.get_available_providers():
        return (
            "this onnxruntime has no CUDA provider: install onnxruntime-gpu in place of onnxruntime"
        )
    absent = [each for each in libraries() if each.required and each.path is None]
    if absent:
        reasons = (f"{each.name} (install {each.package}): {each.error}" for each in absent)
        return f"the CUDA provider needs libraries that do not load: {'; '.join(reasons)}"
    if not torch.cuda.is_available():
        return f"PyTorch {torch.__version__} sees no CUDA device"
    return None


def _library(name: str, required: bool, cuda: int) -> Library:
    path, error = None, ""
    try:
        path = _load(name)
    except OSError as reason:
        error = str(reason)
    return Library(name, required, path, error, _package(name, cuda))


class _LinkMap(ctypes.Structure):
    """The beginning of the loader's struct link_map."""

    _fields_ = (("address", ctypes.c_void_p), ("path", ctypes.c_char_p))


def _load(name: str) -> str:
    """The path that a library is loaded from. Its file may have another name: the driver's has."""
    library = ctypes.CDLL(name)
    found = ctypes.POINTER(_LinkMap)()
    handle = ctypes.c_void_p(library._handle)
    if ctypes.CDLL(None).dlinfo(handle, _RTLD_DI_LINKMAP, ctypes.byref(found)) != 0:
        raise OSError(f"the loader does not tell where {name} is")
    return found.contents.path.decode()


def _package(name: str, cuda: int) -> str:
    stem = name.partition(".")[0]
    if stem not in _PACKAGES:
        return "the NVIDIA driver"  # libcuda
    # Since CUDA 13 the packages that follow its version have no suffix.
    suffix = f"-cu{cuda}" if cuda < 13 or stem == "libcudnn" else ""
    return _PACKAGES[stem] + suffix


def _preload() -> None:
    """Load the libraries of the `nvidia-*` packages, which no search path leads to. PyTorch has
    loaded its own, which may be of another version."""
    import onnxruntime

    if hasattr(onnxruntime, "preload_dlls"):  # since 1.21
        with contextlib.redirect_stdout(io.StringIO()):  # it prints what it does not find
            onnxruntime.preload_dlls()
