"""A pytest plugin that checks the ops of a module in every host.

In a conftest.py, or with pytest's option -p::

    pytest_plugins = ["cudarelu.testing.plugin"]

A test with the argument `op_check` then runs once for each `cudarelu.testing.Check`::

    def test_ops(op_check):
        op_check.run()

The ops are those of the libraries that the option --cudarelu-library names. The mark
`cudarelu_library` names them for a single test. -k selects by host, op, dtype and case, for example
`-k "torch-cpu and swish and float16"`. A host that cannot run here has one skipped test.
"""

from __future__ import annotations

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


def pytest_configure(config: pytest.Config) -> None:
    mark = "cudarelu_library(path, ...): check the ops of these libraries with op_check"
    config.addinivalue_line("markers", mark)
    if not config.pluginmanager.hasplugin("xdist"):
        config.addinivalue_line("markers", "xdist_group(name): a mark of pytest-xdist")


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
            group = f"{each.op.short_name}-{each.dtype}"
            yield pytest.param(each, id=each.id, marks=pytest.mark.xdist_group(group))
        ops += module.ops()
    for name, reason in missing_hosts(ops).items():
        yield pytest.param(None, id=name, marks=pytest.mark.skip(reason=reason))
