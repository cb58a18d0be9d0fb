"""Compiled programs of JAX with our ops, against the same programs with XLA's own.

    python benchmarks/jax_programs.py [--device cpu] [--rounds 30] [--out FILE.json]

The two take turns; times are medians of a program in microseconds, with its result awaited. A round
of a small program is a hundred runs. `error` is the largest difference between the two results.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import report

import cudarelu

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
import jax_train

Program = Callable[..., Any]


def layer_norm(x: jax.Array) -> jax.Array:
    mean = x.mean(-1, keepdims=True)
    variance = jnp.square(x - mean).mean(-1, keepdims=True)
    return (x - mean) * jax.lax.rsqrt(variance + 1e-5)


def linear_gelu(x: jax.Array, weight: jax.Array, bias: jax.Array) -> jax.Array:
    return jax.nn.gelu(x @ weight.T + bias, approximate=False)


def training_step(ours: bool) -> Program:
    """A step of examples/jax_train.py, with our ops or XLA's."""
    ops = {
        "linear_gelu": linear_gelu,
        "layer_norm": layer_norm,
        "linear": lambda x, weight, bias: x @ weight.T + bias,
        "softmax": jax.nn.softmax,
    }
    own = {name: getattr(cudarelu, name) for name in ops}

    def step(parameters: Any, x: jax.Array, labels: jax.Array) -> Any:
        for name, function in (own if ours else ops).items():
            setattr(cudarelu, name, function)  # what the example calls while it is traced
        try:
            return jax_train.step.__wrapped__(parameters, x, labels)
        finally:
            for name, function in own.items():
                setattr(cudarelu, name, function)

    return step


def programs(device: str) -> dict[str, tuple[Program, Program, tuple[Any, ...]]]:
    """For each name: our program, XLA's, and the arguments."""
    key = jax.random.key(0)

    def normal(*shape: int, dtype: Any = jnp.float32) -> jax.Array:
        return jax.random.normal(key, shape, dtype)

    large = 1 << (26 if device == "cuda" else 22)
    rows = (8192, 8192) if device == "cuda" else (1024, 1024)
    m, n, k = (8192, 4096, 1024) if device == "cuda" else (512, 768, 256)
    half = jnp.bfloat16 if device == "cuda" else jnp.float32
    x, labels = jax_train.spirals(600)
    network = jax_train.initial(key), jnp.asarray(x), jnp.asarray(labels)
    product = normal(m, k, dtype=half), normal(n, k, dtype=half), normal(n, dtype=half)
    return {
        "relu, 8 numbers": (cudarelu.relu, lambda x: jnp.maximum(x, 0), (normal(8),)),
        f"relu, {large} numbers": (cudarelu.relu, lambda x: jnp.maximum(x, 0), (normal(large),)),
        f"softmax, {rows}": (cudarelu.softmax, jax.nn.softmax, (normal(*rows),)),
        f"layer_norm, {rows}": (cudarelu.layer_norm, layer_norm, (normal(*rows),)),
        f"linear_gelu, {m} x {n} x {k}": (cudarelu.linear_gelu, linear_gelu, product),
        "a training step": (training_step(True), training_step(False), network),
    }


def measure(program: Program, arguments: tuple[Any, ...]) -> float:
    """The time of a run in microseconds, from as many as take a millisecond."""
    start = time.perf_counter()
    jax.block_until_ready(program(*arguments))
    count = max(1, min(100, int(1e-3 / (time.perf_counter() - start))))
    start = time.perf_counter()
    for _ in range(count):
        jax.block_until_ready(program(*arguments))
    return (time.perf_counter() - start) / count * 1e6


def difference(a: Any, b: Any) -> float:
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return max(float(np.max(np.abs(np.float64(x) - np.float64(y)))) for x, y in pairs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--out", help="a file for the results, in JSON")
    options = parser.parse_args()
    (device, *_) = jax.devices(options.device)
    found: dict[str, object] = {
        "device": device.device_kind,
        "jax": jax.__version__,
        "cudarelu": cudarelu.__version__,
    }
    with jax.default_device(device):
        for name, (ours, theirs, arguments) in programs(options.device).items():
            pair = [jax.jit(each) for each in (ours, theirs)]
            error = difference(*(program(*arguments) for program in pair))
            times: list[list[float]] = [[], []]
            for _ in range(options.rounds):
                for program, each in zip(pair, times, strict=True):
                    each.append(measure(program, arguments))
            medians = [statistics.median(each) for each in times]
            found[name] = {
                "ours_us": round(medians[0], 2),
                "xla_us": round(medians[1], 2),
                "times_ours": round(medians[1] / medians[0], 3),
                "error": error,
            }
    report.write(found, options.out)


if __name__ == "__main__":
    main()
