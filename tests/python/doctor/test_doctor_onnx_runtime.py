"""What the doctor finds wrong with ONNX Runtime, its CUDA provider and ort_infer."""

from __future__ import annotations

import sys

import pytest

from cudarelu.doctor import onnx_runtime
from cudarelu.doctor.context import Context
from cudarelu.doctor.records import Record
from cudarelu.doctor.troubles import TROUBLES
from support.doctor import NEEDS_CC, by_id, compiled, context, only, provider_that_needs


def stub_runtime(version: str, *providers: str) -> str:
    names = [f"{each}ExecutionProvider" for each in providers]
    return f"__version__ = {version!r}\nget_available_providers = lambda: {names}"


def test_both_packages(shadow):
    folder = shadow("unused", "")
    for name, version in (("onnxruntime", "1.30.0"), ("onnxruntime_gpu", "1.31.1")):
        metadata = folder / f"{name}-{version}.dist-info/METADATA"
        metadata.parent.mkdir()
        project = name.replace("_", "-")
        metadata.write_text(f"Metadata-Version: 2.1\nName: {project}\nVersion: {version}\n")
    record = only(onnx_runtime._packages())
    assert "onnxruntime 1.30.0 and onnxruntime-gpu 1.31.1 are both installed" in record.what
    assert [" ".join(each[1:]) for each in record.fix] == [
        "-m pip install --dry-run --force-reinstall --no-deps onnxruntime-gpu==1.31.1",
        "-m pip uninstall -y onnxruntime",
        "-m pip install --force-reinstall --no-deps onnxruntime-gpu==1.31.1",
    ]
    assert record.mend == " && ".join(" ".join(each) for each in record.fix)


@pytest.mark.parametrize(
    ("version", "status"), [("1.9.0", "failed"), ("1.15.1", "failed"), ("1.20.1", "warning")]
)
def test_an_old_runtime(version, status, shadow):
    shadow("onnxruntime", stub_runtime(version, "CUDA", "CPU"))
    record = onnx_runtime._installation(context())
    assert record.status == status
    assert f"ONNX Runtime {version} is too old" in record.what
    assert '"onnxruntime-gpu>=1.' in record.mend


@pytest.mark.parametrize(("cuda", "package"), [("12.8", "<1.27"), ("13.0", ">=1.27")])
def test_a_runtime_without_cuda(cuda, package, shadow):
    shadow("onnxruntime", stub_runtime("1.31.1", "CPU"))
    records = by_id(onnx_runtime.checks(context(cuda=True, pytorch={"cuda": cuda})))
    record = records["onnxruntime.cuda_libraries"]
    assert record.what == "this onnxruntime has no CUDA provider"
    assert record.mend.endswith(f'install "onnxruntime-gpu{package}"')
    assert records["onnxruntime.cuda"].status == "skipped"


def test_a_session_that_goes_on_without_cuda():
    here = context(cuda=True, session={"providers": ["CPUExecutionProvider"], "log": "it says why"})
    record = onnx_runtime._session(here, "cuda", True)
    assert (record.status, record.evidence) == ("failed", "it says why")


@NEEDS_CC
def test_a_library_of_cuda_that_is_hidden(shadow, tmp_path, monkeypatch):
    folder = shadow("onnxruntime", stub_runtime("1.31.1", "CUDA", "CPU"))
    provider_that_needs(
        tmp_path / "lib", folder / "onnxruntime", "libcudart.so.12", "libcublasLt.so.12"
    )
    (tmp_path / "lib/libcublasLt.so.12").unlink()
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path / "lib"))
    here = context(cuda=True)
    records = by_id(onnx_runtime._cuda_libraries(here, onnx_runtime._installation(here)))
    record = records["onnxruntime.cuda_libraries.libcublasLt.so.12"]
    assert record.status == "failed"
    assert "libcublasLt.so.12 does not load" in record.what
    assert "cannot open shared object file" in record.evidence
    assert record.fix == ((sys.executable, "-m", "pip", "install", "nvidia-cublas-cu12==12.*"),)
    assert "onnxruntime.cuda_libraries.libcudart.so.12" not in records
    others = [each for each in records.values() if each is not record]
    assert all(each.status == "warning" for each in others)  # such as cuFFT, which few ops need


def test_the_driver_is_no_package():
    library = {"name": "libcuda.so.1", "required": True, "path": None, "error": "cannot open"}
    here = context(
        cuda=True,
        onnx_runtime={"providers": ["CUDAExecutionProvider"]},
        libraries={"libraries": [{**library, "package": "the NVIDIA driver"}]},
    )
    record = only(onnx_runtime._cuda_libraries(here, Record("", "ok", "")))
    assert (record.what, record.fix) == (TROUBLES["driver-missing"].cause, ())


@pytest.mark.parametrize(
    ("code", "what"),
    [
        ("int x;", "does not export RegisterCustomOps"),
        ("int OrtGetApiBase(); int RegisterCustomOps() { return OrtGetApiBase(); }", "needs"),
    ],
)
@NEEDS_CC
def test_a_library_that_is_none(code, what, tmp_path):
    here = context()
    here.library = compiled(tmp_path / "ops.so", code)
    record = onnx_runtime._library(here)
    assert record.status == "failed"
    assert what in record.what
    if what == "needs":
        assert "needs OrtGetApiBase" in record.what


def test_a_library_that_is_missing(tmp_path, monkeypatch):
    here = context()
    here.library = tmp_path / "ops.so"
    assert "ops.so does not exist" in onnx_runtime._library(here).what
    here.library = None
    monkeypatch.setattr(here.build, "ORT", False)
    monkeypatch.setenv("ORT_ROOT", str(tmp_path))
    assert f"ORT_ROOT is {tmp_path}, which has no include" in onnx_runtime._library(here).what
    (tmp_path / "include").mkdir()
    (tmp_path / "include/onnxruntime_c_api.h").touch()
    assert onnx_runtime._library(here).what == TROUBLES["plugin-missing"].cause


def test_an_ort_infer_that_is_missing(tmp_path, monkeypatch):
    monkeypatch.setattr(Context, "ort_infer", None)
    assert "was not built" in only(onnx_runtime._ort_infer(context())).what


def test_an_ort_infer_without_onnx_runtime(monkeypatch):
    monkeypatch.setenv("CUDARELU_ORT_LIBRARY", "/missing/libonnxruntime.so")
    record = only(onnx_runtime._ort_infer(context()))
    assert "found none that loads" in record.what
    assert "/missing/libonnxruntime.so" in record.evidence
