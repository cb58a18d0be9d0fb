#!/usr/bin/env python3
"""Compare the CPU seconds of compilers and tests with tools/budget.json.

usage: budget.py compile BUILD_FOLDER [--write]
       budget.py tests BUILD_FOLDER [--write]

Prints a table of numbers in calibrations, so that the machine's speed cancels out: one calibration
is what compiling tools/calibration.cpp takes, or, for tests, a loop in Python. Exits with 1 if a
number or the sum has grown by more than 20 %. --write writes what has changed by more, in either
direction, to the file.

compile: a unit has a row from 5 calibrations on, the others of its language have one row together,
of which only the sum has a limit. The numbers are those that cmake/compile_seconds.sh has recorded
during the build. What exceeds a limit is compiled again, alone, and only that decides. A unit that
ccache had counts as its budget.

tests: the numbers are those of the last session of pytest that ran all tests (tests/support/
seconds.py), by folder. A folder must have grown by 50 calibrations too.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import shlex
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

FILE = Path(__file__).with_name("budget.json")
GROWTH = 1.2
LARGE = 5  # calibrations from which a unit has a row
NOISE = 50  # calibrations by which a folder's tests may grow: the first in a worker import PyTorch
CACHED = 0.1  # part of the budget below which ccache had the unit
OTHERS = {"C++": "other C++ units", "CUDA": "other .cu units"}


def cpu_seconds(*commands: list[str], folder: str | None = None) -> float:
    """The mean CPU seconds of commands that run at the same time."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    processes = [subprocess.Popen(command, cwd=folder) for command in commands]
    statuses = [process.wait() for process in processes]
    if any(statuses):
        sys.exit(f"budget.py: this command failed: {shlex.join(commands[0])}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    total = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return total / len(commands)


def compile_calibration(compiler: str, at_once: int = 1) -> float:
    source = str(FILE.with_name("calibration.cpp"))
    command = [compiler, "-std=c++20", "-O2", "-S", "-o", os.devnull, source]
    return cpu_seconds(*[command] * at_once)


def language_of(name: str) -> str:
    return "CUDA" if ".cu" in name else "C++"


@dataclass
class Unit:
    name: str
    target: str
    folder: str
    command: list[str]
    seconds: float | None  # None if no compilation is recorded

    @property
    def language(self) -> str:
        return language_of(self.name)

    def compiler(self) -> str:
        """Such as "c++ 13" or "nvcc 12 for 90". Times of different ones are not comparable."""
        said = subprocess.run([self.command[0], "--version"], capture_output=True, text=True)
        version = re.search(r"release (\d+)|\) (\d+)\.|version (\d+)", said.stdout)
        number = next(filter(None, version.groups())) if version else "?"
        architectures = sorted(set(re.findall(r"arch=compute_(\w+)", shlex.join(self.command))))
        suffix = f" for {','.join(architectures)}" if architectures else ""
        return f"{Path(self.command[0]).name} {number}{suffix}"

    def calibrations_alone(self, cpp: str) -> float:
        """Compiles it between two calibrations by the C++ compiler `cpp`."""
        with tempfile.TemporaryDirectory() as folder:
            command = self.command.copy()
            command[command.index("-o") + 1] = f"{folder}/output"
            before = compile_calibration(cpp)
            seconds = cpu_seconds(command, folder=self.folder)
            return seconds / min(before, compile_calibration(cpp))


def without_launcher(command: list[str]) -> list[str]:
    names = [Path(word).name for word in command]
    return command[names.index("ccache") + 1 :] if "ccache" in names else command


def read_units(build: Path) -> list[Unit]:
    """All units of a build folder. The name is the source's path, with the target if several
    targets compile it."""
    commands, seconds = build / "compile_commands.json", build / "compile_seconds.txt"
    for path in (commands, seconds):
        if not path.exists():
            sys.exit(f"budget.py: {path} is missing: build all with CMake and Ninja first")
    recorded = {}
    for line in seconds.read_text().splitlines():
        output, user, system = line.rsplit(maxsplit=2)
        recorded[output] = float(user) + float(system)  # the last compilation of each
    units = []
    for entry in json.loads(commands.read_text()):
        output = os.path.relpath(Path(entry["directory"], entry["output"]), entry["directory"])
        place = re.fullmatch(r"(?:(.*)/)?CMakeFiles/(.*)\.dir/(.*)\.(?:o|gch)", output)
        if not place:
            sys.exit(f"budget.py: {commands}: {output} is not an object file of CMake")
        folder, target, source = place.groups()
        name = os.path.normpath(Path(folder or "", source.replace("__", "..")))
        command = without_launcher(shlex.split(entry["command"]))
        units.append(Unit(name, target, entry["directory"], command, recorded.get(output)))
    count = Counter(unit.name for unit in units)
    for unit in units:
        if count[unit.name] > 1:
            unit.name += f" of {unit.target}"
    return units


def has_grown(now: float, budget: float, noise: float) -> bool:
    return now > GROWTH * budget and now - budget > noise


def total(now: dict[str, float | None], budget: dict[str, float]) -> tuple[float, float]:
    """The sum of what was measured, and of the budget, which stands for what was not."""
    return (
        sum(budget.get(name, 0) if each is None else each for name, each in now.items()),
        sum(budget.get(name, 0) for name in now),
    )


def report(
    now: dict[str, float | None], budget: dict[str, float], noise: float, seconds: float, what: str
) -> int:
    """Prints the table and the verdict; returns the exit status. `seconds` is a calibration."""
    width = max(len(name) for name in now)
    ratio = lambda value, limit: f"{value / limit:.2f}" if limit else "new"  # noqa: E731
    rows = sorted(now.items(), key=lambda row: -max(row[1] or 0, budget.get(row[0], 0)))
    print(f"{what:{width}} {'budget':>8} {'now':>8} {'ratio':>6}  (1 is {seconds:.2f} s here)")
    for name, each in rows:
        limit = budget.get(name, 0)
        found = ("cached", "") if each is None else (f"{each:.1f}", ratio(each, limit))
        print(f"{name:{width}} {limit:8.1f} {found[0]:>8} {found[1]:>6}")
    sums = total(now, budget)
    print(f"{'sum':{width}} {sums[1]:8.1f} {sums[0]:8.1f} {ratio(*sums):>6}")

    problems = [
        f"{name} has {'grown' if name in budget else 'no budget'}: {each:.1f} calibrations, "
        f"budget {budget.get(name, 0):.1f}"
        for name, each in rows
        if each is not None
        and name not in OTHERS.values()
        and has_grown(each, budget.get(name, 0), noise)
    ]
    if sums[0] > GROWTH * sums[1]:
        problems.append(f"the sum has grown: {sums[0]:.1f} calibrations, budget {sums[1]:.1f}")
    smaller = [
        name
        for name, each in rows
        if each is not None and each < (2 - GROWTH) * budget.get(name, 0) - noise
    ]
    if smaller:
        print(f"smaller by 20 %, --write lowers the budget: {', '.join(smaller)}")
    for problem in problems:
        print(f"OVER BUDGET: {problem}")
    if problems:
        print(
            "Make it smaller, or raise the budget by --write and say why in the commit.\n"
            f"{len(problems)} over the budget of {FILE.name}"
        )
    else:
        print(f"within the budget of {FILE.name}")
    return int(bool(problems))


def changed(now: dict[str, float | None], budget: dict[str, float], noise: float) -> dict:
    """The budget after --write."""
    kept = {name: budget[name] for name, each in now.items() if each is None and name in budget}
    for name, each in now.items():
        if each is not None:
            old = budget.get(name, 0)
            differs = has_grown(each, old, noise) or each < (2 - GROWTH) * old - noise
            kept[name] = round(each, 1) if differs or name not in budget else old
    return dict(sorted(kept.items()))


def check_compile(build: Path, file: dict, write: bool) -> int:
    units = {unit.name: unit for unit in read_units(build)}
    section = file.setdefault("compile", {"compilers": {}, "units": {}})
    compilers = {}
    for language in ("C++", "CUDA"):
        of_language = [unit for unit in units.values() if unit.language == language]
        one = max(of_language, key=lambda unit: unit.target == "cudarelu_kernels", default=None)
        expected = section["compilers"].get(language)
        if one is None:
            print(f"{language} is not compared: this build has none")
        elif write or one.compiler() == expected:
            compilers[language] = one.compiler()
        else:
            print(f"{language} is not compared: {one.compiler()}, the budget is of {expected}")
    if not compilers:
        return 0
    units = {name: unit for name, unit in units.items() if unit.language in compilers}
    budget = {name: n for name, n in section["units"].items() if language_of(name) in compilers}
    cpp = next(unit.command[0] for unit in units.values() if unit.language == "C++")
    at_once = os.cpu_count() or 1  # as in a build
    calibration = min(compile_calibration(cpp, at_once) for _ in range(2))

    now: dict[str, float | None] = {OTHERS[language]: 0.0 for language in compilers}
    for name, unit in units.items():
        value = (unit.seconds or 0) / calibration
        if name in budget:
            now[name] = None if value < CACHED * budget[name] else value
        elif value >= (LARGE if write else GROWTH * LARGE):
            now[name] = value
        else:
            now[OTHERS[unit.language]] += value
    if None in now.values():  # others may be of the cache too
        now |= {name: None for name in now if name in OTHERS.values()}
    if missing := sorted(budget.keys() - now.keys()):
        print(f"not in this build: {', '.join(missing)}")
        budget = {name: n for name, n in budget.items() if name in now}
    if write:
        others = {name: n for name, n in section["units"].items() if name not in budget}
        kept = {name: n for name, n in others.items() if language_of(name) not in compilers}
        section["compilers"] |= compilers
        section["units"] = dict(sorted((kept | changed(now, budget, 1)).items()))
        return 0
    compile_suspects(now, budget, units, cpp)
    return report(now, budget, 1, calibration, "compile")


def compile_suspects(
    now: dict[str, float | None], budget: dict[str, float], units: dict[str, Unit], cpp: str
) -> None:
    """Replaces what exceeds a limit in `now` by what compiling it alone takes, the largest excess
    first. If only the sum exceeds its limit, units over their budget follow until it does not."""
    rest = {name for name, each in now.items() if name in units and each is not None}
    while True:
        excess = {name: now[name] - budget.get(name, 0) for name in rest}
        over = [name for name in rest if has_grown(now[name], budget.get(name, 0), 1)]
        sums = total(now, budget)
        if not over and sums[0] > GROWTH * sums[1]:
            over = [name for name in rest if excess[name] > 0]
        if not over:
            return
        name = max(over, key=excess.__getitem__)
        print(f"compiling alone, since it took {now[name]:.1f} in the build: {name}", flush=True)
        now[name] = units[name].calibrations_alone(cpp)
        if has_grown(now[name], budget.get(name, 0), 1):
            now[name] = min(now[name], units[name].calibrations_alone(cpp))
        rest.remove(name)


def check_tests(build: Path, file: dict, write: bool) -> int:
    path = build / "test_seconds.json"
    if not path.exists():
        sys.exit(f"budget.py: {path} is missing: run all tests with pytest first")
    found = json.loads(path.read_text())
    if found["gpu"]:
        print("tests are not compared: they ran with a GPU, the budget is without one")
        return 0
    now = {name: each / found["calibration"] for name, each in found["seconds"].items()}
    budget = file.get("tests", {})
    if missing := sorted(budget.keys() - now.keys()):
        print(f"did not run: {', '.join(missing)}")
    if write:
        file["tests"] = changed(now, budget, NOISE)
        return 0
    budget = {name: each for name, each in budget.items() if name in now}
    return report(now, budget, NOISE, found["calibration"], "tests")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("kind", choices=("compile", "tests"))
    parser.add_argument("build", type=Path)
    parser.add_argument("--write", action="store_true", help="write what has changed to the file")
    parser.add_argument("--file", type=Path, default=FILE, help="default: %(default)s")
    options = parser.parse_args(arguments)
    file = json.loads(options.file.read_text()) if options.file.exists() else {}
    check = {"compile": check_compile, "tests": check_tests}[options.kind]
    status = check(options.build, file, options.write)
    if options.write:
        options.file.write_text(json.dumps(file, indent=1) + "\n")
    return status


if __name__ == "__main__":
    sys.exit(main())
