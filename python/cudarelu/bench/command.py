"""`python -m cudarelu bench`: measure, compare, print the table, draw."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .._command_line import repeatable

if TYPE_CHECKING:
    from .records import Results


def add_command(commands: Any) -> argparse.ArgumentParser:
    """Adds the command to those of `python -m cudarelu`, and returns it."""
    command: argparse.ArgumentParser = commands.add_parser(
        "bench", help="measure the ops and their rivals"
    )
    command.add_argument("--out", type=Path, default=Path("bench.jsonl"), metavar="FILE.jsonl")
    text = "a suite, or cuda or cpu for all of a device; repeatable; by default all that can run"
    repeatable(command, "--suite", "NAME", text)
    text = "measure only this op; repeatable; by default all, or those of --library"
    repeatable(command, "--op", "NAME", text)
    command.add_argument(
        "--largest", type=int, metavar="N", help="measure only tensors of at most N elements"
    )
    command.add_argument(
        "--seconds", type=float, metavar="S", help="time for each point, without its preparation"
    )
    repeatable(command, "--without", "RIVAL", "leave out a rival, such as torch.compile")
    command.add_argument(
        "--resume", action="store_true", help="keep the file's records and measure the rest"
    )
    command.add_argument(
        "--commit", metavar="ID", help="the commit to record, if git is not available"
    )
    command.add_argument(
        "--no-plots", action="store_true", help="draw no plots; `plot` draws them later"
    )
    command.add_argument("--list", action="store_true", help="list the suites")
    command.set_defaults(run=run)

    others = command.add_subparsers(metavar="")
    other = others.add_parser(
        "compare", help="list what became slower; the exit status is 1 if anything did"
    )
    other.add_argument("before", type=Path, metavar="A.jsonl")
    other.add_argument("after", type=Path, metavar="B.jsonl")
    other.set_defaults(run=compare)
    other = others.add_parser(
        "table", help="print the targets, whether they are met, and the errors, in Markdown"
    )
    other.add_argument("path", type=Path, metavar="FILE.jsonl")
    other.set_defaults(run=table)
    other = others.add_parser("plot", help="draw the plots of a file")
    other.add_argument("path", type=Path, metavar="FILE.jsonl")
    other.set_defaults(run=plot)
    other = others.add_parser(
        "page", help="write a page in HTML, with the plots, of a file or of two that are compared"
    )
    other.add_argument("paths", type=Path, nargs="+", metavar="FILE.jsonl")
    other.add_argument(
        "--out", dest="html", type=Path, default=Path("bench.html"), metavar="FILE.html"
    )
    other.set_defaults(run=page)
    return command


def run(arguments: argparse.Namespace) -> None:
    import torch

    from .._modules import load_library
    from .contenders import CONTENDERS
    from .plots import plot
    from .records import Results, machine
    from .report import table
    from .suites import SUITES, points, suites

    if arguments.list:
        for suite in SUITES.values():
            print(f"{suite.name:17}{suite.device:6}{suite.title}")
        return
    rivals = [name for name in CONTENDERS if not name.startswith("cudarelu")]
    for name in arguments.without:  # ours stays: the others' times are relative to it
        if name not in rivals:
            raise ValueError(f"no rival {name!r}: there are {', '.join(rivals)}")
    chosen = suites(arguments.suite or (["cuda"] if torch.cuda.is_available() else []) + ["cpu"])
    for suite in chosen:
        if suite.device == "cuda" and not torch.cuda.is_available():
            raise ValueError(f"the suite {suite.name} needs CUDA, but PyTorch sees no device")
    names = [suite.name for suite in chosen]
    only = arguments.op or [
        op.short_name for path in arguments.libraries for op in load_library(path).ops()
    ]
    asked = list(points(names, only, arguments.largest, arguments.without))
    results = Results(arguments.out, machine(arguments.commit), arguments.resume)
    _measure(results, results.lacks(asked), arguments.seconds)
    _add_kernels(results, asked)
    print(table(results.content))
    print(f"wrote {arguments.out}")
    if arguments.no_plots:
        return
    try:
        written = plot(results.content, _folder(arguments.out))
    except ValueError as error:
        print(f"no plots: {error}")
    else:
        print(f"wrote {len(written)} plots in {_folder(arguments.out)}")


def _folder(path: Path) -> Path:
    return path.with_name(f"{path.stem}-plots")


def _measure(results: Results, points: list, seconds: float | None) -> None:
    """Measures point by point, with the progress on the standard error.

    Raises ValueError if the GPU is lost; the file has the records so far.
    """
    from .measure import DeviceLostError, measure
    from .suites import SUITES

    start = time.monotonic()
    for number, point in enumerate(points):
        budget = SUITES[point.suite].seconds if seconds is None else seconds
        try:
            records, missing = measure(point, budget)
        except DeviceLostError as error:
            results.add(error.records, {})
            raise ValueError(f"the GPU is lost; continue with --resume: {error}") from error
        results.add(records, missing)
        if number + 1 == len(points) or points[number + 1].suite != point.suite:
            results.add_state(point.suite)
        elapsed = time.monotonic() - start
        left = elapsed / (number + 1) * (len(points) - number - 1)
        print(_progress(number + 1, len(points), left, point, records), file=sys.stderr)


def _add_kernels(results: Results, points: list) -> None:
    """Adds the kernels of ours to the records of points on CUDA that lack them."""
    from . import launches
    from .records import key

    lacking = {
        key(each): each
        for each in results.records
        if each["contender"] == "cudarelu" and "failed" not in each and "kernels" not in each
    }
    for point in points:
        record = lacking.get(key(point.identity | {"contender": "cudarelu"}))
        if record and point.case.device == "cuda" and (names := launches.kernels(point.case)):
            record["kernels"] = names
    results.write()


def _progress(done: int, total: int, left: float, point: Any, records: list) -> str:
    bar = "#" * (20 * done // total)
    minutes, seconds = divmod(round(left), 60)
    times = ", ".join(
        f"{each['contender']} " + ("FAILED" if "failed" in each else f"{each['median_us']:.4g}")
        for each in records
    )
    drifting = " (drifting)" if any(abs(each.get("drift", 0)) > 0.1 for each in records) else ""
    return (
        f"[{bar:20}] {done}/{total}, {minutes}:{seconds:02} left  {point.suite}: "
        f"{point.case.op.short_name} {point.case.dtype} {point.case.label}, {point.regime}: "
        f"{times} us{drifting}"
    )


def compare(arguments: argparse.Namespace) -> None:
    from .records import load
    from .report import compare

    lines, slower = compare(load(arguments.before), load(arguments.after))
    print("\n".join(lines))
    if slower:
        raise SystemExit(1)


def table(arguments: argparse.Namespace) -> None:
    from .records import load
    from .report import errors, table

    content = load(arguments.path)
    print(table(content), errors(content), sep="\n\n")


def plot(arguments: argparse.Namespace) -> None:
    from .plots import plot
    from .records import load

    content = load(arguments.path)
    for path in plot(content, _folder(arguments.path)):
        print(f"wrote {path}")


def page(arguments: argparse.Namespace) -> None:
    from .page import page
    from .records import load

    if len(arguments.paths) > 2:
        raise ValueError(f"a page compares two files, not {len(arguments.paths)}")
    names = [path.stem for path in arguments.paths]
    if len({*names}) < len(names):
        names = [str(path) for path in arguments.paths]
    runs = dict(zip(names, map(load, arguments.paths), strict=True))
    arguments.html.write_text(page(runs), encoding="utf-8")
    print(f"wrote {arguments.html}")
