"""Build the ops from source when the program starts, with PyTorch's own extension builder.

usage: python examples/jit_load.py [--build-directory FOLDER]

This is for a program that ships the sources and must not depend on CMake. It needs PyTorch, ninja
and a C++20 compiler. CUDA kernels are built if PyTorch sees a GPU and there is an nvcc, for the
GPUs present or for TORCH_CUDA_ARCH_LIST. The matrix products of compute capability 9.0 are built
only if it is the only one, since the builder compiles all files for the same capabilities. The
first run takes minutes; later runs find the library in the folder.
"""

import argparse
import json
import os
import shutil
import subprocess
from pathlib import Path

import torch
from torch.utils import cpp_extension

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ROOT / "src"


def kernel_sources(generated: Path) -> dict[str, list[str]]:
    """Return the kernels' sources by part (cpu, cuda, hopper). Write the generated ones."""
    command = ["sh", str(SOURCES / "kernels/sources.sh"), str(generated)]
    sources: dict[str, list[str]] = {"cpu": [], "cuda": [], "hopper": []}
    for line in subprocess.check_output(command, text=True).splitlines():
        part, path = line.split(" ", maxsplit=1)
        sources[part].append(path)
    return sources


def only_hopper() -> bool:
    """Return whether compute capability 9.0 is the only one to compile for."""
    if listed := os.environ.get("TORCH_CUDA_ARCH_LIST"):
        return listed in ("9.0", "9.0a")
    devices = range(torch.cuda.device_count())
    return {torch.cuda.get_device_capability(device) for device in devices} == {(9, 0)}


def extension(build_directory: Path, *, cuda: bool) -> dict:
    """Return the arguments of cpp_extension.load, for the CPU or for the CPU and CUDA."""
    generated = build_directory / "generated"
    kernels = kernel_sources(generated)
    binding = SOURCES / "torch_binding"
    sources = [*kernels["cpu"], SOURCES / "module/module_call.cpp"]
    sources += (SOURCES / "core").glob("*.cpp")
    sources += (SOURCES / "readers/tvm_ffi").glob("*.cpp")  # which the kernels refer to
    sources += [binding / name for name in (binding / "sources.txt").read_text().split()]
    includes = [SOURCES / name for name in ("core/include", "module/include", "kernels")]
    # The flags of the CMake build, for the same results.
    flags = json.loads((SOURCES / "module/flags.json.in").read_text().replace("@exports@", '""'))
    cxx_flags = ["-std=c++20", "-fopenmp", *flags["cxx"]]  # OpenMP for at::parallel_for
    cuda_flags = flags["cuda"]
    defines = ["'-DCUDARELU_BUILT_FOR=\"this machine\"'"]  # for a shell
    if cuda:
        sources += kernels["cuda"]
        defines.append("-DCUDARELU_WITH_CUDA")
        if not Path(cpp_extension.CUDA_HOME, "include/cublasLt.h").exists():
            # Those of PyTorch's package, without the CUDA headers that are in its folder, too.
            package = Path(torch.__path__[0]).parent / "nvidia/cu13/include"
            for name in ("cublasLt.h", "cublas_api.h"):
                shutil.copy2(package / name, generated)
        if only_hopper():
            sources += kernels["hopper"]
            defines.append("-DCUDARELU_WITH_HOPPER")
            cuda_flags.append("-gencode=arch=compute_90a,code=sm_90a")
    return {
        "name": "cudarelu_jit",
        "sources": [str(path) for path in sources],
        "extra_include_paths": [str(path) for path in (*includes, generated)],
        "extra_cflags": cxx_flags + defines,
        "extra_cuda_cflags": cuda_flags + defines,
        "build_directory": str(build_directory),
        "with_cuda": cuda,
        "is_python_module": False,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build-directory", type=Path, default=ROOT / "build-jit")
    folder = parser.parse_args().build_directory.resolve()
    cuda = torch.cuda.is_available() and cpp_extension.CUDA_HOME is not None
    # Builds the library if it is not built, and registers torch.ops.cudarelu.
    cpp_extension.load(**extension(folder, cuda=cuda), verbose=True)
    for device in ["cpu", "cuda"] if cuda else ["cpu"]:
        x = torch.tensor([-1.0, 0.0, 2.0], device=device, requires_grad=True)
        y = torch.ops.cudarelu.relu(x)
        (gradient,) = torch.autograd.grad(y.sum(), x)
        print(f"{device}: relu({x.tolist()}) = {y.tolist()}, gradient {gradient.tolist()}")


if __name__ == "__main__":
    main()
