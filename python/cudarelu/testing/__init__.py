"""Test cases for ops of any module, derived from their signatures, and the expected results.

The cases cover edge sizes, strides, special values, attributes and absent inputs. The expected
result is the op's definition, evaluated in float64 (int64 for integers)::

    from cudarelu.testing import DTYPES, assert_close, cases, reference

    (op,) = [op for op in cudarelu.ops() if op.name == "relu"]
    for case in cases(op, DTYPES["float16"]):
        y = cudarelu.relu(*case.inputs.values(), **case.attributes)
        (expected,) = reference(op, case)
        assert_close(op, case, y, expected, DTYPES["float16"])
"""

from .cases import DTYPES, Case, Plan, cases, make_case, plans, unchanged
from .reference import TOLERANCE, assert_close, reference

__all__ = [
    "DTYPES",
    "TOLERANCE",
    "Case",
    "Plan",
    "assert_close",
    "cases",
    "make_case",
    "plans",
    "reference",
    "unchanged",
]
