"""The ops in ONNX models.

`export` writes a PyTorch model to a file that every ONNX runtime can read. Our ops are nodes of the
domain "cudarelu", and the ops of a loaded module (`cudarelu.load_library`) of that module's domain.
ONNX Runtime runs them with our kernels if the libraries are registered (`cudarelu.ort`); other
runtimes use the definitions, which are attached as model-local functions. For a runtime without
model-local functions, `lower` replaces the nodes by standard operators::

    import cudarelu.onnx

    cudarelu.onnx.export(model, (x,), "model.onnx", dynamic_shapes=({0: "batch"},))
    onnx.save(cudarelu.onnx.lower(onnx.load("model.onnx")), "lowered.onnx")

`accelerate` does the reverse: it finds definitions in a model and replaces them by our ops.

`export` needs onnxscript, as torch.onnx.export does. `accelerate` needs onnx_ir, which is installed
with onnxscript.
"""

from .._onnx.definitions import function
from .accelerator import accelerate
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
