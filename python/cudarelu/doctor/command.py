"""`python -m cudarelu doctor`."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from . import cuda, model, onnx_runtime, pytorch
from .context import Context
from .processes import Probes
from .records import Record, trouble
from .report import text

GROUPS = (pytorch, onnx_runtime, cuda, model)


def add_command(commands: Any) -> None:
    """Adds the command to those of `python -m cudarelu`."""
    command = commands.add_parser(
        "doctor", help="report what works, and the cause and fix of what does not"
    )
    command.add_argument(
        "--model", type=Path, metavar="MODEL.onnx", help="check whether this model runs"
    )
    command.add_argument(
        "--library",
        type=Path,
        metavar="OPS.so",
        help="a custom-op library to use instead of ours, or an op module to use beside ours",
    )
    command.add_argument(
        "--provider",
        choices=["auto", "cpu", "cuda"],
        default="auto",
        help="cuda checks CUDA, cpu does not; auto does if there is an NVIDIA GPU",
    )
    command.add_argument("--json", action="store_true", help="print one object for each check")
    command.add_argument(
        "--fix", action="store_true", help="run the fixes that are safe, and check again"
    )
    command.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> None:
    """Raises SystemExit(1) if something that was checked does not work."""
    records = examine(arguments)
    if arguments.fix and fix(records):
        records = examine(arguments)
    if arguments.json:
        names = [field.name for field in dataclasses.fields(Record) if field.name != "fix"]
        objects = [{name: getattr(each, name) for name in names} for each in records]
        print(json.dumps(objects, indent=2))
    else:
        terminal = sys.stdout.isatty()
        color = terminal and not os.environ.get("NO_COLOR")
        print(text(records, color, shutil.get_terminal_size().columns if terminal else None))
    if any(each.status == "failed" for each in records):
        raise SystemExit(1)


def examine(arguments: argparse.Namespace) -> list[Record]:
    """Runs all checks and returns their records."""
    probes = Probes()
    asked = cuda.is_seen(probes) if arguments.provider == "auto" else arguments.provider == "cuda"
    context = Context(probes, asked, arguments.model, arguments.library)
    # The probes run at the same time, the longest first; the checks then ask one after the other.
    for question in ("compile", "package"):
        for device in context.devices:
            probes.start(question, device)
    for question in ("export", "pytorch", "onnx_runtime"):
        probes.start(question)
    return [record for group in GROUPS for record in _guarded(group.checks, context)]


def _guarded(checks: Callable[[Context], Iterator[Record]], context: Context) -> Iterator[Record]:
    """Yields the records of a group; an error of the doctor itself becomes a record too."""
    try:
        yield from checks(context)
    except Exception as error:
        group = checks.__module__.rpartition(".")[2].replace("_", "")
        evidence = f"{type(error).__name__}: {error}"
        yield trouble(f"{group}.doctor", "unknown", evidence, what="the doctor itself fails")


def fix(records: list[Record]) -> bool:
    """Prints and runs the safe fixes until one fails; returns whether there are any."""
    commands = list(dict.fromkeys(command for each in records for command in each.fix))
    if not commands:
        print("there is no fix that is safe to run unasked", file=sys.stderr)
    for command in commands:
        print(f"running: {shlex.join(command)}", file=sys.stderr, flush=True)
        # The standard output is only for the report.
        status = subprocess.run(command, stdout=sys.stderr.fileno(), check=False).returncode
        if status != 0:
            print(f"it failed with status {status}; no further fix is run", file=sys.stderr)
            break
    return bool(commands)
