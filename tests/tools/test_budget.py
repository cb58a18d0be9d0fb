"""tools/budget.py: what has grown fails, and what only seems so does not."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPTS = sysconfig.get_path("scripts")
UNITS = {"a.cpp": 10.0, "b.cpp": 20.0, "small.cpp": 2.0, "c.cu": 40.0, "small.cu": 1.0}


@pytest.fixture
def budget():
    """The module."""
    spec = importlib.util.spec_from_file_location("budget", ROOT / "tools/budget.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["budget"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["budget"]


class Build:
    """A made-up build, in which a calibration takes one second."""

    def __init__(self, folder: Path, budget, monkeypatch):
        self.folder, self.budget, self.compiler = folder, budget, "c++ 13"
        self.alone: dict[str, float] = {}
        self.measured: list[str] = []
        monkeypatch.setattr(budget, "compile_calibration", lambda *_: 1.0)
        monkeypatch.setattr(budget.Unit, "compiler", lambda _: self.compiler)
        monkeypatch.setattr(budget.Unit, "calibrations_alone", lambda unit, _: self.measure(unit))
        self.run(UNITS, "--write")

    def measure(self, unit) -> float:
        name = unit.name.removeprefix("src/")
        self.measured.append(name)
        return self.alone[name]

    def run(self, seconds: dict[str, float], *options: str) -> int:
        object_ = "src/CMakeFiles/lib.dir/{}.o".format
        commands = [
            {"directory": "/build", "output": f"/build/{object_(name)}", "command": "c++ -c"}
            for name in seconds
        ]
        (self.folder / "compile_commands.json").write_text(json.dumps(commands))
        # The first compilation of each is an older one.
        lines = [f"{object_(name)} 999.0 0.5\n" for name in seconds]
        lines += [f"{object_(name)} {each - 0.5} 0.5\n" for name, each in seconds.items()]
        (self.folder / "compile_seconds.txt").write_text("".join(lines))
        file = str(self.folder / "budget.json")
        return self.budget.main(["compile", str(self.folder), "--file", file, *options])

    def written(self) -> dict:
        return json.loads((self.folder / "budget.json").read_text())["compile"]["units"]


@pytest.fixture
def build(tmp_path, budget, monkeypatch) -> Build:
    return Build(tmp_path, budget, monkeypatch)


class TestCompile:
    def test_table(self, build, capsys):
        assert build.run(UNITS | {"b.cpp": 22.0}) == 0
        lines = [line.split() for line in capsys.readouterr().out.splitlines()]
        assert lines[1] == ["src/c.cu", "40.0", "40.0", "1.00"]
        assert lines[2] == ["src/b.cpp", "20.0", "22.0", "1.10"]
        assert ["other", "C++", "units", "2.0", "2.0", "1.00"] in lines
        assert ["sum", "73.0", "75.0", "1.03"] in lines
        assert not build.measured

    @pytest.mark.parametrize(("growth", "status"), [(1.15, 0), (1.25, 1)])
    def test_growth(self, build, capsys, growth, status):
        build.alone = {"b.cpp": 20 * growth}
        assert build.run(UNITS | {"b.cpp": 20 * growth}) == status
        printed = "OVER BUDGET: src/b.cpp has grown: 25.0 calibrations, budget 20.0"
        assert (printed in capsys.readouterr().out) == bool(status)

    def test_what_is_slow_in_the_build_alone_passes(self, build):
        build.alone = {"b.cpp": 21.0}
        assert build.run(UNITS | {"b.cpp": 30.0}) == 0
        assert build.measured == ["b.cpp"]

    def test_sum(self, build, capsys):
        """Four units below the size of a row, and large ones that the build has made slower."""
        more = {f"{name}.cpp": 4.0 for name in "defg"}
        build.alone = {"a.cpp": 10.0, "b.cpp": 20.0, "c.cu": 40.0}
        assert build.run(UNITS | more) == 1
        assert "the sum has grown: 89.0 calibrations, budget 73.0" in capsys.readouterr().out
        assert build.run(UNITS | dict(list(more.items())[:3]) | {"c.cu": 47.0}) == 0
        assert build.measured == ["c.cu"]

    def test_a_unit_of_the_cache_counts_as_its_budget(self, build, capsys):
        assert build.run(UNITS | {"c.cu": 0.6, "b.cpp": 0.6}) == 0
        assert ["src/c.cu", "40.0", "cached"] in [
            line.split() for line in capsys.readouterr().out.splitlines()
        ]
        build.run(UNITS | {"c.cu": 0.6}, "--write")
        assert build.written()["src/c.cu"] == 40.0

    def test_a_new_unit_needs_a_budget(self, build, capsys):
        build.alone = {"new.cpp": 6.5}
        assert build.run(UNITS | {"new.cpp": 6.5}) == 1
        assert "src/new.cpp has no budget: 6.5 calibrations" in capsys.readouterr().out

    def test_a_unit_of_about_the_least_size_needs_none(self, build):
        assert build.run(UNITS | {"small.cpp": 5.5}) == 0

    def test_smaller(self, build, capsys):
        assert build.run(UNITS | {"c.cu": 30.0}) == 0
        assert "--write lowers the budget: src/c.cu\n" in capsys.readouterr().out

    def test_write_keeps_what_has_hardly_changed(self, build):
        build.run({"a.cpp": 11.0, "b.cpp": 26.0, "small.cpp": 2.0, "new.cpp": 7.0}, "--write")
        cuda = {"src/c.cu": 40.0, "other .cu units": 1.0}  # this build has no CUDA
        cpp = {"src/a.cpp": 10.0, "src/b.cpp": 26.0, "src/new.cpp": 7.0, "other C++ units": 2.0}
        assert build.written() == cuda | cpp

    def test_not_compared(self, build, capsys):
        assert build.run({"a.cpp": 10.0}) == 0
        printed = capsys.readouterr().out
        assert "CUDA is not compared: this build has none" in printed
        assert "not in this build: src/b.cpp\n" in printed
        build.compiler = "c++ 14"
        assert build.run({"a.cpp": 99.0}) == 0
        assert "C++ is not compared: c++ 14, the budget is of c++ 13" in capsys.readouterr().out

    def test_nothing_recorded(self, build):
        (build.folder / "compile_seconds.txt").unlink()
        with pytest.raises(SystemExit, match=r"compile_seconds\.txt is missing"):
            build.budget.main(["compile", str(build.folder)])


PROJECT = f"""
cmake_minimum_required(VERSION 3.25)
project(example LANGUAGES CXX)
include({ROOT}/cmake/Defaults.cmake)
add_library(example SHARED unit.cpp)
"""


@pytest.mark.skipif(
    any(
        shutil.which(tool, path=f"{SCRIPTS}:{os.environ['PATH']}") is None
        for tool in ("cmake", "ninja", "c++")
    ),
    reason="cmake, ninja or c++ is missing",
)
def test_a_unit_that_is_made_slower_fails(tmp_path, budget, monkeypatch, capsys):
    """Built and compiled. The calibration is an empty file, so that all is fast."""
    monkeypatch.setenv("PATH", SCRIPTS, prepend=os.pathsep)
    monkeypatch.setenv("CCACHE_DISABLE", "1")
    monkeypatch.setattr(budget, "GROWTH", 1.9)  # times below a second are not exact
    monkeypatch.setattr(budget, "FILE", tmp_path / "budget.json")
    (tmp_path / "calibration.cpp").touch()
    (tmp_path / "CMakeLists.txt").write_text(PROJECT)
    folder, unit = tmp_path / "a build", tmp_path / "unit.cpp"
    folder.mkdir()

    def check(source: str, *options: str) -> int:
        unit.write_text(source)
        subprocess.run(["ninja"], cwd=folder, check=True, stdout=subprocess.DEVNULL)
        file = str(tmp_path / "budget.json")
        return budget.main(["compile", str(folder), "--file", file, *options])

    unit.touch()
    command = ["cmake", "-G", "Ninja", tmp_path]
    subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)
    fast, slow = "#include <vector>\n", "#include <regex>\n"
    check(fast, "--write")
    assert check(slow) == 1
    assert "OVER BUDGET: unit.cpp has grown" in capsys.readouterr().out
    assert check(fast) == 0


# Tests

TESTS = """
import os, subprocess, sys, time
import pytest

def busy(seconds=0.1):
    end = time.process_time() + seconds
    while time.process_time() < end: pass

@pytest.fixture
def prepared():
    busy()
    yield
    busy()

def test_a(prepared): pass

def test_process():
    subprocess.run([sys.executable, "-c", "while sum(__import__('os').times()[:2]) < 0.2: pass"])

def test_waits(): time.sleep(0.5)

@pytest.mark.slow
def test_slow(): busy(0.5)
"""


def recorded(folder: Path, *options: str) -> dict[str, float] | None:
    """The seconds that a session records."""
    build = folder / "build"
    build.mkdir(exist_ok=True)
    (build / "test_seconds.json").unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "support.cpu_seconds"]
    command += ["-p", "no:cacheprovider", "-c", "pytest.ini", *options]
    path = os.pathsep.join([str(ROOT / "tests"), *sys.path])
    environment = os.environ | {"PYTHONPATH": path, "CUDARELU_BUILD_DIR": str(build)}
    environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # faster
    environment.pop("PYTEST_XDIST_WORKER", None)
    subprocess.run(command, cwd=folder, env=environment, check=True, stdout=subprocess.DEVNULL)
    file = build / "test_seconds.json"
    return json.loads(file.read_text())["seconds"] if file.exists() else None


def test_seconds_of_folders(tmp_path):
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = slow\n")
    for place in ("tests/ops/test_x.py", "tests/python/test_y.py"):
        (tmp_path / place).parent.mkdir(parents=True)
        (tmp_path / place).write_text(TESTS)
    found = recorded(tmp_path, "-p", "xdist", "-n", "2", "tests")
    assert found.keys() == {"tests/ops", "tests/python/test_y.py"}
    assert all(0.35 < each < 0.8 for each in found.values())
    assert recorded(tmp_path, "tests/ops") is None  # not all tests


class TestTests:
    @pytest.fixture
    def check(self, tmp_path, budget):
        def check(seconds: dict[str, float], *options: str, gpu: bool = False) -> int:
            found = {"calibration": 0.5, "gpu": gpu, "seconds": seconds}
            (tmp_path / "test_seconds.json").write_text(json.dumps(found))
            file = str(tmp_path / "budget.json")
            return budget.main(["tests", str(tmp_path), "--file", file, *options])

        check({"tests/ops": 100.0, "tests/docs": 2.0}, "--write")
        return check

    @pytest.mark.parametrize(("ops", "docs", "status"), [(115, 7, 0), (130, 2, 1), (100, 28, 1)])
    def test_growth(self, check, ops, docs, status):
        assert check({"tests/ops": ops, "tests/docs": docs}) == status

    def test_says_what_has_grown(self, check, capsys):
        check({"tests/ops": 200.0, "tests/docs": 2.0})
        printed = capsys.readouterr().out
        assert "OVER BUDGET: tests/ops has grown: 400.0 calibrations, budget 200.0" in printed
        assert "OVER BUDGET: the sum has grown: 404.0 calibrations, budget 204.0" in printed

    def test_with_a_gpu_they_are_not_compared(self, check, capsys):
        assert check({"tests/ops": 900.0}, gpu=True) == 0
        assert "tests are not compared" in capsys.readouterr().out
