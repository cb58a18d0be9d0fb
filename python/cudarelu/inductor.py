"""Lets Inductor, the compiler behind `torch.compile`, fuse the elementwise ops.

By default, Inductor compiles an op to a call of our kernel, which reads and writes tensors in
memory. With fusion enabled, each op with an elementwise definition and one output, including the
ops of gradients, is decomposed into that definition in torch's operators and fused with the
surrounding kernels::

    import cudarelu.inductor

    cudarelu.inductor.enable_fusion()
    torch.compile(model)(x)

Other ops remain calls, since their kernels are more accurate than their definitions in the same
dtype. In-place ops remain calls, too.

Fused ops compute float16 and bfloat16 in float32, treat NaN and the sign of zero as the kernels do,
and return the same dtypes and strides. Results may differ in rounding, as those of torch's own
operators do in Inductor: values between fused ops are not rounded to float16 or bfloat16; functions
such as tanh and asinh differ in the last bits; and on CUDA, a product and the sum after it may be
rounded once. On the CPU, float32 results are bitwise equal, unless they use such functions.

Fusion is off by default, since it uses private parts of PyTorch and is not always faster. Compiled
with fusion, `relu(x * 2 + 1) + y` on 4 million float32 elements is 1.4 times as fast as without on
an H200, and 1.25 times with its gradient. On a CPU it is 2.5 times as fast, but 3.7 times as slow
with its gradient, as torch's own relu is: Inductor stores a mask, which is slow
(benchmarks/inductor_fusion.py).
"""

from __future__ import annotations

import dataclasses
import functools
import math
import operator
import zlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import onnx
import onnx.helper
import onnx.numpy_helper
import torch
import torch.nn.functional as functional
from torch._inductor import decomposition
from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing

from cudarelu import _build_info
from cudarelu._onnx.definitions import defaults_of
from cudarelu._onnx.definitions import function as definition_of
from cudarelu._pytorch.functions import overload_of
from cudarelu._table import OpInfo

__all__ = ["disable_fusion", "enable_fusion", "in_torch"]

_COMPUTED_AS = {torch.float16: torch.float32, torch.bfloat16: torch.float32}


def _cast(x: Any, to: int) -> Any:
    dtype = onnx.helper.tensor_dtype_to_np_dtype(to)
    if isinstance(x, torch.Tensor):
        return x.to(getattr(torch, dtype.name))
    return dtype.type(x).item()


def _pairwise(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of two operands as one of any number of them."""
    return lambda x, *others: functools.reduce(function, others, x) if others else torch.clone(x)


# ONNX's elementwise operators that torch has by the same name.
_SAME_NAME = """
    Abs Acos Acosh Add Asin Asinh Atan Atanh Ceil Cos Cosh Div Erf Exp Floor Greater Less Log Mul
    IsNaN Neg Pow Reciprocal Round Sigmoid Sin Sinh Sqrt Sub Tan Tanh
"""
# Constants, comparisons of labels and casts of both are Python's numbers, which torch.logical_and
# does not take.
_OPERATORS: dict[str, Callable[..., Any]] = {
    **{name: getattr(torch, name.lower()) for name in _SAME_NAME.split()},
    "And": operator.and_,
    "CastLike": lambda x, like: (
        x
        if isinstance(x, torch.Tensor)
        else torch.full((), x, dtype=torch.float64, device=like.device)
    ).to(like.dtype),
    "Cast": _cast,
    "Clip": lambda x, low=None, high=None: (
        torch.clone(x) if low is None and high is None else torch.clamp(x, low, high)
    ),
    "Constant": lambda value: value,
    "Elu": functional.elu,
    "Equal": operator.eq,  # also compares the numbers of labels
    "Expand": lambda x, shape: x.expand(shape).clone(),  # an op must not return a view
    "GreaterOrEqual": torch.ge,
    "HardSigmoid": lambda x, alpha, beta: torch.clamp(alpha * x + beta, 0, 1),
    "HardSwish": lambda x: x * torch.clamp(x / 6 + 0.5, 0, 1),
    "Identity": torch.clone,
    "IsInf": lambda x, detect_negative, detect_positive: (
        torch.isinf(x) & torch.where(x > 0, detect_positive == 1, detect_negative == 1)
    ),
    "LeakyRelu": lambda x, alpha: torch.where(x < 0, alpha * x, x),
    "LessOrEqual": torch.le,
    "Max": _pairwise(torch.maximum),
    "Min": _pairwise(torch.minimum),
    "Mish": lambda x: x * torch.tanh(functional.softplus(x, threshold=40)),
    "Mod": lambda a, b, fmod: torch.fmod(a, b),
    "Not": lambda x: x ^ True,
    "Or": operator.or_,
    "PRelu": lambda x, slope: torch.where(x > 0, x, slope * x),
    "Relu": lambda x: torch.where(x < 0, x.new_zeros(()), x),  # keeps -0.0, as the op does
    "Selu": lambda x, alpha, gamma: gamma * functional.elu(x, alpha),
    "Shape": lambda x, start, end=None: x.shape[start:end],
    "Shrink": lambda x, bias, lambd: torch.where(
        x < -lambd, x + bias, torch.where(x > lambd, x - bias, 0)
    ),
    "Sign": lambda x: torch.where(x == x, torch.sign(x), x),  # torch's of NaN is 0
    "Softplus": lambda x: functional.softplus(x, threshold=40),  # exact in float64
    "Softsign": functional.softsign,
    "ThresholdedRelu": lambda x, alpha: torch.where(x > alpha, x, 0),
    "Where": lambda condition, x, y: (
        (x if condition else y) if isinstance(condition, bool) else torch.where(condition, x, y)
    ),
    "Xor": operator.xor,
}


@dataclasses.dataclass(frozen=True)
class _Step:
    """A node of a definition. Dynamo traces what runs it, so that it has nothing of onnx."""

    result: str
    function: Callable[..., Any]
    operands: tuple[str, ...]  # "": absent
    constants: Mapping[str, Any]  # by name of the function's parameter
    attributes: Mapping[str, str]  # of the op, by name of the function's parameter


def _steps(op: OpInfo) -> list[_Step] | None:
    """The nodes of an op's definition; None if `_OPERATORS` lacks one, if a constant is no scalar,
    or if the op has several outputs."""
    if len(op.outputs) > 1:
        return None
    steps = []
    for node in definition_of(op).node:
        is_scalar = all(math.prod(each.t.dims) == 1 for each in node.attribute)
        if node.op_type not in _OPERATORS or not is_scalar:
            return None
        is_constant = node.op_type == "Constant"
        given = {"value" if is_constant else each.name: each for each in node.attribute}
        constants = defaults_of(node.op_type) | {
            name: _constant(each) for name, each in given.items() if not each.ref_attr_name
        }
        references = {
            name: each.ref_attr_name for name, each in given.items() if each.ref_attr_name
        }
        function = _OPERATORS[node.op_type]
        steps.append(_Step(node.output[0], function, tuple(node.input), constants, references))
    return steps


def _constant(given: onnx.AttributeProto) -> Any:
    value = onnx.helper.get_attribute_value(given)
    if isinstance(value, onnx.TensorProto):
        return onnx.numpy_helper.to_array(value).item()
    return value


def _evaluate(
    steps: Iterable[_Step], inputs: Mapping[str, Any], attributes: Mapping[str, Any]
) -> dict[str, Any]:
    """All values of a definition by name, in torch's operators."""
    values = dict(inputs)
    for step in steps:
        operands = [values[name] if name else None for name in step.operands]
        named = {name: attributes[each] for name, each in step.attributes.items()}
        values[step.result] = step.function(*operands, **{**step.constants, **named})
    return values


def _filled(y: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """A result that does not depend on the inputs, in the shape and with the strides of one."""
    return torch.ones_like(like) * y


def in_torch(op: OpInfo) -> Callable[..., torch.Tensor] | None:
    """The definition of an op as a function in torch's operators, which takes what the op takes.

    Returns None if the definition has an operator that is not elementwise, or several outputs.
    """
    steps = _steps(op)
    if steps is None:
        return None

    def defined(*inputs: torch.Tensor, **attributes: Any) -> torch.Tensor:
        named = {each.name: x for each, x in zip(op.inputs, inputs, strict=True)}
        values = _evaluate(steps, named, op.all_onnx_attributes(attributes))
        y = values[op.outputs[0].name]
        shape = torch.broadcast_shapes(*(x.shape for x in inputs))
        return y if y.shape == shape else _filled(y, torch.broadcast_tensors(*inputs)[0])

    return defined


def _decomposition(op: OpInfo) -> Callable[..., torch.Tensor] | None:
    """The op in torch's operators; None if _steps() is."""
    steps = _steps(op)
    if steps is None:
        return None
    overload = overload_of(op)

    def decomposed(*inputs: torch.Tensor, **attributes: Any) -> torch.Tensor:
        with disable_proxy_modes_tracing():  # a fake tensor gives the dtype and the strides
            expected = overload(*inputs, **attributes)
        computed = {
            each.name: x.to(_COMPUTED_AS.get(x.dtype, x.dtype))
            for each, x in zip(op.inputs, inputs, strict=True)
        }
        values = _evaluate(steps, computed, op.all_onnx_attributes(attributes))
        y = values[op.outputs[0].name]
        if y.shape != expected.shape:
            y = _filled(y, next(x for x in computed.values() if x.shape == expected.shape))
        y = y.to(expected.dtype)
        # Otherwise all inputs have the same strides, which torch's operators preserve.
        return y.contiguous() if expected.is_contiguous() else y

    return decomposed


_DECOMPOSITIONS: dict[torch._ops.OpOverload, Callable[..., torch.Tensor]] = {}
_digest = 0  # of the decompositions


def register(ops: Iterable[OpInfo]) -> None:
    """Adds the ops of a module; the package calls this. Fusion stays enabled or disabled."""
    global _digest
    was_enabled = _is_enabled()
    disable_fusion()
    for op in ops:
        if decomposed := _decomposition(op):
            _DECOMPOSITIONS[overload_of(op)] = decomposed
            _digest = zlib.crc32(f"{op.signature} {op.definition}".encode(), _digest)
    if was_enabled:
        enable_fusion()


def _cache_key_tag() -> str:
    """The key of AOTAutograd's disk cache consists of the program before decomposition and a tag.
    A library that was changed and built again has other decompositions, and the same program."""
    return f" cudarelu {_build_info.VERSION} fused {_digest:x}"


def _is_enabled() -> bool:
    return bool(_DECOMPOSITIONS) and _DECOMPOSITIONS.keys() <= decomposition.decompositions.keys()


def enable_fusion() -> None:
    """Makes Inductor decompose the elementwise ops in the whole process from now on.

    Code that was compiled before is compiled again, as after `torch.compiler.reset()`. To keep disk
    cache entries with and without fusion apart, this appends to
    `torch.compiler.config.cache_key_tag`. Newer PyTorch has one tag for each thread, so compile in
    the thread that calls this. Does nothing if fusion is already enabled.
    """
    if _is_enabled():
        return
    for table in _tables():
        table.update(_DECOMPOSITIONS)
    torch.compiler.config.cache_key_tag += _cache_key_tag()
    torch.compiler.reset()


def disable_fusion() -> None:
    """Undoes `enable_fusion`. Does nothing if fusion is not enabled."""
    if not _is_enabled():
        return
    for table in _tables():
        for overload in _DECOMPOSITIONS:
            del table[overload]
    tag = torch.compiler.config.cache_key_tag
    torch.compiler.config.cache_key_tag = tag.replace(_cache_key_tag(), "")
    torch.compiler.reset()


def _tables() -> tuple[dict[Any, Any], ...]:
    """Inductor's decompositions, and its cached copy with those of random operators."""
    return decomposition.decompositions, decomposition.fast_random_decomps()
