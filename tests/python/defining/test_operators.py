"""Each elementwise operator of ONNX: its C++ and its derivative, by the operator's definition."""

from __future__ import annotations

import dataclasses
import itertools
import re
import shutil
import subprocess

import numpy as np
import onnx.defs
import pytest
import torch

import cudarelu.elementwise
from cudarelu._onnx.evaluator import evaluate
from cudarelu._sdk import SDK
from cudarelu._table import OpInfo
from cudarelu.defining.operators import OPERATORS
from cudarelu.defining.ops import Draft, Functors, declared, defined, with_gradients
from cudarelu.defining.reading import read_text
from cudarelu.inductor import in_torch
from cudarelu.testing.environment import torch_cuda_missing

pytestmark = pytest.mark.xdist_group("operators")  # compiled once

NUMBERS = (0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, 3.0, 0.3, -0.7, 1e-6, 12.0, -12.0)
SPECIAL = (*NUMBERS, float("inf"), float("-inf"), float("nan"))
ATTRIBUTES = {"Elu": "alpha = 0.5", "IsInf": "detect_negative = 0", "LeakyRelu": "alpha = 0.25"}
ATTRIBUTES |= {"HardSigmoid": "alpha = 0.25, beta = 0.375", "ThresholdedRelu": "alpha = 0.25"}
ATTRIBUTES |= {"Mod": "fmod = 1", "Shrink": "bias = 0.25, lambd = 0.5"}
# Further definitions, whose C++ is not that of an operator.
FURTHER = {
    "Cast": """zero = Constant<value_float = 0.0>() least = Constant<value_float = -9.0>()
        most = Constant<value_float = 9.0>() p = Equal(a, a) b = Where(p, a, zero)
        c = Clip(b, least) d = Min(c, most) t = Cast<to = 7>(d) y = CastLike(t, a)""",
    "Unclipped": "y = Clip(a)",
}
LOGICAL = {"And": "And(p, q)", "Or": "Or(p, q)", "Xor": "Xor(p, q)", "Not": "Not(p)"}
# Kinks, where the derivative depends on the side, and bounds of domains.
AWAY_FROM_KINKS = (0.37, -0.61, 0.13, 0.77, -0.29)
ABOVE_ONE = (1.37, 2.61, 3.3)


def body(op_type: str) -> str:
    """A definition with the operator, of inputs a and b."""
    if op_type in FURTHER:
        return FURTHER[op_type]
    if op_type in LOGICAL:
        operands = "one = Constant<value_float = 1.0>() p = Less(a, b) q = Less(b, one)"
        return f"{operands} t = {LOGICAL[op_type]} y = CastLike(t, a)"
    if op_type == "Clip":
        bounds = "low = Constant<value_float = -0.5>() high = Constant<value_float = 2.0>()"
        return f"{bounds} y = Clip(a, low, high)"
    if op_type == "Where":
        return "c = Less(a, b) y = Where(c, a, b)"
    schema = onnx.defs.get_schema(op_type)
    operands = "a, b" if schema.min_input == 2 or op_type in ("Max", "Min") else "a"
    attributes = f"<{ATTRIBUTES[op_type]}>" if op_type in ATTRIBUTES else ""
    if OPERATORS[op_type].result == "bool":
        return f"t = {op_type}{attributes}({operands}) y = CastLike(t, a)"
    return f"y = {op_type}{attributes}({operands})"


def draft(op_type: str) -> Draft:
    text = body(op_type)
    inputs = [name for name in "ab" if re.search(rf"[(,] ?{name}\b", text)]
    inputs = inputs[:1] if op_type in FURTHER else inputs
    name = "op_" + op_type.lower()
    signature = f"{name}({', '.join(f'{each}: T[*]' for each in inputs)}) -> y: T[*]"
    return drafted(signature, text)


def drafted(signature: str, definition: str) -> Draft:
    op = declared("operators", signature, ("float32", "float64"), "An operator.")
    return defined(op, read_text(dataclasses.replace(op, definition=definition)))


DRAFTS = {op_type: draft(op_type) for op_type in (*OPERATORS, *FURTHER)}


@pytest.mark.parametrize(
    ("inputs", "definition", "expected"),
    [
        ("x: T[*]", "y = Tanh(x)", True),
        ("x: T[*]", "t = Tanh(x) y = Mul(t, x)", False),
        ("x: T[*]", "t = Add(x, x) y = Tanh(t)", False),
        ("x: T[*]", "t = Tanh(x) y = Tanh(t)", False),
        ("x: T[*], z: T[*]", "t = Tanh(x) y = Mul(t, z)", False),
        ("x: T[*], z: T[*]", "y = Tanh(z)", False),
        ("x: T[*], *, a: float", "y = Tanh(x)", False),
    ],
)
def test_only_tanh_of_an_input_is_computed_in_pieces(inputs, definition, expected):
    one = drafted(f"op_of({inputs}) -> y: T[*]", definition)
    assert ("tanh_piecewise" in Functors([one]).header("operators")) == expected
    with_functor = dataclasses.replace(one, functor="return x;")
    assert "tanh_piecewise" not in Functors([with_functor]).header("operators")


def arguments(op: OpInfo, values: tuple[float, ...], dtype: str) -> dict[str, np.ndarray]:
    grid = np.array(list(itertools.product(values, repeat=len(op.inputs))), dtype)
    return {each.name: grid[:, i] for i, each in enumerate(op.inputs)}


def _cpp(number: np.floating) -> str:
    named = {"inf": "INFINITY", "-inf": "-INFINITY", "nan": "NAN"}
    return named.get(str(number), repr(float(number)))


@pytest.fixture(scope="module")
def computed(tmp_path_factory) -> dict[tuple[str, str], np.ndarray]:
    """The values of the functors, by operator and dtype, from one C++ program."""
    if shutil.which("g++") is None:
        pytest.skip("there is no g++")
    folder = tmp_path_factory.mktemp("operators")
    (folder / "operators.h").write_text(Functors(list(DRAFTS.values())).header("operators"))
    calls = []
    for op_type, each in DRAFTS.items():
        for dtype, kind in (("float32", "float"), ("float64", "double")):
            inputs = list(arguments(each.op, SPECIAL, dtype).values())
            arrays = "".join(
                f"const {kind} x{i}[] = {{{', '.join(map(_cpp, column))}}};"
                for i, column in enumerate(inputs)
            )
            names = ", ".join(f"x{i}[i]" for i in range(len(inputs)))
            calls.append(
                f'{{{arrays} std::printf("{op_type} {dtype}"); '
                f"for (int i = 0; i < {len(inputs[0])}; ++i) "
                f'std::printf(" %a", double(operators::{each.op.onnx.op_type}{{}}({names}))); '
                'std::printf("\\n");}'
            )
    program = f'#include "operators.h"\n#include <cstdio>\nint main() {{{" ".join(calls)}}}'
    (folder / "main.cpp").write_text(program)
    flags = ["-std=c++20", "-O1", "-ffp-contract=off", f"-I{SDK / 'include'}"]
    command = ["g++", *flags, "-o", str(folder / "main"), str(folder / "main.cpp")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[:3000]
    output = subprocess.run([folder / "main"], capture_output=True, text=True, check=True).stdout
    lines = [line.split() for line in output.splitlines()]
    return {(name, dtype): np.array(list(map(float.fromhex, rest))) for name, dtype, *rest in lines}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("op_type", DRAFTS)
def test_values(op_type, dtype, computed):
    """All pairs of numbers, with NaN, infinities and both zeros."""
    op = DRAFTS[op_type].op
    (expected,) = evaluate(op, arguments(op, SPECIAL, dtype), {})
    actual = computed[op_type, dtype]
    expected = expected.astype(np.float64)
    tolerance = 2e-6 if dtype == "float32" else 1e-14
    np.testing.assert_allclose(actual, expected, rtol=tolerance, atol=tolerance)
    zero = expected == 0
    differs = np.signbit(actual[zero]) != np.signbit(expected[zero])
    # onnx.reference makes 0 of -0 in Relu, ONNX Runtime does not.
    assert not differs.any() or op_type == "Relu", arguments(op, SPECIAL, dtype)


@pytest.mark.parametrize("op_type", DRAFTS)
def test_in_torch(op_type):
    """The definition in torch's operators, which Inductor fuses and the benchmark compares with."""
    op = DRAFTS[op_type].op
    inputs = arguments(op, SPECIAL, "float64")
    (expected,) = evaluate(op, inputs, {})
    actual = in_torch(op)(*map(torch.from_numpy, inputs.values()))
    assert actual.dtype == torch.float64
    np.testing.assert_allclose(actual.numpy(), expected, rtol=1e-14, atol=1e-14)


def differentiable(op_type: str) -> bool:
    return OPERATORS[op_type].gradient is not None


def test_the_derivative_of_a_power_of_0_in_its_exponent():
    """As PyTorch has it: 0 from 0 on, and otherwise y log(a)."""
    op, *backward = with_gradients(DRAFTS["Pow"], 1)
    formula = dict(each.split(" = ") for each in op.op.gradient.split("; "))["b"]
    called = next(each.op for each in backward if formula.startswith(each.op.name + "("))
    a, b = np.zeros(4), np.array([-1.0, 0.0, 2.0, np.nan])
    exponents = torch.tensor(b, requires_grad=True)
    y = torch.zeros(4, dtype=torch.float64) ** exponents
    (expected,) = torch.autograd.grad(y.sum(), exponents)
    known = {"a": a, "b": b, "grad_y": np.ones(4), "y": y.detach().numpy()}
    (actual,) = evaluate(called, {each.name: known[each.name] for each in called.inputs}, {})
    np.testing.assert_array_equal(actual, expected.numpy())


@pytest.mark.parametrize("op_type", [*filter(differentiable, OPERATORS)])
def test_derivatives(op_type):
    """The gradient, evaluated from its definition, is the difference quotient."""
    op, *backward = with_gradients(DRAFTS[op_type], 1)
    values = ABOVE_ONE if op_type in ("Acosh", "Log", "Pow", "Sqrt") else AWAY_FROM_KINKS
    if op_type == "Mod":
        values = (0.7, 2.3, -1.1)
    inputs = arguments(op.op, values, "float64")
    distinct = inputs["a"] != inputs["b"] if "b" in inputs else np.True_
    formulas = dict(each.split(" = ") for each in op.op.gradient.split("; "))
    assert list(formulas) == list(inputs)
    (y,) = evaluate(op.op, inputs, {})
    for name, formula in formulas.items():
        step = 1e-6
        (above,) = evaluate(op.op, inputs | {name: inputs[name] + step}, {})
        (below,) = evaluate(op.op, inputs | {name: inputs[name] - step}, {})
        slope = (above - below) / (2 * step)
        grad = np.linspace(0.5, 2, y.size)
        if formula == "grad_y":
            gradient = grad
        else:
            called = next(each.op for each in backward if formula.startswith(each.op.name + "("))
            known = inputs | {"grad_y": grad, "y": y}
            given = {each.name: known[each.name] for each in called.inputs}
            (gradient,) = evaluate(called, given, {})
        np.testing.assert_allclose(
            distinct * gradient, distinct * grad * slope, rtol=1e-6, atol=1e-8
        )


@pytest.mark.parametrize("op_type", ["Elu", "HardSigmoid", "LeakyRelu", "ThresholdedRelu"])
def test_attributes_of_the_op(op_type):
    """An operator's attribute is the op's, in the reference and in torch's operators."""
    given, fixed = (
        declared("operators", f"f(x: T[*]{more}) -> y: T[*]", ("float64",), "An operator.")
        for more in (", *, a: float = 0.75", "")
    )
    given = dataclasses.replace(given, definition=f"y = {op_type}<alpha: float = @a>(x)")
    fixed = dataclasses.replace(fixed, definition=f"y = {op_type}<alpha = 0.25>(x)")
    x = np.array(SPECIAL)
    (expected,) = evaluate(fixed, {"x": x}, {})
    (actual,) = evaluate(given, {"x": x}, {"a": 0.25})
    np.testing.assert_array_equal(actual, expected)
    np.testing.assert_allclose(in_torch(given)(torch.from_numpy(x), a=0.25), expected, rtol=1e-14)


def test_functions():
    """Those for Python functions have the operators' names."""
    for name in cudarelu.elementwise.__all__:
        assert callable(getattr(cudarelu.elementwise, name))
    assert {"hard_swish", "is_nan", "prelu", "where"} <= {*cudarelu.elementwise.__all__}


@pytest.fixture(scope="module")
def on_cuda() -> cudarelu.OpModule:
    """An op for each operator of one operand, in float16 and bfloat16."""
    with cudarelu.Library("halves") as library:
        for op_type, each in DRAFTS.items():
            if len(each.op.inputs) == 1:
                dtypes = ("float16", "bfloat16")
                cudarelu.define(each.op.signature, body(op_type), dtypes=dtypes, orders=0)
    return library.load()


@pytest.mark.skipif(bool(torch_cuda_missing()), reason=torch_cuda_missing() or "")
@pytest.mark.parametrize(("dtype", "digits"), [(torch.float16, 11), (torch.bfloat16, 8)])
@pytest.mark.parametrize("op_type", [name for name in DRAFTS if len(DRAFTS[name].op.inputs) == 1])
def test_halves_on_cuda(op_type, dtype, digits, on_cuda):
    """Every number of 16 bits: the approximate functions are precise enough to be rounded."""
    op = DRAFTS[op_type].op
    x = torch.arange(-(1 << 15), 1 << 15).to(torch.int16).view(dtype)
    (expected,) = evaluate(op, {op.inputs[0].name: x.double().numpy()}, {})
    actual = getattr(on_cuda, op.name)(x.cuda()).cpu().double().numpy()
    expected = np.asarray(expected, np.float64)
    largest = torch.finfo(dtype).max
    is_huge = np.abs(expected) > largest
    assert np.array_equal(np.isnan(actual), np.isnan(expected))
    assert (np.abs(actual[is_huge]) >= largest).all()
    assert (np.sign(actual[is_huge]) == np.sign(expected[is_huge])).all()
    small = 2.0**-22 if op_type in ("Sin", "Cos", "Tan") else torch.finfo(dtype).tiny * 2.0**-digits
    if op_type == "Sigmoid":
        small = max(small, 2.0**-126)  # exp(89) overflows in float32
    rest = ~is_huge & ~np.isnan(expected)
    allowed = np.abs(expected) * (2.0**-digits + 2.0**-17) + small
    worst = np.argmax(np.where(rest, np.abs(actual - expected) / allowed, 0))
    assert abs(actual[worst] - expected[worst]) <= allowed[worst], x[worst]
