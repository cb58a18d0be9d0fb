"""python -m cudarelu view, with Netron itself."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

import cudarelu.onnx
from cudarelu.__main__ import main
from support.commands import needs

DOCUMENT = Path(__file__).parents[2] / "docs/onnx.md"


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "model.onnx"
    path.write_bytes(cudarelu.onnx.demo_model().SerializeToString())
    return path


@needs(module="netron")
def test_it_serves_the_model_until_ctrl_c(model):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    (command,) = re.findall(r"^python (-m cudarelu view .*)$", DOCUMENT.read_text(), re.MULTILINE)
    options = ("-p", str(port), "--host", "127.0.0.1", "--no-browser")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        [sys.executable, *command.split(), *options],
        stderr=subprocess.PIPE,
        text=True,
        cwd=model.parent,
        env=environment,
        # A shell ignores the signal for what it starts in the background.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as process:
        try:
            address = f"http://127.0.0.1:{port}"
            assert process.stderr.readline() == f"Serving 'model.onnx' at {address}\n"
            with urllib.request.urlopen(address) as page:
                (file,) = re.findall(r'<meta name="file" content="(.*?)">', page.read().decode())
            with urllib.request.urlopen(address + file) as served:
                assert served.read() == model.read_bytes()
        finally:
            process.send_signal(signal.SIGINT)
    assert process.returncode == 0


@needs(module="netron")
@pytest.mark.parametrize(
    ("path", "cause"), [("", "Is a directory"), ("missing.onnx", "No such file")]
)
def test_what_is_no_file(path, cause, tmp_path, capsys):
    assert main(["view", str(tmp_path / path), "--no-browser"]) == 2
    assert re.fullmatch(rf"error: .*{cause}.*\n", capsys.readouterr().err)


def test_without_netron(model, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "netron", None)
    assert main(["view", str(model), "--no-browser"]) == 2
    assert capsys.readouterr().err == "error: view needs Netron: pip install netron\n"
