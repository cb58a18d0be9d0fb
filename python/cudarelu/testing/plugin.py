"""A pytest plugin that checks the ops of a module in every host.

In a conftest.py, or with pytest's option -p::

    pytest_plugins = ["cudarelu.testing.plugin"]

A test with the argument `op_check` then runs once for each `cudarelu.testing.Check`::

    def test_ops(op_check):
        op_check.run()

The ops are those of the libraries that the option --cudarelu-library names. The mark
`cudarelu_library` names them for a single test. -k selects by host, op, dtype and case, for example
`-k "torch-cpu and swish and float16"`. A host that cannot run here has one skipped test.

Checks of the second tier, and other tests with the mark `slow`, are left out unless the option
--slow=all is given, or --slow=K/N for a share of them: the same N shares together have each once.
"""

from __future__ import annotations

import argparse
import re
import zlib
from collections.abc import Iterator
from typing import Any

import pytest

from .._modules import load_library
from .._table import OpInfo
from .matrix import checks, missing_hosts


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("cudarelu").addoption(
        "--cudarelu-library",
        action="append",
        default=[],
        metavar="FILE.so",
        help="check the ops of this library in tests with the argument op_check; repeatable",
    )
    parser.getgroup("cudarelu").addoption(
        "--slow",
        default="none",
        metavar="none|all|K/N",
        type=_share,
        help="which tests with the mark `slow` to run: none (default), all, or share K of N",
    )


def _share(text: str) -> tuple[int, int]:
    """(k, n) for share k of n; n is 0 for none."""
    if text in ("none", "all"):
        return (0, int(text == "all"))
    match = re.fullmatch(r"(\d+)/(\d+)", text)
    if not match or int(match[1]) >= int(match[2]):
        raise argparse.ArgumentTypeError(f"{text!r} is not none, all or K/N with K below N")
    return int(match[1]), int(match[2])


def pytest_configure(config: pytest.Config) -> None:
    mark = "cudarelu_library(path, ...): check the ops of these libraries with op_check"
    config.addinivalue_line("markers", mark)
    config.addinivalue_line("markers", "slow: of the second tier, which the option --slow selects")
    if not config.pluginmanager.hasplugin("xdist"):
        config.addinivalue_line("markers", "xdist_group(name): a mark of pytest-xdist")
    if not config.pluginmanager.hasplugin("random_order"):
        mark = "random_order(disabled): a mark of pytest-random-order"
        config.addinivalue_line("markers", mark)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    kept: list[pytest.Item] = []
    left_out: list[pytest.Item] = []
    for item in items:
        is_slow = item.get_closest_marker("slow") is not None
        (kept if not is_slow or _is_in_share(config, _unit_of(item)) else left_out).append(item)
    if left_out:
        items[:] = kept
        config.hook.pytest_deselected(items=left_out)


def _is_in_share(config: pytest.Config, unit: str) -> bool:
    k, n = config.getoption("--slow")
    return n > 0 and zlib.crc32(unit.encode()) % n == k


def _unit_of(item: pytest.Item) -> str:
    """What a share has as a whole: tests that share a group also share what is slow to make."""
    group = item.get_closest_marker("xdist_group")
    return str(group.args[0]) if group and group.args else item.nodeid


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "op_check" in metafunc.fixturenames:
        metafunc.parametrize("op_check", list(_parameters(metafunc)))


def _parameters(metafunc: pytest.Metafunc) -> Iterator[Any]:
    marks = metafunc.definition.iter_markers("cudarelu_library")
    paths = [path for mark in marks for path in mark.args]
    paths = paths or metafunc.config.getoption("--cudarelu-library")
    if not paths:
        raise pytest.UsageError(
            f"{metafunc.function.__name__}: op_check needs the option --cudarelu-library or the "
            "mark cudarelu_library"
        )
    ops: list[OpInfo] = []
    for path in paths:
        module = load_library(path)
        for each in checks(module.ops()):
            # In one worker, so that it evaluates the references and runs ort_infer only once.
            unit = each.op.short_name
            if each.slow and not _is_in_share(metafunc.config, unit):
                continue  # to make 30,000 tests that are left out takes seconds
            group = [pytest.mark.xdist_group(unit)]
            # Only the last reference is kept.
            group.append(pytest.mark.random_order(disabled=True))
            group += [pytest.mark.slow] if each.slow else []
            yield pytest.param(each, id=each.id, marks=group)
        ops += module.ops()
    for name, reason in missing_hosts(ops).items():
        yield pytest.param(None, id=name, marks=pytest.mark.skip(reason=reason))
