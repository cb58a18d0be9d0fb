"""Plots of a run: bandwidth and time against size, as PNG and SVG. Needs matplotlib."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

from .records import title

Record = dict[str, Any]


def plot(content: dict[str, Any], folder: Path) -> list[Path]:
    """Draws each op, dtype and regime that was measured at three sizes or more.

    Returns the files in `folder`, two for each suite, op and regime. Raises ValueError if
    matplotlib is missing.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ValueError("plots need matplotlib: pip install matplotlib") from error
    folder.mkdir(exist_ok=True)

    def group(record: Record) -> tuple:
        return record["suite"], record["op"], record["regime"]

    written: list[Path] = []
    timed = sorted((each for each in content["records"] if "failed" not in each), key=group)
    for (suite, op, regime), records in itertools.groupby(timed, key=group):
        panels = [
            (name, [*each])
            for name, each in itertools.groupby(sorted(records, key=title), key=title)
        ]
        panels = [each for each in panels if len({r["shape"] for r in each[1]}) >= 3]
        if not panels:
            continue
        figure = Figure(figsize=(5 * len(panels), 7), layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.subplots(2, len(panels), squeeze=False)
        for column, (name, each) in enumerate(panels):
            axes[0, column].set_title(name)
            _draw(axes[0, column], each, "gb_per_s", "GB/s")
            _draw(axes[1, column], each, "median_us", "microseconds a call")
        machine = content["machine"]
        device = machine.get("gpu") if each[0]["device"] == "cuda" else machine["processor"]
        figure.suptitle(f"{device}: {regime}")
        stem = f"{suite}-{op}-{regime.replace(', ', '-')}"
        for suffix in ("png", "svg"):
            written.append(folder / f"{stem}.{suffix}")
            figure.savefig(written[-1])
    return written


def _draw(axes: Any, records: list[Record], quantity: str, label: str) -> None:
    """Draws a line for each contender, with its spread, and the copy's best bandwidth."""
    rows = len({each["elements"] for each in records}) < len({each["columns"] for each in records})
    size = "columns" if rows else "elements"
    for contender in dict.fromkeys(each["contender"] for each in records):
        own = sorted((r for r in records if r["contender"] == contender), key=lambda r: r[size])
        sizes = [each[size] for each in own]
        if contender == "copy" and quantity == "gb_per_s":
            best = max(each[quantity] for each in own)
            axes.axhline(best, color="black", linestyle=":", label=f"best copy, {best:.0f}")
        (line,) = axes.plot(sizes, [each[quantity] for each in own], marker=".", label=contender)
        spreads = [_between(each, quantity) for each in own]
        axes.fill_between(sizes, *zip(*spreads, strict=True), color=line.get_color(), alpha=0.2)
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
