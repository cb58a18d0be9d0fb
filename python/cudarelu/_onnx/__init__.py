"""The ops' definitions as ONNX functions and as expressions, for `cudarelu.defining` and above."""
