"""The sizes of cases: no tensor is larger than a machine takes."""

from __future__ import annotations

import math

import pytest

from cudarelu.defining.ops import read_signature
from cudarelu.testing.cases import DTYPES, MAX_ELEMENTS, attribute_values, plans, sizes_of


@pytest.mark.parametrize(
    "signature",
    [
        "deform(value: T[b, s, m, d], points: T[b, q, m, l, p, 2], weight: T[b, q, m, l, p]) "
        "-> y: T[b, q, m, d]",
        "pairs(x: T[n, c], z: T[m, c]) -> y: T[n, m, c]",
        "grid(x: T[*, c], *, d: int = 8 in [0, 1000000], h: int in [1, 2000000]) -> y: T[d, h, c]",
    ],
)
def test_no_tensor_is_too_large(signature):
    op = read_signature("my", signature, ["float32"])
    for plan in plans(op, DTYPES["float32"]):
        attributes = {each.name: each.default for each in op.attributes}
        attributes |= attribute_values(op, plan.attributes)
        sizes = sizes_of(op, plan) | attributes
        shapes = [each.shape(plan.leading, sizes) for each in (*op.inputs, *op.outputs)]
        assert max(map(math.prod, shapes)) <= MAX_ELEMENTS
        assert plan.size == 0 or all(sizes_of(op, plan).values())
