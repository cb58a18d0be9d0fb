"""Writes a stub with the types of the ops' functions, which the package creates on import.

    usage: functions_stub.py MODULE STUB

MODULE is the built cudarelu._C, which contains the table of ops; STUB is cudarelu/_functions.pyi.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import torch  # noqa: F401  loads libraries that the module needs

HEAD = """\
from typing import Any, Protocol, TypeVar, overload

from numpy.typing import NDArray
from torch import Tensor

class _HasDLPack(Protocol):
    def __dlpack__(self, *args: Any, **kwargs: Any) -> Any: ...
    def __dlpack_device__(self) -> Any: ...

_T = TypeVar("_T", Tensor, NDArray[Any])
"""


def functions(op: dict[str, Any]) -> str:
    """Return the overloads of an op: for tensors and NumPy arrays, and for other arrays."""
    count = len(op["outputs"])
    result = "_T" if count == 1 else f"tuple[{', '.join(['_T'] * count)}]"
    return function(op, "_T", result) + function(op, "_HasDLPack", "Any")


def function(op: dict[str, Any], array: str, result: str) -> str:
    inputs = [
        f"{each['name']}: {array}" + (" | None = None" if each["optional"] else "")
        for each in op["inputs"]
    ]
    attributes = []
    for each in op["attributes"]:
        optional = " | None" if each["default"] is None and not each["required"] else ""
        default = "" if each["required"] else f" = {each['default']!r}"
        attributes.append(f"{each['name']}: {each['type']}{optional}{default}")
    parameters = ", ".join(inputs + ["*"] * bool(attributes) + attributes)
    return f"\n@overload\ndef {op['name']}({parameters}) -> {result}: ...\n"


def load(path: str) -> Any:
    spec = importlib.util.spec_from_file_location("_C", path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    module = load(sys.argv[1])
    (own, *_) = module.modules()
    Path(sys.argv[2]).write_text(HEAD + "".join(map(functions, module.ops(own["name"]))))
