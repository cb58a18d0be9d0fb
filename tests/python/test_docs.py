"""The snippets of docs/pytorch.md run."""

import re
import subprocess
import sys
from pathlib import Path

DOCUMENT = Path(__file__).parents[2] / "docs/pytorch.md"
SNIPPETS = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
LAUNCHED = "# torchrun "  # begins a snippet that is a program of its own


def test_snippets(tmp_path):
    """In one process, in order, as a reader types them: decorated functions need a file."""
    program = tmp_path / "document.py"
    program.write_text("\n".join(code for code in SNIPPETS if not code.startswith(LAUNCHED)))
    done = subprocess.run([sys.executable, str(program)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_programs(tmp_path):
    programs = [code for code in SNIPPETS if code.startswith(LAUNCHED)]
    assert programs
    for code in programs:
        program = tmp_path / "program.py"
        program.write_text(code)
        arguments = code.splitlines()[0].removeprefix(LAUNCHED).split()
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", *arguments]
        done = subprocess.run([*command, str(program)], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
