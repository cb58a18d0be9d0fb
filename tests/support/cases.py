"""Cases that are made from other cases."""

from __future__ import annotations

import dataclasses

import numpy as np

from cudarelu.testing import Case
from cudarelu.testing.cases import is_float


def reversed_rows(case: Case) -> Case:
    """The case with other values of the same shapes; offsets do not change, since they ascend."""
    inputs = {
        name: np.ascontiguousarray(x[::-1]) if x is not None and is_float(x.dtype) else x
        for name, x in case.inputs.items()
    }
    return dataclasses.replace(case, inputs=inputs)
