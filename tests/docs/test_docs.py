"""The snippets of docs/*.md run."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import cudarelu
from cudarelu._markdown import reference
from cudarelu.testing.environment import tensorflow_missing
from support.ort_infer import BUILD, BUILT

DOCS = Path(__file__).parents[2] / "docs"
YOUR_OP = (DOCS / "your-op.md").read_text()
LAUNCHED = "# torchrun "  # begins a snippet that is a program of its own
CHINESE = ".zh-CN.md"  # ends the name of a translation, whose blocks are those of the original
SNIPPETS = {
    path.name: codes
    for path in DOCS.glob("*.md")
    if not path.name.endswith(CHINESE)
    and (codes := re.findall(r"```python\n(.*?)```", path.read_text(), re.DOTALL))
}


def run_snippets(document: str, folder: Path) -> None:
    """The snippets run in order, in one process. They are in a file, since some decorators read the
    source."""
    program = folder / "document.py"
    codes = [code for code in SNIPPETS[document] if not code.startswith(LAUNCHED)]
    assert codes
    program.write_text("\n".join(codes))
    command = [sys.executable, str(program)]
    # In a temporary folder, since a snippet may write files, but with this process's modules.
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(sys.path),
        "CUDARELU_CACHE_DIR": str(folder / "cache"),
    }
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, env=environment)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("document", sorted(SNIPPETS.keys() - {"your-op.md"}))
def test_snippets(document, tmp_path):
    if document == "tensorflow.md" and (reason := tensorflow_missing()):
        pytest.skip(reason)
    run_snippets(document, tmp_path)


def test_the_reference_is_that_of_the_table():
    assert (DOCS / "ops.md").read_text() == reference(cudarelu.ops()) + "\n"


# In your-op.md, the first line of a file of C++ has its name.
YOUR_FILES = dict(re.findall(r"```cpp\n// (\S+)\n(.*?)```", YOUR_OP, re.DOTALL))


@BUILT
def test_your_op(tmp_path):
    """Every step of your-op.md but its scaffold, which tests/python/test_scaffold.py runs."""
    assert len(YOUR_FILES) == YOUR_OP.count("```cpp")
    for name, code in YOUR_FILES.items():
        (tmp_path / name).write_text(code)
    run_snippets("your-op.md", tmp_path)

    cache = (BUILD / "CMakeCache.txt").read_text() if (BUILD / "CMakeCache.txt").exists() else ""
    settings = dict(re.findall(r"^(\w+):\w+=(.+)$", cache, re.MULTILINE))
    include = settings.get("OnnxRuntime_INCLUDE_DIR")
    library = settings.get("CUDARELU_ORT_LIBRARY")
    commands = re.findall(r"```sh\n(.*?)```", YOUR_OP, re.DOTALL)
    assert len(commands) == 2
    if include and library:
        (tmp_path / "onnxruntime/lib").mkdir(parents=True)
        (tmp_path / "onnxruntime/include").symlink_to(include)
        for name in ("libonnxruntime.so", "libonnxruntime.so.1"):
            (tmp_path / "onnxruntime/lib" / name).symlink_to(library)
    else:
        commands = commands[:1]  # without the C++ program, which needs a build folder
    done = subprocess.run(
        ["bash", "-euc", "\n".join(commands)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=tmp_path,
        env=os.environ | {"PATH": f"{BUILD}:{os.environ['PATH']}"},
    )
    assert done.returncode == 0, done.stdout
    assert "1 x my::SquaredRelu on CPUExecutionProvider" in done.stdout
    if include and library:
        assert len(re.findall(r"^[\d.e-]+$", done.stdout, re.MULTILINE)) == 4


def blocks(text: str) -> list[str]:
    """The blocks of code: between fences, or indented."""
    block = r"^```.*?^```$|(?:^ {4}\S[^\n]*\n)+"
    return re.findall(block, text, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("path", [*DOCS.glob(f"*{CHINESE}")], ids=lambda path: path.name)
def test_translations(path):
    """Their code, links and numbers of the tables are those of the original, which runs."""
    original = path.with_name(path.name.replace(CHINESE, ".md"))
    texts = [each.read_text() for each in (original, path)]
    assert re.search(rf"\A# .+\n\n\[.+\]\({re.escape(path.name)}\)\n", texts[0])
    assert re.search(rf"\A# .+\n\n\[.+\]\({re.escape(original.name)}\)\n", texts[1])
    expected, found = map(blocks, texts)
    assert len(expected) > 10
    assert found == expected
    for pattern in (r"^#+ ", r"\]\((?!your-op)(.*?)\)", r"\| (\**\d+\**) (?=\|)", r"^\| (`\w+`)?"):
        expected, found = (re.findall(pattern, text, re.MULTILINE) for text in texts)
        assert found == expected, pattern


def test_programs(tmp_path):
    programs = [code for codes in SNIPPETS.values() for code in codes if code.startswith(LAUNCHED)]
    assert programs
    for code in programs:
        program = tmp_path / "program.py"
        program.write_text(code)
        arguments = code.splitlines()[0].removeprefix(LAUNCHED).split()
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", *arguments]
        done = subprocess.run([*command, str(program)], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
