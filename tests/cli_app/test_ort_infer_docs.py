"""docs/ort_infer.md: its examples run, and it lists every option and every key of the JSON."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from support.ort_infer import BUILT, succeed, succeed_json

pytestmark = [BUILT, pytest.mark.xdist_group("ort_infer_docs")]  # one folder of files
TEXT = (Path(__file__).parents[2] / "docs/ort_infer.md").read_text()


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> Path:
    """The folder of the document's example, with its files."""
    folder = tmp_path_factory.mktemp("docs")
    (code,) = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment, cwd=folder)
    return folder


@pytest.fixture
def example_files(written, tmp_path, monkeypatch) -> None:
    shutil.copytree(written, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)


def test_examples(example_files):
    """The examples run in order, in one folder."""
    commands = re.findall(r"^\$ ort_infer (.*)$", TEXT, re.MULTILINE)
    assert len(commands) >= 12
    for command in commands:
        succeed(*command.split())


def test_each_option_is_there():
    options = set(re.findall(r"--[a-z-]+", succeed("--help"))) - {"--help", "--version"}
    assert len(options) > 20
    documented = set(re.findall(r"^\| .*?(?<!\\)\|", TEXT, re.MULTILINE))
    documented = set(re.findall(r"--[a-z-]+", "".join(documented)))
    assert options == documented


def keys(value, path="") -> set[str]:
    """The paths of a report's leaves, in the notation of the document."""
    if isinstance(value, dict):
        named = path.endswith(("sizes", "total")) or path == ".outputs"
        parts = [keys(v, f"{path}.{'*' if named else k}") for k, v in value.items()]
        return set().union(*parts)
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return set().union(*(keys(v, f"{path}[]") for v in value))
    return {path.removeprefix(".")}


def documented_keys(text: str) -> set[str]:
    cells = re.findall(r"^\| (`.*?) \|", text, re.MULTILINE)
    return set(re.findall(r"`([^`]+)`", " ".join(cells)))


def test_each_key_is_there(example_files):
    plain, many = TEXT.split("## JSON")[1].split("With `--list`")
    arguments = ["--input", "x=x.npy", "--compare", "y=y.npy", "--iterations", 2]
    report = succeed_json("model.onnx", *arguments, "--provider", "cpu")
    assert keys(report) == documented_keys(plain)
    report = succeed_json("model.onnx", "--list", "list.txt", "--output-dir", "out")
    shared = {"schema", "model", "provider", "provider_reason"}
    shared |= {"runtime.version", "runtime.library"}
    assert keys(report) == documented_keys(many) | shared
    first, _ = Path("out/manifest.jsonl").read_text().splitlines()
    of_a_line = TEXT.split("| key of a line")[1].split("## JSON")[0]
    assert keys(json.loads(first)) == documented_keys(of_a_line)
