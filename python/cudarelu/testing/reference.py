"""The expected result of a call: the op's definition, evaluated by onnx.reference in float64.

Integers are evaluated in int64 and wrap around to their own type.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx.helper
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun
from onnx.reference.ops import op_loop

from .._onnx.absent_inputs import with_default_inputs
from .._onnx.definitions import function
from .._table import OWN_NAMESPACE, OpInfo
from .cases import DTYPES, Case, is_float, is_product

# The largest error, relative to the expected value and, since the terms of a sum may cancel, to the
# largest magnitude among the inputs and outputs of the call.
TOLERANCE = {"float64": 1e-13, "float32": 1e-6, "float16": 1e-3, "bfloat16": 8e-3}


class Erf(OpRun):
    """Erf in the input's dtype; onnx.reference computes it in float32."""

    op_domain = ""

    def _run(self, x: np.ndarray) -> tuple[np.ndarray]:
        return (np.vectorize(math.erf, otypes=[x.dtype])(x),)


class HardSwish(OpRun):
    """HardSwish with the factor 1/6; onnx.reference has a factor of float32."""

    op_domain = ""

    def _run(self, x: np.ndarray) -> tuple[np.ndarray]:
        return ((x * np.clip(x / 6 + 0.5, 0, 1)).astype(x.dtype),)


class Softsign(OpRun):
    """Softsign, also of a scalar, for which onnx.reference fails."""

    op_domain = ""

    def _run(self, x: np.ndarray) -> tuple[np.ndarray]:
        return (x / (1 + np.abs(x)),)


class LeakyRelu(OpRun):
    """LeakyRelu, also of infinities, of which onnx.reference makes NaN."""

    op_domain = ""

    def _run(self, x: np.ndarray, alpha: float) -> tuple[np.ndarray]:
        return (np.where(x < 0, alpha * x, x).astype(x.dtype),)


class Mish(OpRun):
    """Mish without cancellation, as of small exponentials in ONNX's function."""

    op_domain = ""

    def _run(self, x: np.ndarray) -> tuple[np.ndarray]:
        return ((x * np.tanh(np.logaddexp(0, x))).astype(x.dtype),)


class Celu(OpRun):
    """Celu without cancellation."""

    op_domain = ""

    def _run(self, x: np.ndarray, alpha: float) -> tuple[np.ndarray]:
        return (np.where(x > 0, x, alpha * np.expm1(x / alpha)).astype(x.dtype),)


class GatherElements(OpRun):
    """GatherElements of any size; onnx.reference fails above 64 and for unequal shapes."""

    op_domain = ""

    def _run(self, data: np.ndarray, indices: np.ndarray, axis: int) -> tuple[np.ndarray]:
        shape = list(indices.shape)
        shape[axis] = data.shape[axis]
        part = data[tuple(map(slice, shape))]  # take_along_axis broadcasts other sizes
        return (np.take_along_axis(part, indices, axis),)


class GatherND(OpRun):
    """GatherND, also of empty tensors, for which onnx.reference fails."""

    op_domain = ""

    def _run(self, data: np.ndarray, indices: np.ndarray, batch_dims: int = 0) -> tuple[np.ndarray]:
        batches = np.ogrid[tuple(map(slice, indices.shape[:batch_dims]))]
        rank = indices.ndim - 1  # of each index
        places = [each.reshape(each.shape + (1,) * (rank - batch_dims)) for each in batches]
        return (data[(*places, *np.moveaxis(indices, -1, 0))],)


class Loop(op_loop.Loop):
    """Loop that stacks its scan outputs; onnx.reference concatenates their rows, and fails if there
    is no iteration."""

    op_domain = ""
    body: Any  # both are set by onnx.reference
    _run_body: Any

    def _run(  # type: ignore[override]
        self,
        trip_count: np.ndarray | None,
        condition: np.ndarray | None,
        *carried: Any,
        context: Mapping[str, Any] | None = None,
        body: Any = None,
        attributes: Any = None,
        **options: Any,
    ) -> tuple[Any, ...]:
        scanned: list[list[np.ndarray]] = [[] for _ in range(self.K)]
        iteration = 0
        while (condition is None or condition) and (trip_count is None or iteration < trip_count):
            given = [np.array(iteration), np.array(True), *carried]
            inputs = {**(context or {}), **dict(zip(self.body.input_names, given, strict=True))}
            condition, *results = self._run_body(inputs, attributes=attributes, **options)
            carried = tuple(results[: self.N])
            for values, value in zip(scanned, results[self.N :], strict=True):
                values.append(value)
            iteration += 1
        types = [each.tensor_type for each in self.body.output_types[1 + self.N :]]
        # Without an iteration, a size is what the body tells, else 0, as in ONNX Runtime.
        stacked = [
            np.stack(values) if values else np.empty((0, *(d.dim_value for d in each.shape.dim)))
            for values, each in zip(scanned, types, strict=True)
        ]
        return (*carried, *stacked)


_REPLACED: list[Any] = [
    *(Celu, Erf, GatherElements, GatherND, HardSwish, LeakyRelu, Loop, Mish, Softsign)
]


def evaluator(op: OpInfo, attributes: Mapping[str, Any]) -> ReferenceEvaluator:
    """onnx.reference with an op's definition for these attributes, as `evaluate` takes them."""
    return _evaluator(op, tuple(op.all_onnx_attributes(attributes).items()))


@functools.lru_cache(maxsize=256)
def _evaluator(op: OpInfo, given: tuple[tuple[str, Any], ...]) -> ReferenceEvaluator:
    definition = onnx.FunctionProto()
    definition.CopyFrom(function(op))
    for node in definition.node:
        # Not all operators of onnx.reference take a function's attributes.
        for each in [a for a in node.attribute if a.ref_attr_name]:
            value = dict(given)[each.ref_attr_name]
            value = float(value) if each.type == onnx.AttributeProto.FLOAT else value
            each.CopyFrom(onnx.helper.make_attribute(each.name, value))
    return ReferenceEvaluator(definition, new_ops=_REPLACED)


def evaluate(
    op: OpInfo, inputs: Mapping[str, np.ndarray | None], attributes: Mapping[str, Any]
) -> list[np.ndarray]:
    """The outputs of the op's definition, computed in the dtype of the inputs.

    Args:
        op: an op of this library or of a loaded module.
        inputs: arrays of float64 and int64 by name; None for an absent input.
        attributes: by name, as the op's function takes them; defaults may be left out.

    Raises:
        ValueError: if the definition is not the body of a valid ONNX function.
    """
    with np.errstate(all="ignore"):
        definition = evaluator(op, attributes)
        return list(definition.run(None, with_default_inputs(op, inputs), attributes={}))


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
    """What an elementwise op may lose since its definition loses it: digits that cancel.

    It is four times the largest error of the definition evaluated in float32, and the elements that
    overflow there. The ops of this library promise more, and have no allowance.
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
    """Raises AssertionError if 16-bit results are half a unit in the last place too small on
    average, which the tolerance allows: they are rounded toward zero."""
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
        # A tolerance would accept 0 for a subnormal number, so zeros are compared first. Half of
        # the smallest subnormal may be rounded either way, and where digits cancel in float64, a
        # zero need not be exact.
        least = float(ml_dtypes.finfo(dtype).smallest_subnormal)
        rest = max(least, TOLERANCE["float64"] * largest) if is_composed(op) else 0
        rest = max(rest, rounding)
        is_zero = np.where(expected == 0, np.abs(actual.astype(np.float64)) <= rest, actual == 0)
        is_tie = np.isclose(np.abs(exact), least / 2, rtol=1e-6, atol=0)
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
