"""Finds writes outside the outputs of a call."""

from __future__ import annotations

import unittest.mock
from typing import Any

import numpy as np

from .._pytorch.functions import FUNCTIONS
from .._table import OpInfo
from .cases import Case

_GUARD = 4096  # bytes before and after each output
_PATTERN = 0xA5


class OutOfBoundsError(AssertionError):
    """An op writes outside its outputs. Further calls of it in this process may crash."""


def check_memory(op: OpInfo, case: Case) -> None:
    """Calls an op on NumPy arrays whose outputs lie between guards.

    Raises:
        OutOfBoundsError: if the call overwrites a guard.
    """
    allocated: list[np.ndarray] = []

    def empty(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        dtype = np.dtype(dtype)
        size = int(np.prod(shape)) * dtype.itemsize
        allocated.append(np.full(size + 2 * _GUARD, _PATTERN, np.uint8))
        return allocated[-1][_GUARD : _GUARD + size].view(dtype).reshape(shape)

    with unittest.mock.patch("numpy.empty", empty):  # the call allocates its outputs with it
        FUNCTIONS[op.qualified_name](*case.inputs.values(), **case.attributes)
    assert len(allocated) == len(op.outputs), "the outputs are not allocated by numpy.empty"
    for parameter, memory in zip(op.outputs, allocated, strict=True):
        for guard, where in ((memory[:_GUARD], "before"), (memory[-_GUARD:], "past the end of")):
            if (guard != _PATTERN).any():
                raise OutOfBoundsError(f"{case.id}: {op.name} writes {where} {parameter.name}")
