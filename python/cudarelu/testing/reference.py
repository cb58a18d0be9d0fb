"""The expected result of a call: the op's definition, evaluated in float64.

Integers are evaluated in int64 and wrap around to their own type.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import ml_dtypes
import numpy as np

from .._onnx.definitions import function
from .._onnx.evaluator import evaluate
from .._table import OWN_NAMESPACE, OpInfo
from .cases import DTYPES, Case, is_float, is_product

# The largest error, relative to the expected value and, since the terms of a sum may cancel, to the
# largest magnitude among the inputs and outputs of the call.
TOLERANCE = {"float64": 1e-13, "float32": 1e-6, "float16": 1e-3, "bfloat16": 8e-3}


def reference(op: OpInfo, case: Case) -> list[np.ndarray]:
    """The expected outputs of a case, in float64 and int64."""
    wide = {
        name: each if each is None or each.dtype == bool else each.astype(_wide(each.dtype))
        for name, each in case.inputs.items()
    }
    return evaluate(op, wide, case.attributes)


def _wide(dtype: np.dtype) -> Any:
    return np.float64 if is_float(dtype) else np.int64


def is_composed(op: OpInfo) -> bool:
    """Whether the definition computes with the result of Erf or Tanh, so that digits may cancel."""
    nodes = function(op).node
    return len(nodes) > 1 and any(node.op_type in ("Erf", "Tanh") for node in nodes)


def largest_finite(array: np.ndarray) -> float:
    """The largest magnitude of the finite elements; 0 if there are none."""
    if array.size == 0:
        return 0.0
    with np.errstate(all="ignore"):
        array = array.astype(np.float64 if array.itemsize == 8 else np.float32)
        largest = max(array.max(), -array.min())
        if np.isfinite(largest):  # the usual case, several times as fast as the code below
            return float(largest)
        magnitudes = np.abs(array)
        return float(magnitudes[np.isfinite(magnitudes)].max(initial=0))


@functools.lru_cache(maxsize=1)  # several hosts run the same case in turn
def largest_input(case: Case) -> float:
    """The largest finite magnitude in the inputs."""
    floats = [a for a in case.inputs.values() if a is not None and is_float(a.dtype)]
    return max(map(largest_finite, floats), default=0.0)


@functools.lru_cache(maxsize=1)
def largest_of_magnitudes(op: OpInfo, case: Case) -> float:
    """The largest output of the call with the absolute values of its inputs."""
    magnitudes = {name: a if a is None else np.abs(a) for name, a in case.inputs.items()}
    outputs = reference(op, dataclasses.replace(case, inputs=magnitudes))
    return max(map(largest_finite, outputs))


@functools.lru_cache(maxsize=1)
def _by_operator(op: OpInfo, case: Case) -> np.ndarray:
    """The output of an elementwise op, each operator of the definition rounded to float32."""
    narrow = {
        name: each if each is None else each.astype(np.float32)
        for name, each in case.inputs.items()
    }
    (result,) = evaluate(op, narrow, case.attributes)
    return result


def allowance(
    op: OpInfo, case: Case, exact: np.ndarray, dtype: np.dtype
) -> tuple[float, np.ndarray | bool]:
    """The rounding error that an elementwise op may have since its definition cancels digits.

    The ops of this library promise more, and have no allowance.

    Returns:
        Four times the largest error of the definition in float32, and the elements that overflow in
        float32.
    """
    if op.namespace == OWN_NAMESPACE or not op.elementwise or len(function(op).node) == 1:
        return 0.0, False
    if dtype == DTYPES["float64"]:
        return TOLERANCE["float64"] * max(1.0, largest_finite(exact), largest_input(case)), False
    rounded = _by_operator(op, case)
    with np.errstate(all="ignore"):
        return 4 * largest_finite(rounded - exact), ~np.isfinite(rounded)


def attribute_rounding(op: OpInfo, case: Case) -> float:
    """The relative error of defaults that ONNX rounds to float32, such as 0.01."""
    left_out = [a for a in op.attributes if a.name not in case.attributes]
    defaults = [a.default for a in left_out if a.type == "float" and a.default is not None]
    return 2.0**-24 if any(value != float(np.float32(value)) for value in defaults) else 0.0


def _assert_rounds_to_nearest(actual: np.ndarray, expected: np.ndarray) -> None:
    """Raises AssertionError if 16-bit results are rounded toward zero, which the tolerance allows:
    they are half a unit in the last place too small on average."""
    bits = ml_dtypes.finfo(expected.dtype).nmant
    wanted = np.abs(expected.astype(np.float64))
    regular = np.isfinite(wanted) & (wanted >= float(ml_dtypes.finfo(expected.dtype).tiny))
    regular &= np.isfinite(actual.astype(np.float64))
    if np.count_nonzero(regular) < 64:
        return
    wanted = wanted[regular]
    errors = np.abs(actual[regular].astype(np.float64)) - wanted
    mean = np.mean(errors / np.ldexp(1.0, np.frexp(wanted)[1] - 1 - bits))
    assert abs(mean) < 0.25, (
        f"the results are not rounded to the nearest: {mean:.2f} units on average"
    )


def assert_close(
    op: OpInfo, case: Case, actual: np.ndarray, expected: np.ndarray, dtype: np.dtype
) -> None:
    """Raises AssertionError if an output differs from the reference in dtype, shape or value.

    Args:
        op: the op that was called.
        case: the call.
        actual: the output.
        expected: the same output of `reference(op, case)`.
        dtype: the dtype that `actual` must have.
    """
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
    rounding, overflows = allowance(op, case, exact, dtype)
    if np.any(overflows):
        actual = np.where(overflows & ~np.isfinite(actual), expected, actual)
    if op.elementwise:
        # A tolerance would accept 0 for a subnormal number, so zeros are compared first, except:
        # - half of the smallest subnormal may be rounded either way;
        # - a zero need not be exact where digits cancel in float64.
        smallest = float(ml_dtypes.finfo(dtype).smallest_subnormal)
        rest = max(smallest, TOLERANCE["float64"] * largest) if is_composed(op) else 0
        rest = max(rest, rounding)
        is_zero = np.where(expected == 0, np.abs(actual.astype(np.float64)) <= rest, actual == 0)
        is_tie = np.isclose(np.abs(exact), smallest / 2, rtol=1e-6, atol=0)
        is_tie |= np.abs(exact) <= rounding
        np.testing.assert_array_equal(is_zero | is_tie, (expected == 0) | is_tie)
    if op.elementwise and dtype.itemsize == 2:
        _assert_rounds_to_nearest(actual, expected)
    tolerance = TOLERANCE[next(name for name, each in DTYPES.items() if each == dtype)]
    tolerance = max(tolerance, attribute_rounding(op, case))
    actual, expected = actual.astype(np.float64), expected.astype(np.float64)
    if is_product(op):  # the error grows with the sum of the magnitudes of the terms
        largest = max(largest, largest_of_magnitudes(op, case))
    with np.errstate(all="ignore"):  # as assert_allclose, several times as fast
        error = np.abs(actual - expected)
        close = error <= tolerance * largest + rounding + tolerance * np.abs(expected)
        if close.all() and np.isfinite(expected).all():
            return
    np.testing.assert_allclose(
        actual, expected, rtol=tolerance, atol=tolerance * largest + rounding, equal_nan=True
    )
