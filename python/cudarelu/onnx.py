"""The ops in ONNX models: definitions as model-local functions, and the demonstration model."""

from __future__ import annotations

import functools

import onnx
import onnx.helper
import onnx.parser

from . import _C, OpInfo, ops

# Model-local functions need IR version 8, which every ONNX Runtime since 1.10 reads.
IR_VERSION = 8


@functools.cache
def _function(op: OpInfo, domain: str, op_type: str) -> onnx.FunctionProto:
    attributes = ", ".join(
        a.name if a.required else f"{a.name}: {a.type} = {a.default}" for a in op.attributes
    )
    names = ["(" + ", ".join(p.name for p in group) + ")" for group in (op.inputs, op.outputs)]
    return onnx.parser.parse_function(
        f'<domain: "{domain}", opset_import: ["" : {_C.DEFINITION_OPSET}]> {op_type} '
        f"{f'<{attributes}>' if attributes else ''} {names[0]} => {names[1]} {{ {op.definition} }}"
    )


def function(op: OpInfo, domain: str | None = None, op_type: str | None = None):
    """The definition of an op as an ONNX function: with it a model runs without this library.

    Every optional input that has a stand-in is an input of the function: a node that leaves one
    out must be given the stand-in first.

    Args:
        op: an entry of `cudarelu.ops()`.
        domain: of the function; the library's own by default.
        op_type: the function's name; the op's name in CamelCase by default.

    Returns:
        A new `onnx.FunctionProto` of opset 18.
    """
    result = onnx.FunctionProto()
    result.CopyFrom(_function(op, domain or op.onnx.domain, op_type or op.onnx.op_type))
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
