"""Makes one wheel of cudarelu for several minor versions of PyTorch.

    usage: python tools/wheel.py [--folder FOLDER] [--wheel-dir DIR] [-C SETTING]... [VERSION...]

VERSION is a minor version of PyTorch; the default is 2.11 to 2.14. SETTING goes to the build
backend, for example cmake.define.CUDARELU_CUDA=OFF. The Python that runs this needs
requirements.txt, with any version of PyTorch. The others are installed into FOLDER, without their
dependencies: those of the installed one serve them. The wheel is for this version of Python.

A wheel is built for each version, in one build folder, so that only the libraries that depend on
PyTorch are compiled each time. The merged wheel has those of all; other files must be the same.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import importlib.metadata
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check")


def install_torch(version: str, folder: Path) -> Path | None:
    """Return the folder with a PyTorch of this version; None if it is installed in this Python."""
    if importlib.metadata.version("torch").startswith(f"{version}."):
        return None
    target = folder / f"torch-{version}"
    if not target.exists():
        part = folder / f"torch-{version}.part"
        options = ("-q", "--no-deps", "--no-compile", "--retries", "1", "--upgrade")
        command = [*PIP, "install", *options, "--target", part, f"torch=={version}.*"]
        if subprocess.run(command, check=False).returncode != 0:
            raise SystemExit(f"PyTorch {version} cannot be installed")
        part.rename(target)
    return target


def build(version: str, folder: Path, settings: Sequence[str]) -> Path:
    """Return a wheel for one version of PyTorch."""
    paths = [install_torch(version, folder), os.environ.get("PYTHONPATH")]
    wheels = folder / f"wheel-{version}"
    for stale in folder.glob("src/**/*.gch"):  # ccache serves no header that replaces another
        stale.unlink()
    # -UTorch_*: so that CMake finds this PyTorch instead of that of the last build.
    settings = [f"build-dir={folder}", "cmake.args=-UTorch_*", *settings]
    done = subprocess.run(
        [
            *(*PIP, "wheel", ROOT, "--no-deps", "--no-build-isolation", "--wheel-dir", wheels),
            *(f"--config-settings={setting}" for setting in settings),
        ],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(str(path) for path in paths if path)},
        check=False,
    )
    if done.returncode != 0:
        raise SystemExit(f"the wheel for PyTorch {version} cannot be built")
    return max(wheels.glob("*.whl"), key=lambda path: path.stat().st_mtime)


def requirement(versions: Sequence[str]) -> str:
    """Return the requirement of a wheel with the readers for these versions, in order."""
    minors = [int(version.removeprefix("2.")) for version in versions]
    between = set(range(minors[0], minors[-1])) - set(minors)
    parts = [f">=2.{minors[0]}", f"<2.{minors[-1] + 1}", *(f"!=2.{m}.*" for m in sorted(between))]
    return "torch" + ",".join(parts)


def merge(wheels: dict[str, Path], folder: Path) -> Path:
    """Write the wheel with the files of all wheels, which are given by the version of PyTorch."""
    files: dict[str, tuple[zipfile.ZipInfo, bytes]] = {}
    for version, path in wheels.items():
        with zipfile.ZipFile(path) as archive:
            for entry in archive.infolist():
                data = archive.read(entry)
                if entry.filename.endswith(".dist-info/RECORD"):
                    record = entry
                    continue
                if entry.filename.endswith(".dist-info/METADATA"):
                    own, common = f"torch=={version}.*", requirement(list(wheels))
                    assert own.encode() in data
                    data = data.replace(own.encode(), common.encode())
                if files.setdefault(entry.filename, (entry, data))[1] != data:
                    raise SystemExit(f"{entry.filename} is another in the wheel for {version}")
    lines = []
    for name, (_, data) in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        lines.append(f"{name},sha256={digest},{len(data)}\n")
    lines.append(f"{record.filename},,\n")
    folder.mkdir(parents=True, exist_ok=True)
    merged = folder / path.name
    with zipfile.ZipFile(merged, "w", zipfile.ZIP_DEFLATED) as archive:
        for entry, data in [*files.values(), (record, "".join(lines).encode())]:
            archive.writestr(entry, data)
    return merged


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("versions", nargs="*", metavar="VERSION", help="default: 2.11 to 2.14")
    parser.add_argument("--folder", type=Path, default=ROOT / "build-wheel", help="for the build")
    parser.add_argument("--wheel-dir", type=Path, default=ROOT / "dist", help="for the wheel")
    parser.add_argument("-C", dest="settings", action="append", default=[], metavar="SETTING")
    arguments = parser.parse_args()
    versions = arguments.versions or ["2.11", "2.12", "2.13", "2.14"]
    for version in versions:
        if not re.fullmatch(r"2\.\d+", version):
            parser.error(f"{version} is not a minor version of PyTorch, such as 2.14")
    versions = sorted(set(versions), key=lambda version: int(version.removeprefix("2.")))
    folder = arguments.folder.resolve()
    wheels = {version: build(version, folder, arguments.settings) for version in versions}
    merged = merge(wheels, arguments.wheel_dir)
    print(f"{merged}: {merged.stat().st_size / 1e6:.1f} MB, for PyTorch {', '.join(versions)}")


if __name__ == "__main__":
    main()
