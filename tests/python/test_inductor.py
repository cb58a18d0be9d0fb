"""With fusion enabled, compiled ops have the same results and are fused with their neighbours."""

import dataclasses

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from torch._inductor import decomposition, metrics
from torch._inductor.utils import fresh_cache

import cudarelu
import cudarelu.inductor
from cudarelu.testing import DTYPES, TOLERANCE
from cudarelu.testing.cases import special_values
from cudarelu.testing.environment import torch_cuda_missing
from cudarelu.testing.torch_calls import LAYOUTS, call_of, inputs_of
from support.torch_calls import overload

OPS = {op.name: op for op in cudarelu.ops()}
FUSED = [op for op in OPS.values() if overload(op.name) in cudarelu.inductor._DECOMPOSITIONS]
NEEDS_GPU = pytest.mark.skipif(bool(torch_cuda_missing()), reason=torch_cuda_missing() or "")
DEVICES = ["cpu", pytest.param("cuda", marks=NEEDS_GPU)]
SHAPE = (48, 24)


@pytest.fixture(scope="module", autouse=True)
def _own_caches():
    with fresh_cache():
        yield


@pytest.fixture(autouse=True)
def _starts_and_ends_disabled():
    torch.compiler.reset()
    yield
    cudarelu.inductor.disable_fusion()


# In PyTorch 2.11, the asinh of the compiler overflows for this value.
HUGE = [1e20] if torch.__version__ >= "2.13" else []


def values(shape, dtype, device, shift):
    """Random and special values; `shift` rotates the special values.

    There are no subnormal numbers, since the compiler's own functions, such as asinh, treat them as
    zero.
    """
    if not dtype.is_floating_point:
        return torch.randint(-100, 100, shape, device=device).to(dtype)
    x = torch.randn(shape, dtype=torch.float64, device=device)
    special = special_values(DTYPES[str(dtype).removeprefix("torch.")], subnormals=False)
    numbers = torch.tensor([*special.astype(float), *HUGE], dtype=x.dtype, device=device)
    places = x.view(-1)[:: shape[-1] + 1]
    places.copy_(numbers.roll(shift).repeat(len(places))[: len(places)])
    return x.to(dtype).requires_grad_()


def assert_same(actual, expected):
    assert (actual.dtype, actual.stride()) == (expected.dtype, expected.stride())
    if not expected.is_floating_point():
        assert torch.equal(actual, expected)
        return
    assert torch.equal(actual == 0, expected == 0)
    number = ~expected.isnan()
    assert torch.equal(actual[number].signbit(), expected[number].signbit())
    # The tolerance is for values near 1, since the terms that may cancel are of this size.
    tolerance = TOLERANCE[str(expected.dtype).removeprefix("torch.")]
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance, equal_nan=True)


def test_every_elementwise_op_is_decomposed():
    """If this fails for a new op, add the operators of its definition to cudarelu/inductor.py."""
    names = {op.name for op in FUSED}
    assert names >= {op.name for op in OPS.values() if op.elementwise}
    assert names >= {"bias_relu", "bias_relu_backward", "expand_rows"}
    assert names.isdisjoint({"softmax", "softmax_backward", "row_sum", "sum_rows", "knn_query"})


@pytest.mark.slow
@pytest.mark.parametrize("device", DEVICES)
def test_values_and_gradients(device):
    """All ops are compiled at once, since a compilation takes long."""
    torch.manual_seed(0)
    calls = []
    for op in FUSED:
        for dtype in op.dtypes:
            shapes = [SHAPE if "*" in each.dims else SHAPE[1:] for each in op.inputs]
            inputs = [values(s, getattr(torch, dtype), device, i) for i, s in enumerate(shapes)]
            calls.append((op, inputs if op.gradient else [x.detach() for x in inputs]))

    def run(calls):
        return [call_of(op)(*inputs) for op, inputs in calls]

    def gradients(outputs):
        inputs = [x for _, inputs in calls for x in inputs if x.requires_grad]
        differentiable = [y for y in outputs if y.requires_grad]
        ones = [torch.ones_like(y) for y in differentiable]
        return torch.autograd.grad(differentiable, inputs, ones, materialize_grads=True)

    expected = run(calls)
    expected += gradients(expected)
    cudarelu.inductor.enable_fusion()
    metrics.reset()
    actual = torch.compile(run, fullgraph=True)(calls)
    actual += gradients(actual)
    assert metrics.generated_kernel_count >= len(calls)
    for a, e in zip(actual, expected, strict=True):
        assert_same(a, e)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_strides(layout):
    """All inputs have the layout, or only the first. The backend runs only the part of the compiler
    that determines strides, which is fast."""
    calls = []
    for op in FUSED:
        inputs = inputs_of(op, lead=(2, 3, 4, 5) if op.elementwise else (2, 3, 4))
        laid_out = [LAYOUTS[layout](x) if x.dim() == 4 else x for x in inputs]
        calls += [(op, laid_out), (op, [*laid_out[:1], *inputs[1:]])]

    def run(calls):
        return [call_of(op)(*inputs) for op, inputs in calls]

    cudarelu.inductor.enable_fusion()
    actual = torch.compile(run, backend="aot_eager_decomp_partition", fullgraph=True)(calls)
    for a, e in zip(actual, run(calls), strict=True):
        assert_same(a, e)


def run(inputs):
    """Calls each op once, with its own inputs."""
    return [call_of(op)(*each) for op, each in zip(FUSED, inputs, strict=True)]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_rounds_once(dtype):
    cudarelu.inductor.enable_fusion()
    inputs = [[x.to(dtype) for x in inputs_of(op, (60, 70), 80)] for op in FUSED]
    actual = torch.compile(run, backend="aot_eager_decomp_partition", fullgraph=True)(inputs)
    for a, e in zip(actual, run(inputs), strict=True):
        assert (a != e).float().mean() < 0.001  # the last bit of a function may affect rounding


def test_outputs_are_not_views():
    cudarelu.inductor.enable_fusion()
    inputs = [inputs_of(op, ()) for op in FUSED]
    outputs = torch.compile(run, backend="aot_eager_decomp_partition", fullgraph=True)(inputs)
    places = [x.untyped_storage().data_ptr() for each in [outputs, *inputs] for x in each]
    assert len(places) == len(set(places))


def test_sizes_stay_symbolic():
    cudarelu.inductor.enable_fusion()
    counter = CompileCounterWithBackend("aot_eager_decomp_partition")
    compiled = torch.compile(run, backend=counter, fullgraph=True, dynamic=True)
    for size in (7, 11):
        inputs = [inputs_of(op, (size, size + 1), size + 2) for op in FUSED]
        for actual, expected in zip(compiled(inputs), run(inputs), strict=True):
            assert_same(actual, expected)
    assert counter.frame_count == 1


def between(x, y):
    return cudarelu.relu(x * 2 + 1) + y


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dynamic", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_enabling_and_disabling_after_a_compilation(dynamic, device):
    """The caches in the process and on disk return code for the current setting, each twice."""
    x = torch.randn(2, 64, 63, device=device, requires_grad=True)
    compiled = torch.compile(between, fullgraph=True, dynamic=dynamic)
    before = decomposition.decompositions.copy(), torch.compiler.config.cache_key_tag

    def step(function):
        y = function(*x)
        return y, *torch.autograd.grad(y.sum(), x)

    for enabled in (False, True, False, True):
        change = cudarelu.inductor.enable_fusion if enabled else cudarelu.inductor.disable_fusion
        change()
        change()
        metrics.reset()
        assert all(map(torch.equal, step(compiled), step(between)))
        # With fusion, one forward and one backward kernel; without, two forward (before and after
        # the op) and one backward.
        assert metrics.generated_kernel_count == (2 if enabled else 3)
        with torch.profiler.profile() as profile:
            step(compiled)
        calls = {event.name for event in profile.events() if event.name.startswith("cudarelu::")}
        assert calls == (set() if enabled else {"cudarelu::relu", "cudarelu::relu_backward"})
    cudarelu.inductor.disable_fusion()
    assert before == (decomposition.decompositions, torch.compiler.config.cache_key_tag)


def test_attributes_beyond_the_dtype():
    """Such attributes round to infinity, as in the op."""
    cudarelu.inductor.enable_fusion()
    x = torch.tensor([-1.0, 2.0])

    def function(x):
        return cudarelu.scale(x, factor=1e300)

    compiled = torch.compile(function, backend="aot_eager_decomp_partition", fullgraph=True)
    assert torch.equal(compiled(x), function(x))


@pytest.mark.parametrize("operands", ["a", "a, b", "a, b, a"])
@pytest.mark.parametrize("op_type", ["Max", "Min"])
def test_operators_of_any_number_of_operands(op_type, operands):
    op = dataclasses.replace(OPS["add"], definition=f"c = {op_type}({operands})")
    compiled = torch.compile(cudarelu.inductor.in_torch(op), backend="eager", fullgraph=True)
    a, b = torch.randn(2, 5), torch.randn(2, 5)
    expected = a if operands == "a" else getattr(torch, f"{op_type.lower()}imum")(a, b)
    for function in (compiled, cudarelu.inductor._decomposition(op)):
        y = function(a, b)
        assert torch.equal(y, expected)
        assert y.data_ptr() != a.data_ptr()


def test_a_gradient_that_is_constant():
    with cudarelu.Library("constant_gradient") as library:
        cudarelu.define(
            "first(x: T[*], w: T[*]) -> y: T[*]",
            "yes = Constant<value = bool {1}>()   no = Not(yes)   y = Where(no, w, x)",
            dtypes=("float32",),
        )
    first = library.load().first
    cudarelu.inductor.enable_fusion()

    compiled = torch.compile(first, backend="aot_eager_decomp_partition", fullgraph=True)
    x, w = torch.randn(2, 3, requires_grad=True), torch.randn(2, 3, requires_grad=True)
    one, zero = torch.autograd.grad(compiled(x, w).sum(), (x, w))
    assert torch.equal(one, torch.ones(2, 3))
    assert torch.equal(zero, torch.zeros(2, 3))
    torch.compiler.reset()  # else sizes become symbolic
    x, w = (each.detach().T.requires_grad_() for each in (x, w))
    _, zero = torch.autograd.grad(compiled(x, w), (x, w), torch.ones(2, 3).T)
    assert zero.add_(1).stride() == w.stride()
