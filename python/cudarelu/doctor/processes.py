"""Runs probes and tools in separate processes, so that none can end the doctor's own process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

PROBES = Path(__file__).with_name("probes.py")
TIMEOUT = 120.0  # seconds; the first torch.compile on a loaded machine takes half a minute

Answer = dict[str, Any]


class Probes:
    """Asks probes.py each question once and keeps the answers."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(max_workers=max(2, len(os.sched_getaffinity(0))))
        self._asked: dict[tuple[str, ...], Future[Answer]] = {}

    def start(self, *question: str) -> Future[Answer]:
        if question not in self._asked:
            self._asked[question] = self._pool.submit(ask, *question)
        return self._asked[question]

    def __call__(self, *question: str) -> Answer:
        """Returns what was found; its "error" is the error that stopped the probe, or ""."""
        return self.start(*question).result()


def ask(*question: str, timeout: float = TIMEOUT) -> Answer:
    """Returns the answer of a probe, also if it stopped early."""
    # The probe finds the same modules, including those in the current folder of `python -m`.
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-P", str(PROBES), *question]
    code, output, errors = run(command, timeout, environment)
    # Libraries may print other lines before and after.
    found = [line for line in output.splitlines() if line.startswith('{"error"')]
    answer: Answer = json.loads(found[-1]) if found else {"error": ""}
    if code != 0 and not answer["error"]:
        answer["error"] = f"{_ending(code)}: {errors.strip()[-500:]}".rstrip(": ")
    answer["log"] = errors.strip()[-2000:]
    return answer


def run(
    command: list[str], timeout: float = 20.0, environment: dict[str, str] | None = None
) -> tuple[int | None, str, str]:
    """Returns status, output and errors. The status is None after a timeout or a failed start."""
    # Files, since a child of the command would hold pipes open after a timeout.
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        try:
            code = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                timeout=timeout,
                env=environment,
                check=False,
            ).returncode
        except subprocess.TimeoutExpired:
            return None, "", f"no answer in {timeout:g} s"
        except OSError as error:
            return None, "", str(error)
        output.seek(0)
        errors.seek(0)
        return code, output.read().decode(errors="replace"), errors.read().decode(errors="replace")


def _ending(code: int | None) -> str:
    if code is None:
        return "the process was stopped"
    return f"the process died of {signal.Signals(-code).name}" if code < 0 else f"status {code}"
