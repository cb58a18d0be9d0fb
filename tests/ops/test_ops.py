"""The test matrix: every op x every host x every dtype x every case of the op's signature."""

from __future__ import annotations

import functools

import numpy as np
import pytest

import cudarelu
from cudarelu.testing import DTYPES, assert_close, make_case, plans, reference, unchanged
from support.hosts import HOSTS

OPS = {op.name: op for op in cudarelu.ops()}


def matrix():
    missing = {host: reason for host in HOSTS if (reason := host.unavailable())}
    for op in OPS.values():
        for dtype in op.dtypes:
            # In one worker, so that it evaluates the references and runs ort_infer only once.
            group = pytest.mark.xdist_group(f"{op.name}-{dtype}")
            for plan in plans(op, DTYPES[dtype]):
                for host in HOSTS:
                    if host not in missing:
                        name = f"{host.name}-{op.name}-{dtype}-{plan.id}"
                        yield pytest.param(host, op.name, dtype, plan, id=name, marks=group)
    for host, reason in missing.items():  # one skipped test for all cases of the host
        skip = pytest.mark.skip(reason=reason)
        yield pytest.param(host, None, None, None, id=host.name, marks=skip)


@functools.lru_cache(maxsize=1)  # the tests of all hosts for one plan are consecutive
def expected(op_name: str, dtype: str, plan):
    op = OPS[op_name]
    case = make_case(op, DTYPES[dtype], plan)
    return case, reference(op, case)


@pytest.mark.parametrize(("host", "op_name", "dtype", "plan"), list(matrix()))
def test_op(host, op_name, dtype, plan):
    op = OPS[op_name]
    case, references = expected(op_name, dtype, plan)
    with unchanged(case):
        outputs = host.run(op, case)
    assert len(outputs) == len(op.outputs)
    for parameter, actual, wanted in zip(op.outputs, outputs, references, strict=True):
        variable = DTYPES[dtype] if parameter.dtype == "T" else np.dtype(parameter.dtype)
        assert_close(op, case, actual, wanted, variable)
