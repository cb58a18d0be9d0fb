"""What `accelerate` did with a model."""

from __future__ import annotations

import collections
import dataclasses
import textwrap
from typing import Any


@dataclasses.dataclass(frozen=True)
class Replaced:
    """A node of ours in the place of standard ones."""

    op: str
    node: str  # its name; that of its output where it has none
    operators: tuple[str, ...]  # the types of those that it replaces


@dataclasses.dataclass(frozen=True)
class Left:
    """Standard nodes that are as an op's definition has them, and yet stay."""

    op: str
    node: str  # the last of them
    operators: tuple[str, ...]
    reason: str


@dataclasses.dataclass(frozen=True)
class Measured:
    """What replacing by one op changes: times of the whole model, with it to without it."""

    op: str
    nodes: int
    ratio: float  # the median over rounds in turns; below 1 the model is faster with the op
    quartiles: tuple[float, float]
    kept: bool


@dataclasses.dataclass(frozen=True)
class Report:
    """What `accelerate` did, as text by `str()`, as JSON has it by `dataclasses.asdict()`."""

    replaced: list[Replaced]
    left: list[Left]
    measured: list[Measured]  # in the order of the decisions; empty: nothing was measured
    ratio: float | None = None  # of the whole model's times, after to before

    def __str__(self) -> str:
        lines = ["replaced:" if self.replaced else "replaced: nothing"]
        lines += _counted((f"{r.op} for {' + '.join(r.operators)}", r.node) for r in self.replaced)
        if self.left:
            lines.append("left:")
            lines += _counted(
                (f"{' + '.join(e.operators)}, not {e.op}: {e.reason}", e.node) for e in self.left
            )
        if self.measured:
            lines.append("measured, the model's time with the op to that without it:")
        for each in self.measured:
            low, high = each.quartiles
            lines.append(
                f"    {each.op}, {each.nodes} nodes: {each.ratio:.3f} ({low:.3f} to {high:.3f}): "
                + ("kept" if each.kept else "not kept")
            )
        if self.ratio is not None:
            lines.append(f"the model's time, after to before: {self.ratio:.3f}")
        return "\n".join(lines)


def _counted(entries: Any) -> list[str]:
    nodes = collections.defaultdict(list)
    for text, node in entries:
        nodes[text].append(node)
    lines = []
    for text, names in nodes.items():
        more = f", and {len(names) - 3} more" if len(names) > 3 else ""
        line = f"{len(names)} x {text} ({', '.join(names[:3])}{more})"
        lines += textwrap.wrap(line, 100, initial_indent="    ", subsequent_indent="        ")
    return lines
