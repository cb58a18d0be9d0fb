"""Models as onnx_ir has them, which has no types of maps."""

from __future__ import annotations

from pathlib import Path

import onnx
import onnx_ir as ir

from .._onnx.graphs import scopes


def from_proto(model: onnx.ModelProto, folder: Path | None) -> ir.Model:
    """A model whose external data is in a folder.

    Only tensors have types, since no op takes another value. `to_proto` gives the inputs and
    outputs of graphs their types back.
    """
    plain = onnx.ModelProto()
    plain.CopyFrom(model)
    types = {}
    for scope in scopes(plain):
        values = list(scope.value_info)
        if isinstance(scope, onnx.GraphProto):
            values += [*scope.input, *scope.output]
        for value in values:
            if value.type.WhichOneof("value") not in (None, "tensor_type"):
                types[value.name] = onnx.TypeProto()
                types[value.name].CopyFrom(value.type)
                value.ClearField("type")
    result = ir.from_proto(plain)
    ir.external_data.set_base_dir(result.graph, folder or "")
    result.meta["types"] = types
    return result


def to_proto(model: ir.Model) -> onnx.ModelProto:
    """The reverse of `from_proto`."""
    result = ir.to_proto(model)
    for scope in scopes(result):
        if isinstance(scope, onnx.GraphProto):
            for value in (*scope.input, *scope.output):
                if not value.HasField("type") and value.name in model.meta["types"]:
                    value.type.CopyFrom(model.meta["types"][value.name])
    return result
