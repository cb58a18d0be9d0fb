"""What a call must give: the op's definition, evaluated by onnx.reference in float64.

Integers are evaluated in int64 and wrap around to their own type.
"""

from __future__ import annotations

import dataclasses
import functools

import ml_dtypes
import numpy as np

from cases import DTYPES, Case, is_float, is_product
from cudarelu.bench.accuracy import evaluator
from cudarelu.onnx import function
from cudarelu.onnx.absent_inputs import with_stand_ins

# How far a result may be from the reference: relative to it, and to the largest number of the call,
# input or output, since sums cancel.
TOLERANCE = {"float64": 1e-13, "float32": 1e-6, "float16": 1e-3, "bfloat16": 8e-3}


def _wide(dtype: np.dtype) -> type:
    return np.float64 if is_float(dtype) else np.int64


def reference(op, case: Case) -> list[np.ndarray]:
    """The outputs in float64 and int64; exact results of exact inputs."""
    wide = {
        name: array if array is None else array.astype(_wide(array.dtype))
        for name, array in case.inputs.items()
    }
    defaults = {a.name: a.default for a in op.attributes if not a.required}
    with np.errstate(all="ignore"):
        attributes = op.onnx_attributes(defaults | case.attributes)
        return evaluator(op).run(None, with_stand_ins(op, wide), attributes=attributes)


def is_composed(op) -> bool:
    """Whether the definition goes on with an erf or a tanh, and may cancel digits of it."""
    nodes = function(op).node
    return len(nodes) > 1 and any(node.op_type in ("Erf", "Tanh") for node in nodes)


def largest_finite(array: np.ndarray) -> float:
    if array.size == 0:
        return 0.0
    with np.errstate(all="ignore"):
        array = array.astype(np.float64 if array.itemsize == 8 else np.float32)
        largest = max(array.max(), -array.min())
        if np.isfinite(largest):  # nearly always, and several times as fast as what follows
            return float(largest)
        magnitudes = np.abs(array)
        return float(magnitudes[np.isfinite(magnitudes)].max(initial=0))


@functools.lru_cache(maxsize=1)  # of the case that all hosts are at
def largest_input(case: Case) -> float:
    floats = [a for a in case.inputs.values() if a is not None and is_float(a.dtype)]
    return max(map(largest_finite, floats), default=0.0)


@functools.lru_cache(maxsize=1)
def largest_of_magnitudes(op, case: Case) -> float:
    """The largest number of the call with the magnitudes of its inputs."""
    magnitudes = {name: a if a is None else np.abs(a) for name, a in case.inputs.items()}
    outputs = reference(op, dataclasses.replace(case, inputs=magnitudes))
    return max(map(largest_finite, outputs))


def attribute_rounding(op, case: Case) -> float:
    """ONNX attributes are float32: how far a default that is none, such as 0.01, is from it."""
    left_out = [a for a in op.attributes if a.name not in case.attributes]
    defaults = [a.default for a in left_out if a.type == "float"]
    return 2.0**-24 if any(value != float(np.float32(value)) for value in defaults) else 0.0


def assert_equal(op, case: Case, actual: np.ndarray, expected: np.ndarray, dtype: np.dtype) -> None:
    """Compare an output with the reference: dtype, shape, then every element."""
    assert actual.dtype == dtype
    assert actual.shape == expected.shape
    if actual.size == 0:
        return
    exact = expected
    with np.errstate(all="ignore"):
        expected = expected.astype(dtype)  # rounds once, wraps around, overflows to infinity
    if not is_float(dtype):
        np.testing.assert_array_equal(actual, expected)
        return
    if op.elementwise and np.array_equal(actual, expected, equal_nan=True):
        return
    largest = max(1.0, largest_finite(expected), largest_input(case))
    if op.elementwise:
        # A tolerance would let a subnormal get lost. Half of the least one rounds either way; and
        # where a definition cancels, in float64, a result may have digits left.
        least = float(ml_dtypes.finfo(dtype).smallest_subnormal)
        rest = max(least, TOLERANCE["float64"] * largest) if is_composed(op) else 0
        is_zero = np.where(expected == 0, np.abs(actual.astype(np.float64)) <= rest, actual == 0)
        is_tie = np.isclose(np.abs(exact), least / 2, rtol=1e-6, atol=0)
        np.testing.assert_array_equal(is_zero | is_tie, (expected == 0) | is_tie)
    tolerance = TOLERANCE[next(name for name, each in DTYPES.items() if each == dtype)]
    tolerance = max(tolerance, attribute_rounding(op, case))
    actual, expected = actual.astype(np.float64), expected.astype(np.float64)
    if is_product(op):  # whose error grows with the sum of its terms' magnitudes
        largest = max(largest, largest_of_magnitudes(op, case))
    with np.errstate(all="ignore"):  # what assert_allclose does, several times as fast
        close = np.abs(actual - expected) <= tolerance * largest + tolerance * np.abs(expected)
        if close.all() and np.isfinite(expected).all():
            return
    np.testing.assert_allclose(
        actual, expected, rtol=tolerance, atol=tolerance * largest, equal_nan=True
    )
