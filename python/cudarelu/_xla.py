"""Registers the handlers of the op modules with XLA, for JAX."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Any

# The platforms of JAX's lowering rules and, for each, XLA's name and the function of a module.
PLATFORMS = {"cpu": ("cpu", "cudarelu_xla_cpu"), "cuda": ("CUDA", "cudarelu_xla_cuda")}

_capturable: dict[str, str] = {}  # the handlers for CUDA graphs, of the modules that have one


def target(namespace: str, *, capturable: bool = False) -> str:
    """The name of a module's handlers in XLA. XLA puts the calls of one that is capturable, which
    is for CUDA only, into CUDA graphs; a module that an earlier release built has none."""
    name = f"cudarelu.{namespace}"
    return _capturable.get(namespace, name) if capturable else name


def register(module: Mapping[str, Any]) -> None:
    """Registers the handlers of a module, an entry of `_C.modules()`."""
    try:
        import jax.ffi
    except ImportError:  # before JAX 0.5: its arrays are read by DLPack, its tracers are refused
        return
    library = ctypes.CDLL(module["path"])
    for platform, function in PLATFORMS.values():
        if hasattr(library, function):  # a module that an earlier release built has none
            handler = jax.ffi.pycapsule(getattr(library, function))
            jax.ffi.register_ffi_target(target(module["name"]), handler, platform=platform)
    if hasattr(library, "cudarelu_xla_cuda_capturable"):
        handler = jax.ffi.pycapsule(library.cudarelu_xla_cuda_capturable)
        stages = {"instantiate": handler, "execute": handler}
        name = f"{target(module['name'])}.capturable"
        jax.ffi.register_ffi_target(name, stages, platform="CUDA")
        _capturable[module["name"]] = name
