"""Calls with random shapes, strides, dtypes, values and attributes agree with the definitions.

CUDARELU_RANDOM_CALLS is the number of calls of each op; by default they are few, and always the
same.
"""

from __future__ import annotations

import os

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import cudarelu
from cudarelu.testing.cases import DTYPES, Plan, is_float, make_case
from cudarelu.testing.environment import torch_cuda_missing
from cudarelu.testing.hosts import Host, NumPy, Torch
from cudarelu.testing.reference import assert_close, is_composed, reference
from support.cases import tiered

OPS = {op.name: op for op in cudarelu.ops()}
CALLS = int(os.environ.get("CUDARELU_RANDOM_CALLS", "12"))
LAYOUTS = ["contiguous", "unaligned", "transposed", "swapped", "expanded", "strided"]
HOSTS: dict[str, list[Host]] = {"cpu": [Torch("cpu"), NumPy()], "cuda": [Torch("cuda")]}
NEEDS_GPU = pytest.mark.skipif(bool(torch_cuda_missing()), reason=torch_cuda_missing() or "")


def plans(op: cudarelu.OpInfo) -> st.SearchStrategy[Plan]:
    many = len(op.named_dimensions) > 4
    rows = st.lists(st.integers(0, 5), max_size=2 if many else 4).map(tuple)
    optional = [each.name for each in op.inputs if each.optional]
    large = 0.2 if is_composed(op) else 0.4
    broadcasts = any(each.broadcasts for each in op.inputs)
    return st.builds(
        Plan,
        id=st.integers(0, 2**32).map("random-{}".format),  # the seed of the values
        leading=rows,
        # With two columns, the terms of layer_norm_backward cancel out.
        size=st.integers(0, 20 if many else 70).filter(lambda n: n != 2),
        layout=st.sampled_from(LAYOUTS),
        attributes=st.sampled_from(["default", "low", "high"]),
        absent=st.sets(st.sampled_from(optional)).map(tuple) if optional else st.just(()),
        broadcast=st.sampled_from(["not", "partly", "leading"] if broadcasts else ["not"]),
        choice=st.integers(0, 1) if any(each.or_bool for each in op.inputs) else st.just(0),
        # A key that a mask excludes is not read, where the definition multiplies it by 0.
        special=st.just(False) if many else st.booleans(),
        # Squares do not overflow, nor fifth powers, as in definitions with Tanh. Sums may.
        magnitude=st.sampled_from([0, 0, -0.8, large] if op.elementwise else [0]),
    )


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=NEEDS_GPU)])
@pytest.mark.parametrize("name", tiered(OPS))
@settings(
    max_examples=CALLS,
    derandomize="CUDARELU_RANDOM_CALLS" not in os.environ,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
    print_blob=True,
)
@given(data=st.data())
def test_random_calls(name, device, data):
    op = OPS[name]
    dtype = DTYPES[data.draw(st.sampled_from(op.dtypes))]
    case = make_case(op, dtype, data.draw(plans(op)))
    expected = reference(op, case)
    for host in HOSTS[device]:
        outputs = host.run(op, case)
        for parameter, y, wanted in zip(op.outputs, outputs, expected, strict=True):
            variable = dtype if parameter.dtype == "T" else DTYPES[parameter.dtype]
            if not op.elementwise and is_float(variable):
                # The order of terms decides between an infinity and NaN.
                either = ~np.isfinite(y) & ~np.isfinite(wanted)
                y = np.where(either, wanted.astype(variable), y)
            assert_close(op, case, y, wanted, variable)
