"""The matrix: every op of the table x every host x every dtype x every case of its signature."""

from __future__ import annotations

import functools

import numpy as np
import pytest

import cudarelu
from cases import DTYPES, make_case, plans
from hosts import HOSTS
from reference import assert_equal, reference

OPS = {op.name: op for op in cudarelu.ops()}


def matrix():
    for host in HOSTS:
        reason = host.unavailable()
        marks = [pytest.mark.skip(reason=reason)] if reason else []
        for op in OPS.values():
            for dtype in op.dtypes:
                # Those of one process together, so that one worker runs it.
                group = pytest.mark.xdist_group(f"{host.name}-{op.name}-{dtype}")
                for plan in plans(op, DTYPES[dtype]):
                    yield pytest.param(
                        host,
                        op.name,
                        dtype,
                        plan,
                        id=f"{host.name}-{op.name}-{dtype}-{plan.id}",
                        marks=[group, *marks],
                    )


@functools.cache
def expected(op_name: str, dtype: str, plan):
    op = OPS[op_name]
    case = make_case(op, DTYPES[dtype], plan)
    return case, reference(op, case)


@pytest.mark.parametrize(("host", "op_name", "dtype", "plan"), list(matrix()))
def test_op(host, op_name, dtype, plan):
    op = OPS[op_name]
    case, references = expected(op_name, dtype, plan)
    before = {name: None if a is None else a.copy() for name, a in case.inputs.items()}
    outputs = host.run(op, case)
    assert len(outputs) == len(op.outputs)
    for parameter, actual, wanted in zip(op.outputs, outputs, references, strict=True):
        variable = DTYPES[dtype] if parameter.dtype == "T" else np.dtype(parameter.dtype)
        assert_equal(op, case, actual, wanted, variable)
    for name, array in case.inputs.items():
        if array is not None:
            assert array.tobytes() == before[name].tobytes(), f"{name} was overwritten"
