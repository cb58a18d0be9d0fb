"""The declarations of elementwise ops that are defined in Python, and of their gradients."""

from __future__ import annotations

import dataclasses
import itertools
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from cudarelu import _C

from .._onnx.definitions import OPSET, check_names
from .._onnx.expressions import Expression, Input
from .._table import FLOATING, Attribute, Dim, OnnxName, OpInfo, Parameter, parameter_of
from . import emit
from .expr import inputs_of, named_attributes, parts
from .gradients import from_output, gradients
from .symbolic import Value, where

_OF_MODULES = ("built_for", "name", "ops", "path")


@dataclasses.dataclass(frozen=True)
class Draft:
    """An op that is to be compiled."""

    op: OpInfo
    y: Expression  # the output as a function of inputs and attributes
    functor: str | None = None  # C++ in place of what `y` says


@dataclasses.dataclass(frozen=True)
class Functors:
    """Elementwise ops, as a header of a module."""

    drafts: Sequence[Draft]

    @property
    def ops(self) -> list[OpInfo]:
        return [each.op for each in self.drafts]

    def header(self, namespace: str) -> str:
        includes = ("cudarelu/elementwise.h", "cudarelu/onnx.h")
        return header(includes, namespace, map(_functor, self.drafts))

    def identity(self) -> str:
        """A text that changes with what the header does not say: nothing."""
        return ""

    def files(self, namespace: str, architectures: Sequence[str]) -> dict[str, str]:
        return {f"{self.ops[0].name}.h": self.header(namespace)}


def summary_of(meaning: str | Callable[..., Any]) -> str:
    """The first line of a function's docstring, if there is one."""
    docstring = "" if isinstance(meaning, str) else meaning.__doc__ or ""
    return docstring.strip().partition("\n")[0] or "As its definition computes it."


def read_signature(namespace: str, signature: str, dtypes: Sequence[str]) -> OpInfo:
    """The op of a signature, without a definition.

    Raises:
        ValueError: for a signature that cannot be parsed, for dtypes that are no list, and for a
            name that has another meaning in modules or in ONNX.
    """
    if isinstance(dtypes, str) or not dtypes:
        raise ValueError(f"dtypes must be a list of dtypes, not {dtypes!r}")
    fields = _C.read_signature(signature)
    op_type = "".join(word.capitalize() for word in fields["name"].split("_"))
    if fields["name"] in _OF_MODULES:
        raise ValueError(f"{fields['name']}: modules have an attribute of this name")
    op = OpInfo(
        namespace=namespace,
        name=fields["name"],
        signature=signature,
        summary="",
        inputs=tuple(map(parameter_of, fields["inputs"])),
        attributes=tuple(Attribute(**each) for each in fields["attributes"]),
        outputs=tuple(map(parameter_of, fields["outputs"])),
        variables=tuple(fields["variables"]),
        divisibilities=tuple(fields["divisibilities"]),
        dtypes=tuple(dtypes),
        devices=("cpu", "cuda"),
        elementwise=False,
        product=False,
        onnx=OnnxName(namespace, op_type, 1, None),
        definition="",
        definition_opset=OPSET,
        equivalent_forms="",
        gradient="",
        gradient_ops=(),
        autocast="promote",
        in_place="",
    )
    check_names(op)
    return op


def declared(namespace: str, signature: str, dtypes: Sequence[str], summary: str) -> OpInfo:
    """The declaration of an elementwise op without a definition.

    Raises:
        ValueError: for a signature that cannot be parsed, an op that is not elementwise, and a
            dtype that is not floating-point.
    """
    op = read_signature(namespace, signature, dtypes)
    op = dataclasses.replace(op, summary=summary, elementwise=True)
    if len(op.outputs) != 1:
        raise ValueError(f"{op.name}: an elementwise op has one output")
    if op.axes:
        raise ValueError(f"{op.name}: an elementwise op has no dimension `c @ {min(op.axes)}`")
    shape = op.outputs[0].dims
    rows = [shape[i:] for i in range(1, len(shape))] if shape[:1] == ("*",) else []
    # By rank and by number of last dimensions of 1: the first input that is such a row.
    ranks: dict[int, str] = {}
    spreads: dict[int, str] = {}
    for each in (*op.inputs, *op.outputs):
        if each.dtype != "T" or each.optional or each.positive or each.varies:
            raise ValueError(f"{op.name}: {each.name} must be a required T[...] without conditions")
        if each.dims == shape:
            continue
        ones = last_ones(each.dims)
        row = next((row for row in rows if len(row) == len(each.dims)), ())
        if not row or each.dims[: len(row) - ones] != row[: len(row) - ones]:
            allowed = " or ".join(map(_dims, (shape, *rows)))
            raise ValueError(
                f"{op.name}: {each.name} must be {allowed} to broadcast to the output; the last "
                "dimensions may be 1"
            )
        ranks.setdefault(len(row), each.name)
        if each.dims != row:
            spreads.setdefault(ones, each.name)
    for different, what in ((ranks, "dimensions"), (spreads, "last dimensions of 1")):
        if len(different) > 1:
            names = " and ".join(different.values())
            raise ValueError(f"{op.name}: {names} must have the same number of {what}")
    for attribute in op.attributes:
        if (attribute.type != "float" and not attribute.labels) or attribute.optional:
            raise ValueError(f"{op.name}: {attribute.name} must be a float or have labels")
    if unknown := set(dtypes) - set(FLOATING):
        raise ValueError(f"{op.name}: no dtype {min(unknown)}: there are {', '.join(FLOATING)}")
    if not any(each.dims == shape for each in op.inputs):
        raise ValueError(f"{op.name}: no input has the shape of the output, {_dims(shape)}")
    overwritten = next(each.name for each in op.inputs if each.dims == shape)
    return dataclasses.replace(op, in_place=f"{op.outputs[0].name} = {overwritten}")


def last_ones(dims: Sequence[Any]) -> int:
    """The number of last dimensions of 1."""
    return sum(1 for _ in itertools.takewhile(lambda dim: dim == 1, reversed(dims)))


def _dims(dims: Sequence[Dim]) -> str:
    return f"T[{', '.join(map(str, dims))}]"


def defined(op: OpInfo, y: Expression, functor: str | None = None) -> Draft:
    """The op with a definition that computes `y`."""
    labelled = {each.name for each in op.attributes if each.labels}
    inputs = [each.name for each in op.inputs]
    body = emit.definition_body(y, op.outputs[0].name, inputs, labelled)
    return Draft(dataclasses.replace(op, definition=body), y, functor)


def with_gradients(
    draft: Draft, orders: int, linear_in: str | None = None, above: tuple[str, ...] = ()
) -> list[Draft]:
    """The op with a gradient, and the ops that compute it: `orders` derivatives of them.

    The gradient in an input that is a row, T[c] for T[*, c], is summed over the rows.

    Args:
        draft: the op.
        orders: of derivatives.
        linear_in: an input in which the op is linear, so that the gradient in it is the op itself.
        above: the ops whose gradient it is, the one that is defined first.
    """
    op = draft.op
    if orders == 0:
        first, *more = *above, op.name
        advice = f"none: pass orders={len(more) + 1} to the definition of {first}"
        return [dataclasses.replace(draft, op=dataclasses.replace(op, gradient=advice))]
    (output,) = op.outputs
    seed = Parameter(f"grad_{output.name}", "T", (), None, output.dims)
    if seed.name in [each.name for each in op.inputs]:
        raise ValueError(f"{op.name}: {seed.name} is the name of the output's gradient")
    wanted = [each for each in op.inputs if each.name != linear_in]
    found = gradients(draft.y, Value(Input(seed.name)), [each.name for each in wanted])
    if not found and linear_in is None:  # zero almost everywhere, as for Round
        zero = where(Value(Input(seed.name)) == Value(Input(seed.name)), 0, 0)
        found = {wanted[0].name: zero.expression}
    formulas = {} if linear_in is None else {linear_in: _call(op, {linear_in: seed.name})}
    calls: dict[Expression, str] = {Input(seed.name): seed.name}  # by what they compute
    further: list[Draft] = []
    for each in wanted:
        if each.name not in found:
            continue
        value = from_output(found[each.name], draft.y, output.name)
        if value not in calls:
            suffix = "_backward" if len(found) == 1 else f"_backward_{each.name}"
            backward = _backward(op, op.name + suffix, seed, each.name, value)
            calls[value] = _call(backward.op, {})
            further += with_gradients(backward, orders - 1, seed.name, (*above, op.name))
        is_row = each.dims != output.dims
        if is_row and each.dims != output.dims[-1:]:
            raise ValueError(
                f"{op.name}: there is no gradient in {each.name}, {_dims(each.dims)}: "
                f"declare it as {_dims(output.dims)}, or the op with orders=0"
            )
        formulas[each.name] = f"cudarelu::sum_rows({calls[value]})" if is_row else calls[value]
    gradient = "; ".join(f"{name} = {formula}" for name, formula in formulas.items())
    return [dataclasses.replace(draft, op=dataclasses.replace(op, gradient=gradient)), *further]


def _parameters(op: OpInfo) -> list[str]:
    """The names of the inputs and then of the attributes."""
    return [*(each.name for each in op.inputs), *(each.name for each in op.attributes)]


def _call(op: OpInfo, renamed: Mapping[str, str]) -> str:
    """A call of the op with its own names, some of them replaced."""
    names = _parameters(op)
    return f"{op.name}({', '.join(renamed.get(name, name) for name in names)})"


def _backward(op: OpInfo, name: str, seed: Parameter, wanted: str, value: Expression) -> Draft:
    """The op that computes the gradient of `op` in the input `wanted`."""
    used, set_by = set(inputs_of(value)), set(named_attributes(value))
    known = (seed, *op.inputs, *op.outputs)
    inputs = [each for each in known if each.name in used]
    attributes = [each for each in op.attributes if each.name in set_by]
    parameters = [f"{each.name}: {_dims(each.dims)}" for each in inputs]
    parameters += ["*"] * bool(attributes) + [_attribute(each) for each in attributes]
    taken = {each.name for each in inputs}
    names = itertools.chain(
        [f"grad_{wanted}"], (f"{wanted}_grad{i or ''}" for i in itertools.count())
    )
    result = next(each for each in names if taken.isdisjoint({each, f"grad_{each}"}))
    signature = f"{name}({', '.join(parameters)}) -> {result}: {_dims(seed.dims)}"
    summary = f"The gradient of {op.name} in {wanted}."
    return defined(declared(op.namespace, signature, op.dtypes, summary), value)


def _attribute(attribute: Attribute) -> str:
    kind = " | ".join(attribute.labels) or "float"
    text = f"{attribute.name}: {kind}"
    if not attribute.required:
        default = attribute.default
        text += f" = {default}" if attribute.labels else f" = {float(default or 0)!r}"
    if attribute.lowest is not None or attribute.highest is not None:
        low = "-inf" if attribute.lowest is None else repr(attribute.lowest)
        high = "inf" if attribute.highest is None else repr(attribute.highest)
        text += f" in [{low}, {high}]"
    return text


def header(includes: Iterable[str], namespace: str, structs: Iterable[str]) -> str:
    """The header of a module with declarations of ops."""
    included = "\n".join(f'#include "{each}"' for each in includes)
    text = "\n".join(structs)
    return (
        f"#pragma once\n{included}\n\n"
        f"namespace {namespace} {{\n\n{text}\n}}  // namespace {namespace}\n"
    )


def _functor(draft: Draft) -> str:
    op = draft.op
    names = list(map(emit.identifier, _parameters(op)))
    if draft.functor is None:
        body = emit.functor_body(draft.y, _parameters(op))
    else:
        body = draft.functor.strip().splitlines()
    used = {word for line in body for word in re.findall(r"\w+", line)}
    intensity = "high" if emit.is_intense(draft.y) else "low"
    parameters = ", ".join(f"T {name}" if name in used else "T" for name in names)
    types = "class T"
    shortcut = ["namespace onnx = cudarelu::onnx;"] if "onnx" in used else []
    special = []
    if draft.functor is None:
        if any(map(emit.takes_angles, parts(draft.y))):
            types += ", class Angles = cudarelu::math::AnyAngles"
            parameters += ", Angles&& angles = {}"
        if emit.has_approximate(draft.y):
            special += ["#ifdef __CUDACC__", "  using ForHalves = cudarelu::onnx::Approximate;"]
            special.append("#endif")
        if len(names) == 1 and (name := emit.piecewise(draft.y)):
            kind = "static constexpr const cudarelu::math::PiecewisePolynomial&"
            special.append(f"  {kind} piecewise = {name};")
    members = [
        *special,
        f"  static constexpr auto intensity = cudarelu::ArithmeticIntensity::{intensity};",
        f"  template <{types}>",
        f"  CUDARELU_FN T operator()({parameters}) const {{",
        *(f"    {line}" for line in [*shortcut, *body]),
        "  }",
    ]
    return declaration(op, members)


def declaration(op: OpInfo, members: Iterable[str]) -> str:
    """The struct that declares an op, with further members."""
    types = "cudarelu::floating_types"
    if set(op.dtypes) != set(FLOATING):
        listed = ", ".join(f"cudarelu::DType::{each}" for each in op.dtypes)
        types = f"cudarelu::DTypeSet::of({{{listed}}})"
    fields = {
        "signature": _literal(op.signature),
        "summary": _literal(op.summary),
        "dtypes": types,
        "in_place": _literal(op.in_place),
        "gradient": _literal(op.gradient),
        "definition": _raw(op.definition),
    }
    lines = [f".{name} = {text}," for name, text in fields.items() if text != '""']
    return "\n".join(
        [
            f"struct {op.onnx.op_type} {{",
            "  static constexpr cudarelu::OpSpec spec{",
            *(f"      {line}" for line in lines),
            "  };",
            *members,
            "};",
            "",
        ]
    )


def _literal(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _raw(text: str) -> str:
    return f'R"onnx({text})onnx"'
