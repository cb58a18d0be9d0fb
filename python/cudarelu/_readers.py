"""The libraries of this package that depend on PyTorch. Each minor version has a folder of its own:
``pytorch_2.14`` has ``_C`` and ``libcudarelu_torch.so`` for PyTorch 2.14.

Imports nothing that needs PyTorch.
"""

from __future__ import annotations

from pathlib import Path

from cudarelu import _build_info

_PACKAGE = Path(_build_info.__file__).absolute().parent


def folder_for(version: str) -> Path:
    """The folder of the libraries for a version of PyTorch, such as "2.14.1+cpu"; may not exist."""
    return _PACKAGE / f"pytorch_{'.'.join(version.split('.')[:2])}"


def versions() -> list[str]:
    """The minor versions of PyTorch that this installation has libraries for, in order."""
    found = [path.name.removeprefix("pytorch_") for path in _PACKAGE.glob("pytorch_*")]
    return sorted(found, key=lambda version: [int(part) for part in version.split(".")])
