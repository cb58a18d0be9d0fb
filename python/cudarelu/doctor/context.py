"""The state that the checks examine."""

from __future__ import annotations

import importlib.util
import os
import shlex
import shutil
import sysconfig
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any

from .processes import Probes


@dataclass
class Context:
    """What to check, and what is found; no property raises if something is missing."""

    probes: Probes
    cuda: bool  # whether to check CUDA
    model: Path | None = None
    library: Path | None = None  # a custom-op library to use instead of ours, or an op module

    @cached_property
    def build(self) -> ModuleType | None:
        """The module that the build wrote, or None without a build."""
        try:
            from cudarelu import _build_info
        except ImportError:
            return None
        return _build_info

    @property
    def torches(self) -> list[str]:
        """The minor versions of PyTorch that the build is for, in order; empty without a build."""
        if self.build is None:
            return []
        from cudarelu import _readers

        return _readers.versions()

    @property
    def devices(self) -> list[str]:
        return ["cpu", "cuda"] if self.cuda else ["cpu"]

    @property
    def gravity(self) -> str:
        """The status of a check that fails only for CUDA."""
        return "failed" if self.cuda else "warning"

    @property
    def gpus(self) -> list[dict]:
        return self.probes("driver").get("gpus", [])

    @property
    def wheel(self) -> str:
        """The package of ONNX Runtime that supports what is checked."""
        return "onnxruntime-gpu" if self.cuda else "onnxruntime"

    @property
    def values(self) -> dict[str, Any]:
        """Values for the names in the table's texts, besides those that an error itself gives."""
        package = module_folder("onnxruntime")
        runtimes = sorted(package.glob("capi/libonnxruntime.so.*")) if package else []
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        torch = self.probes("pytorch")
        return {
            "built": ", ".join(self.torches),
            "capability": "native",
            "driver": self.probes("driver").get("cuda", "an unknown version"),
            "found": torch.get("version", ""),
            "gpu": "the GPU here",
            "has": "code for others",
            "latest": self.torches[-1] if self.torches else "2",
            "name": "a library",
            "needed": torch.get("cuda"),
            "package": self.wheel,
            "path": shlex.quote(str(self.model)),
            "runtime": runtimes[0] if runtimes else "/path/to/libonnxruntime.so",
            "user": "PyTorch",
            "visible": "not set" if visible is None else repr(visible),
        }

    @property
    def folder(self) -> Path:
        """The folder of the package's libraries."""
        return Path((self.build and self.build.__file__) or __file__).parent

    @property
    def plugin(self) -> Path:
        """The library with the ops and their kernels, which ONNX Runtime loads too."""
        return self.folder / "libcudarelu_ops.so"

    @property
    def module(self) -> Path | None:
        """The library, if it is an op module, which is used beside ours."""
        if self.library is None or not self.library.exists():
            return None
        answer = self.probes("library", str(self.library.resolve()))
        return self.library if answer.get("is_module") else None

    @property
    def ort_infer(self) -> Path | None:
        """The program in the build tree, in the environment, or on the PATH."""
        return find_ort_infer(self.folder)


def find_ort_infer(folder: Path) -> Path | None:
    """The program ort_infer for the package in a folder: in the build tree, in the environment, or
    on the PATH."""
    folders = [folder.parents[1], Path(sysconfig.get_path("scripts"))]
    found = (each / "ort_infer" for each in folders if (each / "ort_infer").is_file())
    on_path = shutil.which("ort_infer")
    return next(found, Path(on_path) if on_path else None)


def module_folder(name: str) -> Path | None:
    """Returns the folder of a package without importing it, or None."""
    spec = importlib.util.find_spec(name)
    return Path(spec.origin).parent if spec and spec.origin else None
