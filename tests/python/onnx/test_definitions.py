"""The definitions of ops: errors of one that is not the body of a valid ONNX function, and
one in a model that a tool has written anew."""

from __future__ import annotations

import dataclasses
import re

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import cudarelu
import cudarelu.onnx
from cudarelu._onnx.definitions import specialised
from cudarelu._table import op_named
from cudarelu.onnx import function
from cudarelu.onnx.inspection import describe
from cudarelu.onnx.models import choices, difference


@pytest.mark.parametrize(
    ("definition", "message"),
    [
        ("r = Relu(x)\ny = Neg(r", "cannot be parsed: line 2, column 11: Expected character )"),
        ("z = Relu(x)", "has no value y, the op's output"),
        ("y = Elu<alpha: float = @beta>(x)", "has @beta, which is no attribute of the op"),
        ("y = Rellu(x)", "is not valid ONNX: No Op registered for Rellu"),
        ("y = Relu(x, x)", "is not valid ONNX: Node with schema(::Relu:14) has input size 2"),
        ("y = Add(x, w)", "is not valid ONNX: Nodes in a function must be topologically sorted"),
        ("y = Elu<beta = 1.0>(x)", "is not valid ONNX: Unrecognized attribute: beta"),
    ],
)
def test_bad_definitions(definition, message):
    op = dataclasses.replace(op_named("relu"), definition=definition)
    with pytest.raises(ValueError, match=re.escape(f"relu: the definition {message}")) as error:
        function(op)
    assert "\n" not in str(error.value)


# What tools do to the definitions in a model


def constants_as_tensors(node: onnx.NodeProto) -> None:
    """Writes all constants as tensors with a name, floats as doubles."""
    (given,) = node.attribute
    if not given.ref_attr_name:
        value = helper.get_attribute_value(given)
        array = numpy_helper.to_array(value) if given.name == "value" else np.array(value)
        tensor = numpy_helper.from_array(array, "a name")
        node.attribute[0].CopyFrom(helper.make_attribute("value", tensor))


def rewritten(definition: onnx.FunctionProto) -> onnx.FunctionProto:
    """The same function with constants first, other names, explicit defaults, operands in the other
    order, each value by way of an Identity, an unused node, notes and an unused import."""
    result = onnx.FunctionProto()
    result.CopyFrom(definition)
    result.doc_string = "notes"
    result.opset_import.add(domain="com.example", version=1)
    del result.node[:]
    for node in sorted(definition.node, key=lambda each: each.op_type != "Constant"):
        new = result.node.add()
        new.CopyFrom(node)
        new.name, new.doc_string, new.domain = "a node", "notes", "ai.onnx"
        new.metadata_props.add(key="a", value="b")
        if node.op_type == "Constant":
            constants_as_tensors(new)
        elif node.op_type in ("Add", "Mul", "Equal"):
            new.input[:] = node.input[::-1]
        schema = onnx.defs.get_schema(node.op_type, 18)
        given = {each.name for each in node.attribute}
        for name, each in schema.attributes.items():
            if each.default_value.name and name not in given:
                new.attribute.append(each.default_value)
        new.output[:] = [f"{name}_before" for name in node.output]
        for name, before in zip(node.output, new.output, strict=True):
            result.node.append(helper.make_node("Identity", [before], [name]))
    result.node.append(helper.make_node("Neg", [result.output[0]], ["unused"]))
    names: dict[str, str] = {}
    for each in (result, *result.node):
        for field in (each.input, each.output):
            field[:] = [name and names.setdefault(name, f"v{len(names)}") for name in field]
    return result


@pytest.mark.parametrize("op", cudarelu.ops(), ids=lambda op: op.name)
def test_the_same_definition_in_another_form(op):
    for given in choices(op):
        assert difference(rewritten(specialised(function(op), given))) is None


BODY = """a = Constant<value = double {0.5}>()
          b = CastLike(a, x)
          c = Mul(x, b)
          d = Softmax<axis = 0>(c)
          e = Constant<value_ints = [1, 2]>()
          f = ReduceSum(d, e)
          g = Log(a)
          h = CastLike(g, x)
          i = Sub(f, h)
          y = Add(i, c)"""


@pytest.mark.parametrize(
    ("before", "after", "text"),
    [
        ("Add(i, c)", "Mul(i, c)", "the output y is Mul, not Add"),
        ("0.5", "0.25", "an operand of CastLike b is the constant 0.25, not the constant 0.5"),
        ("axis = 0", "axis = 1", "an operand of ReduceSum f is Softmax<axis = 1>, not Softmax"),
        ("axis = 0", "axis = -1", "is Softmax, not Softmax<axis = 0>"),
        ("(d, e)", "(d)", "an operand of Sub i is of 1 operands, not of 2"),
        ("[1, 2]", "[1, 3]", "the constant [1, 3], not the constant [1, 2]"),
        ("Sub(f, h)", "Sub(h, f)", "an operand of Sub i is CastLike, not ReduceSum"),
        ("Mul(x, b)", "Mul(x, x)", "an operand of Mul c is input 0, not CastLike"),
        ("i = Sub(f, h)", "i = Sub(f, z)", "an operand of Sub i is z, which is not defined, not"),
        ("Log(a)", "Log(a)", None),
        ("Log(a)", "Constant<value = double {-0.6931471805599453}>()", None),  # folded
        ("Add(i, c)", "Add(c, i)", None),
    ],
)
def test_another_definition(monkeypatch, before, after, text):
    op = dataclasses.replace(op_named("relu"), definition=BODY)
    monkeypatch.setattr("cudarelu.onnx.models.op_of", lambda _: op)
    attached = function(op)
    changed = BODY.replace(before, after)
    head = '<domain: "cudarelu", opset_import: ["" : 18]> Relu (x) => (y)'
    attached.CopyFrom(onnx.parser.parse_function(f"{head} {{ {changed} }}"))
    found = difference(attached)
    assert found == text if text is None else text in (found or "")


def test_a_definition_is_replaced_on_request():
    model = cudarelu.onnx.demo_model()
    model.functions[0].node[0].op_type = "Neg"
    for change in (cudarelu.onnx.attach_definitions, cudarelu.onnx.lower, cudarelu.onnx.accelerate):
        with pytest.raises(ValueError, match=r"the output y is Neg, not Relu; replace_def"):
            change(model)
    attached = cudarelu.onnx.attach_definitions(model, replace_definitions=True)
    assert describe(attached)["definitions"] == {"custom_domain::CustomRelu": True}
    lowered = cudarelu.onnx.lower(model, replace_definitions=True)
    accelerated, _ = cudarelu.onnx.accelerate(model, replace_definitions=True)
    x = np.array([[-1, 2, -3, 4]], np.float32)
    for each in (attached, lowered, accelerated):
        np.testing.assert_array_equal(*ReferenceEvaluator(each).run(None, {"x": x}), x.clip(0))


def test_definitions_have_their_interface():
    model = cudarelu.onnx.demo_model()
    model.functions[0].input.append("b")
    with pytest.raises(ValueError, match="differs from this library's: it has 2 inputs, not 1;"):
        cudarelu.onnx.lower(model)
