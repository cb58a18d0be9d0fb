"""Checks of PyTorch's features for one op: gradients, in-place forms, vmap, compilers, streams.

The results of plain calls for all dtypes are checked in `matrix`.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import operator
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.autograd import gradcheck, gradgradcheck
from torch.func import grad, vmap

from .._gradients import derivative_of, has_forward_mode, has_second_derivative
from .._pytorch.functions import FUNCTIONS, overload_of
from .._table import OWN_NAMESPACE, OpInfo
from .cases import has_many_dimensions
from .torch_calls import (
    LAYOUTS,
    as_tuple,
    attributes_of,
    call_of,
    in_place_of,
    inputs_of,
    loss_of,
    with_grad,
)

Tensors = Sequence[torch.Tensor]


@dataclasses.dataclass(frozen=True)
class Feature:
    """A check of an op on a device."""

    name: str
    run: Callable[[OpInfo, str], None]  # takes the op and the device; raises AssertionError
    applies: Callable[[OpInfo], bool] = lambda op: True
    devices: tuple[str, ...] = ("cpu", "cuda")
    compiles: bool = False  # or traces, for a second and more


def wide_dtype(op: OpInfo) -> str:
    """The dtype that features are checked for: float64, if the op has it."""
    return "float64" if "float64" in op.dtypes else op.dtypes[0]


def has_gradient_in_float64(op: OpInfo) -> bool:
    """Whether the gradient can be compared with the gradient of another host."""
    return bool(op.gradient) and "float64" in op.dtypes


def features(op: OpInfo) -> Iterator[tuple[str, Feature]]:
    """The features to check for an op, each with the dtype that it is checked for."""
    for feature in FEATURES:
        if feature.applies(op):
            yield wide_dtype(op), feature
    for dtype in op.dtypes:
        yield dtype, Feature("opcheck", functools.partial(_opcheck, dtype, False), compiles=True)
        if op.has_in_place_op:
            run = functools.partial(_opcheck, dtype, True)
            yield dtype, Feature("opcheck-in-place", run, compiles=True)


def _equal(actual: Any, expected: Any) -> None:
    torch.testing.assert_close(actual, expected, rtol=0, atol=0)


def _refuses(error: type[Exception], message: str, call: Callable[[], Any]) -> None:
    found = "no error is raised"
    try:
        call()
    except error as raised:
        found = str(raised)
    assert message in found, f"expected the error {message!r}, but {found}"


# Gradients


def _check_gradients(op: OpInfo, function: Callable[..., Any], device: str) -> None:
    """Compares gradients with differences of results.

    Not compared are

    - inputs and outputs of float32 beside float64, whose differences are too coarse;
    - inputs of another library's op that have no gradient, which need not be zero.
    """
    dtype = getattr(torch, wide_dtype(op))
    inputs = inputs_of(op, (2,) if has_many_dimensions(op) else (2, 3), device=device)
    compared = range(len(inputs)) if op.namespace == OWN_NAMESPACE else derivative_of(op).terms
    inputs = [x.requires_grad_(x.dtype == dtype and i in compared) for i, x in enumerate(inputs)]

    def exact(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        outputs = as_tuple(function(*tensors))
        return tuple(y for y in outputs if y.dtype == dtype or not y.is_floating_point())

    assert gradcheck(exact, inputs, check_forward_ad=has_forward_mode(op))
    if has_second_derivative(op):
        # Gradients that depend on an output of float32 have its rounding, not in this library.
        recorded = derivative_of(op).op
        rounded = any(each.dtype == "float32" for each in recorded.outputs) and dtype.itemsize > 4
        coarse = rounded and op.namespace != OWN_NAMESPACE
        step, limit = (1e-3, 1e-3) if coarse else (1e-6, 1e-5)
        forward = has_second_derivative(op, forward=True)
        assert gradgradcheck(exact, inputs, eps=step, atol=limit, check_fwd_over_rev=forward)


def _gradients(op: OpInfo, device: str) -> None:
    _check_gradients(op, call_of(op), device)


def _no_gradient(op: OpInfo, device: str) -> None:
    """Backward is refused."""
    outputs = as_tuple(call_of(op)(*with_grad(inputs_of(op))))
    for parameter, output in zip(op.outputs, outputs, strict=True):
        wanted = output.is_floating_point() and parameter.dtype == "T"
        assert output.requires_grad == wanted, f"{parameter.name}: requires_grad is not {wanted}"
        if output.requires_grad:
            message = f"derivative for '{op.qualified_name}'"
            _refuses(NotImplementedError, message, output.sum().backward)


def _saved_tensors_elsewhere(op: OpInfo, device: str) -> None:
    """What is saved for the gradient may be moved to other memory and back."""
    function = call_of(op)
    inputs, packed = (with_grad(inputs_of(op, device=device)) for _ in range(2))
    loss_of(function(*inputs)).backward()
    with torch.autograd.graph.saved_tensors_hooks(
        lambda tensor: tensor.detach().cpu().numpy().copy(),
        lambda array: torch.from_numpy(array).to(device),
    ):
        result = function(*packed)
    loss_of(result).backward()
    for actual, expected in zip(packed, inputs, strict=True):
        torch.testing.assert_close(actual.grad, expected.grad)


def _autocast(op: OpInfo, device: str) -> None:
    inputs = inputs_of(op, device=device)
    floating = [
        i for i, x in enumerate(inputs) if x.is_floating_point() and op.inputs[i].dtype == "T"
    ]
    half = [x.bfloat16() if i in floating else x for i, x in enumerate(inputs)]
    mixed = [x.float() if i == floating[-1] else x for i, x in enumerate(half)]
    expected = torch.float32 if op.autocast == "float32" else torch.bfloat16
    promoted = torch.bfloat16 if op.autocast == "lower" else torch.float32
    with torch.autocast(device, dtype=torch.bfloat16):
        for arguments, dtype in ((half, expected), (mixed, promoted), (inputs, torch.float64)):
            results = as_tuple(call_of(op, FUNCTIONS[op.qualified_name])(*arguments))
            for each, output in zip(op.outputs, results, strict=True):
                assert each.dtype != "T" or output.dtype == dtype, (
                    f"{each.name} under autocast is {output.dtype}, not {dtype}"
                )
        if not op.gradient:
            return
        leaves = with_grad(mixed)
        as_tuple(call_of(op)(*leaves))[0].sum().backward()
    for x in leaves:
        assert x.grad is None or x.grad.dtype == x.dtype, (
            f"under autocast, the gradient of {x.dtype} is {x.grad.dtype}"
        )


# In place


def _in_place(layout: str, op: OpInfo, device: str) -> None:
    function, target = in_place_of(op)
    inputs = inputs_of(op, device=device)
    expected = call_of(op)(*inputs)
    base = LAYOUTS[layout](inputs[target])
    inputs[target] = base[:]
    version = base._version
    function(*inputs)
    _equal(base, expected)
    assert base._version == version + 1, "the in-place op did not increment the version once"


def _on_a_copy(op: OpInfo, view: bool) -> Callable[..., torch.Tensor]:
    """The in-place form as a function that returns its result. If a view of that is overwritten,
    its history is rebased."""
    function, target = in_place_of(op)

    def on_a_copy(*given: torch.Tensor) -> torch.Tensor:
        tensors = list(given)
        base = tensors[target] * 2
        tensors[target] = base.view(base.shape) if view else base
        function(*tensors)
        return base

    return on_a_copy


def _in_place_gradients(view: bool, op: OpInfo, device: str) -> None:
    _check_gradients(op, _on_a_copy(op, view), device)


# vmap, compared with a loop over the samples

BATCH = 3


def samples_of(x: torch.Tensor, count: int = BATCH) -> list[torch.Tensor]:
    """Different inputs of the same shape and kind as x."""
    if x.is_floating_point():
        factor = 1.5 if (x > 0).all() else -1.5  # positive inputs may be required to be positive
        return [x * factor**i for i in range(count)]
    return [torch.cat([torch.full_like(x[:1], i), x[1:]]) for i in range(count)]  # offsets


def subsets(inputs: Tensors, max_inputs: int = 5) -> list[tuple[bool, ...]]:
    """Every choice of one or more batched inputs; if there are more than `max_inputs`, only the
    choices of all, of one, and of all but one."""
    count = len(inputs)
    if count <= max_inputs:
        return [c for c in itertools.product([True, False], repeat=count) if any(c)]
    ones = [tuple(i == each for i in range(count)) for each in range(count)]
    return [(True,) * count, *ones, *(tuple(not x for x in each) for each in ones)]


def looped(
    function: Callable[..., Any], batches: Sequence[Any], batched: Sequence[bool]
) -> tuple[torch.Tensor, ...]:
    """The stacked results of `function` for each sample; a batch is a list of samples."""
    count = next(len(x) for x, b in zip(batches, batched, strict=True) if b)
    results = [
        as_tuple(function(*(x[i] if b else x for x, b in zip(batches, batched, strict=True))))
        for i in range(count)
    ]
    return tuple(map(torch.stack, zip(*results, strict=True)))


def batches_of(inputs: Tensors, in_dim: int, max_inputs: int = 5) -> Iterator[tuple[Any, ...]]:
    """For every choice of batched inputs: which are batched, the inputs with lists of samples, the
    arguments of vmap, and where they are batched."""
    for batched in subsets(inputs, max_inputs):
        batches = [samples_of(x) if b else x for x, b in zip(inputs, batched, strict=True)]
        arguments = [torch.stack(x, in_dim) if isinstance(x, list) else x for x in batches]
        yield batched, batches, arguments, tuple(in_dim if b else None for b in batched)


def check_vmap(function: Callable[..., Any], inputs: Tensors, in_dim: int, **options: Any) -> None:
    """Raises AssertionError if vmap differs from a loop for a choice of batched inputs."""
    for batched, batches, arguments, in_dims in batches_of(inputs, in_dim):
        with warnings.catch_warnings():  # of an op that has no batching rule
            warnings.filterwarnings("error", "There is a performance drop")
            actual = vmap(function, in_dims, **options)(*arguments)
        torch.testing.assert_close(as_tuple(actual), looped(function, batches, batched))


def _vmap(in_dim: int, op: OpInfo, device: str) -> None:
    check_vmap(call_of(op), inputs_of(op), in_dim)


def _vmap_without_leading_dimensions(op: OpInfo, device: str) -> None:
    check_vmap(call_of(op), inputs_of(op, lead=()), 0)


def _vmap_gradients(in_dim: int, op: OpInfo, device: str) -> None:
    inputs = inputs_of(op)
    floating = tuple(i for i, x in enumerate(inputs) if x.is_floating_point())

    def scalar(*tensors: torch.Tensor) -> Any:
        return loss_of(call_of(op)(*tensors))

    check_vmap(grad(scalar, argnums=floating), inputs, in_dim)


def _vmap_in_place(in_dim: int, op: OpInfo, device: str) -> None:
    """The batch itself is overwritten. A target without a batch is rejected."""
    function, target = in_place_of(op)
    inputs = inputs_of(op)
    for batched, batches, arguments, in_dims in batches_of(inputs, in_dim):
        overwrite = vmap(function, in_dims)
        if batched[target]:
            (expected,) = looped(call_of(op), batches, batched)
            overwrite(*arguments)
            torch.testing.assert_close(arguments[target].movedim(in_dim, 0), expected)
        else:
            call = functools.partial(overwrite, *arguments)
            _refuses(RuntimeError, "vmap: inplace arithmetic", call)


# Compilers


def _check_compiled_backward(
    function: Callable[..., Any], inputs_at: Callable[[int], Tensors]
) -> Any:
    """Compiled gradients equal eager ones, and one graph serves the backward of every size."""
    from torch._dynamo import compiled_autograd
    from torch._dynamo.testing import CompileCounterWithBackend
    from torch._dynamo.utils import counters

    torch._dynamo.reset()
    counters.clear()
    counter = CompileCounterWithBackend("aot_eager")
    for size in (5, 5, 7):
        # With float64, the compiler needs two attempts for a graph, even for torch's ops.
        inputs = [x.float() if x.is_floating_point() else x for x in inputs_at(size)]
        compiled, eager = with_grad(inputs), with_grad(inputs)
        loss_of(function(*eager)).backward()
        loss = loss_of(function(*compiled))
        torch_compile = torch.compile(backend=counter, fullgraph=True, dynamic=True)
        with compiled_autograd._enable(torch_compile):
            loss.backward()
        for actual, expected in zip(compiled, eager, strict=True):
            torch.testing.assert_close(actual.grad, expected.grad)
    captures = counters["compiled_autograd"]["captures"]
    assert captures == 1, f"the backward of three sizes was captured {captures} times"
    return counter


def _check_one_graph(counter: Any) -> None:
    count = counter.frame_count
    assert count == 1, f"the compiler made {count} graphs, not one for all sizes"


def _compiled_backward(op: OpInfo, device: str) -> None:
    counter = _check_compiled_backward(
        call_of(op), lambda size: inputs_of(op, (size, size + 1), size + 2, device=device)
    )
    _check_one_graph(counter)
    node = f"CppNode{derivative_of(op).op.onnx.op_type}Backward"
    assert node in counter.graphs[0].code, f"the compiled backward does not call {node}"


def _compiled_backward_in_place(view: bool, op: OpInfo, device: str) -> None:
    _check_compiled_backward(
        _on_a_copy(op, view), lambda size: inputs_of(op, (size, size + 1), size + 2)
    )


def _meta(layout: str, op: OpInfo, device: str) -> None:
    """The meta device gives the real dtypes, sizes and strides."""
    elementwise = all(each.dims == ("*",) for each in (*op.inputs, *op.outputs))
    dense = inputs_of(op, lead=(2, 3, 4, 5) if elementwise else (2, 3, 4))
    inputs = [LAYOUTS[layout](x) if x.dim() == 4 else x for x in dense]
    expected = as_tuple(call_of(op)(*dense))
    real = as_tuple(call_of(op)(*inputs))
    meta = as_tuple(call_of(op)(*(x.to("meta") for x in inputs)))
    for r, m, e in zip(real, meta, expected, strict=True):
        found, wanted = ((y.dtype, y.shape, y.stride()) for y in (m, r))
        assert found == wanted, f"the meta device gives {found}, not {wanted}"
        if layout != "expanded":  # it has other values
            _equal(r, e)
        keeps = op.elementwise and layout in ("channels_last", "transposed")
        strides = (inputs[0] if keeps else e).stride()
        assert r.stride() == strides, f"{layout}: the strides are {r.stride()}, not {strides}"


def _other_sizes(op: OpInfo) -> list[int]:
    """Two numbers n so that n to n + 2 are no fixed sizes of the op: the compiler would take equal
    sizes for one."""
    fixed = {dim for each in op.inputs for dim in each.dims if isinstance(dim, int)}
    return [n for n in range(7, 100, 4) if fixed.isdisjoint(range(n, n + 3))][:2]


def _compile(op: OpInfo, device: str) -> None:
    """One graph serves every size."""
    from torch._dynamo.testing import CompileCounterWithBackend

    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    function = call_of(op, FUNCTIONS[op.qualified_name])
    compiled = torch.compile(function, backend=counter, fullgraph=True, dynamic=True)
    for size in _other_sizes(op):
        inputs = inputs_of(op, (size, size + 1), size + 2)
        actual = compiled(*(with_grad(inputs) if op.gradient else inputs))
        _equal(actual, function(*inputs))
        if op.gradient:
            loss_of(actual).backward()
    _check_one_graph(counter)


def _opcheck(dtype: str, in_place: bool, op: OpInfo, device: str) -> None:
    inputs = [
        (4 * x).to(getattr(torch, dtype)) if parameter.dtype == "T" else x
        for parameter, x in zip(op.inputs, inputs_of(op, device=device), strict=True)
    ]
    if op.gradient and not in_place:
        inputs = with_grad(inputs)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.library.opcheck(overload_of(op, in_place), tuple(inputs), attributes_of(op))


# Streams and CUDA graphs


def _copy_all(targets: Tensors, sources: Tensors) -> None:
    for target, source in zip(targets, sources, strict=True):
        target.copy_(source)


def _others_of(inputs: Tensors) -> list[torch.Tensor]:
    """Other values of the same kind; offsets do not change."""
    return [-1.5 * x.flip(0) if x.is_floating_point() else x for x in inputs]


def _cuda_graph(op: OpInfo, device: str) -> None:
    """A capture allows only work on its stream, and no synchronization with the device."""
    function = call_of(op, FUNCTIONS[op.qualified_name])
    inputs = inputs_of(op, device=device)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = function(*inputs)
    for values in (inputs_of(op, device=device), _others_of(inputs)):
        _copy_all(inputs, values)
        graph.replay()
        _equal(captured, function(*values))


def _slow_copy(targets: Tensors, sources: Tensors, cycles: int) -> None:
    """Queues a copy on the current stream, after `cycles` clock cycles of other work."""
    torch.cuda._sleep(cycles)
    _copy_all(targets, sources)


def _side_stream(captured: bool, op: OpInfo, device: str) -> None:
    """The op reads what a slow producer on the same stream writes. On another stream, such as the
    default one, the op would read the values before this."""
    function = call_of(op, FUNCTIONS[op.qualified_name])
    values = inputs_of(op, device=device)
    expected = function(*values)
    # 50 milliseconds; on a busy machine, the host may not have queued the op before they are over.
    for cycles in (100_000_000, 2_000_000_000):
        inputs = _others_of(values)
        torch.cuda.synchronize()
        stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
        if captured:
            with torch.cuda.graph(graph, stream=stream):
                _slow_copy(inputs, values, cycles)
                actual = function(*inputs)
        with torch.cuda.stream(stream):
            if captured:
                graph.replay()
            else:
                _slow_copy(inputs, values, cycles)
                actual = function(*inputs)
        if in_time := not stream.query():
            break
    assert in_time, "the call waits for the device"
    stream.synchronize()
    _equal(actual, expected)


def _has_gradient(op: OpInfo) -> bool:
    """Whether the op has a gradient that can be compared with differences of results."""
    return bool(op.gradient) and {"float32", "float64"} <= set(op.dtypes)


def _has_both(op: OpInfo) -> bool:
    return _has_gradient(op) and op.has_in_place_op


def _each(
    name: str, run: Callable[..., None], values: dict[str, Any], *options: Any, **more: Any
) -> list[Feature]:
    """A feature for each value of the first argument of `run`."""
    return [
        Feature(f"{name}-{key}", functools.partial(run, value), *options, **more)
        for key, value in values.items()
    ]


_has_in_place = operator.attrgetter("has_in_place_op")
_CPU = ("cpu",)
_CUDA = ("cuda",)
_FORMS = {"base": False, "view": True}
_ENDS = {"first": 0, "last": -1}
_IN_PLACE = ("contiguous", "transposed", "strided")

FEATURES = [
    Feature("gradients", _gradients, _has_gradient),
    Feature("no-gradient", _no_gradient, lambda op: not op.gradient, _CPU),
    Feature("saved-tensors-elsewhere", _saved_tensors_elsewhere, _has_gradient),
    Feature("autocast", _autocast, lambda op: {"bfloat16", "float32", "float64"} <= {*op.dtypes}),
    *_each("in-place", _in_place, {name: name for name in _IN_PLACE}, _has_in_place),
    *_each("in-place-gradients", _in_place_gradients, _FORMS, _has_both),
    *_each("vmap", _vmap, _ENDS, devices=_CPU),
    Feature("vmap-rows", _vmap_without_leading_dimensions, devices=_CPU),
    *_each("vmap-gradients", _vmap_gradients, _ENDS, _has_gradient, _CPU),
    *_each("vmap-in-place", _vmap_in_place, _ENDS, _has_in_place, _CPU),
    *_each("meta", _meta, {name: name for name in LAYOUTS}, devices=_CPU),
    Feature("compile", _compile, devices=_CPU, compiles=True),
    Feature("compiled-backward", _compiled_backward, _has_gradient, compiles=True),
    *_each(
        "compiled-backward-in-place", _compiled_backward_in_place, _FORMS, _has_both, _CPU, True
    ),
    Feature("cuda-graph", _cuda_graph, devices=_CUDA),
    Feature("side-stream", functools.partial(_side_stream, False), devices=_CUDA),
    Feature("side-stream-captured", functools.partial(_side_stream, True), devices=_CUDA),
]
