"""The cache of what `cudarelu.load` builds and writes.

modules/<name>/<key>-<digest>/ has the objects of a module; the digest is of the files that its
sources include. Its folders, named by the digest of what is linked to the objects, have libraries.
inline/<key>/ has sources that were given as text or made, and tensorflow/<name>-<key>/ the copy of
TensorFlow's library for a module. All are renamed into their places, so that what is there is
complete: it is read without a lock, also where this user cannot write.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

_OTHERWISE = (
    "set CUDARELU_CACHE_DIR to another folder, or build the library before and load it by "
    "cudarelu.load_library"
)


def cache_folder() -> Path:
    """The folder of the cache: $CUDARELU_CACHE_DIR, or cudarelu in the user's cache folder.

    Raises:
        RuntimeError: if no variable names it, and the user has no home folder.
    """
    if chosen := os.environ.get("CUDARELU_CACHE_DIR"):
        return Path(chosen)
    if home := os.environ.get("XDG_CACHE_HOME"):
        return Path(home) / "cudarelu"
    try:
        return Path.home() / ".cache/cudarelu"
    except RuntimeError:  # a container may run with any number as its user
        raise RuntimeError(
            f"user {os.geteuid()} has no home folder for the cache: set CUDARELU_CACHE_DIR to a "
            "folder that this user can write"
        ) from None


@contextlib.contextmanager
def explained(name: str, folder: Path) -> Iterator[None]:
    """Adds to an error of the system, in a folder of the cache, what to do for the module."""
    try:
        yield
    except OSError as error:
        cache, path = cache_folder(), Path(error.filename or folder)
        in_cache = path.is_relative_to(cache) or cache.is_relative_to(path)
        if error.strerror is None or not in_cache:  # without strerror: of check_private()
            raise
        denied = isinstance(error, PermissionError)
        read = f", or let this user read what it has (chmod -R go+rX {cache})" if denied else ""
        raise OSError(
            f"{name}: the cache folder {folder} cannot be written ({error.strerror}); "
            f"{_OTHERWISE}{read}"
        ) from error


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
            mode = f"mode {stat.S_IMODE(status.st_mode):o}"
            raise PermissionError(
                f"{each} can be written by other users (it is of user {status.st_uid}, {mode}), "
                "and what is in the cache is run: let only this user or root write it (chmod -R "
                f"go-w {cache_folder()}), {_OTHERWISE}"
            )
        if each.is_dir() and not status.st_mode & 0o077:
            break  # others do not reach what is in it


def _from_cache_folder(path: Path) -> list[Path]:
    """The path and the folders that it is in, from the cache's on."""
    return [e for e in (*reversed(path.parents), path) if e.is_relative_to(cache_folder())]


def cached_libraries() -> dict[str, Path]:
    """The last library of each module in the cache, by namespace. None is loaded."""
    try:
        found = list((cache_folder() / "modules").glob("*/*-*/*/lib*.so"))
    except RuntimeError:  # there is no cache
        return {}
    newest = sorted(found, key=lambda library: library.stat().st_mtime_ns)
    return {library.parents[2].name: library for library in newest}
