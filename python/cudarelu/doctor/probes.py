"""Probes that may crash, hang or change the process: each runs in its own process.

Usage: python -P probes.py NAME [ARGUMENT...]. One line of the output is a JSON object of what was
found; its first key, "error", is "" or the error that stopped the probe. This is a script, since
the package may not import.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
import runpy
import sys
import tempfile
from pathlib import Path
from typing import Any

Answer = dict[str, Any]

# The tutorials' model, without a definition, so that only the library can run it.
MODEL = """<ir_version: 8, opset_import: ["" : 18, "custom_domain" : 1]>
main (float[N] x) => (float[N] y) { y = custom_domain.CustomRelu(x) }"""
X, Y = [-1.0, 0.0, 2.0], [0.0, 0.0, 2.0]
PROVIDERS = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}


def pytorch(answer: Answer) -> None:
    """PyTorch without our ops: its version, and whether it reaches the GPU."""
    import torch

    answer |= {"version": torch.__version__, "cuda": torch.version.cuda, "path": torch.__file__}
    if torch.version.cuda:
        try:
            torch.ones(1, device="cuda").add_(1).tolist()
        except Exception as error:  # of any type
            answer["cuda_error"] = _text(error)


def package(answer: Answer, device: str) -> None:
    """Runs an op on PyTorch's tensors, with its gradient."""
    import torch

    import cudarelu

    answer["path"] = cudarelu.__file__
    x = torch.tensor(X, device=device, requires_grad=True)
    y = cudarelu.relu(x)
    y.sum().backward()
    _check(y.tolist(), Y)
    assert x.grad is not None
    _check(x.grad.tolist(), [0.0, 0.0, 1.0])


def products(answer: Answer) -> None:
    """Asks why matrix products on CUDA cannot use cuBLASLt."""
    from cudarelu import _C

    answer["problem"] = _C.cublaslt_problem()


def compile(answer: Answer, device: str) -> None:
    """Compiles an op between others with torch.compile."""
    import torch
    from torch._inductor.cpp_builder import get_cpp_compiler

    import cudarelu

    if device == "cpu":
        get_cpp_compiler()  # Inductor's cache of an earlier run would hide a missing compiler
    compiled = torch.compile(lambda x: cudarelu.relu(x + 1) - 1, fullgraph=True)
    _check(compiled(torch.tensor(X, device=device)).tolist(), [-1.0, 0.0, 2.0])


def export(answer: Answer) -> None:
    """Exports a module to ONNX."""
    import torch

    import cudarelu.nn
    import cudarelu.onnx

    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "model.onnx")
        cudarelu.onnx.export(cudarelu.nn.ReLU().eval(), (torch.tensor(X),), path, verbose=False)
        answer["bytes"] = os.path.getsize(path)


def onnx_runtime(answer: Answer) -> None:
    import onnxruntime

    answer |= {
        "version": onnxruntime.__version__,
        "path": onnxruntime.__file__,
        "providers": onnxruntime.get_available_providers(),
    }


def library(answer: Answer, path: str) -> None:
    """Opens a custom-op library as ONNX Runtime does, and resolves all its symbols."""
    opened = ctypes.CDLL(path, os.RTLD_NOW | os.RTLD_LOCAL)
    answer["registers"] = hasattr(opened, "RegisterCustomOps")
    answer["is_module"] = hasattr(opened, "cudarelu_get_module")


def session(answer: Answer, provider: str, path: str, *op_libraries: str) -> None:
    """Creates a session of a model with the ops of libraries. If the path is "", runs the model
    above.

    On CUDA it also loads PyTorch, as a program that uses both frameworks does.
    """
    if provider == "cuda":
        with contextlib.suppress(Exception):  # another probe reports it
            import torch  # noqa: F401
    import onnxruntime

    if provider == "cuda":
        libraries(answer)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    for library in op_libraries:
        options.register_custom_ops_library(library)
    if path:
        model: Any = path
    else:
        import onnx.parser

        model = onnx.parser.parse_model(MODEL).SerializeToString()
    made = onnxruntime.InferenceSession(model, options, providers=[PROVIDERS[provider]])
    answer["providers"] = made.get_providers()
    if not path:
        import numpy as np

        _check(made.run(None, {"x": np.array(X, np.float32)})[0].tolist(), Y)


def demo_model(answer: Answer, path: str) -> None:
    """Writes the model above to a file."""
    import onnx.parser

    onnx.save(onnx.parser.parse_model(MODEL), path)


def libraries(answer: Answer) -> None:
    """Loads what ONNX Runtime's CUDA provider needs, and lists the process's CUDA libraries."""
    # By its path, since the package imports PyTorch.
    provider = runpy.run_path(str(Path(__file__).parent / "cuda_provider.py"))
    answer["libraries"] = [dict(vars(each)) for each in provider["libraries"]()]
    maps = os.fsdecode(Path("/proc/self/maps").read_bytes())
    answer["loaded"] = sorted(set(re.findall(r"/\S*/lib(?:cudart|cudnn|cublas)\.so\S*", maps)))


def driver(answer: Answer) -> None:
    """Asks for the NVIDIA driver's version, and the GPUs that this process sees."""
    cuda = ctypes.CDLL("libcuda.so.1")

    def call(name: str, *arguments: Any) -> None:
        if status := getattr(cuda, name)(*arguments):
            text = ctypes.c_char_p()
            cuda.cuGetErrorName(status, ctypes.byref(text))
            raise RuntimeError(f"{name}: {(text.value or b'?').decode()} ({status})")

    version, count = ctypes.c_int(), ctypes.c_int()
    call("cuDriverGetVersion", ctypes.byref(version))
    answer["cuda"] = f"{version.value // 1000}.{version.value % 1000 // 10}"
    call("cuInit", 0)
    call("cuDeviceGetCount", ctypes.byref(count))
    answer["gpus"] = []
    for i in range(count.value):
        name, device = ctypes.create_string_buffer(100), ctypes.c_int()
        major, minor = ctypes.c_int(), ctypes.c_int()
        call("cuDeviceGet", ctypes.byref(device), i)
        call("cuDeviceGetName", name, len(name), device)
        # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, and _MINOR
        call("cuDeviceGetAttribute", ctypes.byref(major), 75, device)
        call("cuDeviceGetAttribute", ctypes.byref(minor), 76, device)
        capability = 10 * major.value + minor.value
        answer["gpus"].append({"name": name.value.decode(), "capability": capability})


def model(answer: Answer, path: str, module: str = "") -> None:
    """Reads a model, and checks that its nodes call our ops, and those of a module, correctly."""
    from cudarelu import load_library
    from cudarelu._table import all_ops
    from cudarelu.onnx.files import load
    from cudarelu.onnx.inspection import describe

    if module:
        load_library(module)
    answer["names"] = [
        "::".join(name)
        for op in all_ops()
        for name in ((op.onnx.domain, op.onnx.op_type), op.onnx.alias)
        if name
    ]
    answer |= describe(load(Path(path)))


def _check(found: list[float], expected: list[float]) -> None:
    if found != expected:
        raise ArithmeticError(f"{found} instead of {expected}")


def _text(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def main(name: str, *arguments: str) -> None:
    answer: Answer = {"error": ""}
    try:
        globals()[name](answer, *arguments)
    except BaseException as error:
        answer["error"] = _text(error)
    print(f"\n{json.dumps(answer)}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
