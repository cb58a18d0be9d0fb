"""What is said about the definition of an op that is not the body of a valid ONNX function."""

from __future__ import annotations

import dataclasses
import re

import pytest

from cudarelu._table import op_named
from cudarelu.onnx import function


@pytest.mark.parametrize(
    ("definition", "message"),
    [
        ("r = Relu(x)\ny = Neg(r", "cannot be parsed: line 2, column 11: Expected character )"),
        ("z = Relu(x)", "has no value y, the op's output"),
        ("y = Elu<alpha: float = @beta>(x)", "has @beta, which is no attribute of the op"),
        ("y = Rellu(x)", "is not valid ONNX: No Op registered for Rellu"),
        ("y = Relu(x, x)", "is not valid ONNX: Node with schema(::Relu:14) has input size 2"),
        ("y = Add(x, w)", "is not valid ONNX: Nodes in a function must be topologically sorted"),
        ("y = Elu<beta = 1.0>(x)", "is not valid ONNX: Unrecognized attribute: beta"),
    ],
)
def test_bad_definitions(definition, message):
    op = dataclasses.replace(op_named("relu"), definition=definition)
    with pytest.raises(ValueError, match=re.escape(f"relu: the definition {message}")) as error:
        function(op)
    assert "\n" not in str(error.value)
