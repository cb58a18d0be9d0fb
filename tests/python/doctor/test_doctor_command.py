"""python -m cudarelu doctor as a process, and what starts it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import onnx
import pytest

import cudarelu.onnx
from cudarelu.__main__ import main
from cudarelu.doctor import command
from cudarelu.doctor.records import Record
from cudarelu.doctor.troubles import TROUBLES
from support.doctor import DOCUMENT, TORCH_MINOR, missing, slow, stub_torch

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
