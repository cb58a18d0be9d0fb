"""Measures a point: a case in a regime, with contenders that take turns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from . import regimes, statistics
from .accuracy import Check
from .cases import Case, Inputs, clones
from .contenders import CONTENDERS, Bind, Missing


@dataclass(frozen=True)
class Point:
    """A set of contenders that are measured together; the first one is ours."""

    suite: str
    case: Case
    regime: str
    contenders: tuple[str, ...]

    @property
    def identity(self) -> dict[str, Any]:
        """The keys and values by which records of two runs are matched."""
        case = self.case
        return {
            "suite": self.suite,
            "op": case.op.short_name,
            "dtype": case.dtype,
            "shape": case.label,
            "attributes": case.attributes,
            "device": case.device,
            "threads": case.threads if case.device == "cpu" else None,
            "regime": self.regime,
        }


class DeviceLostError(RuntimeError):
    """The GPU is not usable any more: CUDA keeps such an error until the process ends."""

    records: Sequence[dict[str, Any]] = ()  # of the contenders that failed


def _check_device(device: str) -> None:
    try:
        regimes.synchronise(device)
    except RuntimeError as error:
        raise DeviceLostError(regimes.describe(error)) from error


class _Measurement:
    """The state of each contender while a point is measured."""

    def __init__(self, point: Point) -> None:
        self.point, self.case = point, point.case
        self.binds: dict[str, Bind] = {}
        self.samplers: dict[str, regimes.Sampler] = {}
        self.errors: dict[str, float] = {}
        self.failed: dict[str, str] = {}
        self.missing: dict[str, str] = {}
        self.sets: list[Inputs] = []  # of inputs, which all contenders share

    def each(self, names: list[str], step: Callable[[str], None]) -> None:
        """Runs a step for each contender; one that fails is left out of the later steps."""
        for name in names:
            try:
                step(name)
            except Missing as error:
                self.missing[name] = str(error)
            except Exception as error:
                self.failed[name] = regimes.describe(error)
                _check_device(self.case.device)

    def _prepare(self, name: str) -> None:
        bind = CONTENDERS[name](self.case)
        if bind:
            self.binds[name] = bind

    def _sampler(self, name: str, inputs: Inputs) -> None:
        point, case = self.point, self.case
        call = self.binds[name](inputs)
        seconds = regimes.seconds_per_call(call, case.device)
        if point.regime in regimes.CALLS:
            make = regimes.loop if point.regime == "loop" else regimes.synchronised
            self.samplers[name] = make(call, case.device, seconds)
            return
        count = regimes.calls_per_graph(point.regime, seconds)
        sets = regimes.buffers_needed(
            point.regime, count, case.bytes, regimes.cache_bytes(case.device)
        )
        if len(self.sets) < sets:
            self.sets = clones(inputs, sets)
        calls = [call, *(self.binds[name](each) for each in self.sets[1:sets])]
        self.samplers[name] = regimes.kernels(calls, point.regime, count, case.bytes)

    def _error(self, name: str, check: Check) -> None:
        bind = self.binds[name] if check.case is self.case else CONTENDERS[name](check.case)
        assert bind
        self.errors[name] = check.error(bind(check.inputs))

    def run(self, seconds: float) -> dict[str, list[float]]:
        inputs = self.case.inputs()
        self.each(list(self.point.contenders), self._prepare)
        check = Check(self.case, inputs)
        self.each([n for n in self.binds if n != "copy"], lambda n: self._error(n, check))
        self.each(
            [n for n in self.binds if n not in self.failed], lambda n: self._sampler(n, inputs)
        )
        times, failed = regimes.in_turns(self.samplers, seconds)
        self.failed |= failed
        return times


def measure(point: Point, seconds: float) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Returns the records of a point, and why contenders are missing that are not installed.

    There is a record for each contender that was timed or failed. The measurement takes `seconds`
    after the preparation. Raises DeviceLostError if nothing more can be measured.
    """
    case = point.case
    threads = torch.get_num_threads()
    if case.device == "cpu":
        torch.set_num_threads(case.threads)
    else:
        torch.cuda.empty_cache()  # frees the memory of the previous point's graphs
    measurement = _Measurement(point)
    try:
        times = measurement.run(seconds)
        _check_device(case.device)
    except DeviceLostError as error:
        error.records = [_failure(point, n, text) for n, text in measurement.failed.items()]
        raise
    except Exception as error:  # in the inputs or the reference, not in a contender
        return [_failure(point, point.contenders[0], regimes.describe(error))], {}
    finally:
        torch.set_num_threads(threads)
    records = [
        _record(point, name, times, measurement.errors.get(name))
        for name in point.contenders
        if name in times
    ]
    records += [_failure(point, name, text) for name, text in measurement.failed.items()]
    return records, measurement.missing


def _failure(point: Point, name: str, text: str) -> dict[str, Any]:
    return point.identity | {"contender": name, "failed": text}


def _record(
    point: Point, name: str, times: dict[str, list[float]], error: float | None
) -> dict[str, Any]:
    case, ours = point.case, times.get(point.contenders[0])
    median, low, high = statistics.spread(times[name])
    record = point.identity | {
        "contender": name,
        "elements": case.elements,
        "columns": case.columns,
        "bytes": case.bytes,
        "operations": case.operations,
        "median_us": median * 1e6,
        "p10_us": low * 1e6,
        "p90_us": high * 1e6,
        "rounds": len(times[name]),
        "drift": statistics.drift(times[name]),
        "gb_per_s": case.bytes / median / 1e9,
        "error": error,
    }
    if ours and name != point.contenders[0]:
        record["times_ours"] = statistics.ratio(times[name], ours)
    return record
