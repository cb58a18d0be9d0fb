"""What tests of the doctor share: answers of probes, and libraries and scripts that tests make."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
import torch

from cudarelu.doctor import cuda_provider, probes
from cudarelu.doctor.context import Context
from cudarelu.doctor.processes import Probes
from cudarelu.doctor.records import Record

DOCUMENT = Path(__file__).parents[2] / "docs/troubleshooting.md"
TORCH_MINOR = ".".join(torch.__version__.split(".")[:2])
NEEDS_CC = pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")


class Answers:
    """Answers the probes: with the given answers, or else with those of the real probes."""

    def __init__(self, **given: dict):
        self.given = {name: {"error": "", "log": "", **answer} for name, answer in given.items()}
        self.real = Probes()

    def __call__(self, name: str, *arguments: str) -> dict:
        return self.given[name] if name in self.given else self.real(name, *arguments)


class Here:
    """Runs the probes in this process, which has already imported everything."""

    def __call__(self, name: str, *arguments: str) -> dict:
        answer = {"error": "", "log": ""}
        try:
            getattr(probes, name)(answer, *arguments)
        except Exception as error:
            answer["error"] = probes._text(error)
        return answer


PYTORCH = {"version": torch.__version__, "cuda": None, "path": ""}


def context(cuda: bool = False, **given: dict) -> Context:
    """A context with the PyTorch of this process but without CUDA: its probe would take seconds."""
    return Context(Answers(**{"pytorch": PYTORCH, **given}), cuda)


def by_id(records) -> dict[str, Record]:
    return {each.id: each for each in records}


def only(records) -> Record:
    (record,) = records
    return record


def driver(*gpus: dict, version: str = "13.0") -> dict:
    return {"gpus": list(gpus), "cuda": version}


def missing(package: str) -> str:
    return f"raise ModuleNotFoundError(\"No module named '{package}'\")"


def compiled(path: Path, code: str, *flags: object) -> Path:
    call = ["cc", "-shared", "-fPIC", "-o", path, *flags, "-x", "c", "-"]
    subprocess.run(list(map(str, call)), input=code, text=True, check=True)
    return path


def slow(*values):
    return pytest.param(*values, marks=pytest.mark.slow)


def stub_torch(version: str = torch.__version__, cuda: str | None = None, more: str = "") -> str:
    return (
        f"import types\n__version__ = {version!r}\nversion = types.SimpleNamespace(cuda={cuda!r})\n"
        f"{more}"
    )


def provider_that_needs(folder: Path, package: Path, *names: str) -> None:
    """Builds a CUDA provider in a package, and the libraries that it needs in the folder."""
    folder.mkdir()
    for name in names:
        compiled(folder / name, "", f"-Wl,-soname,{name}")
    (package / "capi").mkdir()
    provider = package / "capi/libonnxruntime_providers_cuda.so"
    needs = [folder / name for name in names]
    compiled(provider, "", "-Wl,--no-as-needed", *needs)
    assert cuda_provider.needed(provider)[: len(names)] == list(names)
