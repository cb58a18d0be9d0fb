"""Ways to compute a case. A contender is prepared for a case, then bound to inputs, then called.

Preparation returns None if the contender does not support the op or the dtype, and raises `Missing`
if something is not installed.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import torch

from .._pytorch.functions import FUNCTIONS
from .._table import OWN_NAMESPACE, OpInfo, ops_of
from . import rivals
from .cases import Case, Inputs

Call = Callable[[], Any]  # returns the outputs
Bind = Callable[[Inputs], Call]
_Made = TypeVar("_Made")


class Missing(Exception):
    """Something that a contender needs is not installed."""


def _of_function(function: Callable, case: Case) -> Bind:
    return lambda inputs: functools.partial(function, *inputs, **case.attributes)


@functools.cache
def _in_torch(op: OpInfo) -> Callable | None:
    """What a user of PyTorch would write, or else the op's definition in torch's operators."""
    if op.namespace == OWN_NAMESPACE:
        return rivals.TORCH.get(op.name)
    from ..inductor import in_torch  # takes seconds

    return in_torch(op)


def hand_written(op: OpInfo) -> OpInfo | None:
    """This library's op of the same name and parameters as an op of another module, or None."""
    for own in ops_of(OWN_NAMESPACE):
        if (own.name, own.inputs, own.attributes) == (op.name, op.inputs, op.attributes):
            return own
    return None


def _hand_written(case: Case) -> Bind | None:
    own = hand_written(case.op)
    return _of_function(FUNCTIONS[own.qualified_name], case) if own else None


def _torch(case: Case) -> Bind | None:
    function = _in_torch(case.op)
    return function and _of_function(function, case)


def _compiled(mode: str, case: Case) -> Bind | None:
    function = _in_torch(case.op)
    if not function:
        return None
    torch.compiler.reset()  # otherwise the shapes of earlier cases make this one dynamic

    def expression(*inputs: Any) -> Any:  # torch.compile needs a Python function
        return function(*inputs, **case.attributes)

    compiled = torch.compile(expression, fullgraph=True, dynamic=False, mode=mode)
    return lambda inputs: functools.partial(compiled, *inputs)


def _copy(case: Case) -> Bind:
    """A copy that moves as many bytes as the op: the limit of the memory bandwidth."""

    def bind(inputs: Inputs) -> Call:
        # The driver copies large tensors at full speed only in multiples of 16 KiB.
        unit = 16 * 1024 if case.bytes > 1 << 24 else 8
        words = torch.empty(
            -(-case.bytes // 2 // unit) * unit // 8, dtype=torch.int64, device=case.device
        )
        source = words.random_()
        return functools.partial(torch.empty_like(source).copy_, source)

    return bind


def _relu_of(name: str, case: Case) -> Bind | None:
    if case.op.short_name != "relu":
        return None
    return _of_function(_built(lambda: rivals.relu(name)), case)


def _pointops(case: Case) -> Bind | None:
    if case.op.short_name != "knn_query" or case.dtype != "float32":
        return None
    return _of_function(_built(rivals.knn), case)


def _cublaslt(fused: bool, case: Case) -> Bind | None:
    """The bare product, which is a limit, or, with `fused`, the product with its activation if
    cuBLASLt has an epilogue for it."""
    transposed = rivals.GEMM.get(case.op.short_name)
    epilogue = _epilogue(case) if fused else "none"
    if transposed is None or epilogue is None or case.dtype == "float64":
        return None
    found: list[rivals.Gemm] = []  # prepared once, since that times eight algorithms

    def bind(inputs: Inputs) -> Call:
        x, y, *others = inputs
        assert x is not None
        assert y is not None
        if not found:
            bias = others[0] if fused else None
            found.append(_built(lambda: rivals.Gemm(x, y, transposed, epilogue, bias)))
        return functools.partial(found[0], x, y)

    return bind


def _epilogue(case: Case) -> str | None:
    if case.op.short_name == "linear_gelu" and case.attributes["approximate"] == "tanh":
        return "gelu"
    return "relu" if case.op.short_name == "linear_relu" else None


def _built(make: Callable[[], _Made]) -> _Made:
    try:
        return make()
    except OSError as error:
        raise Missing(str(error)) from error


def _ort(ours: bool, case: Case) -> Bind:
    try:
        from .onnx_runtime import prepare
    except ImportError as error:
        raise Missing(f"{error.name} is not installed") from error
    return prepare(case, ours)


CONTENDERS: dict[str, Callable[[Case], Bind | None]] = {
    "cudarelu": lambda case: _of_function(FUNCTIONS[case.op.qualified_name], case),
    "cudarelu in ORT": functools.partial(_ort, True),
    "hand-written": _hand_written,
    "torch": _torch,
    "torch.compile": functools.partial(_compiled, "default"),
    "max-autotune": functools.partial(_compiled, "max-autotune-no-cudagraphs"),
    "copy": _copy,
    "cub": functools.partial(_relu_of, "cub"),
    "naive": functools.partial(_relu_of, "naive"),
    "pointops": _pointops,
    "cublaslt": functools.partial(_cublaslt, False),
    "cublaslt, fused": functools.partial(_cublaslt, True),
    "ORT": functools.partial(_ort, False),
}
