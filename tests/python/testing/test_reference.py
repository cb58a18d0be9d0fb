"""The reference of operators that onnx.reference does not compute in every shape."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from cudarelu._onnx.evaluator import evaluate
from cudarelu._table import op_named


@pytest.mark.parametrize("shape", [(), (0,), (2, 3)])
@pytest.mark.parametrize("operator", ["Erf", "HardSwish", "Softsign"])
def test_shapes(operator, shape):
    op = dataclasses.replace(op_named("relu"), definition=f"y = {operator}(x)")
    (y,) = evaluate(op, {"x": np.full(shape, -0.5)}, {})
    expected = {"Erf": -0.5204998778130465, "HardSwish": -0.5 * 2.5 / 6, "Softsign": -1 / 3}
    assert y.shape == shape
    assert y.dtype == np.float64
    np.testing.assert_allclose(y, expected[operator], rtol=1e-15)


LOOP = """
  count = Constant<value = int64 {COUNT}>()
  forever = Constant<value = bool {1}>()
  y = Loop(count, forever) <body = step (int64 i, bool going) => (bool still, double[2, n] sum) {
    still = Identity(going)
    number = CastLike(i, x)
    sum = Add(x, number)
  }>
"""


@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_loop_stacks_its_results(count):
    op = dataclasses.replace(op_named("relu"), definition=LOOP.replace("COUNT", str(count)))
    x = np.arange(6.0).reshape(2, 3)
    (y,) = evaluate(op, {"x": x}, {})
    expected = np.stack([x, x + 1, x + 2])[:count] if count else np.empty((0, 2, 0))
    np.testing.assert_array_equal(y, expected)


def test_gathered_elements():
    text = "k = Constant<value = int64[2, 1] {69, 3}>()\n y = GatherElements<axis = 1>(x, k)"
    op = dataclasses.replace(op_named("relu"), definition=text)
    x = np.arange(210.0).reshape(3, 70)
    (y,) = evaluate(op, {"x": x}, {})
    np.testing.assert_array_equal(y, [[69], [73]])


@pytest.mark.parametrize(
    ("indices", "shape", "batch_dims", "expected"),
    [
        ("int64[2, 2] {0, 1, 2, 0}", (3, 2), 0, [1, 4]),
        ("int64[2, 1] {2, 0}", (3, 2), 0, [[4, 5], [0, 1]]),
        ("int64[3, 1] {1, 0, 1}", (3, 2), 1, [1, 2, 5]),
        ("int64[0, 1] {}", (0, 2), 1, np.empty((0,))),
        ("int64[1, 1] {1}", (3, 0), 0, np.empty((1, 0))),
    ],
)
def test_gathered_slices(indices, shape, batch_dims, expected):
    text = f"k = Constant<value = {indices}>()\n y = GatherND<batch_dims = {batch_dims}>(x, k)"
    op = dataclasses.replace(op_named("relu"), definition=text)
    (y,) = evaluate(op, {"x": np.arange(np.prod(shape), dtype=float).reshape(shape)}, {})
    np.testing.assert_array_equal(y, expected)
    assert y.dtype == np.float64
