"""Test cases for ops of any module, derived from their signatures, and the expected results.

The cases cover edge sizes, strides, special values, attributes and absent inputs. The expected
result is the op's definition, evaluated in float64 (int64 for integers)::

    from cudarelu.testing import DTYPES, assert_close, cases, reference

    (op,) = [op for op in cudarelu.ops() if op.name == "relu"]
    for case in cases(op, DTYPES["float16"]):
        y = cudarelu.relu(*case.inputs.values(), **case.attributes)
        (expected,) = reference(op, case)
        assert_close(op, case, y, expected, DTYPES["float16"])

`checks` makes the test matrix of ops from these: it calls each case in each host, and checks the
features of PyTorch and the export to ONNX. `cudarelu.testing.plugin` runs it in pytest, and
`python -m cudarelu check` without pytest.
"""

from .cases import DTYPES, Case, Plan, cases, make_case, plans, unchanged
from .matrix import Check, check, checks
from .memory import OutOfBoundsError
from .reference import TOLERANCE, assert_close, reference

__all__ = [
    "DTYPES",
    "TOLERANCE",
    "Case",
    "Check",
    "OutOfBoundsError",
    "Plan",
    "assert_close",
    "cases",
    "check",
    "checks",
    "make_case",
    "plans",
    "reference",
    "unchanged",
]
