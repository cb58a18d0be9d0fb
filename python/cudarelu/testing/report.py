"""The test matrix of a library of ops, as lines of text: `python -m cudarelu check`."""

from __future__ import annotations

import unittest
import warnings
from collections.abc import Collection

from .._modules import load_library
from .._onnx.definitions import function
from .._table import OpInfo
from .matrix import HOSTS, Check, checks, missing_hosts
from .memory import OutOfBoundsError

_WIDTH = 160  # of the text of a failure


def check_library(
    path: str,
    only_ops: Collection[str] = (),
    runtimes: Collection[str] = (),
    device: str | None = None,
    slow: bool = False,
    dtypes: Collection[str] = (),
    names: Collection[str] = (),
) -> int:
    """Checks the ops of a library, and prints a line for each op and host, and for each failure.

    Args:
        path: the library.
        only_ops: names of ops; all if there are none.
        runtimes: names of hosts without their device, such as "torch"; all if there are none.
        device: "cpu" or "cuda"; None: both.
        slow: whether to run the second tier too; see `Check`.
        dtypes: dtypes of the type variable; all if there are none.
        names: names of cases and features, of both tiers; all if there are none.

    Returns:
        The number of checks that failed.

    Raises:
        ValueError: for an unknown name, if none of the hosts can run here, if the library cannot
            be loaded, and for a definition that is not valid ONNX.
    """
    known = dict.fromkeys(host.runtime for host in HOSTS)
    for name in runtimes:
        if name not in known:
            raise ValueError(f"no host {name!r}: there are {', '.join(known)}")
    chosen = {
        host.name
        for host in HOSTS
        if (not runtimes or host.runtime in runtimes) and device in (None, host.device)
    }
    ops = _named(load_library(path).ops(), only_ops)
    for op in ops:  # an invalid definition is one error, not an error of each check
        function(op)
        if op.onnx.alias:
            function(op, *op.onnx.alias)
    missing = {name: why for name, why in missing_hosts(ops).items() if name in chosen}
    if missing.keys() == chosen:
        reasons = "; ".join(f"{name}: {why}" for name, why in missing.items())
        raise ValueError(f"no host to check in ({reasons or 'none runs on ' + str(device)})")
    width = max(len(op.short_name) for op in ops)
    selected = [
        [
            each
            for each in checks([op])
            if each.host.name in chosen
            and (each.name in names if names else slow or not each.slow)
            and (not dtypes or each.dtype in dtypes)
        ]
        for op in ops
    ]
    if not any(selected):
        raise ValueError(f"no check of {', '.join((*names, *dtypes))} in {', '.join(chosen)}")
    failed = 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for each in filter(None, selected):
            failed += _check_op(each, width)
    for name, why in missing.items():
        print(f"not checked: {name}: {why}")
    if failed:
        print(f"{failed} {'check' if failed == 1 else 'checks'} failed")
    return failed


def _named(ops: list[OpInfo], names: Collection[str]) -> list[OpInfo]:
    for name in names:
        if not any(name in (op.name, op.short_name) for op in ops):
            known = ", ".join(op.name for op in ops)
            raise ValueError(f"no op {name!r}: the library has {known}")
    return [op for op in ops if not names or op.name in names or op.short_name in names]


def _check_op(selected: list[Check], width: int) -> int:
    """Runs the checks of an op, prints a line for each host, and returns how many have failed."""
    counts: dict[str, dict[str, int]] = {each.host.name: {} for each in selected}
    failures: dict[str, list[str]] = {name: [] for name in counts}
    is_safe = True
    for each in selected:
        runs = is_safe or each.name == "memory"
        outcome = "passed" if runs else "not run"
        try:
            if runs:
                each.run()
        except unittest.SkipTest:
            outcome = "skipped"
        except Exception as error:  # whatever a host raises
            outcome = "failed"
            is_safe = is_safe and not isinstance(error, OutOfBoundsError)
            lines = [f"  {each.dtype} {each.name}: {_one_line(error)}", f"    {each.call}"]
            failures[each.host.name] += lines
        count = counts[each.host.name]
        count[outcome] = count.get(outcome, 0) + 1
    for host, count in counts.items():
        text = ", ".join(f"{number} {outcome}" for outcome, number in count.items())
        print(f"{selected[0].op.short_name:{width}}  {host:14}  {text}")
        for line in failures[host]:
            print(line)
    return sum(count.get("failed", 0) for count in counts.values())


def _one_line(error: Exception) -> str:
    """The message of an error, without the elements of arrays."""
    lines = []
    for line in str(error).splitlines():
        if line.lstrip().startswith(("ACTUAL:", "DESIRED:", "x:", "y:", "numerical:tensor")):
            break
        if line.strip():
            lines.append(" ".join(line.split()).rstrip(",;"))
    text = "; ".join(lines) or type(error).__name__
    if not isinstance(error, AssertionError):
        text = f"{type(error).__name__}: {text}"
    return text if len(text) <= _WIDTH else text[: _WIDTH - 3] + "..."
