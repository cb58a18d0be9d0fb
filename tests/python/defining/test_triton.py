"""Ops whose kernels are written in Triton: `cudarelu.triton_op`."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import cudarelu
from cudarelu.defining.cubins import Compiler, arguments_of
from cudarelu.defining.kernels import TritonOp
from cudarelu.defining.ops import read_signature
from cudarelu.defining.triton_trace import Branch, Leaf, leaves, tree_of
from cudarelu.testing import checks
from cudarelu.testing.environment import torch_cuda_missing
from support.cases import slow_after

triton = pytest.importorskip("triton")
tl = triton.language

pytestmark = pytest.mark.xdist_group("triton")  # compiled once

NEEDS_GPU = pytest.mark.skipif(bool(torch_cuda_missing()), reason=torch_cuda_missing() or "")
EXAMPLE = Path(__file__).parents[3] / "examples/triton_ops"
SIGNATURE = "op(x: T[*, c], w: T[c]?, *, by: plus | minus = plus, p: float = 1.0) -> y: T[*, c]"


@triton.jit
def shift_kernel(x, w, y, n, c, p, MINUS: tl.constexpr, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + offsets, mask=offsets < n).to(p.dtype)
    if w is not None:
        value += tl.load(w + offsets % c, mask=offsets < n).to(p.dtype)
    tl.store(y + offsets, value - p if MINUS else value + p, mask=offsets < n)


@triton.jit
def shift_again_kernel(x, w, y, n, c, p, MINUS: tl.constexpr, BLOCK: tl.constexpr):
    shift_kernel(x, w, y, n, c, p, MINUS, BLOCK)


@triton.jit(do_not_specialize=["m", "n", "k"])
def matmul_kernel(
    a, b, c, m, n, k, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, PRECISION: tl.constexpr
):
    row = tl.program_id(0) * M + tl.arange(0, M)
    column = tl.program_id(1) * N + tl.arange(0, N)
    total = tl.zeros((M, N), tl.float32)
    for start in range(0, k, K):
        inner = start + tl.arange(0, K)
        inside = (row[:, None] < m) & (inner[None, :] < k)
        left = tl.load(a + row[:, None] * k + inner[None, :], mask=inside, other=0.0)
        inside = (inner[:, None] < k) & (column[None, :] < n)
        right = tl.load(b + inner[:, None] * n + column[None, :], mask=inside, other=0.0)
        total = tl.dot(left, right, total, input_precision=PRECISION)
    inside = (row[:, None] < m) & (column[None, :] < n)
    tl.store(c + row[:, None] * n + column[None, :], total, mask=inside)


def shift(call):
    options = {"MINUS": call.by == "minus", "BLOCK": 256}
    tensors = {"x": call.x, "w": call.w, "y": call.y}
    sizes = {"n": call.x.numel(), "c": call.c, "p": call.p}
    return shift_kernel, triton.cdiv(call.x.numel(), 256), tensors | sizes | options


def library() -> cudarelu.Library:
    """Optional inputs, labels, products that need much shared memory, and functors beside them."""
    with cudarelu.Library("in_triton") as made:
        cudarelu.triton_op(
            "shift(x: T[*, c], w: T[c]? = 0, *, by: plus | minus = plus, p: float = 1.0)"
            " -> y: T[*, c]",
            definition="""b = Constant<value_int: int = @by>()
                          zero = Constant<value_int = 0>()
                          is_plus = Equal(b, zero)
                          p_f = Constant<value_float: float = @p>()
                          p_t = CastLike(p_f, x)
                          less = Neg(p_t)
                          step = Where(is_plus, p_t, less)
                          sum = Add(x, w)
                          y = Add(sum, step)""",
            dtypes=("float32", "float64", "bfloat16"),
            gradient="x = cudarelu::scale(grad_y, 1); w = cudarelu::sum_rows(grad_y)",
        )(shift)

        @cudarelu.triton_op(  # of any shape, but not known to be elementwise
            "moved(x: T[*], *, p: float = 1.0) -> y: T[*]",
            definition="""p_f = Constant<value_float: float = @p>()
                          p_t = CastLike(p_f, x)
                          y = Add(x, p_t)""",
            dtypes=["float32"],
        )
        def moved(call):
            """x + p."""
            n = call.x.numel()
            options = {"MINUS": False, "BLOCK": 256}
            sizes = {"n": n, "c": n, "p": call.p}
            tensors = {"x": call.x, "w": None, "y": call.y}
            return shift_kernel, triton.cdiv(n, 256), tensors | sizes | options

        @cudarelu.triton_op(
            "product(a: T[m, k], b: T[k, n]) -> c: T[m, n]",
            definition="c = MatMul(a, b)",
            gradient="""a = cudarelu::matmul_nt(grad_c, b);
                        b = cudarelu::matmul_tn(a, grad_c)""",
            dtypes=("float32", "bfloat16"),
        )
        def product(call):
            """a b."""
            tile = 128 if call.m >= 128 and call.n >= 128 else 32
            grid = (triton.cdiv(call.m, tile), triton.cdiv(call.n, tile))
            sizes = {"m": call.m, "n": call.n, "k": call.k}
            is_float = call.a.dtype == "float32"
            options = {"M": tile, "N": tile, "K": 32 if is_float else 64, "num_warps": 8}
            options |= {"num_stages": 3, "PRECISION": "ieee" if is_float else "tf32"}
            tensors = {"a": call.a, "b": call.b, "c": call.c}
            return matmul_kernel, grid, tensors | sizes | options

        cudarelu.define("doubled(x: T[*]) -> y: T[*]", "y = Add(x, x)", dtypes=["float32"])

    return made


@pytest.fixture(scope="module")
def made() -> cudarelu.Library:
    return library()


@pytest.fixture(scope="module")
def ops(made) -> cudarelu.OpModule:
    return made.load(cuda=not torch_cuda_missing())


def test_on_the_cpu(ops):
    """The definition runs, for which Triton is not needed."""
    x, w = torch.randn(3, 5, requires_grad=True), torch.randn(5, requires_grad=True)
    y = ops.shift(x, w, by="minus", p=2.0)
    torch.testing.assert_close(y, x + w - 2)
    y.sum().backward()
    torch.testing.assert_close(w.grad, torch.full((5,), 3.0))
    torch.testing.assert_close(ops.shift(x), x + 1)
    a, b = np.ones((2, 3), np.float32), np.ones((3, 4), np.float32)
    np.testing.assert_array_equal(ops.product(a, b), a @ b)
    torch.testing.assert_close(ops.doubled(x), 2 * x)


@pytest.mark.slow
def test_the_example_is_built_by_a_command(tmp_path):
    """Without a GPU. The next process takes the sources of the cache, without Triton's compiler."""
    path, example = tmp_path / "libtriton_ops.so", tmp_path / "rms_norm.py"
    shutil.copy(EXAMPLE / "rms_norm_kernels.py", tmp_path)
    text = (EXAMPLE / "rms_norm.py").read_text()
    example.write_text(re.sub("MOST_COLUMNS = .*", "MOST_COLUMNS = 1024", text))  # fewer kernels
    command = [sys.executable, "-m", "cudarelu", "build", str(example), "-o", str(path)]
    for _ in range(2):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    loaded = cudarelu.load_library(path)
    x, w = torch.randn(4, 33, dtype=torch.float64), torch.randn(33, dtype=torch.float64)
    expected = torch.nn.functional.rms_norm(x, (33,), w, 1e-6)
    torch.testing.assert_close(loaded.rms_norm(x, w), expected)
    x.requires_grad_()
    assert torch.autograd.gradcheck(loaded.rms_norm, (x, w.requires_grad_()))


@pytest.mark.parametrize("name", slow_after(1, ["ort-cpu", "torch-cpu", "ort_infer-cpu"]))
def test_the_matrix_on_the_cpu(ops, name):
    for each in checks(ops.ops()):
        if each.host.name == name and each.dtype == "float32" and each.op.name != "doubled":
            each.run()


@NEEDS_GPU
@pytest.mark.parametrize("name", ["torch-cuda", "ort-cuda", "ort_infer-cuda", "cupy", "jax-cuda"])
def test_the_matrix_on_cuda(ops, name):
    selected = [each for each in checks(ops.ops()) if each.host.name == name]
    for each in selected:
        each.run()


@NEEDS_GPU
def test_the_same_kernel_as_that_of_triton(ops):
    """Bit by bit what Triton's own launch gives, for aligned and other addresses and sizes."""
    for rows, columns, offset in ((64, 1024, 0), (63, 1023, 0), (64, 1024, 1)):
        flat = torch.randn(rows * columns + offset, device="cuda")
        x = flat[offset:].view(rows, columns)
        y = torch.empty_like(x)
        grid = (triton.cdiv(x.numel(), 256),)
        shift_kernel[grid](x, None, y, x.numel(), columns, 0.3, MINUS=False, BLOCK=256)
        assert torch.equal(ops.shift(x, p=0.3), y)


# The function of launches


def tree(function, signature: str = SIGNATURE, dtype: str = "float32"):
    return tree_of(read_signature("my", signature, [dtype]), dtype, function)


def test_conditions():
    """The function runs once for each outcome, also of labels and of inputs that may be absent."""

    def function(call):
        block = call.next_power_of_2(call.c, most=1024, least=256)
        warps = 8 if block > 512 and call.w is not None else 4
        arguments = {"x": call.x, "w": call.w, "y": call.y, "n": call.x.numel(), "c": call.c}
        options = {"p": call.p, "MINUS": call.by == "minus", "BLOCK": block, "num_warps": warps}
        return shift_kernel, (min(call.x.numel() // call.c, 7),), arguments | options

    made = tree(function)
    assert isinstance(made, Branch)
    assert made.condition == "c_ <= 256"
    found = list(leaves(made))
    errors = {leaf.error for leaf in found if leaf.error}
    assert errors == {"c is over 1024, the most that the kernel supports"}
    launches = [launch for leaf in found for launch in leaf.launches]
    chosen = {
        (each.arguments["BLOCK"], each.arguments["w"] is None, each.arguments["MINUS"])
        for each in launches
    }
    assert len(chosen) == 3 * 2 * 2
    assert {each.options["num_warps"] for each in launches} == {4, 8}
    assert {each.grid for each in launches} == {
        ("triton::floor_div(call, x_.size(), c_)",),
        ("7",),
    }


def test_workspace_and_several_launches():
    def function(call):
        rows = call.x.numel() // call.x.shape[-1]
        partial = call.workspace(rows * 2, "float64")
        arguments = {"x": call.x, "w": partial, "y": call.y, "n": rows, "c": 1, "p": 2.0}
        return [(shift_kernel, (rows, 2), arguments | {"MINUS": True, "BLOCK": 64})] * 2

    made = tree(function)
    assert isinstance(made, Leaf)
    size = "x_.shape[x_.shape.size() - 1]"
    count = f"(triton::floor_div(call, x_.size(), {size}) * 2)"
    assert made.workspaces == (("workspace_0", "float64", count),)
    assert len(made.launches) == 2


ARGUMENTS = {"n": 1, "c": 1, "p": 1.0, "MINUS": False, "BLOCK": 64}


STATE: dict = {}


def complete(call):
    return shift_kernel, 1, ARGUMENTS | {"x": call.x, "w": None, "y": call.y}


def with_options(call, **options):
    (kernel, grid, arguments) = complete(call)
    return kernel, grid, arguments | options


def halved(size):
    while size > 1:
        size = size // 2


def count_up(size):
    count = 0
    while size > count:
        count += 1


def kept(call):
    y = STATE.setdefault("y", call.y)
    return with_options(call, y=y, MINUS=bool(call.c > 3))


def stateful(call):
    STATE["runs"] = STATE.get("runs", 0) + 1
    return with_options(call, MINUS=bool(call.c > STATE["runs"]))


@pytest.mark.parametrize(
    ("function", "error", "message"),
    [
        (lambda call: call.z, AttributeError, "op has no input, output, attribute or dimension z"),
        (lambda call: [], TypeError, "the function returned no launches"),
        (lambda call: halved(call.c), TypeError, "branches over 256 times in one run"),
        (lambda call: count_up(call.c), TypeError, "branches over 256 times in one run"),
        (lambda call: call.c // 0, ZeroDivisionError, "c is divided by 0"),
        (lambda call: call.p // 2, TypeError, "// and % need integers"),
        (lambda call: call.workspace(call.x), TypeError, "the number of elements must be"),
        (lambda call: call.next_power_of_2(call.c, most=0), TypeError, "must be from 1 to most"),
        (lambda call: call.next_power_of_2(call.c, most=5000), TypeError, "= 5000 must be a power"),
        (lambda call: with_options(call, num_warps=3), TypeError, "num_warps must be 1, 2, 4, 8"),
        (
            lambda call: with_options(call, num_stages=call.c),
            TypeError,
            "num_stages must be a positive integer",
        ),
        (lambda call: with_options(call, n=call.x.numel), TypeError, "parameter n of the kernel"),
        (
            lambda call: kept(call),
            TypeError,
            "of another run of the function",
        ),
        (lambda call: stateful(call), TypeError, "it must depend on the call alone"),
        (lambda call: range(call.c), TypeError, "c is known only when the op is called: choose"),
        (lambda call: 2**call.c, TypeError, "c is known only when the op is called: choose"),
        (lambda call: call.x.shape[0], IndexError, r"x.shape\[0\]: the signature has the"),
        (lambda call: None, TypeError, r"must return \(kernel, grid, arguments\), or a list"),
        (lambda call: (min, 1, {}), TypeError, "is not a @triton.jit function"),
        (lambda call: (shift_kernel, 1.5, {}), TypeError, "the grid must be one to three integers"),
        (
            lambda call: (shift_kernel, 1, ARGUMENTS | {"x": call.x, "w": None}),
            TypeError,
            "no argument sets the parameter y of the kernel shift_kernel",
        ),
        (
            lambda call: (*complete(call)[:2], complete(call)[2] | {"z": call.x}),
            TypeError,
            "the kernel shift_kernel has no parameter z, and Triton's compiler takes",
        ),
        (
            lambda call: (*complete(call)[:2], complete(call)[2] | {"BLOCK": call.c}),
            TypeError,
            "the parameter BLOCK of the kernel shift_kernel is a tl.constexpr, but c is known only",
        ),
        (
            lambda call: (call.next_power_of_2(call.c, most=1 << 300), complete(call))[1],
            ValueError,
            "over 256 different",
        ),
    ],
)
def test_bad_functions(function, error, message):
    with pytest.raises(error, match=message):
        tree(function)


def test_numbers_are_arguments():
    """Not constants: Triton passes a number that is no tl.constexpr when it launches the kernel."""
    (launch,) = tree(complete).launches
    assert launch.arguments["n"].text == "1"
    assert launch.arguments["p"].kind == "float"
    assert launch.arguments["w"] is None
    text = tree(lambda call: with_options(call, p=float("-inf"))).launches[0].arguments["p"].text
    assert text == "-std::numeric_limits<double>::infinity()"


def test_a_bool_is_an_integer():
    signature = SIGNATURE.replace("p: float = 1.0", "flag: bool = false")
    for function in (
        lambda call: with_options(call, n=call.flag),
        lambda call: with_options(call, n=call.c // (call.flag + 1)),
    ):
        (launch,) = tree(function, signature).launches
        assert arguments_of(launch, "float32")["n"].type == "i32"


def test_an_error_without_a_message():
    def function(call):
        if call.c > 9:
            raise ValueError
        return complete(call)

    found = [leaf.error for leaf in leaves(tree(function))]
    assert found == ["the kernels do not support this call", None]


def test_one_tree_for_each_dtype():
    def function(call):
        block = 512 if call.x.dtype == "bfloat16" else 256
        return (*complete(call)[:2], complete(call)[2] | {"BLOCK": block})

    blocks = [tree(function, dtype=each).launches[0].arguments for each in ("float32", "bfloat16")]
    assert [each["BLOCK"] for each in blocks] == [256, 512]


def test_the_identity():
    """The sources in the cache are those of a kernel, and of the conditions of its launch."""

    def identity(limit: int, kernel=shift_kernel) -> str:
        def function(call):
            block = 64 if call.c <= limit else 128
            return kernel, 1, complete(call)[2] | {"BLOCK": block}

        op = read_signature("my", SIGNATURE, ["float32"])
        return TritonOp(op, {"float32": tree_of(op, "float32", function)}).identity()

    assert identity(7) == identity(7) != identity(8)
    assert identity(7) != identity(7, shift_again_kernel)
    assert "0x" not in identity(7)  # no address of an object


@triton.jit
def plus(a, b):
    return a + b


@triton.jit
def minus(a, b):
    return a - b


minus.fn.__qualname__ = plus.fn.__qualname__  # as after an edit


@triton.jit
def apply_kernel(x, y, F: tl.constexpr):
    tl.store(y, F(tl.load(x), 2.0))


@pytest.mark.parametrize("wrapped", [lambda function: function, tl.constexpr])
def test_functions_that_a_kernel_takes(wrapped):
    """Two of one name have code of their own, in the cache and in a module."""

    def made(applied):
        return tree(lambda call: (apply_kernel, 1, {"x": call.x, "y": call.y, "F": applied}))

    op = read_signature("my", SIGNATURE, ["float32"])
    trees = [made(wrapped(each)) for each in (plus, minus)]
    first, second = (TritonOp(op, {"float32": each}).identity() for each in trees)
    assert first != second
    with Compiler("op", ["8.6"]) as compiler:
        images = [compiler.compiled(each.launches[0], "float32")[0][0] for each in trees]
        assert images[0].result().code != images[1].result().code


def build(function, **options) -> None:
    options = {"definition": "y = Identity(x)", "dtypes": ["float32"]} | options
    cudarelu.triton_op(SIGNATURE, **options)(function).library.build(architectures=["8.6"])


@triton.jit
def large_kernel(x, y, N: tl.constexpr):
    row = tl.arange(0, N)
    offsets = row[:, None] * N + row[None, :]
    tl.store(y + offsets, tl.dot(tl.load(x + offsets), tl.load(x + offsets)))


@triton.jit
def wrong_kernel(x, y):
    tl.store(y, tl.load(x + not_defined))  # noqa: F821


def test_what_does_not_compile():
    with pytest.raises(RuntimeError, match=r"op: the kernel wrong_kernel does not compile: at 2:"):
        build(lambda call: (wrong_kernel, 1, {"x": call.x, "y": call.y}))
    message = (
        r"op: the kernel large_kernel needs \d+ bytes of shared memory, but compute capability "
    )
    options = {"N": 128, "num_warps": 8}
    with pytest.raises(RuntimeError, match=message + r"8.6 has 101376 \(N = 128\)"):
        build(lambda call: (large_kernel, 1, {"x": call.x, "y": call.y} | options))


@triton.jit
def copy_kernel(x, y):
    tl.store(y, tl.load(x))


@pytest.mark.parametrize("failures", [2, 100])
@pytest.mark.slow
def test_several_threads_parse(monkeypatch, failures):
    """CPython's parser raises SystemError at times where several threads use it."""
    remaining = iter([True] * failures)
    compiler = triton.compile

    def failing(*arguments, **options):
        if next(remaining, False):
            raise SystemError("AST constructor recursion depth mismatch")
        return compiler(*arguments, **options)

    monkeypatch.setattr(triton, "compile", failing)

    def function(call):  # a kernel of its own, which no cache has
        return (copy_kernel, 1, {"x": call.x, "y": call.y, "num_warps": 2 ** (failures == 2)})

    if failures == 2:
        build(function)
    else:
        with pytest.raises(RuntimeError, match="does not compile: AST constructor recursion"):
            build(function)


def test_bad_declarations():
    with pytest.raises(ValueError, match="NonZero"):
        build(shift, definition="i = NonZero(x)  y = Gather(x, i)")
    with pytest.raises(ValueError, match="op: no dtype foo: there are float32, "):
        build(shift, dtypes=["foo"])
    with pytest.raises(ValueError, match="op: in_place must be as \"y = x\", not 'q = x'"):
        build(shift, in_place="q = x")
    for signature, message in (
        ("op(workspace: T[*]) -> y: T[*]", "workspace is a name that a call has already"),
        ("op(c: T[*, c]) -> y: T[*, c]", "c is also the name of a dimension"),
        ("op(x: i64[*]) -> y: i64[*]", "no required input has the dtype T"),
        ("op(o: i64[n], x: T[n]?) -> y: i64[n]", "no required input has the dtype T"),
        ("op(x: T[n], m: broadcast T[n]) -> y: T[n]", "m must have one dtype and not broadcast"),
    ):
        with pytest.raises(ValueError, match=f"op: {message}"):
            cudarelu.triton_op(signature, definition="y = Identity(x)")(shift)
    with pytest.raises(ValueError, match="dtypes must be a list of dtypes"):
        build(shift, dtypes="float32")
    with cudarelu.Library("twice") as made:
        op = cudarelu.triton_op(SIGNATURE, definition="y = Identity(x)")
        op(shift)
        with pytest.raises(ValueError, match="the library twice has an op op already"):
            op(shift)
    assert re.fullmatch("<library twice: op>", repr(made))


def test_saved_sources(tmp_path):
    """A project in C++, which needs no Triton."""
    with cudarelu.Library("saved") as made:
        op = cudarelu.triton_op(SIGNATURE, definition="y = Identity(x)", dtypes=["float32"])
        op(complete)
    files = made.save(tmp_path / "my_ops", architectures=["8.0", "9.0"])
    assert Path("src/op_cuda.cpp") in files
    text = (tmp_path / "my_ops/src/op_cuda.cpp").read_text()
    assert "{80, " in text
    assert "{90, " in text
