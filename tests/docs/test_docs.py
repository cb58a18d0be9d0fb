"""The snippets of docs/*.md run."""

import importlib
import os
import re
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import cudarelu
from cudarelu._markdown import reference
from cudarelu.bench.records import load
from cudarelu.bench.report import errors, measured
from cudarelu.testing.environment import tensorflow_missing
from support.commands import run
from support.ort_infer import BUILD, BUILT
from support.ort_release import FOUND, make_release

DOCS = Path(__file__).parents[2] / "docs"
YOUR_OP = (DOCS / "your-op.md").read_text()
PACKAGE = {"PYTHONPATH": os.pathsep.join(sys.path)}  # this process's modules
LAUNCHED = "# torchrun "  # begins a snippet that is a program of its own
CHINESE = ".zh-CN.md"  # ends the name of a translation, whose blocks are those of the original
TRANSLATIONS = [*sorted(DOCS.glob(f"*{CHINESE}")), DOCS.parent / f"README{CHINESE}"]
SNIPPETS = {
    path.name: codes
    for path in DOCS.glob("*.md")
    if not path.name.endswith(CHINESE)
    and (codes := re.findall(r"```python\n(.*?)```", path.read_text(), re.DOTALL))
}


RECORDS = [
    load(DOCS.parent / "benchmarks/results" / name)
    for name in (
        "2026-11-28-h100.jsonl",
        "2026-11-28-h200.jsonl",
        "2026-11-26-h100-every-op.jsonl",
        "2026-11-25-cpu-every-op.jsonl",
        "2026-11-27-cpu-linear_add.jsonl",
    )
]


def test_the_errors_are_those_of_the_records():
    assert f"\n\n{errors(RECORDS[0])}\n\n" in (DOCS / "benchmarks.md").read_text()


def named_files(document: str) -> dict[str, str]:
    """The files of C++ in a document: their first line is a comment with the name."""
    text = (DOCS / document).read_text()
    return dict(re.findall(r"```cpp\n// (\S+\.\w+)\n(.*?)```", text, re.DOTALL))


def run_commands(commands: list[str], folder: Path) -> str:
    """Runs commands of a document, with the programs of the build; returns what they print."""
    path = f"{BUILD}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = os.environ | PACKAGE | {"PATH": path}
    return run("bash", "-euc", "\n".join(commands), cwd=folder, env=environment)


def original_of(translation: Path) -> Path:
    return translation.with_name(translation.name.replace(CHINESE, ".md"))


# What the slow snippets of a document begin with: each compiles a module, which nothing else uses.
SLOW_SNIPPETS = {
    "define.md": ("library.build", "fast = cudarelu.define"),
    "your-op.md": ("rows = cudarelu.load", "products = cudarelu.load"),
}
COMPILING = ["define.md", "onnx.md", "tutorials.md", "your-op.md"]

# A quick run compiles for the devices that are here, and does not optimize.
NO_NVCC = "import cudarelu._build\ncudarelu._build._find_nvcc = lambda: None\n"


def write_program(document: str, folder: Path, *, whole: bool) -> Path:
    """Writes the snippets, in order, into a file, since some decorators read the source."""
    for name, code in named_files(document).items():
        (folder / name).write_text(code)
    left_out = (LAUNCHED, *(() if whole else SLOW_SNIPPETS.get(document, ())))
    codes = [code for code in SNIPPETS[document] if not code.startswith(left_out)]
    assert codes
    program = folder / "document.py"
    program.write_text("\n".join(codes))
    return program


def run_snippets(document: str, folder: Path, *, whole: bool = False) -> None:
    """Runs the snippets in one process, in a folder of their own, since they may write files."""
    program = write_program(document, folder, whole=whole)
    environment = os.environ | PACKAGE | {"CUDARELU_CACHE_DIR": str(folder / "cache")}
    if not whole:
        compiler = folder / "c++"
        compiler.write_text('#!/bin/sh\nexec g++ "$@" -O0\n')
        compiler.chmod(0o755)
        environment["CXX"] = str(compiler)
        if not torch.cuda.is_available():
            program.write_text(NO_NVCC + program.read_text())
    run(sys.executable, program, cwd=folder, env=environment)


@pytest.mark.parametrize("document", sorted(SNIPPETS.keys() - set(COMPILING)))
def test_snippets(document, tmp_path, monkeypatch):
    """Those that compile no module run in this process, which has imported PyTorch."""
    if document == "tensorflow.md" and (reason := tensorflow_missing()):
        pytest.skip(reason)
    program = write_program(document, tmp_path, whole=True)
    if document == "jax.md":  # other tests of this process let JAX have 64 bits
        run(sys.executable, program, cwd=tmp_path, env=os.environ | PACKAGE)
        return
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    try:
        importlib.import_module("document")
    finally:
        sys.modules.pop("document", None)


@pytest.mark.parametrize("document", ["define.md", "onnx.md"])
def test_snippets_that_compile(document, tmp_path):
    """Those of the others are in test_your_op and test_tutorials, with their commands."""
    run_snippets(document, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("document", COMPILING)
def test_whole_documents(document, tmp_path):
    """Also the slow snippets, optimized, and for CUDA if there is a compiler for it."""
    run_snippets(document, tmp_path, whole=True)


@BUILT
def test_the_commands_of_profiling(tmp_path):
    commands = re.findall(r"^\$ (.*)$", (DOCS / "profiling.md").read_text(), re.MULTILINE)
    assert len(commands) == 3
    paths = {"python": sys.executable, "ort_infer": BUILD / "ort_infer"}
    for program, *arguments in map(str.split, commands):
        run(paths[program], *arguments, cwd=tmp_path, env=os.environ | PACKAGE)
    assert '"op_name" : "CustomRelu"' in (tmp_path / "trace.json").read_text()


def test_the_reference_is_that_of_the_table():
    notes = measured(*RECORDS)
    assert (DOCS / "ops.md").read_text() == reference(cudarelu.ops(), notes) + "\n"
    for op in cudarelu.ops():
        names = [name for name, _ in notes[op.name]]
        assert any(name.startswith("Largest error on") for name in names), op.name
        assert any(name.startswith(("Speed on", "Milliseconds for")) for name in names), op.name


@BUILT
def test_your_op(tmp_path):
    """Every step of your-op.md but its scaffold, which tests/python/test_scaffold.py runs."""
    assert len(named_files("your-op.md")) == YOUR_OP.count("```cpp")
    run_snippets("your-op.md", tmp_path)

    commands = re.findall(r"```sh\n(.*?)```", YOUR_OP, re.DOTALL)
    assert len(commands) == 2
    if FOUND:
        make_release(tmp_path / "onnxruntime")
    else:
        commands = commands[:1]  # without the C++ program, which needs a build folder
    output = run_commands(commands, tmp_path)
    assert "1 x my::SquaredRelu on CPUExecutionProvider" in output
    if FOUND:
        assert len(re.findall(r"^[\d.e-]+$", output, re.MULTILINE)) == 4


@BUILT
def test_tutorials(tmp_path):
    """The snippets run, and the commands that need no GPU."""
    run_snippets("tutorials.md", tmp_path)
    text = (DOCS / "tutorials.md").read_text()
    commands = re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
    elsewhere = [each for each in commands if each.startswith("# on a GPU")]
    assert len(elsewhere) == 3
    output = run_commands([each for each in commands if each not in elsewhere], tmp_path)
    assert "1 x custom_domain::CustomRelu on C" in output
    assert "    custom::knnquery: knn_query, by its alias" in output.splitlines()
    assert (tmp_path / "trace.json").exists()
    program = (DOCS.parent / "examples/cpp_inference/call_ops.cpp").read_text()
    (function,) = re.findall(r"```cpp\n(///.*?)```", text, re.DOTALL)
    assert function in program


@BUILT
@pytest.mark.parametrize("index", range(3))
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_the_commands_of_the_tutorials_on_a_gpu(index, tmp_path):
    text = (DOCS / "tutorials.md").read_text()
    command = re.findall(r"```sh\n(# on a GPU.*?)```", text, re.DOTALL)[index]
    for tool in ("nsys", "ncu", "compute-sanitizer"):
        if tool in command and shutil.which(tool) is None:
            pytest.skip(f"{tool} is missing")
    np.save(tmp_path / "x.npy", np.ones((2, 4), np.float32))
    run_commands(["python -m cudarelu export-demo myrelu.onnx", command], tmp_path)


def blocks(text: str) -> list[str]:
    """The blocks of code: between fences, or indented."""
    block = r"^```.*?^```$|(?:^ {4}\S[^\n]*\n)+"
    return re.findall(block, text, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("path", TRANSLATIONS, ids=lambda path: path.name)
def test_translations(path):
    """Their code, links and numbers of the tables are those of the original, which runs."""
    original = original_of(path)
    texts = [each.read_text() for each in (original, path)]
    assert re.search(rf"\A# .+\n\n\[.+\]\({re.escape(path.name)}\)\n", texts[0])
    assert re.search(rf"\A# .+\n\n\[.+\]\({re.escape(original.name)}\)\n", texts[1])
    expected, found = map(blocks, texts)
    assert len(expected) >= 3
    assert found == expected
    # A link leads to the same page, in either language; the names of sections are translated.
    texts = [re.sub(rf"{re.escape(CHINESE)}(#[^)]*)?\)", ".md)", text) for text in texts]
    texts = [re.sub(r"((?:your-op|tutorials)\.md)#[^)]*\)", r"\1)", text) for text in texts]
    for pattern in (r"^#+ ", r"\]\((.*?)\)", r"\| (\**\d+\**) (?=\|)", r"^\| (`\w+`)?"):
        expected, found = (re.findall(pattern, text, re.MULTILINE) for text in texts)
        assert found == expected, pattern


def prose(text: str) -> str:
    """The prose of a page: without code, addresses and names of files."""
    code_and_addresses = r"```.*?```|`[^`]*`|\]\([^)]*\)|[A-Za-z.-]+\.md"
    return re.sub(code_and_addresses, "", text, flags=re.DOTALL)


def glossary() -> list[list[str]]:
    rows = re.findall(r"^\| (.*) \|$", (DOCS / "glossary.md").read_text(), re.MULTILINE)
    return [re.split(r" ?\| ?", row) for row in rows[1:]]


def test_the_glossary_is_sorted():
    terms = [row[0] for row in glossary()]
    assert len(terms) > 20
    assert terms == sorted(set(terms))
    assert all(len(row) == 4 and row[1] and row[3] for row in glossary())


@pytest.mark.parametrize("path", TRANSLATIONS, ids=lambda path: path.name)
def test_translations_have_the_terms_of_the_glossary(path):
    original, translation = (prose(each.read_text()) for each in (original_of(path), path))
    for terms, chinese, other, _ in glossary():
        names = "|".join(terms.split(", "))
        if re.search(rf"\b({names})s?\b", original, re.IGNORECASE):
            assert chinese in translation, terms
        assert not other or other not in translation


def test_programs(tmp_path):
    programs = [code for codes in SNIPPETS.values() for code in codes if code.startswith(LAUNCHED)]
    assert programs
    for code in programs:
        program = tmp_path / "program.py"
        program.write_text(code)
        arguments = code.splitlines()[0].removeprefix(LAUNCHED).split()
        launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", *arguments]
        for attempts_left in (2, 1, 0):
            try:
                run(*launcher, program, env=os.environ)
                break
            except AssertionError as error:
                # Threads of gloo may abort the process at its end: pytorch/pytorch#190489.
                if attempts_left == 0 or "without an active exception" not in str(error):
                    raise


def test_the_errors_of_functions_are_those_recorded(monkeypatch):
    """Of 16 bits; those of float32 would take a minute."""
    monkeypatch.syspath_prepend(DOCS.parent / "tools")
    import semantics

    text = (DOCS / "semantics.md").read_text()
    records = semantics.records()
    assert semantics.page(text, records) == text
    measured = 0
    for op, attributes in semantics.calls():
        for dtype in ("float16", "bfloat16"):
            row = semantics.row_of(op, attributes, dtype)
            recorded = records["cpu"]["errors"][row]["cudarelu"]["ulp"]
            found = semantics.measure(op, attributes, semantics.DTYPES[dtype], 1, "cpu")
            assert found["cudarelu"]["ulp"] <= recorded + 1e-9, row
            measured += 1
    assert measured >= 14
