"""The file of a run in JSON Lines: a header with the machine, then one line for each record."""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import os
import platform
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from .. import _build_info
from .measure import Point
from .regimes import cache_bytes

_POINT = ("suite", "op", "dtype", "shape", "attributes", "device", "threads", "regime")
IDENTITY = (*_POINT, "contender")
_GPU_STATE = "clocks.sm,clocks.max.sm,power.draw,temperature.gpu"


def key(record: dict[str, Any], names: Iterable[str] = IDENTITY) -> str:
    """Returns the key by which records of two runs are matched."""
    return json.dumps([record[name] for name in names])


def title(record: dict[str, Any]) -> str:
    """Returns a record's op, dtype, attributes and, on the CPU, threads, but not its sizes."""
    threads = {"threads": record["threads"]} if record["threads"] else {}
    options = [f"{name}={value}" for name, value in (record["attributes"] | threads).items()]
    return " ".join([record["op"], record["dtype"], *options])


def _output_of(*command: str) -> str | None:
    """Returns what a program prints, or None if it is missing or fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def _nvidia_smi(fields: str) -> list[str] | None:
    gpu = "0"
    if torch.cuda.is_available():  # nvidia-smi also counts GPUs that CUDA_VISIBLE_DEVICES hides
        gpu = f"GPU-{torch.cuda.get_device_properties(0).uuid}"
    query = f"--query-gpu={fields}"
    output = _output_of("nvidia-smi", f"--id={gpu}", query, "--format=csv,noheader")
    return [each.strip() for each in output.split(",")] if output else None


def gpu_state() -> dict[str, str]:
    """Returns the GPU's clock, power and temperature now; empty without nvidia-smi."""
    values = _nvidia_smi(_GPU_STATE)
    return dict(zip(_GPU_STATE.split(","), values, strict=True)) if values else {}


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _version(*packages: str) -> str | None:
    for package in packages:
        try:
            return importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


def machine(commit: str | None = None) -> dict[str, Any]:
    """Returns what the times depend on. The commit is the given one, or git's of the sources."""
    sources = str(Path(__file__).resolve().parent)
    result = {
        "commit": commit or _output_of("git", "-C", sources, "rev-parse", "HEAD"),
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "cudarelu": _build_info.VERSION,
        "torch": torch.__version__,
        "onnxruntime": _version("onnxruntime-gpu", "onnxruntime"),
    }
    if torch.cuda.is_available():
        driver = _nvidia_smi("driver_version")
        result |= {
            "gpu": torch.cuda.get_device_name(),
            "driver": driver[0] if driver else None,
            "cuda": torch.version.cuda,
            "l2_cache_bytes": cache_bytes("cuda"),
        }
    return result


def _rounded(record: dict[str, Any]) -> dict[str, Any]:
    """The record with its measured numbers rounded: to five digits, drift and error to three."""

    def rounded(value: Any, digits: int) -> Any:
        if isinstance(value, tuple):
            return [rounded(each, digits) for each in value]
        return float(f"{value:.{digits}g}") if isinstance(value, float) else value

    return {
        name: rounded(value, 3 if name in ("drift", "error") else 5)
        for name, value in record.items()
    }


def lines(content: dict[str, Any]) -> str:
    """The text of a file: a line with all but the records, then a line for each record."""
    header = {name: value for name, value in content.items() if name != "records"}
    return "".join(json.dumps(each) + "\n" for each in [header, *content["records"]])


def load(path: Path) -> dict[str, Any]:
    """Returns the header with the records as its entry "records".

    Raises ValueError for a file that `python -m cudarelu bench` did not write.
    """
    try:
        header, *records = map(json.loads, path.read_text(encoding="utf-8").splitlines())
        if header["machine"] and all(key(each) for each in records):
            return header | {"records": records}
    except (KeyError, TypeError, ValueError):
        pass
    raise ValueError(f"{path} is not a file of `python -m cudarelu bench`")


class Results:
    """A run and its file. Each addition replaces the file, so that it is complete at any time."""

    def __init__(self, path: Path, machine: dict[str, Any], resume: bool) -> None:
        """Raises FileNotFoundError if there is no folder for the file, FileExistsError if it exists
        and `resume` is false, and ValueError if it is from another machine or commit."""
        self.path = path
        self.content: dict[str, Any] = {
            "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "machine": machine,
            "gpu_states": [],
            "missing": {},
            "records": [],
        }
        if not path.parent.is_dir():
            raise FileNotFoundError(f"there is no folder {path.parent}")
        if path.exists():
            if not resume:
                raise FileExistsError(f"{path} exists; --resume continues it")
            self.content = load(path)
            for name, value in self.content["machine"].items():
                if value != machine.get(name):
                    raise ValueError(
                        f"{path} has the {name} {value}, but this is {machine.get(name)}: "
                        "use another file with --out"
                    )

    @property
    def records(self) -> list[dict[str, Any]]:
        return self.content["records"]

    def lacks(self, points: Iterable[Point]) -> list[Point]:
        """Returns the points without a record. A point that failed has one."""
        there = {key(each, _POINT) for each in self.records}
        return [point for point in points if key(point.identity, _POINT) not in there]

    def add(self, records: Iterable[dict[str, Any]], missing: dict[str, str]) -> None:
        self.records.extend(map(_rounded, records))
        self.content["missing"] |= missing
        self.write()

    def add_state(self, suite: str) -> None:
        if state := gpu_state():
            self.content["gpu_states"].append({"after": suite} | state)
            self.write()

    def write(self) -> None:
        beside = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        try:
            beside.write_text(lines(self.content), encoding="utf-8")
            beside.replace(self.path)
        finally:
            beside.unlink(missing_ok=True)
