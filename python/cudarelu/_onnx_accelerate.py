"""Our ops in the place of standard operators: what `cudarelu.onnx.accelerate` does."""

from __future__ import annotations

import collections
import dataclasses
import functools
import textwrap
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import onnx.defs
import onnx.helper

from . import _C, OpInfo, Parameter
from ._onnx_definitions import (
    LOWEST_OPSET,
    attach_definitions,
    is_ours,
    lowest_opset,
    scopes,
    standard_opset,
)
from ._onnx_files import in_a_line
from ._onnx_types import infer

if TYPE_CHECKING:
    import onnx_ir as ir


_FASTER = 0.99  # below this ratio of times a model is faster; and so it must be in 3 rounds of 4


@dataclasses.dataclass(frozen=True)
class Replaced:
    """A node of ours in the place of standard ones."""

    op: str
    node: str  # its name; that of its output where it has none
    operators: tuple[str, ...]  # the types of those that it replaces


@dataclasses.dataclass(frozen=True)
class Left:
    """Standard nodes that are as an op's definition has them, and yet stay."""

    op: str
    node: str  # the last of them
    operators: tuple[str, ...]
    reason: str


@dataclasses.dataclass(frozen=True)
class Measured:
    """What replacing by one op changes: times of the whole model, with it to without it."""

    op: str
    nodes: int
    ratio: float  # the median over rounds in turns; below 1 the model is faster with the op
    quartiles: tuple[float, float]
    kept: bool


@dataclasses.dataclass(frozen=True)
class Report:
    """What `accelerate` did, as text by `str()`, as JSON has it by `dataclasses.asdict()`."""

    replaced: list[Replaced]
    left: list[Left]
    measured: list[Measured]  # in the order of the decisions; empty: nothing was measured
    ratio: float | None = None  # of the whole model's times, after to before

    def __str__(self) -> str:
        lines = ["replaced:" if self.replaced else "replaced: nothing"]
        lines += _counted((f"{r.op} for {' + '.join(r.operators)}", r.node) for r in self.replaced)
        if self.left:
            lines.append("left:")
            lines += _counted(
                (f"{' + '.join(e.operators)}, not {e.op}: {e.reason}", e.node) for e in self.left
            )
        if self.measured:
            lines.append("measured, the model's time with the op to that without it:")
        for each in self.measured:
            low, high = each.quartiles
            lines.append(
                f"    {each.op}, {each.nodes} nodes: {each.ratio:.3f} ({low:.3f} to {high:.3f}): "
                + ("kept" if each.kept else "not kept")
            )
        if self.ratio is not None:
            lines.append(f"the model's time, after to before: {self.ratio:.3f}")
        return "\n".join(lines)


def _counted(entries: Any) -> list[str]:
    nodes = collections.defaultdict(list)
    for text, node in entries:
        nodes[text].append(node)
    lines = []
    for text, names in nodes.items():
        more = f", and {len(names) - 3} more" if len(names) > 3 else ""
        line = f"{len(names)} x {text} ({', '.join(names[:3])}{more})"
        lines += textwrap.wrap(line, 100, initial_indent="    ", subsequent_indent="        ")
    return lines


class _Kept(Exception):
    """Why nodes stay as they are."""


class _AnotherAttribute(_Kept):
    """Why they stay, unless they are nearer to another body of the op."""


def prepare(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy of a model with the type of every tensor, to be rewritten.

    Raises:
        ValueError: as `attach_definitions` does, for a model before opset 13 and for one that is
            not valid.
    """
    opset = standard_opset(model)
    if opset is not None and opset < LOWEST_OPSET:
        raise ValueError(
            f"the model is of opset {opset}, but its operators are understood from {LOWEST_OPSET} "
            "on: convert it by onnx.version_converter"
        )
    if model.graph.sparse_initializer or model.training_info:
        raise ValueError("the model has sparse initializers or training steps, which would be lost")
    with in_a_line("the model is not valid"):
        result = infer(attach_definitions(model))
    # They gave the types of their nodes, and would be found to contain themselves.
    for each in [each for each in result.functions if is_ours(each)]:
        result.functions.remove(each)
    return result


def rewrite_if_faster(
    prepared: onnx.ModelProto,
    folder: Path | None,
    provider: str,
    dims: Mapping[str, int],
    inputs: Mapping[str, np.ndarray],
) -> tuple[onnx.ModelProto, Report]:
    """As `rewrite`, with the ops that make the model faster.

    Op by op, those of larger definitions first: an op stays where the model that has it, beside
    those that stay already, is faster than the one without it.

    Args:
        prepared: by `prepare`. External data may be left unloaded.
        folder: of the external data.
        provider: "cpu" or "cuda".
        dims: sizes of named dimensions.
        inputs: arrays for some inputs; others are random.

    Raises:
        ValueError: where the model does not run.
    """
    from ._onnx_measure import Running, compare, difference, random_inputs
    from ._onnx_patterns import patterns

    feeds = random_inputs(prepared, dims, inputs)
    original = best = Running(prepared, folder, provider, feeds)
    result, report = rewrite(prepared, folder, [])
    kept: list[str] = []
    left, measured = [], []
    ratio: float | None
    for name in dict.fromkeys(op.name for op, _ in patterns()):
        candidate, found = rewrite(prepared, folder, [*kept, name])
        nodes = [each for each in found.replaced if each.op == name]
        if not nodes:
            left += [each for each in found.left if each.op == name]
            continue
        running = Running(candidate, folder, provider, feeds)
        reason = difference(original, running)
        if reason is None:
            ratio, quartiles = compare(best, running)
            faster = ratio < _FASTER and quartiles[1] < 1
            measured.append(Measured(name, len(nodes), ratio, quartiles, faster))
            reason = None if faster else f"the model is not faster with it: {ratio:.3f}"
        if reason is None:
            kept.append(name)
            best, result, report = running, candidate, found
        else:
            left += [Left(**dataclasses.asdict(each), reason=reason) for each in nodes]
    ratio = None
    if kept:
        ratio, (low, _) = compare(original, best)
        if low > 1:  # each was faster than the one before, and yet
            reason = f"the model is not faster with all that were kept: {ratio:.3f}"
            left += [Left(**dataclasses.asdict(each), reason=reason) for each in report.replaced]
            result, report = rewrite(prepared, folder, [])
    done = {(each.node, each.operators) for each in report.replaced}  # by another op in the end
    left = report.left + [each for each in left if (each.node, each.operators) not in done]
    return result, dataclasses.replace(report, left=left, measured=measured, ratio=ratio)


def rewrite(
    prepared: onnx.ModelProto, folder: Path | None, allowed: Collection[str]
) -> tuple[onnx.ModelProto, Report]:
    """A copy of a prepared model in which some ops take the place of standard nodes.

    Args:
        prepared: by `prepare`. External data may be left unloaded.
        folder: of the external data.
        allowed: the names of the ops.
    """
    import onnx_ir as ir
    from onnxscript.rewriter.pattern import RewriteRuleSet

    from ._onnx_patterns import is_symmetric, operators, patterns, rule

    model = ir.from_proto(prepared)
    ir.external_data.set_base_dir(model.graph, folder or "")
    for function in prepared.functions:
        types = {each.name: each for each in function.value_info}
        key = function.domain, function.name, function.overload
        for value in model.functions[key].inputs:
            if value.name in types:
                ir.serde.deserialize_value_info_proto(types[value.name], value)
    rewriting = _Rewriting(model)
    # One after another, so that a part of a larger one is not taken before.
    present = {node.op_type for scope in scopes(prepared) for node in scope.node}
    for op, body in patterns():
        if op.name in allowed and present.issuperset(node.op_type for node in operators(body)):
            replace = functools.partial(rewriting.replace, op, body)
            rules = RewriteRuleSet([rule(body, replace)], commute=is_symmetric(body))
            rules.apply_to_model(model)
    rewriting.remove_constants(_annotating(prepared))
    for function in model.functions.values():
        for node in ir.traversal.RecursiveGraphIterator(function):
            # The rewriter does so for the graph that a node is in, which may be a subgraph.
            if (version := model.graph.opset_imports.get(node.domain)) is not None:
                function.opset_imports.setdefault(node.domain, version)
    return attach_definitions(ir.to_proto(model)), rewriting.report()


def _annotating(model: onnx.ModelProto) -> set[str]:
    """The tensors that quantization annotations name, such as scales."""
    return {
        entry.value
        for scope in scopes(model)
        if isinstance(scope, onnx.GraphProto)
        for each in scope.quantization_annotation
        for entry in each.quant_parameter_tensor_names
    }


class _Rewriting:
    """The replacing of nodes in one model, and what is to be reported of it."""

    def __init__(self, model: ir.Model) -> None:
        import onnx_ir as ir

        whole: list[Any] = [model.graph, *model.functions.values()]
        self._opsets: dict[ir.Node, int] = {  # a function may be of another than the model
            node: scope.opset_imports.get("", _C.DEFINITION_OPSET)
            for scope in whole
            for node in ir.traversal.RecursiveGraphIterator(scope)
        }
        self._names = {node: node.name or node.outputs[0].name for node in self._opsets}
        self._constants: list[ir.Value] = []
        self._replaced: list[Replaced] = []
        self._gone: set[ir.Node] = set()
        # By op and last node; of several reasons the first, since swapped operands tell less.
        self._left: dict[tuple[str, ir.Node], tuple[Left, Sequence[ir.Node]]] = {}
        self._with_another_attribute: dict[tuple[str, ir.Node], tuple[Left, Sequence[ir.Node]]] = {}

    def report(self) -> Report:
        # A node that another op has replaced since is not left.
        found = {**self._with_another_attribute, **self._left}.values()
        left = [each for each, nodes in found if not self._gone.issuperset(nodes)]
        return Report(self._replaced, left, [])

    def replace(
        self, op: OpInfo, body: onnx.FunctionProto, builder: Any, /, **values: Any
    ) -> ir.Value | None:
        """The node that stands for a match, or None where the match is none.

        Args:
            op: that the body means.
            body: that was matched.
            builder: makes nodes.
            values: the model's, by their names in the body.
        """
        from ._onnx_patterns import operators, scalars, transposed

        nodes = [values[node.output[0]].producer() for node in operators(body)]
        root = nodes[-1]
        entry: dict[str, Any] = {
            "op": op.name,
            "node": self._names[root],
            "operators": tuple(node.op_type for node in nodes),
        }
        try:
            match = _Match(op, body, values, nodes, self._opsets[root])
            match.check_uses()
            attributes = match.attributes()
            constants = match.check_inputs()
        except _Kept as reason:
            is_attribute = isinstance(reason, _AnotherAttribute)
            left = self._with_another_attribute if is_attribute else self._left
            left.setdefault((op.name, root), (Left(**entry, reason=str(reason)), nodes))
            return None
        self._replaced.append(Replaced(**entry))
        self._gone.update(nodes)
        self._constants += [values[name] for name in scalars(body) if name in values]
        self._constants += [values[name] for name in constants]
        # Data may be large and in a file of its own: readers fold the Transpose when they load it.
        values |= {name: builder.Transpose(values[name], perm=[1, 0]) for name in transposed(body)}
        values |= {name: builder.Constant(value=array) for name, array in constants.items()}
        inputs = [values[each.name] if each.name in body.input else None for each in op.inputs]
        while inputs[-1] is None:
            inputs.pop()
        result = getattr(builder, op.onnx.op_type)(
            *inputs,
            _domain=op.onnx.domain,
            _version=_C.ONNX_DOMAIN_VERSION,
            _name=root.name,
            **attributes,
        )
        _take_notes(result, values[body.output[0]], nodes)
        return result

    def remove_constants(self, kept: Collection[str]) -> None:
        """Those that became attributes, or others in the shape of a signature.

        Args:
            kept: the names of those that are needed elsewhere than by nodes.
        """
        found = self._constants
        while found:
            value = found.pop()
            node, graph = value.producer(), value.graph
            if graph is None or value.uses() or value.is_graph_output() or value.name in kept:
                continue
            if node is None:
                assert value.name
                del graph.initializers[value.name]
            else:
                found += filter(None, node.inputs[:1])  # of a cast, what is cast
                graph.remove(node, safe=True)


def _take_notes(new: ir.Value, old: ir.Value, nodes: Sequence[ir.Node]) -> None:
    """Gives a value and its node what is noted at the value and the nodes that they stand for."""
    notes = dict.fromkeys(node.doc_string for node in nodes if node.doc_string)
    node = new.producer()
    assert node is not None
    node.doc_string = "\n".join(notes) or None
    new.doc_string = old.doc_string
    new.metadata_props.update(old.metadata_props)
    new.meta.update(old.meta)  # the quantization annotation


class _Match:
    """Nodes that a body of an op's was found to match."""

    def __init__(
        self,
        op: OpInfo,
        body: onnx.FunctionProto,
        values: dict[str, Any],
        nodes: Sequence[ir.Node],
        opset: int,
    ) -> None:
        from ._onnx_patterns import transposed

        if opset < (lowest := lowest_opset(op)):
            raise _Kept(f"its definition needs opset {lowest}")
        self._op, self._body, self._values, self._nodes = op, body, values, nodes
        self._opset = opset
        self._inputs = [each for each in op.inputs if each.name in body.input]
        self._transposed = transposed(body)
        ranks = [values[each.name].shape for each in self._inputs if each.leads]
        self._rank = None if None in ranks else max(map(len, ranks), default=None)

    def check_uses(self) -> None:
        """The values between the nodes must be theirs alone; they have no others that are used."""
        declared = {name for node in self._body.node for name in node.output}
        ours = {self._values[name] for name in declared if name in self._values}
        for node in self._nodes:
            for value in node.outputs:
                if value not in ours and (value.uses() or value.is_graph_output()):
                    raise _Kept(f"{node.op_type} has outputs that the definition has not")
        for node in self._nodes[:-1]:
            for value in node.outputs:
                others = any(each.node not in self._nodes for each in value.uses())
                if others or value.is_graph_output():
                    raise _Kept(f"the result of {node.op_type} is used elsewhere too")

    def attributes(self) -> dict[str, int | float]:
        """Those of the op, from constants and from attributes of the nodes."""
        from ._onnx_patterns import labels, operators, scalars

        given: dict[str, Any] = dict(labels(self._op, self._body))
        for node, declared in zip(self._nodes, operators(self._body), strict=True):
            given |= self._of_node(node, declared)
        for name, attribute in scalars(self._body).items():
            if attribute.ref_attr_name and name in self._values:
                array = _read(self._values[name])
                assert array is not None
                if array.ndim > (self._rank or 0):
                    raise _Kept(f"its constant is of rank {array.ndim}, which may be more than x's")
                given[attribute.ref_attr_name] = array.item()
        result = {}
        for each in self._op.attributes:
            value = given[each.name] if each.name in given else each.onnx_value(each.default)
            with np.errstate(over="ignore"):
                exact = float(np.float32(value)) == value or value != value
            if each.type == "float" and not exact:
                raise _Kept(f"{each.name} = {value} is no float32, which ONNX's attributes are")
            if each.labels and value not in range(len(each.labels)):
                raise _Kept(f"{each.name} = {value} is none of its {len(each.labels)} values")
            if wanted := each.outside(value):
                raise _Kept(f"{each.name} = {value} is not in {wanted}")
            result[each.name] = float(value) if each.type == "float" else int(value)
        return result

    def _of_node(self, node: ir.Node, declared: onnx.NodeProto) -> dict[str, Any]:
        """The op's attributes that a node gives; its others must be as the body has them."""
        bound = {}
        theirs = _defaults(node.op_type, self._opset)
        ours = _defaults(node.op_type, _C.DEFINITION_OPSET)
        wanted = {each.name: each for each in declared.attribute}
        for name in sorted({*theirs, *ours, *node.attributes}):
            given = node.attributes.get(name)
            if given is not None and given.is_ref():
                raise _Kept(f"the {name} of {node.op_type} is given by the function's caller")
            value: Any = theirs.get(name, ours.get(name)) if given is None else given.value
            written = value
            if name in wanted and wanted[name].ref_attr_name:
                bound[wanted[name].ref_attr_name] = value
                continue
            expected = ours.get(name, theirs.get(name))
            if name in wanted:
                expected = onnx.helper.get_attribute_value(wanted[name])
            if name == "axis" and _is_from_front(value) and not _is_from_front(expected):
                value -= self._rank_of(node, value)
            if name == "perm" and value is None and expected is not None:
                value = sorted(expected, reverse=True)
            if name == "axes" and value is not None and any(map(_is_from_front, value)):
                value = [each - self._rank_of(node, value) for each in value]
            if _plain(value) != _plain(expected):
                raise _AnotherAttribute(
                    f"the {name} of {node.op_type} is {written}, not {expected}"
                )
        return bound

    @staticmethod
    def _rank_of(node: ir.Node, axis: Any) -> int:
        x = node.inputs[0]
        if x is None or x.shape is None:
            raise _Kept(f"{node.op_type} has axis {axis} of a tensor of unknown rank")
        return len(x.shape)

    def check_inputs(self) -> dict[str, ir.TensorProtocol]:
        """Compares dtypes and shapes with the signature.

        Returns:
            Constants that have to be reshaped, by the op's inputs: as they must be.
        """
        from ._onnx_patterns import is_constant

        inputs = [(each, self._values[each.name]) for each in self._inputs]
        dtypes = {_dtype(value) for _, value in inputs}
        if len(dtypes) > 1 or not dtypes.issubset(self._op.dtypes):
            names = " and ".join(sorted(each or "of unknown dtype" for each in dtypes))
            raise _Kept(f"{self._op.name} does not take inputs {names}")
        if len(inputs) == 1:
            return {}  # any shape is that of the signature
        sizes: dict[Any, Any] = {}
        constants = {}
        for parameter, value in sorted(inputs, key=lambda each: not each[0].leads):
            if value.shape is None:
                raise _Kept(f"the shape of {value.name} is not known")
            if parameter.name in self._transposed and not is_constant(value):
                raise _Kept(f"{value.name} would be transposed in each run: it is no constant")
            if not _fits(parameter, self._shape(parameter), sizes):
                constants[parameter.name] = self._broadcast(parameter, value, sizes)
        return constants

    def _broadcast(self, parameter: Parameter, value: Any, sizes: dict) -> ir.TensorProtocol:
        """A constant in the shape of the signature, where it broadcasts to that."""
        import onnx_ir as ir

        if parameter.leads:
            raise self._wrong_shapes()
        shape = [sizes.get(dim, dim) for dim in parameter.dims]
        known = all(isinstance(dim, int) for dim in (*shape, *value.shape))
        own = list(value.shape)[max(0, len(value.shape) - len(shape)) :]
        more = list(value.shape)[: len(value.shape) - len(own)]
        fits = known and all(
            dim in (1, wanted) for dim, wanted in zip(own[::-1], shape[::-1], strict=False)
        )
        if not fits or len(value.shape) > (self._rank or 0) or not {*more} <= {1}:
            raise self._wrong_shapes()
        if (array := _read(value)) is None:
            raise self._wrong_shapes()
        return ir.tensor(np.ascontiguousarray(np.broadcast_to(array.reshape(own), shape)))

    def _shape(self, parameter: Parameter) -> list[Any]:
        shape = list(self._values[parameter.name].shape)
        return shape[::-1] if parameter.name in self._transposed else shape

    def _wrong_shapes(self) -> _Kept:
        shapes = [
            f"{each.name} [{', '.join(map(_size, self._shape(each)))}]" for each in self._inputs
        ]
        wanted = [f"{each.name} [{', '.join(map(str, each.dims))}]" for each in self._inputs]
        return _Kept(f"{', '.join(shapes)} is not known to be {', '.join(wanted)}")


def _read(value: ir.Value) -> np.ndarray | None:
    """The elements of a constant; None: it is none."""
    from ._onnx_patterns import constant

    try:
        return constant(value)
    except OSError as error:
        raise _Kept(f"the data of {value.name} cannot be read") from error


def _fits(parameter: Parameter, shape: list[Any], sizes: dict[Any, Any]) -> bool:
    """Whether a shape is as the signature has it, where `sizes` are bound; binds the others."""
    own = [each for each in parameter.dims if each != "*"]
    if len(shape) < len(own) or (len(shape) > len(own) and not parameter.leads):
        return False
    count = len(shape) - len(own)
    found: dict[Any, Any] = dict(zip(own, shape[count:], strict=True))
    if parameter.leads:
        found |= {"*": count} | {("*", axis): shape[axis] for axis in range(count)}
    for name, size in found.items():
        if isinstance(name, int):
            sizes.setdefault(name, name)
        if not _is_same(size, sizes.setdefault(name, size)):
            return False
    return True


def _is_from_front(axis: Any) -> bool:
    return isinstance(axis, int) and axis >= 0


def _plain(value: Any) -> Any:
    """An attribute's value, of onnx or of onnx_ir, to be compared."""
    if isinstance(value, bytes):
        return value.decode()
    return list(map(_plain, value)) if isinstance(value, list | tuple) else value


def _is_same(a: Any, b: Any) -> bool:
    """Whether two sizes are known to be equal; names of sizes are, throughout a model."""
    return a is b or (a == b and (isinstance(a, int) or a.value is not None))


def _size(dim: Any) -> str:
    return str(dim) if isinstance(dim, int) else dim.value or "?"


def _dtype(value: ir.Value) -> str | None:
    return None if value.dtype is None else value.dtype.numpy().name


@functools.cache
def _defaults(op_type: str, opset: int) -> dict[str, Any]:
    """The attributes of an operator, with their defaults; none in an opset that lacks it."""
    if not onnx.defs.has(op_type, opset, ""):
        return {}
    attributes = onnx.defs.get_schema(op_type, opset, "").attributes
    return {
        name: onnx.helper.get_attribute_value(each.default_value)
        if each.default_value.name
        else None
        for name, each in attributes.items()
    }
