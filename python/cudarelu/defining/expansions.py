"""Operators of ONNX as functions of other operators, where that is as precise."""

from __future__ import annotations

import functools

import onnx
import onnx.parser

from .._onnx.definitions import OPSET

# The operator, its attributes and operands, and what it computes. ONNX's own functions of some of
# them cancel digits or overflow.
_TEXTS = (
    """Celu <alpha> (x) => (y) {
        alpha_f = Constant<value_float: float = @alpha>()
        a = CastLike(alpha_f, x)
        quotient = Div(x, a)
        bent = Elu(quotient)
        y = Mul(a, bent)
    }""",
    """Flatten <axis> (x) => (y) {
        leading = Shape<start = 0, end: int = @axis>(x)
        trailing = Shape<start: int = @axis>(x)
        rows = ReduceProd<keepdims = 1>(leading)
        columns = ReduceProd<keepdims = 1>(trailing)
        shape = Concat<axis = 0>(rows, columns)
        y = Reshape<allowzero = 1>(x, shape)
    }""",
    """LayerNormalization <axis, epsilon> (x, scale, bias) => (y, mean, rstd) {
        zero = Constant<value_int = 0>()
        one = Constant<value_int = 1>()
        axis = Constant<value_int: int = @axis>()
        shape = Shape(x)
        rank = Size(shape)
        is_negative = Less(axis, zero)
        end = Where(is_negative, zero, rank)
        axes = Range(axis, end, one)
        mean = ReduceMean<keepdims = 1>(x, axes)
        centred = Sub(x, mean)
        squares = Mul(centred, centred)
        variance = ReduceMean<keepdims = 1>(squares, axes)
        epsilon_f = Constant<value_float: float = @epsilon>()
        epsilon = CastLike(epsilon_f, x)
        sum = Add(variance, epsilon)
        deviation = Sqrt(sum)
        rstd = Reciprocal(deviation)
        normal = Div(centred, deviation)
        scaled = Mul(normal, scale)
        y = Add(scaled, bias)
    }""",
    """LogSoftmax <axis> (x) => (y) {
        axis = Constant<value_int: int = @axis>()
        largest = ReduceMax<keepdims = 1>(x, axis)
        shifted = Sub(x, largest)
        terms = Exp(shifted)
        sum = ReduceSum<keepdims = 1>(terms, axis)
        log = Log(sum)
        y = Sub(shifted, log)
    }""",
    """ReduceL1 <keepdims, noop_with_empty_axes> (x, axes) => (y) {
        terms = Abs(x)
        y = ReduceSum<keepdims: int = @keepdims,
                      noop_with_empty_axes: int = @noop_with_empty_axes>(terms, axes)
    }""",
    """ReduceLogSum <keepdims, noop_with_empty_axes> (x, axes) => (y) {
        sum = ReduceSum<keepdims: int = @keepdims,
                        noop_with_empty_axes: int = @noop_with_empty_axes>(x, axes)
        y = Log(sum)
    }""",
    """ReduceLogSumExp <keepdims, noop_with_empty_axes> (x, axes) => (y) {
        largest = ReduceMax<noop_with_empty_axes: int = @noop_with_empty_axes>(x, axes)
        is_infinite = IsInf(largest)
        zero_f = Constant<value_float = 0.0>()
        zero = CastLike(zero_f, x)
        offset = Where(is_infinite, zero, largest)
        shifted = Sub(x, offset)
        terms = Exp(shifted)
        sum = ReduceSum<noop_with_empty_axes: int = @noop_with_empty_axes>(terms, axes)
        log = Log(sum)
        kept = Add(log, offset)
        y = ReduceMax<keepdims: int = @keepdims,
                      noop_with_empty_axes: int = @noop_with_empty_axes>(kept, axes)
    }""",
    """Softmax <axis> (x) => (y) {
        axis = Constant<value_int: int = @axis>()
        largest = ReduceMax<keepdims = 1>(x, axis)
        shifted = Sub(x, largest)
        terms = Exp(shifted)
        sum = ReduceSum<keepdims = 1>(terms, axis)
        y = Div(terms, sum)
    }""",
    """Trilu <upper> (x, k) => (y) {
        zero = Constant<value_int = 0>()
        one = Constant<value_int = 1>()
        last = Constant<value_int = -1>()
        m_size = Shape<start = -2, end = -1>(x)
        n_size = Shape<start = -1>(x)
        m = Squeeze(m_size)
        n = Squeeze(n_size)
        rows = Range(zero, m, one)
        columns = Range(zero, n, one)
        row = Unsqueeze(rows, last)
        diagonal = Sub(columns, row)
        is_upper_i = Constant<value_int: int = @upper>()
        is_upper = Cast<to = 9>(is_upper_i)
        is_above = GreaterOrEqual(diagonal, k)
        is_below = LessOrEqual(diagonal, k)
        is_kept = Where(is_upper, is_above, is_below)
        nothing = CastLike(zero, x)
        y = Where(is_kept, x, nothing)
    }""",
)

# The values of operands that may be absent.
ABSENT = {("LayerNormalization", "bias"): 0.0, ("Trilu", "k"): 0}


@functools.cache
def bodies() -> dict[str, onnx.FunctionProto]:
    """The functions, by the names of the operators."""
    head = f'<domain: "expansion", opset_import: ["" : {OPSET}]>'
    functions = [onnx.parser.parse_function(f"{head} {text}") for text in _TEXTS]
    return {each.name: each for each in functions}
