"""Lets Inductor, the compiler behind `torch.compile`, fuse the elementwise ops.

To Inductor an op is a call of our kernel, with tensors in memory before and after. With fusion
enabled, each op whose definition is elementwise, as also those of gradients, is decomposed to that
definition in torch's operators, and becomes part of the kernels around it::

    import cudarelu.inductor

    cudarelu.inductor.enable_fusion()
    torch.compile(model)(x)

Other ops stay calls, since they are more exact than their definitions in the same dtype; so do
those in place.

What is computed stays: float16 and bfloat16 in float32, NaN and the sign of zero as the ops have
them, and outputs with the ops' dtypes and strides. What differs is what Inductor does to torch's
own operators: between fused ops nothing is rounded to float16 or bfloat16; its functions, such as
tanh and asinh, differ in the last bits; and on CUDA a product and the sum after it may be rounded
once. On the CPU they are not, and float32 results but of such functions are equal bit for bit.

Off by default, since it uses what PyTorch keeps private, and does not always pay: `relu(x * 2 + 1)
+ y` of 4 million float32 gets 1.4 times as fast as compiled without on an H200, and 1.25 times with
its gradient; on a CPU 2.5 times, but with its gradient 3.7 times as slow, like torch's own relu,
since Inductor keeps a mask of it and is slow at that (benchmarks/inductor_fusion.py).
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import onnx
import onnx.helper
import onnx.numpy_helper
import torch
from torch._inductor import decomposition
from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing

from cudarelu import _build_info
from cudarelu._table import OpInfo, ops
from cudarelu.onnx.definitions import function

__all__ = ["disable_fusion", "enable_fusion"]

_COMPUTED_AS = {torch.float16: torch.float32, torch.bfloat16: torch.float32}

# ONNX's elementwise operators that torch has by the same name.
_SAME_NAME = """
    Abs Acos Acosh Add Asin Asinh Atan Atanh Ceil Cos Cosh Div Erf Exp Floor Greater Less Log Mul
    Neg Reciprocal Round Sigmoid Sign Sin Sinh Sqrt Sub Tan Tanh
"""
_OPERATORS: dict[str, Callable[..., Any]] = {
    **{name: getattr(torch, name.lower()) for name in _SAME_NAME.split()},
    "And": torch.logical_and,
    "CastLike": lambda x, like: (
        x if isinstance(x, torch.Tensor) else torch.full((), x, dtype=torch.float64)
    ).to(like.device, like.dtype),
    "Equal": operator.eq,  # of labels too
    "Expand": lambda x, shape: x.expand(shape).clone(),  # a view may not leave the op
    "GreaterOrEqual": torch.ge,
    "LessOrEqual": torch.le,
    "Max": torch.maximum,
    "Min": torch.minimum,
    "Not": torch.logical_not,
    "Or": torch.logical_or,
    "PRelu": lambda x, slope: torch.where(x > 0, x, slope * x),
    "Relu": lambda x: torch.where(x < 0, x.new_zeros(()), x),  # keeps -0.0, as the op does
    "Shape": lambda x: x.shape,
    "Where": lambda condition, x, y: (
        (x if condition else y) if isinstance(condition, bool) else torch.where(condition, x, y)
    ),
}


def _decomposition(op: OpInfo) -> Callable[..., torch.Tensor] | None:
    """The op in torch's operators; None where its definition has one that is not in the table."""
    definition = function(op)
    for node in definition.node:
        if node.op_type != "Constant" and (node.op_type not in _OPERATORS or node.attribute):
            return None
    overload = getattr(torch.ops.cudarelu, op.name).default
    defaults = {each.name: each.default for each in op.attributes if not each.required}

    def decomposed(*inputs: torch.Tensor, **attributes: Any) -> torch.Tensor:
        with disable_proxy_modes_tracing():  # fake tensors: asks for the dtype and the strides
            expected = overload(*inputs, **attributes)
        attributes = op.onnx_attributes(defaults | attributes)
        values: dict[str, Any] = {
            each.name: x.to(_COMPUTED_AS.get(x.dtype, x.dtype))
            for each, x in zip(op.inputs, inputs, strict=True)
        }
        for node in definition.node:
            if node.op_type == "Constant":
                (given,) = node.attribute
                if given.ref_attr_name:
                    result = attributes[given.ref_attr_name]
                else:
                    result = onnx.helper.get_attribute_value(given)
                if isinstance(result, onnx.TensorProto):
                    result = onnx.numpy_helper.to_array(result).item()
            else:
                result = _OPERATORS[node.op_type](*(values[name] for name in node.input))
            values[node.output[0]] = result
        y = values[op.outputs[0].name].to(expected.dtype)
        # Otherwise the inputs have their strides in common, which torch's operators keep as well.
        return y.contiguous() if expected.is_contiguous() else y

    return decomposed


_DECOMPOSITIONS = {
    getattr(torch.ops.cudarelu, op.name).default: decomposed
    for op in ops()
    if (decomposed := _decomposition(op))
}
# AOTAutograd's cache on disk is looked up by the program before decomposition, and by a tag.
_CACHE_KEY_TAG = f" cudarelu {_build_info.VERSION} fused"


def _is_enabled() -> bool:
    return _DECOMPOSITIONS.keys() <= decomposition.decompositions.keys()


def enable_fusion() -> None:
    """Makes Inductor decompose the elementwise ops, for the whole process, from now on.

    What was compiled before is compiled again, as after `torch.compiler.reset()`. So that caches on
    disk hold both, this adds to `torch.compiler.config.cache_key_tag`, of which newer PyTorch has
    one for each thread: compile in this one. Without effect if enabled already.
    """
    if _is_enabled():
        return
    for table in _tables():
        table.update(_DECOMPOSITIONS)
    torch.compiler.config.cache_key_tag += _CACHE_KEY_TAG
    torch.compiler.reset()


def disable_fusion() -> None:
    """Undoes `enable_fusion`. Without effect if that is not enabled."""
    if not _is_enabled():
        return
    for table in _tables():
        for overload in _DECOMPOSITIONS:
            del table[overload]
    tag = torch.compiler.config.cache_key_tag
    torch.compiler.config.cache_key_tag = tag.replace(_CACHE_KEY_TAG, "")
    torch.compiler.reset()


def _tables() -> tuple[dict[Any, Any], ...]:
    """Inductor's decompositions, and the copy that it keeps with those of random operators."""
    return decomposition.decompositions, decomposition.fast_random_decomps()
