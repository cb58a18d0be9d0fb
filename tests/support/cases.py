"""Cases that are made from other cases."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest

from cudarelu import OpInfo
from cudarelu.testing import Case
from cudarelu.testing.cases import DTYPES, Plan, has_many_dimensions, is_float, make_case
from cudarelu.testing.matrix import missing_hosts

# What most hosts see of an op is its signature: each of these has another kind of one.
OF_EACH_KIND = {
    "relu",  # elementwise, in place
    "layer_norm",  # rows, optional inputs, an attribute
    "knn_query",  # integers, several outputs
    "attention",  # dimensions that inputs share, an input that broadcasts
}


def tier(op_name: str, dtype: str = "float32") -> list[pytest.MarkDecorator]:
    """The marks of a test of an op with a dtype, where few ops and dtypes stand for all."""
    is_first = op_name in OF_EACH_KIND and dtype == "float32"
    return [] if is_first or (op_name, dtype) == ("relu", "bfloat16") else [pytest.mark.slow]


def tiered(op_names: Iterable[str]) -> list[Any]:
    """The names as parameters of a test, with the marks of `tier`."""
    return [pytest.param(name, marks=tier(name)) for name in op_names]


def slow_after(count: int, values: Iterable[Any]) -> list[Any]:
    """The values as parameters of a test; those after the first ones are in the second tier."""
    return [
        pytest.param(value, marks=[pytest.mark.slow] if i >= count else [])
        for i, value in enumerate(values)
    ]


def hosts_on_the_cpu() -> list[Any]:
    """One host of each kind as parameters of a test; those that are not installed are skipped."""
    missing = missing_hosts()
    return [
        pytest.param(name, marks=pytest.mark.skipif(name in missing, reason=missing.get(name, "")))
        for name in ("torch-cpu", "ort-cpu", "jax-jit-cpu", "ort_infer-cpu", "tvm-ffi-cpu", "numpy")
    ]


def reversed_rows(case: Case) -> Case:
    """The case with other values of the same shapes; offsets do not change, since they ascend."""
    inputs = {
        name: np.ascontiguousarray(x[::-1]) if x is not None and is_float(x.dtype) else x
        for name, x in case.inputs.items()
    }
    return dataclasses.replace(case, inputs=inputs)


def large_case(op: OpInfo) -> Case:
    """A case whose tensors have tens of kilobytes each."""
    dtype = next(each for each in op.dtypes if each in ("float32", "int32"))
    leading, size = (2, 16) if has_many_dimensions(op) else (130, 48)
    return make_case(op, DTYPES[dtype], Plan("large", (leading,), size))
