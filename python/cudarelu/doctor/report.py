"""The report as text."""

from __future__ import annotations

import itertools
import textwrap
from collections import Counter

from .records import Record

TITLES = {"pytorch": "PyTorch", "onnxruntime": "ONNX Runtime", "cuda": "CUDA", "model": "Model"}
COLORS = {"ok": 32, "warning": 33, "failed": 31, "skipped": 90}
INDENT = " " * 11
LONGEST = 400  # characters of evidence; --json prints all of it


def text(records: list[Record], color: bool, width: int | None = None) -> str:
    """Returns the records by group. `width` wraps the lines, except fixes, which users paste."""
    lines = []
    for group, members in itertools.groupby(records, key=lambda each: each.id.split(".")[0]):
        lines.append(f"\033[1m{TITLES[group]}\033[0m" if color else TITLES[group])
        for each in members:
            lines += _lines(each, color, width)
    return "\n".join([*lines, "", _summary(records)])


def _lines(record: Record, color: bool, width: int | None) -> list[str]:
    status = f"  {record.status:9}"
    if color:
        status = f"\033[{COLORS[record.status]}m{status}\033[0m"
    name = record.id.split(".", 1)[1]
    first, *others = _wrapped(f"{name}: {record.what}", width)
    lines = [status + first, *(INDENT + each for each in others)]
    if record.status in ("failed", "warning") and record.evidence:
        seen = textwrap.shorten(record.evidence, LONGEST, placeholder=" ...")
        lines += [INDENT + each for each in _wrapped(f"seen: {seen}", width)]
    if record.mend:
        lines.append(f"{INDENT}fix: {record.mend}")
    return lines


def _wrapped(line: str, width: int | None) -> list[str]:
    line = " ".join(line.split())
    return textwrap.wrap(line, max(40, width - len(INDENT))) if width else [line]


def _summary(records: list[Record]) -> str:
    counts = Counter(each.status for each in records)
    if not counts["failed"] and not counts["warning"]:
        return "Everything that was checked works."
    counted = [f"{counts[each]} {each}" for each in ("failed", "warning") if counts[each]]
    fixable = any(each.fix for each in records)
    return ", ".join(counted) + ("; --fix runs the fixes that are safe" if fixable else "")
