"""The example examples/ray_batch.py, with a worker that is killed."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from support.commands import environment
from support.models import one_node
from support.ort_infer import BUILT

EXAMPLES = Path(__file__).parents[2] / "examples"
PROGRAM = """
import os, signal, sys
from pathlib import Path
import numpy as np
import ray
import ray_batch

killed = Path(sys.argv[1])

class Killed(ray_batch.Predictor):
    def __call__(self, batch):
        if 200 in batch["row"] and not killed.exists():
            killed.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__call__(batch)

ray.init(num_cpus=2, include_dashboard=False, logging_level="ERROR")
x = np.load("x.npy")
y = ray_batch.predict(Path("model.onnx"), x, workers=2, batch=16, worker=Killed)
np.testing.assert_array_equal(y, np.maximum(x, 0))
assert killed.exists()
"""


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is missing")
@BUILT
def test_rows_of_a_killed_worker_are_neither_lost_nor_doubled(tmp_path):
    (tmp_path / "model.onnx").write_bytes(one_node("Relu"))
    x = np.random.default_rng(0).standard_normal((400, 4), np.float32)
    np.save(tmp_path / "x.npy", x)
    path = os.pathsep.join([str(EXAMPLES), os.environ["PYTHONPATH"]])
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, tmp_path / "killed"],
        cwd=tmp_path,
        env=environment(PYTHONPATH=path, RAY_DATA_DISABLE_PROGRESS_BARS="1"),
        capture_output=True,
        text=True,
        timeout=400,  # two processes import PyTorch, and a third one after the kill
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
