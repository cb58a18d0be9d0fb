"""The code and the numbers in README.md and CONTRIBUTING.md are correct."""

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def test_python_runs():
    (code,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    exec(compile(code, "README.md", "exec"), {})


def test_declaration_is_that_of_the_guide():
    (code,) = re.findall(r"```cpp\n(.*?)```", README, re.DOTALL)
    assert code in (ROOT / "docs/your-op.md").read_text()  # which is executed


def test_budget_is_as_counted():
    """CONTRIBUTING.md counts the lines of some ops; an elementwise op stays within 25."""
    table = (ROOT / "CONTRIBUTING.md").read_text()
    for op in ("leaky_relu", "softmax", "knn_query"):
        folder = ROOT / "src/kernels/ops"
        paths = [*folder.glob(f"{op}.*"), *folder.glob(f"{op}/*")]
        lines = sum(len(path.read_text().splitlines()) for path in paths)
        row = next(line for line in table.splitlines() if line.startswith(f"| `{op}`"))
        assert f"| {len(paths)} (" in row
        assert row.endswith(f"| {lines} |")
        assert op != "leaky_relu" or lines <= 25


def test_lengths():
    assert len(README.splitlines()) <= 100
    assert len((ROOT / "CONTRIBUTING.md").read_text().splitlines()) <= 100


def test_a_build_beside_other_jobs_of_make(tmp_path):
    """ninja, which cmake calls too, reports an error for the job server that `make -j` describes in
    MAKEFLAGS."""
    for name in ("cmake", "ninja"):
        program = tmp_path / name
        program.write_text('#!/bin/sh\necho "[$MAKEFLAGS]"\n')
        program.chmod(0o755)
    output = subprocess.run(
        ["make", "-j", "2", "kernels", f"BIN={tmp_path}"],
        cwd=ROOT,
        env={"PATH": os.environ["PATH"]},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    ).stdout
    assert output.splitlines() == ["[]", "[]"]


def test_the_environment_has_the_commands(tmp_path):
    """As the documents use them: `cudarelu` and `ort_infer`."""
    python = tmp_path / "bin/python"
    python.parent.mkdir()
    (tmp_path / "site").mkdir()
    python.write_text(
        f"""#!/bin/sh
        case "$*" in
          *purelib*) echo "{tmp_path}/site" ;;
          *include*) exec {sys.executable} "$@" ;;
        esac
        """
    )
    python.chmod(0o755)
    command = ["bash", str(ROOT / "tools/setup.sh"), "packages", sys.executable, str(tmp_path)]
    subprocess.run(command, check=True)
    assert (tmp_path / "site/cudarelu.pth").read_text() == f"{ROOT}/build/python\n"
    assert (tmp_path / "bin/ort_infer").readlink() == ROOT / "build/ort_infer"
    assert os.access(tmp_path / "bin/cudarelu", os.X_OK)
