"""Environments of the doctor that are broken on purpose.

Where possible, the checks run on a machine that is really broken: by packages that shadow others,
libraries that the tests build, tools on the PATH, and environment variables. Only GPUs are faked.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest


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
