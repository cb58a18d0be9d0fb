"""What the commands of `python -m cudarelu` share; imports nothing that needs PyTorch."""

from __future__ import annotations

import argparse
from typing import Any


def repeatable(
    command: argparse.ArgumentParser, name: str, metavar: str, help: str, **more: Any
) -> None:
    """Adds an option that may be given several times; without it, the value is an empty list."""
    command.add_argument(name, action="append", default=[], metavar=metavar, help=help, **more)
