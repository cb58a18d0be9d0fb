"""The evaluation of gradients for hosts that are programmed in Python."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cudarelu import _gradients
from cudarelu._gradients import Derivative, Evaluator, Expression
from cudarelu._pytorch.functions import FUNCTIONS
from cudarelu.defining.ops import read_signature


class Host:
    """NumPy."""

    def call(self, op, inputs, attributes):
        names = (each.name for each in op.attributes)
        given = dict(zip(names, attributes, strict=True))
        return [FUNCTIONS[op.qualified_name](*inputs, **given)]

    def zeros_like(self, x):
        return np.zeros_like(x)


def expression(kind: str, *arguments: Expression, **fields: Any) -> Expression:
    others = {"index": 0, "number": 0.0, "op": None, "output": 0, "text": ""}
    return Expression(kind=kind, arguments=arguments, **others | fields)


@pytest.mark.parametrize("given", [(0,), (1,), (2,), (0, 1), (1, 2), (0, 1, 2), ()])
def test_gradients_of_outputs_that_are_absent(given, monkeypatch):
    """x = cudarelu::scale(grad_a + grad_b, 2) + grad_c: what is absent is 0, also in a call."""
    a, b, c = (expression("output_gradient", index=i) for i in range(3))
    two = expression("number", number=2.0)
    text = "cudarelu::scale(grad_a + grad_b, 2)"
    scaled = expression("call", expression("sum", a, b), two, op="cudarelu::scale", text=text)
    derivative = Derivative(
        read_signature("my", "f(x: T[*]) -> (a: T[*], b: T[*], c: T[*])", ["float32"]),
        {0: expression("sum", scaled, c)},
    )
    monkeypatch.setattr(_gradients, "derivative_of", lambda op: derivative)
    x = np.ones((2, 3), np.float32)
    gradients = {i: np.full_like(x, 10**i) for i in given}
    evaluator = Evaluator(Host(), derivative.op, [x], [x, x, x], [], gradients.get)
    expected = sum((2, 20, 100)[i] for i in given)
    np.testing.assert_array_equal(evaluator.gradient_of(0), np.full_like(x, expected))
