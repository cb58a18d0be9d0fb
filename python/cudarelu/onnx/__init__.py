"""The ops in ONNX models.

`export` writes a PyTorch model as a file that every ONNX runtime reads: our ops are nodes of the
domain "cudarelu", which ONNX Runtime runs by our kernels where the library is registered
(`cudarelu.ort`), and anything else by the definitions attached as model-local functions. For
readers without model-local functions, `lower` turns the nodes into standard operators::

    import cudarelu.onnx

    cudarelu.onnx.export(model, (x,), "model.onnx", dynamic_shapes=({0: "batch"},))
    onnx.save(cudarelu.onnx.lower(onnx.load("model.onnx")), "lowered.onnx")

`accelerate` goes the other way: it finds definitions in a model and puts our ops in their place.

`export` and `accelerate` need onnxscript, as torch.onnx.export does.
"""

from .accelerator import accelerate
from .definitions import function
from .exporter import export, register_symbolics, translation_table
from .models import attach_definitions, demo_model, lower

__all__ = [
    "accelerate",
    "attach_definitions",
    "demo_model",
    "export",
    "function",
    "lower",
    "register_symbolics",
    "translation_table",
]
