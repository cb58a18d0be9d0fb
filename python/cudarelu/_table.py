"""The table of ops as data: the declaration of each op, as the library parsed it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cudarelu import _C

DEFINITION_OPSET: int = _C.DEFINITION_OPSET  # of the definitions
ONNX_DOMAIN_VERSION: int = _C.ONNX_DOMAIN_VERSION  # of the ops' domain


@dataclass(frozen=True)
class Parameter:
    """An input or an output of an op."""

    name: str
    dtype: str  # "T" is one of the op's dtypes, the same for every "T"
    dims: tuple[str | int, ...]  # equal names are equal sizes; a leading "*" is any shape
    optional: bool = False
    # An absent optional input has the value of at most one of these three:
    stand_in: str | None = None  # another input
    number: float | None = None  # this number, in every element
    extreme: tuple[str, str] | None = None  # ("min", input): the minimum, or "max", of its rows
    positive: bool = False  # every element must be greater than 0
    offsets_into: str | None = None  # int32 ends of the batches along the dimension of this name

    @property
    def leads(self) -> bool:
        """Whether the dimensions begin with `*`, which is any number of dimensions."""
        return self.dims[:1] == ("*",)

    @property
    def if_absent(self) -> str:
        """The value of the input where it is absent, as text."""
        if self.number is not None:
            return f"{self.number:g}"
        if self.extreme:
            return "{}({})".format(*self.extreme)
        return self.stand_in or "none"


@dataclass(frozen=True)
class Attribute:
    """An attribute of an op."""

    name: str
    type: str  # "int", "float", or "str" where the value is one of `labels`
    labels: tuple[str, ...]  # in ONNX the value is the index of the label
    required: bool
    default: int | float | str | None  # None: required
    lowest: int | float | None  # None: no bound
    highest: int | float | None

    @property
    def onnx_type(self) -> str:
        """The type in ONNX models: "int" or "float"."""
        return "int" if self.labels else self.type

    def outside(self, value: float) -> str | None:
        """The declared range as text if `value` is outside it, which NaN always is; or None."""
        if self.lowest is None and self.highest is None:
            return None
        low = -math.inf if self.lowest is None else self.lowest
        high = math.inf if self.highest is None else self.highest
        return None if low <= value <= high else f"[{low:g}, {high:g}]"

    def onnx_value(self, value: Any) -> int | float:
        """The value of the attribute in an ONNX model. Raises ValueError for an unknown label."""
        return self.labels.index(value) if self.labels else value


@dataclass(frozen=True)
class OnnxName:
    """The name of an op in ONNX models."""

    domain: str
    op_type: str
    alias: tuple[str, str] | None  # a second domain and op type, which mean the same op


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
    definition: str  # what the op computes: the body of an ONNX function
    written_out: str  # the same in the operators that models use instead; empty: no such form
    gradient: str  # "x = relu_backward(grad_y, y)"; empty: not differentiable
    gradient_ops: tuple[tuple[str, str], ...]  # ("x", "relu_backward"): an op in the gradient of x
    # The dtype under torch.autocast: "float32"; "lower", the dtype of autocast; or "promote",
    # which is float32 if an input is float32.
    autocast: str
    in_place: str  # "y = x": torch.ops.cudarelu.<name>_ writes y over x; empty: no such op

    def onnx_attributes(self, values: Mapping[str, Any]) -> dict[str, int | float]:
        """The values of attributes in an ONNX model."""
        declared = {each.name: each for each in self.attributes}
        return {name: declared[name].onnx_value(value) for name, value in values.items()}

    @property
    def overwritten(self) -> int | None:
        """The index of the input that the in-place op overwrites; None if there is no such op."""
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
