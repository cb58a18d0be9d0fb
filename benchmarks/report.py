"""Writes what a benchmark measured as one JSON object."""

from __future__ import annotations

import json
from pathlib import Path


def write(report: dict, out: str | None = None) -> None:
    """Prints the report, one line for each entry, and writes it to the file `out` if given."""
    entries = [f"  {json.dumps(name)}: {json.dumps(value)}" for name, value in report.items()]
    text = "{\n" + ",\n".join(entries) + "\n}\n"
    print(text, end="")
    if out:
        Path(out).write_text(text)
