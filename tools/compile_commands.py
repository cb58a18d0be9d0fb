#!/usr/bin/env python3
"""Write the compile commands of single sources, where the build compiles several as one.

CMake lists the units that include sources (UNITY_BUILD), whose commands clang-tidy and editors need
for the sources.

usage: compile_commands.py BUILD_FOLDER > compile_commands.json
"""

import json
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def main() -> None:
    commands = json.loads((Path(sys.argv[1]) / "compile_commands.json").read_text())
    for unit in commands[:]:
        if "/Unity/" in unit["file"]:
            included = re.findall(
                r'^#include "(.*)"$', Path(unit["file"]).read_text(), re.MULTILINE
            )
            # From the unit's folder, or from that of the project.
            folders = (Path(unit["file"]).parent, ROOT)
            paths = [(folder / name).resolve() for name in included for folder in folders]
            commands += [unit | {"file": str(path)} for path in paths if path.exists()]
    json.dump(commands, sys.stdout, indent=1)


if __name__ == "__main__":
    main()
