"""The examples that are scripts with cells, and notebooks too; and the service that batches."""

from __future__ import annotations

import os
import re
import runpy
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest

import cudarelu.ort
from support.commands import needs, run
from support.ort_infer import BUILT, ORT_INFER
from support.ort_release import NEEDS_RELEASE, make_release

EXAMPLES = Path(__file__).parents[2] / "examples"
SCRIPTS = [path for path in EXAMPLES.glob("*.py") if path.read_text().startswith("# %%")]


def run_python(folder: Path, *arguments: object) -> str:
    """Runs Python in a folder, which has the cache of op modules, too."""
    variables = {
        "PYTHONPATH": os.pathsep.join(sys.path),
        "CUDARELU_CACHE_DIR": str(folder / "cache"),
    }
    return run(sys.executable, *arguments, cwd=folder, env=os.environ | variables)


def run_script(name: str, folder: Path) -> str:
    return run_python(folder, EXAMPLES / name)


@pytest.fixture(scope="module")
def mlp(tmp_path_factory):
    """The folder in which mlp.py has run, and what it has printed."""
    folder = tmp_path_factory.mktemp("mlp")
    return folder, run_script("mlp.py", folder)


def test_all_are_tested():
    here = {"mlp.py", "accelerate_model.py", "own_op_cpp.py", "own_op_python.py", "activations.py"}
    assert {path.name for path in SCRIPTS} == here | {"jax_train.py"}  # by test_jax_train.py


def test_all_are_short():
    files = [*EXAMPLES.glob("*.py"), *(EXAMPLES / "batching_service").glob("*.*")]
    files += [*EXAMPLES.glob("context_parallel/*.py"), *EXAMPLES.glob("triton_ops/*.py")]
    files += [EXAMPLES / "llm_ops/llama_block.py"]
    lines = {path.name: len(path.read_text().splitlines()) for path in files}
    assert {name: count for name, count in lines.items() if count > 100} == {}


def test_mlp(mlp):
    _, output = mlp
    assert float(re.search(r"accuracy ([\d.]+)", output)[1]) > 0.95


@BUILT
def test_the_command_of_mlp(mlp):
    folder, _ = mlp
    (arguments,) = re.findall(
        r"^# +ort_infer (.*)$", (EXAMPLES / "mlp.py").read_text(), re.MULTILINE
    )
    output = run(ORT_INFER, *arguments.split(), "--tolerance", "1e-4,1e-5", cwd=folder)
    assert "2 x cudarelu::LinearGelu" in output


@pytest.mark.slow
def test_accelerate_model(tmp_path):
    output = run_script("accelerate_model.py", tmp_path)
    assert "2 x attention for" in output
    assert "2 x linear_gelu for" in output
    assert re.search(r"largest difference \d\.\de-0[6789]", output)
    assert re.search(r"the whole model: time x [01]\.", output)


@pytest.mark.slow
def test_own_op_cpp(tmp_path):
    output = run_script("own_op_cpp.py", tmp_path)
    assert int(re.search(r"(\d+) cases", output)[1]) > 100


@pytest.mark.slow
def test_own_op_python(tmp_path):
    output = run_script("own_op_python.py", tmp_path)
    assert float(re.search(r"loss ([\d.]+)", output)[1]) < 0.01


@pytest.mark.slow
def test_activations(tmp_path):
    output = run_script("activations.py", tmp_path)
    assert output.splitlines()[-5:] == [
        "swish is silu",
        "mish is mish",
        "hard_swish is hardswish",
        "softplus is softplus",
        "celu is celu",
    ]
    # The commands. The cache has the library.
    command, library = ("-m", "cudarelu"), "libactivations.so"
    run_python(tmp_path, *command, "build", EXAMPLES / "activations.py", "-o", library)
    output = run_python(tmp_path, *command, "check", library, "--op", "sinc", "--host", "torch")
    assert re.search(r"sinc +torch-cpu +\d+ passed", output)


@needs(module="jupytext")
def test_notebooks_are_made_from_the_scripts():
    made = runpy.run_path(str(EXAMPLES / "notebooks/make.py"))["notebooks"]()
    assert set(made) == {f"{path.stem}.ipynb" for path in SCRIPTS}
    for name, text in made.items():
        assert (EXAMPLES / "notebooks" / name).read_text() == text, "run examples/notebooks/make.py"


# The service

ROWS, CLIENTS = 20, 16


@pytest.fixture(scope="module")
def service(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("service")
    release = make_release(folder / "onnxruntime")
    options = (f"-DCMAKE_PREFIX_PATH={release}", "-DCMAKE_BUILD_TYPE=Debug")
    warnings = "-DCMAKE_CXX_FLAGS=-Wall -Wextra -Werror"
    source = EXAMPLES / "batching_service"
    run("cmake", "-G", "Ninja", "-S", source, "-B", folder / "build", *options, warnings)
    run("cmake", "--build", folder / "build")
    return folder / "build/batching_service"


def ask(path: Path, rows: np.ndarray) -> np.ndarray:
    """The answers to rows of two numbers, which are sent one by one."""
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
        answers = []
        for row in rows:
            client.sendall(row.tobytes())
            answers.append(client.recv(12, socket.MSG_WAITALL))
    return np.frombuffer(b"".join(answers), np.float32).reshape(-1, 3)


@pytest.mark.slow
@pytest.mark.xdist_group("batching_service")
@NEEDS_RELEASE
@needs("cmake", "ninja", "g++")
def test_the_service(mlp, service, tmp_path):
    folder, _ = mlp
    model, path = folder / "mlp.onnx", tmp_path / "s"
    command = [service, model, cudarelu.ort.library_path(), path]
    environment = os.environ | {"LD_LIBRARY_PATH": str(service.parents[1] / "onnxruntime/lib")}
    x = np.random.default_rng(0).standard_normal((CLIENTS, ROWS, 2), np.float32)
    expected = cudarelu.ort.Session(model, provider="cpu")(x.reshape(-1, 2))
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            assert process.stdout.readline() == "ready\n"
            assert path.stat().st_mode & 0o077 == 0
            with socket.socket(socket.AF_UNIX) as client:  # which ends within a row
                client.connect(str(path))
                client.sendall(b"1234")
            with ThreadPoolExecutor(CLIENTS) as pool:
                answers = list(pool.map(lambda rows: ask(path, rows), x))
        finally:
            process.terminate()
        sizes = [int(size) for size in re.findall(r"a batch of (\d+)", process.stdout.read())]
    np.testing.assert_allclose(np.concatenate(answers), expected, rtol=1e-4, atol=1e-5)
    assert sum(sizes) == CLIENTS * ROWS
    assert max(sizes) > 1


@pytest.mark.slow
@pytest.mark.xdist_group("batching_service")
@NEEDS_RELEASE
@needs("cmake", "ninja", "g++")
def test_the_service_refuses_what_it_cannot_serve(mlp, service, tmp_path):
    environment = os.environ | {"LD_LIBRARY_PATH": str(service.parents[1] / "onnxruntime/lib")}
    relu = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 18]> '
        "g (float[N, a, b] x) => (float[N, a, b] y) { y = Relu(x) }"
    )
    onnx.save(relu, tmp_path / "free.onnx")
    for model, path, message in (
        ("missing.onnx", "s", r".*missing\.onnx"),
        ("free.onnx", "s", "the first size of the input must be free, and no other"),
        (mlp[0] / "mlp.onnx", "s" * 108, ".*s: File name too long"),
    ):
        command = [service, tmp_path / model, cudarelu.ort.library_path(), tmp_path / path]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60)
        assert done.returncode == 1
        assert re.match(f"error: {message}", done.stderr)
