"""The cache of the op modules that `cudarelu.load` builds: modules/<name>/<key>/lib<name>.so."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """The folder of the cache: $CUDARELU_CACHE_DIR, or cudarelu in the user's cache folder."""
    if chosen := os.environ.get("CUDARELU_CACHE_DIR"):
        return Path(chosen)
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "cudarelu"


def cached_libraries() -> dict[str, Path]:
    """The last library of each module in the cache, by namespace. None is loaded."""
    found = (cache_folder() / "modules").glob("*/*-*/lib*.so")
    newest = sorted(found, key=lambda library: library.stat().st_mtime_ns)
    return {library.parents[1].name: library for library in newest}
