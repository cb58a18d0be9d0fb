"""The program `cudarelu`, which does the same as `python -m cudarelu`, and where PyInstaller asks.

They are outside the package, since doctor and cmake-dir must run where `import cudarelu`
fails, and PyInstaller asks every installed package for hooks, for any program.
"""

from __future__ import annotations

import importlib.util
import sys


def main() -> int:
    """Runs the command of the process and returns the exit status."""
    spec = importlib.util.find_spec("cudarelu")
    if sys.argv[1:2] in (["doctor"], ["cmake-dir"]) and spec:
        # A package whose `__init__` is not executed, so that its modules can be imported.
        sys.modules["cudarelu"] = importlib.util.module_from_spec(spec)
    from cudarelu.__main__ import main

    return main(prog="cudarelu")


def pyinstaller_hooks() -> list[str]:
    """The folder of the hook for programs that PyInstaller freezes."""
    spec = importlib.util.find_spec("cudarelu")
    return [f"{folder}/_pyinstaller" for folder in (spec and spec.submodule_search_locations) or ()]
