"""Cases that are made from other cases."""

from __future__ import annotations

import dataclasses

import numpy as np

from cudarelu import OpInfo
from cudarelu.testing import Case
from cudarelu.testing.cases import DTYPES, Plan, has_many_dimensions, is_float, make_case


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
