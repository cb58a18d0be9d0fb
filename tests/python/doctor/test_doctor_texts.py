"""The texts of the doctor: the troubles and their page, the report, colors and mends."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from cudarelu.__main__ import main
from cudarelu.doctor import command, onnx_runtime, troubles
from cudarelu.doctor.records import Record, from_error, trouble
from cudarelu.doctor.report import text
from cudarelu.doctor.troubles import TROUBLES, explain
from support.doctor import DOCUMENT, context


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


def test_a_trouble_takes_any_values():
    record = trouble("cuda.x", "nvcc-broken", path="/a b", unused=1)
    assert record.what == "/a b is not a working nvcc"
