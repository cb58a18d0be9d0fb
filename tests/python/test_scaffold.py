"""`python -m cudarelu new` writes a module that builds, passes its tests and becomes a wheel."""

from __future__ import annotations

import functools
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
import torch

import cudarelu
from cudarelu.__main__ import main
from cudarelu._scaffold import TEMPLATE, create
from support import commands

TOOLS = f"{sysconfig.get_path('scripts')}:{os.environ['PATH']}"
MISSING = [tool for tool in ("cmake", "make", "g++") if shutil.which(tool, path=TOOLS) is None]
ENVIRONMENT = os.environ | {"PATH": TOOLS, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


run = functools.partial(commands.run, env=ENVIRONMENT, timeout=600)


def test_cmake_dir(tmp_path):
    """It works without PyTorch."""
    (tmp_path / "torch.py").write_text("raise ModuleNotFoundError(\"No module named 'torch'\")")
    environment = ENVIRONMENT | {"PYTHONPATH": f"{tmp_path}:{ENVIRONMENT['PYTHONPATH']}"}
    folder = run(sys.executable, "-m", "cudarelu", "cmake-dir", env=environment, cwd=tmp_path)
    assert (Path(folder.strip()) / "cudarelu-config.cmake").is_file()


def test_files_and_names(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["new", "fast_ops"]) == 0
    output = capsys.readouterr().out.splitlines()
    files = {str(path.relative_to("fast_ops")) for path in Path("fast_ops").rglob("*.*")}
    files = {file for file in files if Path("fast_ops", file).is_file()} | {"Makefile"}
    assert {line.removeprefix("wrote fast_ops/") for line in output[:-1]} == files
    assert output[-1] == f"next: cd fast_ops && make test PYTHON={sys.executable}"
    assert 0 < len(files) <= 12
    readme = Path("fast_ops/README.md").read_text()
    assert set(re.findall(r"^\| `(.*?)` \|", readme, re.MULTILINE)) == files
    for file in files:
        assert not re.search(r"my_ops|\bmy\b", Path("fast_ops", file).read_text()), file
    assert "namespace fast {" in Path("fast_ops/src/swish.h").read_text()
    create(Path("fast"), "quick")
    assert "namespace quick {" in Path("fast/src/swish.h").read_text()


def test_what_is_missing_for_its_tests_is_installed_first(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert main(["new", str(tmp_path / "my_ops")]) == 0
    output = capsys.readouterr().out.splitlines()[-1]
    assert output.startswith(
        f"next: {sys.executable} -m pip install pytest && cd {tmp_path}/my_ops &"
    )


@pytest.mark.skipif(bool(MISSING), reason=f"{', '.join(MISSING)} is missing")
def test_paths_with_a_space(tmp_path, monkeypatch, capsys):
    folder, python = tmp_path / "the ops" / "my_ops", "/the python/python"
    folder.parent.mkdir()
    monkeypatch.setattr(sys, "executable", python)
    assert main(["new", str(folder)]) == 0
    output = capsys.readouterr().out.splitlines()[-1]
    assert output == f"next: cd '{folder}' && make test PYTHON='{python}'"
    printed = run("make", "-n", "test", f"PYTHON={python}", cwd=folder)
    assert f'command -v "{python}"' in printed
    assert f'\n"{python}" -m pytest' in printed


@pytest.mark.skipif(bool(MISSING), reason=f"{', '.join(MISSING)} is missing")
def test_a_python_without_cudarelu(tmp_path):
    create(tmp_path / "my_ops")
    (tmp_path / "cudarelu.py").write_text("raise ModuleNotFoundError")
    done = subprocess.run(
        ["cmake", "-B", "build", f"-DPython_EXECUTABLE={sys.executable}"],
        cwd=tmp_path / "my_ops",
        env=ENVIRONMENT | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert "has no cudarelu: give a Python that has it, by make" in " ".join(done.stderr.split())


def test_no_file_contains_a_cache_of_python(tmp_path):
    (TEMPLATE / "tests/__pycache__").mkdir(exist_ok=True)
    try:
        (TEMPLATE / "tests/__pycache__/x.pyc").write_bytes(b"\xff")
        assert not [path for path in create(tmp_path / "my_ops") if "__pycache__" in path.parts]
    finally:
        shutil.rmtree(TEMPLATE / "tests/__pycache__")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["My-Ops"],
            "a module cannot have the name 'My-Ops': a name consists of lower-case letters, ",
        ),
        (
            ["2d"],
            "a module cannot have the name '2d': a name consists of lower-case letters, "
            "digits and _,",
        ),
        (["class"], "a module cannot have the name class, a keyword of C++, Python or gradients"),
        (["my_ops", "--namespace", "double"], "a module cannot have the name double, a keyword of"),
        (["my_ops", "--namespace", "aten"], "a module cannot have the name aten, which PyTorch"),
        (["my_ops", "--namespace", ""], "a module cannot have the name '': a name consists"),
        (["aten_ops"], "a module cannot have the name aten, which PyTorch uses itself"),
        (["cudarelu"], "a module cannot have the name cudarelu, the name of this package"),
        (["there"], "there exists already"),
        (["nowhere/my_ops"], "there is no folder nowhere"),
    ],
)
def test_bad_input(arguments, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("there").mkdir()
    assert main(["new", *arguments]) == 2
    output = capsys.readouterr().err
    assert output.startswith(f"error: {message}")
    assert output.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["there"]


USE = """
import numpy, torch, my_ops
x = torch.randn(8)
torch.testing.assert_close(my_ops.swish(x), torch.nn.functional.silu(x))
assert my_ops.count_above(x.numpy()) == (x > 0).sum().item()
assert sorted(my_ops.__all__) == ["count_above", "swish", "swish_backward"]
print(my_ops.LIBRARY)
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("scaffold") / "my_ops"
    create(folder)
    return folder


@pytest.mark.skipif(bool(MISSING), reason=f"{', '.join(MISSING)} is missing")
class TestProject:
    """The commands of docs/your-op.md. They take a minute on two cores."""

    @pytest.mark.slow
    def test_make_test(self, project):
        """For CUDA where there is a GPU."""
        cuda = "ON" if torch.cuda.is_available() and shutil.which("nvcc") else "OFF"
        python = os.path.relpath(sys.executable, project)  # as the Makefile's .venv/bin/python
        flags = (f"PYTHON={python}", f"CMAKE_FLAGS=-DCUDARELU_CUDA={cuda}")
        output = run("make", "test", "example", *flags, cwd=project)
        assert re.search(r"^\d+ passed", output, re.MULTILINE)
        assert "the same outputs in ONNX Runtime" in output

    @pytest.mark.skipif(
        importlib.util.find_spec("scikit_build_core") is None, reason="scikit-build-core is missing"
    )
    def test_wheel(self, project, tmp_path):
        pip = (sys.executable, "-m", "pip", "--disable-pip-version-check")
        run(
            *(*pip, "wheel", "--no-build-isolation", "--no-deps", "--no-index"),
            "--config-settings=cmake.define.CUDARELU_CUDA=OFF",  # -C is of pip 23.1
            *("--wheel-dir", tmp_path / "dist", project),
        )
        (wheel,) = (tmp_path / "dist").iterdir()
        assert re.fullmatch(r"my_ops-0\.1\.0-py3-none-linux_\w+\.whl", wheel.name)
        installed = tmp_path / "installed"
        run(*pip, "install", "--no-deps", "--no-index", "--target", installed, wheel)
        environment = ENVIRONMENT | {"PYTHONPATH": f"{installed}:{ENVIRONMENT['PYTHONPATH']}"}
        output = run(sys.executable, "-c", USE, cwd=tmp_path, env=environment)
        assert output.strip() == str(installed / "my_ops/libmy_ops.so")


def test_the_guide_has_these_commands():
    guide = (Path(__file__).parents[2] / "docs/your-op.md").read_text()
    for command in ("python -m cudarelu new my_ops", "make test", "make wheel"):
        assert f"\n    {command}" in guide


def test_the_package_contains_the_template():
    """Links in a build folder, files in an installation."""
    package = Path(cudarelu._build_info.__file__).parent / "scaffold"
    names = {path.relative_to(TEMPLATE) for path in TEMPLATE.rglob("*") if path.is_file()}
    for name in names:
        assert "__pycache__" in name.parts or (package / name).is_file()
