"""`python -m cudarelu new`: a folder with the sources of an op module, ready to build and test."""

from __future__ import annotations

import re
import shutil
import tempfile
from pathlib import Path

from cudarelu import _C

# The sources of a module my_ops with the namespace my.
TEMPLATE = Path(__file__).parent / "scaffold"


def create(folder: Path, namespace: str | None = None) -> list[Path]:
    """Creates a folder for an op module, whose name is that of the folder.

    Args:
        folder: must not exist; its name is that of the Python package and of the library.
        namespace: of the ops; by default the name without its ending `_ops`.

    Returns:
        The files, relative to the folder.

    Raises:
        ValueError: if a name cannot be used.
        FileExistsError: if the folder exists.
        OSError: if it cannot be written.
    """
    name = folder.name
    if namespace is None:
        namespace = name.removesuffix("_ops")
    for each in (name, namespace):
        _C.check_new_name(each)
    if folder.exists() or folder.is_symlink():
        raise FileExistsError(f"{folder} exists already")
    if not folder.parent.is_dir():
        raise FileNotFoundError(f"there is no folder {folder.parent}")
    names = {"my_ops": name, "my": namespace}

    def replace(text: str) -> str:
        return re.sub(r"my_ops|\bmy\b", lambda match: names[match[0]], text)

    files = [
        path.relative_to(TEMPLATE)
        for path in sorted(TEMPLATE.rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
    ]
    written = [Path(replace(str(file))) for file in files]
    # Written completely or not at all.
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{name}-") as scratch:
        complete = Path(scratch) / name
        for source, file in zip(files, written, strict=True):
            (complete / file).parent.mkdir(parents=True, exist_ok=True)
            (complete / file).write_text(replace((TEMPLATE / source).read_text()))
        shutil.move(complete, folder)
    return written
