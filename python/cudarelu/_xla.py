"""Registers the handlers of the op modules with XLA, for JAX."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Any

# The platforms of JAX's lowering rules and, for each, XLA's name and the function of a module.
PLATFORMS = {"cpu": ("cpu", "cudarelu_xla_cpu"), "cuda": ("CUDA", "cudarelu_xla_cuda")}


def target(namespace: str) -> str:
    """The name of a module's handlers in XLA."""
    return f"cudarelu.{namespace}"


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
