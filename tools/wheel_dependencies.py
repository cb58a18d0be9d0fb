"""Sets the dependencies of a wheel, with the minor version of PyTorch that it is built with.

This is a provider of dynamic metadata for the build backend, configured in pyproject.toml.
"""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Mapping
from typing import Any


class Dependencies:
    def build_state(self, state: str) -> None:
        self._state = state

    def dynamic_wheel(self, settings: Mapping[str, Any]) -> dict[str, bool]:
        """Return the fields in which a wheel may differ from its source distribution."""
        return {"dependencies": True}

    def dynamic_metadata(
        self, settings: Mapping[str, Any], project: Mapping[str, Any]
    ) -> dict[str, list[str]]:
        dependencies = settings["dependencies"]
        if self._state != "sdist":
            wheels = f"torch=={_torch_minor()}.*"
            dependencies = [wheels if re.match(r"torch\b", each) else each for each in dependencies]
        return {"dependencies": dependencies}


def _torch_minor() -> str:
    try:
        version = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        raise SystemExit(
            "a wheel of cudarelu depends on the version of PyTorch that it is built with, but "
            "PyTorch is not installed: install torch, or build without --no-build-isolation"
        ) from None
    return ".".join(version.split(".")[:2])
