"""Statistics of the benchmarks on example numbers, and how they measure."""

from __future__ import annotations

import dataclasses
import itertools
import math

import pytest

from cudarelu.bench import measure, regimes, rivals, statistics, suites
from support.bench import FakeCuda, fail
from support.op_modules import my

# Statistics


def test_spread():
    assert statistics.spread([*range(101)]) == (50, 10, 90)
    assert statistics.spread([3.0]) == (3, 3, 3)


def test_a_ratio_is_of_rounds():
    """The ratio does not change if the machine becomes three times slower during the run."""
    ours = [1.0, 1.0, 1.0, 3.0, 3.0, 3.0]
    assert statistics.ratio([2 * each for each in ours], ours) == (2, 2, 2)


def test_drift():
    assert statistics.drift([1.0, 1.0, 1.0, 1.5, 1.5]) == 0.5
    assert statistics.drift([1.0]) == 0


@pytest.mark.parametrize(
    ("after", "times"),
    [
        ((10.2, 10.0, 10.4), None),  # the spreads overlap
        ((10.4, 10.35, 10.5), None),  # the spreads do not overlap, but it is within 5 %
        ((12.0, 10.2, 14.0), None),  # slower, but noisy
        ((20.0, 19.0, 21.0), 2.0),
        ((5.0, 4.9, 5.1), None),  # faster
    ],
)
def test_slowdown(after, times):
    names = ("median_us", "p10_us", "p90_us")
    before = dict(zip(names, (10.0, 9.7, 10.3), strict=True))
    assert statistics.slowdown(before, dict(zip(names, after, strict=True)), 0.05) == times


# Regimes


def test_contenders_take_turns():
    order = []
    samplers = {name: lambda name=name: order.append(name) or 1.0 for name in "abc"}
    times, failed = regimes.in_turns(samplers, 0, least=3)
    assert "".join(order) == "abcbcacab"
    assert times == dict.fromkeys("abc", [1.0] * 3)
    assert not failed


def test_a_contender_that_fails_is_left_out():
    samplers = {"a": lambda: 1.0, "b": fail(RuntimeError("first line\nsecond"))}
    times, failed = regimes.in_turns(samplers, 0, least=2)
    assert times == {"a": [1.0, 1.0]}
    assert failed == {"b": "RuntimeError: first line"}


def test_rounds_end_with_the_time(monkeypatch):
    clock = itertools.count()
    monkeypatch.setattr(regimes.time, "perf_counter", lambda: next(clock))
    times, _ = regimes.in_turns({"a": lambda: 1.0}, 10, least=3)
    assert 8 <= len(times["a"]) <= 12
    times, _ = regimes.in_turns({"a": lambda: 1.0}, math.inf, most=20)
    assert len(times["a"]) == 20


def test_calls_and_buffers_of_a_graph():
    assert regimes.calls_per_graph("graph, hot", 1e-6) == 100
    assert regimes.calls_per_graph("graph, hot", 1e-4) == 5
    assert regimes.calls_per_graph("graph, rotating", 1.0) == 1
    assert regimes.calls_per_graph("cold", 1e-6) == 1
    cache = 60 << 20
    assert regimes.buffers_needed("graph, hot", 100, 1 << 10, cache) == 1
    assert regimes.buffers_needed("graph, rotating", 100, 1 << 10, cache) == 100
    assert regimes.buffers_needed("graph, rotating", 100, 10 << 20, cache) == 18
    assert regimes.buffers_needed("graph, rotating", 1, 1 << 30, cache) == 1


@pytest.mark.parametrize(
    ("regime", "bytes_a_call", "before"),
    [
        ("cold", 1 << 10, ["evict"]),
        ("cold", 1 << 30, ["sleep"]),
        ("hot", 1 << 10, ["replay", "sleep"]),
        ("graph, rotating", 1 << 10, ["evict"]),
        ("graph, rotating", 1 << 20, ["sleep"]),
        ("graph, hot", 1 << 10, ["sleep"]),
    ],
)
def test_kernels(monkeypatch, regime, bytes_a_call, before):
    fake = FakeCuda(monkeypatch)
    called = []
    calls = [lambda each=each: called.append(each) for each in range(3)]
    sample = regimes.kernels(calls, regime, 8, bytes_a_call)
    assert called == [0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1]  # each call warms up, then they alternate
    assert fake.log == ["begin", "end", "replay"]
    fake.log.clear()
    assert sample() == pytest.approx(2e-3 / 8)
    assert fake.log == [*before, "record", "replay", "record"]


def test_a_capture_that_fails_ends(monkeypatch):
    fake = FakeCuda(monkeypatch)
    results = iter([None])
    with pytest.raises(StopIteration):
        regimes.kernels([lambda: next(results)], "hot", 2, 1)
    assert fake.log == ["begin", "end"]


def test_the_fake_op_leaves_with_its_test():
    """A later test in this process that measures on CUDA must not use the fake stream."""
    before = regimes._stream.cache_info()
    with pytest.MonkeyPatch.context() as patch:
        FakeCuda(patch)
        regimes.kernels([lambda: None], "hot", 1, 1)
    assert regimes._stream.cache_info() == before


@pytest.mark.parametrize("suite", [s for s in suites.SUITES.values() if s.device == "cuda"])
def test_the_points_of_cuda(monkeypatch, suite):
    """Runs the code for CUDA with smaller cases on the CPU: one for each op, dtype and regime."""
    FakeCuda(monkeypatch)
    monkeypatch.setattr(rivals, "_library", fail(OSError("not built")))
    my()  # whose ops the suites of all ops have too
    seen = set()
    for point in suites.points([suite.name], without=["torch.compile", "max-autotune"]):
        case = point.case
        if (case.op.name, case.dtype, point.regime) in seen:
            continue
        seen.add((case.op.name, case.dtype, point.regime))
        leading = tuple(min(each, 3) for each in case.leading)
        sizes = case.op.with_multiples({name: min(each, 64) for name, each in case.sizes.items()})
        case = dataclasses.replace(case, leading=leading, sizes=sizes, device="cpu")
        found, missing = measure.measure(dataclasses.replace(point, case=case), 0)
        assert missing.keys() <= {"cub", "cublaslt", "cublaslt, fused", "naive", "pointops"}
        assert {each["contender"] for each in found} == {*point.contenders} - {*missing}
        assert not [each for each in found if "failed" in each]
    assert seen
