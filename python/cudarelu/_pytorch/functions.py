"""The functions of the ops."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.jit import _builtins

from cudarelu import _C
from cudarelu._documentation import docstring
from cudarelu._table import OpInfo, op_named

FUNCTIONS: dict[str, Callable[..., Any]] = {}  # of all loaded modules, by qualified name


def _function(op: OpInfo) -> Callable[..., Any]:
    """The function of an op: a builtin, since a Python function would double the cost of a call."""
    documentation = f"{op.name}{op.call_signature}\n--\n\n{docstring(op)}"
    function = _C.make_function(op.namespace, op.name, documentation)
    _builtins._register_builtin(function, op.qualified_name)  # for torch.jit.script
    return function


def register(ops: Iterable[OpInfo]) -> None:
    """Creates the functions of ops."""
    FUNCTIONS.update({op.qualified_name: _function(op) for op in ops})


def op_of(function: Callable[..., Any]) -> OpInfo:
    """The op of a function. Raises TypeError for anything that is not the function of an op."""
    resolve = getattr(function, "function", None)  # of an op that is defined in Python
    called = resolve() if callable(resolve) else function
    for name, known in FUNCTIONS.items():
        if known is called:
            return op_named(name)
    raise TypeError(f"{function!r} is not the function of an op, such as cudarelu.relu")


def overload_of(op: OpInfo, in_place: bool = False) -> torch._ops.OpOverload:
    """The op in `torch.ops`, or the op that works in place."""
    name = f"{op.name}_" if in_place else op.name
    return getattr(getattr(torch.ops, op.namespace), name).default


def substitute_in_graphs(ops: Iterable[OpInfo]) -> None:
    """Gives PyTorch's compilers a Python function to trace in place of each builtin."""
    for op in ops:
        substitute = torch.compiler.substitute_in_graph(
            FUNCTIONS[op.qualified_name], skip_signature_check=True
        )
        substitute(_traceable(op))


def _traceable(op: OpInfo) -> Callable[..., Any]:
    # Defaults are not filled in, since a compiler would treat each as one more input.
    overload = overload_of(op)
    return lambda *inputs, **named: overload(*inputs, **named)
