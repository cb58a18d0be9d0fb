"""Exports PyTorch models to ONNX with either of PyTorch's exporters."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from typing import Any

import onnx
import onnx.helper
import onnx.shape_inference
import torch
from onnx.defs import OpSchema
from torch.onnx import symbolic_helper
from torch.overrides import TorchFunctionMode

from .._calls import type_name
from .._onnx.definitions import IR_VERSION
from .._onnx.graphs import scopes
from .._pytorch.functions import overload_of
from .._table import Attribute, OpInfo, Parameter, all_ops
from .files import in_a_line, placed
from .models import attach_definitions

METADATA_IR_VERSION = 10  # the first with metadata_props on nodes, values and graphs

_ONNX_TYPES = {"float32": "float", "float64": "double"}  # the names that differ
_SCHEMA_TYPES = {"int": OpSchema.AttrType.INT, "float": OpSchema.AttrType.FLOAT}


def export(
    module: torch.nn.Module | torch.export.ExportedProgram,
    args: tuple[Any, ...] = (),
    path: str | os.PathLike[str] | None = None,
    *,
    kwargs: dict[str, Any] | None = None,
    dynamic_shapes: Any = None,
    opset_version: int | None = None,
    dynamo: bool = True,
    external_data: bool = False,
    **torch_onnx_options: Any,
) -> onnx.ModelProto:
    """Exports a model with `torch.onnx.export`, to run with this library and without it.

    The file contains each definition that the model needs (`attach_definitions`) and the type of
    every tensor. It has the lowest IR version that its opset allows, and passes `onnx.checker`. The
    file is written completely or not at all. Weights in a separate file, `<path>.data` (one file
    for each weight if TorchScript exports), are put in place just before it.

    Args:
        module: as in `torch.onnx.export`.
        args: example inputs.
        path: the file to write. None only returns the model.
        kwargs: example inputs by name.
        dynamic_shapes: as in `torch.export`; a string or a Dim names a size in the file.
        opset_version: 18, which is the default, or later; the latest opset of the definitions of a
            loaded module, if that is later. PyTorch's own translations are of opset 18; PyTorch
            converts the model to a later opset, which needs a higher IR version.
        dynamo: False exports with TorchScript, as long as PyTorch has this exporter; in this case
            `input_names` and `dynamic_axes` name sizes.
        external_data: whether to write weights of any size to a separate file. Weights of 1.5 GB or
            more are always in one.
        torch_onnx_options: other options of `torch.onnx.export`. Entries of
            `custom_translation_table` and `custom_opsets` take precedence over ours.

    Returns:
        The model. External data of a written model is not loaded: `onnx.load(path)` loads it.

    Raises:
        TypeError: if `module` is a function.
        ValueError: for an opset before 18, dynamic_shapes with dynamo=False, a path that exists and
            is not a file, a dtype that a definition does not support in this opset (Asinh supports
            bfloat16 from opset 22 on), and an attribute that depends on a dynamic size.
        RuntimeError: if PyTorch cannot export the model; the message has the reason in one line.
            In-place ops cannot be exported, except those in the modules of `cudarelu.nn`.
        OSError: if the file cannot be written.
    """
    if not isinstance(module, (torch.nn.Module, torch.export.ExportedProgram)):
        raise TypeError(
            f"export takes a torch.nn.Module, not {type_name(module)}; cudarelu.nn.Op wraps an op "
            "as a module"
        )
    needed = _definition_opset()
    opset_version = needed if opset_version is None else opset_version
    if opset_version < needed:
        raise ValueError(
            f"opset_version is {opset_version}, but the definitions of our ops need {needed}"
        )
    if dynamic_shapes is not None and not dynamo:
        raise ValueError("dynamic_shapes needs dynamo=True: TorchScript takes dynamic_axes")

    options = torch_onnx_options | {"kwargs": kwargs, "opset_version": opset_version}
    if dynamo:
        options |= {"dynamic_shapes": dynamic_shapes, "external_data": external_data}
        theirs = options.get("custom_translation_table") or {}
        options["custom_translation_table"] = translation_table() | theirs
    else:
        register_symbolics()
        domains = {op.onnx.domain: op.onnx.version for op in all_ops()}
        options["custom_opsets"] = domains | (options.get("custom_opsets") or {})

    with placed(path) as file:
        try:
            with _Calls() as calls:
                torch.onnx.export(module, args, str(file), dynamo=dynamo, **options)
        except torch.onnx.OnnxExporterError as error:
            reason = calls.in_place or _reason(error)
            raise RuntimeError(f"PyTorch cannot export the model: {reason}") from error
        if calls.dynamic_attribute is not None:
            raise ValueError(calls.dynamic_attribute)
        model = onnx.load(file, load_external_data=False)
        if not dynamo:
            _forget_invented_sizes(model, options.get("dynamic_axes") or {})
        model = _finished(model)
        onnx.save(model, file)
        with in_a_line("the exported model is not valid ONNX"):
            onnx.checker.check_model(str(file), full_check=True)
        return model if path is not None else onnx.load(file)


def _definition_opset() -> int:
    return max(op.definition_opset for op in all_ops())


def _reason(error: BaseException) -> str:
    """The first line of the original error, which PyTorch's exporters wrap in advice."""
    while error.__cause__ is not None:
        error = error.__cause__
    return f"{type(error).__name__}: {error}".splitlines()[0]


class _Calls(TorchFunctionMode):
    """Notes calls of our ops that a model cannot have."""

    def __init__(self) -> None:
        super().__init__()
        self._ops = {f"{op.namespace}.{op.name}": op for op in all_ops()}
        self.in_place: str | None = None
        # PyTorch's exporter would write the value that the attribute has in the example.
        self.dynamic_attribute: str | None = None

    def __torch_function__(
        self, called: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        name = str(called).removesuffix(".default")
        if op := self._ops.get(name.removesuffix("_")):
            if name.endswith("_"):
                self.in_place = (
                    f"{op.name}_ works in place; call {op.name}, which returns the result"
                )
            names = [each.name for each in op.inputs] + [each.name for each in op.attributes]
            for attribute, value in {**dict(zip(names, args, strict=False)), **kwargs}.items():
                if isinstance(value, torch.SymInt):
                    self.dynamic_attribute = (
                        f"{op.short_name}: {attribute} is {value}, which depends on a dynamic "
                        "size, but an attribute in a model is a constant"
                    )
        return called(*args, **kwargs)


def _finished(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with definitions and types, and without metadata that its IR version lacks."""
    model = attach_definitions(model)
    model.ir_version = max(
        IR_VERSION, onnx.helper.find_min_ir_version_for(model.opset_import, ignore_unknown=True)
    )
    if model.ir_version < METADATA_IR_VERSION:
        _remove_metadata(model)
    return onnx.shape_inference.infer_shapes(model, data_prop=True)


def _forget_invented_sizes(model: onnx.ModelProto, named: Collection[str]) -> None:
    """Removes the names that the TorchScript exporter invents for unknown sizes.

    Type inference through the definitions finds better ones. `named` are the tensors whose sizes
    the user has named.
    """
    for tensor in (*model.graph.value_info, *model.graph.output):
        if tensor.name not in named:
            for dim in tensor.type.tensor_type.shape.dim:
                dim.ClearField("dim_param")


def _remove_metadata(model: onnx.ModelProto) -> None:
    """Removes PyTorch's metadata of each node, such as stack traces with file paths."""
    for scope in scopes(model):
        holders = [scope, *scope.node, *scope.value_info]
        if isinstance(scope, onnx.GraphProto):
            holders += [*scope.input, *scope.output, *scope.initializer]
        for holder in holders:
            del holder.metadata_props[:]


def translation_table() -> dict[torch._ops.OpOverload, Callable[..., Any]]:
    """The translations of our ops, for `torch.onnx.export(..., custom_translation_table=...)`.

    These are the ops of the modules that are loaded by now.

    The written model needs this library in the runtime, until `attach_definitions` is applied to
    it. Translations of other ops may call the values of this table.
    """
    return {overload_of(op): _translation(op) for op in all_ops()}


def _translation(op: OpInfo) -> Callable[..., Any]:
    from onnxscript import values  # takes long to import

    domain = values.Opset(op.onnx.domain, op.onnx.version)
    node = values.Op(domain, op.onnx.op_type, _schema(op))
    # PyTorch requires a function.
    return lambda *inputs, **named: node(*inputs, **op.onnx_attributes(named))


def _schema(op: OpInfo) -> OpSchema:
    def tensor(dtype: str) -> str:
        return f"tensor({_ONNX_TYPES.get(dtype, dtype)})"

    def formal(parameter: Parameter) -> OpSchema.FormalParameter:
        option = OpSchema.FormalParameterOption
        return OpSchema.FormalParameter(
            parameter.name,
            _type_of(parameter) or tensor(parameter.dtype),
            param_option=option.Optional if parameter.optional else option.Single,
        )

    constraints: dict[str, list[str]] = {}
    for each in op.inputs:
        if name := _type_of(each):
            found = [op.dtypes if dtype == "T" else (dtype,) for dtype in op.dtypes_of(each)]
            constraints.setdefault(name, []).extend(dtype for group in found for dtype in group)
    for choice in op.attributes:
        if choice.dtypes:
            constraints[f"T_{choice.name}"] = [*choice.dtypes]
    return OpSchema(
        op.onnx.op_type,
        op.onnx.domain,
        op.onnx.version,
        inputs=[formal(each) for each in op.inputs],
        outputs=[formal(each) for each in op.outputs],
        type_constraints=[
            (name, list(dict.fromkeys(map(tensor, dtypes))), "")
            for name, dtypes in constraints.items()
        ],
        attributes=[
            OpSchema.Attribute(each.name, _SCHEMA_TYPES[each.onnx_type], required=each.required)
            for each in op.attributes
        ],
    )


def _type_of(parameter: Parameter) -> str | None:
    """The type variable of a tensor, of which an input that may have several dtypes has its own;
    None for a fixed dtype."""
    if parameter.has_dtypes:
        return f"T_{parameter.name}"
    return f"T_{parameter.dtype_of}" if parameter.dtype_of else parameter.variable


def register_symbolics(opset_version: int | None = None) -> None:
    """Registers our ops for `torch.onnx.export(..., dynamo=False)`, the TorchScript exporter.

    These are the ops of the modules that are loaded by now.

    The written model needs this library in the runtime, until `attach_definitions` is applied to
    it.

    Args:
        opset_version: the first opset in which the exporter knows the ops; by default that of the
            definitions.
    """
    opset = opset_version or _definition_opset()
    for op in all_ops():
        torch.onnx.register_custom_op_symbolic(op.qualified_name, _symbolic(op), opset)


def _constant(attribute: Attribute, value: Any) -> Any:
    """The value of an attribute in a graph of TorchScript."""
    if attribute.optional and symbolic_helper._is_none(value):
        return None
    kind = "i" if attribute.type == "bool" else attribute.type[0]
    return symbolic_helper._get_const(value, kind, attribute.name)


def _symbolic(op: OpInfo) -> Callable[..., Any]:
    count = len(op.inputs)

    def symbolic(graph: Any, *arguments: Any) -> Any:
        inputs = arguments[:count]
        attributes = {
            f"{each.name}_{each.onnx_type[0]}": each.onnx_value(_constant(each, value))
            for each, value in zip(op.attributes, arguments[count:], strict=True)
        }
        name = f"{op.onnx.domain}::{op.onnx.op_type}"
        result = graph.op(name, *inputs, outputs=len(op.outputs), **attributes)
        # Without a type, the exporter warns and knows less about the nodes that follow.
        for each, output in zip(op.outputs, result if len(op.outputs) > 1 else [result]):  # noqa: B905
            for like, value in zip(op.inputs, inputs, strict=True):
                same_shape = (like.dims, like.axis) == (each.dims, each.axis)
                if like.dtype == each.dtype and same_shape and not like.varies:
                    output.setType(value.type())
        return result

    return symbolic
