"""The CPU kernel of an op as C++ that evaluates the op's definition, node by node."""

from __future__ import annotations

import collections
import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx.defs
import onnx.helper
import onnx.numpy_helper

from .._onnx.absent_inputs import add_default_inputs
from .._onnx.definitions import OPSET, defaults_of, parsed
from .._onnx.graphs import NewNames
from .._table import OpInfo, Parameter
from .expansions import ABSENT, bodies
from .operators import OPERATORS, clip_code, power_code
from .reading import PAIRWISE, line_of
from .statements import (
    CPP,
    REAL,
    Constant,
    Number,
    Statements,
    Value,
    braces,
    indented,
    is_number,
    is_open,
    number,
)

_KINDS = {  # of ONNX's types, and the type that a cast goes through
    onnx.TensorProto.FLOAT: ("float", ""),
    onnx.TensorProto.DOUBLE: ("double", ""),
    onnx.TensorProto.BOOL: ("bool", ""),
    onnx.TensorProto.INT64: ("int64", ""),
    onnx.TensorProto.INT32: ("int64", "std::int32_t"),
    onnx.TensorProto.INT8: ("int64", "std::int8_t"),
    onnx.TensorProto.UINT8: ("int64", "std::uint8_t"),
}

_KINDS_OF_DTYPES = {"T": "T", "float32": "float", "int32": "int64", "int64": "int64"}


def _kind_of(op: OpInfo, parameter: Parameter) -> str:
    if parameter.has_dtypes or parameter.dtype not in _KINDS_OF_DTYPES:
        raise ValueError(
            f"{op.name}: {parameter.name} is {parameter.dtype_text}, but a definition is evaluated "
            "on the CPU for T, float32, int32 and int64: write a kernel in C++"
        )
    return _KINDS_OF_DTYPES[parameter.dtype]


# The C++ of operators for integers, which wrap around.
_OF_INTEGERS = {
    name: f"definition::{name.lower()}({{0}}, {{1}})"
    for name in ("Add", "Sub", "Mul", "Div", "Mod")
}

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
    variable = next(
        f"call.{group}[{i}].dtype"
        for group, parameters in (("inputs", op.inputs), ("outputs", op.outputs))
        for i, each in enumerate(parameters)
        if each.dtype == "T" and not each.optional
    )
    return f"""// The definition of {op.name}, evaluated node by node.
#include {json.dumps(header)}

#include "cudarelu/detail/cpu/definition.h"

namespace {op.namespace} {{
namespace {{

namespace definition = cudarelu::definition;
namespace onnx = cudarelu::onnx;

template <class T>
void evaluate_{op.name}(const cudarelu::Call& call) {{
{indented(_Evaluation(op).statements())}
}}

}}  // namespace

cudarelu::Status {op.onnx.op_type}::cpu(const cudarelu::Call& call) {{
  return definition::evaluate<spec.dtypes>(
      call, {variable}, [&]<class T>(cudarelu::TypeTag<T>) {{ evaluate_{op.name}<T>(call); }});
}}

}}  // namespace {op.namespace}
"""


_Scope = dict[str, Value | None]


@dataclasses.dataclass
class _Node:
    """A node whose operands and attributes are known."""

    out: Statements
    op_type: str
    values: list[Value | None]
    attributes: dict[str, Any]  # numbers, tensors and so on; a Number for an attribute of the op
    outputs: list[str]

    def value(self, i: int) -> Value | None:
        return self.values[i] if i < len(self.values) else None

    def __getitem__(self, i: int) -> str:
        """The variable of an operand that is an array."""
        value = self.value(i)
        assert value is not None
        return self.out.array(value)

    @property
    def kind(self) -> str:
        """That of the first operand."""
        assert self.values[0] is not None
        return self.values[0].kind

    def dims(self, i: int) -> str:
        """An operand of integers, as definition::Dims; empty if it is absent."""
        value = self.value(i)
        if value is None:
            return "{}"
        if isinstance(value, Constant):
            return braces(value.value.ravel().tolist())
        if is_number(value):
            return f"{{{self.out.number(value, 'int64')}}}"
        return f"definition::integers({self[i]})"

    def item(self, i: int) -> str:
        """An operand that is a number."""
        value = self.value(i)
        assert value is not None
        if is_number(value):
            return self.out.number(value, value.kind)
        return f"definition::item({self[i]})"

    def integer(self, name: str, default: str = "") -> str:
        value = self.attributes.get(name, default)
        if value == "":
            raise ValueError(f"it needs the attribute {name}")
        return self.out.number(value, "int64") if isinstance(value, Number) else f"{value}"

    def flag(self, name: str) -> str:
        """An attribute that is 0 or 1."""
        value = self.integer(name, "0")
        return {"0": "false", "1": "true"}.get(value, f"{value} != 0")

    def fixed(self, name: str) -> Any:
        """An attribute that must not be an attribute of the op."""
        if isinstance(value := self.attributes.get(name), Number):
            raise ValueError(f"its attribute {name} must be a constant")
        return value


def _arg(n: _Node) -> str:
    if n.fixed("select_last_index"):
        raise ValueError("it needs select_last_index = 0")
    largest = "true" if n.op_type == "ArgMax" else "false"
    first = f"definition::top_k<{largest}>(call, {n[0]}, 1, {n.integer('axis')}).second"
    if n.fixed("keepdims"):
        return first
    first = n.out.declare("int64", "first", first).variable
    return f"{first}.view(definition::squeezed({first}, {{{n.integer('axis')}}}))"


def _concat(n: _Node) -> str:
    parts = ", ".join(n[i] for i in range(len(n.values)))
    return f"definition::concat(call, {n.integer('axis')}, std::vector{{{parts}}})"


def _expand(n: _Node) -> str:
    shape = f"definition::broadcast_shape({n[0]}.shape, {n.dims(1)})"
    return f"{n[0]}.view(definition::broadcast({n[0]}, {shape}))"


def _pad(n: _Node) -> str:
    if n.fixed("mode") != b"constant":
        raise ValueError("it needs mode = constant")
    value = n.item(2) if n.value(2) else f"{CPP[n.kind]}(0)"
    return f"definition::pad(call, {n[0]}, {n.dims(1)}, {value}, {n.dims(3)})"


def _reduce(n: _Node) -> str:
    kind = f"definition::Reduction::{_REDUCTIONS[n.op_type]}"
    flags = f"{n.flag('noop_with_empty_axes')}, {n.flag('keepdims')}"
    return f"definition::reduce<{kind}>(call, {n[0]}, {n.dims(1)}, {flags})"


def _shape(n: _Node) -> str:
    end = n.integer("end", "std::numeric_limits<std::int64_t>::max()")
    return f"definition::shape({n[0]}, {n.integer('start', '0')}, {end})"


def _slice(n: _Node) -> str:
    bounds = ", ".join(n.dims(i) for i in range(1, 5))
    return f"{n[0]}.view(definition::sliced({n[0]}, {bounds}))"


# C++ of the output, which has the kind of the first operand.
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
        f"{n[0]}.view(definition::transposed({n[0]}, {braces(n.fixed('perm') or ())}))"
    ),
    "Unsqueeze": lambda n: f"{n[0]}.view(definition::unsqueezed({n[0]}, {n.dims(1)}))",
}
_OF_INTEGER_RESULT = ("ArgMax", "ArgMin", "Shape", "Size")


class _Evaluation:
    """Writes the statements of a definition."""

    def __init__(self, op: OpInfo) -> None:
        self._op = op
        self._out = Statements()
        self._types = {f"tensor({'int64' if 'int' in each else 'float'})" for each in op.dtypes}

    def statements(self) -> list[str]:
        op, body = self._op, parsed(self._op)
        scope: _Scope = {}
        for i in range(len(op.inputs)):
            self._read(i, scope)
        attributes = {
            each.name: Number("float", f"call.real({i})", each.name)
            if each.onnx_type == "float"
            else Number("int64", f"call.integer({i})", each.name)
            for i, each in enumerate(op.attributes)
        }
        uses = _uses(body)
        for node in body.node:
            try:
                self._evaluate(node, scope, attributes, uses)
            except ValueError as error:
                where = f"{line_of(op, node)}: {node.op_type}"
                raise ValueError(f"{where} cannot be evaluated on the CPU: {error}") from None
        for i, parameter in enumerate(op.outputs):
            if (value := scope.get(parameter.name)) is None:
                raise ValueError(f"{op.name}: the definition has no value {parameter.name}")
            wanted = _kind_of(op, parameter)
            if value.kind != wanted:
                raise ValueError(
                    f"{op.name}: {parameter.name} is {value.kind} in the definition, not {wanted}"
                )
            self._out.write(i, value)
        return self._out.lines

    def _read(self, i: int, scope: _Scope) -> None:
        """Reads an input. The value of an absent one is computed as in a model."""
        op, parameter = self._op, self._op.inputs[i]
        kind = _kind_of(op, parameter)
        overwritten = ", true" if op.overwritten == i else ""
        code = f"definition::read<{CPP[kind]}>(call, {i}{overwritten})"
        given = {each.name: each.name for each in op.inputs if each is not parameter}
        may_be_absent = not parameter.required
        nodes = add_default_inputs(op, given, NewNames(given)) if may_be_absent else []
        if nodes:
            with self._out.block() as lines:
                inner = dict(scope)
                for node in nodes:
                    self._evaluate(node, inner, {}, collections.Counter())
                value = inner[nodes[-1].output[0]]
                assert value is not None
                lines.append(f"return {self._out.array(value)};")
            code = f"call.inputs[{i}].present ? {code} : [&] {{\n{indented(lines)}\n}}()"
        result = self._out.declare(kind, parameter.name, code)
        result.may_be_absent = may_be_absent and not nodes
        scope[parameter.name] = result

    def _evaluate(
        self,
        node: onnx.NodeProto,
        scope: _Scope,
        attributes: Mapping[str, Any],
        uses: collections.Counter[str],
    ) -> None:
        """Adds the outputs of a node to `scope`."""
        if node.domain or not onnx.defs.has(node.op_type, OPSET, ""):
            raise ValueError("it is not an operator of ONNX")
        given = dict(defaults_of(node.op_type))
        for each in node.attribute:
            name = each.ref_attr_name
            given[each.name] = attributes[name] if name else onnx.helper.get_attribute_value(each)
        if undefined := [name for name in node.input if name and name not in scope]:
            raise ValueError(f"{undefined[0]} is not defined")
        values = [scope[name] if name else None for name in node.input]
        n = _Node(self._out, node.op_type, values, given, list(node.output))
        self._check(n)
        for name, value in zip(node.output, self._outputs(n), strict=False):
            if is_open(value) and value.is_heavy and uses[name] > 1:
                self._out.array(value)
            scope[name] = value

    def _check(self, n: _Node) -> None:
        """Raises ValueError for operands that the operator does not have."""
        schema = onnx.defs.get_schema(n.op_type, OPSET, "")
        required = n.values[: schema.min_input]
        if not schema.min_input <= len(n.values) <= schema.max_input or None in required:
            raise ValueError("it has another number of operands")
        for i, value in enumerate(n.values):
            parameter = schema.inputs[min(i, len(schema.inputs) - 1)]
            if value is not None:
                types = self._types if value.kind == "T" else {f"tensor({value.kind})"}
                if wrong := types - set(parameter.types):
                    raise ValueError(f"operand {i + 1} must not be a {min(wrong)}")

    def _outputs(self, n: _Node) -> Sequence[Value]:
        out, op_type, kind = self._out, n.op_type, n.kind if n.values else ""
        if op_type == "Constant":
            return [_constant(n)]
        if op_type == "Identity":
            return [value for value in n.values if value]
        if op_type in ("Cast", "CastLike"):
            return [self._cast(n)]
        if op_type in PAIRWISE:
            return [self._pairwise(n)]
        if op_type in OPERATORS:
            return [self._operator(n, n.op_type, [value for value in n.values if value])]
        if op_type in bodies():
            return self._expanded(n)
        if op_type == "Gemm":
            return [self._gemm(n)]
        if op_type == "ConstantOfShape":
            element = _literal(n.attributes.get("value", np.zeros(1, np.float32)))
            code = number(element.kind, element.value.item())
            code = f"definition::full({n.dims(0)}, {code})"
            return [out.declare(element.kind, n.outputs[0], code)]
        if op_type == "Split":
            count = n.integer("num_outputs", f"{len(n.outputs)}")
            code = f"definition::split({n[0]}, {n.integer('axis')}, {n.dims(1)}, {count})"
            parts = out.declare(kind, "parts", code).variable
            return [out.declare(kind, name, f"{parts}[{i}]") for i, name in enumerate(n.outputs)]
        if op_type == "TopK":
            largest = "true" if n.fixed("largest") else "false"
            code = f"call, {n[0]}, {n.item(1)}, {n.integer('axis')}"
            both = out.declare(kind, "top", f"definition::top_k<{largest}>({code})").variable
            values = out.declare(kind, n.outputs[0], f"{both}.first")
            return [values, out.declare("int64", n.outputs[-1], f"{both}.second")]
        if op_type not in _CALLS:
            raise ValueError("no C++ for this operator")
        code = _CALLS[op_type](n)
        return [out.declare("int64" if op_type in _OF_INTEGER_RESULT else kind, n.outputs[0], code)]

    def _expanded(self, n: _Node) -> Sequence[Value]:
        """The outputs of an operator that is a function of others."""
        body = bodies()[n.op_type]
        scope: _Scope = {}
        for i, name in enumerate(body.input):
            value = n.value(i)
            if (default := ABSENT.get((n.op_type, name))) is not None:
                kind = "int64" if isinstance(default, int) else n.kind
                value = self._out.value_or(value, default, kind)
            scope[name] = value
        uses = _uses(body)
        for node in body.node:
            self._evaluate(node, scope, n.attributes, uses)
        return [value for name in body.output if (value := scope[name])]

    def _gemm(self, n: _Node) -> Value:
        def scaled(value: Value, name: str) -> Value:
            factor = n.attributes[name]
            if factor == 1:
                return value
            if not isinstance(factor, Number):
                factor = Constant("float", np.array(factor))
            return self._out.expression("scaled", n.kind, "{0} * {1}", [factor, value], n.kind)

        factors = [
            n[i] + f".view(definition::transposed({n[i]}, {{}}))" * bool(n.fixed(name))
            for i, name in enumerate(("transA", "transB"))
        ]
        code = f"definition::matmul(call, {', '.join(factors)})"
        product = scaled(self._out.declare(n.kind, n.outputs[0], code), "alpha")
        if n.value(2) is None:
            return product
        bias = scaled(self._out.value_or(n.value(2), 0.0, n.kind), "beta")
        return self._out.expression(n.outputs[0], n.kind, "{0} + {1}", [product, bias], n.kind)

    def _cast(self, n: _Node) -> Value:
        if n.op_type == "Cast":
            if not isinstance(n.fixed("to"), int):
                raise ValueError("it needs the attribute to, the number of a dtype")
            to = _KINDS.get(n.fixed("to"))
            if to is None:
                raise ValueError(f"to {onnx.TensorProto.DataType.Name(n.fixed('to'))}")
        else:
            assert n.values[1] is not None
            to = (n.values[1].kind, "")
        assert n.values[0] is not None
        return self._converted(n.values[0], *to, n.outputs[0])

    def _converted(self, x: Value, kind: str, through: str, name: str) -> Value:
        if not through:
            if x.kind == kind:
                return x
            if isinstance(x, Constant):
                return Constant(kind, x.value.astype(_DTYPES.get(kind, np.float64)))
            if isinstance(x, Number) and {x.kind, kind} <= REAL:  # an attribute is not rounded
                return Number(kind, x.code, x.name)
        code = f"definition::convert<{through}>({{0}})" if through else "{0}"
        code = f"definition::convert<{CPP[kind]}>({code})"
        return self._out.expression(name, kind, code, [x], x.kind)

    def _pairwise(self, n: _Node) -> Value:
        """Max, Min, Sum and Mean."""
        values = [value for value in n.values if value]
        result = values[0]
        for value in values[1:]:
            result = self._operator(n, PAIRWISE[n.op_type], [result, value])
        if n.op_type != "Mean":
            return result
        count = Constant("float", np.array(float(len(values))))
        return self._operator(n, "Div", [result, count])

    def _operator(self, n: _Node, op_type: str, values: list[Value]) -> Value:
        """An operator of OPERATORS. Constants take the kind of the other operands."""
        operator = OPERATORS[op_type]
        alike = values[1:] if operator.operands == "where" else values
        kinds = [each.kind for each in alike if not (is_number(each) and each.kind in REAL)]
        kind = (kinds or [alike[0].kind])[0]
        if op_type == "Pow":
            values[1] = alike[1] = self._converted(values[1], kind, "", "exponent")
        for each in alike:
            if each.kind != kind and not (is_number(each) and {each.kind, kind} <= REAL):
                raise ValueError(f"its operands are {kind} and {each.kind}")
        is_integer = kind == "int64" or (kind == "T" and "tensor(int64)" in self._types)
        code = _OF_INTEGERS.get(op_type, operator.code) if is_integer else operator.code
        if op_type == "Clip":
            bounds = iter(("{1}", "{2}"))  # the operands that are there
            code = clip_code("{0}", *(next(bounds) if n.value(i) else None for i in (1, 2)))
        elif op_type == "Mod" and bool(n.fixed("fmod")) == is_integer:
            raise ValueError("it needs fmod = 1 for floating-point numbers, and only for these")
        elif op_type == "Pow" and isinstance(values[1], Constant) and is_number(values[1]):
            code = power_code("{0}", values[1].value.item()) or code
        for name, each in n.attributes.items():
            if f"{{{name}}}" in code:
                value = each if isinstance(each, Number) else Constant(kind, np.array(each))
                code = code.replace(f"{{{name}}}", self._out.number(value, kind))
        result = "bool" if operator.result == "bool" else kind
        return self._out.expression(n.outputs[0], result, code, values, kind, operator.heavy)


_DTYPES = {"int64": np.int64, "bool": np.bool_}  # of constants; the others are float64


def _uses(body: onnx.FunctionProto) -> collections.Counter[str]:
    """How often each value is used."""
    return collections.Counter([*(name for node in body.node for name in node.input), *body.output])


def _constant(n: _Node) -> Value:
    if len(n.attributes) != 1:
        raise ValueError("it needs one attribute, its value")
    ((name, value),) = n.attributes.items()
    if isinstance(value, Number):
        return Number(value.kind, value.code, value.name)
    if name == "value":
        return _literal(value)
    kinds = {"value_float": ("float", np.float64), "value_int": ("int64", np.int64)}
    if name.rstrip("s") not in kinds:
        raise ValueError(f"its attribute {name} is not of numbers")
    kind, dtype = kinds[name.rstrip("s")]
    return Constant(kind, np.array(value, dtype))


def _literal(value: Any) -> Constant:
    array = onnx.numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else value
    kind = _KINDS.get(onnx.helper.np_dtype_to_tensor_dtype(array.dtype))
    if kind is None:
        raise ValueError(f"a constant of {array.dtype}")
    return Constant(kind[0], array.astype(_DTYPES.get(kind[0], np.float64)))
