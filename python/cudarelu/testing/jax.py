"""JAX's transforms as hosts of the test matrix, and checks of its other transforms for one op."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from .._gradients import derivative_of, has_second_derivative
from .._pytorch.functions import FUNCTIONS, overload_of
from .._table import OpInfo
from .cases import Case, unchanged
from .environment import jax_missing
from .features import Feature, batches_of, has_gradient_in_float64
from .hosts import OnDevice, Torch, in_first_tier, numpy_of
from .reference import largest_finite
from .tiers import batch
from .torch_calls import as_tuple, attributes_of, call_of, inputs_of, loss_of, with_grad

Arrays = list[Any]  # of JAX or NumPy; None for an absent input


def _of(op: OpInfo, attributes: dict[str, Any]) -> Callable[..., tuple[Any, ...]]:
    """The op as a function of arrays only, with a tuple of outputs."""
    return lambda *arrays: as_tuple(FUNCTIONS[op.qualified_name](*arrays, **attributes))


def _is_float(x: Any) -> bool:
    return x is not None and np.dtype(x.dtype).name in ("float64", "float32", "float16", "bfloat16")


class JaxJit(OnDevice):
    """The ops under `jax.jit`. The cases of an op, a dtype and a tier are one program, since it
    takes longer to compile than to run."""

    prefix = runtime = "jax-jit"

    def unavailable(self) -> str | None:
        return jax_missing(self.device)

    def run(self, op: OpInfo, case: Case) -> list[np.ndarray]:
        first = in_first_tier(self, op, case)
        results, expected_gradients = _results(self, op, case.dtype.name, first)
        outputs, gradients = results[case.id]
        expected = expected_gradients(case)
        # The terms of a gradient may cancel out, as of a row of one element that is normalized. If
        # the larger gradients are NaN, those that are left may all be such.
        has_nan = any(np.isnan(each.astype(np.float64)).any() for each in expected.values())
        lowest = 1 if has_nan else 0  # the order of the inputs
        largest = max([lowest, *map(largest_finite, expected.values())])
        for name, each in expected.items():
            _assert_alike(gradients[name], each, largest, f"the gradient of {name}")
        return outputs

    def traced(self, op: OpInfo, case: Case, arrays: Arrays) -> tuple[Any, dict[str, Any]]:
        """The outputs and the gradients to compare with PyTorch's."""
        return _of(op, case.attributes)(*arrays), {}

    def expected(self, op: OpInfo, case: Case) -> dict[str, np.ndarray]:
        return {}


class JaxGrad(JaxJit):
    """The ops under `jax.vjp`, in a program: values, and gradients, which equal PyTorch's."""

    prefix = runtime = "jax-grad"

    def serves(self, op: OpInfo, dtype: str) -> bool:
        return super().serves(op, dtype) and bool(op.gradient) and "float" in dtype

    def traced(self, op: OpInfo, case: Case, arrays: Arrays) -> tuple[Any, dict[str, Any]]:
        import jax

        names = [p.name for p in op.inputs]
        moved = [names.index(name) for name in _differentiable(op, case)]

        def outputs_of(chosen: Sequence[Any]) -> tuple[Any, Any]:
            given = list(arrays)
            for i, x in zip(moved, chosen, strict=True):
                given[i] = x
            outputs = _of(op, case.attributes)(*given)
            return [y for y in outputs if _is_float(y)], outputs

        floats, pull, outputs = jax.vjp(outputs_of, [arrays[i] for i in moved], has_aux=True)
        (gradients,) = pull([jax.numpy.asarray(_weights(y.shape), y.dtype) for y in floats])
        return outputs, {names[i]: g for i, g in zip(moved, gradients, strict=True)}

    def expected(self, op: OpInfo, case: Case) -> dict[str, np.ndarray]:
        host = Torch("cpu")
        tensors = {name: host.tensor(x) for name, x in case.inputs.items()}
        chosen = _differentiable(op, case)
        leaves = [x.requires_grad_() for name in chosen if (x := tensors[name]) is not None]
        outputs = as_tuple(overload_of(op)(*tensors.values(), **case.attributes))
        floats = [y for y in outputs if y.requires_grad]
        weights = [torch.from_numpy(_weights(tuple(y.shape))).to(y.dtype) for y in floats]
        gradients = torch.autograd.grad(floats, leaves, weights, materialize_grads=True)
        return {name: numpy_of(g) for name, g in zip(chosen, gradients, strict=True)}


def _differentiable(op: OpInfo, case: Case) -> list[str]:
    terms = derivative_of(op).terms
    given = zip(op.inputs, case.inputs.values(), strict=True)
    return [
        p.name for i, (p, x) in enumerate(given) if i in terms and x is not None and x.dtype != bool
    ]


def _weights(shape: tuple[int, ...]) -> np.ndarray:
    """Different numbers that all dtypes hold exactly."""
    return np.asarray((np.arange(np.prod(shape, dtype=int)) % 7 - 2.5) / 4).reshape(shape)


_TOLERANCES = {"float64": 1e-10, "float32": 1e-4, "float16": 2e-2, "bfloat16": 1e-1}


def _assert_alike(actual: Any, expected: np.ndarray, largest: float, what: str) -> None:
    """Products of matrices and sums differ in the order of their terms, of which `largest` is the
    magnitude."""
    assert actual.shape == expected.shape
    assert actual.dtype == expected.dtype
    limit = _TOLERANCES[expected.dtype.name]
    np.testing.assert_allclose(
        np.asarray(actual).astype(np.float64),
        expected.astype(np.float64),
        rtol=limit,
        atol=limit * largest,
        err_msg=what,
    )


@functools.lru_cache(maxsize=8)  # one for each host and tier
def _results(host: JaxJit, op: OpInfo, dtype: str, first: bool) -> tuple[dict[str, Any], Any]:
    """The outputs and gradients of the cases of a tier, by case, and the function for what is
    expected."""
    import jax

    runs = list(batch(op, host.runtime, [dtype], first))
    (device, *_) = jax.devices(host.device)

    @jax.jit
    def program(batches: list[Arrays]) -> Any:
        return [host.traced(op, case, x) for case, x in zip(runs, batches, strict=True)]

    batches = [
        [x if x is None else jax.device_put(x, device) for x in case.inputs.values()]
        for case in runs
    ]
    with unchanged(*runs):
        results = jax.tree.map(np.asarray, program(batches))
    named = {case.id: (list(y), g) for case, (y, g) in zip(runs, results, strict=True)}
    return named, functools.partial(host.expected, op)


# Other transforms, for float64


def _numpy(tensors: Sequence[torch.Tensor]) -> list[np.ndarray]:
    return [x.detach().cpu().numpy() for x in tensors]


def _on(device: str, tensors: Sequence[torch.Tensor]) -> Arrays:
    import jax

    (chosen, *_) = jax.devices(device)
    return [jax.device_put(x, chosen) for x in _numpy(tensors)]


def _loss(op: OpInfo) -> Callable[..., Any]:
    """The same scalar as `loss_of` in PyTorch."""
    function = _of(op, attributes_of(op))
    return lambda *arrays: sum((y**2).sum() for y in function(*arrays) if _is_float(y))


def _compare(actual: Any, expected: Sequence[torch.Tensor]) -> None:
    for a, e in zip(actual, _numpy(expected), strict=True):
        np.testing.assert_allclose(
            np.asarray(a), e, rtol=1e-9, atol=1e-9 * np.abs(e).max(initial=1)
        )


def _second_derivatives(op: OpInfo, device: str) -> None:
    """The product of the Hessian and a vector, by three pairs of modes, or by reverse mode alone if
    the gradients have no forward mode."""
    import jax

    inputs = inputs_of(op)
    floating = tuple(i for i, x in enumerate(inputs) if x.is_floating_point())
    loss, arrays = _loss(op), _on(device, inputs)
    leaves = with_grad(inputs)
    chosen = [leaves[i] for i in floating]
    directions = [torch.cos(x.detach() * 3) for x in chosen]
    first = torch.autograd.grad(
        loss_of(call_of(op)(*leaves)), chosen, create_graph=True, materialize_grads=True
    )
    products = [(g * v).sum() for g, v in zip(first, directions, strict=True)]
    expected = torch.autograd.grad(torch.stack(products).sum(), chosen, materialize_grads=True)
    moved = [arrays[i] for i in floating]
    vectors = _on(device, directions)

    def at(*given: Any) -> Any:
        all_of_them = list(arrays)
        for i, x in zip(floating, given, strict=True):
            all_of_them[i] = x
        return loss(*all_of_them)

    argnums = tuple(range(len(moved)))
    gradient = jax.grad(at, argnums)
    _compare(gradient(*moved), first)

    def directional(*given: Any) -> Any:
        return jax.jvp(at, given, tuple(vectors))[1]

    def weighted(*given: Any) -> Any:
        return sum((g * v).sum() for g, v in zip(gradient(*given), vectors, strict=True))

    _compare(jax.jit(jax.grad(weighted, argnums))(*moved), expected)
    if not has_second_derivative(op, forward=True):
        return
    forward_over_reverse = jax.jit(lambda *given: jax.jvp(gradient, given, tuple(vectors))[1])
    _compare(forward_over_reverse(*moved), expected)
    _compare(jax.jit(jax.grad(directional, argnums))(*moved), expected)


def _vmap(function: Callable[..., Any], op: OpInfo, device: str) -> None:
    """vmap over choices of batched inputs, each of which is compiled, compared with a loop."""
    import jax

    inputs = inputs_of(op)
    one_sample = jax.jit(function)
    for _, samples, stacked, axes in batches_of(inputs, -1, max_inputs=3):
        actual = jax.jit(jax.vmap(function, axes))(*_on(device, stacked))
        for i in range(len(next(x for x in samples if isinstance(x, list)))):
            one = [x[i] if isinstance(x, list) else x for x in samples]
            for a, e in zip(actual, one_sample(*_on(device, one)), strict=True):
                wide = np.asarray(e)
                np.testing.assert_allclose(np.asarray(a[i]), wide, rtol=1e-9, atol=1e-9)


def _vmap_values(op: OpInfo, device: str) -> None:
    _vmap(_of(op, attributes_of(op)), op, device)


def _vmap_gradients(op: OpInfo, device: str) -> None:
    import jax

    inputs = inputs_of(op)
    floating = tuple(i for i, x in enumerate(inputs) if x.is_floating_point())
    _vmap(jax.grad(_loss(op), argnums=floating), op, device)


def _scan(op: OpInfo, device: str) -> None:
    import jax

    arrays = _on(device, inputs_of(op))
    function = _of(op, attributes_of(op))
    _, stacked = jax.lax.scan(lambda c, _: (c, function(*arrays)), 0, length=2)
    for actual, expected in zip(stacked, function(*arrays), strict=True):
        np.testing.assert_array_equal(np.asarray(actual[1]), np.asarray(expected))


def _export(op: OpInfo, device: str) -> None:
    """A program of `jax.export` gives the same results; one for CUDA can be made anywhere."""
    import jax

    import cudarelu.jax

    arrays = _on(device, inputs_of(op))
    function = jax.jit(_of(op, attributes_of(op)))
    checks = cudarelu.jax.export_checks()
    for platform in op.devices:
        export = jax.export.export(function, platforms=[platform], disabled_checks=checks)
        text = export(*arrays).serialize()
        if platform == device:
            results = jax.export.deserialize(text).call(*arrays)
            for actual, expected in zip(results, function(*arrays), strict=True):
                np.testing.assert_array_equal(np.asarray(actual), np.asarray(expected))


JAX_FEATURES = [
    Feature(
        "second-derivatives",
        _second_derivatives,
        lambda op: has_gradient_in_float64(op) and has_second_derivative(op),
        compiles=True,
    ),
    Feature("vmap", _vmap_values, compiles=True),
    Feature("vmap-gradients", _vmap_gradients, has_gradient_in_float64, compiles=True),
    Feature("scan", _scan, compiles=True),
    Feature("export", _export, compiles=True),
]
