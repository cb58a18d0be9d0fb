"""Folders that cannot be written: a full disk, and a read-only one."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest


@contextlib.contextmanager
def unwritable(folder: Path, kind: str, free: int = 0) -> Iterator[str]:
    """Mounts a disk of 1 MiB there, with the files that the folder has, which is "full", but for
    some free bytes, or "read-only". Yields what the system says of it. Skips the test if this
    process may not mount disks."""
    folder.mkdir(exist_ok=True)
    files = {file.name: file.read_bytes() for file in folder.iterdir()}
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "none", folder], capture_output=True, text=True
    )
    if mounted.returncode != 0:
        pytest.skip(f"only root can mount a disk: {mounted.stderr.strip()}")
    try:
        for name, data in files.items():
            (folder / name).write_bytes(data)
        if kind == "full":
            status = os.statvfs(folder)
            space = status.f_bavail * status.f_frsize - free
            (folder / "filler").write_bytes(bytes(space))
        else:
            subprocess.run(["mount", "-o", "remount,ro", folder], check=True)
        yield "No space left on device" if kind == "full" else "Read-only file system"
    finally:
        subprocess.run(["umount", "-l", folder], check=True)
