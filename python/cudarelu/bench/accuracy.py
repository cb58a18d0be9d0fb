"""The error of results against the op's definition in float64, evaluated by onnx.reference.

The definition is slow, so only a part is checked. For an op that works row by row, these are the
first and the last rows of the timed call. Any other op is called again with smaller inputs.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import numpy as np
import torch

from .._onnx.evaluator import evaluate
from .._table import Parameter
from .cases import Case, Inputs, is_by_rows

CHECKED = 1 << 15  # elements, about
SMALL = 1 << 10  # the largest dimension of smaller inputs


def _wide(tensor: torch.Tensor) -> np.ndarray:
    return tensor.to(torch.float64 if tensor.is_floating_point() else torch.int64).cpu().numpy()


def reference(case: Case, inputs: Inputs) -> list[np.ndarray]:
    """Returns the expected outputs in float64 and int64."""
    given = dict(zip((each.name for each in case.op.inputs), inputs, strict=True))
    wide = {name: each if each is None else _wide(each) for name, each in given.items()}
    return evaluate(case.op, wide, case.attributes)


class Check:
    """The expected outputs of `case` with `inputs`, or of a smaller case."""

    def __init__(self, case: Case, inputs: Inputs) -> None:
        self.same = is_by_rows(case.op)
        self.case = case if self.same else _smaller(case)
        self.inputs = inputs if self.same else self.case.inputs()
        own = max((math.prod(self._own(each)) for each in case.op.inputs), default=1)
        self.rows = max(1, CHECKED // 2 // own)
        parts = [
            None if each is None else self._part(each, parameter)
            for each, parameter in zip(self.inputs, case.op.inputs, strict=True)
        ]
        self.expected = reference(self.case, parts)

    def _own(self, parameter: Parameter) -> tuple[int, ...]:
        shape = self.case.shape(parameter)
        return shape[len(self.case.leading) :] if parameter.leads else shape

    def _part(self, tensor: torch.Tensor, parameter: Parameter) -> torch.Tensor:
        if not self.same or not parameter.leads:
            return tensor
        rows = tensor.reshape(-1, *self._own(parameter))
        if len(rows) <= 2 * self.rows:
            return rows
        return torch.cat([rows[: self.rows], rows[-self.rows :]])

    def error(self, call: Callable) -> float:
        """Returns the largest |result - expected| / max |expected| over the outputs of dtype T.

        One rounding of float32 gives up to 6e-8; equal integers give 0. Raises ValueError if a
        result is NaN or infinite where a finite number is expected.
        """
        results = call()
        results = [results] if isinstance(results, torch.Tensor) else results
        if self.case.device == "cuda":
            torch.cuda.synchronize()
        error = 0.0
        for result, expected, parameter in zip(
            results, self.expected, self.case.op.outputs, strict=True
        ):
            if parameter.dtype != "T":
                continue  # indices of equally near points may differ
            part = self._part(result, parameter)
            if not part.is_floating_point():  # integers wrap around
                expected = _wide(torch.from_numpy(expected).to(part.dtype))
            actual, expected = _wide(part).astype(np.float64), expected.astype(np.float64)
            with np.errstate(invalid="ignore"):
                apart = np.abs(actual - expected)
            apart[actual == expected] = 0  # infinities too
            if not np.isfinite(apart).all():
                raise ValueError(f"{parameter.name} is NaN or infinite where it should not be")
            largest = np.abs(expected[np.isfinite(expected)]).max(initial=0)
            error = max(error, float(apart.max(initial=0) / (largest or 1)))
        return error


def _smaller(case: Case) -> Case:
    sizes = {name: min(size, SMALL) for name, size in case.sizes.items()}
    rows = max(1, CHECKED // max([1, *sizes.values()]))
    leading = (min(math.prod(case.leading), rows),) if case.leading else ()
    return dataclasses.replace(case, leading=leading, sizes=sizes)
