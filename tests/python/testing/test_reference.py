"""The reference of operators that onnx.reference does not compute in every shape."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from cudarelu._table import op_named
from cudarelu.testing.reference import evaluate


@pytest.mark.parametrize("shape", [(), (0,), (2, 3)])
@pytest.mark.parametrize("operator", ["Erf", "HardSwish", "Softsign"])
def test_shapes(operator, shape):
    op = dataclasses.replace(op_named("relu"), definition=f"y = {operator}(x)")
    (y,) = evaluate(op, {"x": np.full(shape, -0.5)}, {})
    expected = {"Erf": -0.5204998778130465, "HardSwish": -0.5 * 2.5 / 6, "Softsign": -1 / 3}
    assert y.shape == shape
    assert y.dtype == np.float64
    np.testing.assert_allclose(y, expected[operator], rtol=1e-15)
