"""`python -m cudarelu new`: a folder with the sources of an op module, ready to build and test."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from cudarelu import _C

# The sources of a module my_ops with the namespace my.
TEMPLATE = Path(__file__).parent / "scaffold"


def create(
    folder: Path, namespace: str | None = None, sources: Mapping[str, str] | None = None
) -> list[Path]:
    """Creates a folder for an op module, which has the name of the folder.

    Args:
        folder: must not exist; the Python package and the library have its name.
        namespace: of the ops; by default the name without its ending `_ops`.
        sources: files for src/ by name, in place of the template's ops and their example.

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

    texts = {
        str(path.relative_to(TEMPLATE)): path.read_text(encoding="utf-8")
        for path in sorted(TEMPLATE.rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
    }
    texts = {replace(file): replace(text) for file, text in texts.items()}
    if sources is not None:
        texts = _with_sources(texts, sources)
    # Written completely or not at all.
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{name}-") as scratch:
        complete = Path(scratch) / name
        for file, text in texts.items():
            (complete / file).parent.mkdir(parents=True, exist_ok=True)
            (complete / file).write_text(text, encoding="utf-8")
        shutil.move(complete, folder)
    return list(map(Path, texts))


def _with_sources(texts: Mapping[str, str], sources: Mapping[str, str]) -> dict[str, str]:
    """The files of the template with other sources; its example goes, since it needs its op."""
    kept = {file: text for file, text in texts.items() if not file.startswith(("src/", "example"))}
    listed = "".join(f"\n  src/{name}" for name in sources)
    rows = "".join(f"| `src/{name}` | ops of the module |\n" for name in sources)
    edits = {
        "CMakeLists.txt": [(r"SOURCES[^)]*", f"SOURCES{listed}")],
        "Makefile": [
            (r"# make example.*\n|example: all\n.*\n\n| --op \S+", ""),
            (r"test example bench", "test bench"),
        ],
        ".github/workflows/test.yml": [(r"make test example", "make test")],
        "README.md": [
            (r"(?m)^    make example.*\n|^\| `example.*\n", ""),
            (r"(?m)^(\| `src/.*\n)+", rows),
            (r":\n\n```python\n[^`]*```\n", ".\n"),
        ],
    }
    for file, changes in edits.items():
        for pattern, text in changes:
            kept[file] = re.sub(pattern, text.replace("\\", r"\\"), kept[file])
    return kept | {f"src/{name}": text for name, text in sources.items()}
