"""A second op module, `my`, which tests/my_ops declares; and what hides modules of other tests."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

import cudarelu
from cudarelu import _modules, _table
from support.ort_infer import BUILD

LIBRARY = BUILD / "libmy_ops.so"

_HIDDEN: dict[str, tuple[cudarelu.OpModule, list[cudarelu.OpInfo]]] = {}


def my() -> cudarelu.OpModule:
    """The module, with an op `swish` that has an attribute `beta`."""
    return cudarelu.load_library(LIBRARY)


@contextlib.contextmanager
def only_own_module() -> Iterator[None]:
    """Hides all modules but that of cudarelu, until they are loaded again; in the end, those that
    have been loaded. A process can neither unload a module nor register it twice with all hosts."""
    register = _modules._register

    def register_once(fields: Mapping[str, Any]) -> None:
        if fields["name"] in _HIDDEN:
            _show(fields["name"])
        else:
            register(fields)

    before = _hide()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_modules, "_register", register_once)
        yield
    _hide()
    for name in before:
        _show(name)


def _hide() -> list[str]:
    """Hides all modules but that of cudarelu; returns their names."""
    names = [name for name in _modules._MODULES if name != "cudarelu"]
    for name in names:
        _HIDDEN[name] = _modules._MODULES[name], _table.ops_of(name)
        del _modules._MODULES[name]
    for registry in (_table._OPS, _table._OPS_IN_ONNX):
        for key in [key for key, op in registry.items() if op.namespace != "cudarelu"]:
            del registry[key]
    return names


def _show(name: str) -> None:
    _modules._MODULES[name], ops = _HIDDEN.pop(name)
    for op in ops:
        _table._OPS[op.qualified_name] = op
        for key in filter(None, ((op.onnx.domain, op.onnx.op_type), op.onnx.alias)):
            _table._OPS_IN_ONNX.setdefault(key, op)
