"""The CPU kernel of an op as C++ that evaluates the op's definition, node by node."""

from __future__ import annotations

import collections
import dataclasses
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx.defs
import onnx.helper
import onnx.numpy_helper

from .._table import OpInfo
from ..onnx.absent_inputs import write_out
from .bodies import ABSENT, bodies
from .operators import OPERATORS
from .reading import parsed, place
from .texts import identifier
from .trees import OPSET, defaults

_MAX_OPERANDS = 8  # of an expression: max_operands in cpu/definition.h

# The C++ type of the elements by their kind. T is float or double, or std::int64_t for integers.
_CPP = {"T": "T", "float": "float", "double": "double", "int64": "std::int64_t", "bool": "bool"}

_KINDS = {  # of ONNX's types, and the type that a cast goes through
    onnx.TensorProto.FLOAT: ("float", ""),
    onnx.TensorProto.DOUBLE: ("double", ""),
    onnx.TensorProto.BOOL: ("bool", ""),
    onnx.TensorProto.INT64: ("int64", ""),
    onnx.TensorProto.INT32: ("int64", "std::int32_t"),
    onnx.TensorProto.INT8: ("int64", "std::int8_t"),
    onnx.TensorProto.UINT8: ("int64", "std::uint8_t"),
}

# The C++ of operators for integers, which wrap around.
_OF_INTEGERS = {name: f"definition::{name.lower()}({{0}}, {{1}})" for name in ("Add", "Sub", "Mul")}
_OF_INTEGERS |= {"Div": "definition::div({0}, {1})", "Mod": "definition::mod({0}, {1})"}

_IN_PAIRS = {"Max": "Max", "Min": "Min", "Sum": "Add", "Mean": "Add"}

_REDUCTIONS = {
    "ReduceSum": "sum",
    "ReduceMean": "mean",
    "ReduceMax": "max",
    "ReduceMin": "min",
    "ReduceProd": "prod",
    "ReduceSumSquare": "sum_square",
    "ReduceL2": "l2",
}


def cpu_source(op: OpInfo, header: str) -> str:
    """The C++ source of an op's function `cpu`, which evaluates the definition.

    float16 and bfloat16 are computed in float32 and rounded at the end. Sources of several ops may
    be joined in one file.

    Args:
        op: the op; its struct has the name of the op in ONNX.
        header: the header with the struct, as `#include` names it.

    Raises:
        ValueError: for text that is not the body of an ONNX function, and for a node that cannot
            be evaluated. The message has the line.
    """
    lines = _indented(_Writer(op).body())
    tensors = [("inputs", op.inputs), ("outputs", op.outputs)]
    variable = next(
        f"call.{group}[{i}].dtype"
        for group, parameters in tensors
        for i, each in enumerate(parameters)
        if each.dtype == "T" and not each.optional
    )
    return f"""// The definition of {op.name}, evaluated node by node.
#include {json.dumps(header)}

#include "cudarelu/cpu/definition.h"

namespace {op.namespace} {{
namespace {{

namespace definition = cudarelu::definition;
namespace onnx = cudarelu::onnx;

template <class T>
void evaluate_{op.name}(const cudarelu::Call& call) {{
{lines}
}}

}}  // namespace

cudarelu::Status {op.onnx.op_type}::cpu(const cudarelu::Call& call) {{
  return definition::evaluate<spec.dtypes>(
      call, {variable}, [&]<class T>(cudarelu::TypeTag<T>) {{ evaluate_{op.name}<T>(call); }});
}}

}}  // namespace {op.namespace}
"""


def _indented(lines: Iterable[str]) -> str:
    return "\n".join(f"  {line}" for text in lines for line in text.split("\n"))


@dataclasses.dataclass(eq=False)
class _Value:
    """A value of the definition: a constant; a number; an array; or an elementwise expression of
    arrays, which becomes an array, or a part of another expression, when it is used."""

    kind: str
    code: str = ""  # a C++ variable; of a number, an expression
    literal: np.ndarray | None = None  # of a constant
    is_number: bool = False
    may_be_absent: bool = False
    name: str = ""  # of an attribute
    constant: str = ""  # the variable of a number or a constant as an array
    # Of an expression:
    expression: str = ""
    steps: tuple[str, ...] = ()  # the statements before it
    operands: dict[str, str] = dataclasses.field(default_factory=dict)  # variables and their types
    is_heavy: bool = False

    @property
    def is_scalar(self) -> bool:
        """Whether it is one number at compile time or by its type."""
        return self.is_number or (self.literal is not None and self.literal.ndim == 0)


_Scope = dict[str, _Value | None]


@dataclasses.dataclass
class _Node:
    """A node, whose operands and attributes are known."""

    writer: _Writer
    op_type: str
    values: list[_Value | None]
    attributes: dict[str, Any]
    names: list[str]  # of the outputs

    def __getitem__(self, i: int) -> str:
        """The variable of an operand, an array."""
        value = self.value(i)
        assert value is not None
        return self.writer.array(value)

    def value(self, i: int) -> _Value | None:
        return self.values[i] if i < len(self.values) else None

    def dims(self, i: int) -> str:
        """An operand that is a vector of integers, as definition::Dims; empty if it is absent."""
        value = self.value(i)
        if value is None:
            return "{}"
        if value.literal is not None:
            return _braces(value.literal.ravel().tolist())
        if value.is_scalar:
            return f"{{{self.writer.scalar(value, 'int64')}}}"
        return f"definition::integers({self[i]})"

    def item(self, i: int) -> str:
        """An operand that is a number."""
        value = self.value(i)
        assert value is not None
        if value.is_scalar:
            return self.writer.scalar(value, value.kind)
        return f"definition::item({self[i]})"

    def integer(self, name: str, default: str | None = None) -> str:
        """An attribute that is an integer."""
        value = self.attributes.get(name, default)
        if value is None:
            raise ValueError(f"it needs the attribute {name}")
        return self.writer.scalar(value, "int64") if isinstance(value, _Value) else f"{value}"

    def flag(self, name: str) -> str:
        """An attribute that is 0 or 1."""
        value = self.attributes.get(name, 0)
        if isinstance(value, _Value):
            return f"{self.writer.scalar(value, 'int64')} != 0"
        return "true" if value else "false"

    def fixed(self, name: str) -> Any:
        """An attribute that must not be an attribute of the op."""
        if isinstance(value := self.attributes.get(name), _Value):
            raise ValueError(f"its attribute {name} must be a constant")
        return value


def _braces(numbers: Iterable[int]) -> str:
    return f"{{{', '.join(map(_integer, numbers))}}}"


def _integer(number: int) -> str:
    return f"{number}" if number > -(2**63) else "std::numeric_limits<std::int64_t>::min()"


def _number(kind: str, value: Any) -> str:
    """A C++ expression of a number."""
    if kind == "bool":
        return "true" if value else "false"
    if isinstance(value, float):
        if not np.isfinite(value):
            name = "quiet_NaN" if np.isnan(value) else "infinity"
            return f"{'-' * (value < 0)}std::numeric_limits<{_CPP[kind]}>::{name}()"
        return f"{_CPP[kind]}({value!r})"
    return f"{_CPP[kind]}({_integer(value)})"


def _shape(n: _Node) -> str:
    end = n.integer("end", "std::numeric_limits<std::int64_t>::max()")
    return f"definition::shape({n[0]}, {n.integer('start', '0')}, {end})"


def _reduce(n: _Node) -> str:
    kind = f"definition::Reduction::{_REDUCTIONS[n.op_type]}"
    flags = f"{n.flag('noop_with_empty_axes')}, {n.flag('keepdims')}"
    return f"definition::reduce<{kind}>(call, {n[0]}, {n.dims(1)}, {flags})"


def _arg(n: _Node) -> str:
    largest = "true" if n.op_type == "ArgMax" else "false"
    flags = f"{n.flag('keepdims')}, {n.flag('select_last_index')}"
    return f"definition::arg<{largest}>(call, {n[0]}, {n.integer('axis')}, {flags})"


def _concat(n: _Node) -> str:
    parts = ", ".join(n[i] for i in range(len(n.values)))
    return f"definition::concat(call, {n.integer('axis')}, std::vector{{{parts}}})"


def _pad(n: _Node) -> str:
    if n.fixed("mode") != b"constant":
        raise ValueError("its mode must be constant")
    value = n.values[0]
    assert value is not None
    number = n.item(2) if n.value(2) else f"{_CPP[value.kind]}(0)"
    return f"definition::pad(call, {n[0]}, {n.dims(1)}, {number}, {n.dims(3)})"


def _expand(n: _Node) -> str:
    shape = f"definition::broadcast_shape({n[0]}.shape, {n.dims(1)})"
    return f"{n[0]}.view(definition::broadcast({n[0]}, {shape}))"


def _slice(n: _Node) -> str:
    bounds = ", ".join(n.dims(i) for i in range(1, 5))
    return f"{n[0]}.view(definition::sliced({n[0]}, {bounds}))"


# C++ of the result. Its kind is that of the first operand.
_CALLS: dict[str, Callable[[_Node], str]] = {
    "ArgMax": _arg,
    "ArgMin": _arg,
    "Concat": _concat,
    "CumSum": lambda n: (
        f"definition::cumsum(call, {n[0]}, {n.item(1)}, {n.flag('exclusive')}, {n.flag('reverse')})"
    ),
    "Expand": _expand,
    "Gather": lambda n: f"definition::gather(call, {n[0]}, {n[1]}, {n.integer('axis')})",
    "GatherElements": lambda n: (
        f"definition::gather_elements(call, {n[0]}, {n[1]}, {n.integer('axis')})"
    ),
    "MatMul": lambda n: f"definition::matmul(call, {n[0]}, {n[1]})",
    "Pad": _pad,
    "Range": lambda n: f"definition::range({n.item(0)}, {n.item(1)}, {n.item(2)})",
    **dict.fromkeys(_REDUCTIONS, _reduce),
    "Reshape": lambda n: f"definition::reshape(call, {n[0]}, {n.dims(1)}, {n.flag('allowzero')})",
    "Shape": _shape,
    "Size": lambda n: f"definition::scalar({n[0]}.size())",
    "Slice": _slice,
    "Squeeze": lambda n: f"{n[0]}.view(definition::squeezed({n[0]}, {n.dims(1)}))",
    "Tile": lambda n: f"definition::tile(call, {n[0]}, {n.dims(1)})",
    "Transpose": lambda n: (
        f"{n[0]}.view(definition::transposed({n[0]}, {_braces(n.fixed('perm') or ())}))"
    ),
    "Unsqueeze": lambda n: f"{n[0]}.view(definition::unsqueezed({n[0]}, {n.dims(1)}))",
}
_OF_INTEGER_RESULT = ("ArgMax", "ArgMin", "Shape", "Size")


class _Writer:
    """Writes the statements of a definition."""

    def __init__(self, op: OpInfo) -> None:
        self._op = op
        self._lines: list[str] = []
        self._taken = {"call"}
        self._numbers: dict[tuple[str, str], str] = {}  # variables of attributes, by code and kind
        self._has_integers = any("int" in each for each in op.dtypes)
        self._has_floats = any("float" in each for each in op.dtypes)

    def body(self) -> list[str]:
        """The statements."""
        op = self._op
        body = parsed(op)
        attributes = {
            each.name: _Value("float", f"call.real({i})", is_number=True, name=each.name)
            if each.onnx_type == "float"
            else _Value("int64", f"call.integer({i})", is_number=True, name=each.name)
            for i, each in enumerate(op.attributes)
        }
        scope: _Scope = {}
        for i in range(len(op.inputs)):
            self._read(i, scope)
        self._evaluate(body, scope, attributes)
        for i, (name, parameter) in enumerate(zip(body.output, op.outputs, strict=True)):
            if (value := scope.get(name)) is None:
                raise ValueError(f"{op.name}: the definition has no value {name}")
            wanted = "T" if parameter.dtype == "T" else "int64"
            if value.kind != wanted:
                raise ValueError(f"{op.name}: the output {name} is {value.kind}, not {wanted}")
            self._lines.append(f"definition::write(call, {i}, {self.array(value)});")
        return self._lines

    def _read(self, i: int, scope: _Scope) -> None:
        """Reads an input. The value of an absent one is computed as in a model."""
        op, parameter = self._op, self._op.inputs[i]
        kind = "T" if parameter.dtype == "T" else "int64"
        overwritten = ", true" if op.overwritten == i else ""
        code = f"definition::read<{_CPP[kind]}>(call, {i}{overwritten})"
        absent = parameter.optional and parameter.stand_in is None
        given = {each.name: each.name for each in op.inputs if each is not parameter}
        nodes = write_out(op, given, self._new) if absent else []
        if nodes:
            outer, self._lines = self._lines, []
            inner = dict(scope)
            for node in nodes:
                self._node(node, inner, {}, collections.Counter())
            value = inner[nodes[-1].output[0]]
            assert value is not None
            self._lines.append(f"return {self.array(value)};")
            lines, self._lines = _indented(self._lines), outer
            code = f"call.inputs[{i}].present ? {code} : [&] {{\n{lines}\n}}()"
        value = self._declared(kind, parameter.name, code)
        value.may_be_absent = absent and not nodes
        scope[parameter.name] = value

    def _evaluate(
        self,
        body: onnx.FunctionProto,
        scope: _Scope,
        attributes: Mapping[str, Any],
        is_inner: bool = False,
    ) -> None:
        """Adds the values of a function's nodes to `scope`, which has those of its inputs."""
        uses = collections.Counter(name for node in body.node for name in node.input)
        uses.update(body.output)
        for node in body.node:
            try:
                self._node(node, scope, attributes, uses)
            except ValueError as error:
                if is_inner:
                    raise
                where = f"{place(self._op, node)}: {node.op_type}"
                raise ValueError(f"{where} cannot be evaluated on the CPU: {error}") from None

    def _node(
        self,
        node: onnx.NodeProto,
        scope: _Scope,
        attributes: Mapping[str, Any],
        uses: collections.Counter[str],
    ) -> None:
        if node.domain or not onnx.defs.has(node.op_type, OPSET, ""):
            raise ValueError("it is not an operator of ONNX")
        given: dict[str, Any] = dict(defaults(node.op_type))
        for each in node.attribute:
            name = each.ref_attr_name
            if name and name not in attributes:
                raise ValueError(f"there is no attribute {name}")
            given[each.name] = attributes[name] if name else onnx.helper.get_attribute_value(each)
        if undefined := [name for name in node.input if name and name not in scope]:
            raise ValueError(f"{undefined[0]} is not defined")
        values = [scope[name] if name else None for name in node.input]
        results = self._results(_Node(self, node.op_type, values, given, list(node.output)))
        for name, value in zip(node.output, results, strict=False):
            if value.expression and value.is_heavy and uses[name] > 1:
                self.array(value)
            scope[name] = value

    def _results(self, n: _Node) -> Sequence[_Value]:
        """The outputs of a node."""
        self._check(n)
        name, op_type = n.names[0], n.op_type
        if op_type == "Constant":
            return [self._constant(n)]
        if op_type == "ConstantOfShape":
            number = _literal(n.attributes.get("value", np.zeros(1, np.float32)))
            code = _number(number.kind, np.asarray(number.literal).item())
            return [self._declared(number.kind, name, f"definition::full({n.dims(0)}, {code})")]
        if op_type in bodies():
            return self._expanded(n)
        if op_type == "Gemm":
            return [self._gemm(n)]
        if (
            op_type in ("Cast", "CastLike", "Identity")
            or op_type in _IN_PAIRS
            or (op_type in OPERATORS)
        ):
            return [self._elementwise(n)]
        if op_type == "Split":
            count = n.integer("num_outputs", f"{len(n.names)}")
            code = f"definition::split({n[0]}, {n.integer('axis')}, {n.dims(1)}, {count})"
            parts = self._declared(self._kind(n), "parts", code).code
            return [
                self._declared(self._kind(n), each, f"{parts}[{i}]")
                for i, each in enumerate(n.names)
            ]
        if op_type == "TopK":
            largest = "true" if n.fixed("largest") else "false"
            arguments = f"{n[0]}, {n.item(1)}, {n.integer('axis')}"
            code = f"definition::top_k<{largest}>(call, {arguments})"
            pair = self._declared(self._kind(n), "top", code).code
            members = {"first": self._kind(n), "second": "int64"}
            return [
                self._declared(kind, each, f"{pair}.{member}")
                for each, (member, kind) in zip(n.names, members.items(), strict=True)
            ]
        if op_type not in _CALLS:
            raise ValueError("it has no C++")
        kind = "int64" if op_type in _OF_INTEGER_RESULT else self._kind(n)
        return [self._declared(kind, name, _CALLS[op_type](n))]

    def _kind(self, n: _Node) -> str:
        value = n.values[0]
        assert value is not None
        return value.kind

    def _check(self, n: _Node) -> None:
        """Raises ValueError for operands that the operator does not have."""
        schema = onnx.defs.get_schema(n.op_type, OPSET, "")
        required = n.values[: schema.min_input]
        if not schema.min_input <= len(n.values) <= schema.max_input or None in required:
            raise ValueError("another number of operands")
        variable = ["tensor(float)"] * self._has_floats + ["tensor(int64)"] * self._has_integers
        for i, value in enumerate(n.values):
            types = schema.inputs[min(i, len(schema.inputs) - 1)].types
            for each in variable if value and value.kind == "T" else []:
                if each not in types:
                    raise ValueError(f"operand {i + 1} must not be {each}")
            if value and value.kind != "T" and f"tensor({value.kind})" not in types:
                raise ValueError(f"operand {i + 1} must not be {value.kind}")

    # Values as C++

    def _new(self, wanted: str) -> str:
        """A name for a variable."""
        name = base = identifier(re.sub(r"\W", "_", wanted) or "unused")
        count = 1
        while name in self._taken:
            count += 1
            name = f"{base}{count}"
        self._taken.add(name)
        return name

    def _declared(self, kind: str, name: str, code: str) -> _Value:
        """A new variable."""
        variable = self._new(name)
        self._lines.append(f"const auto {variable} = {code};")
        return _Value(kind, variable)

    def array(self, value: _Value) -> str:
        """The variable of an array."""
        if value.expression:
            parameters = ", ".join(f"{kind} {name}" for name, kind in value.operands.items())
            steps = _indented((*value.steps, f"return {value.expression};"))
            self._lines.append(
                f"const auto {value.code} = definition::map<{_CPP[value.kind]}>(call, "
                f"[=]({parameters}) {{\n{steps}\n}}, {', '.join(value.operands)});"
            )
            value.expression = ""
        elif value.is_number or value.literal is not None:
            if not value.constant:
                value.constant = self._declared(value.kind, "constant", self._array(value)).code
            return value.constant
        elif value.may_be_absent:
            code = f"definition::required({value.code}, {json.dumps(value.code)})"
            value.code = self._declared(value.kind, value.code, code).code
            value.may_be_absent = False
        return value.code

    def _array(self, value: _Value) -> str:
        """A number or a constant as an array."""
        if value.literal is None or value.literal.ndim == 0:
            return f"definition::scalar({self.scalar(value, value.kind)})"
        numbers = ", ".join(_number(value.kind, each) for each in value.literal.ravel().tolist())
        shape = _braces(value.literal.shape)
        return f"definition::constant<{_CPP[value.kind]}>({shape}, {{{numbers}}})"

    def scalar(self, value: _Value, kind: str) -> str:
        """A number as C++, converted to a kind."""
        if value.literal is not None:
            return _number(kind, value.literal.item())
        if value.kind == kind and re.fullmatch(r"\w+", value.code):
            return value.code
        if (value.code, kind) not in self._numbers:
            code = f"definition::convert<{_CPP[kind]}>({value.code})"
            self._numbers[value.code, kind] = self._declared(
                kind, value.name or "number", code
            ).code
        return self._numbers[value.code, kind]

    def _or(self, value: _Value | None, number: float, kind: str) -> _Value:
        """The value, or a number where it is absent."""
        if value is None:
            return _Value(kind, literal=np.array(number))
        if not value.may_be_absent:
            return value
        code = f"definition::value_or({value.code}, {_number(kind, number)})"
        return self._declared(kind, value.code, code)

    # Operators

    def _constant(self, n: _Node) -> _Value:
        ((name, value),) = n.attributes.items()
        if isinstance(value, _Value):
            return dataclasses.replace(value)
        if name == "value":
            return _literal(value)
        kinds = {"value_float": np.float64, "value_int": np.int64}
        if (kind := kinds.get(name.rstrip("s"))) is None:
            raise ValueError(f"its attribute {name} is not of numbers")
        kind_name = "float" if kind is np.float64 else "int64"
        return _Value(kind_name, literal=np.array(value, kind))

    def _expanded(self, n: _Node) -> Sequence[_Value]:
        """The outputs of an operator that is a function of others."""
        body = bodies()[n.op_type]
        scope: _Scope = {}
        for i, name in enumerate(body.input):
            value = n.value(i)
            if (n.op_type, name) in ABSENT:
                number = ABSENT[n.op_type, name]
                value = self._or(value, number, "T" if isinstance(number, float) else "int64")
            if value is not None and value.expression:
                self.array(value)
            scope[name] = value
        self._evaluate(body, scope, n.attributes, is_inner=True)
        return [value for name in body.output if (value := scope[name])]

    def _gemm(self, n: _Node) -> _Value:
        factors = []
        for i, name in enumerate(("transA", "transB")):
            turned = f".view(definition::transposed({n[i]}, {{}}))" if n.fixed(name) else ""
            factors.append(n[i] + turned)
        kind = self._kind(n)
        code = f"definition::matmul(call, {', '.join(factors)})"
        result = self._declared(kind, n.names[0], code)
        result = self._scaled(result, n.attributes["alpha"])
        if (bias := n.value(2)) is None:
            return result
        bias = self._scaled(self._or(bias, 0.0, kind), n.attributes["beta"])
        return self._expression("{0} + {1}", kind, [result, bias], kind, n.names[0])

    def _scaled(self, value: _Value, factor: Any) -> _Value:
        if factor == 1:
            return value
        if not isinstance(factor, _Value):
            factor = _Value("float", literal=np.array(factor))
        return self._expression("{0} * {1}", value.kind, [factor, value], value.kind, "scaled")

    def _elementwise(self, n: _Node) -> _Value:
        name, op_type = n.names[0], n.op_type
        values = [each for each in n.values if each is not None]
        x = values[0]
        if op_type == "Identity":
            return x
        if op_type in ("Cast", "CastLike"):
            to = (values[1].kind, "") if op_type == "CastLike" else _KINDS.get(n.fixed("to"))
            if to is None:
                raise ValueError(f"to {onnx.TensorProto.DataType.Name(n.fixed('to'))}")
            return self._cast(x, *to, name)
        if op_type in _IN_PAIRS:
            pairwise = dataclasses.replace(n, op_type=_IN_PAIRS[op_type])
            for each in values[1:]:
                x = self._operator(pairwise, [x, each])
            if op_type != "Mean":
                return x
            count = _Value("float", literal=np.array(float(len(values))))
            return self._operator(dataclasses.replace(n, op_type="Div"), [x, count])
        if op_type == "Clip":
            low, high = (
                self._or(n.value(i), sign * np.inf, x.kind) for i, sign in ((1, -1), (2, 1))
            )
            return self._operator(n, [x, low, high])
        return self._operator(n, values)

    def _cast(self, x: _Value, kind: str, through: str, name: str) -> _Value:
        if x.kind == kind and not through:
            return x
        if x.literal is not None and not through:
            to = {"int64": np.int64, "bool": np.bool_}.get(kind, np.float64)
            return _Value(kind, literal=x.literal.astype(to))
        if x.is_number and not through and kind in ("T", "float", "double"):
            return dataclasses.replace(x, kind=kind)
        inner = f"definition::convert<{through}>({{0}})" if through else "{0}"
        return self._expression(
            f"definition::convert<{_CPP[kind]}>({inner})", kind, [x], x.kind, name
        )

    def _operator(self, n: _Node, values: list[_Value]) -> _Value:
        """An operator of OPERATORS."""
        operator = OPERATORS[n.op_type]
        first = 1 if operator.operands == "where" else 0
        # Constants take the kind of the other operands.
        firm = [v.kind for v in values[first:] if not (v.is_scalar and v.kind in _REAL)]
        kind = (firm or [values[first].kind])[0]
        if n.op_type == "Pow":
            values[1] = self._cast(values[1], kind, "", "exponent")
        for i, value in enumerate(values[first:], first):
            if value.kind != kind and not (value.is_scalar and {value.kind, kind} <= _REAL):
                raise ValueError(f"operand {i + 1} is {value.kind}, but must be {kind}")
        code = operator.code
        attributes = {
            name: self.scalar(each, kind) if isinstance(each, _Value) else _number(kind, each)
            for name, each in n.attributes.items()
            if isinstance(each, _Value | float | int)
        }
        if kind == "int64" or (kind == "T" and self._has_integers):
            code = _OF_INTEGERS.get(n.op_type, code)
        if n.op_type == "Mod" and n.fixed("fmod"):
            code = operator.code
        elif n.op_type == "Mod" and kind in _REAL and not self._has_integers:
            raise ValueError("it needs fmod = 1 for floating-point numbers")
        if n.op_type == "Clip":
            code = "onnx::clip({0}, {1}, {2})"
        if n.op_type == "Pow" and (literal := values[1].literal) is not None and literal.ndim == 0:
            if literal.item() in range(1, 17):
                code = f"onnx::power<{int(literal.item())}>({{0}})"
            elif literal.item() == 0.5:
                code = "onnx::sqrt({0})"
        for attribute, text in attributes.items():
            code = code.replace(f"{{{attribute}}}", text)
        result = "bool" if operator.result == "bool" else kind
        value = self._expression(code, result, values, kind, n.names[0])
        value.is_heavy |= operator.heavy
        return value

    def _expression(
        self, code: str, kind: str, values: Sequence[_Value], number_kind: str, name: str
    ) -> _Value:
        """An expression of `values`, {0}, {1} and so on in its code.

        An operand that is an expression becomes a part of it, unless its elements would be computed
        several times at some cost.
        """
        for value in values:
            if not value.expression and not value.is_scalar:
                self.array(value)
        operands: dict[str, str] = {}
        for value in values:
            if not value.is_scalar:
                operands |= value.operands if value.expression else {value.code: _CPP[value.kind]}
        for value in values:
            repeats = value.is_heavy and len(value.operands) < len(operands)
            if value.expression and (repeats or len(operands) > _MAX_OPERANDS):
                self.array(value)
        operands, steps, tokens = {}, {}, []
        for value in values:
            if value.is_scalar:
                wanted = value.kind if value.kind == "bool" else number_kind
                tokens.append(self.scalar(value, wanted))
                continue
            tokens.append(value.code)
            if not value.expression:
                operands[value.code] = _CPP[value.kind]
                continue
            operands |= value.operands
            step = f"const {_CPP[value.kind]} {value.code} = {value.expression};"
            steps |= dict.fromkeys((*value.steps, step))
        expression = code.format(*tokens)
        variable = self._new(name)
        if all(value.is_scalar for value in values):
            self._lines.append(f"const {_CPP[kind]} {variable} = {expression};")
            return _Value(kind, variable, is_number=True)
        heavy = any(value.is_heavy and value.expression for value in values)
        return _Value(
            kind,
            variable,
            expression=expression,
            steps=tuple(steps),
            operands=operands,
            is_heavy=heavy,
        )


_REAL = {"T", "float", "double"}


def _literal(value: Any) -> _Value:
    """A constant."""
    array = onnx.numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else value
    kind = _KINDS.get(onnx.helper.np_dtype_to_tensor_dtype(array.dtype))
    if kind is None:
        raise ValueError(f"a constant of {array.dtype}")
    to = {"int64": np.int64, "bool": np.bool_}.get(kind[0], np.float64)
    return _Value(kind[0], literal=array.astype(to))
