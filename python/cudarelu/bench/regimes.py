"""The regimes: what is timed.

On CUDA, kernels alone are timed by events around a CUDA graph. The graph waits behind another
kernel until the host has issued everything:

    cold             one call with its buffers out of the L2 cache
    hot              one call with its buffers in the L2 cache if they fit
    graph, rotating  calls back to back, each on buffers that are out of the L2 cache
    graph, hot       calls back to back, all on the same buffers

Calls are timed by the host's clock:

    loop             calls in an asynchronous loop with one wait at its end
    synchronised     calls, each with a wait

The CPU has only `loop`, since a call returns when it has finished.
"""

from __future__ import annotations

import collections
import functools
import math
import time
from collections.abc import Callable, Mapping

import torch

from .contenders import Call

Sampler = Callable[[], float]  # measures once; returns seconds per call

LOOP_SECONDS, GRAPH_SECONDS = 2e-3, 5e-4  # the approximate time of one measurement
MOST_CALLS = 100  # in a graph

KERNELS = ("cold", "hot", "graph, rotating", "graph, hot")
CALLS = ("loop", "synchronised")


def is_cold(regime: str) -> bool:
    return regime in ("cold", "graph, rotating")


def calls_per_graph(regime: str, seconds: float) -> int:
    """Returns how many calls of `seconds` each make a graph long enough to time."""
    return max(1, min(MOST_CALLS, round(GRAPH_SECONDS / seconds))) if "graph" in regime else 1


def buffers_needed(regime: str, calls: int, bytes_a_call: int, cache: int) -> int:
    """Returns how many sets of buffers a graph needs so that no call finds its data in the cache:
    enough to fill the cache three times, or one for each call."""
    return min(calls, math.ceil(3 * cache / bytes_a_call)) if is_cold(regime) else 1


def cache_bytes(device: str) -> int:
    return torch.cuda.get_device_properties(0).L2_cache_size if device == "cuda" else 0


def synchronise(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def seconds_per_call(call: Call, device: str) -> float:
    """Estimates the time of a call by the host's clock, after a warm-up."""
    call()
    for count in (1, 20):
        synchronise(device)
        start = time.perf_counter()
        for _ in range(count):
            call()
        synchronise(device)
        seconds = (time.perf_counter() - start) / count
        if seconds > 1e-3:
            break
    return seconds


def loop(call: Call, device: str, seconds: float) -> Sampler:
    count = max(1, round(LOOP_SECONDS / seconds))

    def sample() -> float:
        if device == "cpu":
            time.sleep(1e-3)  # until the threads of another contender's runtime stop spinning
        if seconds < LOOP_SECONDS:
            call()  # a warm-up after another contender's turn
        synchronise(device)
        start = time.perf_counter()
        for _ in range(count):
            call()
        synchronise(device)
        return (time.perf_counter() - start) / count

    return sample


def synchronised(call: Call, device: str, seconds: float) -> Sampler:
    def call_and_wait() -> None:
        call()
        synchronise(device)

    return loop(call_and_wait, device, seconds)


@functools.cache
def _stream() -> torch.cuda.Stream:
    return torch.cuda.Stream()


@functools.cache
def _large_buffer() -> torch.Tensor:
    return torch.ones(3 * cache_bytes("cuda") // 4, device="cuda")


def _capture(calls: list[Call], count: int) -> torch.cuda.CUDAGraph:
    """Captures `count` calls, which take turns. The outputs of the last len(calls) calls stay
    alive, so that outputs rotate as inputs do."""
    graph = torch.cuda.CUDAGraph()
    outputs: collections.deque = collections.deque(maxlen=len(calls))
    graph.capture_begin(capture_error_mode="thread_local")
    try:
        for i in range(count):
            outputs.append(calls[i % len(calls)]())
    finally:
        graph.capture_end()
    return graph


def kernels(calls: list[Call], regime: str, count: int, bytes_a_call: int) -> Sampler:
    """Times a graph of `count` calls, which take turns; each of `calls` has its own buffers."""
    stream = _stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for call in calls:
            call()
        torch.cuda.synchronize()
        graph = _capture(calls, count)
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        evicts = is_cold(regime) and len(calls) * bytes_a_call < 3 * cache_bytes("cuda")
        before = _large_buffer().sum if evicts else functools.partial(torch.cuda._sleep, 100_000)
        graph.replay()
        torch.cuda.synchronize()

    def sample() -> float:
        with torch.cuda.stream(stream):
            if regime == "hot":
                graph.replay()  # a warm-up after another contender's turn
            before()  # keeps the GPU busy until all below is issued; a sum leaves no dirty lines
            start.record()
            graph.replay()
            end.record()
        end.synchronize()
        return start.elapsed_time(end) / 1000 / count

    # The graph has the addresses of the buffers, but does not keep them alive.
    sample.calls = calls  # type: ignore[attr-defined]
    return sample


def in_turns(
    samplers: Mapping[str, Sampler], seconds: float, least: int = 3, most: int = 300
) -> tuple[dict[str, list[float]], dict[str, str]]:
    """Measures for so many seconds in rounds: each contender once, starting with another each time.

    Returns the times by contender, and the errors of those that failed and were left out.
    """
    times: dict[str, list[float]] = {name: [] for name in samplers}
    failed: dict[str, str] = {}
    end = time.perf_counter() + seconds
    for number in range(most):
        if number >= least and time.perf_counter() >= end:
            break
        names = [name for name in samplers if name not in failed]
        for i in range(len(names)):
            name = names[(number + i) % len(names)]
            try:
                times[name].append(samplers[name]())
            except Exception as error:
                failed[name] = describe(error)
    return {name: each for name, each in times.items() if name not in failed}, failed


def describe(error: Exception) -> str:
    """Returns an error as one line."""
    first = next(iter(str(error).strip().splitlines()), "")
    return f"{type(error).__name__}: {first}"[:300]
