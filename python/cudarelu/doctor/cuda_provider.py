"""The libraries that ONNX Runtime's CUDA provider needs: which ones load, and their packages.

The provider is a separate library. ONNX Runtime opens it when a session requests it, and continues
without it if it does not load.
"""

from __future__ import annotations

import contextlib
import ctypes
import io
import struct
from dataclasses import dataclass
from pathlib import Path

_PT_LOAD, _PT_DYNAMIC = 1, 2  # types of ELF segments
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

    name: str  # as the provider requests it, such as libcublas.so.13
    required: bool  # False if only some operators need it, such as Conv
    path: str | None  # None if it does not load
    error: str  # the loader's message if it does not load
    package: str  # the package to install for it


def provider_path() -> Path | None:
    """The file of the CUDA provider; None if this onnxruntime has none."""
    import onnxruntime

    path = Path(onnxruntime.__file__).parent / "capi/libonnxruntime_providers_cuda.so"
    return path if path.exists() else None


def needed(path: Path) -> list[str]:
    """The names of the libraries that a 64-bit ELF file depends on (DT_NEEDED)."""
    with path.open("rb") as file:

        def read(form: str, offset: int) -> tuple[int, ...]:
            file.seek(offset)
            return struct.unpack(form, file.read(struct.calcsize(form)))

        def string(offset: int) -> str:
            file.seek(offset)
            return file.read(256).split(b"\0")[0].decode()

        (headers,) = read("<Q", 32)
        size, count = read("<HH", 54)
        # Each is: type, flags, offset, virtual address, physical address, size in the file.
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
    """The NVIDIA libraries that the provider needs, in its order. Loads them, as it would.

    The libraries of the `nvidia-*` packages and of PyTorch need no search path. The list is empty
    if this onnxruntime has no CUDA provider.
    """
    path = provider_path()
    if path is None:
        return []
    _preload()
    names = [name for name in needed(path) if name.startswith(("libcu", "libnv"))]
    (cuda,) = [int(name.rsplit(".", 1)[1]) for name in names if name.startswith("libcudart.so.")]
    # Older providers need these two as well; newer ones open them for the first node that uses one.
    later = [name for name in ("libcudnn.so.9", f"libcufft.so.{cuda - 1}") if name not in names]
    return [_library(name, name in names, cuda) for name in names + later]


def missing() -> str | None:
    """Why ONNX Runtime cannot use CUDA here, and how to fix it; None if it should work."""
    import onnxruntime
    import torch  # only here, since the rest of this module must work without PyTorch

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
    """Loads a library and returns its path. The file may have another name, as the driver's has."""
    library = ctypes.CDLL(name)
    found = ctypes.POINTER(_LinkMap)()
    handle = ctypes.c_void_p(library._handle)
    if ctypes.CDLL(None).dlinfo(handle, _RTLD_DI_LINKMAP, ctypes.byref(found)) != 0:
        raise OSError(f"the loader does not report the path of {name}")
    return found.contents.path.decode()


def _package(name: str, cuda: int) -> str:
    stem = name.partition(".")[0]
    if stem not in _PACKAGES:
        return "the NVIDIA driver"  # libcuda
    # Since CUDA 13 the packages that follow its version have no suffix.
    suffix = f"-cu{cuda}" if cuda < 13 or stem == "libcudnn" else ""
    return _PACKAGES[stem] + suffix


def _preload() -> None:
    """Loads the libraries of the `nvidia-*` packages, which are on no search path. PyTorch loads
    its own libraries, which may be of another version."""
    import onnxruntime

    if hasattr(onnxruntime, "preload_dlls"):  # since 1.21
        with contextlib.redirect_stdout(io.StringIO()):  # it prints the libraries it cannot find
            onnxruntime.preload_dlls()
