"""What the doctor finds wrong with PyTorch."""

from __future__ import annotations

import sys
import time

import pytest
import torch

from cudarelu import _readers
from cudarelu.doctor import pytorch
from cudarelu.doctor.context import Context
from cudarelu.doctor.processes import ask
from cudarelu.doctor.troubles import TROUBLES
from support.doctor import TORCH_MINOR, Answers, by_id, context, driver, missing, slow, stub_torch


def real_context(cuda: bool = False, **given: dict) -> Context:
    return Context(Answers(**given), cuda)


def test_another_pytorch(shadow):
    shadow("torch", stub_torch("2.1.0"))
    records = by_id(pytorch.checks(real_context()))
    assert records["pytorch.import"].status == "ok"
    record = records["pytorch.build"]
    assert f"built for PyTorch {TORCH_MINOR}, but this is PyTorch 2.1.0" in record.what
    assert f'install "torch=={TORCH_MINOR}.*"' in record.mend
    assert records["pytorch.cpu"].status == "skipped"


def test_a_build_for_several_pytorches(shadow, monkeypatch):
    monkeypatch.setattr(_readers, "versions", lambda: ["2.11", "2.12", TORCH_MINOR])
    here = context(package={"error": "not of interest"})
    record = by_id(pytorch.checks(here))["pytorch.build"]
    assert record.what.endswith(f"built for PyTorch 2.11, 2.12, {TORCH_MINOR}")

    shadow("torch", stub_torch("2.10.1"))
    record = by_id(pytorch.checks(real_context()))["pytorch.build"]
    assert f"built for PyTorch 2.11, 2.12, {TORCH_MINOR}, but this is PyTorch 2.10.1" in record.what
    assert f'install "torch=={TORCH_MINOR}.*"' in record.mend


@pytest.mark.parametrize(
    ("code", "evidence"),
    [
        ("raise OSError('libcudnn.so.9: cannot open shared object file')", "OSError: libcudnn"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "died of SIGSEGV"),
        ("import os; os._exit(3)", "status 3"),
    ],
)
def test_a_broken_pytorch(code, evidence, shadow):
    shadow("torch", code)
    record = by_id(pytorch.checks(real_context()))["pytorch.import"]
    assert record.what == TROUBLES["torch-broken"].cause
    assert evidence in record.evidence


def test_a_pytorch_that_hangs(shadow):
    shadow("torch", "import subprocess; subprocess.run(['sleep', '20'])")
    start = time.monotonic()
    assert "no answer in 0.5 s" in ask("pytorch", timeout=0.5)["error"]
    assert time.monotonic() - start < 10


def test_a_build_that_is_missing():
    here = context()
    here.build = None
    record = by_id(pytorch.checks(here))["pytorch.build"]
    assert "without its libraries" in record.what


def test_a_build_without_the_libraries(monkeypatch):
    monkeypatch.setattr(_readers, "versions", lambda: [])
    record = by_id(pytorch.checks(context()))["pytorch.build"]
    assert "without its libraries" in record.what


def test_a_pytorch_of_another_abi():
    error = "ImportError: libcudarelu_torch.so: undefined symbol: _ZN3c106detail14torchCheckFail"
    record = by_id(pytorch.checks(context(package={"error": error})))["pytorch.cpu"]
    assert f"but this is PyTorch {torch.__version__}" in record.what


def test_a_pytorch_without_cuda(shadow):
    shadow("torch", stub_torch(TORCH_MINOR + ".0+cpu"))
    record = by_id(pytorch.checks(real_context(cuda=True)))["pytorch.cuda"]
    assert record.what == f"PyTorch {TORCH_MINOR}.0+cpu was built without CUDA"
    assert record.mend.endswith(f'"torch=={TORCH_MINOR}.0"')


@pytest.mark.parametrize(
    ("error", "what"),
    [
        ("The NVIDIA driver on your system is too old (found version 12040)", "up to 12.4, but"),
        slow("Found no NVIDIA driver on your system", "no NVIDIA driver"),
        slow("No CUDA GPUs are available", "CUDA_VISIBLE_DEVICES is '7'"),
        slow(
            "CUDA error: no kernel image is available for execution on the device",
            "has no code for",
        ),
    ],
)
def test_a_pytorch_that_does_not_reach_the_gpu(error, what, shadow, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    version = TORCH_MINOR + ".0"
    ones = f"def ones(*sizes, device): raise RuntimeError({error!r})"
    shadow("torch", stub_torch(version, "13.0", ones))
    here = real_context(cuda=True, driver=driver(version="12.4"))
    record = by_id(pytorch.checks(here))["pytorch.cuda"]
    assert record.status == "failed"
    assert what in record.what
    assert error in record.evidence


@pytest.mark.slow
def test_a_compiler_that_is_missing(monkeypatch):
    monkeypatch.setenv("CXX", "/missing/g++")
    record = pytorch._compile(context(package={}), "cpu", True)
    assert record.what == TROUBLES["no-compiler"].cause


def test_an_onnxscript_that_is_missing(shadow):
    shadow("onnxscript", missing("onnxscript"))
    record = pytorch._export(context(package={}), True)
    assert "needs the package onnxscript" in record.what
    assert record.fix == ((sys.executable, "-m", "pip", "install", "onnxscript"),)
