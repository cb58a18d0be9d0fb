"""The results of checks."""

from __future__ import annotations

import shlex
import sys
from dataclasses import dataclass
from typing import Any

from .context import Context
from .troubles import TROUBLES, explain

Command = tuple[str, ...]


@dataclass(frozen=True)
class Record:
    """The outcome of a check."""

    id: str  # "group.check"
    status: str  # "ok", "warning", "failed" or "skipped"
    what: str  # what works, or why it does not
    evidence: str = ""  # what was seen, unchanged
    mend: str = ""  # the fix, if possible a command to paste
    fix: tuple[Command, ...] = ()  # the commands of the fix, if they are safe to run unasked


def ok(id: str, what: str, evidence: str = "") -> Record:
    return Record(id, "ok", what, evidence)


def skipped(id: str, what: str, evidence: str = "") -> Record:
    return Record(id, "skipped", what, evidence)


def waits(id: str) -> Record:
    return skipped(id, "not checked: a check above must pass first")


def not_asked(id: str, evidence: str = "") -> Record:
    return skipped(id, "CUDA is not checked (--provider cuda checks it)", evidence)


def trouble(
    id: str, name: str, evidence: str = "", /, *, status: str = "failed", **values: Any
) -> Record:
    """Returns the record of a trouble of the table, with the values in its text."""
    found = TROUBLES[name]
    python = shlex.quote(sys.executable)
    values = {"pip": f"{python} -m pip", "python": python, **values}
    fix = tuple(
        (sys.executable, "-m", "pip", *command.format(**values).split()) for command in found.pip
    )
    mend = found.mend.format(**values) or " && ".join(map(shlex.join, fix))
    return Record(id, status, found.cause.format(**values), evidence, mend, fix)


def from_error(id: str, what: str, error: str, context: Context) -> Record:
    """Returns the record of a failure, with the cause and fix that the table has for its text."""
    name, groups = explain(error) or ("unknown", {})
    return trouble(id, name, error, **{"what": what, **context.values, **groups})
