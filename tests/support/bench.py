"""What tests of the benchmarks share: the ops, and tiny runs of the command."""

from __future__ import annotations

import contextlib

import pytest
import torch

import cudarelu
from cudarelu.__main__ import main
from cudarelu.bench import regimes
from cudarelu.testing.environment import torch_cuda_missing

OPS = {op.name: op for op in cudarelu.ops()}
NEEDS_GPU = pytest.mark.skipif(bool(torch_cuda_missing()), reason=torch_cuda_missing() or "")
TINY = ["--suite", "cpu-sizes", "--op", "relu", "--op", "bias_relu", "--largest", "20000"]
TINY += ["--seconds", "0.001", "--commit", "test"]


def bench(*arguments: object) -> int:
    return main(["bench", *map(str, arguments)])


def fail(error):
    """A function that raises the error for any arguments."""

    def function(*arguments):
        raise error

    return function


class FakeCuda:
    """Fakes the part of torch.cuda that a measurement uses; a capture runs the calls."""

    def __init__(self, monkeypatch):
        self.log = []
        fakes = {
            "CUDAGraph": lambda: self,
            "Event": lambda enable_timing: self,
            "current_stream": lambda: self,
            "stream": lambda stream: contextlib.nullcontext(),
            "synchronize": lambda: None,
            "empty_cache": lambda: None,
            "_sleep": lambda cycles: self.log.append("sleep"),
        }
        for name, fake in fakes.items():
            monkeypatch.setattr(torch.cuda, name, fake)
        monkeypatch.setattr(regimes, "cache_bytes", lambda device: 1 << 20)
        monkeypatch.setattr(regimes, "_stream", lambda: self)  # its cache would keep the fake
        monkeypatch.setattr(regimes, "_large_buffer", lambda: self)

    def sum(self):
        self.log.append("evict")

    def capture_begin(self, capture_error_mode):
        self.log.append("begin")

    def capture_end(self):
        self.log.append("end")

    def replay(self):
        self.log.append("replay")

    def elapsed_time(self, end):
        return 2.0  # milliseconds

    def record(self):
        self.log.append("record")

    def wait_stream(self, stream):
        pass

    def synchronize(self):
        pass
