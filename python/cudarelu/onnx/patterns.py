"""The ops' definitions as patterns of onnxscript's rewriter.

A definition writes an attribute as a Constant that a CastLike turns to the dtype; models have a
constant there. So that is what such a value matches: any constant of one element.
"""

from __future__ import annotations

import collections
import functools
import itertools
from collections.abc import Iterable, Iterator
from typing import Any, ClassVar

import numpy as np
import onnx
import onnx.defs
import onnx.helper
import onnx.numpy_helper
import onnx_ir as ir
from onnx.reference import ReferenceEvaluator
from onnxscript.rewriter import pattern

from .. import _C
from .._table import OpInfo, Parameter, ops
from .definitions import (
    bypass,
    function,
    remove_unused,
    specialised,
    written_out,
)

_COMMUTATIVE = {"Add", "Equal", "Mul"}


def is_candidate(op: OpInfo) -> bool:
    """Whether models have subgraphs for which the op can stand.

    Not those of a gradient, which are of training and take a gradient or have none, nor those of
    several outputs or dtypes, whose definitions are long programs, nor a matrix product alone,
    which is the runtime's.
    """
    return (
        len(op.outputs) == 1
        and bool(op.gradient)
        and not _is_the_runtimes(function(op))
        and all(each.dtype == "T" for each in (*op.inputs, *op.outputs))
        and not any(each.name.startswith("grad_") for each in op.inputs)
    )


def _is_the_runtimes(body: onnx.FunctionProto) -> bool:
    """Whether a body is a matrix product alone, or nothing."""
    return {node.op_type for node in operators(body)} <= {"Gemm", "Identity", "MatMul", "Transpose"}


def _tells_inputs(body: onnx.FunctionProto) -> bool:
    """Whether the nodes of a body have all its inputs: others could not be found in a model."""
    return {*body.input} <= {name for node in operators(body) for name in node.input}


def patterns() -> list[tuple[OpInfo, onnx.FunctionProto]]:
    """What each op can stand for, as functions of its inputs: larger ones first."""
    found = [(op, body) for op in ops() if is_candidate(op) for body in bodies(op)]
    return sorted(found, key=lambda each: len(operators(each[1])), reverse=True)


@functools.cache
def bodies(op: OpInfo) -> tuple[onnx.FunctionProto, ...]:
    """The definition, and what means the same: without its factors of one, for given labels, in
    other words, in one operator, written out; each of these without inputs that may be absent; and
    a product of the rows of x as one of x."""
    definition = function(op)
    found = [definition, *_without_factors_of_one(op, definition), *_single_operators(definition)]
    is_linear = any(_is_linear(node) for node in definition.node)
    if not is_linear:
        found += _worded(op, definition)
    if body := written_out(op):
        found += [body, _with_products_for_squares(body)]
        found += [_with_axes_as_attributes(each) for each in found[-2:]]
    numbered = [each for each in op.inputs if each.optional]
    subsets = [
        absent
        for count in range(1, len(numbered) + 1)
        for absent in itertools.combinations(numbered, count)
    ]
    shorter = [_without(body, absent) for body in found for absent in subsets]
    found += [each for each in shorter if each is not None]
    if is_linear:
        for body in list(found):
            found += [*_of_labels(op, body), *_products(op, body)]
    return tuple(each for each in found if not _is_the_runtimes(each) and _tells_inputs(each))


def labels(op: OpInfo, body: onnx.FunctionProto) -> dict[str, int]:
    """The enumerated attributes that a body is for one value of."""
    names = {each.name for each in op.attributes if each.labels}
    return {each.name: each.i for each in body.attribute_proto if each.name in names}


def transposed(body: onnx.FunctionProto) -> set[str]:
    """The inputs that a body takes as the transposes of the op's, from constants of a model."""
    return {each.value for each in body.metadata_props if each.key == "transposed"}


def _worded(op: OpInfo, body: onnx.FunctionProto) -> list[onnx.FunctionProto]:
    """A body with enumerated attributes for each choice of labels, and that in other words."""
    return [
        each
        for chosen in _of_labels(op, body)
        for each in (*_spellings(chosen), *_labelled_operators(op, chosen))
    ]


def _is_linear(node: onnx.NodeProto) -> bool:
    return node.op_type == "Gemm" and [(a.name, a.i) for a in node.attribute] == [("transB", 1)]


def _products(op: OpInfo, body: onnx.FunctionProto) -> Iterator[onnx.FunctionProto]:
    """A body that takes the rows of x as one matrix for its Gemm, in the forms of models: by Gemm,
    of an x that is a matrix, and by MatMul and Add; in each, what follows in other words."""
    after = onnx.FunctionProto()
    after.CopyFrom(body)
    for node in [node for node in after.node if node.op_type == "Reshape"]:
        bypass(after, node, node.input[0])
    (gemm,) = filter(_is_linear, after.node)
    after.node.remove(gemm)
    x, weight, *bias = gemm.input
    (total,) = gemm.output
    for node in after.node:  # constants are cast like x
        if node.op_type == "CastLike" and node.input[1] == x:
            node.input[1] = total
    remove_unused(after)
    used = {name for node in after.node for name in node.input}
    after.input[:] = [total, *(name for name in body.input if name in used)]
    make = onnx.helper.make_node
    for tail in _worded(op, after) or [after]:
        turned = _new_name(tail, "turned")
        product = _new_name(tail, "product") if bias else total
        added = [make("Add", [product, *bias], [total])] if bias else []
        transpose = make("Transpose", [weight], [turned], perm=[1, 0])
        for is_transposed, nodes in (
            (False, [gemm]),
            (True, [make("Gemm", gemm.input, gemm.output)]),
            (False, [transpose, make("MatMul", [x, turned], [product]), *added]),
            (True, [make("MatMul", [x, weight], [product]), *added]),
        ):
            if is_transposed and weight in (x, *bias, *tail.input):
                continue  # it is needed as it is, too
            whole = onnx.FunctionProto()
            whole.CopyFrom(tail)
            whole.input[:] = body.input
            del whole.node[:]
            whole.node.extend([*nodes, *tail.node])
            if is_transposed:
                whole.metadata_props.add(key="transposed", value=weight)
            yield whole


def _of_labels(op: OpInfo, definition: onnx.FunctionProto) -> Iterator[onnx.FunctionProto]:
    """The definition for each choice of labels, without what that leaves out."""
    enumerated = [each for each in op.attributes if each.labels]
    choices = itertools.product(*(range(len(each.labels)) for each in enumerated))
    for choice in choices if enumerated else ():
        chosen = {each.name: value for each, value in zip(enumerated, choice, strict=True)}
        body = specialised(definition, chosen)
        kept = [each for each in body.attribute_proto if each.name not in chosen]
        del body.attribute_proto[:]
        body.attribute_proto.extend(kept)
        body.attribute_proto.extend(itertools.starmap(onnx.helper.make_attribute, chosen.items()))
        yield body


def _spellings(body: onnx.FunctionProto) -> list[onnx.FunctionProto]:
    """The body, and others of the same products: in each order, x * x * x as a power, and by the
    reciprocal of a divisor."""
    numbers: dict[Any, int] = {}  # of expressions, whatever their names and the operands' order

    def number(body: onnx.FunctionProto) -> int:
        known = {name: numbers.setdefault(name, len(numbers)) for name in body.input}
        for node in body.node:
            inputs = [known[name] for name in node.input]
            if node.op_type in _COMMUTATIVE:
                inputs.sort()
            given = tuple(each.SerializeToString() for each in node.attribute)
            expression = (node.op_type, *inputs, *given)
            known[node.output[0]] = numbers.setdefault(expression, len(numbers))
        return known[body.output[0]]

    found = {number(body): body}
    queue = [body]
    while queue:
        for other in _respelled(queue.pop()):
            remove_unused(other)
            if found.setdefault(number(other), other) is other:
                queue.append(other)
    return list(found.values())


def _respelled(body: onnx.FunctionProto) -> Iterator[onnx.FunctionProto]:
    """Each change of one node that `_spellings` makes."""
    literals = {
        name: _literal(each) for name, each in scalars(body).items() if not each.ref_attr_name
    }
    products = {node.output[0]: node.input for node in body.node if node.op_type == "Mul"}
    uses = collections.Counter(name for node in body.node for name in node.input)
    for at, node in enumerate(body.node):
        (name,) = node.output
        if node.op_type == "Div" and node.input[1] in literals:
            inverse = 1 / literals[node.input[1]]
            yield _with_literal(body, at, "Mul", node.input[0], inverse)
        if node.op_type != "Mul":
            continue
        for a, product in (node.input, node.input[::-1]):
            b, c = products.get(product, (None, None))
            if a == b == c:
                yield _with_literal(body, at, "Pow", a, np.float64(3))
            if b is not None and uses[product] == 1:
                for first, last in ((b, c), (c, b)):
                    inner = _new_name(body, name)
                    other = _replaced(body, at, "Mul", [inner, last])
                    other.node.insert(at, onnx.helper.make_node("Mul", [a, first], [inner]))
                    yield other


def _literal(constant: onnx.AttributeProto) -> np.ndarray:
    value = onnx.helper.get_attribute_value(constant)
    is_tensor = isinstance(value, onnx.TensorProto)
    return onnx.numpy_helper.to_array(value) if is_tensor else np.asarray(value)


def _replaced(
    body: onnx.FunctionProto, at: int, op_type: str, inputs: list[str]
) -> onnx.FunctionProto:
    """The body with another node in the place of one."""
    result = onnx.FunctionProto()
    result.CopyFrom(body)
    node = onnx.helper.make_node(op_type, inputs, body.node[at].output)
    result.node[at].CopyFrom(node)
    return result


def _new_name(body: onnx.FunctionProto, prefix: str) -> str:
    used = {node.output[0] for node in body.node}
    return next(name for i in itertools.count() if (name := f"{prefix}_{i}") not in used)


def _with_literal(
    body: onnx.FunctionProto, at: int, op_type: str, x: str, value: np.ndarray | float
) -> onnx.FunctionProto:
    """The body with a node of `x` and of a new literal in the place of one."""
    name = _new_name(body, body.node[at].output[0])
    result = _replaced(body, at, op_type, [x, name])
    literal = onnx.numpy_helper.from_array(np.asarray(value))
    result.node.insert(at, onnx.helper.make_node("Constant", [], [name], value=literal))
    return result


def _labelled_operators(op: OpInfo, body: onnx.FunctionProto) -> Iterator[onnx.FunctionProto]:
    """Each operator of ONNX with enumerations of the same names that gives, by ONNX's own
    definition, the same numbers as a body for these labels."""
    chosen = {
        each.name: each.labels[labels(op, body)[each.name]] for each in op.attributes if each.labels
    }
    x = np.linspace(-4, 4, 65)
    kind = onnx.helper.make_tensor_type_proto(onnx.TensorProto.DOUBLE, x.shape)
    schema: Any  # onnx does not tell all of its type
    for schema in onnx.defs.get_all_schemas():
        if schema.domain or set(schema.attributes) != set(chosen) or len(body.input) > 1:
            continue
        if not schema.has_context_dependent_function:
            continue
        node = onnx.helper.make_node(schema.name, body.input, body.output, **chosen)
        theirs = onnx.FunctionProto.FromString(
            schema.get_context_dependent_function(
                node.SerializeToString(), [kind.SerializeToString()]
            )
        )
        y, expected = (
            next(iter(ReferenceEvaluator(each).run(None, {each.input[0]: x}, attributes=chosen)))
            for each in (theirs, body)
        )
        if np.allclose(y, expected, rtol=1e-6, atol=1e-6):
            single = onnx.FunctionProto()
            single.CopyFrom(body)
            del single.node[:]
            single.node.append(node)
            yield single


def scalars(body: onnx.FunctionProto) -> dict[str, onnx.AttributeProto]:
    """The values of a body that no input decides, with the Constant's attribute."""
    found: dict[str, onnx.AttributeProto] = {}
    for node in body.node:
        if node.op_type == "Constant":
            found[node.output[0]] = node.attribute[0]
        elif node.op_type == "CastLike" and node.input[0] in found:
            found[node.output[0]] = found[node.input[0]]
    return found


def operators(body: onnx.FunctionProto) -> list[onnx.NodeProto]:
    """The nodes of a body that are nodes of a model too."""
    constant = scalars(body)
    return [node for node in body.node if node.output[0] not in constant]


def _without_factors_of_one(
    op: OpInfo, definition: onnx.FunctionProto
) -> Iterator[onnx.FunctionProto]:
    """With a default of 1, such as a scale's, models leave the Mul out."""
    for attribute in op.attributes:
        if attribute.default != 1:
            continue

        def factors(body: onnx.FunctionProto, name: str = attribute.name) -> list[str]:
            return [value for value, a in scalars(body).items() if a.ref_attr_name == name]

        body = onnx.FunctionProto()
        body.CopyFrom(definition)
        _bypass_neutral(body, "Mul", factors(body))
        if not factors(body) and 0 < len(operators(body)) < len(operators(definition)):
            yield body


def _bypass_neutral(body: onnx.FunctionProto, op_type: str, names: Iterable[str]) -> None:
    """Bypasses the nodes of an operator, in place, whose other operand is neutral to it: one of the
    names, or computed by the operator from these alone."""
    neutral = set(names)
    for node in list(body.node):
        if node.op_type == op_type:
            left = [name for name in node.input if name not in neutral]
            if not left:
                neutral.update(node.output)
            elif len(left) == 1:
                bypass(body, node, left[0])
    remove_unused(body)


def _with_products_for_squares(body: onnx.FunctionProto) -> onnx.FunctionProto:
    """Mul(x, x) for Pow(x, 2)."""
    result = onnx.FunctionProto()
    result.CopyFrom(body)
    constant = scalars(body)
    for node in result.node:
        exponent = constant.get(node.input[1]) if node.op_type == "Pow" else None
        if exponent is not None and not exponent.ref_attr_name and _literal(exponent) == 2:
            node.op_type, node.input[1] = "Mul", node.input[0]
    remove_unused(result)
    return result


def _with_axes_as_attributes(body: onnx.FunctionProto) -> onnx.FunctionProto:
    """As reductions had them before opset 18."""
    result = onnx.FunctionProto()
    result.CopyFrom(body)
    constant = scalars(body)
    for node in result.node:
        if node.op_type.startswith("Reduce") and node.input[-1] in constant:
            axes = onnx.helper.get_attribute_value(constant[node.input.pop()])
            node.attribute.append(onnx.helper.make_attribute("axes", axes))
    remove_unused(result)
    return result


def _without(body: onnx.FunctionProto, absent: tuple[Parameter, ...]) -> onnx.FunctionProto | None:
    """The body where inputs are absent, for which numbers stand: a factor of 1, a term of 0, or
    what its operator may lack as well. None: it cannot be without one of them."""
    result = onnx.FunctionProto()
    result.CopyFrom(body)
    for each in absent:
        result.input.remove(each.name)
        for op_type, neutral in (("Mul", 1), ("Add", 0)):
            if each.number == neutral:
                _bypass_neutral(result, op_type, [each.name])
        for node in [node for node in result.node if each.name in node.input]:
            left = [name for name in node.input if name != each.name]
            formal = onnx.defs.get_schema(node.op_type, _C.DEFINITION_OPSET, "").inputs[len(left) :]
            optional = onnx.defs.OpSchema.FormalParameterOption.Optional
            if node.input[: len(left)] != left or {i.option for i in formal} != {optional}:
                return None
            node.input[:] = left
    return result


def _single_operators(definition: onnx.FunctionProto) -> Iterator[onnx.FunctionProto]:
    """Each operator of ONNX whose own definition, by ONNX, comes to the same as this one."""
    meaning, attributes = _meaning(definition)
    if len(operators(definition)) == 1 and not attributes:
        return  # it is such an operator
    for name in sorted({each.name for each in onnx.defs.get_all_schemas() if not each.domain}):
        if not onnx.defs.has(name, _C.DEFINITION_OPSET, ""):
            continue
        schema: Any = onnx.defs.get_schema(name, _C.DEFINITION_OPSET, "")
        if not schema.has_function:
            continue
        theirs, names = _meaning(schema.function_body)
        if theirs == meaning:
            body = onnx.FunctionProto()
            body.CopyFrom(definition)
            del body.node[:]
            node = onnx.helper.make_node(schema.name, definition.input, definition.output)
            for theirs_name, ours in zip(names, attributes, strict=True):
                kind = schema.attributes[theirs_name].type.value
                node.attribute.add(name=theirs_name, ref_attr_name=ours, type=kind)
            body.node.append(node)
            yield body


def _meaning(body: onnx.FunctionProto) -> tuple[Any, list[str]]:
    """An expression that is equal for bodies of one meaning, and its attributes in order.

    Operators that ONNX itself defines are replaced by what they mean; inputs and attributes are
    numbered.
    """
    attributes: list[str] = []

    def attribute(given: onnx.AttributeProto) -> Any:
        if given.ref_attr_name:
            if given.ref_attr_name not in attributes:
                attributes.append(given.ref_attr_name)
            return given.name, attributes.index(given.ref_attr_name)
        value = onnx.helper.get_attribute_value(given)
        if isinstance(value, onnx.TensorProto):
            value = onnx.numpy_helper.to_array(value)
        # A Constant has one of many attributes, by the kind of its value.
        return (given.name if not given.name.startswith("value") else ""), repr(np.asarray(value))

    def outputs(body: onnx.FunctionProto, known: dict[str, Any]) -> list[Any]:
        for node in body.node:
            inputs = [known.get(name) for name in node.input]
            inner: Any = onnx.defs.get_schema(node.op_type, _C.DEFINITION_OPSET, node.domain)
            if inner.has_function and not node.attribute:
                inner_known = dict(zip(inner.function_body.input, inputs, strict=False))
                results = outputs(inner.function_body, inner_known)
            else:
                given = tuple(sorted(map(attribute, node.attribute), key=repr))
                results = [(node.op_type, given, tuple(inputs), i) for i in range(len(node.output))]
            known |= zip(node.output, results, strict=False)
        return [known[name] for name in body.output]

    return outputs(body, dict(zip(body.input, range(len(body.input)), strict=True))), attributes


def constant(value: Any) -> np.ndarray | None:
    """The elements of a value that is the same in every run, also of one that is cast.

    Raises:
        OSError: where they are in a file that cannot be read.
    """
    node = value.producer()
    if node is not None and node.op_type in ("Cast", "CastLike") and value.dtype is not None:
        array = constant(node.inputs[0])
        return None if array is None else array.astype(value.dtype.numpy())
    tensor = ir.convenience.get_const_tensor(value) if is_constant(value) else None
    return None if tensor is None else tensor.numpy()


def is_constant(value: ir.Value) -> bool:
    """Whether a value is an initializer or a Constant."""
    if value.is_graph_input():  # an initializer may be a mere default
        return False
    return ir.convenience.get_const_tensor(value) is not None


class _SharedMatcher(pattern.SimplePatternMatcher):
    """Finds nodes that others need too, which the rewriter passes over: a report says so. Takes
    operands in either order, and constants for what the body has them for alone."""

    constants: ClassVar[dict[str, onnx.AttributeProto]]  # as `scalars` has them

    def match(self, *args: Any, **options: Any) -> pattern.MatchResult:
        return super().match(*args, **options | {"remove_nodes": False})

    def _match_value(self, pattern_value: Any, value: ir.Value | None) -> bool:
        wanted = self.constants.get(pattern_value.name)
        if wanted is not None and (value is None or not _is_as_wanted(wanted, value)):
            return self.fail(f"{pattern_value.name} is another constant, or none")
        return super()._match_value(pattern_value, value)

    def _match_node(self, pattern_node: Any, node: ir.Node) -> bool:
        if node.op_type not in _COMMUTATIVE or self._match.lookup_node(pattern_node) is not None:
            return super()._match_node(pattern_node, node)
        operands = pattern_node.inputs
        try:
            for pattern_node.inputs in (operands, operands[::-1]):
                self._match.enter_new_match()
                if super()._match_node(pattern_node, node):
                    self._match.merge_current_match()
                    return True
                self._match.abandon_current_match()
        finally:
            pattern_node.inputs = operands
        return self.fail("the operands match in neither order")


def rule(body: onnx.FunctionProto, replace: Any) -> pattern.RewriteRule:
    """A rule of the rewriter that finds a body.

    Args:
        body: of `bodies`.
        replace: gives the new value, or None where the match is none, from the rewriter's builder
            of nodes and the model's values, by their names in the body.
    """

    def build(op: pattern.OpsetPatternBuilder) -> Any:
        known = {name: pattern.Var(name) for name in (*body.input, *scalars(body))}
        for node in operators(body):
            outputs = getattr(op, node.op_type)(
                *[known[name] for name in node.input], _outputs=list(node.output)
            )
            known |= zip(node.output, [outputs] if len(node.output) == 1 else outputs, strict=True)
        return [known[name] for name in body.output]

    matcher = type("_Matcher", (_SharedMatcher,), {"constants": scalars(body)})
    return pattern.RewriteRule(build, replace, matcher=matcher)


def is_symmetric(body: onnx.FunctionProto) -> bool:
    """Whether two inputs of a body are operands of one operator that takes them in either order.

    Which is which, only the replacement knows.
    """
    return any(
        node.op_type in _COMMUTATIVE
        and len(set(node.input)) == 2
        and {*node.input} <= {*body.input}
        for node in body.node
    )


def _is_as_wanted(wanted: onnx.AttributeProto, value: ir.Value) -> bool:
    """Whether a value is a constant: of one element for an attribute, or else that literal."""
    literal = None if wanted.ref_attr_name else _literal(wanted)
    if value.shape is None or not value.shape.is_static():
        return False
    if literal is None:
        if any(size != 1 for size in value.shape):  # before any is read
            return False
    elif value.shape != literal.shape:
        return False
    try:
        array = constant(value)
    except OSError:
        return literal is None  # that it cannot be read is to be reported
    if array is None or literal is None:
        return array is not None
    return np.array_equal(array, literal.astype(array.dtype))
