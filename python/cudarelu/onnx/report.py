"""What `accelerate` did with a model."""

from __future__ import annotations

import collections
import dataclasses
import textwrap
from collections.abc import Sequence
from typing import Any


@dataclasses.dataclass(frozen=True)
class Replaced:
    """A node of our op that replaces standard nodes."""

    op: str  # "relu", or "my::swish" for an op of another module
    node: str  # its name, or the name of its output if it has none
    operators: tuple[str, ...]  # the types of the nodes that it replaces


@dataclasses.dataclass(frozen=True)
class NotReplaced:
    """Standard nodes that match an op's definition but are not replaced."""

    op: str
    node: str  # the name of the last of them
    operators: tuple[str, ...]
    reason: str


@dataclasses.dataclass(frozen=True)
class Measured:
    """The effect of one op on the time of the whole model."""

    op: str
    nodes: int
    ratio: float  # time with the op to time without it, median over rounds; below 1 is faster
    quartiles: tuple[float, float]
    kept: bool


@dataclasses.dataclass(frozen=True)
class Report:
    """What `accelerate` did: `str()` gives text, `dataclasses.asdict()` gives JSON's types."""

    replaced: list[Replaced]
    left: list[NotReplaced]
    measured: list[Measured]  # in the order of the decisions; empty if nothing was measured
    ratio: float | None = None  # of the whole model's times, after to before
    library: str | None = None  # the file of the ops that were defined for the model
    unchanged: str | None = None  # why the model is left as it is; None if it is not

    def extended(
        self,
        *,
        replaced: Sequence[Replaced] = (),
        left: Sequence[NotReplaced] = (),
        measured: Sequence[Measured] = (),
    ) -> Report:
        """The report with more entries."""
        return dataclasses.replace(
            self,
            replaced=[*self.replaced, *replaced],
            left=[*self.left, *left],
            measured=[*self.measured, *measured],
        )

    def __str__(self) -> str:
        if self.unchanged is not None:
            return f"the model is left as it is: {self.unchanged}"
        lines = ["replaced:" if self.replaced else "replaced: nothing"]
        lines += _counted((f"{r.op} for {' + '.join(r.operators)}", r.node) for r in self.replaced)
        if self.library is not None:
            lines.append(f"the library of the fused ops: {self.library}")
        if self.left:
            lines.append("left:")
            lines += _counted(
                (f"{' + '.join(e.operators)}, not {e.op}: {e.reason}", e.node) for e in self.left
            )
        if self.measured:
            lines.append("measured: ratio of the model's time with the op to the time without it")
        for each in self.measured:
            low, high = each.quartiles
            lines.append(
                f"    {each.op}, {each.nodes} nodes: {each.ratio:.3f} ({low:.3f} to {high:.3f}): "
                + ("kept" if each.kept else "not kept")
            )
        if self.ratio is not None:
            lines.append(f"ratio of the model's time after to before: {self.ratio:.3f}")
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
