"""python -m cudarelu doctor, in environments that are broken on purpose.

Where possible, the checks run on a machine that is really broken: by packages that shadow others,
libraries that the tests build, tools on the PATH, and environment variables. Only GPUs are faked.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import onnx
import onnx.parser
import onnxruntime
import pytest
import torch

import cudarelu.onnx
from cudarelu import _readers, ort
from cudarelu.__main__ import main
from cudarelu._table import op_named
from cudarelu.doctor import (
    binaries,
    command,
    cuda,
    cuda_provider,
    model,
    onnx_runtime,
    probes,
    pytorch,
    troubles,
)
from cudarelu.doctor.binaries import Code, code_of, runs_on
from cudarelu.doctor.context import Context
from cudarelu.doctor.processes import Probes, ask
from cudarelu.doctor.records import Record, from_error, trouble
from cudarelu.doctor.report import text
from cudarelu.doctor.troubles import TROUBLES, explain
from cudarelu.testing.environment import torch_cuda_missing
from support.op_modules import LIBRARY as MY_LIBRARY
from support.op_modules import my

DOCUMENT = Path(__file__).parents[3] / "docs/troubleshooting.md"
PLUGIN = Path(ort.library_path())
TORCH_MINOR = ".".join(torch.__version__.split(".")[:2])
H200 = {"name": "NVIDIA H200", "capability": 90}
RTX5090 = {"name": "NVIDIA GeForce RTX 5090", "capability": 120}

NEEDS_CC = pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
WITHOUT_GPU = pytest.mark.skipif(
    torch_cuda_missing() is None, reason="needs a machine without CUDA"
)


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


def real_context(cuda: bool = False, **given: dict) -> Context:
    return Context(Answers(**given), cuda)


def by_id(records) -> dict[str, Record]:
    return {each.id: each for each in records}


def only(records) -> Record:
    (record,) = records
    return record


def driver(*gpus: dict, version: str = "13.0") -> dict:
    return {"gpus": list(gpus), "cuda": version}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> Path:
    """The cache of `cudarelu.load`."""
    monkeypatch.setenv("CUDARELU_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def shadow(tmp_path, monkeypatch):
    """shadow(package, code): makes `import package` run the code, also in other processes."""
    folder = tmp_path / "shadows"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)

    def make(package: str, code: str) -> Path:
        (folder / package).mkdir(parents=True)
        (folder / package / "__init__.py").write_text(code)
        monkeypatch.delitem(sys.modules, package, raising=False)  # find_spec looks there first
        return folder

    return make


def missing(package: str) -> str:
    return f"raise ModuleNotFoundError(\"No module named '{package}'\")"


def script(path: Path, code: str) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{code}\n")
    path.chmod(0o755)
    return path


def compiled(path: Path, code: str, *flags: object) -> Path:
    call = ["cc", "-shared", "-fPIC", "-o", path, *flags, "-x", "c", "-"]
    subprocess.run(list(map(str, call)), input=code, text=True, check=True)
    return path


# The whole command

PACKAGE = ("-m", "cudarelu")
PROGRAM = ("-c", "import sys; from _cudarelu_command import main; sys.exit(main())")


def python(*arguments: object, folder: Path | None = None) -> subprocess.CompletedProcess:
    """Runs Python with this process's module path, after the modules of a folder."""
    paths = [str(folder)] if folder else []
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths + sys.path)}
    call = [sys.executable, *map(str, arguments)]
    return subprocess.run(call, capture_output=True, text=True, env=environment, cwd="/")


def doctor(*arguments: object, folder: Path | None = None) -> subprocess.CompletedProcess:
    return python(*PACKAGE, "doctor", *arguments, folder=folder)


def records_of(done: subprocess.CompletedProcess) -> dict[str, dict]:
    """The records of --json, whose keys must be those in the document."""
    keys = re.findall(r"^\| `(\w+)` \|", DOCUMENT.read_text(), re.MULTILINE)
    found = json.loads(done.stdout)
    for each in found:
        assert list(each) == keys == ["id", "status", "what", "evidence", "mend"]
        assert all(isinstance(value, str) for value in each.values())
        assert re.fullmatch(r"(pytorch|onnxruntime|cuda|model)\.\S+", each["id"])
        assert each["status"] in ("ok", "warning", "failed", "skipped")
        assert each["what"]
        assert bool(each["mend"]) == (each["status"] in ("warning", "failed"))
    records = {each["id"]: each for each in found}
    assert len(records) == len(found)
    assert done.returncode == int(any(each["status"] == "failed" for each in found))
    return records


def slow(*values):
    return pytest.param(*values, marks=pytest.mark.slow)


@pytest.mark.slow
def test_everything_works_here(tmp_path):
    onnx.save(cudarelu.onnx.demo_model(), tmp_path / "model.onnx")
    done = doctor("--provider", "cpu", "--model", tmp_path / "model.onnx", "--json")
    records = records_of(done)
    # If both onnxruntime and onnxruntime-gpu are installed, the doctor reports this correctly.
    failed = {id for id, each in records.items() if each["status"] == "failed"}
    assert failed <= {"onnxruntime.packages"}, done.stdout
    assert done.returncode == len(failed)
    works = {id for id, each in records.items() if each["status"] == "ok"}
    assert works >= {
        *("pytorch.import", "pytorch.build", "pytorch.cpu", "pytorch.compile", "pytorch.export"),
        *("onnxruntime.import", "onnxruntime.library", "onnxruntime.cpu"),
        *("onnxruntime.ort_infer", "model.content", "model.cpu"),
    }
    assert records["pytorch.cuda"]["status"] == "skipped"


def test_where_nothing_imports(shadow):
    """Each failure is a record, none is a traceback, and safe fixes are shown before they run."""
    for package in ("torch", "onnxruntime", "onnx"):
        folder = shadow(package, missing(package))
    shadow("pip", "")
    log = folder / "log"
    code = f"import sys; open({str(log)!r}, 'a').write(' '.join(sys.argv[1:]) + '\\n')"
    (folder / "pip/__main__.py").write_text(code)
    done = doctor("--provider", "cpu", "--model", "/missing.onnx", "--json", "--fix", folder=folder)
    records = records_of(done)
    assert "Traceback" not in done.stderr
    assert 'install "torch==' in records["pytorch.import"]["mend"]
    assert "ONNX Runtime is not installed" in records["onnxruntime.import"]["what"]
    assert "onnx is missing" in records["onnxruntime.ort_infer"]["what"]
    # Two packages provide onnxruntime, so its installation is the user's choice. If both are
    # installed, a fix removes one.
    commands = log.read_text().splitlines()
    assert [each for each in commands if "onnxruntime" not in each] == ["install onnx"]
    assert f"running: {sys.executable} -m pip install onnx\n" in done.stderr


@pytest.mark.parametrize("entry", [slow(PACKAGE), PROGRAM], ids=["package", "program"])
def test_without_pytorch_for_a_person(entry, shadow):
    folder = shadow("torch", missing("torch"))
    done = python(*entry, "doctor", "--provider", "cpu", folder=folder)
    assert done.returncode == 1
    assert "Traceback" not in done.stdout + done.stderr
    assert "\033" not in done.stdout
    lines = done.stdout.splitlines()
    assert lines[:2] == ["PyTorch", f"  failed   import: {TROUBLES['torch-missing'].cause}"]
    assert lines[3].endswith(f'-m pip install "torch=={TORCH_MINOR}.*"')
    assert len(lines) <= 40
    assert "  ok       cpu: our ops run in a session on CPU" in lines


@pytest.mark.parametrize(
    ("options", "prog"),
    [
        (PACKAGE, "python -m cudarelu"),
        (["-mcudarelu"], "python -m cudarelu"),
        (["-X", "dev", "-W", "ignore", *PACKAGE], "python -m cudarelu"),
        (["-Bsm", "cudarelu"], "python -m cudarelu"),
        (PROGRAM, "cudarelu"),
    ],
)
def test_it_starts_where_the_package_does_not_import(options, prog, shadow):
    done = python(*options, "doctor", "--help", folder=shadow("torch", stub_torch("2.1.0")))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"usage: {prog} doctor ")


@pytest.mark.parametrize(
    "command",
    [
        ["-m", "anything", "doctor", "cudarelu"],
        ["-m", "anything", "doctor", "-m", "cudarelu", "doctor"],
        ["-m", "mycudarelu", "doctor"],
        ["-mmycudarelu", "doctor"],
        ["-m", "pytest", "-p", "cudarelu", "doctor", "cudarelu"],
        ["-c", "import cudarelu", "-m", "cudarelu", "doctor"],
        ["{folder}/anything", "-m", "cudarelu", "doctor"],
        ["-c", "import sys; sys.argv = ['-m', 'doctor']; import cudarelu"],
        ["-m", "cudarelu", "ops", "doctor"],
        [*PROGRAM, "ops", "doctor"],
    ],
)
def test_nothing_else_starts_it(command, shadow):
    for name in ("anything", "mycudarelu"):
        folder = shadow(name, "import cudarelu")
        (folder / name / "__main__.py").write_text("import cudarelu")
    shadow("torch", missing("torch"))
    done = python(*(each.format(folder=folder) for each in command), folder=folder)
    assert done.returncode != 0
    assert done.stdout == ""
    assert "No module named 'torch'" in done.stderr


@pytest.mark.parametrize("arguments", [["--provider", "tpu"], ["model.onnx"]])
def test_a_wrong_command_line(arguments):
    done = doctor(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("usage: python -m cudarelu")


def test_it_is_a_command_like_the_others(monkeypatch, capsys):
    failed = Record("pytorch.cpu", "failed", "broken", "seen", "mend it")
    monkeypatch.setattr(command, "examine", lambda arguments: [failed])
    with pytest.raises(SystemExit, match="1"):
        main(["doctor"])
    assert "broken" in capsys.readouterr().out
    monkeypatch.setattr(command, "examine", lambda arguments: [])
    assert main(["doctor"]) == 0


# The texts


def test_the_page_is_the_table():
    assert DOCUMENT.read_text() == troubles.page(), "run python -m cudarelu.doctor.troubles"


@pytest.mark.parametrize("name", [name for name in TROUBLES if TROUBLES[name].pattern])
def test_a_symptom_is_known(name):
    """A symptom of the page is recognized, and its record needs only the error."""
    errors = re.split(r"; (?!configure)", TROUBLES[name].symptom)
    known = [error for error in errors if (explain(error) or [""])[0] == name]
    assert known
    record = from_error("pytorch.cpu", "", known[0], context(driver={}))
    assert record.status == "failed"
    assert record.mend


@pytest.mark.parametrize("domain", ["", "my_domain", "com.my-ops"])
def test_domains_of_errors(domain):
    error = f"Fatal error: {domain}:Swish(-1) is not a registered function/op"
    assert explain(error) == ("unknown-op", {"name": f"{domain}:Swish"})
    name = f"{domain}.Swish".removeprefix(".")
    error = f"Could not find an implementation for {name}(1) node with name ''"
    assert explain(error) == ("no-kernel", {"name": name})


def test_a_package_of_onnxscript_that_is_missing():
    assert explain("No module named 'onnx_ir'") == ("onnxscript-missing", {})


def test_every_trouble_has_a_use():
    sources = "".join(path.read_text() for path in Path(command.__file__).parent.glob("*.py"))
    for name, each in TROUBLES.items():
        assert each.pattern or sources.count(f'"{name}"') > 1, name
        assert bool(each.mend) != bool(each.pip)


def test_the_commands_of_the_page(monkeypatch):
    asked = []
    monkeypatch.setattr(command, "examine", lambda arguments: asked.append(arguments) or [])
    commands = re.findall(
        r"^python -m cudarelu (doctor[^#\n]*)", DOCUMENT.read_text(), re.MULTILINE
    )
    for each in commands:
        assert main(each.split()) == 0
    assert [name for each in asked for name in ("model", "library") if getattr(each, name)]
    assert any(each.fix for each in asked)
    assert any(each.json for each in asked)


def test_an_unknown_error():
    record = from_error("pytorch.cpu", "an op fails", "RuntimeError: surprise", context())
    assert record.what == "an op fails; the doctor does not know the cause"
    assert record.evidence == "RuntimeError: surprise"


def test_an_error_of_the_doctors_own():
    def checks(context):
        yield Record("pytorch.import", "ok", "fine")
        raise KeyError("oops")

    checks.__module__ = onnx_runtime.__name__
    first, second = command._guarded(checks, context())
    assert (first.status, second.status) == ("ok", "failed")
    assert (second.id, second.evidence) == ("onnxruntime.doctor", "KeyError: 'oops'")


def test_the_report():
    records = [
        Record("pytorch.cpu", "ok", "works " * 20, "not shown"),
        Record("cuda.nvcc", "warning", "old", "seen " * 200, "do " * 60),
    ]
    plain = text(records, color=False, width=80)
    assert "not shown" not in plain
    assert "\033" not in plain
    assert max(len(line) for line in plain.splitlines() if "fix: " not in line) <= 80
    assert "fix: " + "do " * 60 in plain
    assert plain.endswith("1 warning")
    assert "\033[33m  warning" in text(records, color=True, width=80)


@pytest.mark.parametrize(("terminal", "no_color"), [(True, ""), (True, "1"), (False, "")])
def test_colors(terminal, no_color, monkeypatch, capsys):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal)
    monkeypatch.setenv("NO_COLOR", no_color)
    monkeypatch.setattr(command, "examine", lambda arguments: [Record("cuda.x", "ok", "fine")])
    main(["doctor"])
    assert ("\033" in capsys.readouterr().out) == (terminal and not no_color)


def test_fixes_stop_at_a_failure(tmp_path, capfd):
    log = tmp_path / "log"
    calls = [
        (sys.executable, "-c", f"open({str(log)!r}, 'a').write('{i}'); exit({i})") for i in (0, 3)
    ]
    fixes = [calls[0], calls[0], calls[1], (sys.executable, "-c", "exit()")]
    assert command.fix([Record("cuda.x", "failed", "", fix=(each,)) for each in fixes])
    assert log.read_text() == "03"
    captured = capfd.readouterr()
    assert captured.out == ""
    assert captured.err.count("running: ") == 2
    assert "status 3; no further fix is run" in captured.err
    assert not command.fix([Record("cuda.x", "failed", "", mend="sudo reboot")])
    assert "no fix that is safe" in capfd.readouterr().err


# PyTorch


def stub_torch(version: str = torch.__version__, cuda: str | None = None, more: str = "") -> str:
    return (
        f"import types\n__version__ = {version!r}\nversion = types.SimpleNamespace(cuda={cuda!r})\n"
        f"{more}"
    )


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


# ONNX Runtime


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


# CUDA


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


# Models

LEAKY = "cudarelu.LeakyRelu"
NODE = '<ir_version: 8, opset_import: ["" : {opset}, "cudarelu" : 1, "other" : 1]>'
GRAPH = "main ({dtype}[N] x) => ({dtype}[N] y) {{ y = {call}(x) }}"


def edited(path: Path, call="cudarelu.Relu", dtype="float", opset=18, ir=8, domain=1) -> Path:
    made = onnx.parser.parse_model((NODE + GRAPH).format(opset=18, call=call, dtype=dtype))
    made.ir_version, made.opset_import[0].version = ir, opset
    made.opset_import[1].version = domain
    onnx.save(made, path)
    return path


def examined(path: Path, library: Path | None = None) -> dict[str, Record]:
    return by_id(model.checks(Context(Here(), False, path, library)))


def test_a_model_that_runs(tmp_path):
    records = examined(edited(tmp_path / "model.onnx"))
    assert {each.status for each in records.values()} == {"ok"}
    assert "our ops: cudarelu::Relu" in records["model.content"].what


@pytest.mark.parametrize(
    ("edit", "id", "what"),
    [
        (
            {"call": "other.Relu"},
            "model.unknown.other::Relu",
            "other::Relu is neither an op of ONNX",
        ),
        ({"call": "other.Relu"}, "model.cpu", "other:Relu is neither an op"),
        ({"call": "cudarelu.Mish"}, "model.content", "there is no such op"),
        ({"call": "cudarelu.Relu<slope = 2>"}, "model.content", "there is no attribute slope"),
        ({"domain": 2}, "model.content", "version 2 of the domain cudarelu"),
        ({"call": LEAKY, "dtype": "int8"}, "model.cpu", "an input of LeakyRelu is int8, which no"),
        ({"ir": 99}, "model.cpu", "has IR version 99, but this ONNX Runtime reads versions up to"),
        ({"opset": 999}, "model.content", "opset is newer"),
        ({"opset": onnx.defs.onnx_opset_version()}, "model.content", "IR version 8"),
    ],
)
def test_an_edited_model(edit, id, what, tmp_path):
    record = examined(edited(tmp_path / "model.onnx", **edit))[id]
    assert what in record.what
    assert record.status == ("ok" if what == "IR version 8" else "failed")


def test_a_name_that_is_nearly_ours(tmp_path):
    record = examined(edited(tmp_path / "model.onnx", "other.Relu"))["model.unknown.other::Relu"]
    assert record.evidence == "the most similar op is cudarelu::Relu"


def test_an_opset_of_the_future(tmp_path):
    path = edited(tmp_path / "model.onnx", opset=onnx.defs.onnx_opset_version())
    try:
        onnxruntime.InferenceSession(path, cudarelu.ort.register(onnxruntime.SessionOptions()))
    except Exception:  # ONNX Runtime has no specific exception for it
        assert "model's opset is newer than this ONNX Runtime" in examined(path)["model.cpu"].what
    else:
        pytest.skip("ONNX Runtime knows every opset that onnx does")


def test_the_mend_of_an_ir_version(tmp_path):
    path = edited(tmp_path / "a model.onnx", ir=99)
    subprocess.run(examined(path)["model.cpu"].mend, shell=True, check=True)
    assert {each.status for each in examined(path).values()} == {"ok"}


@pytest.mark.parametrize("content", [None, b"", b"version https://git-lfs.github.com/spec/v1\n"])
def test_what_is_no_model(content, tmp_path):
    path = tmp_path / "model.onnx"
    if content is not None:
        path.write_bytes(content)
    records = examined(path)
    assert "the model cannot be read" in records["model.content"].what
    assert ("model.cpu" in records) == (content is not None)


def test_a_model_whose_data_is_elsewhere(tmp_path):
    path = edited(tmp_path / "model.onnx")
    model = onnx.load(path)
    weight = model.graph.initializer.add(name="w", data_type=1, dims=[4])
    weight.data_location = onnx.TensorProto.EXTERNAL
    weight.external_data.add(key="location", value="../w.bin")
    onnx.save(model, path)
    what = examined(path)["model.content"].what
    assert "cannot be read: the external data ../w.bin is not in the folder of the model" in what


@NEEDS_CC
def test_a_model_with_another_library(tmp_path):
    """The other library does not have the op of the model either. Our library is not checked."""
    code = "void* RegisterCustomOps(void* options, void* base) { return 0; }"
    library = compiled(tmp_path / "ops.so", code)
    records = examined(edited(tmp_path / "model.onnx", "other.Relu"), library)
    assert "is neither an op" in records["model.cpu"].what
    assert set(records) == {"model.content", "model.cpu"}


def two_modules(path: Path, op_type: str) -> Path:
    """A model with an op of ours and one of the domain `my`."""
    version = op_named("my::swish").onnx.version
    text = NODE.replace('"other" : 1', f'"my" : {version}').format(opset=18)
    text += f"main (float[N] x) => (float[N] y) {{ z = cudarelu.Relu(x) y = my.{op_type}(z) }}"
    onnx.save(onnx.parser.parse_model(text), path)
    return path


def test_a_model_with_an_op_module(tmp_path):
    """Its ops are used beside ours, and its nodes are checked as ours are."""
    my()
    path = two_modules(tmp_path / "model.onnx", "Swish")
    records = examined(path, MY_LIBRARY)
    assert {each.status for each in records.values()} == {"ok"}
    assert "our ops: cudarelu::Relu, my::Swish" in records["model.content"].what
    record = examined(two_modules(path, "Swosh"), MY_LIBRARY)["model.content"]
    assert "my::Swosh: there is no such op" in record.what


@NEEDS_CC
def test_a_module_that_cannot_be_loaded(tmp_path):
    code = "void* RegisterCustomOps(void* o, void* b) { return 0; } int cudarelu_get_module() {}"
    library = compiled(tmp_path / "ops.so", code.replace("{}", "{ return 0; }"))
    record = examined(edited(tmp_path / "model.onnx"), library)["model.content"]
    assert (record.status, "ops.so" in record.evidence) == ("failed", True)


def test_an_op_of_a_module_that_was_built(tmp_path, cache):
    """`cudarelu.load` has built the module. The doctor names the library and does not load it."""
    library = cache / "modules/other/0-1/2/libother.so"
    library.parent.mkdir(parents=True)
    library.write_text("It is no library: loading it would fail.")
    path = tmp_path / "model.onnx"
    node = onnx.helper.make_node("Op", ["x"], ["y"], domain="other")
    saved = onnx.load(edited(path))
    saved.graph.node[0].CopyFrom(node)
    saved.opset_import.append(onnx.helper.make_opsetid("other", 1))
    onnx.save(saved, path)
    record = examined(path)["model.unknown.other::Op"]
    assert "cudarelu.load has built a module other" in record.what
    fix = f"-m cudarelu doctor --model {path} --library {library}"
    assert f"{fix}  # and register this file" in record.mend


def test_a_trouble_takes_any_values():
    record = trouble("cuda.x", "nvcc-broken", path="/a b", unused=1)
    assert record.what == "/a b is not a working nvcc"
