"""The command line: `python -m cudarelu COMMAND`."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
import tempfile
from pathlib import Path


def list_ops(arguments: argparse.Namespace) -> None:
    from . import ops

    if arguments.json:
        print(json.dumps([dataclasses.asdict(op) for op in ops()], indent=2))
        return
    for op in ops():
        print(f"{op.signature}\n    {op.summary}\n    T: {', '.join(op.dtypes)}")


def export_demo(arguments: argparse.Namespace) -> None:
    from .onnx import demo_model

    write_whole(arguments.path, demo_model().SerializeToString())
    print(f"wrote {arguments.path}")


def write_whole(path: Path, content: bytes) -> None:
    """Write a file, through a link, whole or not at all; a pipe or a device is written to."""
    path = path.resolve()
    if path.exists() and not path.is_file():
        path.write_bytes(content)
        return
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
        try:
            file.write(content)
            file.close()
            os.chmod(file.name, 0o644)
            os.replace(file.name, path)
        except BaseException:
            os.unlink(file.name)
            raise


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m cudarelu", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    command = commands.add_parser("ops", help="list the ops")
    command.add_argument("--json", action="store_true", help="everything the table says, as JSON")
    command.set_defaults(run=list_ops)

    command = commands.add_parser("export-demo", help="write the one-node model of the tutorials")
    command.add_argument("path", type=Path, metavar="MODEL.onnx")
    command.set_defaults(run=export_demo)

    arguments = parser.parse_args()
    try:
        arguments.run(arguments)
    except OSError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
