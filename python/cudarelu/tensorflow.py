"""The ops in TensorFlow on the CPU: eagerly, in tf.function, in Keras and in a SavedModel.

The functions of the ops take TensorFlow's tensors and variables as they take other arrays::

    @tf.function
    def loss(x, weight, bias):
        return tf.reduce_mean(cudarelu.linear_gelu(x, weight, bias) ** 2)

The import of this module registers the ops of all loaded op modules with TensorFlow, with their
gradients, which a SavedModel needs: "Cudarelu>LinearGelu". Without this package,
``tf.load_op_library(path)`` does so for the library at ``library_path()``.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from cudarelu import _C
from cudarelu._cache import cache_folder, check_private, explained, make_private
from cudarelu._calls import Numbers, numbers_of, output_types, result_of, type_name, with_absent
from cudarelu._gradients import Evaluator, derivative_of
from cudarelu._table import OWN_NAMESPACE, OpInfo, op_named

if TYPE_CHECKING:
    from cudarelu._modules import OpModule

__all__ = ["library_path"]

_FUNCTIONS: dict[str, Callable[..., Any]] = {}  # TensorFlow's, by qualified name


def library_path(module: OpModule | None = None) -> str:
    """The library for `tf.load_op_library`, which registers the ops of a module with TensorFlow.

    Args:
        module: an op module; None is the one of this package.
    """
    return _library_path(OWN_NAMESPACE if module is None else module.name)


def call(op: OpInfo, inputs: Sequence[Any], attributes: Mapping[str, Any]) -> Any:
    """Runs an op on tensors of TensorFlow, and on NumPy arrays beside them.

    An absent input is None. Raises ValueError and TypeError as the functions of the ops do.
    """
    numbers = numbers_of(op, attributes)
    if any(_is_symbolic(x) for x in inputs):
        return _keras_layer()(op=op.qualified_name, attributes=attributes).on(inputs)
    tensors = [
        x if x is None else _tensor(op, parameter.name, x)
        for parameter, x in zip(op.inputs, inputs, strict=True)
    ]
    shapes = _output_shapes(op, tensors, numbers)
    outputs = _run(op, tensors, numbers)
    if not tf.executing_eagerly():
        for y, shape in zip(outputs, shapes, strict=True):
            y.set_shape(shape)  # TensorFlow does not know sizes that are attributes
    return result_of(outputs)


def register(ops: Iterable[OpInfo]) -> None:
    """Registers ops of one module, and their gradients, with TensorFlow."""
    served = [op for op in ops if "cpu" in op.devices]
    if not served:
        return
    path = _library_path(served[0].namespace)
    library = tf.load_op_library(path)
    names = {op.qualified_name: _python_name(op) for op in served}
    if missing := [name for name in names.values() if not hasattr(library, name)]:
        raise ImportError(
            f"TensorFlow {tf.__version__} has no {', '.join(missing)} after loading {path}: "
            "the error is on the standard error"
        )
    for op in served:
        _FUNCTIONS[op.qualified_name] = getattr(library, names[op.qualified_name])
        tf.RegisterGradient(_name(op))(functools.partial(_gradient, op))


def _is_symbolic(x: Any) -> bool:
    """Whether the object is an input or an output of a layer of Keras, without values."""
    keras = sys.modules.get("keras")
    return keras is not None and isinstance(x, keras.KerasTensor)


def _library_path(namespace: str) -> str:
    paths = {each["name"]: each["path"] for each in _C.modules()}
    reader = Path(paths[OWN_NAMESPACE]).with_name("libcudarelu_tensorflow.so")
    if namespace == OWN_NAMESPACE:
        return str(reader)
    # The library finds its module by a file beside it, so that each module has a copy.
    lines = f"{paths[namespace]}\n{paths[OWN_NAMESPACE]}\n"
    key = hashlib.sha256(reader.read_bytes() + lines.encode()).hexdigest()[:16]
    folder = cache_folder() / "tensorflow" / f"{namespace}-{key}"
    copy = folder / f"lib{namespace}_tensorflow.so"
    if not copy.exists():
        with explained(namespace, folder):
            make_private(folder)
            with tempfile.TemporaryDirectory(dir=folder) as made:  # other processes do the same
                shutil.copyfile(reader, Path(made, "library"))
                Path(made, "module").write_text(lines, encoding="utf-8")
                os.replace(Path(made, "module"), f"{copy}.module")
                os.replace(Path(made, "library"), copy)
    check_private(copy)
    return str(copy)


def _name(op: OpInfo) -> str:
    return f"{op.namespace[0].upper()}{op.namespace[1:]}>{op.onnx.op_type}"


def _python_name(op: OpInfo) -> str:
    """The name of the function that TensorFlow makes: words are separated where a capital letter
    follows a small one, or precedes one."""
    separated = re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=[^>])(?=[A-Z][a-z])", "_", _name(op))
    return separated.replace(">", "_").lower()


def _tensor(op: OpInfo, name: str, x: Any) -> Any:
    known = isinstance(x, (tf.Tensor, tf.Variable, np.ndarray)) or hasattr(x, "__tf_tensor__")
    if not known or isinstance(x, np.ma.MaskedArray):
        raise TypeError(f"{op.name}: takes tensors of TensorFlow, but {name} is a {type_name(x)}")
    tensor = tf.convert_to_tensor(x)
    if tf.executing_eagerly() and ":GPU:" in tensor.device:
        raise ValueError(
            f"{op.name}: {name} is on {tensor.device}: the ops run on the CPU only, since "
            "TensorFlow's C API tells no CUDA stream; use tf.device('CPU')"
        )
    return tensor


def _output_shapes(op: OpInfo, tensors: Sequence[Any], numbers: Numbers) -> list[Any]:
    """The shapes of the outputs; raises ValueError and TypeError for arguments that do not fit."""
    if any(x is not None and x.shape.rank is None for x in tensors):
        return [None] * len(op.outputs)
    return [shape for _, shape in output_types(op, tensors, numbers)]


def _run(op: OpInfo, tensors: Sequence[Any], numbers: Numbers) -> list[Any]:
    """The outputs of an op. Where a gradient may be needed, its training form runs."""
    called = derivative_of(op).op if op.gradient and _records() else op
    function = _FUNCTIONS.get(called.qualified_name)
    if function is None:
        raise ValueError(f"{op.name} has no kernel for the CPU")
    arguments: dict[str, Any] = {}
    for parameter, x in zip(called.inputs, tensors, strict=True):
        optional = [] if x is None else [x]
        arguments[parameter.name] = optional if parameter.optional else x
    for spec, value in zip(called.attributes, numbers, strict=True):
        if spec.dtypes:
            arguments[spec.name] = getattr(tf, spec.dtypes[int(value)])
        else:
            arguments[spec.name] = spec.labels[int(value)] if spec.labels else value
    result = function(**arguments)
    return [result] if len(called.outputs) == 1 else list(result)[: len(op.outputs)]


def _records() -> bool:
    """Whether a tf.GradientTape may record this call. TensorFlow has no public way to ask."""
    try:
        from tensorflow.python.eager import record
    except ImportError:
        return False
    return bool(record.could_possibly_record())


# Gradients


class _Host:
    """What the gradients of ops need of TensorFlow."""

    def call(self, op: OpInfo, inputs: Sequence[Any], attributes: Numbers) -> Sequence[Any]:
        return _run(op, inputs, attributes)

    def size(self, x: Any, axis: int) -> Any:
        return tf.shape(x)[axis]

    def full(self, shape: tuple[Any, ...], number: float, like: Any) -> Any:
        return tf.fill(shape, tf.cast(number, like.dtype))

    def zeros_like(self, x: Any) -> Any:
        return tf.zeros_like(x)

    def sum_to(self, x: Any, like: Any) -> Any:
        axes, _ = tf.raw_ops.BroadcastGradientArgs(s0=tf.shape(like), s1=tf.shape(x))
        return tf.reshape(tf.reduce_sum(x, axes), tf.shape(like))


def _gradient(op: OpInfo, node: Any, *given: Any) -> list[Any]:
    """The gradients of the inputs of a node of TensorFlow, from those of its outputs."""
    present = [not each.optional or node.get_attr(f"n_{each.name}") > 0 for each in op.inputs]
    inputs = with_absent(node.inputs, present)
    numbers: list[float | int] = []
    for spec in op.attributes:
        value = node.get_attr(spec.name)
        if spec.dtypes:
            numbers.append(spec.dtypes.index(value.name))
        else:
            numbers.append(spec.number(value.decode() if isinstance(value, bytes) else value))
    derivative = derivative_of(op)
    outputs = list(node.outputs)
    if derivative.op != op:  # no tape recorded the training form: it runs now
        outputs = _run(derivative.op, inputs, numbers)
    floating = {i: g for i, g in enumerate(given) if outputs[i].dtype.is_floating}
    evaluator = Evaluator(_Host(), derivative.op, inputs, outputs, numbers, floating.get)
    return [evaluator.gradient_of(i) for i, x in enumerate(inputs) if x is not None]


# Keras


@functools.cache
def _keras_layer() -> Any:
    import keras

    @keras.saving.register_keras_serializable(package="cudarelu")
    class Op(keras.layers.Layer):
        """An op in a functional model of Keras."""

        def __init__(
            self, op: str, attributes: dict[str, Any], present: Any = (), **settings: Any
        ) -> None:
            super().__init__(**settings)
            self.op, self.attributes, self.present = op, dict(attributes), list(present)

        def on(self, inputs: Sequence[Any]) -> Any:
            self.present = [x is not None for x in inputs]
            return self(*(x for x in inputs if x is not None))

        def call(self, *tensors: Any) -> Any:
            inputs = with_absent(tensors, self.present)
            return call(op_named(self.op), inputs, self.attributes)

        def get_config(self) -> dict[str, Any]:
            own = {"op": self.op, "attributes": dict(self.attributes), "present": self.present}
            return {**super().get_config(), **own}

    return Op
