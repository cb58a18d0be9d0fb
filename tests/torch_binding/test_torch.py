"""PyTorch's features: gradients, in-place forms, strides, compilers.

test_ops.py tests the features of cudarelu.testing for every op.
"""

import copy
import functools
import inspect
import pickle
import re
import subprocess
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor

import ml_dtypes
import numpy as np
import pytest
import torch
import torch.utils.checkpoint
from torch._dynamo import compiled_autograd
from torch._dynamo.testing import CompileCounterWithBackend
from torch._dynamo.utils import counters
from torch.autograd import gradcheck, gradgradcheck
from torch.utils._python_dispatch import TorchDispatchMode

import cudarelu
import cudarelu.nn
from cudarelu.testing.environment import torch_cuda_missing
from cudarelu.testing.torch_calls import as_tuple, call_of, in_place_of, inputs_of, with_grad
from support.torch_calls import IN_PLACE, OPS, saved_by

NEEDS_GPU = pytest.mark.skipif(bool(torch_cuda_missing()), reason=torch_cuda_missing() or "")
DEVICES = ["cpu", pytest.param("cuda", marks=NEEDS_GPU)]


# Gradients


def test_only_what_the_gradients_name_is_saved():
    a, b = torch.randn(5, requires_grad=True), torch.randn(5)
    saved, y = saved_by(lambda: cudarelu.relu(a))
    assert [t.data_ptr() for t in saved] == [y.data_ptr()]
    saved, _ = saved_by(lambda: cudarelu.mul(a, b))  # only the gradient of b would need a
    assert [t.data_ptr() for t in saved] == [b.data_ptr()]
    assert saved_by(lambda: cudarelu.add(a, a))[0] == []
    with torch.no_grad():
        saved, y = saved_by(lambda: cudarelu.relu(a))
    assert saved == []
    assert y.grad_fn is None


def test_equal_subexpressions_are_evaluated_once():
    x, bias = torch.randn(6, 4, requires_grad=True), torch.randn(4, requires_grad=True)
    y = cudarelu.bias_relu(x, bias)
    with torch.profiler.profile() as profile:
        y.sum().backward()
    calls = [e for e in profile.events() if e.name == "cudarelu::bias_relu_backward"]
    assert len(calls) == 1


def test_backward_twice_and_overwritten_tensors_are_errors():
    x = torch.randn(4, requires_grad=True)
    y = cudarelu.tanh(x)
    y.sum().backward()
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        y.sum().backward()
    y = cudarelu.tanh(x)
    torch.ops.cudarelu.relu_(y.detach())
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_torch_func():
    x = torch.randn(3, 4, dtype=torch.float64)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # without a batching rule, vmap warns that it is slow
        rows = torch.func.vmap(torch.func.grad(lambda row: cudarelu.tanh(row).sum()))(x)
    torch.testing.assert_close(rows, 1 - x.tanh() ** 2)


def test_second_derivatives_of_both_modes():
    x = torch.randn(4, dtype=torch.float64)
    expected = torch.func.hessian(lambda row: torch.softmax(row, -1).square().sum())(x)
    for outer in (torch.func.jacfwd, torch.func.jacrev):
        for inner in (torch.func.jacfwd, torch.func.jacrev):
            actual = outer(inner(lambda row: cudarelu.softmax(row).square().sum()))(x)
            torch.testing.assert_close(actual, expected)


def test_forward_mode_of_an_op_without_derivative_is_refused():
    """Without the tangent, the result would be zeros without an error."""
    inputs = inputs_of(OPS["knn_query"])
    with torch.autograd.forward_ad.dual_level():
        inputs[0] = torch.autograd.forward_ad.make_dual(inputs[0], torch.ones_like(inputs[0]))
        with pytest.raises(NotImplementedError, match=r"forward-mode .* 'cudarelu::knn_query'"):
            cudarelu.knn_query(*inputs)


def check_refuses_captured(transform, view):
    """A tensor from outside the transform is rejected before it is overwritten, by a view too."""
    for name in IN_PLACE:
        function, target = in_place_of(OPS[name])
        inputs = inputs_of(OPS[name])
        captured = inputs[target].clone()

        def overwrite(x, function=function, target=target, inputs=inputs, captured=captured):
            others = inputs[:target], inputs[target + 1 :]
            return function(*others[0], view(captured), *others[1]).sum() * x.sum()

        with pytest.raises(RuntimeError, match=rf"{name}_\) that would mutate a captured Tensor"):
            transform(overwrite, torch.ones(3))
        assert torch.equal(captured, inputs[target])


VIEWS = {
    "itself": lambda x: x,
    "slice": lambda x: x[:],
    "view": lambda x: x.flatten().view_as(x),
    "detached": lambda x: x.detach(),
}


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_torch_func_refuses_to_overwrite_a_captured_tensor(view):
    check_refuses_captured(lambda f, x: torch.func.grad(f)(x), view)
    check_refuses_captured(lambda f, x: torch.func.jvp(f, (x,), (x,)), view)
    check_refuses_captured(lambda f, x: torch.vmap(torch.func.grad(f))(x[None]), view)
    check_refuses_captured(lambda f, x: torch.func.grad(lambda y: torch.vmap(f)(y).sum())(x), view)


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_torch_func_overwrites_tensors_of_the_transform(view):
    outside = torch.tensor([-1.0, 2.0, 3.0])

    def of(overwrite):
        def function(x, y):
            for tensor in (x * 2, y, outside.clone(), torch.ones(3), torch.ones(9)[::3]):
                target = view(tensor)
                overwrite(target)
                x = x * (target + tensor)
            return x.sum()

        return function

    def transformed(function):
        arguments = torch.tensor([1.0, -2.0, 3.0]), torch.tensor([-1.0, 2.0, 3.0])
        yield torch.func.grad(function)(*arguments)
        yield torch.func.grad(lambda x, y: torch.func.grad(function)(x, y).sum())(*arguments)
        yield torch.vmap(torch.func.grad(function))(*(each[None] for each in arguments))
        yield torch.func.jvp(function, arguments, arguments)[1]

    ours = transformed(of(torch.ops.cudarelu.relu_))
    for found, expected in zip(ours, transformed(of(torch.relu_)), strict=True):
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoints(reentrant):
    def block(x):
        hidden = cudarelu.softmax(x) * 2
        torch.ops.cudarelu.tanh_(hidden)
        return cudarelu.mul(hidden, x)

    def checkpointed(x):
        return torch.utils.checkpoint.checkpoint(block, x, use_reentrant=reentrant)

    x = torch.randn(3, 4, dtype=torch.float64)
    expected = gradient_at(block, x)
    torch._dynamo.reset()
    compiled = torch.compile(checkpointed, backend="aot_eager", fullgraph=not reentrant)
    for function in (checkpointed, compiled):
        torch.testing.assert_close(gradient_at(function, x), expected)


def gradient_at(function, x):
    x = x.clone().requires_grad_()
    function(x).square().sum().backward()
    return x.grad


def test_a_graph_serves_many_threads():
    x = torch.randn(64, 33, requires_grad=True)
    loss = cudarelu.softmax(cudarelu.tanh(cudarelu.bias_relu(x, x[0]))).square().sum()

    def gradient(_):
        return torch.autograd.grad(loss, x, retain_graph=True)[0]

    with ThreadPoolExecutor(8) as pool:
        first, *others = pool.map(gradient, range(32))
    assert all(torch.equal(first, other) for other in others)


@pytest.mark.filterwarnings("ignore:(Anomaly Detection|Error detected)")
def test_hooks_and_anomaly_mode():
    x, calls = torch.randn(4, dtype=torch.float64, requires_grad=True), []
    y = cudarelu.tanh(x)
    y.register_hook(lambda gradient: gradient * 2)
    y.grad_fn.register_prehook(lambda gradients: (gradients[0] * 3,))
    y.grad_fn.register_hook(lambda inputs, outputs: calls.append((inputs[0], outputs[0])))
    y.sum().backward()
    torch.testing.assert_close(x.grad, 6 * (1 - y.detach() ** 2))
    assert torch.equal(calls[0][0], x.grad)
    assert torch.equal(calls[0][1], torch.full_like(x, 6))
    with torch.autograd.detect_anomaly():
        product = cudarelu.mul(x, torch.full_like(x, torch.nan))
        with pytest.raises(RuntimeError, match="'MulBackward' returned nan values"):
            product.sum().backward()


def test_inference_tensors_are_not_saved():
    with torch.inference_mode():
        constant = torch.randn(3)
    x = torch.randn(3, requires_grad=True)
    cudarelu.add(x, constant).sum().backward()
    with pytest.raises(RuntimeError, match="Inference tensors cannot be saved for backward"):
        cudarelu.mul(x, constant)


# Calls that bypass the dispatcher, where this has no visible effect


def test_modes_tracers_and_profilers_see_the_call():
    class Record(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            calls.append(str(function))
            return function(*args, **(kwargs or {}))

    calls, x = [], torch.randn(4)
    with Record():
        cudarelu.relu(x)
    assert calls == ["cudarelu.relu.default"]
    with torch.profiler.profile() as profile:
        cudarelu.relu(x)
    assert "cudarelu::relu" in [event.name for event in profile.events()]
    traced = torch.jit.trace(cudarelu.relu, (x,))
    assert "cudarelu::relu" in str(traced.graph)
    with torch.inference_mode():
        assert cudarelu.relu(x).is_inference()
    assert not cudarelu.relu(x).is_inference()


def test_plain_calls_go_past_the_dispatcher_and_others_do_not():
    """The kernels that the dispatcher would call first are replaced by functions that count their
    calls."""
    code = """
import torch, cudarelu
calls, x = [], torch.ones(2)
library = torch.library.Library("cudarelu", "IMPL")
library.impl("relu", lambda x: calls.append(1) or x, "AutogradCPU")
library.impl("relu_backward", lambda grad_y, y: calls.append(1) or y, "AutogradCPU")
cudarelu.relu(x)
cudarelu.relu(x.T), cudarelu.relu(torch.nn.Parameter(x, requires_grad=False))
with torch.no_grad():
    cudarelu.relu(torch.ones(2, requires_grad=True))
leaf = torch.ones(2, requires_grad=True)
cudarelu.relu(leaf).sum().backward(create_graph=True)
assert leaf.grad.requires_grad
with torch._C._AutoDispatchBelowAutograd():
    assert not cudarelu.relu(leaf).requires_grad
assert len(calls) == 0, calls
with torch.autocast("cpu"):
    cudarelu.relu(x)
with torch.autograd.forward_ad.dual_level():
    cudarelu.relu(torch.autograd.forward_ad.make_dual(x, x))
assert len(calls) == 2, calls
"""
    result = python(code)
    assert result.returncode == 0, result.stderr


def test_plain_calls_equal_dispatched_ones():
    for op in OPS.values():
        inputs = inputs_of(op)
        plain, dispatched = call_of(op, getattr(cudarelu, op.name))(*inputs), call_of(op)(*inputs)
        for actual, expected in zip(as_tuple(plain), as_tuple(dispatched), strict=True):
            torch.testing.assert_close(actual, expected, rtol=0, atol=0)
            assert actual.stride() == expected.stride()


def test_torchscript_and_fx_see_the_op():
    def function(x):
        return cudarelu.leaky_relu(cudarelu.relu(x) - 1, negative_slope=0.5)

    x = torch.randn(8)
    for traced in (torch.jit.script(function), torch.fx.symbolic_trace(function)):
        # The pattern excludes the folder of this file, which TorchScript writes after each node.
        assert re.findall(r"cudarelu(?:::|\.)(\w+)", str(traced.graph)) == ["relu", "leaky_relu"]
        torch.testing.assert_close(traced(x), function(x), rtol=0, atol=0)


@pytest.mark.filterwarnings("ignore:.*torch.jit.trace", "ignore:The .grad attribute of a Tensor")
@pytest.mark.parametrize("name", IN_PLACE)
def test_torchscript_traces_in_place_ops(name):
    function, target = in_place_of(OPS[name])
    inputs = inputs_of(OPS[name])

    def overwrite(*inputs):
        inputs = [*inputs[:target], inputs[target] * 2, *inputs[target + 1 :]]
        whole = inputs[target]
        inputs[target] = whole.view_as(whole)
        function(*inputs)
        return whole + 1

    x = with_grad(inputs)
    traced = torch.jit.trace(overwrite, tuple(x))
    assert re.findall(r"cudarelu::(\w+)", str(traced.graph)) == [f"{name}_"]
    others = [t + 1 if t.is_floating_point() else t for t in inputs]
    torch.testing.assert_close(traced(*others), overwrite(*others), rtol=0, atol=0)
    if OPS[name].gradient:
        gradients = [torch.autograd.grad(f(*x).sum(), x[target]) for f in (traced, overwrite)]
        torch.testing.assert_close(*gradients)


def test_torchscript_traces_attributes_of_in_place_ops():
    def overwrite(x):
        torch.ops.cudarelu.leaky_relu_(x, negative_slope=0.5)
        torch.ops.cudarelu.gelu_(x, approximate="tanh")
        return x

    x = torch.randn(8)
    traced = torch.jit.trace(overwrite, (x.clone(),))
    torch.testing.assert_close(traced(x.clone()), overwrite(x.clone()), rtol=0, atol=0)
    with pytest.raises(RuntimeError, match="approximate must be"):
        torch.jit.trace(lambda x: torch.ops.cudarelu.gelu_(x, approximate="no"), (x.clone(),))
    torch.testing.assert_close(traced(x.clone()), overwrite(x.clone()), rtol=0, atol=0)


@pytest.mark.slow
def test_threads_in_anomaly_mode():
    code = """
import threading, torch, cudarelu
torch.autograd.set_detect_anomaly(True, check_nan=False)
weight, bias = torch.ones(8, 8, requires_grad=True), torch.ones(8, requires_grad=True)
def work():
    for _ in range(500):
        cudarelu.linear(torch.ones(2, 8), weight, bias).sum().backward()
threads = [threading.Thread(target=work) for _ in range(2)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""
    result = python(code, timeout=100)  # a deadlock would never end
    assert result.returncode == 0, result.stderr


@pytest.mark.slow
def test_tensors_swapped_by_another_thread():
    """A call holds its tensor while it has released the GIL."""
    code = """
import threading, torch, cudarelu
x, stop = torch.ones(1 << 22), threading.Event()

def swap():
    while not stop.is_set():
        other = torch.ones(1 << 22)
        try:
            torch.utils.swap_tensors(x, other)
        except RuntimeError:  # PyTorch may refuse to swap a tensor that is in use
            pass

thread = threading.Thread(target=swap)
thread.start()
for _ in range(100):
    assert cudarelu.relu(x).sum() == 1 << 22
stop.set()
thread.join()
"""
    result = python(code)
    assert result.returncode == 0, result.stderr


# In place


def test_in_place_on_a_negated_view():
    """torch's fallback for negated views requires an operator that returns its target."""
    x = torch.tensor([1 + 2j]).conj().imag
    assert x.is_neg()
    with pytest.raises(NotImplementedError, match=r"relu_.*resolve_neg"):
        torch.ops.cudarelu.relu_(x)
    assert cudarelu.relu(x).item() == 0


def test_export_of_unbounded_sizes():
    class Knn(torch.nn.Module):
        def forward(self, xyz, offset):
            return torch.ops.cudarelu.knn_query(xyz, offset)

    sizes = ({0: torch.export.Dim("n")}, {0: torch.export.Dim("b")})
    arguments = (torch.randn(8, 3), torch.tensor([4, 8], dtype=torch.int32))
    program = torch.export.export(Knn(), arguments, dynamic_shapes=sizes)
    assert "knn_query" in program.graph_module.code


def test_half_subnormals_survive_a_host_that_flushes():
    x = torch.tensor([1e-7, 6e-8], dtype=torch.half)
    if not torch.set_flush_denormal(True):
        pytest.skip("this CPU cannot flush subnormal numbers")
    try:
        result = cudarelu.relu(x)
    finally:
        torch.set_flush_denormal(False)
    assert torch.equal(result, x)


def test_in_place_on_shared_memory():
    x = torch.arange(-4.0, 5.0)
    expected = x[1:] + x[:-1]
    torch.ops.cudarelu.add_(x[1:], x[:-1])  # the result is as if the second were read first
    torch.testing.assert_close(x[1:], expected)
    with pytest.raises(RuntimeError, match="single memory location"):
        torch.ops.cudarelu.relu_(torch.zeros(1).expand(3))
    with pytest.raises(RuntimeError, match=r"(?s)leaf Variable that requires grad.*relu_"):
        torch.ops.cudarelu.relu_(torch.zeros(3, requires_grad=True))


# Compiled autograd


def compiled_backward(loss, counter):
    torch_compile = torch.compile(backend=counter, fullgraph=True, dynamic=True)
    with compiled_autograd._enable(torch_compile):
        loss.backward()


def test_compiled_autograd_of_a_training_step():
    model = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.Linear(5, 3))
    x = torch.randn(6, 4)

    def step(x):
        hidden = model[0](x)
        torch.ops.cudarelu.relu_(hidden)
        cudarelu.softmax(model[1](hidden)).square().sum().backward()

    step(x)
    expected = [parameter.grad.clone() for parameter in model.parameters()]
    torch._dynamo.reset()
    counters.clear()
    with torch._dynamo.config.patch(compiled_autograd=True):
        compiled = torch.compile(step, backend="inductor")
        for _ in range(2):
            model.zero_grad()
            compiled(x)
            actual = [parameter.grad for parameter in model.parameters()]
            torch.testing.assert_close(actual, expected)
    assert counters["compiled_autograd"]["captures"] > 0


def test_compiled_autograd_keys():
    """Another attribute, op or set of differentiable inputs gives another graph. Hooks may pack
    saved tensors."""
    torch._dynamo.reset()
    counters.clear()
    counter = CompileCounterWithBackend("aot_eager")
    x = torch.tensor([-2.0, 3.0], dtype=torch.float64)
    calls = [
        (lambda x: cudarelu.leaky_relu(x, negative_slope=0.5), [0.5, 1]),
        (lambda x: cudarelu.leaky_relu(x, negative_slope=0.25), [0.25, 1]),
        (lambda x: cudarelu.relu_scale(x, scale=0.25), [0, 0.25]),
        (lambda x: cudarelu.mul(x, x.detach()), [-2, 3]),
        (lambda x: cudarelu.mul(x.detach(), x), [-2, 3]),
        (lambda x: cudarelu.mul(x, x), [-4, 6]),
    ]
    for function, expected in 2 * calls:
        leaf = x.clone().requires_grad_()
        compiled_backward(function(leaf).sum(), counter)
        assert leaf.grad.tolist() == expected
    assert counters["compiled_autograd"]["captures"] == len(calls)
    leaf = x.clone().requires_grad_()
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t + 1, lambda t: t - 1):
        loss = cudarelu.mul(leaf, leaf).sum()
    compiled_backward(loss, counter)
    assert leaf.grad.tolist() == [-4, 6]


def test_compiled_autograd_of_an_op_without_a_gradient():
    inputs = with_grad(inputs_of(OPS["knn_query"]))
    distance = call_of(OPS["knn_query"])(*inputs)[1]
    with pytest.raises(NotImplementedError, match="derivative for 'cudarelu::knn_query'"):
        compiled_backward(distance.sum(), "eager")


# Shapes, strides and compilers


def test_empty_scalar_and_inference_mode():
    assert cudarelu.softmax(torch.zeros(0, 3)).shape == (0, 3)
    assert cudarelu.relu(torch.tensor(-1.0)).shape == ()
    with torch.inference_mode():
        x = torch.tensor([-1.0, 2.0])
        torch.ops.cudarelu.relu_(x)
        assert cudarelu.relu(x).tolist() == [0, 2]
    with pytest.raises(RuntimeError, match="outside InferenceMode"):
        torch.ops.cudarelu.relu_(x)


# Streams and CUDA graphs


@NEEDS_GPU
def test_reduce_overhead():
    """The compiler makes CUDA graphs of whole programs, including gradients, and skips none."""
    points = torch.rand(8, 3, device="cuda")
    offset = torch.tensor([8], dtype=torch.int32, device="cuda")

    def function(x, bias, points):
        y = cudarelu.softmax(cudarelu.tanh(cudarelu.bias_relu(x * 2, bias)))
        return cudarelu.add(y, x), cudarelu.knn_query(points, offset, nsample=2)

    torch._dynamo.utils.counters.clear()
    compiled = torch.compile(function, mode="reduce-overhead", fullgraph=True)
    for _ in range(4):
        x = torch.randn(16, 8, device="cuda", requires_grad=True)
        bias = torch.randn(8, device="cuda", requires_grad=True)
        points.mul_(0.5)
        results = []
        for run in (compiled, function):
            torch.compiler.cudagraph_mark_step_begin()
            y, (idx, distance) = run(x, bias, points)
            results.append((*torch.autograd.grad(y.square().sum(), (x, bias)), y, idx, distance))
            results[-1] = [each.detach().clone() for each in results[-1]]
        torch.testing.assert_close(*results)
    assert torch._dynamo.utils.counters["inductor"]["cudagraph_skips"] == 0


@NEEDS_GPU
def test_memory():
    def peak_of(function):
        x = torch.randn(1 << 20, device="cuda", requires_grad=True)
        gradient = torch.ones_like(x)
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        function(x).backward(gradient)
        return torch.cuda.max_memory_allocated() - before

    assert 0 < peak_of(cudarelu.relu) <= peak_of(torch.relu)
    x = torch.randn(1 << 20, device="cuda")
    before = torch.cuda.memory_stats()["allocation.all.allocated"]
    torch.ops.cudarelu.relu_(x)
    cudarelu.nn.ReLU(inplace=True)(x)
    assert torch.cuda.memory_stats()["allocation.all.allocated"] == before


@NEEDS_GPU
def test_tensors_on_two_devices():
    x = torch.ones(4)
    with pytest.raises(RuntimeError, match=r"add: .* a is on cuda:0 and b is on cpu"):
        cudarelu.add(x.cuda(), x)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="there is one CUDA device at most")
def test_device_that_is_not_current():
    torch.cuda.set_device(0)  # an earlier test may have changed it
    x = torch.randn(1000, 33, dtype=torch.float64)
    result = cudarelu.sum_rows(x.to("cuda:1"))
    assert result.device == torch.device("cuda:1")
    assert torch.cuda.current_device() == 0
    torch.testing.assert_close(result.cpu(), x.sum(0))


# Errors

X, INT = torch.zeros(4), torch.tensor([4], dtype=torch.int32)
POINTS, MASKED = torch.zeros(4, 3), np.ma.array([1.0])
RUNTIME, DTYPE = RuntimeError, NotImplementedError
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # deprecated
    QUANTIZED = torch.quantize_per_tensor(X, 0.1, 0, torch.qint8)


class Unsupporting(torch.Tensor):
    @staticmethod
    def __new__(cls, x):
        return torch.Tensor._make_wrapper_subclass(cls, x.shape, dtype=x.dtype)

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        return NotImplemented


@pytest.mark.parametrize(
    ("name", "inputs", "attributes", "error", "message"),
    [
        ("softmax", (X[0],), {}, RUNTIME, r"softmax: x must be \[\*, c\], not \[\]"),
        ("add", (X, X[:3]), {}, RUNTIME, r"add: .* \[4\] in a but \[3\] in b"),
        ("bias_relu", (X, X[:3]), {}, RUNTIME, "bias_relu: dimension c is 4 in x but 3 in bias"),
        ("add", (X, X.to("meta")), {}, RUNTIME, "add: .* a is on cpu and b is on meta"),
        ("knn_query", (POINTS, INT), {"nsample": 0}, RUNTIME, "nsample must be in .*, not 0"),
        ("knn_query", (POINTS, INT + 1), {}, RUNTIME, "which exceeds dimension n, 4"),
        ("knn_query", (POINTS, X), {}, DTYPE, "offset must be int32, not float32"),
        ("tanh", (INT,), {}, DTYPE, "tanh: x is int32; supported dtypes: float32"),
        ("relu", (X * 1j,), {}, DTYPE, "relu: x is complex64; supported dtypes:"),
        ("add", (X, X.double()), {}, DTYPE, "add: b is float64 but a is float32"),
        ("relu", (X > 0,), {}, DTYPE, "relu: x is bool; supported dtypes:"),
        ("relu", (X.to_sparse(),), {}, DTYPE, "cudarelu::relu.*SparseCPU"),
        ("relu", (X[None].to_sparse_csr(),), {}, DTYPE, "cudarelu::relu.*SparseCsrCPU"),
        ("relu", (X.to_mkldnn(),), {}, DTYPE, "cudarelu::relu.*MkldnnCPU"),
        ("relu", (torch.nested.nested_tensor([X]),), {}, DTYPE, "cudarelu::relu.*NestedTensorCPU"),
        ("relu", (torch.nested.nested_tensor([X], layout=torch.jagged),), {}, DTYPE, "relu"),
        ("add", (X, QUANTIZED), {}, DTYPE, "cudarelu::add.*QuantizedCPU"),
        ("relu", (Unsupporting(X),), {}, TypeError, "relu.*returned NotImplemented"),
        ("relu_scale", (X,), {}, TypeError, "relu_scale: scale is missing"),
        ("scale", (X,), {"factor": "1"}, TypeError, "scale: factor must be a float, not str"),
        ("scale", (X,), {"factor": X[0]}, TypeError, "scale: factor must be a float, not Tensor"),
        ("scale", (X,), {"factor": 1j}, TypeError, "scale: factor must be a float, not complex"),
        ("knn_query", (POINTS, INT), {"nsample": 2.0}, TypeError, "must be an int, not float"),
        ("gelu", (X,), {"approximate": "fast"}, ValueError, r"none \(0\) or tanh \(1\), not fast"),
        ("gelu", (X,), {"approximate": "tanh\0"}, ValueError, r"tanh \(1\), not 'tanh\\x00'$"),
        ("gelu", (X,), {"approximate": "\ud800"}, ValueError, r"tanh \(1\), not '\\ud800'$"),
        ("gelu", (X,), {"approximate": 1}, TypeError, "approximate must be a str, not int"),
        ("gelu", (X.numpy(),), {"approximate": ""}, ValueError, r"none \(0\) or tanh \(1\), not $"),
        ("relu", (X,), {"alpha": 1}, TypeError, "relu: has no argument alpha; it has x$"),
        ("relu_scale", (X,), {"alpha": 1, "scale": 1}, TypeError, "alpha; it has x and scale$"),
        ("scale", (X,), {"factor": 10**400}, ValueError, "scale: factor is out of range"),
        ("knn_query", (POINTS, INT), {"nsample": 10**30}, ValueError, "nsample is out of range"),
        ("relu", (), {"y": X}, TypeError, "relu: has no argument y"),
        ("relu_scale", (X,), {"scal": 1}, TypeError, "has no argument scal; it has x and scale$"),
        ("relu", (X,), {"x": X}, TypeError, "relu: x is given twice"),
        ("add", (X,), {}, TypeError, "add: b is missing"),
        ("relu", ([1.0],), {}, TypeError, r"relu: takes torch t.*DLPack\), but x is a list$"),
        ("add", (X, X.numpy()), {}, TypeError, "but a is a torch.Tensor and b is a numpy.ndarray$"),
        ("relu", (MASKED,), {}, TypeError, "but x is a numpy.ma.MaskedArray$"),
        ("relu", (X.numpy() > 0,), {}, TypeError, "relu: x is bool; supported dtypes: float32"),
        ("add", (X.numpy(), X[:3].numpy()), {}, ValueError, r"\[4\] in a but \[3\] in b"),
        ("knn_query", (POINTS.numpy(), INT.numpy() + 1), {}, ValueError, "exceeds dimension n"),
    ],
)
def test_errors(name, inputs, attributes, error, message):
    with pytest.raises(error, match=message) as raised:
        getattr(cudarelu, name)(*inputs, **attributes)
    assert type(raised.value) is error


def freed(x):
    """A tensor like x, not contiguous, whose storage has no memory, as in a sharded model."""
    result = torch.empty((*x.shape, 2), dtype=x.dtype)[..., 1]
    result.untyped_storage().resize_(0)
    return result


@pytest.mark.parametrize("name", OPS)
def test_freed_storage(name):
    op, inputs = OPS[name], inputs_of(OPS[name])
    for i, each in enumerate(op.inputs):
        given = [*inputs[:i], freed(inputs[i]), *inputs[i + 1 :]]
        functions = [call_of(op, getattr(cudarelu, name)), call_of(op)]
        functions += [in_place_of(op)[0]] if op.in_place else []
        for function in functions:
            with pytest.raises(RuntimeError, match=rf"^{name}: {each.name} has elements, but its"):
                function(*given)


def test_storage_freed_before_the_backward_pass():
    x = torch.randn(4, 5, requires_grad=True)
    y = cudarelu.softmax(x)
    y.untyped_storage().resize_(0)
    with pytest.raises(RuntimeError, match="softmax_backward: y has elements, but its storage"):
        y.backward(torch.ones(4, 5))


def test_a_wrong_label_in_the_dispatcher():
    for x in (X, X.to("meta")):
        with pytest.raises(RuntimeError, match=r"must be none \(0\) or tanh \(1\), not fast"):
            torch.ops.cudarelu.gelu(x, approximate="fast")


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_gelu_is_torchs_in_every_derivative(approximate):
    x = torch.linspace(-9, 9, 181, dtype=torch.float64, requires_grad=True)
    ours = functools.partial(cudarelu.gelu, approximate=approximate)
    theirs = functools.partial(torch.nn.functional.gelu, approximate=approximate)
    torch.testing.assert_close(ours(x), theirs(x))
    assert gradcheck(ours, x, check_forward_ad=True)
    assert gradgradcheck(ours, x, check_fwd_over_rev=True)
    small = x[::30]
    hessian = torch.func.hessian(lambda x: ours(x).sum())(small)
    torch.testing.assert_close(hessian, torch.func.hessian(lambda x: theirs(x).sum())(small))
    assert torch.equal(torch.compile(ours, backend="aot_eager")(x), ours(x))
    assert torch.equal(torch.vmap(ours)(x[:, None]), ours(x)[:, None])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_gelu_of_what_overflows(approximate, dtype):
    x = torch.tensor([1e30, -1e30, torch.inf, -torch.inf], dtype=dtype)
    y = cudarelu.gelu(x, approximate=approximate)
    torch.testing.assert_close(
        y, torch.tensor([1e30, 0, torch.inf, torch.nan]).to(y), equal_nan=True
    )
    slope = cudarelu.gelu_backward(torch.ones_like(x), x, approximate=approximate)
    torch.testing.assert_close(slope[:2], torch.tensor([1.0, 0]).to(y))
    curvature = cudarelu.gelu_second_derivative(x, approximate=approximate)
    torch.testing.assert_close(curvature[:2], torch.zeros(2).to(y))


# NumPy


@pytest.mark.parametrize(
    "dtype", [np.float32, np.float16, ml_dtypes.bfloat16, np.int64, np.dtype(">f4")]
)
def test_numpy(dtype):
    x = np.arange(-6, 6).reshape(3, 4).astype(dtype)
    x.flags.writeable = False
    for array in (x, x.T, x[::2, 1:], x[:0], x[0, 0:1].reshape(())):
        y = cudarelu.relu(array)
        assert type(y) is np.ndarray
        assert y.dtype == np.dtype(dtype).newbyteorder("=")
        np.testing.assert_array_equal(y.astype(np.float64), np.maximum(array.astype(np.float64), 0))
    unaligned = np.frombuffer(b"\0" + x.tobytes(), dtype, offset=1)
    np.testing.assert_array_equal(cudarelu.relu(unaligned).ravel(), cudarelu.relu(x).ravel())


def test_numpy_takes_optional_inputs_and_gives_several_outputs():
    points = np.arange(12, dtype=np.float32).reshape(4, 3)
    idx, distance = cudarelu.knn_query(
        points, np.int32([4]), None, new_offset=np.int32([4]), nsample=1
    )
    assert idx.dtype == np.int32
    assert idx.tolist() == [[0], [1], [2], [3]]
    assert distance.tolist() == [[0]] * 4


# The package


def python(code, timeout=None):
    command = [sys.executable, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=timeout)


def test_functions_are_documented_and_pickled():
    for op in OPS.values():
        function = getattr(cudarelu, op.name)
        assert pickle.loads(pickle.dumps(function)) is function
        assert copy.deepcopy(function) is function
        names = [each.name for each in (*op.inputs, *op.attributes)]
        summary, sections = function.__doc__.split("\n\nParameters\n----------\n")
        assert summary == op.summary
        arguments, results, *_ = re.split(r"\n\n\w+\n-+\n", sections)
        assert re.findall(r"^(\w+) : ", arguments, re.MULTILINE) == names
        assert re.findall(r"^(\w+) : ", results, re.MULTILINE) == [x.name for x in op.outputs]
        assert list(inspect.signature(function).parameters) == names


def test_import_is_light_and_checks_the_version_of_torch():
    """The import does not initialize CUDA, nor does it import the compiler or DTensor, which would
    take a second."""
    code = """
import sys, torch
before = set(sys.modules)
import cudarelu
assert not torch.cuda.is_initialized()
new = {name for name in set(sys.modules) - before if name.startswith(("torch.", "onnx", "jax"))}
assert not new, new
"""
    result = python(code)
    assert result.returncode == 0, result.stderr
    result = python("import torch; torch.__version__ = '1.0.0'; import cudarelu")
    assert "ImportError: cudarelu was built for PyTorch" in result.stderr


def test_subclasses_and_modes_see_the_op():
    class Mode(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            return str(function)

    class Own(torch.Tensor):
        pass

    with Mode():
        assert cudarelu.relu(X) == "cudarelu.relu"
    assert type(cudarelu.relu(X.as_subclass(Own))) is Own
