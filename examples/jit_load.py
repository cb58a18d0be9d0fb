"""Build the ops from source when the program starts, with PyTorch's own extension builder.

usage: python examples/jit_load.py [--build-directory FOLDER]

This is for a program that ships the sources and must not depend on CMake. It needs PyTorch, ninja
and a C++20 compiler. CUDA kernels are built if PyTorch sees a GPU and there is an nvcc, for the
GPUs present or for TORCH_CUDA_ARCH_LIST. The matrix products of compute capability 9.0 are built
only if it is the only one, since the builder compiles all files for the same capabilities. The
first run takes minutes; later runs find the library in the folder.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
from pathlib import Path

import torch
from torch.utils import cpp_extension

ROOT = Path(__file__).resolve().parents[1]
KERNELS = ROOT / "src/kernels"
MODULE = ROOT / "src/module"
CORE = ROOT / "src/core"
BINDING = ROOT / "src/torch_binding"
TVM_FFI = ROOT / "src/tvm_ffi_reader"


def kernel_sources(generated: Path) -> dict[str, list[str]]:
    """Return the kernels' sources by part (cpu, cuda, hopper). Write the generated ones."""
    command = ["sh", str(KERNELS / "sources.sh"), str(generated)]
    said = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    sources: dict[str, list[str]] = {}
    for line in said.splitlines():
        part, _, path = line.partition(" ")
        sources.setdefault(part, []).append(path)
    return sources


def cublaslt_headers(generated: Path) -> Path:
    """Return a folder with links to cublasLt.h and the header that it includes.

    A toolkit may lack them. PyTorch's packages have them, but in a folder with CUDA headers that
    must not precede the toolkit's.
    """
    from_packages = Path(torch.__path__[0]).parent / "nvidia/cu13/include"
    for folder in (Path(cpp_extension.CUDA_HOME) / "include", from_packages):
        if (folder / "cublasLt.h").exists():
            links = generated / "cublaslt"
            links.mkdir(parents=True, exist_ok=True)
            for name in ("cublasLt.h", "cublas_api.h"):
                (links / name).unlink(missing_ok=True)
                (links / name).symlink_to(folder / name)
            return links
    raise FileNotFoundError("no cublasLt.h: install the CUDA toolkit's cuBLAS headers")


def only_hopper() -> bool:
    """Return whether compute capability 9.0 is the only one to compile for."""
    if listed := os.environ.get("TORCH_CUDA_ARCH_LIST"):
        return listed in ("9.0", "9.0a")
    devices = range(torch.cuda.device_count())
    return {torch.cuda.get_device_capability(device) for device in devices} == {(9, 0)}


def has_cuda() -> bool:
    return torch.cuda.is_available() and cpp_extension.CUDA_HOME is not None


def extension(build_directory: Path, *, cuda: bool) -> dict:
    """Return the arguments of cpp_extension.load, for the CPU or for the CPU and CUDA."""
    generated = build_directory / "generated"
    kernels = kernel_sources(generated)
    sources = [*kernels["cpu"], str(MODULE / "module_call.cpp"), *map(str, CORE.glob("*.cpp"))]
    sources += map(str, TVM_FFI.glob("*.cpp"))  # which the kernels refer to
    sources += [str(BINDING / name) for name in (BINDING / "sources.txt").read_text().split()]
    includes = [CORE / "include", MODULE / "include", KERNELS, generated]
    # The flags of the CMake build, for the same results.
    flags = json.loads((MODULE / "flags.json.in").read_text().replace("@exports@", '""'))
    defines, cuda_flags = ["'-DCUDARELU_BUILT_FOR=\"this machine\"'"], []  # for a shell
    if cuda:
        sources += kernels["cuda"]
        includes.append(cublaslt_headers(generated))
        defines.append("-DCUDARELU_WITH_CUDA")
        if only_hopper():
            sources += kernels["hopper"]
            defines.append("-DCUDARELU_WITH_HOPPER")
            cuda_flags.append("-gencode=arch=compute_90a,code=sm_90a")
    return {
        "name": "cudarelu_jit",
        "sources": sources,
        "extra_include_paths": [str(path) for path in includes],
        # OpenMP for at::parallel_for.
        "extra_cflags": ["-std=c++20", "-fopenmp", *flags["cxx"], *defines],
        "extra_cuda_cflags": [*flags["cuda"], *cuda_flags, *defines],
        "build_directory": str(build_directory),
        "with_cuda": cuda,
        "is_python_module": False,
    }


def load(build_directory: Path, *, verbose: bool = False) -> None:
    """Build the library if it is not built, and register torch.ops.cudarelu."""
    cpp_extension.load(**extension(build_directory, cuda=has_cuda()), verbose=verbose)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build-directory", type=Path, default=ROOT / "build-jit")
    arguments = parser.parse_args()
    load(arguments.build_directory.resolve(), verbose=True)

    for device in ["cpu", "cuda"] if has_cuda() else ["cpu"]:
        x = torch.tensor([-1.0, 0.0, 2.0], device=device, requires_grad=True)
        y = torch.ops.cudarelu.relu(x)
        (gradient,) = torch.autograd.grad(y.sum(), x)
        print(f"{device}: relu({x.tolist()}) = {y.tolist()}, gradient {gradient.tolist()}")


if __name__ == "__main__":
    main()
