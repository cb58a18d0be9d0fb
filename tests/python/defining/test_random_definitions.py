"""Random definitions: kernels compute what an interpreter does, in torch's operators too, and
gradients are difference quotients. CUDARELU_FUZZ_SECONDS has the test try further ones for that
time."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Iterator

import numpy as np
import pytest
import torch

import cudarelu
from cudarelu._pytorch.functions import overload_of
from cudarelu._table import OpInfo, ops_of
from cudarelu.inductor import in_torch
from cudarelu.testing.cases import DTYPES, Case
from cudarelu.testing.environment import torch_cuda_missing
from cudarelu.testing.hosts import Host, NumPy, Torch
from support.random_definitions import RandomDefinition, arrays, wrong

SECONDS = float(os.environ.get("CUDARELU_FUZZ_SECONDS", "0"))
HOSTS: dict[str, list[Host]] = {"cpu": [Torch("cpu"), NumPy()], "cuda": [Torch("cuda")]}
NEEDS_GPU = pytest.mark.skipif(bool(torch_cuda_missing()), reason=torch_cuda_missing() or "")
# On CUDA, these are computed by approximate instructions; test_operators.py has their errors.
APPROXIMATE = ("float16", "bfloat16")
DEVICES = ["cpu", pytest.param("cuda", marks=NEEDS_GPU)]


@pytest.mark.parametrize("device", DEVICES)
def test_random_definitions(device):
    found, compared = failures(3, 3, device)
    assert not found, "\n\n".join(found)
    assert compared > 30


if SECONDS:

    @pytest.mark.parametrize("device", DEVICES)
    def test_further_random_definitions(device):
        end = time.monotonic() + SECONDS
        first = seed = time.time_ns() // 10**9 * 100
        found = []
        while time.monotonic() < end:
            found += failures(seed, 20, device)[0]
            seed += 20
        print(f"{seed - first} definitions from the seed {first} on")
        assert not found, "\n\n".join(found)


def failures(seed: int, count: int, device: str) -> tuple[list[str], int]:
    """What is wrong with the definitions of `count` seeds, which are compiled as one library, and
    the number of derivatives that were compared."""
    definitions = {}
    with cudarelu.Library(f"random_{device}_{seed}") as library:
        for i in range(seed, seed + count):
            made = RandomDefinition(i, f"f{i - seed}")
            definitions[made.name] = made
            made.define()
    library.load(cuda=device == "cuda")
    random = np.random.default_rng(seed)
    found = []
    compared = 0
    for op in ops_of(library.name):
        made = definitions.get(op.name)
        # What was written, not what has been read of it.
        meaning = dataclasses.replace(op, definition=made.text) if made else op
        problems = [
            f"{dtype}: {each}"
            for dtype in op.dtypes
            if device == "cpu" or dtype not in APPROXIMATE
            for each in values(op, meaning, dtype, device, random)
        ]
        if op.gradient and "float64" in op.dtypes:
            wrong_slopes, smooth = slopes(op, random)
            problems += wrong_slopes
            compared += smooth
        if problems:
            origin = definitions[op.name.split("_")[0]]
            title = f"seed {seed}: {op.signature}"
            found.append("\n".join([title, *problems, meaning.definition, f"{origin}"]))
    return found, compared


def values(
    op: OpInfo, meaning: OpInfo, dtype: str, device: str, random: np.random.Generator
) -> Iterator[str]:
    """The values of an op that its definition does not give."""
    for host in HOSTS[device]:
        inputs = arrays(op, DTYPES[dtype], random)
        attributes = {
            each.name: random.choice(each.labels or [0.25, -0.5, 1.75])
            for each in op.attributes
            if random.random() < 0.5
        }
        (y,) = host.run(op, Case("random", inputs, attributes, DTYPES[dtype]))
        assert y.dtype == DTYPES[dtype]
        for each in wrong(meaning, inputs, attributes, y, random):
            yield f"{host.name} {attributes}: {each}"
        if dtype in ("float32", "float64") and "Mod" not in meaning.definition:
            # Functions of torch have other errors, and its fmod of subnormal numbers is NaN.
            y = in_torch(op)(*map(torch.from_numpy, map(np.array, inputs.values())), **attributes)
            for each in wrong(meaning, inputs, attributes, y.numpy(), random, units=3):
                yield f"in torch {attributes}: {each}"


def slopes(op: OpInfo, random: np.random.Generator) -> tuple[list[str], int]:
    """Derivatives that are not the difference quotient where that is smooth; and the number of
    those that are compared."""
    n = 40
    inputs = {each.name: torch.from_numpy(random.normal(0, 1.5, n)) for each in op.inputs}
    function = overload_of(op)
    leaves = [each.clone().requires_grad_() for each in inputs.values()]
    gradients = torch.autograd.grad(
        function(*leaves).sum(), leaves, allow_unused=True, materialize_grads=True
    )
    y = function(*inputs.values())
    found, compared = [], 0
    for (name, x), gradient in zip(inputs.items(), gradients, strict=True):
        step = 1e-3 * x.abs().clamp(min=1)

        def at(shift, name=name, x=x):
            return function(*(inputs | {name: x + shift}).values())

        near = (at(step) - at(-step)) / (2 * step)
        far = (at(2 * step) - at(-2 * step)) / (4 * step)
        error = (near - far).abs()
        slope = (4 * near - far) / 3
        smooth = slope.isfinite() & (error <= 1e-4 * slope.abs() + 1e-9)
        allowed = 30 * error + 1e-6 * slope.abs() + 1e-7 * y.abs().clamp(min=1)
        off = smooth & ~((gradient - slope).abs() <= allowed)
        if (off & gradient.isnan()).any():  # 0 times infinity, in torch too
            copies = [each.detach().requires_grad_() for each in leaves]
            in_torchs = torch.autograd.grad(
                in_torch(op)(*copies).sum(), copies[list(inputs).index(name)], allow_unused=True
            )[0]
            if in_torchs is not None:
                off &= ~(gradient.isnan() & in_torchs.isnan())
        compared += int(smooth.sum())
        for i in off.nonzero().flatten()[:2].tolist():
            place = {each: value[i].item() for each, value in inputs.items()}
            found.append(f"the slope in {name} at {place}: {gradient[i]}, not {slope[i]}")
    if any(each.dims == ("c",) for each in op.inputs):
        found += sums(op, random)
    return found, compared


def sums(op: OpInfo, random: np.random.Generator) -> list[str]:
    """Gradients in rows that are not the sums of those of each row."""
    function = overload_of(op)
    is_row = [each.dims == ("c",) for each in op.inputs]
    given = [torch.from_numpy(random.normal(0, 1.5, (4,) if row else (3, 4))) for row in is_row]
    leaves = [each.requires_grad_() for each in given]
    whole = torch.autograd.grad(function(*leaves).sum(), leaves, materialize_grads=True)
    ys = [
        function(*(x if row else x[i] for x, row in zip(leaves, is_row, strict=True)))
        for i in range(3)
    ]
    parts = torch.autograd.grad(torch.stack(ys).sum(), leaves, materialize_grads=True)
    return [
        f"the gradient in {each.name}: {a}, not {b}"
        for each, a, b in zip(op.inputs, whole, parts, strict=True)
        if not torch.allclose(a, b, rtol=1e-9, atol=1e-9, equal_nan=True)
    ]
