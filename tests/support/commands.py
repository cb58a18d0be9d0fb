"""Runs programs as a user would, in processes that do not see the build folder."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest


def needs(*tools: str, module: str | None = None) -> pytest.MarkDecorator:
    """Skips a test if a program or a Python module is missing."""
    path = f"{sysconfig.get_path('scripts')}:{os.environ['PATH']}"
    missing = [tool for tool in tools if shutil.which(tool, path=path) is None]
    if module and importlib.util.find_spec(module) is None:
        missing.append(module)
    return pytest.mark.skipif(bool(missing), reason=f"{', '.join(missing)} is missing")


def environment(**changes: object) -> dict[str, str]:
    """The environment of this process without paths to the build folder, with Python's tools."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTEST_", "PYTHONPATH", "CUDARELU_"))
    }
    path = f"{sysconfig.get_path('scripts')}:{kept['PATH']}"
    return kept | {"PATH": path} | {name: str(value) for name, value in changes.items()}


def run(*command: object, **options) -> str:
    """The output of a command, which must succeed."""
    options = {"env": environment(), "timeout": 900} | options
    done = subprocess.run(
        [str(part) for part in command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        **options,
    )
    assert done.returncode == 0, done.stdout[-6000:]
    return done.stdout


def dynamic(path: Path, tag: str) -> list[str]:
    """The values of a dynamic tag, NEEDED or RUNPATH, of a program or a library."""
    return re.findall(rf"\({tag}\).*\[(.*)\]", run("readelf", "-d", path))


def install_wheel(wheel: Path, folder: Path) -> Path:
    """Installs a wheel into a folder, without dependencies, and returns the folder."""
    run(
        *(sys.executable, "-m", "pip", "install", wheel, "--no-deps", "--no-index"),
        *("--disable-pip-version-check", "--target", folder),
    )
    return folder


def python_3_12() -> Path:
    """A Python 3.12 on the PATH, or of pyenv, whose commands on the PATH may lead nowhere."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    found = [shutil.which("python3.12"), *pyenv.glob("versions/3.12.*/bin/python3.12")]
    for path in filter(None, found):
        if subprocess.run([path, "-c", ""], capture_output=True, check=False).returncode == 0:
            return Path(path)
    pytest.skip("python3.12 is missing")
