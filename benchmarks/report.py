"""How a benchmark reports: one JSON object."""

from __future__ import annotations

import json
from pathlib import Path


def write(report: dict, out: str | None) -> None:
    """Prints the report, and writes it to the file `out` where one is given."""
    text = json.dumps(report, indent=2) + "\n"
    print(text, end="")
    if out:
        Path(out).write_text(text)
