"""CPU kernels that evaluate definitions: this library's own ops, and each operator of ONNX."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

import cudarelu
from cudarelu import _C
from cudarelu._onnx.evaluator import evaluate
from cudarelu._table import Attribute, OnnxName, OpInfo, Parameter, ops_of
from cudarelu.defining.evaluation import cpu_source
from cudarelu.testing import checks, plans

pytestmark = pytest.mark.xdist_group("evaluation")  # each library is compiled once

DTYPES = ("float64", "float16", "int32")  # those of a type of arithmetic share the code
SMALL = ("float32", "float16")


def declared(namespace: str, signature: str, definition: str, dtypes: Sequence[str]) -> OpInfo:
    fields = _C.read_signature(signature)
    op_type = "".join(word.capitalize() for word in fields["name"].split("_"))
    return dataclasses.replace(
        cudarelu.ops()[0],
        namespace=namespace,
        name=fields["name"],
        signature=signature,
        inputs=tuple(Parameter(**each) for each in fields["inputs"]),
        attributes=tuple(Attribute(**each) for each in fields["attributes"]),
        outputs=tuple(Parameter(**each) for each in fields["outputs"]),
        dtypes=tuple(dtypes),
        onnx=OnnxName(namespace, op_type, 1, None),
        definition=definition,
        in_place="",
    )


def header(namespace: str, ops: Sequence[OpInfo]) -> str:
    structs = [
        f"""struct {op.onnx.op_type} {{
  static constexpr cudarelu::OpSpec spec{{
      .signature = R"_({op.signature})_",
      .summary = "As its definition computes it.",
      .dtypes = cudarelu::DTypeSet::of({{
          {", ".join(f"cudarelu::DType::{each}" for each in op.dtypes)}}}),
      .in_place = "{op.in_place}",
      .definition = R"_({op.definition})_",
  }};
  static cudarelu::Status cpu(const cudarelu::Call& call);
}};"""
        for op in ops
    ]
    include = '#pragma once\n#include "cudarelu/kernel.h"\n'
    return "\n".join([include, f"namespace {namespace} {{", *structs, "}", ""])


def built(namespace: str, ops: Sequence[OpInfo], folder: Path) -> cudarelu.OpModule:
    """A module of ops with kernels that evaluate their definitions, in two files."""
    sources = [folder / f"{namespace}.h"]
    sources[0].write_text(header(namespace, ops))
    for i in range(2):
        sources.append(folder / f"{namespace}_{i}.cpp")
        sources[-1].write_text("\n".join(cpu_source(op, f"{namespace}.h") for op in ops[i::2]))
    return cudarelu.load(namespace, sources, cuda=False)


# This library's own ops


# Definitions of users have no inputs that broadcast or may be bool.
OWN = [op for op in cudarelu.ops() if not any(p.varies for p in op.inputs)]


def own_ops() -> list[OpInfo]:
    return [
        dataclasses.replace(
            op,
            namespace="evaluated",
            onnx=dataclasses.replace(op.onnx, domain="evaluated", alias=None),
            dtypes=tuple(each for each in op.dtypes if each in DTYPES),
        )
        for op in OWN
    ]


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory) -> dict[str, OpInfo]:
    built("evaluated", own_ops(), tmp_path_factory.mktemp("evaluated"))
    return {op.name: op for op in ops_of("evaluated")}


@pytest.mark.parametrize("name", [op.name for op in OWN])
@pytest.mark.slow
def test_own_ops(name, evaluated):
    """Every case of every op of this library, in hosts of the CPU."""
    plain = {"memory", *(plan.id for plan in plans(evaluated[name], np.dtype("float32")))}
    runtimes = set()
    for each in checks([evaluated[name]]):
        if each.name in plain - {"large"} and each.host.name in ("numpy", "torch-cpu", "ort-cpu"):
            each.run()
            runtimes.add(each.host.runtime)
    assert {"numpy", "torch"} <= runtimes


# Operators of ONNX

RNG = np.random.default_rng(0)


def real(*shape: int) -> np.ndarray:
    return RNG.normal(0, 2, shape)


def whole(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def axes(*values: int) -> str:
    return f"i = Constant<value_ints = [{', '.join(map(str, values))}]>() "


# What computes y of a, b and c, and these arrays.
CASES: dict[str, tuple[str, list[np.ndarray]]] = {
    "arg_max": ("y = ArgMax<axis = 0>(a)", [real(3, 4)]),
    "arg_max_of_equal": ("r = Round(a) y = ArgMax<axis = -1, keepdims = 0>(r)", [real(3, 40)]),
    "arg_min": ("y = ArgMin<axis = 1, keepdims = 0>(a)", [real(3, 4, 2)]),
    "broadcast": ("y = Add(a, b)", [real(3, 1, 4), real(2, 1)]),
    "broadcast_many": ("s = Mul(a, b) t = Sub(s, c) y = Exp(t)", [real(5, 1), real(7), real(1, 1)]),
    "broadcast_empty": ("y = Add(a, b)", [real(3, 1), real(0)]),
    "cast_to_bool": (
        "p = Cast<to = 9>(a) y = Cast<to = 7>(p)",
        [np.array([0.0, -0.0, 0.5, np.nan])],
    ),
    "cast_to_integers": ("y = Cast<to = 7>(a)", [np.array([1.9, -1.9, 2.0**15, -0.5])]),
    "cast_to_int32": ("y = Cast<to = 6>(a)", [whole(1, 2**31, 2**32 + 5, -7)]),
    "cast_to_float": ("f = Cast<to = 1>(a) y = CastLike(f, a)", [real(5)]),
    "celu": ("y = Celu<alpha = 0.5>(a)", [real(9)]),
    "concat": ("y = Concat<axis = -1>(a, b, a)", [real(2, 3), real(2, 1)]),
    "concat_one": ("y = Concat<axis = 0>(a)", [real(2, 3)]),
    "concat_empty": ("y = Concat<axis = 0>(a, b)", [real(0, 3), real(2, 3)]),
    "constants": (
        """f = Constant<value_floats = [1.5, -2.0, 0.25]>() g = CastLike(f, a)
           h = Constant<value = double[1, 3] {0.1, 0.2, 0.3}>() k = CastLike(h, a)
           p = Constant<value = bool[3] {1, 0, 1}>() s = Add(g, k) y = Where(p, s, a)""",
        [real(2, 3)],
    ),
    "constant_of_shape": (
        "s = Shape(a) o = ConstantOfShape<value = int64[1] {7}>(s) y = Add(o, b)",
        [real(2, 3), whole(1)],
    ),
    "cumsum": ("i = Constant<value_int = 1>() y = CumSum(a, i)", [real(3, 5, 2)]),
    "cumsum_reverse": (
        "i = Constant<value_int = -1>() y = CumSum<reverse = 1>(a, i)",
        [real(3, 5)],
    ),
    "cumsum_exclusive": (
        "i = Constant<value_int = 0>() y = CumSum<exclusive = 1, reverse = 1>(a, i)",
        [whole(3, -5, 7, 2**62, 2**62)],
    ),
    "expand": (axes(2, 1, 4) + "y = Expand(a, i)", [real(3, 1)]),
    "flatten": ("y = Flatten<axis = -2>(a)", [real(2, 3, 4, 5)]),
    "flatten_all": ("y = Flatten<axis = 0>(a)", [real(2, 3)]),
    "gather": ("y = Gather<axis = 1>(a, b)", [real(3, 5, 2), np.array([[0, -1], [4, 2]])]),
    "gather_rows": ("y = Gather(a, b)", [real(6, 700), whole(5, 0, -6)]),
    "gather_none": ("y = Gather(a, b)", [real(6, 3), whole()]),
    "gather_of_turned": (
        "t = Transpose(a) y = Gather<axis = -1>(t, b)",
        [real(3, 5), whole(2, 0, 2, 1)],
    ),
    "gather_elements": (
        "y = GatherElements<axis = 1>(a, b)",
        [real(3, 5), np.array([[0, -1], [4, 2], [1, 1]])],
    ),
    "gemm": (
        "y = Gemm<alpha = 0.5, beta = -2.0, transA = 1, transB = 1>(a, b, c)",
        [real(4, 3), real(5, 4), real(3, 1)],
    ),
    "gemm_without_bias": ("y = Gemm(a, b)", [real(4, 3), real(3, 5)]),
    "integers": (
        """d = Div(a, b) m = Mod(a, b) t = Mul(d, m) u = Sub(t, a) n = Neg(u) v = Abs(n)
           s = Sign(n) w = Mul(v, s) y = Add(w, b)""",
        [whole(7, -7, 7, -7, 2**62, -(2**63)), whole(2, 2, -2, -2, 3, 5)],
    ),
    "layer_norm": (
        "y = LayerNormalization<axis = 1, epsilon = 0.5>(a, b, c)",
        [real(3, 4, 5), real(4, 5), real(5)],
    ),
    "layer_norm_without_bias": ("y = LayerNormalization(a, b)", [real(3, 4) + 10, real(4)]),
    "log_softmax": ("y = LogSoftmax(a)", [real(3, 5) * 20 + 500]),
    "logical": (
        "p = Less(a, b) q = Not(p) r = Or(p, q) s = Xor(p, r) t = And(s, q) y = Cast<to = 7>(t)",
        [real(9), real(9)],
    ),
    "max_of_many": ("y = Max(a, b, c)", [real(5, 1), np.array([np.nan, 1, 2]), real(1)]),
    "max_of_one": ("y = Max(a)", [real(5)]),
    "mean": ("y = Mean(a, b, c)", [real(5, 3), real(5, 3), real(1)]),
    "mean_of_integers": (axes(0) + "y = ReduceMean(a, i)", [whole(1, 2, 5)]),
    "matmul": ("y = MatMul(a, b)", [real(4, 70), real(70, 600)]),
    "matmul_batches": ("y = MatMul(a, b)", [real(2, 1, 3, 4), real(5, 4, 2)]),
    "matmul_one_row": ("y = MatMul(a, b)", [real(3, 1, 4), real(3, 4, 1)]),
    "matmul_vectors": ("y = MatMul(a, b)", [real(4), real(4)]),
    "matmul_vector_left": ("y = MatMul(a, b)", [real(4), real(2, 4, 3)]),
    "matmul_vector_right": ("y = MatMul(a, b)", [real(2, 3, 4), real(4)]),
    "matmul_empty": ("y = MatMul(a, b)", [real(2, 0), real(0, 3)]),
    "matmul_integers": (
        "y = MatMul(a, b)",
        [whole(2, 2**40, 5), np.array([[2**40], [2**40], [1]])],
    ),
    "matmul_of_turned": ("t = Transpose(a) y = MatMul(t, b)", [real(4, 3), real(4, 5)]),
    "minimum": ("y = Min(a, b)", [real(5, 1), real(3)]),
    "numbers": (  # without arrays
        """two = Constant<value_int = 2>() three = Constant<value_int = 3>()
           six = Mul(two, three) p = Less(two, six) z = Where(p, six, two) s = Shape(a)
           y = Mul(s, z)""",
        [real(2, 3)],
    ),
    "part_and_array": (
        """v = Mul(a, a) w = Add(v, a) s = ReduceSum(v) z = Add(w, v) y = Add(z, s)""",
        [real(2, 3)],
    ),
    "pad": (
        "p = Constant<value_ints = [1, 0, 2, 3]>() v = Constant<value_float = 0.5>() "
        "w = CastLike(v, a) y = Pad(a, p, w)",
        [real(2, 3)],
    ),
    "pad_axes": (
        "p = Constant<value_ints = [1, 2]>()" + axes(-2) + "y = Pad(a, p, , i)",
        [real(2, 3)],
    ),
    "powers": (
        """two = Constant<value_float = 2.0>() half = Constant<value_float = 0.5>()
           t = CastLike(two, a) h = CastLike(half, a) s = Pow(a, t) r = Pow(s, h) y = Pow(r, b)""",
        [real(5), np.array([1.0, 2, 3, 0, 0.5])],
    ),
    "prelu": ("y = PRelu(a, b)", [real(5, 3), real(3)]),
    "range_down": (
        "f = Constant<value_int = 9>() s = Size(a) t = Neg(s) y = Range(f, s, t)",
        [real(2, 1)],
    ),
    "reshape": (axes(0, -1, 2) + "y = Reshape(a, i)", [real(3, 4)]),
    "reshape_zero": (axes(0, 5) + "y = Reshape<allowzero = 1>(a, i)", [real(3, 0)]),
    "reshape_of_turned": (axes(-1) + "t = Transpose(a) y = Reshape(t, i)", [real(3, 4)]),
    "reshape_to_scalar": ("s = Size(a) t = Shape(s) y = Reshape(a, t)", [real(1, 1)]),
    "shape": ("y = Shape<start = -3, end = -1>(a)", [real(2, 3, 4, 5)]),
    "slice": (
        """s = Constant<value_ints = [-1, 1]>() e = Constant<value_ints = [-100, 100]>()
           i = Constant<value_ints = [2, 0]>() t = Constant<value_ints = [-2, 2]>()
           y = Slice(a, s, e, i, t)""",
        [real(5, 2, 6)],
    ),
    "slice_reverse": (
        """s = Constant<value_ints = [-1]>() e = Constant<value_ints = [-9223372036854775807]>()
           i = Constant<value_ints = [0]>() t = Constant<value_ints = [-1]>()
           y = Slice(a, s, e, i, t)""",
        [real(5, 2)],
    ),
    "slice_empty": (
        """s = Constant<value_ints = [3]>() e = Constant<value_ints = [2]>() y = Slice(a, s, e)""",
        [real(5, 2)],
    ),
    "slice_by_inputs": ("y = Slice(a, b, c)", [real(5, 4), whole(1, 2), whole(4, -1)]),
    "softmax": ("y = Softmax<axis = 0>(a)", [real(3, 5) * 1000]),
    "softmax_middle": ("y = Softmax<axis = -2>(a)", [real(3, 5, 2)]),
    "split": (
        "p, q, r = Split<axis = 1, num_outputs = 3>(a) s = Add(p, q) y = Sub(s, r)",
        [real(2, 6)],
    ),
    "split_unequal": ("p, y = Split<axis = 0, num_outputs = 2>(a)", [real(5, 2)]),
    "split_sizes": (
        "s = Constant<value_ints = [1, 4]>() p, q = Split<axis = -1>(a, s) y = Mul(p, q)",
        [real(3, 5)],
    ),
    "squeeze": ("y = Squeeze(a)", [real(1, 3, 1)]),
    "squeeze_axes": (axes(-1) + "y = Squeeze(a, i)", [real(1, 3, 1)]),
    "sum_of_many": ("y = Sum(a, b, a, b, c)", [real(2, 3), real(3), real(1, 1)]),
    "tile": ("y = Tile(a, b)", [real(2, 3), whole(2, 3)]),
    "top_k": (
        axes(3) + "v, p = TopK<axis = 0>(a, i) q = CastLike(p, a) y = Sub(v, q)",
        [real(5, 4)],
    ),
    "top_k_smallest": (axes(2) + "v, y = TopK<largest = 0>(a, i)", [np.floor(real(4, 9))]),
    "transpose": ("y = Transpose(a)", [real(2, 3, 4)]),
    "transpose_perm": ("y = Transpose<perm = [1, 2, 0]>(a)", [real(2, 3, 4)]),
    "trilu": ("y = Trilu(a)", [real(2, 3, 4)]),
    "trilu_lower": ("k = Constant<value_int = -1>() y = Trilu<upper = 0>(a, k)", [real(4, 3)]),
    "unsqueeze": (axes(0, -1) + "y = Unsqueeze(a, i)", [real(2, 3)]),
    "where": ("p = Greater(a, b) y = Where(p, a, b)", [real(5, 1), real(3)]),
    "widest": (  # of more operands than one loop has
        """p = Transpose(a) q = Transpose(b) r = Transpose(c) s = Transpose(d) t = Transpose(e)
           u = Sum(a, b, c, d, e) v = Sum(p, q, r, s, t) w = Exp(u) y = Sub(w, v)""",
        [real(2, 2) for _ in range(5)],
    ),
}
for _op in ("Sum", "Mean", "Max", "Min", "Prod", "SumSquare", "L1", "L2", "LogSumExp"):
    _name = f"reduce_{_op.lower()}"
    CASES[_name] = (axes(-1, 0) + f"y = Reduce{_op}<keepdims = 0>(a, i)", [real(3, 4, 21)])
    CASES[f"{_name}_kept"] = (axes(1) + f"y = Reduce{_op}(a, i)", [real(3, 4, 5)])
    CASES[f"{_name}_all"] = (f"y = Reduce{_op}<keepdims = 0>(a)", [real(3, 4)])
CASES |= {
    "reduce_log_sum": (axes(0) + "y = ReduceLogSum(a, i)", [np.abs(real(3, 4))]),
    "reduce_log_sum_exp_large": ("y = ReduceLogSumExp(a)", [np.array([1000.0, 1001.0, -1000.0])]),
    "reduce_max_nan": ("y = ReduceMax(a)", [np.array([1.0, np.nan, 2.0])]),
    "reduce_max_integers": ("y = ReduceMax(a)", [whole(3, -(2**63), 5)]),
    "reduce_no_axes": (
        "n = Constant<value_ints: ints = []>() y = ReduceSum<noop_with_empty_axes = 1>(a, n)",
        [real(2, 3)],
    ),
    "reduce_empty": (axes(0) + "y = ReduceSum(a, i)", [real(0, 3)]),
    "reduce_prod_empty": ("y = ReduceProd(a)", [whole()]),
}

NAMES = "abcde"
LIKE = {"like": np.zeros(())}


def op_of(name: str, text: str, arrays: Sequence[np.ndarray]) -> OpInfo:
    """An op of the arrays; an input `like` has the shape of the output."""
    inputs = []
    for letter, array in zip(NAMES, arrays, strict=False):
        dims = ", ".join(f"{letter}{i}" for i in range(array.ndim))
        inputs.append(f"{letter}: {'T' if array.dtype == np.float64 else 'i64'}[{dims}]")
    # A definition of integers gives integers.
    op = declared(
        "operators_cpu", f"{name}(like: T[*], {', '.join(inputs)}) -> y: T[*]", text, SMALL
    )
    (y,) = evaluate(op, dict(zip(NAMES, arrays, strict=False)) | LIKE, {})
    if y.dtype.kind != "f":
        op = declared("operators_cpu", op.signature.replace("y: T", "y: i64"), text, SMALL)
    return op


OPS = {name: op_of(name, *case) for name, case in CASES.items()}


@pytest.fixture(scope="module")
def operators(tmp_path_factory) -> cudarelu.OpModule:
    return built("operators_cpu", list(OPS.values()), tmp_path_factory.mktemp("operators"))


@pytest.mark.parametrize("dtype", SMALL)
@pytest.mark.parametrize("name", CASES)
def test_operators(name, dtype, operators):
    """Each operator by onnx.reference in float64."""
    arrays = [each.astype(dtype) if each.dtype == np.float64 else each for each in CASES[name][1]]
    wide = [each.astype(np.float64) if each.dtype == dtype else each for each in arrays]
    (expected,) = evaluate(OPS[name], dict(zip(NAMES, wide, strict=False)) | LIKE, {})
    actual = getattr(operators, name)(np.zeros(expected.shape, dtype), *arrays)
    assert actual.shape == expected.shape
    if expected.dtype.kind != "f":
        np.testing.assert_array_equal(actual, expected)
        return
    tolerance = {"float32": 1e-5, "float16": 2e-3}[dtype]
    with np.errstate(over="ignore"):
        expected = expected.astype(dtype)
    np.testing.assert_allclose(actual, expected, rtol=tolerance, atol=tolerance)


# Attributes, absent inputs, errors

FURTHER = {
    "attributes": declared(
        "further",
        "attributes(x: T[*, c], *, slope: float = 0.1, axis: int = -1, by: sum | max = sum) "
        "-> y: T[*, c]",
        """f = Constant<value_float: float = @slope>()  s = CastLike(f, x)
           t = LeakyRelu<alpha: float = @slope>(x)
           i = Constant<value_int: int = @axis>()  j = Constant<value_ints = [-1]>()
           k = Reshape(i, j)
           sum = ReduceSum(t, k)  max = ReduceMax(t, k)
           label = Constant<value_int: int = @by>()  zero = Constant<value_int = 0>()
           is_sum = Equal(label, zero)
           most = Where(is_sum, sum, max)
           softmax = Softmax<axis: int = @axis>(t)
           u = Add(softmax, most)
           y = Mul(u, s)""",
        ("float64", "bfloat16"),
    ),
    "optional": declared(
        "further",
        "optional(x: T[n, c], weight: T[m, c], bias: T[m]?, scale: T[c]? = 2, low: T[c]? = min(x), "
        "high: T[n, c]? = x) -> (y: T[n, m], z: T[n, c])",
        """y = Gemm<transB = 1>(x, weight, bias)
           t = Mul(x, scale)  u = Sub(t, low)  z = Add(u, high)""",
        ("float32",),
    ),
    "needs": declared(
        "further", "needs(x: T[*, c], bias: T[c]?) -> y: T[*, c]", "y = Add(x, bias)", ("float32",)
    ),
    "wrong_shape": declared(
        "further", "wrong_shape(x: T[n, m]) -> y: T[n, m]", "y = Transpose(x)", ("float32",)
    ),
    "picks": declared(
        "further", "picks(x: T[n], i: i64[m]) -> y: T[m]", "y = Gather(x, i)", ("float32",)
    ),
    "adds": declared("further", "adds(x: T[n], z: T[m]) -> y: T[n]", "y = Add(x, z)", ("float32",)),
    "reshapes": declared(
        "further",
        "reshapes(x: T[n], shape: i64[k]) -> y: T[n]",
        "y = Reshape(x, shape)",
        ("float32",),
    ),
    "swaps": dataclasses.replace(  # reads what it overwrites
        declared("further", "swaps(x: T[n, n]) -> y: T[n, n]", "y = Transpose(x)", ("float32",)),
        in_place="y = x",
    ),
}


@pytest.fixture(scope="module")
def further(tmp_path_factory) -> cudarelu.OpModule:
    return built("further", list(FURTHER.values()), tmp_path_factory.mktemp("further"))


@pytest.mark.slow
def test_attributes(further):
    """They are not rounded: of float64, LeakyRelu has a slope of 0.1 and not of float32(0.1)."""
    x = RNG.normal(size=(2, 3, 4))
    t = np.where(x < 0, 0.1 * x, x)
    for axis in (-1, 0, 1):
        e = np.exp(t - t.max(axis, keepdims=True))
        softmax = e / e.sum(axis, keepdims=True)
        for by in ("sum", "max"):
            most = getattr(np, by)(t, axis, keepdims=True)
            y = further.attributes(x, axis=axis, by=by)
            np.testing.assert_allclose(y, 0.1 * (softmax + most), rtol=1e-14)


def test_absent_inputs(further):
    x, weight = (RNG.normal(size=size).astype(np.float32) for size in ((5, 3), (2, 3)))
    bias, scale = (RNG.normal(size=size).astype(np.float32) for size in (2, 3))
    y, z = further.optional(x, weight)
    np.testing.assert_allclose(y, x @ weight.T, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(z, 2 * x - x.min(0) + x, rtol=1e-5, atol=1e-6)
    y, z = further.optional(x, weight, bias, scale, scale, x)
    np.testing.assert_allclose(y, x @ weight.T + bias, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(z, x * scale - scale + x, rtol=1e-5, atol=1e-6)


def test_overwritten_input(further):
    import torch

    x = torch.arange(9.0).reshape(3, 3)
    expected = x.T.clone()
    torch.ops.further.swaps_(x)
    assert torch.equal(x, expected)


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("needs", [(2, 3)], "needs: the definition needs the input bias, which is absent"),
        (
            "wrong_shape",
            [(2, 3)],
            r"wrong_shape: .* gives output 0 the shape \[3, 2\], the signature \[2, 3\]",
        ),
        ("picks", [(3,), [0, 3]], "picks: index 3 is out of range for 3 elements"),
        ("picks", [(0,), [-1]], "picks: index -1 is out of range for 0 elements"),
        ("adds", [(3,), (2,)], r"adds: the shapes \[3\] and \[2\] do not broadcast"),
        ("reshapes", [(3,), [-1, 2]], r"reshapes: the shape \[3\] cannot become \[-1, 2\]"),
        ("reshapes", [(4,), [-2, -2]], r"reshapes: the shape \[4\] cannot become \[-2, -2\]"),
    ],
)
def test_errors_of_calls(name, arguments, message, further):
    given = [
        np.zeros(each, np.float32) if isinstance(each, tuple) else whole(*each)
        for each in arguments
    ]
    with pytest.raises(ValueError, match=message):
        getattr(further, name)(*given)


@pytest.mark.parametrize(
    ("definition", "message"),
    [
        ("y = Relu(x\n", "op: the definition cannot be parsed"),
        (
            "z = Relu(x)\ny = Det(z)",
            "op: line 2 of the definition: Det cannot be evaluated on the CPU",
        ),
        ("z = Neg(x)\ny = Cast(z)", "line 2 of the definition: Cast .* needs the attribute to"),
        ("z = Constant()\ny = Add(x, z)", "line 1 of the definition: Constant .* one attribute"),
        ("y = Reul(x)", "line 1 of the definition: Reul .* not an operator of ONNX"),
        ("z = Relu(x)\n\ny = Add(z, w)", "line 3 of the definition: Add .* w is not defined"),
        ("z = Relu(x)", "op: the definition has no value y"),
        ("y = Add(x)", "Add .* it has another number of operands"),
        ("s = Shape(x)\ny = Add(x, s)", "line 2 .* its operands are T and int64"),
        ("s = Shape(x)\ny = Exp(s)", r"line 2 .* operand 1 must not be a tensor\(int64\)"),
        ("y = Shape(x)", "op: y is int64 in the definition, not T"),
        ("y = Mod(x, x)", "Mod .* it needs fmod = 1"),
        ("y = Cast<to = 10>(x)", "Cast .* to FLOAT16"),
        ('y = Pad<mode = "edge">(x, x)', "Pad .* operand 2 must not be"),
        ("y = Elu<alpha: float = @a>(x)", "op: the definition has @a, which is no attribute"),
        ("y, q = TopK(x, x)", "TopK .* operand 2 must not be"),
    ],
)
def test_errors_of_definitions(definition, message):
    op = declared("wrong", "op(x: T[*]) -> y: T[*]", definition, ("float32",))
    with pytest.raises(ValueError, match=message):
        cpu_source(op, "op.h")
