"""Tests of the benchmarks know the ops of this library only, and share a tiny run."""

from __future__ import annotations

import pytest

from support.bench import TINY, bench
from support.op_modules import only_own_module


@pytest.fixture(autouse=True)
def _without_other_modules():
    with only_own_module():
        yield


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """The file of a tiny run on the CPU."""
    path = tmp_path_factory.mktemp("bench") / "a.jsonl"
    assert bench(*TINY, "--no-plots", "--out", path) == 0
    assert [*path.parent.iterdir()] == [path]
    return path
