"""The cache of what `cudarelu.load` builds and writes.

modules/<name>/<key>-<digest>/ has the objects of a module; the digest is of the files that its
sources include. Its folders, named by the digest of what is linked to the objects, have libraries.
inline/<key>/ has sources that were given as text or made, and tensorflow/<name>-<key>/ the copy of
TensorFlow's library for a module.
"""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """The folder of the cache: $CUDARELU_CACHE_DIR, or cudarelu in the user's cache folder."""
    if chosen := os.environ.get("CUDARELU_CACHE_DIR"):
        return Path(chosen)
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "cudarelu"


def make_private(folder: Path) -> Path:
    """Creates a folder of the cache, for the user alone, and returns it.

    Raises:
        PermissionError: as `check_private` does.
        OSError: if it cannot be created.
    """
    cache_folder().parent.mkdir(parents=True, exist_ok=True)
    for each in _from_cache_folder(folder):
        each.mkdir(mode=0o700, exist_ok=True)
    check_private(folder)
    return folder


def check_private(path: Path) -> None:
    """What the cache has is run, so that no other user may have written it.

    Raises:
        PermissionError: if the file or folder, or one that it is in up to the cache's, belongs to
            another user than this one and root, or can be written by others.
    """
    for each in _from_cache_folder(path):
        status = each.stat()
        if status.st_uid not in (os.geteuid(), 0) or status.st_mode & 0o022:
            raise PermissionError(
                f"{each} can be written by other users, and what is in the cache is run; remove it "
                "or set CUDARELU_CACHE_DIR to another folder"
            )
        if each.is_dir() and not status.st_mode & 0o077:
            break  # others do not reach what is in it


def _from_cache_folder(path: Path) -> list[Path]:
    """The path and the folders that it is in, from the cache's on."""
    return [e for e in (*reversed(path.parents), path) if e.is_relative_to(cache_folder())]


def cached_libraries() -> dict[str, Path]:
    """The last library of each module in the cache, by namespace. None is loaded."""
    found = (cache_folder() / "modules").glob("*/*-*/*/lib*.so")
    newest = sorted(found, key=lambda library: library.stat().st_mtime_ns)
    return {library.parents[2].name: library for library in newest}
