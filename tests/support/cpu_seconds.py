"""A pytest plugin: the CPU seconds of the tests of each folder, for tools/budget.py.

A session of all tests writes them to test_seconds.json in the build folder. The tests marked `slow`
are left out, since a session runs only some of them. Unlike elapsed time, CPU time does not depend
on what else runs. That of processes counts if the test waits for them.
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from pathlib import Path

import pytest

LAST = pytest.StashKey[float]()
SECONDS: Counter[str] = Counter()


def cpu_seconds() -> float:
    """Of this process, and of all processes that it has waited for."""
    return sum(os.times()[:4])


def calibration() -> float:
    """The CPU seconds of a fixed loop, about 0.2: the least of five. If the loop changes, all
    numbers of tests in tools/budget.json do."""

    def once() -> float:
        start, found = time.process_time(), {}
        for i in range(1_000_000):
            found[i % 1000] = found.get(i % 997, 0) + i
        return time.process_time() - start

    return min(once() for _ in range(5))


def place(nodeid: str) -> str:
    """The folder of a test, or its file in a folder that has further ones."""
    path = Path(nodeid.split("::")[0])
    return str(path if path.parent.name in ("tests", "python") else path.parent)


def ran_all(config: pytest.Config) -> bool:
    paths = [config.invocation_params.dir / each for each in config.args]
    selecting = ("keyword", "markexpr", "deselect", "ignore", "ignore_glob", "collectonly", "lf")
    return paths == [config.rootpath / "tests"] and not any(
        config.getoption(each, None) for each in selecting
    )


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item):
    item.config.stash[LAST] = cpu_seconds()
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item):
    report = yield
    now = cpu_seconds()
    report.cpu_seconds = now - item.config.stash[LAST]
    item.config.stash[LAST] = now
    return report


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if "slow" not in report.keywords:
        # A test during which its worker crashed has no seconds.
        SECONDS[place(report.nodeid)] += getattr(report, "cpu_seconds", 0)


@pytest.hookimpl(trylast=True)  # once the workers of pytest-xdist have ended
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    if "PYTEST_XDIST_WORKER" in os.environ or exitstatus > 1 or not ran_all(session.config):
        return
    found = {
        "calibration": calibration(),
        "gpu": Path("/dev/nvidiactl").exists(),
        "seconds": SECONDS,
    }
    build = os.environ.get("CUDARELU_BUILD_DIR", session.config.rootpath / "build")
    Path(build, "test_seconds.json").write_text(json.dumps(found, indent=1))
