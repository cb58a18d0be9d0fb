"""Plots of runs: bandwidth and time against size, and time against threads. Needs matplotlib."""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from .records import title
from .regimes import is_cold

Record = dict[str, Any]
TICKS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1, 1.2, 1.5, 2, 3, 5, 10, 20, 50, 100, 200, 500, 1000)
STYLES = ("-", "--")  # of the first run and of the second
LABELS = {"gb_per_s": "GB/s", "median_us": "microseconds a call"}


def _new_figure(size: tuple[float, float]) -> Any:
    """A figure that needs no display."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ValueError("plots need matplotlib: pip install matplotlib") from error
    return Figure(figsize=size, layout="constrained")


def figures(runs: Mapping[str, dict[str, Any]]) -> Iterator[tuple[tuple[str, str, str], Any]]:
    """Draws each op, dtype and regime that was measured at three sizes or more, or with three
    numbers of threads or more, of one run or two.

    Yields (suite, op, regime) and the figure. Raises ValueError if matplotlib is missing.
    """

    _new_figure((1, 1))  # an error even if there is nothing to draw

    def group(record: Record) -> tuple[str, str, str]:
        return record["suite"], record["op"], record["regime"]

    timed = [
        each | {"run": name}
        for name, content in runs.items()
        for each in content["records"]
        if "failed" not in each
    ]
    for key, records in itertools.groupby(sorted(timed, key=group), key=group):
        of_op = [*records]
        kind = "gpu" if of_op[0]["device"] == "cuda" else "processor"
        machines = dict.fromkeys(content["machine"].get(kind) for content in runs.values())
        heading = f"{' and '.join(map(str, machines))}: {key[-1]}"
        if panels := _panels(of_op, title, "shape"):
            figure = _new_figure((5 * len(panels), 7))
            axes = figure.subplots(2, len(panels), squeeze=False)
            for column, (name, each) in enumerate(panels.items()):
                axes[0, column].set_title(name)
                _draw(axes[0, column], each, [*runs], _size(each), "gb_per_s")
                _draw(axes[1, column], each, [*runs], _size(each), "median_us")
            figure.suptitle(heading)
            yield key, figure
        if panels := _panels(of_op, _title_without_threads, "threads"):
            figure = _new_figure((5 * len(panels), 4))
            (columns,) = figure.subplots(1, len(panels), squeeze=False)
            for axes, (name, each) in zip(columns, panels.items(), strict=True):
                axes.set_title(name)
                _draw(axes, each, [*runs], "threads", "median_us")
                _draw_ideal(axes, each)
            figure.suptitle(heading)
            yield (*key[:2], f"{key[2]}, threads"), figure


def _panels(
    records: list[Record], name: Callable[[Record], str], varied: str
) -> dict[str, list[Record]]:
    """The records by name, where `varied` has three values or more."""
    panels: dict[str, list[Record]] = {}
    for each in sorted(records, key=name):
        panels.setdefault(name(each), []).append(each)
    return {n: each for n, each in panels.items() if len({r[varied] for r in each}) >= 3}


def _title_without_threads(record: Record) -> str:
    return f"{title(record | {'threads': None})}\n{record['shape']}"


def _size(records: list[Record]) -> str:
    rows = len({each["elements"] for each in records}) < len({each["columns"] for each in records})
    return "columns" if rows else "elements"


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


def roofline(content: dict[str, Any]) -> Any:
    """Draws the best point of each op: operations a second against operations a byte.

    The roofs are the fastest copy and, for each dtype, the fastest product. Returns None if no
    record has operations. Raises ValueError if matplotlib is missing.
    """
    timed = [each for each in content["records"] if each.get("operations")]
    device = "cuda" if any(each["device"] == "cuda" for each in timed) else "cpu"
    timed = [each for each in timed if each["device"] == device]
    best: dict[str, Record] = {}
    for each in sorted(timed, key=_speed):
        if each["contender"] == "cudarelu":
            slower = best.get(each["op"])
            if not slower or is_cold(each["regime"]) or not is_cold(slower["regime"]):
                best[each["op"]] = each
    if not best:
        return None
    figure = _new_figure((11, 7))
    axes = figure.subplots()
    dots = [(each["operations"] / each["bytes"], _speed(each)) for each in best.values()]
    xs, ys = np.array(dots).T
    axes.loglog(xs, ys, "k.", zorder=3)
    left, right = xs.min() / 2, xs.max() * 8  # with room for texts
    axes.set_xlim(left, right)
    axes.set_ylim(ys.min() / 20, ys.max() * 2)
    copies = [each for each in timed if each["contender"] == "copy"]
    copies = [each for each in copies if is_cold(each["regime"])] or copies
    bandwidth = max((each["gb_per_s"] * 1e9 for each in copies), default=None)
    products: dict[str, float] = {}
    for each in timed:
        if each["contender"] in ("cudarelu", "cublaslt") and each["operations"] > each["elements"]:
            products[each["dtype"]] = max(_speed(each), products.get(each["dtype"], 0.0))
    ridges = [peak / bandwidth if bandwidth else left for peak in products.values()]
    if bandwidth:
        ends = np.array([left, max(ridges, default=right)])
        axes.plot(ends, bandwidth * ends, label=f"fastest copy, {bandwidth / 1e9:.0f} GB/s")
    for (dtype, peak), ridge in zip(products.items(), ridges, strict=True):
        label = f"fastest product in {dtype}, {peak / 1e12:.3g} Tflop/s"
        axes.plot([ridge, right], [peak, peak], label=label)
    axes.set_xlabel("operations a byte")
    axes.set_ylabel("operations a second")
    axes.grid(alpha=0.3)
    if bandwidth or products:
        axes.legend(fontsize="small", loc="lower right")
    machine = content["machine"].get("gpu" if device == "cuda" else "processor")
    axes.set_title(f"{machine}: the best point of each op")
    _label(figure, axes, [*zip(best, dots, strict=True)])
    return figure


def _speed(record: Record) -> float:
    return record["operations"] / record["median_us"] * 1e6


def _label(figure: Any, axes: Any, dots: list[tuple[str, tuple[float, float]]]) -> None:
    """Writes the names of dots beside them; dots that are near each other share a text."""
    figure.draw_without_rendering()  # lays out the axes
    scale = 72 / figure.dpi  # points of a pixel
    groups: list[tuple[tuple[float, float], Any, list[str]]] = []
    for name, dot in sorted(dots, key=lambda each: -each[1][1]):
        at = axes.transData.transform(dot) * scale
        near = [names for _, other, names in groups if np.abs(at - other).max() < 9]
        if near:
            near[0].append(name)
        else:
            groups.append((dot, at, [name]))
    taken: list[tuple[float, float, float, float]] = []  # boxes of texts: left, right, low, high
    for dot, at, names in groups:
        lines = textwrap.wrap(", ".join(sorted(names)), 40, break_long_words=False)
        left, high, height = at[0] + 12, at[1] - 4, 10 * len(lines)
        right = left + 4.5 * max(map(len, lines))
        for other_left, other_right, other_low, other_high in sorted(
            taken, key=lambda box: -box[3]
        ):
            beside = right + 6 < other_left or other_right + 6 < left
            if not beside and high - height < other_high and high > other_low - 2:
                high = other_low - 2
        taken.append((left, right, high - height, high))
        axes.annotate(
            "\n".join(lines),
            dot,
            (left - at[0], high - at[1]),
            textcoords="offset points",
            va="top",
            fontsize=7,
            arrowprops={"arrowstyle": "-", "alpha": 0.4, "relpos": (0, 1)},
        ).set_in_layout(False)


def plot(content: dict[str, Any], folder: Path) -> list[Path]:
    """Writes the figures of a run as PNG and SVG, and returns the files in `folder`.

    Raises ValueError if matplotlib is missing.
    """
    drawn = {
        f"{suite}-{op}-{regime.replace(', ', '-')}": figure
        for (suite, op, regime), figure in figures({"": content})
    }
    if figure := roofline(content):
        drawn["roofline"] = figure
    written: list[Path] = []
    for stem, figure in drawn.items():
        folder.mkdir(exist_ok=True)
        for suffix in ("png", "svg"):
            written.append(folder / f"{stem}.{suffix}")
            figure.savefig(written[-1])
    return written


def _draw_ideal(axes: Any, records: list[Record]) -> None:
    """Draws how our time would fall from the time of the first run with the fewest threads."""
    numbers = sorted({each["threads"] for each in records})
    axes.set_xticks(numbers, map(str, numbers))
    axes.minorticks_off()
    ours = [each for each in records if each["contender"] == "cudarelu"]
    if ours:
        first = min(ours, key=lambda each: each["threads"])
        work = first["median_us"] * first["threads"]
        axes.plot(numbers, work / np.array(numbers), "k:", label="ideal")
        axes.legend(fontsize="small")


def _draw(axes: Any, records: list[Record], runs: list[str], size: str, quantity: str) -> None:
    """Draws a line for each contender and run, with its spread, and the copy's best bandwidth."""
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
    axes.set_ylabel(LABELS[quantity])
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")


def _between(record: Record, quantity: str) -> tuple[float, float]:
    if quantity == "median_us":
        return record["p10_us"], record["p90_us"]
    return record["bytes"] / record["p90_us"] / 1e3, record["bytes"] / record["p10_us"] / 1e3
