"""Random models compute the same in ONNX Runtime with this library and without it: as they are,
lowered and accelerated. CUDARELU_FUZZ_SECONDS has the test try further models for that time."""

from __future__ import annotations

import os
import time

import numpy as np
import onnx
import pytest

from cudarelu.testing.environment import ort_cuda_missing
from support.cases import slow_after
from support.random_models import differences, failures, smallest

SECONDS = float(os.environ.get("CUDARELU_FUZZ_SECONDS", "0"))
NEEDS_GPU = pytest.mark.skipif(bool(ort_cuda_missing()), reason=ort_cuda_missing() or "")
DEVICES = ["cpu", pytest.param("cuda", marks=NEEDS_GPU)]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("seed", slow_after(3, range(12)))
def test_random_models(seed, device):
    check(seed, 15, device)


if SECONDS:

    @pytest.mark.parametrize("device", DEVICES)
    def test_further_random_models(device):
        end = time.monotonic() + SECONDS
        first = seed = time.time_ns() // 10**9 * 1000
        while time.monotonic() < end:
            check(seed, 5 + seed % 30, device, fuse=seed % 50 == 0)
            seed += 1
        print(f"{seed - first} models from the seed {first} on")


def test_what_differs_is_found():
    x = np.ones(3, np.float32)
    assert differences([x], [x * np.float32(1.0001)], x.dtype) == []
    for other in (x * np.float32(1.01), x[:2], x.astype(np.float64), np.full(3, 2, np.float32)):
        assert len(differences([x], [other], x.dtype)) == 1


def check(seed: int, size: int, device: str, fuse: bool = False) -> None:
    if found := failures(seed, size, device, fuse):
        model, size = smallest(seed, size, device, fuse)
        text = onnx.printer.to_text(model)
        pytest.fail(f"seed {seed}, size {size}:\n" + "\n".join(found) + "\n" + text)
