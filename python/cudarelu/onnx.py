"""The ops in ONNX models.

`export` writes a PyTorch model as a file that every ONNX runtime reads: our ops are nodes of the
domain "cudarelu", which ONNX Runtime runs by our kernels where the library is registered
(`cudarelu.ort`), and anything else by the definitions attached as model-local functions. For
readers without model-local functions, `lower` turns the nodes into standard operators::

    import cudarelu.onnx

    cudarelu.onnx.export(model, (x,), "model.onnx", dynamic_shapes=({0: "batch"},))
    onnx.save(cudarelu.onnx.lower(onnx.load("model.onnx")), "lowered.onnx")

`export` needs onnxscript, as torch.onnx.export does.
"""

from __future__ import annotations

import functools

import onnx
import onnx.helper
import onnx.inliner

from . import _C, ops
from ._onnx_definitions import attach_definitions, function, is_ours, scopes
from ._onnx_export import IR_VERSION, export, register_symbolics, translation_table

__all__ = [
    "attach_definitions",
    "demo_model",
    "export",
    "function",
    "lower",
    "register_symbolics",
    "translation_table",
]


def lower(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy of a model in which standard operators take the place of our ops.

    Each node that calls an op of the table, by its name or its alias, in the graph, in subgraphs
    and in functions, becomes the op's definition.

    Args:
        model: of opset 18 or later. External data may be left unloaded.

    Raises:
        ValueError: as `attach_definitions` does.
    """
    result = attach_definitions(model)
    names = [(each.domain, each.name) for each in result.functions if is_ours(each)]
    result = onnx.inliner.inline_selected_functions(result, names)
    used = {node.domain for scope in scopes(result) for node in scope.node}
    for holder in (result, *result.functions):
        for each in list(holder.opset_import):
            if each.domain in {domain for domain, _ in names} - used:
                holder.opset_import.remove(each)
    return result


def demo_model() -> onnx.ModelProto:
    """The tutorials' one-node model: `custom_domain::CustomRelu` of a float32 `[N, 4]`.

    The definition is attached, so that the model also runs where the library is absent; the IR
    version is the lowest that has model-local functions.
    """
    relu = next(op for op in ops() if op.name == "relu")
    domain, op_type = relu.onnx.alias
    tensor = functools.partial(
        onnx.helper.make_tensor_value_info, elem_type=onnx.TensorProto.FLOAT, shape=["N", 4]
    )
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node(op_type, ["x"], ["y"], name="relu", domain=domain)],
        "myrelu",
        [tensor("x")],
        [tensor("y")],
    )
    model = onnx.helper.make_model(
        graph,
        ir_version=IR_VERSION,
        opset_imports=[
            onnx.helper.make_opsetid("", _C.DEFINITION_OPSET),
            onnx.helper.make_opsetid(domain, _C.ONNX_DOMAIN_VERSION),
        ],
        functions=[function(relu, domain, op_type)],
        producer_name="cudarelu",
    )
    onnx.checker.check_model(model, full_check=True)
    return model
