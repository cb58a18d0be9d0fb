"""What kernels compute in place of a definition: fewer operations with the same meaning."""

from __future__ import annotations

import math

import pytest
import torch

import cudarelu
from cudarelu._onnx.expressions import Attribute, Input
from cudarelu.defining.emit import functor_body
from cudarelu.defining.simplify import simplified
from cudarelu.defining.symbolic import Value
from cudarelu.elementwise import erf, exp, where
from cudarelu.testing.environment import torch_cuda_missing

pytestmark = pytest.mark.xdist_group("simplified")  # compiled once

X, G = Value(Input("x")), Value(Input("g"))
ROOT = math.sqrt(2)


def body(value: Value) -> list[str]:
    return functor_body(value.expression, ["x", "g"])


@pytest.mark.parametrize(
    "gelu",
    [
        X * 0.5 * (1.0 + erf(X / ROOT)),
        0.5 * (X * (erf(X * (1 / ROOT)) + 1.0)),
        (X / 2.0) * (1.0 + erf(X / 1.4142135623730951)),
        -(X * -0.5 * (1.0 + erf(X / ROOT))),
    ],
)
def test_every_way_to_write_gelu_is_one_product(gelu):
    first, last = body(gelu)
    assert first == "const T normal_cdf = onnx::normal_cdf(x);"
    assert last in ("return x * normal_cdf;", "return normal_cdf * x;")


def test_the_gradient_of_gelu_is_a_product_with_the_gradient():
    q = X / ROOT
    cdf = G * 0.5 * (1.0 + erf(q))
    density = G * 0.5 * X * (2 / math.sqrt(math.pi) * exp(-(q * q))) / ROOT
    lines = body(cdf + density)
    assert lines[-1] == "return g * add;"
    assert [line for line in lines if "onnx::" in line] == [
        "const T normal_cdf = onnx::normal_cdf(x);",
        "const T exp2 = onnx::exp2(mul2);",
    ]


@pytest.mark.parametrize(
    ("value", "function"),
    [
        (exp(X * X), "onnx::exp("),
        (exp(-(X * X * X)), "onnx::exp("),
        (exp(-(X * G)), "onnx::exp("),
        (exp(-X), "onnx::exp("),
        (2.0 + erf(X), "onnx::erf("),
        (exp(-2.0 * (X * X)), "onnx::exp2("),
        (exp(-((X * G) * (X * G)) / 2.0), "onnx::exp2("),
    ],
)
def test_exponentials_of_squares(value, function):
    assert function in "\n".join(body(value))


def test_products_without_such_a_function_stay():
    for value in (
        *(X * 2.0 * 3.0, X * G + X * 2.0, -(X * -1.0), X * exp(G) * 2.0 + X * 2.0),
        *(exp(-(X * X) / 0.0), exp(X * X * -1e30), exp(X / 0.0 * X), exp(-(0.0 * (X * X)))),
    ):
        assert simplified(value.expression) is value.expression


@pytest.fixture(scope="module")
def ops():
    with cudarelu.Library("simplified") as library:
        options = {"dtypes": ("float32", "float64")}
        signature = "{}(x: T[*], g: T[*]) -> y: T[*]"

        @cudarelu.define(signature.format("sum_of_exponentials"), **options)
        def sum_of_exponentials(x, g):
            return g * x * (3.0 * exp(-(x * x))) - 0.5 * (g * exp(-(x * x) / 2.0)) * x

        @cudarelu.define(signature.format("cdf_and_exponential"), **options)
        def cdf_and_exponential(x, g):
            return g * (1.0 + erf(x / 3.0)) * 0.25 + x * g * exp(-(x / 3.0) * (x / 3.0)) * 7.0

        @cudarelu.define(signature.format("scaled"), **options)
        def scaled(x, g):
            return 4.0 * (x * (g * (1.0 + erf(x))))

    return library.load(cuda=not torch_cuda_missing())


def reference(name: str, x: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
    if name == "sum_of_exponentials":
        return g * x * (3 * (-x * x).exp() - 0.5 * (-x * x / 2).exp())
    if name == "cdf_and_exponential":
        return g * torch.special.erfc(-x / 3) * 0.25 + x * g * (-((x / 3) ** 2)).exp() * 7
    return 4 * (x * (g * torch.special.erfc(-x)))


@pytest.mark.parametrize("name", ["sum_of_exponentials", "cdf_and_exponential", "scaled"])
def test_values(ops, name):
    x = torch.linspace(-9, 9, 4097, dtype=torch.float64).repeat(3)
    g = torch.tensor([1.0, -1e-20, 1e20], dtype=torch.float64).repeat_interleave(4097)
    op = getattr(ops, name)
    exact = reference(name, x, g)
    torch.testing.assert_close(op(x, g), exact, rtol=1e-11, atol=0)
    # The sums have zeros, near which both terms are rounded.
    x, g = x.float(), g.float()
    exact = reference(name, x.double(), g.double())
    y = op(x, g).double()
    assert ((y - exact).abs() <= 1e-4 * exact.abs() + 1e-6 * g.abs()).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_limits(ops, dtype):
    large = torch.finfo(dtype).max
    x = torch.tensor([large, -large, 1e20, -1e20, 0.0, math.nan], dtype=dtype)
    one = torch.ones_like(x)
    nan = math.nan
    expected = torch.tensor([0, 0, 0, 0, 0, nan], dtype=dtype)
    torch.testing.assert_close(ops.sum_of_exponentials(x, one), expected, equal_nan=True)
    # No product overflows before the result does.
    expected = torch.tensor([large, 0, 1e20, 0, 0, nan], dtype=dtype)
    torch.testing.assert_close(ops.scaled(x, one / 8), expected, equal_nan=True)


@pytest.mark.parametrize(
    "value",
    [
        1.0 + where(X > 0.0, G, erf(X)),
        where(X > 0.0, 1.0 + G, 1.0 + erf(X)),
    ],
)
def test_an_erf_within_a_condition_does_not_cancel_out(value):
    assert "onnx::normal_cdf" in "\n".join(body(value))
    assert "onnx::erf" not in "\n".join(body(value))


def test_a_constant_that_is_nearly_one_stays_in_float64():
    """A model in float32 has rounded it, and a kernel in float32 rounds it to 1."""
    text = "\n".join(body(X * (1.0 + erf(X * 0.70710678))))
    assert "T(0.9999999" in text


def test_conditions_on_attributes_do_not_multiply_a_kernel():
    alpha = Value(Attribute("alpha"))
    y = X
    for n in range(12):
        y = y + where(alpha > float(n), X * (n + 2.0), G * (n + 1.0))
    assert len(body(y)) == 5 * 12


def test_shared_products_are_computed_once():
    z = X * (1.0 + erf(X))
    assert len(body(z * z * z)) <= 6
    w = X
    for _ in range(40):
        w = w * w
    assert len(body(w)) == 40
