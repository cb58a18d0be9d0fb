"""What a call must give: the op's definition, evaluated by onnx.reference in float64.

Integers are evaluated in int64 and wrap around to their own type.
"""

from __future__ import annotations

import dataclasses

import ml_dtypes
import numpy as np

from cases import DTYPES, Case, is_float, is_product
from cudarelu._onnx_definitions import with_stand_ins
from cudarelu.bench.accuracy import evaluator
from cudarelu.onnx import function

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
    magnitudes = np.abs(array.astype(np.float64))
    return float(magnitudes[np.isfinite(magnitudes)].max(initial=0))


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
    arrays = [expected, *(a for a in case.inputs.values() if a is not None and is_float(a.dtype))]
    largest = max(1.0, *map(largest_finite, arrays))
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
        magnitudes = {name: a if a is None else np.abs(a) for name, a in case.inputs.items()}
        arrays += reference(op, dataclasses.replace(case, inputs=magnitudes))
        largest = max(largest, *map(largest_finite, arrays))
    np.testing.assert_allclose(
        actual, expected, rtol=tolerance, atol=tolerance * largest, equal_nan=True
    )
