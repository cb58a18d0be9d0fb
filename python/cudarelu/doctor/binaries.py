"""The GPU code in a library, listed by NVIDIA's cuobjdump."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from .processes import run


@dataclass
class Code:
    """The compute capabilities that a library has code for, such as "90" or "90a"."""

    sass: list[str] = field(default_factory=list)  # machine code
    ptx: list[str] = field(default_factory=list)  # which a driver compiles for newer GPUs
    toolkit: str = ""  # the CUDA version of its nvcc, if known

    def __str__(self) -> str:
        parts = [("SASS", self.sass), ("PTX", self.ptx)]
        found = "; ".join(f"{name} {', '.join(values)}" for name, values in parts if values)
        return found + (f" (nvcc {self.toolkit})" if self.toolkit else "")


def code_of(path: Path) -> Code | None:
    """Returns the GPU code of a library, or None if no cuobjdump can read it."""
    for tool in _cuobjdumps():
        status, output, errors = run([tool, "--list-elf", "--list-ptx", str(path)], timeout=60)
        if "does not contain device code" in output + errors:
            return Code()
        if status == 0:
            return Code(
                _capabilities(r"^ELF file.*\.sm_(\w+)\.cubin", output),
                _capabilities(r"^PTX file.*\.sm_(\w+)\.ptx", output),
                _toolkit(tool, path),
            )
    return None


def _capabilities(pattern: str, output: str) -> list[str]:
    found = set(re.findall(pattern, output, re.MULTILINE))
    return sorted(found, key=lambda name: (int(re.sub(r"\D", "", name)), name))


def runs_on(code: Code, capability: int) -> bool:
    """Returns whether a GPU runs the code.

    A GPU of capability 8.6 runs SASS for 8.0 and 8.6, and PTX for 8.6 and older. Code for "90a"
    runs on 9.0 only; code for the family "100f" runs on 10.0 and later 10.x.
    """
    for name in code.sass:
        built = int(name.rstrip("af"))
        if built == capability:
            return True
        if not name.endswith("a") and built // 10 == capability // 10 and built < capability:
            return True
    return any(not name.endswith(("a", "f")) and int(name) <= capability for name in code.ptx)


def _cuobjdumps() -> Iterator[str]:
    """Yields cuobjdump of the PATH, of a toolkit, and of Triton, which comes with PyTorch."""
    if found := shutil.which("cuobjdump"):
        yield found
    folders = [os.environ.get("CUDA_HOME", "/usr/local/cuda") + "/bin"]
    triton = importlib.util.find_spec("triton")
    if triton and triton.origin:
        folders.append(str(Path(triton.origin).parent / "backends/nvidia/bin"))
    yield from filter(None, (shutil.which("cuobjdump", path=folder) for folder in folders))


def _toolkit(tool: str, path: Path) -> str:
    """Returns the CUDA version of the nvcc, from its note in the SASS; reads only up to that."""
    command = [tool, "-elf", str(path)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, errors="replace"
    ) as process:
        timer = threading.Timer(20, process.kill)
        timer.start()
        assert process.stdout
        try:
            for line in process.stdout:
                if found := re.search(r"Cuda compilation tools, release (\d+\.\d+)", line):
                    return found[1]
        finally:
            timer.cancel()
            process.kill()
    return ""
