"""Medians and their spread."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

Spread = tuple[float, float, float]


def spread(values: Sequence[float]) -> Spread:
    """Returns the median, the 10th and the 90th percentile."""
    median, low, high = np.percentile(values, [50, 10, 90])
    return float(median), float(low), float(high)


def ratio(theirs: Sequence[float], ours: Sequence[float]) -> Spread:
    """Returns the spread of theirs / ours over the rounds, which a drift of the machine's speed
    does not change, since both have it."""
    return spread(np.divide(theirs, ours).tolist())


def drift(values: Sequence[float]) -> float:
    """Returns how much slower the second half of the rounds was than the first: 0.1 is 10 %."""
    half = len(values) // 2
    return float(np.median(values[-half:]) / np.median(values[:half]) - 1) if half else 0.0


def slowdown(before: dict, after: dict, threshold: float) -> float | None:
    """Returns how many times slower a record is than an earlier one, or None within the noise.

    Beyond the noise, it is slower by more than `threshold` and the spreads do not overlap. With
    0.05: medians 10.0 and 10.6 us, whose percentiles are 9.7 to 10.3 and 10.4 to 10.8 us.
    """
    if after["p10_us"] <= before["p90_us"]:
        return None
    times = after["median_us"] / before["median_us"]
    return times if times > 1 + threshold else None
