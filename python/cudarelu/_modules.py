"""The op modules: libraries of ops with a namespace, such as the one of this package."""

from __future__ import annotations

import difflib
import os
import threading
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from cudarelu import _C, _xla
from cudarelu._pytorch import vmap
from cudarelu._pytorch.after_import import after_import
from cudarelu._pytorch.functions import FUNCTIONS, register, substitute_in_graphs
from cudarelu._table import OpInfo, add_ops, ops_of


class OpModule(ModuleType):  # a ModuleType, since TorchScript and Dynamo look into these
    """A loaded op module, whose attributes are the functions of its ops: `my.swish(x, beta=2.0)`.

    The functions take what those of `cudarelu` take, and raise the same errors. An op is also
    `torch.ops.<name>.<op>`. Modules, and their functions, are pickled as the path of the library.

    Attributes:
        name: the namespace of the ops.
        path: the library.
        built_for: the devices with kernels, such as "the CPU and CUDA architectures 80 90".
    """

    def __init__(self, fields: Mapping[str, Any]) -> None:
        super().__init__(fields["name"], f"The ops of {fields['path']}.")
        declared = ops_of(fields["name"])
        vars(self).update({op.name: FUNCTIONS[op.qualified_name] for op in declared})
        self.name: str = fields["name"]
        self.path: str = fields["path"]
        self.built_for: str = fields["built_for"]

    def ops(self) -> list[OpInfo]:
        """The declarations of the ops, in the order of the table."""
        return ops_of(self.name)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        close = difflib.get_close_matches(name, [op.name for op in ops_of(self.name)])
        meant = f"; did you mean {' or '.join(close)}?" if close else ""
        raise AttributeError(f"the op module {self.name} has no {name}{meant}")

    def __repr__(self) -> str:
        count = len(ops_of(self.name))
        return f"<op module {self.name}: {count} ops for {self.built_for}, {self.path}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return load_library, (self.path,)


_MODULES: dict[str, OpModule] = {}  # by name, in the order of loading
_LOCK = threading.Lock()


def load_library(path: str | os.PathLike[str]) -> OpModule:
    """Loads a library of ops, and registers its ops with PyTorch and with all of this package.

    The library stays loaded until the process ends. Loading it again returns the same module.

    Args:
        path: the library, such as "libmy_ops.so".

    Raises:
        ValueError: for a file that is not a library of ops, that was built for another version of
            this library, or whose namespace another library has.
    """
    with _LOCK:
        name = _C.load_module(os.fspath(path))
        if name not in _MODULES:
            _register(next(each for each in _C.modules() if each["name"] == name))
        return _MODULES[name]


load_library.__module__ = "cudarelu"  # the name in pickles


def modules() -> list[OpModule]:
    """The loaded op modules, in the order of loading. The first one has the ops of `cudarelu`."""
    return list(_MODULES.values())


def module_named(name: str) -> OpModule:
    """The loaded module with a namespace."""
    return _MODULES[name]


def _register(fields: Mapping[str, Any]) -> None:
    """Registers a module, an entry of `_C.modules()`, with all parts of this package."""
    added = add_ops(fields)
    register(added)
    vmap.register(fields["name"], added)
    # These wait for a program that compiles or shards: the parts of PyTorch take long to import.
    after_import("torch._dynamo", lambda: substitute_in_graphs(added))
    after_import("torch.distributed.tensor", lambda: _add_to_dtensor(added))
    after_import("torch.utils.flop_counter", lambda: _add_to_flop_counter(added))
    after_import("jax", lambda: _xla.register(fields))
    after_import("cudarelu.tensorflow", lambda: _add_to_tensorflow(added))
    after_import("cudarelu.inductor", lambda: _add_to_inductor(added))
    _MODULES[fields["name"]] = OpModule(fields)


def _add_to_dtensor(added: list[OpInfo]) -> None:
    from cudarelu._pytorch import dtensor

    dtensor.register(added)


def _add_to_flop_counter(added: list[OpInfo]) -> None:
    from cudarelu import _flops

    _flops.register(added)


def _add_to_tensorflow(added: list[OpInfo]) -> None:
    from cudarelu import tensorflow

    tensorflow.register(added)


def _add_to_inductor(added: list[OpInfo]) -> None:
    from cudarelu import inductor

    inductor.register(added)


for _each in _C.modules():
    _register(_each)
