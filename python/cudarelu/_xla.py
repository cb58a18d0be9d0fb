"""Registers the handlers of the op modules with XLA, for JAX."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Any

# The platforms of JAX's lowering rules and, for each, XLA's name and the function of a module.
PLATFORMS = {"cpu": ("cpu", "cudarelu_xla_cpu"), "cuda": ("CUDA", "cudarelu_xla_cuda")}


def target(namespace: str, *, capturable: bool = False) -> str:
    """The name of a module's handlers in XLA. XLA puts the calls of one that is capturable, which
    is for CUDA only, into CUDA graphs."""
    return f"cudarelu.{namespace}.capturable" if capturable else f"cudarelu.{namespace}"


def register(module: Mapping[str, Any]) -> None:
    """Registers the handlers of a module, an entry of `_C.modules()`. A module that an earlier
    release built may lack some: its calls are not captured."""
    try:
        import jax.ffi
    except ImportError:  # before JAX 0.5: its arrays are read by DLPack, its tracers are refused
        return
    library = ctypes.CDLL(module["path"])

    def handler(function: str) -> Any:
        return jax.ffi.pycapsule(getattr(library, function))

    name, for_graphs = target(module["name"]), target(module["name"], capturable=True)
    for platform, function in PLATFORMS.values():
        if hasattr(library, function):
            jax.ffi.register_ffi_target(name, handler(function), platform=platform)
    if hasattr(library, "cudarelu_xla_cuda_capturable"):
        stages = dict.fromkeys(("instantiate", "execute"), handler("cudarelu_xla_cuda_capturable"))
        jax.ffi.register_ffi_target(for_graphs, stages, platform="CUDA")
    elif hasattr(library, "cudarelu_xla_cuda"):
        jax.ffi.register_ffi_target(for_graphs, handler("cudarelu_xla_cuda"), platform="CUDA")
