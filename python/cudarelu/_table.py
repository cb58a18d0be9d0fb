"""The tables of ops as data: the declaration of each op of the loaded op modules.

An op module is a library of ops with a namespace. The first one is the project's own."""

from __future__ import annotations

import inspect
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cudarelu import _C

OWN_NAMESPACE: str = _C.modules()[0]["name"]
FLOATING = ("float32", "float64", "float16", "bfloat16")  # the dtypes


# The numbers of dtypes in ONNX.
ONNX_NUMBERS = {
    "float32": 1, "uint8": 2, "int8": 3, "int32": 6, "int64": 7, "bool": 9, "float16": 10,
    "float64": 11, "bfloat16": 16,
}  # fmt: skip


def number_text(value: float) -> str:
    """A number as texts have it: an integer with all digits, a float with six."""
    return str(value) if isinstance(value, int) else f"{value:g}"


@dataclass(frozen=True)
class SizeExpression:
    """A size that is computed from others, such as `2*d`."""

    text: str
    # In postfix order: numbers, operators, and ("name", size or attribute) or ("numel", input).
    terms: tuple[int | str | tuple[str, str], ...] = field(compare=False)

    def __str__(self) -> str:
        return self.text

    @property
    def names(self) -> tuple[str, ...]:
        """The sizes and attributes in the expression."""
        found = [each[1] for each in self.terms if isinstance(each, tuple) and each[0] == "name"]
        return tuple(dict.fromkeys(found))

    def value(self, sizes: Mapping[Any, Any]) -> Any:
        """The size, from those of the names, and from ("numel", x) for the elements of an input x.

        The sizes may be symbols that have Python's operators. Raises ZeroDivisionError.
        """
        stack: list[Any] = []
        for term in self.terms:
            if isinstance(term, str):
                right = stack.pop()
                stack.append(_OPERATORS[term](stack.pop(), right))
            elif isinstance(term, tuple):
                stack.append(sizes[term[1] if term[0] == "name" else term])
            else:
                stack.append(term)
        return stack.pop()

    def solve(self, unknown: str, size: Any, sizes: Mapping[Any, Any]) -> Any:
        """The size of the name `unknown` with which the expression is `size`."""
        constant = self.value({**sizes, unknown: 0})
        return (size - constant) // (self.value({**sizes, unknown: 1}) - constant)


_OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "//": operator.floordiv,
    "cdiv": lambda a, b: -(-a // b),
    "min": min,
    "max": max,
}


# A dimension of a signature: a name, a fixed size or an expression.
Dim = str | int | SizeExpression


def size_of(dim: Dim, sizes: Mapping[Any, Any]) -> Any:
    """The size of a dimension of a signature, from those of the names."""
    if isinstance(dim, SizeExpression):
        return dim.value(sizes)
    return dim if isinstance(dim, int) else sizes[dim]


@dataclass(frozen=True)
class Parameter:
    """An input or an output of an op."""

    name: str
    # The type variable whose dtype it has: "T", one of the op's dtypes, "U", "V" or "W".
    variable: str | None
    dtypes: tuple[str, ...]  # the dtypes that it may have too, or without a variable
    # Of an output: the input that has its dtype, or the attribute that chooses it.
    dtype_of: str | None
    # Equal names are equal sizes; one "*" is any number of dimensions, the same in all tensors.
    dims: tuple[Dim, ...]
    # The int attribute that places the dimension after "*" among it and those of "*".
    axis: str | None = None
    broadcasts: bool = False  # the shape may be any that broadcasts to the dims, as in NumPy
    optional: bool = False
    # An absent optional input has the value of at most one of these three:
    default_input: str | None = None  # another input
    number: float | None = None  # this number, in every element
    extreme: tuple[str, str] | None = None  # ("min", input): the minimum, or "max", of its rows
    positive: bool = False  # every element must be greater than 0
    offsets_into: str | None = None  # int32 ends of the batches along the dimension of this name

    @property
    def star(self) -> int:
        """The position of `*` in `dims`; -1 if there is none."""
        return self.dims.index("*") if "*" in self.dims else -1

    @property
    def dtype(self) -> str:
        """The type variable, or the dtype, of several the first."""
        return self.variable or (self.dtypes[0] if self.dtypes else "")

    @property
    def dtype_text(self) -> str:
        """The dtype as text: "T or bool"."""
        names = [self.variable, *self.dtypes, self.dtype_of and f"the dtype of {self.dtype_of}"]
        return " or ".join(filter(None, names))

    @property
    def has_dtypes(self) -> bool:
        """Whether the dtype may be one of several, regardless of other inputs."""
        return len(self.dtypes) + (self.variable is not None) > 1

    @property
    def or_bool(self) -> bool:
        """Whether the dtype is T or bool."""
        return self.variable == "T" and "bool" in self.dtypes

    @property
    def leads(self) -> bool:
        """Whether the dimensions begin with `*`."""
        return self.star == 0

    @property
    def own_dims(self) -> tuple[Dim, ...]:
        """The dimensions beside `*`."""
        return tuple(dim for dim in self.dims if dim != "*")

    def axis_of(self, i: int) -> int:
        """The axis of `dims[i]`: from the end, except for one before a `*`."""
        return i if i < self.star else i - len(self.dims)

    def with_star(
        self, own: Sequence[Any], rows: Sequence[Any], values: Mapping[Any, Any] | None = None
    ) -> list[Any]:
        """What each axis has: `own` has it for `own_dims`, and `rows` for the axes of `*`. If an
        attribute places a dimension, `values` has it; without, the dimension is after those."""
        at, rows = max(self.star, 0), rows if self.star >= 0 else ()
        place = len(rows)
        if self.axis is not None and values is not None:
            place = values[self.axis] % (len(rows) + 1)
        return [*own[:at], *rows[:place], *own[at : at + 1], *rows[place:], *own[at + 1 :]]

    def without_star(self, axes: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """The opposite: what the axes of `own_dims` have, and what those of `*` have."""
        at, count = max(self.star, 0), len(axes) - len(self.own_dims)
        return [*axes[:at], *axes[at + count :]], [*axes[at : at + count]]

    @property
    def varies(self) -> bool:
        """Whether a call may give the input another dtype or shape than the declared ones."""
        return self.has_dtypes or self.broadcasts

    @property
    def required(self) -> bool:
        """Whether every call has a tensor for the input: its own or that of its default input."""
        return not self.optional or self.default_input is not None

    @property
    def names(self) -> tuple[str, ...]:
        """The names of sizes, also in expressions."""
        dims = self.own_dims
        found = [dim.names if isinstance(dim, SizeExpression) else (dim,) for dim in dims]
        return tuple(name for names in found for name in names if isinstance(name, str))

    @property
    def has_expressions(self) -> bool:
        """Whether a size is computed from others, not only read from an attribute."""
        return any(isinstance(dim, SizeExpression) and len(dim.terms) > 1 for dim in self.dims)

    def axes_of(self, shape: Sequence[Any], leading: int) -> list[int | str | None]:
        """What each axis of a tensor is: the number of one of the `leading` dimensions that `*`
        counts, or a name; None for a fixed size, and for a size of 1 that broadcasts."""
        named = [dim if isinstance(dim, str) else None for dim in self.own_dims]
        if self.axis is not None:  # it may be any of them
            named[self.star] = None
        axes: list[int | str | None] = self.with_star(named, range(leading))
        if not self.broadcasts:
            return axes
        axes = axes[len(axes) - len(shape) :]
        return [None if size == 1 else axis for size, axis in zip(shape, axes, strict=True)]

    def shape(self, leading: Sequence[Any], sizes: Mapping[Any, Any]) -> tuple[Any, ...]:
        """The shape: `leading` for `*`, and the sizes of the other dimensions, and `axis`."""
        own = [size_of(dim, sizes) for dim in self.own_dims]
        return tuple(self.with_star(own, leading, sizes))

    @property
    def shape_text(self) -> str:
        """The dimensions as the signature has them."""
        dims = [str(dim) for dim in self.dims]
        if self.axis is not None:
            dims[self.star + 1] += f" @ {self.axis}"
        return f"[{', '.join(dims)}]"

    @property
    def if_absent(self) -> str:
        """The value of the input where it is absent, as text."""
        if self.number is not None:
            return f"{self.number:g}"
        if self.extreme:
            return "{}({})".format(*self.extreme)
        return self.default_input or "none"


@dataclass(frozen=True)
class Attribute:
    """An attribute of an op."""

    name: str
    type: str  # "int", "float", "bool", or "str" where the value is one of `labels`
    labels: tuple[str, ...]  # in ONNX the value is the index of the label
    dtypes: tuple[str, ...]  # which the labels are; then in ONNX the value is the dtype's number
    required: bool
    default: int | float | str | None  # None: required, or a number that may be None
    lowest: int | float | None  # None: no bound
    highest: int | float | None

    @property
    def onnx_type(self) -> str:
        """The type in ONNX models: "int" or "float"."""
        return "float" if self.type == "float" else "int"

    @property
    def optional(self) -> bool:
        """Whether the value may be None, which in ONNX models is NaN."""
        return self.default is None and not self.required

    def outside(self, value: float) -> str | None:
        """The declared range as text if `value` is outside it, which NaN always is; or None."""
        if self.lowest is None and self.highest is None:
            return None
        low = -math.inf if self.lowest is None else self.lowest
        high = math.inf if self.highest is None else self.highest
        if low <= value <= high:
            return None
        return f"[{number_text(low)}, {number_text(high)}]"

    def onnx_value(self, value: Any) -> int | float:
        """The value of the attribute in an ONNX model. Raises ValueError for an unknown label."""
        if self.optional and value is None:
            return math.nan
        if self.type == "bool":
            return int(value)
        return self.onnx_labels[self.labels.index(value)] if self.labels else value

    @property
    def onnx_labels(self) -> tuple[int, ...]:
        """The values of the labels in ONNX models."""
        if self.dtypes:
            return tuple(ONNX_NUMBERS[dtype] for dtype in self.dtypes)
        return tuple(range(len(self.labels)))

    def number(self, value: Any) -> int | float:
        """The value of the attribute for an op's function of C++: the position of a label."""
        return self.labels.index(value) if self.labels else self.onnx_value(value)


@dataclass(frozen=True)
class OnnxName:
    """The name of an op in ONNX models."""

    domain: str
    op_type: str
    version: int  # of the domain
    alias: tuple[str, str] | None  # a second domain and op type, which mean the same op
    # The inputs of a node of the alias: all inputs of the op, and attributes that it has as tensors
    # of one element.
    alias_inputs: tuple[str, ...] = ()


@dataclass(frozen=True)
class OpInfo:
    """The declaration of an op."""

    namespace: str  # of its module
    name: str
    signature: str
    summary: str
    inputs: tuple[Parameter, ...]
    attributes: tuple[Attribute, ...]
    outputs: tuple[Parameter, ...]
    variables: tuple[tuple[str, tuple[str, ...]], ...]  # ("U", ("int32", "int64")), beside T
    divisibilities: tuple[tuple[str, str], ...]  # ("g", "h"): the size h is a multiple of g
    dtypes: tuple[str, ...]
    devices: tuple[str, ...]  # "cpu" and "cuda" where the module has a kernel for it
    elementwise: bool  # element i of an output is a function of elements i of the inputs
    product: bool  # a matrix product, perhaps with a bias and an activation
    onnx: OnnxName
    definition: str  # what the op computes: the body of an ONNX function
    definition_opset: int  # the opset of the operators in `definition`
    equivalent_forms: str  # the same as models contain it; empty lines divide forms
    gradient: str  # "x = relu_backward(grad_y, y)"; empty: not differentiable
    # ("x", "cudarelu::relu_backward"): the qualified name of an op in the gradient of x
    gradient_ops: tuple[tuple[str, str], ...]
    # The dtype under torch.autocast: "float32"; "lower", the dtype of autocast; or "promote",
    # which is float32 if an input is float32.
    autocast: str
    in_place: str  # "y = x": torch.ops.<namespace>.<name>_ writes y over x; empty: no such op

    def __repr__(self) -> str:
        return f"<op {self.namespace}::{self.signature}>"

    @property
    def qualified_name(self) -> str:
        """The name in PyTorch: "cudarelu::relu"."""
        return f"{self.namespace}::{self.name}"

    @property
    def short_name(self) -> str:
        """The name in texts and on the command line, which `op_named` takes: "relu" for an op of
        this library, the qualified name for any other."""
        return self.name if self.namespace == OWN_NAMESPACE else self.qualified_name

    @property
    def call_signature(self) -> inspect.Signature:
        """The signature of the op's function in Python."""
        kind, required = inspect.Parameter, inspect.Parameter.empty
        inputs = [
            kind(x.name, kind.POSITIONAL_OR_KEYWORD, default=None if x.optional else required)
            for x in self.inputs
        ]
        attributes = [
            kind(a.name, kind.KEYWORD_ONLY, default=required if a.required else a.default)
            for a in self.attributes
        ]
        return inspect.Signature(inputs + attributes)

    def onnx_attributes(self, values: Mapping[str, Any]) -> dict[str, int | float]:
        """The values of attributes in an ONNX model."""
        declared = {each.name: each for each in self.attributes}
        return {name: declared[name].onnx_value(value) for name, value in values.items()}

    def all_onnx_attributes(self, values: Mapping[str, Any]) -> dict[str, int | float]:
        """The values of all attributes in an ONNX model: those given, and defaults."""
        defaults = {each.name: each.default for each in self.attributes if not each.required}
        return self.onnx_attributes({**defaults, **values})

    def leading_of(self, ranks: Sequence[int | None]) -> int:
        """The number of dimensions for `*` in a call with inputs of these ranks."""
        return next(
            (
                rank - len(each.dims) + 1
                for each, rank in zip(self.inputs, ranks)  # noqa: B905
                if each.star >= 0 and not each.broadcasts and rank is not None
            ),
            0,
        )

    def dtypes_of(self, parameter: Parameter) -> tuple[str, ...]:
        """The dtypes that an input may have, of which "T" is that of T."""
        variables = {"T": ("T",), **dict(self.variables)}
        own = variables[parameter.variable] if parameter.variable else ()
        return (*own, *parameter.dtypes)

    def output_dtypes(
        self, t: str, inputs: Mapping[str, str], attributes: Mapping[str, Any]
    ) -> list[str]:
        """The dtypes of the outputs, from T, those of the given inputs by name, and attributes."""
        found = []
        for each in self.outputs:
            if each.variable == "T":
                found.append(t)
            elif each.variable:
                sources = (
                    x.name for x in self.inputs if (x.variable, x.dtypes) == (each.variable, ())
                )
                found.append(next(inputs[name] for name in sources if name in inputs))
            elif each.dtype_of and each.dtype_of in inputs:
                found.append(inputs[each.dtype_of])
            elif each.dtype_of:
                choice = next(a for a in self.attributes if a.name == each.dtype_of)
                label = attributes.get(choice.name, choice.default)
                found.append(choice.dtypes[choice.labels.index(label)])
            else:
                found.append(each.dtypes[0])
        return found

    @property
    def star_leads(self) -> bool:
        """Whether each `*` is leading, which means that the rows that it counts are independent."""
        return all(each.star <= 0 for each in (*self.inputs, *self.outputs))

    @property
    def axes(self) -> frozenset[str]:
        """The attributes that place dimensions."""
        return frozenset(each.axis for each in (*self.inputs, *self.outputs) if each.axis)

    def fewest_rows(self, values: Mapping[Any, Any]) -> int:
        """The fewest dimensions for `*` with which these values of `axes` are in their range."""
        axes = [values[name] for name in self.axes]
        return max([0, *(axis if axis >= 0 else -axis - 1 for axis in axes)])

    @property
    def named_dimensions(self) -> list[str]:
        """The named dimensions of the required inputs, in the order of the signature."""
        dims = [dim for each in self.inputs if not each.optional for dim in each.dims]
        names = [
            name
            for dim in dims
            for name in (dim.names if isinstance(dim, SizeExpression) else [dim])
            if isinstance(name, str) and name != "*" and name not in self.size_attributes
        ]
        return list(dict.fromkeys(names))

    @property
    def size_attributes(self) -> frozenset[str]:
        """The attributes on which the shapes of inputs and outputs depend."""
        dims = [dim for each in (*self.inputs, *self.outputs) for dim in each.dims]
        names = {name for dim in dims if isinstance(dim, SizeExpression) for name in dim.names}
        return frozenset(names & {each.name for each in self.attributes}) | self.axes

    def with_elements(self, leading: Sequence[Any], sizes: Mapping[Any, Any]) -> dict[Any, Any]:
        """The sizes, and as ("numel", input) the number of elements of inputs in expressions."""
        dims = [dim for each in (*self.inputs, *self.outputs) for dim in each.dims]
        terms = {term for dim in dims if isinstance(dim, SizeExpression) for term in dim.terms}
        counts = {
            ("numel", each.name): math.prod(each.shape(leading, sizes))
            for each in self.inputs
            if ("numel", each.name) in terms
        }
        return {**sizes, **counts}

    def with_multiples(self, sizes: Mapping[Any, int]) -> dict[Any, int]:
        """The sizes, changed where one must be a multiple of another: it is twice as large."""
        return {**sizes, **{h: 2 * sizes[g] for g, h in self.divisibilities}}

    def node_inputs(self, domain: str, op_type: str) -> list[Parameter | Attribute]:
        """What the inputs of a node of this type in an ONNX model are, in order."""
        if (domain, op_type) != self.onnx.alias:
            return [*self.inputs]
        named: dict[str, Parameter | Attribute] = {}
        named |= {each.name: each for each in self.inputs}
        named |= {each.name: each for each in self.attributes}
        return [named[name] for name in self.onnx.alias_inputs]

    def node_attributes(self, domain: str, op_type: str) -> list[Attribute]:
        """The attributes of a node of this type in an ONNX model: those that are no inputs."""
        inputs = self.node_inputs(domain, op_type)
        return [each for each in self.attributes if each not in inputs]

    @property
    def has_in_place_op(self) -> bool:
        """Whether PyTorch has the op `name_`: it has one output, which overwrites an input."""
        return bool(self.in_place) and len(self.outputs) == 1

    @property
    def overwritten(self) -> int | None:
        """The index of the input that an output may overwrite; None if none may."""
        if not self.in_place:
            return None
        return [each.name for each in self.inputs].index(self.in_place.split(" = ")[1])


def ops() -> list[OpInfo]:
    """The ops of this library, in the order of its table; see `modules` for those of others."""
    return ops_of(OWN_NAMESPACE)


def ops_of(namespace: str) -> list[OpInfo]:
    """The ops of a loaded module, in the order of its table."""
    return [op for op in all_ops() if op.namespace == namespace]


def all_ops() -> list[OpInfo]:
    """The ops of all modules, in the order of loading."""
    return list(_OPS.values())


def op_named(name: str) -> OpInfo:
    """The op of a qualified name, or of the name of an op of this library.

    Raises:
        ValueError: if no loaded module has the op.
    """
    found = _OPS.get(name) or _OPS.get(f"{OWN_NAMESPACE}::{name}")
    if found is None:
        known = ", ".join(op.short_name for op in all_ops())
        raise ValueError(f"no op {name!r}: there are {known}")
    return found


def op_in_onnx(domain: str, op_type: str) -> OpInfo | None:
    """The op that has this name or this alias in ONNX models; None if there is none."""
    return _OPS_IN_ONNX.get((domain, op_type))


def add_ops(module: Mapping[str, Any]) -> list[OpInfo]:
    """Adds the ops of a module, an entry of `_C.modules()`, to all look-ups, and returns them."""
    added = [op_info(fields, module) for fields in _C.ops(module["name"])]
    for op in added:
        _OPS[op.qualified_name] = op
        for name in ((op.onnx.domain, op.onnx.op_type), op.onnx.alias):
            if name is not None:
                _OPS_IN_ONNX.setdefault(name, op)  # modules may share the domain of an alias
    return added


def op_info(fields: dict[str, Any], module: Mapping[str, Any]) -> OpInfo:
    """The op of an entry of `_C.ops()` and its module's entry of `_C.modules()`."""
    return OpInfo(
        **fields
        | {
            "inputs": tuple(map(parameter_of, fields["inputs"])),
            "attributes": tuple(Attribute(**each) for each in fields["attributes"]),
            "outputs": tuple(map(parameter_of, fields["outputs"])),
            "onnx": OnnxName(**fields["onnx"], version=module["onnx_version"]),
            "definition_opset": module["definition_opset"],
            # An op without T is as one with a T of one dtype.
            "dtypes": fields["dtypes"] or ("float32",),
        }
    )


def parameter_of(fields: dict[str, Any]) -> Parameter:
    """The input or output of an entry of `_C.ops()`."""
    dims = [SizeExpression(*dim) if isinstance(dim, tuple) else dim for dim in fields["dims"]]
    return Parameter(**fields | {"dims": tuple(dims)})


_OPS: dict[str, OpInfo] = {}  # by qualified name
_OPS_IN_ONNX: dict[tuple[str, str], OpInfo] = {}  # by domain and type, with aliases
