"""Ops whose CUDA kernels are written in Triton."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from .library import DefinedOp, Library


def triton_op(
    signature: str,
    *,
    definition: str,
    gradient: str = "",
    in_place: str = "",
    dtypes: Sequence[str] = ("float32", "float16", "bfloat16"),
    summary: str | None = None,
) -> Callable[[Callable[[Any], Any]], DefinedOp]:
    """An op whose CUDA kernels are written in Triton.

    ::

        @cudarelu.triton_op(
            "rms_norm(x: T[*, c], weight: T[c], *, eps: float = 1e-5) -> y: T[*, c]",
            definition=\"\"\"...\"\"\",
            gradient="x = my::rms_norm_backward(grad_y, x, weight, eps)",
        )
        def rms_norm(call):
            block = call.next_power_of_2(call.c, most=65536)
            rows = call.x.numel() // call.c
            arguments = {"x": call.x, "weight": call.weight, "y": call.y, "c": call.c}
            return rms_norm_kernel, rows, arguments | {"eps": call.eps, "BLOCK": block}

    The function gets a call of the op with symbols for what is known only then: its inputs,
    outputs, attributes, and the dimensions that the signature names. It returns a kernel, its grid
    and its arguments by name, among them num_warps, num_stages and maxnreg; or a list of those,
    which are launched one after the other. It may branch on a symbol, and raise ValueError for what
    the kernels do not support. It runs once for each outcome and dtype, never when the op is
    called: the kernels are compiled ahead for the GPUs of the module, with code of their own for
    addresses and sizes that are multiples of 16. Triton is needed to build the module, not to run
    it.

    On the CPU, a kernel that follows from the definition runs.

    Args:
        signature: as in C++; see docs/your-op.md.
        definition: what the op computes: the body of an ONNX function.
        gradient: a formula; see docs/your-op.md. Empty: none.
        in_place: "y = x" if the output y may be written over x. Empty: none.
        dtypes: the dtypes of T.
        summary: one line for readers; by default the first line of the function's docstring.

    Raises:
        ValueError: for a signature or a definition that is not valid or cannot be evaluated on the
            CPU, and if all outcomes of the function are errors.
        TypeError: if the function returns anything but launches, or uses a symbol as a number.
    """

    def defined(function: Callable[[Any], Any]) -> DefinedOp:
        from .evaluation import cpu_source
        from .kernels import TritonOp
        from .ops import read_signature, summary_of
        from .triton_trace import POINTERS, Call, tree_of

        library = Library.current()
        op = dataclasses.replace(
            read_signature(library.namespace, signature, dtypes),
            summary=summary or summary_of(function),
            definition=definition,
            gradient=gradient,
            in_place=in_place,
        )
        if unknown := set(dtypes) - POINTERS.keys():
            raise ValueError(f"{op.name}: no dtype {min(unknown)}: there are {', '.join(POINTERS)}")
        if not any(each.dtype == "T" and not each.optional for each in op.inputs):
            raise ValueError(f"{op.name}: no required input has the dtype T")
        for each in (*op.inputs, *op.outputs):
            if each.varies:
                raise ValueError(f"{op.name}: {each.name} must have one dtype and not broadcast")
            if each.dtype not in ("T", "float32", "int32", "int64"):
                raise ValueError(f"{op.name}: {each.name} must be T, f32, i32 or i64")
        tensors = [each.name for each in (*op.inputs, *op.outputs)]
        attributes = [each.name for each in op.attributes]
        dims = {name for each in op.inputs for name in each.names} - op.size_attributes
        for name in (*tensors, *attributes):
            if name.startswith("_") or hasattr(Call, name):
                raise ValueError(f"{op.name}: {name} is a name that a call has already")
            if name in dims:
                raise ValueError(f"{op.name}: {name} is also the name of a dimension")
        if in_place and in_place not in [f"{y} = {x}" for y in tensors for x in tensors]:
            raise ValueError(f'{op.name}: in_place must be as "y = x", not {in_place!r}')
        cpu_source(op, "")  # what cannot be evaluated is an error here
        library.add(TritonOp(op, {dtype: tree_of(op, dtype, function) for dtype in dtypes}))
        return DefinedOp(library, op, function)

    return defined
