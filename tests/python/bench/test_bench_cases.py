"""The cases of the benchmarks, and what is counted of them."""

from __future__ import annotations

import math

import pytest
import torch

from cudarelu.bench import contenders, rivals, suites
from cudarelu.bench.accuracy import Check
from cudarelu.bench.cases import Case, clones, leads, sized, streams, with_rows
from cudarelu.testing import TOLERANCE
from cudarelu.testing.reference import is_product
from support.bench import OPS
from support.cases import tier


@pytest.mark.parametrize("name", OPS)
def test_every_op_has_cases(name):
    measured = {point.suite for point in suites.points(suites.SUITES, [name])}
    assert "cpu-sizes" in measured
    assert not streams(OPS[name]) or "bandwidth" in measured
    assert not OPS[name].elementwise or "sizes" in measured


def test_no_case_of_the_cpu_is_larger_than_the_elements_of_its_suite():
    """A few dimensions of 1,024 each would take gigabytes."""
    cases = [point.case for point in suites.points(["cpu-sizes", "ort-cpu-sizes"])]
    assert max(case.elements for case in cases) == 1 << 26
    assert all(case.elements <= 1 << 22 for case in cases if not streams(case.op))


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        pytest.param(op.name, dtype, marks=tier(op.name, dtype))
        for op in OPS.values()
        for dtype in op.dtypes
    ],
)
def test_a_case_is_a_call(name, dtype):
    """The shapes of a case are those of the call, and the result is correct."""
    for case in (
        sized(OPS[name], dtype, 700, columns=50, device="cpu"),
        with_rows(OPS[name], dtype, 30, 40, device="cpu"),
    ):
        if not leads(OPS[name]) and not case.sizes.get("n", 0) > 40:
            continue
        inputs = case.inputs()
        outputs = contenders.CONTENDERS["cudarelu"](case)(inputs)()
        outputs = [outputs] if isinstance(outputs, torch.Tensor) else outputs
        for output, parameter in zip(outputs, case.op.outputs, strict=True):
            assert output.shape == case.shape(parameter)
            assert output.dtype == case.torch_dtype(parameter)
        check = Check(case, inputs)
        for contender in ("cudarelu", "torch") if dtype == "float32" else ("cudarelu",):
            bind = contenders.CONTENDERS[contender](check.case)
            if bind:
                error = check.error(bind(check.inputs))
                # Several products in turn add their errors.
                assert error <= TOLERANCE.get(dtype, 0) * (2 if is_product(OPS[name]) else 1)


def test_an_error_is_found():
    """Errors are found in the first and in the last row, and a NaN is an error."""
    case = with_rows(OPS["softmax"], "float32", 1000, 100, device="cpu")
    inputs = case.inputs()
    check = Check(case, inputs)
    right = torch.softmax(inputs[0], -1)
    assert check.error(lambda: right) < 1e-6
    for row in (0, -1):
        wrong = right.clone()
        wrong[row, 7] += right.max()
        assert check.error(lambda wrong=wrong: wrong) > 0.9
    wrong[0, 0] = math.nan
    with pytest.raises(ValueError, match="y is NaN"):
        check.error(lambda: wrong)


def test_bytes():
    """Each input that is read and each output counts once."""
    expected = {
        "relu": 2 * 32 * 64,
        "add": 3 * 32 * 64,
        "bias_relu": 2 * 32 * 64 + 64,
        "softmax_backward": 3 * 32 * 64,
        "sum_rows": 32 * 64 + 64,
        "expand_rows": 32 * 64 + 64,  # of `like`, only the shape is used
    }
    for name, elements in expected.items():
        assert with_rows(OPS[name], "float32", 32, 64).bytes == 4 * elements
    knn = Case(OPS["knn_query"], "float32", (), {"n": 100, "b": 4}, {"nsample": 5})
    assert knn.bytes == 4 * (100 * 3 + 4 + 2 * 100 * 5)


def test_operations():
    """Two for each term of a product, one for each element of another op's largest input."""
    products = [
        ("matmul", (3, 5), dict.fromkeys("mkn", 8)),
        ("linear_gelu", (3, 40), {"k": 8, "n": 8}),
        ("linear_weight_backward", (3, 40), {"k": 8, "n": 8}),
    ]
    for name, leading, sizes in products:
        case = Case(OPS[name], "float32", leading, sizes, {})
        assert case.operations == 2 * 15 * 8**3
    assert with_rows(OPS["bias_relu"], "float32", 32, 64).operations == 32 * 64
    sizes = dict.fromkeys(OPS["attention"].named_dimensions, 8)
    assert Case(OPS["attention"], "float32", (2,), sizes, {}).operations is None


def test_a_copy_moves_as_many_bytes_as_the_op():
    for name in ("relu", "softmax_backward", "bias_relu"):
        case = with_rows(OPS[name], "float16", 32, 65, device="cpu")
        copied = contenders.CONTENDERS["copy"](case)(case.inputs())()
        assert 0 <= 2 * copied.numel() * copied.itemsize - case.bytes < 16


def test_inputs():
    case = Case(OPS["knn_query"], "float32", (), {"n": 10, "b": 4}, {"nsample": 2}, "cpu")
    xyz, offset, *absent = case.inputs()
    assert xyz.shape == (10, 3)
    assert offset.tolist() == [2, 5, 7, 10]
    assert absent == [None, None]
    copies = clones([xyz, None], 2)
    assert copies[0][0] is xyz
    assert copies[1][0] is not xyz
    assert torch.equal(copies[1][0], xyz)
    (unsigned,) = sized(OPS["relu"], "uint8", 1000, device="cpu").inputs()
    assert unsigned.unique().numel() > 50


def test_rivals_are_of_ops():
    assert rivals.TORCH.keys() <= OPS.keys()
