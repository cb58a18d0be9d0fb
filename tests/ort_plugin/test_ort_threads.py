"""The custom-op library in ONNX Runtime: numbers of threads, and the life of sessions."""

from __future__ import annotations

import multiprocessing
import threading
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest

from support.models import make_model, make_options, node, one_node
from support.ort_infer import tensor

PROCESS = Path("/proc/self")
X = np.random.default_rng(0).normal(size=(768, 768)).astype(np.float32)
SHAPE = ("N", "M")
PRODUCT = make_model([node("MatmulNt", ["x", "x"], ["y"])], [tensor("x", SHAPE)],
                     [tensor("y", None)])  # fmt: skip
HEADS = ("B", "H", "S", "D")
ATTENTION = make_model([node("Attention", ["x", "x", "x"], ["y"])], [tensor("x", HEADS)],
                       [tensor("y", None)])  # fmt: skip
CALLS = {
    "Softmax": (one_node("Softmax", SHAPE), X),
    "LayerNorm": (one_node("LayerNorm", SHAPE), X),
    "MatmulNt": (PRODUCT, X),
    "Attention": (ATTENTION, X.reshape(6, 2, 768, 64)),
}


def session(model: bytes, threads: int = 0) -> ort.InferenceSession:
    options = make_options()
    options.intra_op_num_threads = threads
    return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def ticks() -> dict[str, int]:
    """The processor time that each thread of the process has used, in ticks of 10 ms."""
    found = {}
    for task in (PROCESS / "task").iterdir():
        fields = (task / "stat").read_text().rpartition(")")[2].split()
        found[task.name] = int(fields[11]) + int(fields[12])
    return found


@pytest.mark.parametrize("name", CALLS)
def test_a_session_has_the_threads_that_it_was_given(name):
    """Kernels, and the products that they leave to ONNX Runtime, run on these threads only."""
    model, x = CALLS[name]
    running = session(model, threads=1)
    before = ticks()
    while sum(ticks().values()) < sum(before.values()) + 20:
        running.run(None, {"x": x})
    own = str(threading.get_native_id())
    others = {task: used - before.get(task, 0) for task, used in ticks().items() if task != own}
    assert max(others.values(), default=0) <= 2, others


def test_a_session_ends_while_another_runs():
    x = X[:64]
    model = one_node("Softmax", SHAPE)
    running = session(model)
    (expected,) = running.run(None, {"x": x})
    done = threading.Event()
    wrong = []

    def work() -> None:
        while not done.is_set():
            if not np.array_equal(running.run(None, {"x": x})[0], expected):
                wrong.append(True)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        for _ in range(50):
            other = session(model)
            other.run(None, {"x": x})
            del other
    finally:
        done.set()
        thread.join()
    assert not wrong


def _hold(sessions: int) -> list[tuple[int, int, int]]:
    """The memory pages, threads and open files of this process after 200 and after all sessions."""
    model = one_node("Softmax", SHAPE)

    def held() -> tuple[int, int, int]:
        pages = int((PROCESS / "statm").read_text().split()[1])
        threads, files = (len(list((PROCESS / each).iterdir())) for each in ("task", "fd"))
        return pages, threads, files

    found = []
    for i in range(sessions):
        session(model, threads=1).run(None, {"x": X[:2]})
        if i + 1 in (200, sessions):
            found.append(held())
    return found


@pytest.mark.slow
def test_a_thousand_sessions():
    """Neither memory nor threads nor open files remain of a session. In a process of its own, since
    what other tests have left behind is freed at any time."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        before, after = pool.map_async(_hold, [1000]).get(300)[0]
    assert after[1:] == before[1:]
    # 4 KiB for each session would be 800 pages.
    assert after[0] - before[0] < 600, (before, after)


def _softmax_in_a_process(x: np.ndarray) -> np.ndarray:
    return session(one_node("Softmax", SHAPE), threads=2).run(None, {"x": x})[0]


def test_fork_after_a_run():
    """A forked process has no thread of a pool but its own; its sessions are new."""
    expected = _softmax_in_a_process(X)
    with multiprocessing.get_context("fork").Pool(1) as pool:
        (y,) = pool.map_async(_softmax_in_a_process, [X]).get(60)
    np.testing.assert_array_equal(y, expected)
