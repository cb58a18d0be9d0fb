"""The example examples/jax_train.py, and its model in ort_infer."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from cudarelu.testing.environment import jax_missing
from support.commands import run
from support.ort_infer import BUILT, ORT_INFER

EXAMPLE = Path(__file__).parents[2] / "examples/jax_train.py"


@pytest.mark.skipif(jax_missing("cpu") is not None, reason="JAX is missing")
@BUILT
def test_the_saved_model_gives_the_outputs_of_jax(tmp_path):
    output = run(sys.executable, EXAMPLE, cwd=tmp_path)
    losses = [float(each) for each in re.findall(r"loss ([\d.]+)", output)]
    assert losses[-1] < losses[0] < 1
    assert float(re.search(r"accuracy ([\d.]+)", output)[1]) > 0.95
    command = (ORT_INFER, "model.onnx", "--input", "x=x.npy", "--tolerance", "1e-5,1e-6")
    done = subprocess.run(
        [*map(str, command), "--compare", "probabilities=probabilities.npy"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "x cudarelu::LinearGelu on CPU" in done.stdout
