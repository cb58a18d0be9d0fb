"""The lock files of the set-up have what is asked for, and only what they name is installed."""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import sys
import venv
import zipfile
from collections import defaultdict
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
# The lock files that have what a file asks for.
LOCKS = {
    "requirements.txt": ["requirements.lock"],
    "requirements-dev.txt": ["requirements.lock", "requirements-dev.lock"],
    "requirements-docs.txt": ["requirements-docs.lock"],
    "tools/cuda_compiler.txt": ["tools/cuda_compiler.lock"],
}


def locked(*names: str) -> dict[str, set[str]]:
    """The versions of each package in lock files, each of which has a hash."""
    versions = defaultdict(set)
    for name in names:
        text = (ROOT / name).read_text()
        assert "://" not in text
        for block in re.split(r"\n(?=\S)", text):
            first, *hashes = block.replace("\\\n", "\n").strip().split("\n")
            package, version = re.match(r"([\w.-]+)==(\S+)", first).groups()
            assert hashes
            assert all(re.fullmatch(r" *--hash=sha256:[0-9a-f]{64} *", each) for each in hashes)
            versions[canonicalize_name(package)].add(version)
    return versions


@pytest.mark.parametrize("name", LOCKS)
def test_a_lock_file_has_what_is_asked_for(name):
    """If this fails, run tools/lock.sh."""
    versions = locked(*LOCKS[name])
    lines = [line.split("#")[0].strip() for line in (ROOT / name).read_text().splitlines()]
    for line in filter(lambda line: line and not line.startswith("-r"), lines):
        asked = Requirement(line)
        found = versions[canonicalize_name(asked.name)]
        assert found, line
        assert all(asked.specifier.contains(version) for version in found), line


def test_no_package_is_in_two_lock_files_of_an_environment():
    names = locked("requirements.lock").keys() & locked("requirements-dev.lock").keys()
    assert not names


def test_old_versions_are_locked():
    versions = locked("tools/old_runtimes.lock")
    lines = re.findall(r"^install .*", (ROOT / "tools/old_runtimes.sh").read_text(), re.MULTILINE)
    for line in lines:
        for package in line.split()[2:]:
            if "==" in package:
                name, version = package.split("==")
                assert version in versions[canonicalize_name(name)], line
            else:
                assert package.startswith("--") or package == "3.12", line


def test_a_package_with_another_hash_is_not_installed(tmp_path):
    (tmp_path / "tools").mkdir()
    shutil.copy(ROOT / "tools/setup.sh", tmp_path / "tools")
    wheel = tmp_path / "tiny-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("tiny.py", "")
        archive.writestr(
            "tiny-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n"
        )
        archive.writestr(
            "tiny-1.0.dist-info/WHEEL",
            "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        )
        archive.writestr("tiny-1.0.dist-info/RECORD", "")
    environment = tmp_path / "venv"
    venv.create(environment, with_pip=True)
    lock = tmp_path / "requirements-dev.lock"

    def install() -> subprocess.CompletedProcess:
        command = ["bash", tmp_path / "tools/setup.sh", "dev", sys.executable, environment]
        offline = {"PATH": "/usr/bin:/bin", "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path)}
        return subprocess.run(command, env=offline, capture_output=True, text=True, check=False)

    lock.write_text(f"tiny==1.0 --hash=sha256:{'0' * 64}\n")
    done = install()
    assert done.returncode != 0
    assert "DO NOT MATCH THE HASHES" in done.stderr
    assert not [*environment.rglob("tiny.py")]

    lock.write_text("tiny==1.0\n")
    assert "Hashes are required" in install().stderr
    assert not [*environment.rglob("tiny.py")]

    lock.write_text(f"tiny==1.0 --hash=sha256:{hashlib.sha256(wheel.read_bytes()).hexdigest()}\n")
    assert install().returncode == 0
    assert [*environment.rglob("tiny.py")]
