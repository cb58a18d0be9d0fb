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
        "doctor", help="what works here, and for what does not, why and what to do"
    )
    command.add_argument("--model", type=Path, metavar="MODEL.onnx", help="does this model run?")
    command.add_argument(
        "--library", type=Path, metavar="OPS.so", help="a custom-op library in the place of ours"
    )
    command.add_argument(
        "--provider",
        choices=["auto", "cpu", "cuda"],
        default="auto",
        help="cuda asks for CUDA, cpu does not; auto does where an NVIDIA GPU is seen",
    )
    command.add_argument("--json", action="store_true", help="one object for each check")
    command.add_argument(
        "--fix", action="store_true", help="run the mends that are safe, and check again"
    )
    command.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> None:
    """Raises SystemExit(1) where something that was asked for does not work."""
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
    """Runs all checks."""
    probes = Probes()
    asked = cuda.is_seen(probes) if arguments.provider == "auto" else arguments.provider == "cuda"
    context = Context(probes, asked, arguments.model, arguments.library)
    # All at once, those that take longest first; the checks ask one after the other.
    for question in ("compile", "package"):
        for device in context.devices:
            probes.start(question, device)
    for question in ("export", "pytorch", "onnx_runtime"):
        probes.start(question)
    return [record for group in GROUPS for record in _guarded(group.checks, context)]


def _guarded(checks: Callable[[Context], Iterator[Record]], context: Context) -> Iterator[Record]:
    """What a group finds; an error of the doctor's own is a finding too."""
    try:
        yield from checks(context)
    except Exception as error:
        group = checks.__module__.rpartition(".")[2].replace("_", "")
        evidence = f"{type(error).__name__}: {error}"
        yield trouble(f"{group}.doctor", "unknown", evidence, what="the doctor itself fails")


def fix(records: list[Record]) -> bool:
    """Runs the mends that are safe, each after it is shown, until one fails; whether any ran."""
    commands = list(dict.fromkeys(command for each in records for command in each.fix))
    if not commands:
        print("nothing here is safe to mend unasked", file=sys.stderr)
    for command in commands:
        print(f"running: {shlex.join(command)}", file=sys.stderr, flush=True)
        # The standard output is for the report alone.
        status = subprocess.run(command, stdout=sys.stderr.fileno(), check=False).returncode
        if status != 0:
            print(f"it failed with status {status}; nothing more is run", file=sys.stderr)
            break
    return bool(commands)
