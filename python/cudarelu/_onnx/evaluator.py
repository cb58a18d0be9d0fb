"""Evaluates the definitions of ops by onnx.reference."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx
import onnx.helper
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun
from onnx.reference.ops import op_loop

from .._table import OpInfo
from .absent_inputs import with_default_inputs
from .definitions import function

# Elementwise operators that onnx.reference computes otherwise.
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "Celu": lambda x, alpha: np.where(x > 0, x, alpha * np.expm1(x / alpha)),  # no cancellation
    "Erf": np.vectorize(math.erf, otypes=[float]),  # there it is computed in float32
    "HardSwish": lambda x: x * np.clip(x / 6 + 0.5, 0, 1),  # there the factor is of float32
    "LeakyRelu": lambda x, alpha: np.where(x < 0, alpha * x, x),  # there NaN for infinities
    "Mish": lambda x: x * np.tanh(np.logaddexp(0, x)),  # no cancellation of small exponentials
    "Softsign": lambda x: x / (1 + np.abs(x)),  # also of a scalar, for which it fails there
}


def _operator(name: str) -> type[OpRun]:
    def _run(self: OpRun, x: np.ndarray, **attributes: float) -> tuple[np.ndarray]:
        return (_FUNCTIONS[name](x, **attributes).astype(x.dtype),)

    return type(name, (OpRun,), {"_run": _run})


class GatherElements(OpRun):
    """GatherElements of any size; onnx.reference fails above 64 and for unequal shapes."""

    def _run(self, data: np.ndarray, indices: np.ndarray, axis: int) -> tuple[np.ndarray]:
        shape = list(indices.shape)
        shape[axis] = data.shape[axis]
        part = data[tuple(map(slice, shape))]  # take_along_axis broadcasts other sizes
        return (np.take_along_axis(part, indices, axis),)


class GatherND(OpRun):
    """GatherND, also of empty tensors, for which onnx.reference fails."""

    def _run(self, data: np.ndarray, indices: np.ndarray, batch_dims: int = 0) -> tuple[np.ndarray]:
        batches = np.ogrid[tuple(map(slice, indices.shape[:batch_dims]))]
        rank = indices.ndim - 1  # of each index
        positions = [each.reshape(each.shape + (1,) * (rank - batch_dims)) for each in batches]
        return (data[(*positions, *np.moveaxis(indices, -1, 0))],)


class Loop(op_loop.Loop):
    """Loop that stacks its scan outputs; onnx.reference concatenates their rows, and fails if there
    is no iteration."""

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


_REPLACED: list[Any] = [*map(_operator, _FUNCTIONS), GatherElements, GatherND, Loop]


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
