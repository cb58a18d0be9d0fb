"""Medians and their spread."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

Spread = tuple[float, float, float]


def spread(values: Sequence[float]) -> Spread:
    """The median, the 10th and the 90th percentile."""
    median, low, high = np.percentile(values, [50, 10, 90])
    return float(median), float(low), float(high)


def ratio(theirs: Sequence[float], ours: Sequence[float]) -> Spread:
    """How many times as long as ours theirs took, round by round: a drift of the machine's speed
    is in both."""
    return spread(np.divide(theirs, ours).tolist())


def drift(values: Sequence[float]) -> float:
    """How much slower the second half of the rounds was than the first: 0.1 is 10 %."""
    half = len(values) // 2
    return float(np.median(values[-half:]) / np.median(values[:half]) - 1) if half else 0.0


def slowdown(before: dict, after: dict, least: float) -> float | None:
    """How many times slower a record is than an earlier one, if by more than the noise: by more
    than `least`, as 0.05, and with spreads that do not meet. None otherwise."""
    if after["p10_us"] <= before["p90_us"]:
        return None
    times = after["median_us"] / before["median_us"]
    return times if times > 1 + least else None
