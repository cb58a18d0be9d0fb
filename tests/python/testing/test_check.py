"""`python -m cudarelu check` and the pytest plugin find what is wrong with an op."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

import cudarelu
from cudarelu.__main__ import main
from cudarelu.testing import checks
from support.op_modules import LIBRARY

# Each op but `good` is wrong in one way.
HEADER = """
#pragma once
#include "cudarelu/elementwise.h"

namespace wrong {
using namespace cudarelu;
constexpr DTypeSet wide = DTypeSet::of({DType::float32, DType::float64});

struct Good {
  static constexpr OpSpec spec{
      .signature = "good(x: T[*]) -> y: T[*]",
      .summary = "2 x.",
      .dtypes = wide,
      .in_place = "y = x",
      .gradient = "x = good(grad_y)",
      .definition = "y = Add(x, x)",
  };
  template <class T>
  CUDARELU_FN T operator()(T x) const { return x + x; }
};

struct Gradient {
  static constexpr OpSpec spec{
      .signature = "gradient(x: T[*]) -> y: T[*]",
      .summary = "3 x, with the gradient of 2 x.",
      .dtypes = wide,
      .gradient = "x = good(grad_y)",
      .definition = "twice = Add(x, x)\\n y = Add(twice, x)",
  };
  template <class T>
  CUDARELU_FN T operator()(T x) const { return x + x + x; }
};

struct Definition {
  static constexpr OpSpec spec{
      .signature = "definition(x: T[*]) -> y: T[*]",
      .summary = "x + 1, defined as x.",
      .dtypes = wide,
      .definition = "y = Identity(x)",
  };
  template <class T>
  CUDARELU_FN T operator()(T x) const { return x + T(1); }
};

}  // namespace wrong
"""
BOUNDS = """
#pragma once
#include "cudarelu/kernel.h"

namespace wrong {
using namespace cudarelu;

struct Bounds {
  static constexpr OpSpec spec{
      .signature = "bounds(x: T[*, c]) -> y: T[*, c]",
      .summary = "x, with one element too many.",
      .dtypes = floating_types,
      .definition = "y = Identity(x)",
  };
  static Status cpu(const Call& call);
  static Status cuda(const Call& call);
};

}  // namespace wrong
"""
KERNEL = """
#include <cstring>
#include "bounds.h"

namespace wrong {

Status Bounds::cpu(const Call& call) {
  const std::size_t bytes = call.inputs[0].size() * size_of(call.inputs[0].dtype);
  std::memcpy(call.outputs[0].data, call.inputs[0].data, bytes);
  if (bytes > 0) static_cast<char*>(call.outputs[0].data)[bytes] = 0;
  return Status();
}

}  // namespace wrong
"""


def python(*arguments: str, folder=None) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, cwd=folder, env=environment
    )


@pytest.fixture(scope="session")
def wrong(tmp_path_factory) -> str:
    """The library of the ops above; other processes load it, since it would harm this one."""
    folder = tmp_path_factory.mktemp("wrong")
    sources = {"wrong.h": HEADER, "bounds.h": BOUNDS, "bounds.cpp": KERNEL}
    for name, text in sources.items():
        (folder / name).write_text(text)
    code = f"import cudarelu; print(cudarelu.load('wrong', {[*sources]}, cuda=False).path)"
    done = python("-c", code, folder=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def check(library: str, ops: list[str], hosts: str) -> tuple[int, str]:
    named = [each for op in ops for each in ("--op", op)]
    options = [*named, "--host", hosts, "--provider", "cpu"]
    done = python("-m", "cudarelu", "check", library, *options)
    assert done.returncode in (0, 1), done.stderr
    return done.returncode, done.stdout


@pytest.fixture(scope="session")
def report(wrong) -> str:
    """What the command says of the ops that are wrong."""
    status, text = check(wrong, ["gradient", "definition", "bounds"], "numpy,torch")
    assert status == 1, text
    return text


def calls_in(text: str) -> list[str]:
    return re.findall(r"^    (import cudarelu.*)$", text, re.MULTILINE)


@pytest.mark.xdist_group("wrong")
@pytest.mark.parametrize(
    ("op", "host", "failure"),
    [
        ("gradient", "torch-cpu", "float64 gradients: GradcheckError: Jacobian mismatch"),
        ("definition", "numpy", "float32 odd: Not equal to tolerance"),
        ("bounds", "numpy", "float32 memory: scalar: bounds writes past the end of y"),
    ],
)
def test_a_wrong_op_is_found(op, host, failure, report):
    """Pasted, the printed call fails as well."""
    assert f"  {failure}" in report
    name = failure.partition(":")[0].replace(" ", '", "')
    calls = [each for each in calls_in(report) if f'"{host}", "{name}"' in each]
    (call,) = [each for each in calls if f"wrong::{op}" in each]
    done = python("-c", call)
    assert done.returncode == 1
    assert failure.split(": ")[-1] in done.stderr


@pytest.mark.xdist_group("wrong")
def test_a_group_is_in_one_worker(request):
    """If not, the matrix and others compile twice: pytest 9.2 makes pytest-xdist 3.8 do so."""
    if not getattr(request.config.option, "loadgroup", False):
        pytest.skip("needs pytest -n 2 --dist loadgroup")
    assert request.node.nodeid.endswith("@wrong")


@pytest.mark.xdist_group("wrong")
def test_an_op_that_writes_out_of_bounds_is_called_no_more(report):
    assert re.search(r"^wrong::bounds +torch-cpu +\d+ not run$", report, re.MULTILINE)


@pytest.mark.xdist_group("wrong")
def test_a_right_op_passes(wrong):
    status, text = check(wrong, ["good"], "torch,onnxruntime,ort_infer,numpy")
    assert status == 0, text
    hosts = re.findall(r"^wrong::good +(\S+) +\d+ passed$", text, re.MULTILINE)
    assert sorted(hosts) == ["numpy", "ort-cpu", "ort_infer-cpu", "torch-cpu"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--op", "swosh"], "no op 'swosh': the library has swish, "),
        (["--host", "mxnet"], "no host 'mxnet': there are torch, "),
        (["--host", "numpy", "--provider", "cuda"], "no host to check in (none runs on cuda)"),
        (["--host", "numpy", "--case", "wider"], "no check of wider in numpy"),
    ],
)
def test_misuse(arguments, message, capsys):
    assert main(["check", str(LIBRARY), *arguments]) == 2
    assert message in capsys.readouterr().err


def test_a_definition_that_is_not_valid_is_one_error(tmp_path):
    """It would fail each check."""
    header = ALIASED.replace("aliased", "invalid").replace("LeakyRelu<", "LeakyRleu<")
    header = re.sub(r"      \.onnx_alias.*\n", "", header)
    (tmp_path / "invalid.h").write_text(header)
    code = (  # as CMake builds it, which does not read the definitions
        "from cudarelu import _build, __main__; _build._check_declarations = lambda *_: None; "
        "library = _build.load('invalid', 'invalid.h', cuda=False).path; "
        "raise SystemExit(__main__.main(['check', library]))"
    )
    done = python("-c", code, folder=tmp_path)
    assert done.returncode == 2
    message = "error: invalid::leaky: the definition is not valid ONNX: No Op registered for"
    assert done.stderr.startswith(f"{message} LeakyRleu")
    assert done.stdout == ""


ALIASED = """
#pragma once
#include "cudarelu/elementwise.h"

namespace aliased {
struct Leaky {
  static constexpr cudarelu::OpSpec spec{
      .signature = "leaky(x: T[*], *, slope: float = 0.5) -> y: T[*]",
      .summary = "x where x > 0, else slope * x.",
      .dtypes = cudarelu::DTypeSet::of({cudarelu::DType::float32}),
      .onnx_alias = {"custom", "leaky", "slope, x"},
      .definition = "y = LeakyRelu<alpha: float = @slope>(x)",
  };
  template <class T>
  CUDARELU_FN T operator()(T x, T slope) const {
    return x > T(0) ? x : slope * x;
  }
};
}  // namespace aliased
"""


@pytest.mark.slow
def test_a_definition_that_does_not_suit_an_alias_is_one_error(tmp_path):
    (tmp_path / "aliased.h").write_text(ALIASED)
    code = (
        "import cudarelu.__main__; "
        "library = cudarelu.load('aliased', 'aliased.h', cuda=False).path; "
        "raise SystemExit(cudarelu.__main__.main(['check', library]))"
    )
    done = python("-c", code, folder=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith(
        "error: aliased::leaky: the definition has @slope in a node Leaky"
    )
    assert done.stdout == ""


def test_no_library(capsys):
    assert main(["check", "libnone.so"]) == 2
    assert "libnone.so" in capsys.readouterr().err


# The pytest plugin


def pytest_in(folder, *arguments: str) -> subprocess.CompletedProcess[str]:
    (folder / "test_user.py").write_text("def test_ops(op_check):\n    op_check.run()\n")
    return python(
        *("-m", "pytest", "-q", "--strict-markers", "-p", "cudarelu.testing.plugin"),
        *("-p", "no:cacheprovider", *arguments, "test_user.py"),
        folder=folder,
    )


@pytest.mark.xdist_group("wrong")
def test_the_plugin_in_a_users_test(wrong, tmp_path):
    selected = "torch-cpu and (good and float32 or gradient-float64-gradients)"
    done = pytest_in(tmp_path, f"--cudarelu-library={wrong}", "-k", selected)
    assert done.returncode == 1
    assert re.search(r"^1 failed, \d+ passed", done.stdout, re.MULTILINE), done.stdout
    assert "test_ops[torch-cpu-wrong::gradient-float64-gradients]" in done.stdout


def test_the_checks_keep_their_order(tmp_path):
    """Those of one plan follow one another, since they share its reference."""
    pytest.importorskip("random_order")
    options = ("--collect-only", "--random-order-seed=1", "-k", "swish-float32")
    done = pytest_in(tmp_path, f"--cudarelu-library={LIBRARY}", *options)
    found = re.findall(r"::test_ops\[(.+)\]", done.stdout)
    first = [c for c in checks(cudarelu.load_library(LIBRARY).ops()) if not c.slow]
    every = [each.id for each in first]
    assert found == [each for each in every if "swish-float32" in each]
    assert len(found) > 10


@pytest.mark.slow
def test_the_plugin_without_a_library(tmp_path):
    done = pytest_in(tmp_path)
    assert done.returncode != 0
    assert "needs the option --cudarelu-library" in done.stdout + done.stderr
