"""Ops that are defined in Python, in the hosts: `cudarelu.define` and `cudarelu.Library`."""

from __future__ import annotations

import copy
import inspect
import math
import pickle
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch

import cudarelu
import cudarelu.nn
import cudarelu.onnx
import cudarelu.ort
from cudarelu.__main__ import main
from cudarelu._table import ops_of
from cudarelu.elementwise import (
    clip,
    erf,
    exp,
    leaky_relu,
    relu,
    round,
    sigmoid,
    softplus,
    tanh,
    where,
)
from support.ort_infer import succeed

pytestmark = pytest.mark.xdist_group("defined")  # compiled once

ROOT = Path(__file__).parents[3]
SWISH = """b = Constant<value_float: float = @beta>()   scaled = Mul(x, b)
           s = Sigmoid(scaled)   y = Mul(x, s)"""
SMALL = {"dtypes": ("float32", "float64")}  # compiles faster


def library() -> cudarelu.Library:
    with cudarelu.Library("defined") as made:
        cudarelu.define(
            "swish(x: T[*], *, beta: float = 1.0) -> y: T[*]", SWISH, orders=2, summary="Swish."
        )

        @cudarelu.define(
            "gated(x: T[*, c], bias: T[c], *, by: none | tanh = none) -> y: T[*, c]", **SMALL
        )
        def gated(x, bias, by):
            """x + bias, multiplied by the tanh of softplus(x) if asked for."""
            return where(by == "tanh", (x + bias) * tanh(softplus(x)), x + bias)

        @cudarelu.define("grown(x: T[*], *, by: exp | exp_of_2 = exp) -> y: T[*]", **SMALL)
        def grown(x, by):
            return where(by == "exp_of_2", exp(2 * x), exp(x))

        @cudarelu.define(
            "turned(x: T[*, r, c], b: T[r, c]) -> y: T[*, r, c]", orders=0, dtypes=("float32",)
        )
        def turned(x, b):
            return x * b - b

        @cudarelu.define("own_gelu(x: T[*]) -> y: T[*]", **SMALL)
        def own_gelu(x):
            return 0.5 * x * (1 + erf(x / math.sqrt(2)))

        @cudarelu.define("tanh_of(x: T[*]) -> y: T[*]", orders=2, **SMALL)
        def tanh_of(x):
            return tanh(x)

        cudarelu.define(
            "fast_swish(x: T[*]) -> y: T[*]",
            "s = Sigmoid(x)  y = Mul(x, s)",
            functor="return x / (T(1) + onnx::exp(-x));",
            gradient="x = cudarelu::mul(grad_y, x)",
            **SMALL,
        )

        @cudarelu.define("steps(x: T[*]) -> y: T[*]", **SMALL)
        def steps(x):
            return round(x)

    return made


@pytest.fixture(scope="module")
def made() -> cudarelu.Library:
    built = library()
    built.load(cuda=False)
    return built


@pytest.fixture(scope="module")
def ops(made) -> cudarelu.OpModule:
    return made.load()


X = torch.randn(5, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def test_values(ops):
    torch.manual_seed(0)
    torch.testing.assert_close(ops.swish(X, beta=2.0), X * torch.sigmoid(2 * X))
    bias = torch.randn(7, dtype=torch.float64)
    expected = (X + bias) * torch.tanh(torch.nn.functional.softplus(X))
    torch.testing.assert_close(ops.gated(X, bias, by="tanh"), expected)
    torch.testing.assert_close(ops.gated(X, bias), X + bias)
    torch.testing.assert_close(ops.fast_swish(X), torch.nn.functional.silu(X))
    np.testing.assert_array_equal(ops.steps(X.numpy()), np.round(X.numpy()))
    for dtype in (torch.float16, torch.bfloat16):
        half = X.to(dtype)
        expected = torch.nn.functional.silu(half.float()).to(dtype)
        # The two may round to different neighbours.
        torch.testing.assert_close(ops.swish(half), expected, rtol=torch.finfo(dtype).eps, atol=0)


def test_gradients(ops):
    x, bias = X.clone().requires_grad_(), torch.randn(7, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: ops.swish(x, beta=2.0), x)
    assert torch.autograd.gradgradcheck(lambda x: ops.swish(x, beta=2.0), x)
    assert torch.autograd.gradgradcheck(ops.tanh_of, x)
    for by in ("none", "tanh"):
        assert torch.autograd.gradcheck(lambda x, bias, by=by: ops.gated(x, bias, by=by), (x, bias))
    (own,) = torch.autograd.grad(ops.fast_swish(x).sum(), x)
    torch.testing.assert_close(own, x.detach())
    (zero,) = torch.autograd.grad(ops.steps(x).sum(), x)
    assert torch.equal(zero, torch.zeros_like(x))


def test_derivatives_that_were_not_asked_for(ops):
    x, bias = X.clone().requires_grad_(), torch.randn(7, dtype=torch.float64)
    (grad,) = torch.autograd.grad(ops.gated(x, bias, by="tanh").sum(), x, create_graph=True)
    wanted = (
        "'defined::gated_backward_x' is not implemented: pass orders=2 to the definition of gated$"
    )
    with pytest.raises(NotImplementedError, match=wanted):
        grad.sum().backward()
    x = X.float().requires_grad_()
    with pytest.raises(NotImplementedError, match=r"pass orders=1 to the definition of turned$"):
        ops.turned(x, X.float()).sum().backward()
    names = {op.name: op for op in ops_of("defined")}
    assert names["turned"].gradient == ""


def test_a_missing_derivative_of_a_formula():
    """Another order would not help."""
    one = cudarelu.define("one(x: T[*]) -> y: T[*]", "y = Exp(x)", gradient="", **SMALL)
    header = "".join(one.library.headers().values())
    assert "orders=" not in header


def test_the_derivatives_that_were_asked_for(ops):
    names = {op.name: op for op in ops_of("defined")}
    assert {"swish_backward", "swish_backward_backward", "gated_backward_x"} <= names.keys()
    assert names["gated_backward_x"].gradient == ""
    # tanh's reads y, which is there, in place of x
    assert names["tanh_of"].gradient == "x = tanh_of_backward(grad_y, y)"
    # The gradient of a row is summed; that of a sum is grad_y itself.
    assert "bias = cudarelu::sum_rows(" in names["gated"].gradient


def test_the_gradient_of_one_label_has_nothing_of_another(ops):
    x = torch.full((3,), 60.0, requires_grad=True)  # exp(2 x) overflows
    (grad,) = torch.autograd.grad(ops.grown(x).sum(), x)
    torch.testing.assert_close(grad, x.detach().exp())
    (grad,) = torch.autograd.grad(ops.grown(x / 4, by="exp_of_2").sum(), x)
    torch.testing.assert_close(grad, (x.detach() / 2).exp() / 2)


@pytest.mark.parametrize("leading", [(), (1,), (3,), (2, 3), (0,)])
@pytest.mark.parametrize("rows", [(1, 1), (5, 7), (64, 16), (3, 0)])
def test_rows_of_several_dimensions(ops, leading, rows):
    x, b = torch.randn(*leading, *rows), torch.randn(rows)
    assert torch.equal(ops.turned(x, b), x * b - b)
    assert torch.equal(ops.turned(x.mT.contiguous().mT, b), x * b - b)


def test_one_plus_erf_does_not_cancel_out(ops):
    x = torch.linspace(-8, 8, 1601)
    wide = x.double()
    exact = wide * torch.special.erfc(-wide / math.sqrt(2)) / 2
    torch.testing.assert_close(ops.own_gelu(x).double(), exact, rtol=1e-3, atol=1e-12)
    torch.testing.assert_close(ops.own_gelu(wide), exact, rtol=1e-13, atol=1e-13)


def test_the_same_numbers_as_ops_of_this_library(ops):
    # By a quotient, as in other functions, 1.5 % of these numbers would differ by a unit.
    x = torch.linspace(-10, 10, 10_001).requires_grad_()
    y, own = ops.tanh_of(x), cudarelu.tanh(x)
    assert torch.equal(y, own)
    grad = torch.randn_like(y)
    (a,), (b,) = torch.autograd.grad(y, x, grad), torch.autograd.grad(own, x, grad)
    assert torch.equal(a, b)


def test_every_host(made, ops, tmp_path):
    swish = ops.swish
    model = torch.nn.Sequential(torch.nn.Linear(7, 7), cudarelu.nn.Op(swish, beta=2.0)).eval()
    x = X.float()
    expected = model(x).detach()
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), expected)
    path = tmp_path / "model.onnx"
    cudarelu.onnx.export(model, (x,), path, input_names=["x"])
    torch.testing.assert_close(cudarelu.ort.Session(path, "cpu")(x), expected)
    # Without the library: the definition in the file is the op.
    plain = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(plain.run(None, {"x": x.numpy()})[0], expected, rtol=1e-5, atol=1e-6)
    module = made.build(tmp_path / "libdefined.so", cuda=False)
    np.save(tmp_path / "x.npy", x.numpy())
    output = succeed(path, "--library", module, "--input", f"x={tmp_path / 'x.npy'}")
    assert "defined::Swish on CPUExecutionProvider" in output
    assert swish is pickle.loads(pickle.dumps(swish))


def test_an_op_of_its_own():
    """It is compiled when it is first called, in a module whose name has a digest of the op."""

    @cudarelu.define("doubled(x: T[*]) -> y: T[*]", **SMALL)
    def doubled(x):
        """2 x."""
        return 2 * x

    assert doubled.__doc__ == "2 x."
    assert doubled.library._module is None
    y = torch.compile(lambda x: doubled(x) + 1, backend="eager", fullgraph=True)(X)
    torch.testing.assert_close(y, 2 * X + 1)
    name = doubled.library.name
    assert name.startswith("doubled_")
    assert getattr(torch.ops, name).doubled(X).equal(2 * X)
    assert pickle.loads(pickle.dumps(doubled)) is doubled.function()
    assert "doubled" in repr(cudarelu.nn.Op(doubled))
    with pytest.raises(RuntimeError, match="is loaded: it takes no more ops"):
        doubled.library.add_sources(__file__)


@pytest.mark.slow
def test_sources_beside_definitions(tmp_path):
    scaffold = ROOT / "python/cudarelu/scaffold/src"
    with cudarelu.Library("my_mixed") as mixed:
        cudarelu.define(
            "half(x: T[*]) -> y: T[*]", "h = Constant<value_float = 0.5>() y = Mul(x, h)", **SMALL
        )
    text = (scaffold / "swish.h").read_text().replace("namespace my", "namespace my_mixed")
    (tmp_path / "swish.h").write_text(text)
    mixed.add_sources(tmp_path / "swish.h")
    module = mixed.load(cuda=False)
    assert [op.name for op in module.ops()] == ["half", "half_backward", "swish", "swish_backward"]
    torch.testing.assert_close(module.half(X), X / 2)
    with pytest.raises(FileNotFoundError, match="there is no source"):
        cudarelu.Library("another").add_sources(tmp_path / "none.h")


def test_a_saved_library(made, tmp_path):
    """The project of `python -m cudarelu new`, with these sources and without its example."""
    folder = tmp_path / "my_ops"
    files = made.save(folder)
    sources = sorted(each.name for each in files if each.parent.name == "src")
    names = ("fast_swish", "gated", "grown", "own_gelu", "steps", "swish", "tanh_of", "turned")
    assert sources == [f"{name}.h" for name in names]
    text = "".join((folder / each).read_text() for each in files)
    assert "NAMESPACE defined SOURCES\n  src/swish.h\n  src/gated.h" in text
    assert "| `src/steps.h` |" in text
    assert not re.search(r"example\.py|make( \w+)* example|count_above", text)
    with pytest.raises(FileExistsError, match="exists already"):
        made.save(folder)


@pytest.mark.slow
def test_the_command(tmp_path, capsys):
    file = tmp_path / "ops.py"
    file.write_text(
        "import cudarelu\n"
        "with cudarelu.Library('tripled') as library:\n"
        "    cudarelu.define('triple(x: T[*]) -> y: T[*]', 'k = Constant<value_float = 3.0>() "
        "y = Mul(x, k)', dtypes=['float32'])\n"
    )
    output = tmp_path / "libtripled.so"
    command = [sys.executable, "-m", "cudarelu", "build", file, "-o", output, "--cpu-only"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, f"wrote {output}\n"), done.stderr
    module = cudarelu.load_library(output)
    assert module.built_for == "the CPU"
    assert module.triple(X.float()).equal(3 * X.float())
    file.write_text("import cudarelu\n")
    assert main(["build", str(file), "-o", str(output)]) == 2
    assert f"{file} must have one cudarelu.Library: it has none" in capsys.readouterr().err


def test_a_folder_of_cpp_sources_is_not_a_library_in_python(tmp_path, capsys):
    (tmp_path / "swish.h").write_text("#pragma once\n")
    for path in (tmp_path, tmp_path / "swish.h"):
        assert main(["build", str(path), "-o", str(tmp_path / "libswish.so")]) == 2
        message = f"error: {path} is not a Python file: ops in C++ are built by cmake"
        assert capsys.readouterr().err.startswith(message)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("return x * undefined", ":5: NameError: name 'undefined' is not defined"),
        ("if x > 0: return x", ":5: the definition of an op cannot branch on a value: use"),
        ("return (", ":5: SyntaxError: '(' was never closed\n"),
        (
            "import wrong_kernels",
            ":5: SyntaxError: '(' was never closed (wrong_kernels.py, line 2)\n",
        ),
        ("assert False", ":5: AssertionError\n"),
    ],
)
def test_the_command_names_the_line_of_an_exception(tmp_path, capsys, body, message):
    file = tmp_path / "ops.py"
    (tmp_path / "wrong_kernels.py").write_text("\nx = (\n")
    file.write_text(
        "import cudarelu\n"
        "with cudarelu.Library('wrong') as library:\n"
        "    @cudarelu.define('f(x: T[*]) -> y: T[*]')\n"
        "    def f(x):\n"
        f"        {body}\n"
    )
    assert main(["build", str(file), "-o", str(tmp_path / "libwrong.so")]) == 2
    assert capsys.readouterr().err.startswith(f"error: {file}{message}")


def test_constants_that_python_takes_for_equal():
    """True and 1.0, 0.0 and -0.0."""
    cudarelu.define("f(x: T[*]) -> y: T[*]")(lambda x: where(where(x > 0, True, x < -1), x, 0.0))
    made = cudarelu.define("f(x: T[*]) -> y: T[*]")(lambda x: where(x > 0, 1 / (1 + x), -0.0))
    (header,) = made.library.headers().values()
    assert "T(1.0)" in header
    assert "T(-0.0)" in header


def test_shared_parts_are_met_once():
    @cudarelu.define("f(x: T[*]) -> y: T[*]", orders=2)
    def f(x):
        for _ in range(30):
            x = tanh(x) * x
        for _ in range(400):
            x = x + 1.0
        return x

    (header,) = f.library.headers().values()
    assert header.count("onnx::tanh") == 30 + 30 + 30


def test_names():
    with cudarelu.Library("again") as again:
        with again:
            cudarelu.define("conv_1(T: T[*], T_: T[*]) -> y: T[*]", "y = Add(T, T_)", orders=3)
        with pytest.raises(ValueError, match="an op conv_1, which is Conv1 in ONNX, as conv1 is"):
            cudarelu.define("conv1(x: T[*]) -> y: T[*]", "y = Neg(x)")
        cudarelu.define("sine(x: T[*]) -> y: T[*]", "y = Sin(x)", orders=4)
    assert "operator()(T T_, T T__)" in again.headers()["conv_1"]
    alone = cudarelu.define("f(x: T[*]) -> y: T[*]", "y = Neg(x)")
    assert alone.library is not again
    assert copy.deepcopy(alone) is alone


def test_bounds_that_are_inputs(ops):
    """They have gradients."""
    made = cudarelu.define("f(x: T[*, c], low: T[c]) -> y: T[*, c]")(lambda x, low: clip(x, low))
    assert "low = cudarelu::sum_rows(" in next(iter(made.library.headers().values()))


def branches(x):
    return x if x > 0 else -x


@pytest.mark.parametrize(
    ("signature", "definition", "error", "message"),
    [
        (
            "f(x: T[*]) -> y: T[*]",
            "a = Relu(x)\ny = Softmax(a)",
            ValueError,
            "f: line 2 of the definition: Softmax is not an elementwise operator",
        ),
        (
            "f(x: T[*]) -> y: T[*]",
            "y = Swosh(x)",
            ValueError,
            "f: line 1 of the definition: Swosh is not an operator of ONNX",
        ),
        ("f(x: T[*]) -> y: T[*]", "y = Relu(", ValueError, "f: the definition cannot be parsed"),
        ("f(x: T[*]) -> y: T[*]", "z = Relu(x)", ValueError, "the definition has no value y"),
        ("f(x: T[*]) -> y: T[*]", "z = Relu(w)\ny = Neg(z)", ValueError, "is not defined"),
        (
            "f(x: T[*]) -> y: T[*]",
            "z = Relu(x)\ny = Not(z)",
            ValueError,
            "f: line 2 of the definition: operand 1 of Not is real, but must be bool",
        ),
        ("f(x: T[*]) -> y: T[*]", "y = IsNaN(x)", ValueError, "the result is bool"),
        (
            "f(x: T[*]) -> y: T[*]",
            "y = Elu<beta = 1.0>(x)",
            ValueError,
            "Elu has no attribute beta",
        ),
        (
            "f(x: T[*]) -> y: T[*]",
            "y = Constant<value_float = 1.0>()",
            ValueError,
            "does not depend on an input of its shape",
        ),
        (
            "f(x: T[*]) -> y: T[*]",
            "k = Constant<value_floats = [1.0, 2.0]>() y = Mul(x, k)",
            ValueError,
            "constant of several elements",
        ),
        (
            "f(x: T[*], b: T[m, c]) -> y: T[*]",
            "y = Add(x, b)",
            ValueError,
            r"f: b must be T\[\*\] to broadcast to the output",
        ),
        (
            "f(x: T[*, r, c], b: T[r, c], d: T[c]) -> y: T[*, r, c]",
            "z = Add(x, b) y = Add(z, d)",
            ValueError,
            "f: b and d must have the same number of dimensions",
        ),
        (
            "f(x: T[*, r, c], b: T[r, 1], d: T[1, 1]) -> y: T[*, r, c]",
            "z = Add(x, b) y = Add(z, d)",
            ValueError,
            "f: b and d must have the same number of last dimensions of 1",
        ),
        (
            "f(x: T[*, r, c], b: T[1, c]) -> y: T[*, r, c]",
            "y = Add(x, b)",
            ValueError,
            r"f: b must be T\[\*, r, c\] or T\[r, c\] or T\[c\] to broadcast to",
        ),
        (
            "f(x: T[*, r, c], b: T[r, c]) -> y: T[*, r, c]",
            "y = Add(x, b)",
            ValueError,
            r"no gradient in b, T\[r, c\]: declare it as T\[\*, r, c\],",
        ),
        ("f(x: T[*]) -> (y: T[*], z: T[*])", "y = Neg(x)", ValueError, "has one output"),
        ("f(x: T[*], n: i32[*]) -> y: T[*]", "y = Neg(x)", ValueError, "n must be a required T"),
        (
            "f(x: T[*, c], m: broadcast T[*, c]) -> y: T[*, c]",
            "y = Add(x, m)",
            ValueError,
            "m must be a required T",
        ),
        (
            "f(x: T[*], *, a: bool = true) -> y: T[*]",
            "y = Neg(x)",
            ValueError,
            "a must be a float",
        ),
        ("f(x: T[*], *, a: float?) -> y: T[*]", "y = Neg(x)", ValueError, "a must be a float"),
        ("f(x: T[*], *, n: int = 1) -> y: T[*]", "y = Neg(x)", ValueError, "n must be a float or"),
        ("f(x: T[*)", "y = Neg(x)", ValueError, "column"),
        (
            "f(x: T[*]) -> y: T[*]",
            branches,
            TypeError,
            r"test_define.py:\d+: the definition of an op cannot branch on a value",
        ),
        ("f(z: T[*]) -> y: T[*]", relu, TypeError, "the function takes"),
        ("f(float: T[*]) -> y: T[*]", "y = Exp(float)", ValueError, "f: float is a type of ONNX"),
        ("f(x: T[*]) -> seq: T[*]", "seq = Exp(x)", ValueError, "f: seq is a type of ONNX"),
        ("f(x: T[*]) -> y: T[*]", lambda x: 3, TypeError, "returned 3, not a symbolic value"),
        ("f(x: T[*]) -> y: T[*]", lambda x: x + "1", TypeError, "neither a number nor"),
        (
            "f(x: T[*]) -> y: T[*]",
            lambda x: torch.sigmoid(x),
            TypeError,
            "PyTorch's sigmoid does not take a symbolic value: cudarelu.elementwise has",
        ),
        ("f(x: T[*]) -> y: T[*]", lambda x: np.exp(x), TypeError, "'Value' does not support u"),
        (
            "f(x: T[*]) -> y: T[*]",
            lambda x: x.sigmoid(),
            AttributeError,
            "a symbolic value has no sigmoid: .* cudarelu.elementwise has the functions",
        ),
        (
            "f(x: T[*], *, by: a | b = a) -> y: T[*]",
            lambda x, by: where(by == "c", x, -x),
            ValueError,
            "'c' is not one of the labels a, b",
        ),
        (
            "f(x: T[*, c], w: T[c]) -> y: T[*, c]",
            "y = Exp(w)",
            ValueError,
            "does not depend on an input of its shape",
        ),
        ("f(x: T[*]) -> y: T[*]", "y = Exp(x, x)", ValueError, "line 1 .* Exp needs 1 operand$"),
        (
            "f(x: T[*]) -> y: T[*]",
            "y = Identity()",
            ValueError,
            "line 1 .* Identity needs 1 operand$",
        ),
        (
            "f(x: T[*]) -> y: T[*]",
            "y = CastLike()",
            ValueError,
            "line 1 .* CastLike needs 2 operands$",
        ),
        (
            "f(x: T[*]) -> y: T[*]",
            "y = Elu<alpha = [1.0, 2.0]>(x)",
            ValueError,
            "the attribute alpha of Elu must be a number",
        ),
        (
            "f(x: T[*]) -> y: T[*]",
            "z = Neg(x)\ny = Cast(z)",
            ValueError,
            "line 2 .* Cast needs the",
        ),
        (
            "f(x: T[*]) -> y: T[*]",
            "z = Constant()\ny = Add(x, z)",
            ValueError,
            "line 1 .* needs one",
        ),
        (
            "f(x: T[*]) -> y: T[*]",
            't = Constant<value_string = "t">()\ny = Add(x, t)',
            ValueError,
            "line 1 .* constants must be finite numbers",
        ),
        ("f(x: T[*]) -> y: T[*]", "y = Add(, x)", ValueError, "Add needs 2 operands"),
        ("f(x: T[*]) -> y: T[*]", "y = Celu<alpha = -0.5>(x)", ValueError, "must be positive"),
        (
            "f(x: T[*]) -> y: T[*]",
            lambda x: x + float("inf"),
            ValueError,
            "f: a constant of inf: constants must be finite",
        ),
        (
            "f(x: T[*]) -> y: T[*]",
            lambda x: leaky_relu(x, alpha=2 * x),
            TypeError,
            "alpha of LeakyRelu must be a number or an attribute",
        ),
        ("path(x: T[*]) -> y: T[*]", "y = Neg(x)", ValueError, "modules have an attribute"),
        ("f(grad_y: T[*]) -> y: T[*]", "y = Sigmoid(grad_y)", ValueError, "the output's gradient"),
    ],
)
def test_bad_definitions(signature, definition, error, message):
    def define():
        if isinstance(definition, str):
            cudarelu.define(signature, definition)
        else:
            cudarelu.define(signature)(definition)

    with pytest.raises(error, match=message):
        define()


def test_false_is_not_zero():
    text = """z = Constant<value_float = 0.0>() p = Constant<value = bool {0}>()
              s = Add(x, z) y = Where(p, z, s)"""
    f = cudarelu.define("f(x: T[*]) -> y: T[*]", text)
    assert "bool {0}" in f.definition


def test_bad_libraries():
    with pytest.raises(ValueError, match="aten"):
        cudarelu.Library("aten")
    with cudarelu.Library("twice") as twice:
        cudarelu.define("f(x: T[*]) -> y: T[*]", "y = Neg(x)")
        with pytest.raises(ValueError, match="the library twice has an op f already"):
            cudarelu.define("f(x: T[*]) -> y: T[*]", "y = Abs(x)")
    assert list(twice.headers()) == ["f"]
    with pytest.raises(ValueError, match="the library empty has no ops"):
        cudarelu.Library("empty").load()
    with pytest.raises(ValueError, match="orders must be 0, 1, 2 or more, not -1"):
        cudarelu.define("f(x: T[*]) -> y: T[*]", "y = Neg(x)", orders=-1)
    with pytest.raises(ValueError, match="functor must be the body"):
        cudarelu.define("f(x: T[*]) -> y: T[*]", "y = Neg(x)", functor="")
    with pytest.raises(ValueError, match="dtypes must be a list of dtypes, not"):
        cudarelu.define("f(x: T[*]) -> y: T[*]", "y = Neg(x)", dtypes=[])
    with pytest.raises(FileNotFoundError, match="there is no folder"):
        twice.build("nowhere/libtwice.so")
    with pytest.raises(ValueError, match="no dtype int8"):
        cudarelu.define("f(x: T[*]) -> y: T[*]", "y = Neg(x)", dtypes=["int8"])


@pytest.mark.slow
def test_the_command_on_what_does_not_compile(tmp_path, capsys):
    file = tmp_path / "ops.py"
    file.write_text(
        "import cudarelu\n"
        "with cudarelu.Library('uncompiled') as library:\n"
        "    cudarelu.define('f(x: T[*]) -> y: T[*]', 'y = Neg(x)', functor='return missing;')\n"
    )
    output = tmp_path / "libuncompiled.so"
    assert main(["build", str(file), "-o", str(output), "--cpu-only"]) == 2
    first = capsys.readouterr().err.splitlines()[0]
    assert re.search(r"^error: uncompiled: \S+/f\.h:\d+:\d+: error: .missing. was not", first)
    assert not output.exists()


def test_what_does_not_compile():
    bad = cudarelu.define("f(x: T[*]) -> y: T[*]", "y = Neg(x)", functor="return missing;")
    with pytest.raises(RuntimeError, match=r"f\.h[:(]\d+.*error: .*missing"):
        bad(X)


def test_the_signature_of_the_function():
    op = cudarelu.define("f(x: T[*], *, q: float = 1.0) -> y: T[*]")(lambda x, q: x * q)
    assert str(inspect.signature(op)) == "(x, *, q=1.0)"


def test_a_decorator_without_a_signature():
    with pytest.raises(TypeError, match=r"^define takes a signature: @cudarelu\.define\("):

        @cudarelu.define
        def f(x):
            return x


def test_functions_of_elementwise_need_no_numbers():
    assert "sigmoid" in repr(sigmoid)
    with pytest.raises(TypeError, match="symbolic value is not a number"):

        @cudarelu.define("f(x: T[*]) -> y: T[*]")
        def f(x):
            return float(x)
