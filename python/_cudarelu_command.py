"""The program `cudarelu`, which is `python -m cudarelu`.

It lies beside the package, since the doctor must run where `import cudarelu` fails.
"""

from __future__ import annotations

import importlib.util
import sys


def main() -> int:
    """Runs the command of the process and returns the exit status."""
    spec = importlib.util.find_spec("cudarelu")
    if sys.argv[1:2] == ["doctor"] and spec:
        # A package whose modules can be imported, although its own code does not run.
        sys.modules["cudarelu"] = importlib.util.module_from_spec(spec)
    from cudarelu.__main__ import main

    return main(prog="cudarelu")
