"""python -m cudarelu lower, inspect and export-demo."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import onnx.reference
import pytest
from onnx import numpy_helper

import cudarelu.onnx
from cudarelu.__main__ import main
from support.large_model import save_large

DOCUMENT = Path(__file__).parents[2] / "docs/onnx.md"
IMPORTS = '"" : 18, "cudarelu" : 1, "custom_domain" : 1, "user" : 1'
MIXED = """main (float[N,4] x, float[?,4] b, bool c) => (float[N,4] y, float[] z) {
    a = If (c) <
        then_branch = t () => (float[N,4] p) { p = cudarelu.Relu(x) },
        else_branch = e () => (float[N,4] q) { q = custom_domain.CustomRelu(x) }>
    d = cudarelu.Relu(a)
    f = user.Twice (d)
    y, z = user.Unknown (f, b)
}
<domain: "user", opset_import: ["" : 18]> Twice (x) => (y) { y = Add(x, x) }"""


def parse(text: str, imports: str = IMPORTS) -> onnx.ModelProto:
    return onnx.parser.parse_model(f"<ir_version: 8, opset_import: [{imports}]>\n{text}")


def one_node(call: str, imports: str = IMPORTS) -> onnx.ModelProto:
    return parse(f"main (float[N,4] x, float[4] b) => (float[N,4] y) {{ y = {call} }}", imports)


def with_weight(folder: Path, name: str = "model.onnx") -> np.ndarray:
    """Writes a model that adds a weight, which is in a separate file; returns the weight."""
    weight = np.arange(1024, dtype=np.float32)
    model = parse("main (float[N,1024] x) => (float[N,1024] y) { y = cudarelu.BiasRelu(x, w) }")
    model.graph.initializer.append(numpy_helper.from_array(weight, "w"))
    onnx.save(model, folder / name, save_as_external_data=True, location="weights.bin")
    return weight


def run(path: Path, width: int) -> np.ndarray:
    x = -np.ones((2, width), np.float32)
    return onnx.reference.ReferenceEvaluator(str(path)).run(None, {"x": x})[0]


def inspect(capsys, path: Path) -> dict:
    assert main(["inspect", str(path), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def fails(capsys, *argv) -> str:
    assert main([str(each) for each in argv]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert re.fullmatch(r"error: .+\n", captured.err)
    return captured.err


def test_the_commands_of_the_document(tmp_path, monkeypatch, capsys):
    commands = re.findall(r"^python -m cudarelu (?!view)(.*)$", DOCUMENT.read_text(), re.MULTILINE)
    names = [each.split()[0] for each in commands]
    assert names == ["lower", *["accelerate"] * 3, "inspect", "inspect"]
    monkeypatch.chdir(tmp_path)
    outputs = []
    for each in ("export-demo model.onnx", *commands):
        assert main(each.split()) == 0
        outputs.append(capsys.readouterr().out)
    assert outputs[:2] == ["wrote model.onnx\n", "wrote lowered.onnx\n"]
    assert "1 x relu for Relu (y)" in outputs[2]
    assert [each["op"] for each in json.loads(outputs[3])["measured"]] == ["relu"]
    assert "custom_domain::CustomRelu: relu, by its alias" in outputs[5]
    assert json.loads(outputs[6])["definitions"] == {"custom_domain::CustomRelu": True}
    assert run(tmp_path / "lowered.onnx", 4).max() == 0
    assert sorted(os.listdir(tmp_path)) == ["accelerated.onnx", "lowered.onnx", "model.onnx"]


def test_without_a_command(capsys):
    assert main([]) == 2
    output = capsys.readouterr().err
    assert all(name in output for name in ("doctor", "accelerate", "check the ops of a library"))


def test_an_error_of_a_process(tmp_path):
    command = [sys.executable, "-m", "cudarelu", "inspect", "missing.onnx"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert (done.returncode, done.stdout) == (2, "")
    assert re.fullmatch(r"error: .*No such file.*\n", done.stderr)


@pytest.mark.slow
def test_a_reader_that_ends_early():
    """As head does; the output is longer than the buffer of a pipe."""
    command = [sys.executable, "-m", "cudarelu", "ops", "--json"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
    ) as process:
        process.stdout.read(1)
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 128 + signal.SIGPIPE


# lower


def test_lower_in_place_through_a_link(tmp_path):
    assert main(["export-demo", str(tmp_path / "real.onnx")]) == 0
    link = tmp_path / "link.onnx"
    link.symlink_to("real.onnx")
    assert main(["lower", str(link), str(link)]) == 0
    assert link.is_symlink()
    assert [node.op_type for node in onnx.load(link).graph.node] == ["Relu"]
    assert sorted(os.listdir(tmp_path)) == ["link.onnx", "real.onnx"]


@pytest.mark.parametrize("name", ["model.onnx", "other.onnx"])
def test_lower_keeps_external_data(tmp_path, name):
    weight = with_weight(tmp_path)
    before = (tmp_path / "weights.bin").stat()
    assert main(["lower", str(tmp_path / "model.onnx"), str(tmp_path / name)]) == 0
    after = (tmp_path / "weights.bin").stat()
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)
    assert set(os.listdir(tmp_path)) == {"model.onnx", name, "weights.bin"}
    onnx.checker.check_model(tmp_path / name, full_check=True)
    np.testing.assert_array_equal(run(tmp_path / name, 1024)[1], np.maximum(weight - 1, 0))


def test_lower_copies_external_data_to_another_folder(tmp_path, monkeypatch):
    for each in ("a", "b"):
        (tmp_path / each).mkdir()
    weight = with_weight(tmp_path / "a")
    monkeypatch.chdir(tmp_path / "a")
    assert main(["lower", "model.onnx", "../b/model.onnx"]) == 0
    assert sorted(os.listdir("../b")) == ["model.onnx", "model.onnx.data"]
    (tmp_path / "a/weights.bin").unlink()
    onnx.checker.check_model(tmp_path / "b/model.onnx", full_check=True)
    result = run(tmp_path / "b/model.onnx", 1024)
    np.testing.assert_array_equal(result[1], np.maximum(weight - 1, 0))


def test_external_data_that_is_missing(tmp_path, capsys):
    with_weight(tmp_path)
    (tmp_path / "weights.bin").unlink()
    (tmp_path / "b").mkdir()
    error = fails(capsys, "lower", tmp_path / "model.onnx", tmp_path / "b/model.onnx")
    assert "weights.bin" in error
    assert os.listdir(tmp_path / "b") == []


def test_more_than_two_gigabytes(tmp_path, capsys):
    path = tmp_path / "model.onnx"
    save_large(one_node("cudarelu.Relu(x)"), path)
    assert main(["lower", str(path), str(path)]) == 0
    capsys.readouterr()
    assert inspect(capsys, path)["nodes"] == {"ai.onnx::Relu": 1}


@pytest.mark.parametrize("command", ["lower", "accelerate"])
def test_another_definition_is_refused(command, tmp_path, capsys):
    model = cudarelu.onnx.demo_model()
    model.functions[0].node[0].op_type = "Neg"
    onnx.save(model, tmp_path / "model.onnx")
    error = fails(capsys, command, tmp_path / "model.onnx", tmp_path / "out.onnx")
    assert "the definition of custom_domain::CustomRelu in the model differs from" in error
    assert os.listdir(tmp_path) == ["model.onnx"]
    assert inspect(capsys, tmp_path / "model.onnx")["definitions"] == {
        "custom_domain::CustomRelu": False
    }
    assert main(["inspect", str(tmp_path / "model.onnx")]) == 0
    assert "CustomRelu: DIFFERS from this library's" in capsys.readouterr().out
    paths = [str(tmp_path / each) for each in ("model.onnx", "out.onnx")]
    assert main([command, *paths, "--replace-definitions"]) == 0
    assert "Neg" not in str(onnx.load(tmp_path / "out.onnx"))


@pytest.mark.parametrize("command", ["lower", "accelerate", "export-demo"])
def test_paths_that_cannot_be_written(command, tmp_path, capsys):
    onnx.save(cudarelu.onnx.demo_model(), tmp_path / "model.onnx")
    sources = [tmp_path / "model.onnx"] if command != "export-demo" else []
    error = fails(capsys, command, *sources, tmp_path / "missing/out.onnx")
    assert f"No such file or directory: '{tmp_path / 'missing'}'" in error
    assert "Not a directory" in fails(capsys, command, *sources, tmp_path / "model.onnx/out.onnx")
    assert "exists and is not a file" in fails(capsys, command, *sources, tmp_path)
    assert "Errno" in fails(capsys, command, *sources, "/proc/out.onnx")  # even for root
    assert os.listdir(tmp_path) == ["model.onnx"]


@pytest.mark.parametrize("command", ["lower", "accelerate"])
def test_a_failure_leaves_the_file_as_it_was(command, tmp_path, capsys, monkeypatch):
    path = tmp_path / "model.onnx"
    onnx.save(cudarelu.onnx.demo_model(), path)
    before = path.read_bytes()

    def save(model, file, **options):
        Path(file).write_bytes(b"a part")
        raise OSError("no space left")

    monkeypatch.setattr(onnx, "save", save)
    assert "no space left" in fails(capsys, command, path, path)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["model.onnx"]


# inspect


def test_inspect(tmp_path, capsys):
    onnx.save(cudarelu.onnx.attach_definitions(parse(MIXED)), tmp_path / "model.onnx")
    assert inspect(capsys, tmp_path / "model.onnx") == {
        "ir_version": 8,
        "opsets": {"ai.onnx": 18, "cudarelu": 1, "custom_domain": 1, "user": 1},
        "inputs": [
            {"name": "x", "type": "tensor(float)", "shape": ["N", 4]},
            {"name": "b", "type": "tensor(float)", "shape": [None, 4]},
            {"name": "c", "type": "tensor(bool)", "shape": []},
        ],
        "outputs": [
            {"name": "y", "type": "tensor(float)", "shape": ["N", 4]},
            {"name": "z", "type": "tensor(float)", "shape": None},
        ],
        "nodes": {
            "ai.onnx::Add": 1,
            "ai.onnx::If": 1,
            "cudarelu::Relu": 2,
            "custom_domain::CustomRelu": 1,
            "user::Twice": 1,
            "user::Unknown": 1,
        },
        "ours": {
            "cudarelu::Relu": {"op": "relu", "alias": False},
            "custom_domain::CustomRelu": {"op": "relu", "alias": True},
        },
        "definitions": {"cudarelu::Relu": True, "custom_domain::CustomRelu": True},
        "functions": ["user::Twice"],
        "unknown": ["user::Unknown"],
        "libraries": {},
    }
    assert main(["inspect", str(tmp_path / "model.onnx")]) == 0
    lines = capsys.readouterr().out.splitlines()
    for line in ("b: tensor(float) [?, 4]", "z: tensor(float) of any rank", "user::Unknown"):
        assert f"    {line}" in lines


def test_inspect_knows_the_standard_ops_of_the_opset(tmp_path, capsys):
    model = parse(
        """main (float[N,4] x) => (float[N,4] y) {
            a = Gelu(x)
            y = Abs(a)
        }"""
    )
    onnx.save(model, tmp_path / "model.onnx")
    assert inspect(capsys, tmp_path / "model.onnx")["unknown"] == ["ai.onnx::Gelu"]


def test_inspect_names_the_library_of_an_unknown_op(tmp_path, monkeypatch, capsys):
    """`cudarelu.load` has built it, here twice. It is not loaded."""
    monkeypatch.setenv("CUDARELU_CACHE_DIR", str(tmp_path))
    onnx.save(one_node("user.Unknown(x, b)"), tmp_path / "model.onnx")
    assert main(["inspect", str(tmp_path / "model.onnx")]) == 0
    output = capsys.readouterr().out
    assert output.endswith("--library FILE.so loads a module that has them\n")

    for age, key in enumerate(("b-1/c", "a-2/d")):
        library = tmp_path / "modules/user" / key / "libuser.so"
        library.parent.mkdir(parents=True)
        library.write_text("It is no library: loading it would fail.")
        os.utime(library, (age, age))
    assert inspect(capsys, tmp_path / "model.onnx")["libraries"] == {"user": str(library)}
    assert main(["inspect", str(tmp_path / "model.onnx")]) == 0
    output = capsys.readouterr().out
    hint = f"modules that cudarelu.load has built:\n    user: --library {library}\n"
    assert output.endswith(hint)

    # The same of an op whose definition is attached.
    onnx.save(parse(MIXED), tmp_path / "model.onnx")
    assert main(["inspect", str(tmp_path / "model.onnx")]) == 0
    output = capsys.readouterr().out
    assert "of ops of a loaded module:\n    user::Twice\n" in output
    assert output.endswith(hint)


def test_a_domain_is_no_path(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("CUDARELU_CACHE_DIR", str(tmp_path / "cache"))
    for folder in ("cache/modules/user/a-1/b", "elsewhere/a-1/b"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "elsewhere/a-1/b/libelsewhere.so").touch()
    model = one_node("user.Unknown(x, b)")
    for domain in ("../../elsewhere", str(tmp_path / "elsewhere"), "*", ""):
        model.graph.node[0].domain = domain
        onnx.save(model, tmp_path / "model.onnx")
        assert inspect(capsys, tmp_path / "model.onnx")["libraries"] == {}


def test_inspect_leaves_the_domain_of_onnx_runtime(tmp_path, capsys):
    imports = f'{IMPORTS}, "com.microsoft" : 1, "com.microsoftly" : 1'
    for domain, unknown in ("com.microsoft", []), ("com.microsoftly", ["com.microsoftly::Gelu"]):
        onnx.save(one_node(f"{domain}.Gelu(x)", imports), tmp_path / "model.onnx")
        assert inspect(capsys, tmp_path / "model.onnx")["unknown"] == unknown


def test_inspect_of_a_model_that_is_not_ours(tmp_path, capsys):
    onnx.save(one_node("Add(x, b)", '"" : 13'), tmp_path / "model.onnx")
    description = inspect(capsys, tmp_path / "model.onnx")
    assert description["nodes"] == {"ai.onnx::Add": 1}
    assert not any(description[each] for each in ("ours", "definitions", "functions", "unknown"))


# Models that every command rejects


@pytest.fixture(params=["lower", "accelerate", "inspect"])
def refuses(request, tmp_path, capsys):
    """Runs a command on tmp_path/model.onnx, and returns its error."""
    outputs = [tmp_path / "out.onnx"] if request.param != "inspect" else []

    def run_it() -> str:
        error = fails(capsys, request.param, tmp_path / "model.onnx", *outputs)
        assert not (tmp_path / "out.onnx").exists()
        return error

    return run_it


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("cudarelu.Mish(x)", "cudarelu::Mish: there is no such op"),
        ("cudarelu.Relu(x, b)", "2 inputs, but it has 1"),
        ("cudarelu.BiasRelu(x)", "input bias is missing"),
        ("cudarelu.Relu<slope = 2>(x)", "there is no attribute slope"),
        ("cudarelu.Scale<factor = 2>(x)", "factor must be a floating-point number"),
    ],
)
def test_a_wrong_node(call, message, refuses, tmp_path):
    onnx.save(one_node(call), tmp_path / "model.onnx")
    assert message in refuses()


@pytest.mark.parametrize(
    ("imports", "message"),
    [
        ('"" : 18, "cudarelu" : 2', "version 2 of the domain cudarelu, but this library has 1"),
        ('"" : 999, "cudarelu" : 1', "has opset 999, but the installed onnx knows up to"),
        ('"" : 18', "version None of the domain cudarelu"),
    ],
)
def test_other_versions(imports, message, refuses, tmp_path):
    call = "cudarelu.Relu(x)" if "999" not in imports else "Relu(x)"
    onnx.save(one_node(call, imports), tmp_path / "model.onnx")
    assert re.search(message, refuses())


def test_a_cycle(refuses, tmp_path):
    text = "main (float[N] x) => (float[N] y) { a = Add(x, y) y = cudarelu.Relu(a) }"
    onnx.save(parse(text), tmp_path / "model.onnx")
    assert "the model has a cycle: a -> y -> a" in refuses()


@pytest.mark.parametrize(
    "text",
    [
        """main (float[N] x) => (float[N] y) { y = user.F(x) }
        <domain: "user", opset_import: ["" : 18, "user" : 1]> F (x) => (y) { y = user.F(x) }""",
        """main (float[N] x, bool c) => (float[N] y) { y = If(c) <
            then_branch = t () => (float[N] p) { p = Relu(y) },
            else_branch = e () => (float[N] q) { q = Relu(x) }> }""",
    ],
    ids=["function", "subgraph"],
)
def test_a_hidden_cycle(text, refuses, tmp_path):
    onnx.save(parse(text), tmp_path / "model.onnx")
    assert "the model has a cycle" in refuses()


@pytest.mark.parametrize("content", ["empty", "text", "truncated", "zeros"])
def test_what_is_no_model(content, refuses, tmp_path):
    whole = cudarelu.onnx.demo_model().SerializeToString()
    contents = {"empty": b"", "text": b"no model\n" * 9, "zeros": bytes(99)}
    (tmp_path / "model.onnx").write_bytes(contents.get(content, whole[: len(whole) // 2]))
    assert "model.onnx is n" in refuses()


def test_a_missing_file(refuses):
    assert "No such file" in refuses()
