"""The table of known troubles: symptom, cause and fix.

The doctor's messages and docs/troubleshooting.md are made from it:

    python -m cudarelu.doctor.troubles > docs/troubleshooting.md
"""

from __future__ import annotations

import re
import string
from dataclasses import dataclass


@dataclass(frozen=True)
class Trouble:
    """A symptom, its cause and its fix.

    The doctor replaces `{names}` in the cause and the fix, also by groups of the pattern. The page
    has them in capitals.
    """

    symptom: str  # as one would search for it
    cause: str
    mend: str = ""  # the fix, as a command if possible
    pattern: str = ""  # matches the error texts with this cause; empty if a check detects it
    pip: tuple[str, ...] = ()  # instead of `mend`: pip commands that are safe to run unasked


TROUBLES = {
    # PyTorch
    "torch-missing": Trouble(
        "No module named 'torch'",
        "PyTorch is not installed in this environment",
        '{pip} install "torch=={latest}.*"',
    ),
    "torch-broken": Trouble(
        "import torch fails: OSError, undefined symbol, cannot open shared object file",
        "PyTorch does not import: one of its libraries is damaged or has another version",
        '{pip} install --force-reinstall "torch=={latest}.*"',
    ),
    "torch-version": Trouble(
        "cudarelu was built for PyTorch 2.11, but this is 2.14; undefined symbol: _ZN3c10..., "
        "_ZN2at..., _ZN5torch...",
        "cudarelu's libraries were built for PyTorch {built}, but this is PyTorch {found}; a "
        "library needs the minor version that it was built for",
        '{pip} install "torch=={latest}.*"  # or build again: cmake -B build && '
        "cmake --build build",
        r"(?:was built for PyTorch|undefined symbol: _ZNK?(?:3c10|2at|5torch))",
    ),
    "not-built": Trouble(
        "No module named 'cudarelu._build_info', cannot import name '_C' from 'cudarelu'",
        "this is cudarelu's source or an incomplete build, without its libraries",
        "cmake -B build && cmake --build build && export PYTHONPATH=$PWD/build/python",
        r"(?:cudarelu\._build_info|cannot import name '_(?:C|build_info)')",
    ),
    "torch-without-cuda": Trouble(
        "Torch not compiled with CUDA enabled; torch.cuda.is_available() is False; "
        "torch.version.cuda is None",
        "PyTorch {version} was built without CUDA",
        '{pip} install --force-reinstall "torch=={plain}"',
    ),
    "arch-list": Trouble(
        "TORCH_CUDA_ARCH_LIST=12.8; Unknown CUDA arch (12.8) or GPU not supported",
        "TORCH_CUDA_ARCH_LIST={value}: {entry} is not a known compute capability; the list does "
        "not take CUDA versions",
        'export TORCH_CUDA_ARCH_LIST="{suggested}"  # or: unset TORCH_CUDA_ARCH_LIST',
    ),
    "arch-list-gpu": Trouble(
        "TORCH_CUDA_ARCH_LIST is set, and then: no kernel image is available",
        "TORCH_CUDA_ARCH_LIST={value} leaves out {gpu}: extensions that PyTorch builds from "
        "sources will not run on it",
        'export TORCH_CUDA_ARCH_LIST="{suggested}"  # or: unset TORCH_CUDA_ARCH_LIST',
    ),
    "no-compiler": Trouble(
        "torch.compile: InvalidCxxCompiler: No working C++ compiler found; Failed to find C "
        "compiler; Python.h: No such file or directory",
        "torch.compile does not find a compiler or Python's headers: it compiles C++ for the CPU, "
        "and a launcher for CUDA",
        "sudo apt-get install g++ python3-dev",
        r"(?:InvalidCxxCompiler|No working C\+\+ compiler|Failed to find C compiler|Python\.h: No)",
    ),
    "onnxscript-missing": Trouble(
        "No module named 'onnxscript'; No module named 'onnx_ir'",
        "torch.onnx.export needs the package onnxscript, and accelerate needs onnx_ir, which is "
        "installed with it",
        pattern=r"No module named 'onnx(?:script|_ir)",
        pip=("install onnxscript",),
    ),
    "onnx-missing": Trouble(
        "No module named 'onnx'",
        "the package onnx is missing: models can be neither read nor written",
        pattern=r"No module named 'onnx'",
        pip=("install onnx",),
    ),
    # ONNX Runtime
    "ort-missing": Trouble(
        "No module named 'onnxruntime'",
        "ONNX Runtime is not installed in this environment",
        "{pip} install {package}",
        r"No module named 'onnxruntime'",
    ),
    "ort-both": Trouble(
        "CUDAExecutionProvider is gone after pip install of another package; onnxruntime and "
        "onnxruntime-gpu in pip list",
        "onnxruntime {cpu} and onnxruntime-gpu {gpu} are both installed: they install the same "
        "files, and the last one overwrites the other",
        pip=(
            # The first checks that the package is available, before the second removes the other.
            "install --dry-run --force-reinstall --no-deps onnxruntime-gpu=={gpu}",
            "uninstall -y onnxruntime",
            "install --force-reinstall --no-deps onnxruntime-gpu=={gpu}",
        ),
    ),
    "ort-old": Trouble(
        "The requested API version [23] is not available, only API versions [1, 15] are supported; "
        "cudarelu needs ONNX Runtime 1.16",
        "ONNX Runtime {found} is too old: {needs}",
        '{pip} install --upgrade "{package}>={least}"',
    ),
    "ort-headers": Trouble(
        "onnxruntime_c_api.h: No such file or directory; no onnxruntime_c_api.h: set ORT_ROOT",
        "a build needs ONNX Runtime's C headers, which the Python packages do not have: {why}",
        "ORT_ROOT=/path/to/an/unpacked/release cmake -B build -DCUDARELU_ORT=ON && "
        "cmake --build build",
    ),
    "ort-without-cuda": Trouble(
        "Specified provider 'CUDAExecutionProvider' is not in available provider names",
        "this onnxruntime has no CUDA provider",
        '{pip} uninstall -y onnxruntime && {pip} install "{package}"',
    ),
    "cuda-library": Trouble(
        "Failed to load library libonnxruntime_providers_cuda.so with error: libcublasLt.so.13: "
        "cannot open shared object file",
        "{name} does not load: ONNX Runtime's CUDA provider needs it {extent}",
        pip=("install {package}",),
    ),
    "plugin-missing": Trouble(
        "this cudarelu was built without ONNX Runtime",
        "the package was built without ONNX Runtime",
        "cmake -B build -DCUDARELU_ORT=ON && cmake --build build",
    ),
    "library-missing": Trouble(
        "Failed to load library my_ops.so with error: cannot open shared object file",
        "the file {path} does not exist",
        "find . -name '*.so'  # then give its path",
    ),
    "ort-infer-missing": Trouble(
        "ort_infer: No such file or directory",
        "ort_infer was not built: it is neither beside the package nor on the PATH",
        "cmake -B build -DCUDARELU_ORT=ON && cmake --build build",
    ),
    "no-onnxruntime-library": Trouble(
        "ort_infer: cannot open ONNX Runtime: libonnxruntime.so.1: cannot open shared object file",
        "ort_infer opens ONNX Runtime's library at run time, and found none that loads",
        "export CUDARELU_ORT_LIBRARY={runtime}",
        r"cannot open ONNX Runtime",
    ),
    "no-entry-point": Trouble(
        "Failed to get symbol RegisterCustomOps with error: undefined symbol: RegisterCustomOps",
        "{path} is not a custom-op library of ONNX Runtime: it does not export RegisterCustomOps",
        "{python} -c 'import cudarelu.ort as o; print(o.library_path())'  # the file to give",
    ),
    "undefined-symbol": Trouble(
        "Failed to load library my_ops.so with error: undefined symbol: OrtGetApiBase",
        "the library needs {symbol}, which nothing in the process provides: it was linked without "
        "a library that it needs, or expects ONNX Runtime to export the symbol",
        "link it with -Wl,--no-undefined; for OrtGetApiBase compile it with -DORT_API_MANUAL_INIT",
        r"undefined symbol: (?P<symbol>\w+)",
    ),
    "domain-twice": Trouble(
        "Domain already set in registry",
        "two libraries register one domain, or a library other than cudarelu's is registered twice",
        "register each library once, and cudarelu's last; cudarelu's may be registered again",
        r"Domain already set in registry",
    ),
    # CUDA
    "driver-missing": Trouble(
        "Found no NVIDIA driver on your system; libcuda.so.1: cannot open shared object file",
        "there is no NVIDIA driver on this machine",
        "sudo apt-get install nvidia-driver-580  # a container: docker run --gpus all",
        r"Found no NVIDIA driver|libcuda\.so\.1: cannot open",
    ),
    "driver-failed": Trouble(
        "cuInit: CUDA_ERROR_SYSTEM_DRIVER_MISMATCH; Failed to initialize NVML: Driver/library "
        "version mismatch; CUDA unknown error",
        "the NVIDIA driver is installed but does not start: it was updated while in use, or its "
        "kernel module is not loaded",
        "sudo modprobe nvidia nvidia_uvm  # or restart the machine",
        r"cuInit: (?!CUDA_ERROR_NO_DEVICE)",
    ),
    "gpu-hidden": Trouble(
        "No CUDA GPUs are available; CUDA_ERROR_NO_DEVICE",
        "the NVIDIA driver shows no GPU to this process: CUDA_VISIBLE_DEVICES is {visible}",
        "unset CUDA_VISIBLE_DEVICES  # a container: docker run --gpus all",
        r"No CUDA GPUs are available|CUDA_ERROR_NO_DEVICE",
    ),
    "driver-old": Trouble(
        "The NVIDIA driver on your system is too old (found version 12040); CUDA driver version is "
        "insufficient for CUDA runtime version",
        "the NVIDIA driver supports CUDA up to {driver}, but {user} is built with CUDA {needed}",
        "sudo apt-get install nvidia-driver-580  # CUDA 13 needs 580 or later, CUDA 12 needs 525",
        r"driver on your system is too old|driver version is insufficient",
    ),
    "cuda-majors": Trouble(
        "CUDNN_STATUS_NOT_INITIALIZED, a crash, or libcublas.so.12: cannot open shared object file "
        "with PyTorch and ONNX Runtime in one process",
        "PyTorch is built for CUDA {torch}, but this onnxruntime-gpu for CUDA {ort}: it cannot use "
        "the libraries that PyTorch brings",
        '{pip} install "{package}"',
    ),
    "toolkit-major": Trouble(
        "PyTorch for CUDA 12 with a library built by nvcc 13",
        "{name} was built with CUDA {toolkit}, but PyTorch with CUDA {torch}: each has its own "
        "runtime, and the driver must be new enough for both",
        "build again with the nvcc of CUDA {torch}: CUDACXX=/usr/local/cuda-{torch}/bin/nvcc "
        "cmake -B build --fresh && cmake --build build",
    ),
    "two-copies": Trouble(
        "CUDNN_STATUS_SUBLIBRARY_VERSION_MISMATCH; a crash with two versions of libcudart or "
        "libcudnn in it",
        "two files of {name} are loaded in one process: {paths}",
        "unset LD_LIBRARY_PATH  # if it leads to one of them; otherwise uninstall one",
    ),
    "cublaslt-missing": Trouble(
        "cannot open cuBLASLt: libcublasLt.so.13: cannot open shared object file",
        "cuBLASLt {major}, of the CUDA that cudarelu was built with, is not found: matrix products "
        "use slower kernels",
        '{pip} install "nvidia-cublas=={major}.*" && export LD_LIBRARY_PATH="$({python} -c '
        "'import nvidia; print(nvidia.__path__[0])')/cu{major}/lib:$LD_LIBRARY_PATH\"",
        r"cannot open cuBLASLt: .*?libcublasLt\.so\.(?P<major>\d+)",
    ),
    "cublaslt-major": Trouble(
        "cannot use cuBLASLt 12: this build is for 13",
        "this is cuBLASLt {library}, but cudarelu was built for {major}: matrix products use "
        "slower kernels",
        "CUDACXX=/usr/local/cuda-{library}/bin/nvcc cmake -B build --fresh && cmake --build build",
        r"cannot use cuBLASLt (?P<library>\d+): this build is for (?P<major>\d+)",
    ),
    "no-kernel-image": Trouble(
        "no kernel image is available for execution on the device; cudaErrorNoKernelImageForDevice",
        "{name} has no code for {gpu}: it has {has}",
        "cmake -B build -DCUDARELU_CUDA_ARCHITECTURES={capability} && cmake --build build",
        r"no kernel image is available",
    ),
    "no-cuda-kernels": Trouble(
        "this build has no CUDA kernels; configure with -DCUDARELU_CUDA=ON",
        "cudarelu was built without CUDA",
        "cmake -B build -DCUDARELU_CUDA=ON && cmake --build build",
        r"this build has no CUDA kernels",
    ),
    "nvcc-broken": Trouble(
        "nvcc: command not found; cudafe++: not found; nvcc fatal: Could not open libdevice",
        "{path} is not a working nvcc",
        "CUDACXX=/usr/local/cuda/bin/nvcc cmake -B build --fresh",
    ),
    "nvcc-old": Trouble(
        "nvcc fatal : Unsupported gpu architecture 'compute_120'",
        "{path} is from CUDA {version}, which supports GPUs up to compute capability {newest}; "
        "{lacks}",
        "CUDACXX={better} cmake -B build --fresh",
    ),
    "nvcc-shadowed": Trouble(
        "nvcc --version is not the toolkit that was just installed",
        "{path}, CUDA {version}, comes first on the PATH and hides a newer one",
        'export PATH="{folder}:$PATH"',
    ),
    # Models
    "model-unreadable": Trouble(
        "No such file or directory; is not an ONNX model, or a truncated one; ModelProto does not "
        "have a graph; Protobuf parsing failed",
        "the model cannot be read: {why}",
        "ls -l {path}  # a Git LFS pointer has about 130 bytes: git lfs pull",
    ),
    "model-calls": Trouble(
        "node ..., cudarelu::Relu: there is no attribute slope; 2 inputs, but it has 1; there is "
        "no such op; version 2 of the domain cudarelu",
        "the model does not call an op as this library declares it: {why}",
        "{python} -m cudarelu ops  # and export the model again with this version",
    ),
    "unknown-op": Trouble(
        "my_domain:MyRelu(-1) is not a registered function/op",
        "{name} is neither an op of ONNX or of a known library, nor a function of the model",
        "{python} -m cudarelu doctor --model {path} --library FILE.so  # the library that has it",
        r"(?P<name>\S*:\w+)\(-1\) is not a registered function/op",
    ),
    "op-of-module": Trouble(
        "my:MyRelu(-1) is not a registered function/op, but cudarelu.load has built a module my",
        "{name} is an op of another module; cudarelu.load has built a module {domain}, which may "
        "have it",
        "{python} -m cudarelu doctor --model {path} --library {library}  # and register this file",
    ),
    "function-types": Trouble(
        "Node () Op (Twice) output arg (h) type inference failed, inferred types: index=0,",
        "ONNX Runtime cannot type the function {name} of the model, which calls our ops, if the "
        "model does not have their definitions",
        "{python} -c 'import sys, onnx, cudarelu.onnx as c; p = sys.argv[1]; onnx.save("
        "c.attach_definitions(onnx.load(p, load_external_data=False)), p)' {path}",
        r"Op \((?P<name>\w+)\) output arg \(.*?\) type inference failed, inferred types: index=0,",
    ),
    "model-dtype": Trouble(
        "Type 'tensor(uint8)' of input parameter (x) of operator (Relu) in node () is invalid",
        "an input of {name} is {dtype}, which none of its kernels supports",
        "put a Cast before the node; {python} -m cudarelu ops  # lists the dtypes of each op",
        r"Type 'tensor\((?P<dtype>\w+)\)' of input parameter .*? of operator \((?P<name>\w+)\)",
    ),
    "no-kernel": Trouble(
        "NOT_IMPLEMENTED: Could not find an implementation for Relu(1) node with name ''",
        "the op {name} is known, but no provider of this session has a kernel for the node's "
        "dtypes",
        "use another provider or another dtype; {python} -m cudarelu ops  # lists the dtypes",
        r"Could not find an implementation for (?P<name>[^\s(]+)",
    ),
    "model-ir": Trouble(
        "Unsupported model IR version: 14, max supported IR version: 13",
        "the model has IR version {ir}, but this ONNX Runtime reads versions up to {newest}",
        "{python} -c 'import onnx, sys; p = sys.argv[1]; m = onnx.load(p, load_external_data="
        "False); m.ir_version = {newest}; onnx.save(m, p)' {path}  # or a newer onnxruntime",
        r"Unsupported model IR version: (?P<ir>\d+), max supported IR version: (?P<newest>\d+)",
    ),
    "model-opset": Trouble(
        "Opset 27 is under development; Current official support for domain ai.onnx is till opset "
        "26; has opset 99, but the installed onnx knows up to 28",
        "the model's opset is newer than this ONNX Runtime or this onnx supports",
        "{pip} install --upgrade onnx {package}  # or onnx.version_converter",
        r"official support for domain|has opset \d+, but the installed onnx",
    ),
    "unknown": Trouble(
        "anything else",
        "{what}; the doctor does not know the cause",
        "{python} -m cudarelu doctor --json  # and open an issue with it",
    ),
}


def explain(error: str) -> tuple[str, dict[str, str]] | None:
    """Returns the trouble whose pattern matches an error's text, and the pattern's groups."""
    for name, trouble in TROUBLES.items():
        if trouble.pattern and (found := re.search(trouble.pattern, error)):
            return name, found.groupdict()
    return None


_INTRODUCTION = """\
# Troubleshooting

```sh
python -m cudarelu doctor                                         # what works, and why not
python -m cudarelu doctor --model model.onnx                      # and whether this model runs
python -m cudarelu doctor --model model.onnx --library my_ops.so  # with the ops of a library too
python -m cudarelu doctor --fix                                   # run the fixes that are safe
python -m cudarelu doctor --json
```

The program `cudarelu doctor` does the same. The doctor runs even if PyTorch, ONNX Runtime or
cudarelu itself does not import. It checks CUDA if there is an NVIDIA GPU that CUDA_VISIBLE_DEVICES
does not hide; `--provider cuda` always checks it, `--provider cpu` never. The exit status is 0 if
everything that was checked works, 1 if something does not, and 2 if the command line is wrong.

`--fix` runs only fixes that need pip and no decision: it removes `onnxruntime` if `onnxruntime-gpu`
is installed too, and installs missing NVIDIA libraries of the CUDA provider, `onnx` and
`onnxscript`. It prints each command before it runs it, and then checks again.

`--json` prints an array with one object for each check:

| key | value |
|---|---|
| `id` | the group (`pytorch`, `onnxruntime`, `cuda` or `model`), a dot, and the check |
| `status` | `ok`, `warning` (a risk), `failed`, or `skipped` (not requested, or not possible) |
| `what` | what works, or why it does not |
| `evidence` | what the doctor saw, such as the text of an error; may be empty |
| `mend` | the fix, as a command if possible; empty if there is nothing to fix |

The table lists all troubles that the doctor knows. Words in capitals stand for values that it fills
in. The page is generated: `python -m cudarelu.doctor.troubles > docs/troubleshooting.md`.

| symptom | cause | fix |
|---|---|---|
"""


class _Capitals(string.Formatter):
    def get_value(self, key: int | str, args: object, kwargs: object) -> str:
        return {"pip": "python -m pip", "python": "python"}.get(str(key), str(key).upper())


def page() -> str:
    """Returns the text of docs/troubleshooting.md."""
    capitals = _Capitals()

    def row(each: Trouble) -> str:
        mend = each.mend or " && ".join(f"{{pip}} {command}" for command in each.pip)
        cells = each.symptom, capitals.format(each.cause), f"`{capitals.format(mend)}`"
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"

    return _INTRODUCTION + "".join(map(row, TROUBLES.values()))


if __name__ == "__main__":
    print(page(), end="")
