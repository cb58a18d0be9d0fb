"""What the doctor finds wrong with CUDA: drivers, architectures and compilers."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import onnxruntime
import pytest

from cudarelu import ort
from cudarelu.doctor import binaries, cuda, cuda_provider
from cudarelu.doctor.binaries import Code, code_of, runs_on
from cudarelu.doctor.processes import ask
from cudarelu.doctor.records import Record
from cudarelu.doctor.troubles import TROUBLES
from cudarelu.testing.environment import torch_cuda_missing
from support.doctor import (
    NEEDS_CC,
    Answers,
    Here,
    by_id,
    compiled,
    context,
    driver,
    only,
    provider_that_needs,
)

PLUGIN = Path(ort.library_path())
H200 = {"name": "NVIDIA H200", "capability": 90}
RTX5090 = {"name": "NVIDIA GeForce RTX 5090", "capability": 120}


WITHOUT_GPU = pytest.mark.skipif(
    torch_cuda_missing() is None, reason="needs a machine without CUDA"
)


def script(path: Path, code: str) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{code}\n")
    path.chmod(0o755)
    return path


def test_when_cuda_is_asked_for(monkeypatch, tmp_path):
    monkeypatch.setattr(cuda, "PCI", tmp_path)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    seen, none = Answers(driver=driver(H200)), Answers(driver={})
    assert cuda.is_seen(seen)
    assert not cuda.is_seen(none)
    for name, vendor in (("a", "0x8086"), ("b", "0x10de")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "class").write_text("0x030000\n")
        (tmp_path / name / "vendor").write_text(f"{vendor}\n")
    assert cuda.is_seen(none)  # a GPU without a driver
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert not cuda.is_seen(seen)


DRIVER = """
#include <string.h>
int cuDriverGetVersion(int* version) { *version = 12040; return 0; }
int cuInit(unsigned flags) { return STATUS; }
int cuDeviceGetCount(int* count) { *count = 2; return 0; }
int cuDeviceGet(int* device, int i) { *device = i; return 0; }
int cuDeviceGetName(char* name, int size, int i) { strcpy(name, i ? "B" : "A"); return 0; }
int cuDeviceGetAttribute(int* x, int what, int i) { *x = what == 75 ? 8 + i : 6; return 0; }
int cuGetErrorName(int status, const char** name) { *name = "CUDA_ERROR_X"; return 0; }
"""


@NEEDS_CC
def test_the_driver_is_asked(tmp_path, monkeypatch):
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    compiled(tmp_path / "libcuda.so.1", DRIVER, "-DSTATUS=0")
    gpus = [{"name": "A", "capability": 86}, {"name": "B", "capability": 96}]
    answer = ask("driver")
    assert (answer["error"], answer["cuda"], answer["gpus"]) == ("", "12.4", gpus)
    compiled(tmp_path / "libcuda.so.1", DRIVER, "-DSTATUS=803")
    answer = ask("driver")
    assert (answer["cuda"], answer["error"]) == ("12.4", "RuntimeError: cuInit: CUDA_ERROR_X (803)")


@WITHOUT_GPU
def test_no_driver():
    if "libcuda.so.1: cannot open" not in ask("driver")["error"]:
        pytest.skip("there is a driver")
    assert only(cuda._driver(context())).status == "skipped"
    record = only(cuda._driver(context(cuda=True)))
    assert (record.status, record.what) == ("failed", TROUBLES["driver-missing"].cause)


@pytest.mark.parametrize(
    ("error", "name"),
    [
        ("RuntimeError: cuInit: CUDA_ERROR_SYSTEM_DRIVER_MISMATCH (803)", "driver-failed"),
        ("RuntimeError: cuInit: CUDA_ERROR_NO_DEVICE (100)", "gpu-hidden"),
    ],
)
def test_a_driver_that_fails(error, name, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    record = only(cuda._driver(context(cuda=True, driver={"cuda": "13.0", "error": error})))
    assert record.what == TROUBLES[name].cause.format(visible="'-1'")


@NEEDS_CC
def test_an_old_driver(shadow, tmp_path):
    folder = shadow("onnxruntime", "")
    provider_that_needs(tmp_path / "lib", folder / "onnxruntime", "libcudart.so.13")
    old = driver(H200, version="12.4")
    record = only(cuda._driver(context(cuda=True, driver=old, pytorch={"cuda": "12.8"})))
    assert record.status == "failed"
    assert "supports CUDA up to 12.4, but onnxruntime-gpu is built with CUDA 13" in record.what
    both = by_id(cuda._driver(context(driver=old, pytorch={"cuda": "13.0"})))
    assert set(both) == {"cuda.driver.PyTorch", "cuda.driver.onnxruntime-gpu"}
    assert {each.status for each in both.values()} == {"warning"}  # CUDA is not requested
    here = context(driver=driver(H200, version="13.1"), pytorch={"cuda": "13.0"})
    assert only(cuda._driver(here)).status == "ok"


@pytest.mark.parametrize(
    ("torch_cuda", "ort_cuda", "package"),
    [("12.8", 13, "<1.27"), ("13.0", 12, ">=1.27"), ("13.0", 13, None)],
)
@NEEDS_CC
def test_two_majors(torch_cuda, ort_cuda, package, shadow, tmp_path):
    folder = shadow("onnxruntime", "")
    provider_that_needs(tmp_path / "lib", folder / "onnxruntime", f"libcudart.so.{ort_cuda}")
    record = only(cuda._majors(context(pytorch={"cuda": torch_cuda})))
    assert record.status == ("warning" if package else "ok")
    if package:
        assert record.mend.endswith(f'"onnxruntime-gpu{package}"')


@pytest.mark.parametrize(
    ("sass", "ptx", "runs"),
    [
        (["80"], [], {80, 86, 89}),
        (["86"], [], {86, 89}),
        (["100a"], [], {100}),
        (["100f"], [], {100, 103}),
        (["75"], ["80"], {75, 80, 86, 89, 90, 100, 103, 120}),
        ([], ["90a"], set()),
    ],
)
def test_what_runs_on_a_gpu(sass, ptx, runs):
    gpus = {70, 75, 80, 86, 89, 90, 100, 103, 120}
    assert {each for each in gpus if runs_on(Code(sass, ptx), each)} == runs


LISTING = """
ELF file    1: x.1.sm_80.cubin
ELF file    2: x.2.sm_90a.cubin
PTX file    1: x.1.sm_80.ptx"""


def fake_cuobjdump(path: Path, listing: str, toolkit: str = "13.0") -> None:
    note = f"Tool Version: Cuda compilation tools, release {toolkit}, V1"
    script(path, f"case $1 in\n--list-elf) echo '{listing}';;\n*) echo '{note}';;\nesac")


@pytest.fixture
def cuobjdump(tmp_path, monkeypatch):
    """cuobjdump(listing, toolkit): a fake cuobjdump, which is the first on the PATH."""
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    return lambda *arguments: fake_cuobjdump(tmp_path / "bin/cuobjdump", *arguments)


def test_architectures_are_read(cuobjdump):
    cuobjdump(LISTING)
    code = code_of(PLUGIN)
    assert code == Code(["80", "90a"], ["80"], "13.0")
    assert str(code) == "SASS 80, 90a; PTX 80 (nvcc 13.0)"


def architectures(**given) -> dict[str, Record]:
    return by_id(cuda._architectures(context(cuda=True, **given), []))


def test_a_gpu_that_the_code_is_not_for(cuobjdump):
    cuobjdump("ELF file    1: x.1.sm_90.cubin")
    both = {"driver": driver(H200, RTX5090), "pytorch": {"cuda": "13.0"}}
    record = architectures(**both)[f"cuda.code.{PLUGIN.name}.120"]
    assert record.status == "failed"
    assert "has no code for NVIDIA GeForce RTX 5090 (12.0): it has SASS 90" in record.what
    assert "-DCUDARELU_CUDA_ARCHITECTURES=120 " in record.mend
    fine = architectures(driver=driver(H200), pytorch={"cuda": "13.0"})
    assert {each.status for each in fine.values()} == {"ok"}


def test_code_of_another_toolkit(cuobjdump):
    cuobjdump(LISTING, "12.8")
    records = architectures(driver=driver(H200), pytorch={"cuda": "13.0"})
    record = records[f"cuda.code.{PLUGIN.name}"]
    assert record.status == "warning"
    assert "was built with CUDA 12.8, but PyTorch with CUDA 13.0" in record.what


def test_no_code_at_all(cuobjdump):
    cuobjdump("cuobjdump info : File does not contain device code")
    records = architectures(driver=driver(H200), pytorch={"cuda": "13.0"})
    assert {each.what for each in records.values()} == {TROUBLES["no-cuda-kernels"].cause}
    skipped = list(cuda._architectures(context(driver=driver(), pytorch={}), []))
    assert {each.status for each in skipped} == {"skipped"}


def test_no_cuobjdump(monkeypatch):
    monkeypatch.setattr(binaries, "_cuobjdumps", lambda: iter(["/missing/cuobjdump"]))
    records = architectures(driver=driver(H200), pytorch={"cuda": "13.0"})
    assert {each.status for each in records.values()} == {"skipped"}
    assert "is not known" in records[f"cuda.code.{PLUGIN.name}"].what


@pytest.mark.skipif(
    not list(binaries._cuobjdumps()) or shutil.which("nvcc") is None,
    reason="there is no cuobjdump, or no nvcc",
)
def test_a_real_library(tmp_path):
    (tmp_path / "a.cu").write_text("__global__ void f(float* x) { *x = 1; }\n")
    gencode = ["arch=compute_80,code=sm_80", "arch=compute_90a,code=sm_90a"]
    flags = [f"-gencode={each}" for each in [*gencode, "arch=compute_90,code=compute_90"]]
    make = ["nvcc", *flags, "-shared", "-Xcompiler", "-fPIC", "a.cu", "-o", "a.so"]
    subprocess.run(make, check=True, cwd=tmp_path)
    code = code_of(tmp_path / "a.so")
    assert (code.sass, code.ptx) == (["80", "90a"], ["90"])
    assert code.toolkit == cuda.Compiler(Path(shutil.which("nvcc"))).version


def fake_nvcc(folder: Path, version: str, *capabilities: int) -> Path:
    listing = " ".join(f"compute_{each}" for each in capabilities)
    code = f"case $1 in\n--version) echo 'release {version}, V1';;\n*) echo {listing};;\nesac"
    return script(folder / "nvcc", code)


def nvccs(monkeypatch, *folders: Path, gpus=()) -> list[Record]:
    monkeypatch.setenv("PATH", os.pathsep.join([*map(str, folders), "/missing", "/bin"]))
    if shutil.which("nvcc", path="/bin"):
        pytest.skip("/bin has an nvcc")
    return list(cuda._nvccs(context(driver=driver(*gpus)), cuda._compilers()))


def test_every_nvcc(tmp_path, monkeypatch):
    fake_nvcc(tmp_path / "a", "11.8", 35, 90)
    fake_nvcc(tmp_path / "b", "13.0", 75, 120)
    (tmp_path / "c").symlink_to(tmp_path / "b")
    folders = tmp_path / "a", tmp_path / "b", tmp_path / "c"
    first, second = nvccs(monkeypatch, *folders, gpus=[RTX5090])
    assert first.status == "warning"
    assert "is from CUDA 11.8, which supports GPUs up to compute capability 9.0" in first.what
    assert "the GPU here is 12.0" in first.what
    assert f"CUDACXX={tmp_path}/b/nvcc" in first.mend
    assert second.what == f"{tmp_path}/b/nvcc: CUDA 13.0, up to compute capability 12.0"
    shadowed, _ = nvccs(monkeypatch, *folders, gpus=[H200])
    assert "comes first on the PATH and hides a newer one" in shadowed.what
    assert shadowed.mend == f'export PATH="{tmp_path}/b:$PATH"'
    assert only(nvccs(monkeypatch, tmp_path / "b", gpus=[RTX5090])).status == "ok"


@pytest.mark.parametrize("code", ["echo 'cudafe++: not found' >&2; exit 1", "exit 0"])
def test_a_broken_nvcc(code, tmp_path, monkeypatch):
    script(tmp_path / "a/nvcc", code)
    record = only(nvccs(monkeypatch, tmp_path / "a", gpus=[H200]))
    assert (record.status, record.what) == ("warning", f"{tmp_path}/a/nvcc is not a working nvcc")
    assert ("cudafe++: not found" in record.evidence) == ("cudafe" in code)
    assert only(nvccs(monkeypatch)).status == "skipped"


@pytest.mark.parametrize(
    ("value", "gpus", "what"),
    [
        ("12.8", [RTX5090], "12.8 is not a known compute capability"),
        ("8.0;13.0", [], "13.0 is not a known compute capability"),
        ("90", [], "90 is not a known compute capability"),
        ("8.0 8.6", [H200], "leaves out NVIDIA H200 (9.0)"),
        ("9.0a", [RTX5090], "leaves out NVIDIA GeForce RTX 5090 (12.0)"),
        ("8.0+PTX", [H200], None),
        ("8.0;9.0a", [H200], None),
        ("Hopper", [H200], None),
        ("12.0", [], None),
        ("", [H200], ""),
    ],
)
def test_arch_list(value, gpus, what, monkeypatch):
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", value)
    records = list(cuda._arch_list(context(driver=driver(*gpus)), []))
    if what == "":
        assert records == []
        return
    record = only(records)
    assert record.status == ("warning" if what else "ok")
    if what:
        assert what in record.what
        assert "export TORCH_CUDA_ARCH_LIST=" in record.mend


def test_an_nvcc_that_knows_a_newer_gpu(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", "12.8")
    compiler = cuda.Compiler(fake_nvcc(tmp_path / "a", "14.0", 120, 128))
    assert only(cuda._arch_list(context(driver={}), [compiler])).status == "ok"


@pytest.mark.parametrize(
    ("problem", "status", "mend"),
    [
        ("", "ok", ""),
        (
            "cannot open cuBLASLt: libcublasLt.so.13: cannot open shared object file; put",
            "warning",
            'install "nvidia-cublas==13.*" && export LD_LIBRARY_PATH=',
        ),
        ("cannot use cuBLASLt 12: this build is for 13; build", "warning", "cuda-12/bin/nvcc"),
        ("this build has no CUDA kernels; configure", "warning", "-DCUDARELU_CUDA=ON"),
    ],
)
def test_products_without_cublaslt(problem, status, mend):
    record = cuda._products(context(cuda=True, driver={}, products={"problem": problem}))
    assert (record.id, record.status) == ("cuda.cublaslt", status)
    assert mend in record.mend
    assert record.evidence == problem


def test_products_are_asked():
    """The probe asks the library itself, which may be built without CUDA."""
    problem = Here()("products")["problem"]
    assert problem == "" or "has no CUDA kernels" in problem
    failed = context(cuda=True, products={"error": "No module named 'torch'"})
    assert cuda._products(failed).status == "skipped"


def test_two_copies_of_a_library(shadow, tmp_path):
    """A PyTorch with its own libcudart, in addition to that of the nvidia-* packages."""
    cudart = Path(onnxruntime.__file__).parents[1] / "nvidia/cu13/lib/libcudart.so.13"
    if (
        not cudart.exists()
        or not cuda_provider.provider_path()
        or not hasattr(onnxruntime, "preload_dlls")
    ):
        pytest.skip("there is no nvidia-cuda-runtime for CUDA 13, or no CUDA provider")
    copy = shutil.copy(cudart, tmp_path)
    shadow("torch", f"import ctypes; ctypes.CDLL({copy!r})")
    record = by_id(cuda._copies(context(cuda=True)))["cuda.copies.libcudart"]
    assert record.status == "warning"
    assert str(copy) in record.what
    assert record.what.count("libcudart.so.13") == 2
