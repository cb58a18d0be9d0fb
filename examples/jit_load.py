"""Build the ops from source when the program starts, with PyTorch's own extension builder.

usage: python examples/jit_load.py [--build-directory FOLDER]

For a program that carries the sources and must not depend on CMake. This needs PyTorch, ninja and
a C++20 compiler. The kernels for GPUs are built where PyTorch sees one and there is an nvcc. The
first run takes minutes; the next ones find their library in the folder.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import torch
from torch.utils import cpp_extension

ROOT = Path(__file__).resolve().parents[1]
KERNELS = ROOT / "src/kernels"
BINDING = ROOT / "src/torch_binding"


def listed_sources(folder: Path, library: str) -> list[Path]:
    """The sources that the folder's CMakeLists.txt names for the library."""
    text = (folder / "CMakeLists.txt").read_text()
    (names,) = re.findall(rf"add_library\({library} (?:STATIC|SHARED) ([^)]*)\)", text)
    return [folder / name for name in names.split()]


def write(path: Path, text: str) -> Path:
    """Write the file, unless it says so already: ninja goes by its time."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists() or path.read_text() != text:
        path.write_text(text)
    return path


def op_sources(generated: Path, cuda: bool) -> list[Path]:
    """The sources of the ops. An elementwise op has a header alone: its engines are instantiated
    in files that are generated, as src/kernels/CMakeLists.txt does."""
    template = (KERNELS / "pointwise/instantiate.in").read_text()
    ops = sorted(path.stem for path in (KERNELS / "ops").glob("*.h") if path.stem != "list")
    write(generated / "all_ops.h", "".join(f'#include "ops/{op}.h"\n' for op in ops))

    engines = [("cpp", "cpu.h", "cpu")] + [("cu", "cuda.cuh", "cuda")] * cuda
    sources = []
    for op in ops:
        for suffix, engine, device in engines:
            source = KERNELS / f"ops/{op}.{suffix}"
            if not (KERNELS / f"ops/{op}.cpp").exists():
                functor = "".join(word.capitalize() for word in op.split("_"))
                values = {"op": op, "engine": engine, "device": device, "functor": functor}
                text = re.sub(r"@(\w+)@", lambda match, values=values: values[match[1]], template)
                source = write(generated / f"pointwise/{op}.{suffix}", text)
            sources.append(source)
    return sources


def has_cuda() -> bool:
    return torch.cuda.is_available() and cpp_extension.CUDA_HOME is not None


def load(build_directory: Path, *, verbose: bool = False) -> None:
    """Build what is not built, and register torch.ops.cudarelu."""
    cuda = has_cuda()
    generated = build_directory / "generated"
    sources = listed_sources(KERNELS, "cudarelu_kernels") + op_sources(generated, cuda)
    sources += listed_sources(BINDING, "cudarelu_torch")
    defines = []
    if cuda:
        sources.append(KERNELS / "cuda/device.cu")
        defines.append("-DCUDARELU_WITH_CUDA")
    cpp_extension.load(
        name="cudarelu_jit",
        sources=[str(source) for source in sources],
        extra_include_paths=[str(path) for path in (KERNELS / "include", KERNELS, generated)],
        # The same numbers as the CMake build's, as fast, and at::parallel_for's threads.
        extra_cflags=[
            *("-std=c++20", "-O3", "-fopenmp"),
            *("-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math"),
            *defines,
        ],
        extra_cuda_cflags=["-std=c++20", "-O3", "--fmad=false", "-diag-suppress=186", *defines],
        build_directory=str(build_directory),
        with_cuda=cuda,
        is_python_module=False,
        verbose=verbose,
    )


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
