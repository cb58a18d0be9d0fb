"""A program that PyInstaller freezes with the hook of the package."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import numpy as np
import pytest
import torch

import _cudarelu_command
import cudarelu

PROGRAM = """
import sys
sys.path += sys.argv[1:]
import numpy as np, onnxruntime
import cudarelu.ort
print(cudarelu.gelu(np.array([-1, 0.5, 2], np.float32)).tolist())
print(cudarelu.__file__)
options = cudarelu.ort.register(onnxruntime.SessionOptions())
print(options.get_session_config_entry("cudarelu.registered").split(",")[0])
"""
# PyTorch and the others, 5 GB, stay outside: the program finds them where they are.
SPEC = """
a = Analysis(["program.py"], hookspath={hooks}, excludes={outside})
a.binaries = [
    (name, path, kind) for name, path, kind in a.binaries
    if name.startswith("cudarelu") or "site-packages" not in path
]
program = EXE(PYZ(a.pure), a.scripts, exclude_binaries=True, name="program")
COLLECT(program, a.binaries, a.datas, name="program")
"""


@pytest.mark.slow
def test_frozen(tmp_path):
    pytest.importorskip("PyInstaller")
    (tmp_path / "program.py").write_text(PROGRAM)
    outside = ["torch", "numpy", "onnx", "onnx_ir", "onnxruntime", "onnxscript", "ml_dtypes"]
    text = SPEC.format(hooks=_cudarelu_command.pyinstaller_hooks(), outside=outside)
    (tmp_path / "program.spec").write_text(text)
    # PyInstaller keeps folders of libraries only in site-packages, here those of the user.
    site = Path(sysconfig.get_path("purelib", "posix_user", {"userbase": str(tmp_path)}))
    site.parent.mkdir(parents=True)
    site.symlink_to(Path(cudarelu.__file__).parents[1])
    command = [sys.executable, "-m", "PyInstaller", "--log-level", "ERROR", "program.spec"]
    environment = os.environ | {"PYTHONUSERBASE": str(tmp_path)}
    subprocess.run(command, check=True, cwd=tmp_path, env=environment)

    of_torch = str(Path(torch.__file__).parents[1])
    paths = [sysconfig.get_path("stdlib"), sysconfig.get_config_var("DESTSHARED"), of_torch]
    del environment["PYTHONPATH"]
    done = subprocess.run(
        [tmp_path / "dist/program/program", *paths],
        check=True,
        capture_output=True,
        text=True,
        env=environment,
    )
    values, file, registered = done.stdout.splitlines()
    x = np.array([-1, 0.5, 2], np.float32)
    assert values == str(cudarelu.gelu(x).tolist())
    assert Path(file).is_relative_to(tmp_path / "dist")
    assert registered == "cudarelu"
