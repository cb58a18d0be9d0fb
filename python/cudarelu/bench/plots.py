"""Plots of runs: bandwidth and time against size. Needs matplotlib."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from .records import title

Record = dict[str, Any]
TICKS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1, 1.2, 1.5, 2, 3, 5, 10, 20, 50, 100, 200, 500, 1000)
STYLES = ("-", "--")  # of the first run and of the second


def _matplotlib() -> tuple[Any, Any]:
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ValueError("plots need matplotlib: pip install matplotlib") from error
    return Figure, FigureCanvasAgg


def _new_figure(size: tuple[float, float]) -> Any:
    """A figure that needs no display."""
    make, canvas = _matplotlib()
    figure = make(figsize=size, layout="constrained")
    canvas(figure)
    return figure


def figures(runs: Mapping[str, dict[str, Any]]) -> Iterator[tuple[tuple[str, str, str], Any]]:
    """Draws each op, dtype and regime that was measured at three sizes or more, of one run or two.

    Yields (suite, op, regime) and the figure. Raises ValueError if matplotlib is missing.
    """

    _matplotlib()  # an error even if there is nothing to draw

    def group(record: Record) -> tuple[str, str, str]:
        return record["suite"], record["op"], record["regime"]

    timed = [
        each | {"run": name}
        for name, content in runs.items()
        for each in content["records"]
        if "failed" not in each
    ]
    for key, records in itertools.groupby(sorted(timed, key=group), key=group):
        panels = [
            (name, [*each])
            for name, each in itertools.groupby(sorted(records, key=title), key=title)
        ]
        panels = [each for each in panels if len({r["shape"] for r in each[1]}) >= 3]
        if not panels:
            continue
        figure = _new_figure((5 * len(panels), 7))
        axes = figure.subplots(2, len(panels), squeeze=False)
        for column, (name, each) in enumerate(panels):
            axes[0, column].set_title(name)
            _draw(axes[0, column], each, [*runs], "gb_per_s", "GB/s")
            _draw(axes[1, column], each, [*runs], "median_us", "microseconds a call")
        kind = "gpu" if each[0]["device"] == "cuda" else "processor"
        machines = dict.fromkeys(content["machine"].get(kind) for content in runs.values())
        figure.suptitle(f"{' and '.join(map(str, machines))}: {key[-1]}")
        yield key, figure


def ranges(title: str, values: Mapping[str, Mapping[str, list[float]]]) -> Any:
    """Draws the ratios of each name: a dot at the median, a line from the least to the largest.

    `values` has, for each name, the ratios in each run. Raises ValueError if matplotlib is missing.
    """
    names = [*values]
    runs = [*dict.fromkeys(run for by_run in values.values() for run in by_run)]
    figure = _new_figure((9, 1.5 + 0.2 * len(names) * len(runs)))
    axes = figure.subplots()
    for number, run in enumerate(runs):
        spreads = np.array(
            [np.percentile(v.get(run, [np.nan]), [0, 50, 100]) for v in values.values()]
        )
        low, median, high = spreads.T
        rows = np.arange(len(names)) + 0.3 * (number - (len(runs) - 1) / 2)
        axes.errorbar(median, rows, xerr=[median - low, high - median], fmt=".", label=run)
    axes.axvline(1, color="black", linestyle=":")
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.set_xscale("log")
    low, high = axes.get_xlim()
    ticks = [tick for tick in TICKS if low <= tick <= high]  # others would extend the axis
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
    axes.set_title(title)
    axes.grid(alpha=0.3, axis="x")
    if len(runs) > 1:
        axes.legend(fontsize="small")
    return figure


def plot(content: dict[str, Any], folder: Path) -> list[Path]:
    """Writes the figures of a run as PNG and SVG, and returns the files in `folder`.

    Raises ValueError if matplotlib is missing.
    """
    written: list[Path] = []
    for (suite, op, regime), figure in figures({"": content}):
        folder.mkdir(exist_ok=True)
        stem = f"{suite}-{op}-{regime.replace(', ', '-')}"
        for suffix in ("png", "svg"):
            written.append(folder / f"{stem}.{suffix}")
            figure.savefig(written[-1])
    return written


def _draw(axes: Any, records: list[Record], runs: list[str], quantity: str, label: str) -> None:
    """Draws a line for each contender and run, with its spread, and the copy's best bandwidth."""
    rows = len({each["elements"] for each in records}) < len({each["columns"] for each in records})
    size = "columns" if rows else "elements"
    for number, contender in enumerate(dict.fromkeys(each["contender"] for each in records)):
        for run, style in zip(runs, STYLES, strict=False):
            own = [r for r in records if (r["contender"], r["run"]) == (contender, run)]
            if not own:
                continue
            own.sort(key=lambda r: r[size])
            sizes = [each[size] for each in own]
            values = [each[quantity] for each in own]
            of_run = f", {run}" if run else ""
            look = {"color": f"C{number}", "linestyle": style}
            if contender == "copy" and quantity == "gb_per_s":
                best = max(values)
                axes.axhline(best, color="black", ls=":", label=f"best copy{of_run}, {best:.0f}")
            axes.plot(sizes, values, marker=".", label=f"{contender}{of_run}", **look)
            spreads = [_between(each, quantity) for each in own]
            axes.fill_between(
                sizes, *zip(*spreads, strict=True), color=f"C{number}", alpha=0.2, linewidth=0
            )
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xlabel(size)
    axes.set_ylabel(label)
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")


def _between(record: Record, quantity: str) -> tuple[float, float]:
    if quantity == "median_us":
        return record["p10_us"], record["p90_us"]
    return record["bytes"] / record["p90_us"] / 1e3, record["bytes"] / record["p10_us"] / 1e3
