"""The expressions that the ops can replace in a model."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import warnings
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import onnx
import onnx.defs
import onnx.helper
from onnx.reference import ReferenceEvaluator

from .._onnx.definitions import equivalent_forms, function, specialised
from .._onnx.expressions import (
    NEUTRAL,
    NORMAL_FORM,
    Attribute,
    Call,
    Expression,
    Input,
    calls,
    is_linear,
    parts,
    read,
    rewritten,
    without,
    without_reshape,
)
from .._table import OpInfo, all_ops
from .models import choices


@dataclasses.dataclass(frozen=True)
class Pattern:
    """An expression that an op can replace."""

    op: OpInfo
    expression: Call  # in the normal form
    labels: Mapping[str, int]  # the values of enumerated attributes that it is for

    @property
    def size(self) -> int:
        """The number of nodes, where each Add and Mul has two operands."""
        different = {*calls(self.expression)}
        return sum(len(e.operands) - 1 if e.op_type in NEUTRAL else 1 for e in different)


def is_candidate(op: OpInfo) -> bool:
    """Whether models are searched for the definition of the op.

    They are not searched for

    - an op of a gradient: it takes a gradient or has none, and belongs to training;
    - an op with several outputs, with several dtypes or with inputs that broadcast: its definition
      is a long program, which models contain in other forms;
    - a plain matrix product, which a runtime computes as fast.

    Raises:
        ValueError: for a definition that cannot be read.
    """
    whole, *more = read(op, function(op))
    return (
        not more
        and bool(op.gradient)
        and not is_plain_matmul(each.op_type for each in calls(whole))
        and all(each.dtype == "T" for each in (*op.inputs, *op.outputs))
        and not any(each.varies for each in op.inputs)
        and not any(each.name.startswith("grad_") for each in op.inputs)
    )


def is_plain_matmul(op_types: Iterable[str]) -> bool:
    """Whether operators are a matrix product without an epilogue, or compute nothing."""
    return {*op_types} <= {"Gemm", "Identity", "MatMul", "Transpose"}


def patterns() -> list[Pattern]:
    """The patterns of all ops, in the order of the tables.

    An op of another module whose definition cannot be read has none, and a warning says why, once.
    """
    return [each for op in all_ops() for each in _patterns_of_readable(op)]


@functools.cache
def _patterns_of_readable(op: OpInfo) -> list[Pattern]:
    try:
        return _patterns(op)
    except ValueError as error:
        warnings.warn(
            f"the op {op.name} of the module {op.namespace} is left out: {error}", stacklevel=2
        )
        return []


def _patterns(op: OpInfo) -> list[Pattern]:
    """The definition and its equivalent forms, each with and without its optional parts."""
    found: dict[Expression, Mapping[str, int]] = {}
    for labels in choices(op) if is_candidate(op) else ():
        body = specialised(function(op), labels)
        (whole,) = read(op, body)
        found[whole] = labels
        if any(map(is_linear, parts(whole))):
            whole = rewritten(whole, without_reshape)
            found[whole] = labels
        found |= dict.fromkeys(_single_operators(op, body, whole, labels), labels)
    found |= {each: {} for form in equivalent_forms(op) for each in read(op, form)}
    result = []
    for whole, given in found.items():
        leaves = dict.fromkeys(each for each in parts(whole) if isinstance(each, Input | Attribute))
        if not {each.name for each in op.inputs} <= {each.name for each in leaves}:
            continue  # no node has the value of an input
        optional = [each for each in leaves if each.is_optional]
        normal = rewritten(whole, *NORMAL_FORM)
        for size in range(len(optional) + 1):
            for absent in itertools.combinations(optional, size):
                expression = without(normal, absent)
                if isinstance(expression, Call):
                    # A factor that is NaN (absent) by default is 1 where a model has no factor.
                    ones = {each.name: 1 for each in absent if each.number != each.number}
                    result.append(Pattern(op, expression, {**given, **ones}))
    return result


def _single_operators(
    op: OpInfo, body: onnx.FunctionProto, whole: Expression, labels: Mapping[str, int]
) -> Iterator[Call]:
    """Yields calls of ONNX operators that compute the op in one node.

    Such an operator has the enumerated attributes of the op, and ONNX's definition of it has the
    same results. The call's operand is the op's input, or the product of a linear layer.
    """
    inputs = tuple(Input(name) for name in body.input)
    products = (each for each in calls(whole) if is_linear(each) and each.operands == inputs)
    argument = inputs[0] if len(inputs) == 1 else next(products, None)
    if argument is None or not labels or len(labels) < len(op.attributes):
        return
    x = np.linspace(-4, 4, 65)
    # With a weight of 1 and a bias of 0, the product is x.
    arrays = [x] if len(inputs) == 1 else [x[:, None], np.ones((1, 1)), np.zeros(1)]
    feeds = dict(zip(body.input, arrays, strict=False))
    (expected,) = ReferenceEvaluator(body).run(None, feeds, attributes=dict(labels))
    chosen = {each.name: each.labels[labels[each.name]] for each in op.attributes}
    kind = onnx.helper.make_tensor_type_proto(onnx.TensorProto.DOUBLE, x.shape)
    schema: Any  # onnx does not tell all of its type
    for schema in onnx.defs.get_all_schemas():
        is_function = schema.has_context_dependent_function and len(schema.inputs) == 1
        if schema.domain or {*schema.attributes} != {*chosen} or not is_function:
            continue
        node = onnx.helper.make_node(schema.name, ["x"], ["y"], **chosen)
        types = [kind.SerializeToString()]
        text = schema.get_context_dependent_function(node.SerializeToString(), types)
        theirs = onnx.FunctionProto.FromString(text)
        (y,) = ReferenceEvaluator(theirs).run(None, {theirs.input[0]: x}, attributes=chosen)
        if np.allclose(y, np.ravel(expected), rtol=1e-6, atol=1e-6):
            yield Call(schema.name, (argument,), tuple(sorted(chosen.items())))
