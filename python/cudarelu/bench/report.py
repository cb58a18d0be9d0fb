"""The table of targets, and the differences between two files."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from .._table import FLOATING
from .records import key, title
from .statistics import slowdown, spread
from .suites import SUITES, TARGETS, Target

Record = dict[str, Any]
LEAST_SLOWDOWN = 0.05


def _name(record: Record) -> str:
    return f"{title(record)} of {record['shape']}"


@dataclass(frozen=True)
class Outcome:
    """What was measured of a target."""

    target: Target
    records: list[Record]

    @property
    def key(self) -> tuple[str, str, str]:
        """The target in words: what, against, target."""
        target = self.target
        median = f", median {target.median:g}" if target.median else ""
        return target.what, target.rival, f"{target.times:g}{median}"

    def cells(self) -> list[str]:
        """The cells of the target's row in the table."""
        if not self.records:
            return [*self.key, "", "", "0", "not measured", ""]
        target = self.target
        worst = min(self.records, key=lambda each: each["times_ours"][0])
        least = worst["times_ours"][0]
        median, *_ = spread([each["times_ours"][0] for each in self.records])
        met = "yes" if least >= target.times and median >= (target.median or 0) else "no"
        points = str(len(self.records))
        return [*self.key, f"{least:.3g}", f"{median:.3g}", points, met, _name(worst)]


def outcomes(content: dict[str, Any]) -> list[Outcome]:
    """Returns the outcome of each target of the suites that have records."""
    result = []
    for suite in SUITES.values():
        records = [each for each in content["records"] if each["suite"] == suite.name]
        for target in TARGETS.get(suite.name, ()) if records else ():
            kept = [
                each
                for each in records
                if each["contender"] == target.rival and "times_ours" in each and target.keep(each)
            ]
            result.append(Outcome(target, kept))
    return result


def table(content: dict[str, Any]) -> str:
    """Returns the targets in Markdown, with the rival's time divided by ours: the least and the
    median over the points. Against a copy, that is the fraction of its bandwidth that we reach."""
    lines = [
        "| what | against | target | least | median | points | met | where the least |",
        "|---|---|---|---|---|---|---|---|",
    ]
    lines += [f"| {' | '.join(outcome.cells())} |" for outcome in outcomes(content)]
    failed = [each for each in content["records"] if "failed" in each]
    if failed:
        lines += ["", "Failed:", ""]
        lines += [
            f"- {each['suite']}: {each['contender']}, {_name(each)}, {each['regime']}: "
            f"{each['failed']}"
            for each in failed
        ]
    for name, reason in content["missing"].items():
        lines += ["", f"Without {name}: {reason}"]
    return "\n".join(lines)


def largest_errors(content: dict[str, Any]) -> dict[str, dict[str, str]]:
    """Returns the largest error of each op by dtype, with PyTorch's in brackets where it has one.

    Errors are relative to the largest expected element.
    """
    largest: dict[tuple[str, str], dict[str, float]] = {}
    for each in content["records"]:
        if each.get("error") is not None and each["dtype"] in FLOATING:
            found = largest.setdefault((each["op"], each["dtype"]), {})
            found[each["contender"]] = max(each["error"], found.get(each["contender"], 0.0))
    texts: dict[str, dict[str, str]] = {}
    for (op, dtype), found in sorted(largest.items()):
        numbers = [f"{found[name]:.2g}" for name in ("cudarelu", "torch") if name in found]
        texts.setdefault(op, {})[dtype] = " ".join([*numbers[:1], *(f"({n})" for n in numbers[1:])])
    return texts


def errors(content: dict[str, Any]) -> str:
    """Returns the largest errors of each op and dtype in Markdown, with PyTorch's in brackets."""
    lines = [f"| op | {' | '.join(FLOATING)} |", "|---" * (len(FLOATING) + 1) + "|"]
    for op, texts in largest_errors(content).items():
        lines.append(f"| {op} | {' | '.join(texts.get(dtype, '') for dtype in FLOATING)} |")
    return "\n".join(lines)


_RIVALS = {"copy": "of a copy's speed", "torch": "times as fast as PyTorch"}


def measured(*contents: dict[str, Any]) -> dict[str, list[tuple[str, str]]]:
    """Returns what the reference says of the measurements of each op, as names and texts.

    Records of the CPU are of one thread. The first file with a machine and an op says it.
    """
    notes: dict[str, list[tuple[str, str]]] = {}
    for content in contents:
        named = {op: {name for name, _ in texts} for op, texts in notes.items()}
        for op, texts in _measured(content):
            if texts[0] not in named.get(op, ()):
                notes.setdefault(op, []).append(texts)
    return notes


def _measured(content: dict[str, Any]) -> Iterator[tuple[str, tuple[str, str]]]:
    gpu = content["machine"].get("gpu")
    where = gpu or content["machine"]["processor"]
    timed = gpu or f"one thread of {where}"
    ratios: dict[str, dict[str, list[float]]] = {}
    for each in content["records"]:
        if each["contender"] in _RIVALS and "times_ours" in each:
            by_rival = ratios.setdefault(each["op"], {})
            by_rival.setdefault(each["contender"], []).append(each["times_ours"][0])
    for op, texts in largest_errors(content).items():
        line = ", ".join(f"{dtype} {texts[dtype]}" for dtype in FLOATING if dtype in texts)
        rival = " (PyTorch's)" if "(" in line else ""
        yield op, (f"Largest error on {where}{rival}", line)
    for op, by_rival in sorted(ratios.items()):
        line = "; ".join(
            f"{min(by_rival[name]):.2f} to {max(by_rival[name]):.2f} {what}, "
            f"{spread(by_rival[name])[0]:.2f} at the median"
            for name, what in _RIVALS.items()
            if name in by_rival
        )
        yield op, (f"Speed on {timed}", line)
    times: dict[tuple[str, str], dict[str, str]] = {}
    for each in content["records"]:
        if each["contender"] == "cudarelu" and each["op"] not in ratios and "median_us" in each:
            of_a_shape = times.setdefault((each["op"], each["shape"]), {})
            of_a_shape[each["dtype"]] = f"{each['median_us'] / 1000:.3g}"
    for (op, shape), of_a_shape in times.items():
        line = ", ".join(f"{dtype} {time}" for dtype, time in of_a_shape.items())
        yield op, (f"Milliseconds for {shape} on {timed}", line)


@dataclass(frozen=True)
class KernelRow:
    """The kernels that ours launches for a dtype, from a size to another."""

    dtype: str  # and the attributes
    regime: str
    sizes: str
    kernels: list[str]
    part: str  # of the limit


def kernel_rows(content: dict[str, Any]) -> dict[str, list[KernelRow]]:
    """Returns which kernels run at which sizes, for each op with records of kernels.

    Neighbouring sizes with the same kernels are one row.
    """
    rivals = {key(each): each for each in content["records"] if "times_ours" in each}
    best: dict[str, float] = {}  # copy, by regime
    for each in content["records"]:
        if each["contender"] == "copy" and "failed" not in each:
            best[each["regime"]] = max(each["gb_per_s"], best.get(each["regime"], 0.0))
    ours = [each for each in content["records"] if each.get("kernels")]
    order = "columns", "elements", "shape"
    ours.sort(key=lambda each: (title(each), each["regime"], *(each[name] for name in order)))
    rows: dict[str, list[KernelRow]] = {}
    for (name, regime, kernels), group in itertools.groupby(
        ours, key=lambda each: (title(each), each["regime"], each["kernels"])
    ):
        records = [*group]
        op = records[0]["op"]
        sizes = dict.fromkeys(records[at]["shape"] for at in (0, -1))
        parts = _parts_of_limit(records, rivals, best)
        ends = dict.fromkeys(f"{end(parts):.2g}" for end in (min, max) if parts)
        row = KernelRow(
            name.removeprefix(f"{op} "),
            regime,
            " to ".join(sizes),
            _counted(kernels),
            " to ".join(ends),
        )
        rows.setdefault(op, []).append(row)
    return rows


def _parts_of_limit(
    records: list[Record], rivals: dict[str, Record], best: dict[str, float]
) -> list[float]:
    """The limit of a product is cuBLASLt, that of other ops a copy. If no copy was measured at any
    of the points, it is the best copy of the regime."""
    is_product = records[0]["operations"] != records[0]["elements"]
    limit = {"contender": "cublaslt" if is_product else "copy"}
    found = [rivals[key(each | limit)] for each in records if key(each | limit) in rivals]
    if found or is_product:
        return [each["times_ours"][0] for each in found]
    kept = [each for each in records if each["regime"] in best]
    return [each["gb_per_s"] / best[each["regime"]] for each in kept]


def _counted(names: list[str]) -> list[str]:
    """The names with neighbours that are equal as one: "3 x kernel<Relu>"."""
    counts = [(name, len([*group])) for name, group in itertools.groupby(names)]
    return [f"{count} x {name}" if count > 1 else name for name, count in counts]


def compare(before: dict[str, Any], after: dict[str, Any]) -> tuple[list[str], bool]:
    """Returns lines on what became slower by more than the noise, and whether anything did."""
    lines = [
        f"{name}: {value} before, {after['machine'].get(name)} after"
        for name, value in before["machine"].items()
        if after["machine"].get(name) != value
    ]
    earlier = {key(each): each for each in before["records"]}
    slower = sorted(_slower(earlier, after["records"]), reverse=True)
    lines += [text for _, text in slower]
    common = sum(key(each) in earlier for each in after["records"])
    lines.append(f"{len(slower)} of {common} common records are slower")
    return lines, bool(slower)


def _slower(earlier: dict[str, Record], records: list[Record]) -> Iterator[tuple[float, str]]:
    for record in records:
        old = earlier.get(key(record))
        if old is None or "failed" in old:
            continue
        title = f"{record['suite']}: {record['contender']}, {_name(record)}, {record['regime']}"
        if "failed" in record:
            yield float("inf"), f"{title}: failed: {record['failed']}"
        elif times := slowdown(old, record, LEAST_SLOWDOWN):
            yield (
                times,
                f"{title}: {times:.2f} times: {old['median_us']:.4g} us before, "
                f"{record['median_us']:.4g} us after",
            )
