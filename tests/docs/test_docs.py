"""The snippets of docs/*.md run."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

LAUNCHED = "# torchrun "  # begins a snippet that is a program of its own
SNIPPETS = {
    path.name: codes
    for path in (Path(__file__).parents[2] / "docs").glob("*.md")
    if (codes := re.findall(r"```python\n(.*?)```", path.read_text(), re.DOTALL))
}


@pytest.mark.parametrize("document", sorted(SNIPPETS))
def test_snippets(document, tmp_path):
    """The snippets run in order, in one process. They are in a file, since some decorators read the
    source."""
    program = tmp_path / "document.py"
    codes = [code for code in SNIPPETS[document] if not code.startswith(LAUNCHED)]
    assert codes
    program.write_text("\n".join(codes))
    command = [sys.executable, str(program)]
    # In a temporary folder, since a snippet may write files, but with this process's modules.
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stderr


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
