"""TensorFlow as a host of the test matrix, and checks of its derivatives for one op."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import torch

from .._gradients import has_second_derivative
from .._pytorch.functions import FUNCTIONS, overload_of
from .._table import OpInfo
from .cases import Case, unchanged
from .environment import tensorflow_missing
from .features import Feature, has_gradient_in_float64
from .hosts import Host, in_first_tier
from .tiers import batch
from .torch_calls import as_tuple, attributes_of, inputs_of, loss_of, with_grad


class TensorFlow(Host):
    """The ops in a `tf.function` whose sizes are unknown. The cases of an op, a dtype and a tier
    are one graph, since it takes longer to make than to run."""

    name = "tensorflow-cpu"
    runtime = "tensorflow"
    device = "cpu"

    def unavailable(self) -> str | None:
        return tensorflow_missing()

    def run(self, op: OpInfo, case: Case) -> list[np.ndarray]:
        return _results(op, case.dtype.name, in_first_tier(self, op, case))[case.id]


@functools.lru_cache(maxsize=2)  # one for each tier
def _results(op: OpInfo, dtype: str, first: bool) -> dict[str, list[np.ndarray]]:
    """The outputs of the cases of a tier, by case."""
    import tensorflow as tf

    runs = list(batch(op, "tensorflow", [dtype], first))
    function = FUNCTIONS[op.qualified_name]

    @tf.function(autograph=False)
    def graph(*tensors: Any) -> Any:
        remaining = iter(tensors)
        return [
            as_tuple(
                function(
                    *(x if x is None else next(remaining) for x in case.inputs.values()),
                    **case.attributes,
                )
            )
            for case in runs
        ]

    arrays = [x for case in runs for x in case.inputs.values() if x is not None]
    specs = [tf.TensorSpec([None] * x.ndim, x.dtype) for x in arrays]
    with unchanged(*runs), tf.device("CPU"):
        results = graph.get_concrete_function(*specs)(*map(tf.constant, arrays))
    return {
        case.id: [y.numpy() for y in outputs] for case, outputs in zip(runs, results, strict=True)
    }


def _attributes(op: OpInfo) -> dict[str, Any]:
    """Values of the attributes that are exact in float32, TensorFlow's type."""
    defaults = {
        each.name: float(np.float32(each.default))
        for each in op.attributes
        if each.type == "float" and isinstance(each.default, float | int)
    }
    return defaults | attributes_of(op)


def _compare(op: OpInfo, actual: Any, expected: tuple[torch.Tensor, ...]) -> None:
    # The functions around the op differ by a rounding, of float32 where a tensor is.
    tolerance = 1e-6 if any(p.dtype == "float32" for p in (*op.inputs, *op.outputs)) else 1e-9
    for a, e in zip(actual, expected, strict=True):
        wide = e.detach().numpy()
        found = np.zeros_like(wide) if a is None else a.numpy()  # None: the gradient is zero
        np.testing.assert_allclose(found, wide, tolerance, tolerance * np.abs(wide).max(initial=1))


def _derivatives(op: OpInfo, device: str, second: bool) -> None:
    """The gradients of a loss, or of the sum of its gradients, eagerly and in a graph."""
    import tensorflow as tf

    inputs, attributes = inputs_of(op), _attributes(op)
    leaves = with_grad(inputs)
    chosen = [x for x in leaves if x.is_floating_point()]
    loss = loss_of(overload_of(op)(*leaves, **attributes))
    expected = torch.autograd.grad(loss, chosen, create_graph=second, materialize_grads=True)
    if second:
        summed = torch.stack([g.cos().sum() for g in expected]).sum()
        expected = torch.autograd.grad(summed, chosen, materialize_grads=True)

    def gradients(*arrays: Any) -> Any:
        moved = [x for x in arrays if x.dtype.is_floating]
        with tf.GradientTape() as outer:
            outer.watch(moved)
            with tf.GradientTape() as tape:
                tape.watch(moved)
                outputs: Any = as_tuple(FUNCTIONS[op.qualified_name](*arrays, **attributes))
                total = tf.add_n(
                    [
                        tf.reduce_sum(tf.cast(y, tf.float64) ** 2)
                        for y in outputs
                        if y.dtype.is_floating
                    ]
                )
            found = tape.gradient(total, moved, unconnected_gradients="zero")
            again = tf.add_n([tf.reduce_sum(tf.cast(tf.cos(g), tf.float64)) for g in found])
        if second:
            return outer.gradient(again, moved, unconnected_gradients="zero")
        return found

    with tf.device("CPU"):
        tensors = [tf.constant(x.numpy()) for x in inputs]
        _compare(op, gradients(*tensors), expected)
        specs = [tf.TensorSpec([None] * x.shape.rank, x.dtype) for x in tensors]
        graph = tf.function(gradients, autograph=False).get_concrete_function(*specs)
        _compare(op, graph(*tensors), expected)


TENSORFLOW_FEATURES = [
    Feature(
        "gradients",
        functools.partial(_derivatives, second=False),
        has_gradient_in_float64,
        compiles=True,
    ),
    Feature(
        "second-gradients",
        functools.partial(_derivatives, second=True),
        lambda op: has_gradient_in_float64(op) and has_second_derivative(op),
        compiles=True,
    ),
]
