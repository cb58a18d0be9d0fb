"""CUDA operators written once and served everywhere.

Each op of ``cudarelu.ops()`` is a function of this module and of ``torch.ops.cudarelu``::

    cudarelu.relu(x)                            # a torch.Tensor, or an array
    cudarelu.leaky_relu(x, negative_slope=0.1)  # attributes are given by name

A function takes torch tensors of one device, of any strides, and gives tensors on that device, with
gradients; a DTensor stays sharded where the op works on the parts alone. Or it takes NumPy arrays,
float16 and ml_dtypes' bfloat16 included, and gives new arrays. Of CuPy, of JAX (but not under its
jit, grad or vmap) and of any library with DLPack it takes arrays of one device and gives new ones,
without a copy and without a wait of the host for the GPU. Shapes and dtypes are those of the op's
signature: see ``help(cudarelu.relu)`` and ``OpInfo``.

Errors: ``TypeError`` for arguments of another kind, and for an attribute of another name or type;
``ValueError`` for a str that is none of an attribute's labels.
For arrays, ``ValueError`` for a shape or a value and ``TypeError`` for a dtype. For tensors, as
torch has it, ``RuntimeError`` for a shape, a value or a device and ``NotImplementedError`` (which
is one) for a dtype.
"""

from __future__ import annotations

import importlib
import math
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

# argv[0] is "-m" while Python looks for the module of that option, whose name stands in orig_argv
# before the arguments: cudarelu, -mcudarelu or, with other options, -Imcudarelu.
if sys.argv[:2] == ["-m", "doctor"] and re.fullmatch(
    "(-[^m]*m)?cudarelu", sys.orig_argv[-len(sys.argv) :][0]
):
    # `python -m cudarelu doctor` runs here: it says why what follows fails.
    from cudarelu.__main__ import main

    sys.exit(main())

import torch
from torch.jit import _builtins

from cudarelu import _build_info

if torch.__version__.split(".")[:2] != _build_info.TORCH.split("."):
    raise ImportError(
        f"cudarelu was built for PyTorch {_build_info.TORCH}, but this is {torch.__version__}: "
        f"build it again in this environment, or install torch=={_build_info.TORCH}.*"
    )

from cudarelu import _C  # only now: the library needs that very torch

__version__ = _build_info.VERSION


@dataclass(frozen=True)
class Parameter:
    """An input or an output of an op."""

    name: str
    dtype: str  # "T": one of the op's dtypes, the same for all of "T"
    dims: tuple[str | int, ...]  # names bind across tensors; a leading "*" is any shape
    optional: bool = False
    stand_in: str | None = None  # the input that takes its place where it is absent
    number: float | None = None  # which all elements are as if of where it is absent
    extreme: tuple[str, str] | None = None  # it is as if that ("min", "max") of an input's rows
    positive: bool = False  # the elements must be
    offsets_into: str | None = None  # the dimension whose batches these int32 offsets end

    @property
    def leads(self) -> bool:
        """Whether it has `*`: any number of dimensions before its own."""
        return self.dims[:1] == ("*",)


@dataclass(frozen=True)
class Attribute:
    """An attribute of an op."""

    name: str
    type: str  # "int", "float" or "str", one of the labels
    labels: tuple[str, ...]  # in ONNX, their positions are the values
    required: bool
    default: int | float | str | None
    lowest: int | float | None  # None: no bound
    highest: int | float | None

    @property
    def onnx_type(self) -> str:
        """The type in ONNX models: "int" or "float"."""
        return "int" if self.labels else self.type

    def outside(self, value: float) -> str | None:
        """The range that is declared, as text, where a number is not in it; a NaN is in none."""
        if self.lowest is None and self.highest is None:
            return None
        low = -math.inf if self.lowest is None else self.lowest
        high = math.inf if self.highest is None else self.highest
        return None if low <= value <= high else f"[{low:g}, {high:g}]"

    def onnx_value(self, value: Any) -> int | float:
        """A value in ONNX models. Raises ValueError for a label that there is not."""
        return self.labels.index(value) if self.labels else value


@dataclass(frozen=True)
class OnnxName:
    """How ONNX models call an op."""

    domain: str
    op_type: str
    alias: tuple[str, str] | None  # a second domain and op type


@dataclass(frozen=True)
class OpInfo:
    """The declaration of an op."""

    name: str
    signature: str
    summary: str
    inputs: tuple[Parameter, ...]
    attributes: tuple[Attribute, ...]
    outputs: tuple[Parameter, ...]
    dtypes: tuple[str, ...]
    elementwise: bool  # element i of an output is a function of elements i of the inputs
    onnx: OnnxName
    definition: str  # the meaning: the body of an ONNX function
    written_out: str  # the same in operators that models have in its place; empty: none
    gradient: str  # "x = relu_backward(grad_y, y)"; empty: not differentiable
    autocast: str  # under torch.autocast: in "float32", in its "lower" dtype, or "promote": in
    # float32 where one input is
    in_place: str  # "y = x": torch.ops.cudarelu.<name>_ writes y over x; empty: there is none

    def onnx_attributes(self, values: Mapping[str, Any]) -> dict[str, int | float]:
        """Attributes as ONNX models have them."""
        declared = {each.name: each for each in self.attributes}
        return {name: declared[name].onnx_value(value) for name, value in values.items()}

    @property
    def overwritten(self) -> int | None:
        """Which input the form in place writes over; None where there is no such form."""
        if not self.in_place:
            return None
        return [each.name for each in self.inputs].index(self.in_place.split(" = ")[1])


def ops() -> list[OpInfo]:
    """All ops, in the order of the table."""
    return list(_OPS)


def _op_info(fields: dict[str, Any]) -> OpInfo:
    return OpInfo(
        **fields
        | {
            "inputs": tuple(Parameter(**each) for each in fields["inputs"]),
            "attributes": tuple(Attribute(**each) for each in fields["attributes"]),
            "outputs": tuple(Parameter(**each) for each in fields["outputs"]),
            "onnx": OnnxName(**fields["onnx"]),
        }
    )


_OPS = tuple(_op_info(fields) for fields in _C.ops())


def _describe(parameter: Parameter) -> str:
    dims = ", ".join(map(str, parameter.dims))
    text = f"    {parameter.name}: {parameter.dtype}[{dims}]"
    if parameter.offsets_into:
        text += f": where each batch of {parameter.offsets_into} ends"
    if parameter.optional:
        text += f"; if absent: {_absent(parameter)}"
    if parameter.positive:
        text += "; over 0"
    return text


def _absent(parameter: Parameter) -> str:
    if parameter.number is not None:
        return f"{parameter.number:g}"
    if parameter.extreme:
        return "{}({})".format(*parameter.extreme)
    return parameter.stand_in or "none"


def _documentation(op: OpInfo) -> str:
    lines = [op.summary, "", f"T: {', '.join(op.dtypes)}"]
    lines += ["", "Inputs:", *map(_describe, op.inputs)]
    if op.attributes:
        lines += ["", "Attributes:"]
    for attribute in op.attributes:
        kind = " or ".join(map(repr, attribute.labels)) or attribute.type
        lines.append(f"    {attribute.name}: {kind}")
        if attribute.lowest is not None:
            lines[-1] += f", {attribute.lowest} or more"
        if attribute.highest is not None:
            lines[-1] += f", {attribute.highest} or less"
    lines += ["", "Outputs:", *map(_describe, op.outputs)]
    if op.autocast != "promote":
        lines += ["", f"Under torch.autocast: {op.autocast}"]
    lines += ["", f"Gradient: {' '.join(op.gradient.split()) or 'none'}"]
    return "\n".join(lines)


def _input_parameters(op: OpInfo) -> list[str]:
    return [f"{each.name}=None" if each.optional else each.name for each in op.inputs]


def _parameters(op: OpInfo) -> str:
    """The parameters of an op's function, as Python writes them."""
    attributes = [a.name if a.required else f"{a.name}={a.default!r}" for a in op.attributes]
    return ", ".join(_input_parameters(op) + ["*"] * bool(attributes) + attributes)


def _function(op: OpInfo) -> Callable[..., Any]:
    """The function of an op: a built-in one, since Python's own would double the cost of a call."""
    documentation = f"{op.name}({_parameters(op)})\n--\n\n{_documentation(op)}"
    function = _C.make_function(op.name, documentation)
    _builtins._register_builtin(function, f"cudarelu::{op.name}")  # for torch.jit.script
    return function


def _in_graph(op: OpInfo) -> Callable[..., Any]:
    """What PyTorch's compilers trace in the place of the function, since they do not look into C++.

    The attributes are gathered, since a compiler would take a default for one more input; the
    overload is in a closure, since PyTorch 2.11 takes a made function's globals for this module's.
    """
    names = [each.name for each in op.inputs]
    gathered = ["**attributes"] if op.attributes else []
    parameters = ", ".join(_input_parameters(op) + gathered)
    source = f"lambda {parameters}: overload({', '.join(names + gathered)})"
    return eval(f"lambda overload: {source}")(getattr(torch.ops.cudarelu, op.name).default)


def _substitute_in_graphs() -> None:
    for op in _OPS:
        substitute = torch.compiler.substitute_in_graph(
            _FUNCTIONS[op.name], skip_signature_check=True
        )
        substitute(_in_graph(op))


_FUNCTIONS = {op.name: _function(op) for op in _OPS}
globals().update(_FUNCTIONS)
__all__ = ["Attribute", "OnnxName", "OpInfo", "Parameter", "ops", *_FUNCTIONS]

from cudarelu import _vmap  # noqa: E402, F401  the batching rules, of the ops above
from cudarelu._after_import import after_import  # noqa: E402

# These wait for a program that compiles or shards: either part of PyTorch takes long to import.
after_import("torch._dynamo", _substitute_in_graphs)
after_import("torch.distributed.tensor", lambda: importlib.import_module("cudarelu._dtensor"))

if TYPE_CHECKING:  # type checkers do not see the functions being made: the build writes their types
    from cudarelu._functions import *  # noqa: F403
