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
    """Mounts a disk there, with what the folder has, which is "read-only", or "full": 1 MiB with
    some free bytes. Yields what the system says of it. Skips the test if this process may not mount
    disks."""
    folder.mkdir(exist_ok=True)
    files = {file.name: file.read_bytes() for file in folder.iterdir() if file.is_file()}
    disk = ["-t", "tmpfs", "-o", "size=1m", "none"] if kind == "full" else ["--bind", folder]
    mounted = subprocess.run(["mount", *disk, folder], capture_output=True, text=True)
    if mounted.returncode != 0:
        pytest.skip(f"only root can mount a disk: {mounted.stderr.strip()}")
    try:
        if kind == "full":
            for name, data in files.items():
                (folder / name).write_bytes(data)
            status = os.statvfs(folder)
            space = status.f_bavail * status.f_frsize - free
            (folder / "filler").write_bytes(bytes(space))
        else:
            subprocess.run(["mount", "-o", "remount,ro,bind", folder], check=True)
        yield "No space left on device" if kind == "full" else "Read-only file system"
    finally:
        subprocess.run(["umount", "-l", folder], check=True)
