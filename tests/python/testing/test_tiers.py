"""The two tiers of the tests: what the first has, and how shares of the second are chosen."""

from __future__ import annotations

import collections
import json
import re
import subprocess
import sys

import pytest

import cudarelu
from cudarelu.__main__ import main
from cudarelu.testing import Check, checks
from cudarelu.testing.tiers import is_representative, traits
from support.op_modules import LIBRARY

MARKED = """
import pytest

def test_first(): pass

@pytest.mark.slow
@pytest.mark.parametrize("i", range(20))
def test_second(i): pass

@pytest.mark.slow
@pytest.mark.xdist_group("pair")
@pytest.mark.parametrize("i", range(2))
def test_pair(i): pass
"""


@pytest.fixture(scope="module")
def matrix() -> list[Check]:
    return list(checks(cudarelu.ops()))


def test_every_op_runs_in_every_host_and_dtype(matrix):
    every, first = set(), set()
    for each in matrix:
        cell = (each.host.name, each.op.name, each.dtype)
        if each.host.serves(each.op, each.dtype):
            every.add(cell)
            if not each.slow:
                first.add(cell)
    assert len(every) > 1000
    assert first == every


def test_every_check_is_somewhere_in_the_first_tier(matrix):
    """In each host, at least one op has a case or a feature of each name."""
    numbers: dict[tuple[str, str], int] = collections.Counter()
    for each in matrix:
        kind = re.sub(r"\d+|without-.*", "", each.name)  # sizes depend on the dtype
        numbers[each.host.name, kind] += not each.slow
    assert not [name for name, number in numbers.items() if number == 0]


def test_few_ops_have_what_all_have():
    ops = cudarelu.ops()
    few = [op for op in ops if is_representative(op)]
    assert len(few) < len(ops) / 3
    assert set().union(*map(traits, few)) == set().union(*map(traits, ops))


COLLECT = """
import contextlib, io, json, pytest, sys

found = {}
for value in sys.argv[1:]:
    output = io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        status = pytest.main(
            ["--collect-only", "-q", "--strict-markers", "-p", "cudarelu.testing.plugin"]
            + ["-p", "no:cacheprovider", f"--slow={value}", "test_a.py"]
        )
    found[value] = int(status), output.getvalue()
json.dump(found, sys.stdout)
"""


@pytest.fixture
def collect(tmp_path):
    """The exit status and the output of pytest for some values of --slow, in one process."""
    (tmp_path / "test_a.py").write_text(MARKED)

    def collect(*values: str) -> dict[str, tuple[int, str]]:
        command = [sys.executable, "-c", COLLECT, *values]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
        return json.loads(done.stdout)

    return collect


def test_shares(collect):
    """Each slow test is in one share, and those of one group are in the same."""
    found = {}
    for value, (status, output) in collect("none", "all", "0/2", "1/2").items():
        assert status == 0, output
        found[value] = {line.split("::")[1] for line in output.splitlines() if "::" in line}
    shares = [found["0/2"], found["1/2"]]
    assert len(found["all"]) == 23
    assert shares[0] | shares[1] == found["all"]
    assert shares[0] & shares[1] == {"test_first"} == found["none"]
    assert all(len(share) > 3 for share in shares)
    pair = {"test_pair[0]", "test_pair[1]"}
    assert [pair <= share for share in shares].count(True) == 1
    assert [not pair & share for share in shares].count(True) == 1


def test_a_share_that_there_is_not(collect):
    for value, (status, output) in collect("some", "2/2", "1/0", "-1/2").items():
        assert status == 4
        assert f"{value!r} is not none, all or K/N with K below N" in output


def test_the_command_has_both_tiers(capsys):
    arguments = ["check", str(LIBRARY), "--op", "swish", "--host", "numpy"]
    numbers = []
    for options in ([], ["--all"]):
        assert main([*arguments, *options]) == 0
        (number,) = re.findall(r"^my::swish +numpy +(\d+) passed$", capsys.readouterr().out, re.M)
        numbers.append(int(number))
    first, both = numbers
    assert 4 <= first < both / 2


def test_one_case_of_one_dtype(capsys):
    """Also of the second tier."""
    arguments = ["check", str(LIBRARY), "--host", "numpy,torch", "--provider", "cpu"]
    assert main([*arguments, "--dtype", "float16", "--case", "35", "--op", "swish"]) == 0
    found = re.findall(r"^my::swish +(\S+) +(.*)$", capsys.readouterr().out, re.M)
    assert sorted(found) == [("numpy", "1 passed"), ("torch-cpu", "1 passed")]
