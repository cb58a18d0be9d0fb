"""The op in Python: its gradient, its shape for torch.compile, and its node in ONNX."""

from pathlib import Path

import onnxscript
import torch
from onnx.defs import OpSchema

DTYPES = "float", "double", "float16", "bfloat16"
torch.ops.load_library(next(Path(__file__).parent.glob("_squared_relu*.so")))
squared_relu = torch.ops.by_hand.squared_relu
schema = OpSchema(
    *("SquaredRelu", "by_hand", 1),
    inputs=[OpSchema.FormalParameter("x", "T")],
    outputs=[OpSchema.FormalParameter("y", "T")],
    type_constraints=[("T", [f"tensor({each})" for each in DTYPES], "")],
)
op_in_onnx = onnxscript.values.Op(onnxscript.values.Opset("by_hand", 1), "SquaredRelu", schema)


@torch.library.register_fake("by_hand::squared_relu")
def shape(x):
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def setup_context(ctx, inputs, output):
    ctx.save_for_backward(*inputs)


def backward(ctx, grad_y):
    (x,) = ctx.saved_tensors
    return 2 * grad_y * torch.relu(x)  # PyTorch's ops, which have gradients themselves


torch.library.register_autograd("by_hand::squared_relu", backward, setup_context=setup_context)


def node(x):
    return op_in_onnx(x)


def export(model, inputs, path, **options):
    table = {squared_relu.default: node}
    torch.onnx.export(model, inputs, path, custom_translation_table=table, **options)
