"""Checks of the driver, the GPUs and the toolkits, and whether they fit together."""

from __future__ import annotations

import dataclasses
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from . import cuda_provider
from .binaries import Code, code_of, runs_on
from .context import Context, module_folder
from .onnx_runtime import gpu_wheel
from .processes import Probes, run
from .records import Record, from_error, not_asked, ok, skipped, trouble, waits

PCI = Path("/sys/bus/pci/devices")

# What nvcc has supported since CUDA 11; a newer nvcc on the PATH adds its own.
CAPABILITIES = {
    *(50, 52, 53, 60, 61, 62, 70, 72, 75, 80, 86, 87, 88, 89, 90),
    *(100, 101, 103, 110, 120, 121),
}


def is_seen(probes: Probes) -> bool:
    """Returns whether there is an NVIDIA GPU that is not hidden, with or without a driver."""
    if os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1"):
        return False
    return bool(probes("driver").get("gpus")) or any(map(_is_gpu, PCI.glob("*")))


def _is_gpu(device: Path) -> bool:
    try:
        vendor, kind = ((device / name).read_text().strip() for name in ("vendor", "class"))
    except OSError:
        return False
    return vendor == "0x10de" and kind.startswith("0x03")  # NVIDIA's, and a display controller


def checks(context: Context) -> Iterator[Record]:
    yield from _driver(context)
    yield from _majors(context)
    compilers = _compilers()
    yield from _architectures(context, compilers)
    yield from _nvccs(context, compilers)
    yield from _arch_list(context, compilers)
    if context.cuda:
        yield _products(context)
        yield from _copies(context)


def _driver(context: Context) -> Iterator[Record]:
    answer = context.probes("driver")
    if not context.gpus:
        if context.cuda:
            error = answer["error"] or "CUDA_ERROR_NO_DEVICE"
            yield from_error("cuda.driver", "the NVIDIA driver fails", error, context)
        else:
            yield not_asked("cuda.driver", answer["error"])
        return
    gpus = ", ".join(map(_titled, context.gpus))
    version = answer["cuda"]
    users = _users(context).items()
    old = {user: needed for user, needed in users if _major(needed) > _major(version)}
    for user, needed in old.items():
        id, values = f"cuda.driver.{user}", {"driver": version, "user": user, "needed": needed}
        yield trouble(id, "driver-old", gpus, status=context.gravity, **values)
    if not old:
        yield ok("cuda.driver", f"the driver supports CUDA {version}: {gpus}")


def _users(context: Context) -> dict[str, str]:
    """Returns the CUDA version of each package that brings a CUDA runtime."""
    users = {}
    if torch := context.probes("pytorch").get("cuda"):
        users["PyTorch"] = torch
    folder = module_folder("onnxruntime")
    provider = folder / "capi/libonnxruntime_providers_cuda.so" if folder else None
    if provider and provider.exists():
        for name in cuda_provider.needed(provider):
            if name.startswith("libcudart.so."):
                users["onnxruntime-gpu"] = name.rpartition(".")[2]
    return users


def _majors(context: Context) -> Iterator[Record]:
    users = _users(context)
    if len(users) < 2:
        return
    torch, ort = users["PyTorch"], users["onnxruntime-gpu"]
    if _major(torch) == _major(ort):
        yield ok("cuda.majors", f"PyTorch and ONNX Runtime are both built for CUDA {ort}")
    else:
        package = gpu_wheel(torch.split(".")[0])
        values = {"torch": torch, "ort": ort, "package": package}
        yield trouble("cuda.majors", "cuda-majors", status="warning", **values)


def _architectures(context: Context, compilers: list[Compiler]) -> Iterator[Record]:
    """Checks that the GPU code of our libraries runs on the GPUs."""
    path = context.plugin
    if not path.exists():
        return
    id = f"cuda.code.{path.name}"
    code = code_of(path)
    if code is None:
        yield skipped(id, f"no cuobjdump can read {path.name}: its GPU code is not known")
    elif not code.sass and not code.ptx:
        if context.cuda:
            yield trouble(id, "no-cuda-kernels", str(path))
        else:
            yield skipped(id, f"{path.name} was built without CUDA")
    else:
        yield from _code(context, id, path, code)


def _code(context: Context, id: str, path: Path, code: Code) -> Iterator[Record]:
    lacking = [each for each in context.gpus if not runs_on(code, each["capability"])]
    for each in {each["capability"]: each for each in lacking}.values():
        gpu = _titled(each)
        values = {"name": path.name, "gpu": gpu, "has": code, "capability": each["capability"]}
        yield trouble(
            f"{id}.{each['capability']}",
            "no-kernel-image",
            str(path),
            status=context.gravity,
            **values,
        )
    torch = context.probes("pytorch").get("cuda")
    if torch and code.toolkit and _major(torch) != _major(code.toolkit):
        values = {"name": path.name, "toolkit": code.toolkit, "torch": torch}
        yield trouble(id, "toolkit-major", str(path), status="warning", **values)
    elif not lacking:
        yield ok(id, f"{path.name}: {code}", str(path))


class Compiler:
    """An nvcc on the PATH: its version, and the compute capabilities that it supports."""

    def __init__(self, path: Path) -> None:
        self.path = path
        code, output, error = run([str(path), "--version"])
        found = re.search(r"release (\d+\.\d+)", output) if code == 0 else None
        self.version: str = found[1] if found else ""
        self.error = "" if found else (error or output).strip()
        listing = run([str(path), "--list-gpu-arch"])[1]
        self.capabilities = sorted({int(each) for each in re.findall(r"compute_(\d+)", listing)})

    def __str__(self) -> str:
        newest = _dotted(self.capabilities[-1]) if self.capabilities else "an unknown one"
        return f"CUDA {self.version}, up to compute capability {newest}"


def _compilers() -> list[Compiler]:
    folders = dict.fromkeys(os.environ.get("PATH", "").split(os.pathsep))
    found: dict[str, Path] = {}
    for folder in filter(None, folders):
        if path := shutil.which("nvcc", path=folder):
            found.setdefault(os.path.realpath(path), Path(path))
    return [Compiler(path) for path in found.values()]


def _nvccs(context: Context, compilers: list[Compiler]) -> Iterator[Record]:
    """Checks each nvcc on the PATH. Problems are warnings, since only a build needs nvcc."""
    if not compilers:
        yield skipped("cuda.nvcc", "there is no nvcc on the PATH; only a build needs one")
    working = [each for each in compilers if each.version and each.capabilities]
    newest = max(working, key=lambda each: _version(each.version), default=None)
    wanted = max((each["capability"] for each in context.gpus), default=0)
    for i, each in enumerate(compilers):
        id = "cuda.nvcc" if i == 0 else f"cuda.nvcc.{i + 1}"
        path = str(each.path)
        if newest is None or each not in working:
            yield trouble(id, "nvcc-broken", each.error, status="warning", path=path)
        elif wanted > each.capabilities[-1]:
            better = newest if newest.capabilities[-1] >= wanted else None
            values = {
                "path": path,
                "version": each.version,
                "newest": _dotted(each.capabilities[-1]),
                "lacks": f"the GPU here is {_dotted(wanted)}",
                "better": better.path if better else "/path/to/a/newer/nvcc",
            }
            yield trouble(id, "nvcc-old", str(each), status="warning", **values)
        elif i == 0 and _version(each.version) < _version(newest.version):
            values = {"path": path, "version": each.version, "folder": newest.path.parent}
            evidence = f"{newest.path}: {newest}"
            yield trouble(id, "nvcc-shadowed", evidence, status="warning", **values)
        else:
            yield ok(id, f"{path}: {each}")


def _arch_list(context: Context, compilers: list[Compiler]) -> Iterator[Record]:
    """Checks TORCH_CUDA_ARCH_LIST, which PyTorch's extension builder reads."""
    value = os.environ.get("TORCH_CUDA_ARCH_LIST", "")
    entries = [each for each in re.split(r"[;\s]+", value) if each]
    if not entries:
        return
    known = CAPABILITIES.union(*(each.capabilities for each in compilers))
    here = sorted({each["capability"] for each in context.gpus})
    suggested = ";".join(map(_dotted, here)) or "9.0"
    covered = set()
    for entry in entries:
        if re.fullmatch(r"[A-Z][A-Za-z+]*", entry):  # a name, such as Ampere
            covered.update(here)
            continue
        found = re.fullmatch(r"(\d+\.\d)[af]?(\+PTX)?", entry)
        if not found or int(found[1].replace(".", "")) not in known:
            values = {"value": value, "entry": entry, "suggested": suggested}
            yield trouble("cuda.arch_list", "arch-list", status="warning", **values)
            return
        name = entry.removesuffix("+PTX").replace(".", "")
        code = Code([name], [name] if found[2] else [])
        covered.update(each for each in here if runs_on(code, each))
    for each in context.gpus:
        if each["capability"] not in covered:
            gpu = _titled(each)
            values = {"value": value, "gpu": gpu, "suggested": suggested}
            yield trouble("cuda.arch_list", "arch-list-gpu", status="warning", **values)
            return
    yield ok("cuda.arch_list", f"TORCH_CUDA_ARCH_LIST={value}")


def _products(context: Context) -> Record:
    """Checks cuBLASLt. Without it, matrix products use our kernels, most of which are slower."""
    id = "cuda.cublaslt"
    answer = context.probes("products")
    if answer["error"]:
        return waits(id)
    if not answer["problem"]:
        return ok(id, "matrix products use cuBLASLt")
    what = "matrix products cannot use cuBLASLt"
    return dataclasses.replace(from_error(id, what, answer["problem"], context), status="warning")


def _copies(context: Context) -> Iterator[Record]:
    """Checks for two copies of a CUDA library in a process with PyTorch and ONNX Runtime."""
    answer = context.probes("session", "cuda", "", str(context.plugin))
    by_name: dict[str, list[str]] = {}
    for path in answer.get("loaded", []):
        by_name.setdefault(Path(path).name.split(".so")[0], []).append(path)
    copies = {name: paths for name, paths in by_name.items() if len(paths) > 1}
    for name, paths in copies.items():
        values = {"name": name, "paths": " and ".join(paths)}
        yield trouble(f"cuda.copies.{name}", "two-copies", status="warning", **values)
    if by_name and not copies:
        names = ", ".join(sorted(by_name))
        evidence = ", ".join(answer["loaded"])
        yield ok("cuda.copies", f"a process has one copy of each of {names}", evidence)


def _titled(gpu: dict) -> str:
    return f"{gpu['name']} ({_dotted(gpu['capability'])})"


def _dotted(capability: int) -> str:
    return f"{capability // 10}.{capability % 10}"


def _major(version: str) -> int:
    return int(version.split(".")[0])


def _version(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))
