"""The elementwise operators of ONNX, for the Python functions that `cudarelu.define` takes.

Each is a function of symbolic values and numbers, with the attributes of the operator by name::

    from cudarelu.elementwise import leaky_relu, sigmoid, where

    @cudarelu.define("gate(x: T[*], *, beta: float = 1.0) -> y: T[*]")
    def gate(x, beta):
        return where(x > 0, x * sigmoid(beta * x), leaky_relu(x, alpha=0.1))

Values also have Python's operators for arithmetic (`+ - * / **`), comparison and logic (`& | ^ ~`).
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Callable
from typing import Any

from .defining.operators import OPERATORS
from .defining.symbolic import Operand, Value, apply


def _function(op_type: str, name: str) -> Callable[..., Value]:
    def function(*operands: Operand, **attributes: Any) -> Value:
        return apply(op_type, *operands, **attributes)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"ONNX's operator {op_type}."
    return function


def _snake_case(op_type: str) -> str:
    words = re.findall("[A-Z][a-z]*", op_type)
    return {"IsNaN": "is_nan", "PRelu": "prelu"}.get(op_type, "_".join(words).lower())


_names = {op_type: _snake_case(op_type) for op_type in OPERATORS}
_functions = {
    name: _function(op_type, name)
    for op_type, name in _names.items()
    if not keyword.iskeyword(name)  # and, or, not: the operators &, | and ~
}
globals().update(_functions)
__all__ = sorted(_functions)
