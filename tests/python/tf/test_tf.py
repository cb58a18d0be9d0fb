"""Tests of the ops in TensorFlow beside the matrix: graphs, saved models, Keras, and what is
refused. The matrix has values in graphs, and first and second gradients, for every op."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import cudarelu
from cudarelu.testing.environment import tensorflow_missing

if reason := tensorflow_missing():
    pytest.skip(reason, allow_module_level=True)

import tensorflow as tf

import cudarelu.tensorflow
from support.commands import environment, run
from support.op_modules import LIBRARY, my

ROOT = Path(__file__).parents[3]
RANDOM = np.random.default_rng(0)
X = RANDOM.standard_normal((16, 8)).astype(np.float32)
WEIGHT = RANDOM.standard_normal((5, 8)).astype(np.float32)
BIAS = RANDOM.standard_normal(5).astype(np.float32)


def assert_close(actual, expected):
    for a, e in zip(tf.nest.flatten(actual), tf.nest.flatten(expected), strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(e), rtol=1e-5, atol=1e-5)


def nodes_of(function, *arguments):
    """The types of the nodes of a graph."""
    graph = function.get_concrete_function(*arguments).graph
    return [node.op for node in graph.as_graph_def().node]


# Calls


@pytest.mark.parametrize("kind", [tf.constant, tf.Variable])
def test_tensors_and_variables(kind):
    y = cudarelu.add(kind(X), X)
    assert isinstance(y, tf.Tensor)
    np.testing.assert_array_equal(y, X + X)
    np.testing.assert_array_equal(cudarelu.add(X, kind(X)), X + X)


@pytest.mark.parametrize("shape", [[None, None], [None, 8], None])
def test_graphs_of_unknown_sizes(shape):
    @tf.function(input_signature=[tf.TensorSpec(shape)])
    def function(x):
        return cudarelu.softmax(cudarelu.linear_gelu(x, WEIGHT, BIAS))

    assert function.get_concrete_function().output_shapes.rank == (2 if shape else None)
    for rows in (0, 1, 16):
        assert_close(
            function(X[:rows]), cudarelu.softmax(cudarelu.linear_gelu(X[:rows], WEIGHT, BIAS))
        )


def test_shapes_of_graphs():
    shapes = []

    @tf.function(input_signature=[tf.TensorSpec([None, 8]), tf.TensorSpec([None])])
    def function(x, weight):
        shapes.append(cudarelu.layer_norm(x, weight).shape)
        shapes.append(cudarelu.layer_norm(x, None, tf.ones(8)).shape)
        shapes.append(cudarelu.sum_rows(x).shape)
        with pytest.raises(ValueError, match="dimension c is 8 in x but 7 in weight"):
            cudarelu.layer_norm(x, tf.ones(7))
        return x

    function.get_concrete_function()
    assert [each.as_list() for each in shapes] == [[None, 8], [None, 8], [8]]


def test_a_size_that_is_an_attribute():
    @tf.function(input_signature=[tf.TensorSpec([None, 3]), tf.TensorSpec([None], tf.int32)])
    def function(points, offset):
        results = cudarelu.knn_query(points, offset, nsample=4)
        assert all(y.shape.as_list() == [None, 4] for y in results)
        return results

    points, offset = RANDOM.random((20, 3)).astype(np.float32), np.array([9, 20], np.int32)
    found = function(points, offset)
    expected = cudarelu.knn_query(points, offset, nsample=4)
    assert len(found) == len(expected) == 2
    for a, e in zip(found, expected, strict=True):
        np.testing.assert_array_equal(a, e)


@pytest.mark.parametrize("given", [(1, 1), (1, 0), (0, 1), (0, 0)])
def test_absent_inputs_and_their_gradients(given):
    weight, bias = (np.linspace(0.5, 2, 8) if each else None for each in given)
    x = X.astype(np.float64)
    leaves = [a if a is None else torch.from_numpy(a).requires_grad_() for a in (x, weight, bias)]
    cudarelu.layer_norm(*leaves).square().sum().backward()
    expected = [a.grad.numpy() for a in leaves if a is not None]

    @tf.function
    def gradients(*tensors):
        remaining = iter(tensors)
        inputs = [a if a is None else next(remaining) for a in (x, weight, bias)]
        y = cudarelu.layer_norm(*inputs)
        return tf.gradients(tf.reduce_sum(y**2), list(tensors))

    tensors = [tf.constant(a) for a in (x, weight, bias) if a is not None]
    assert_close(gradients(*tensors), expected)


def test_a_tape_records_the_training_form():
    @tf.function
    def function(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = cudarelu.linear_gelu(x, WEIGHT, BIAS)
        return tape.gradient(y, x)

    @tf.function
    def without_tape(x):
        return tf.gradients(cudarelu.linear_gelu(x, WEIGHT, BIAS), [x])[0]

    x = tf.constant(X)
    types = nodes_of(function, x)
    assert types.count("Cudarelu>LinearGeluWithSum") == 1
    assert "Cudarelu>LinearGelu" not in types
    assert "Cudarelu>LinearGelu" in nodes_of(without_tape, x)
    assert_close(function(x), without_tape(x))


def test_an_input_is_overwritten_only_where_nothing_reads_it():
    @tf.function
    def function(x):
        moved = x + 1
        return cudarelu.relu(moved), moved, cudarelu.relu(x + 1), cudarelu.add(moved, moved)

    y, moved, again, doubled = function(X)
    np.testing.assert_array_equal(moved, X + 1)
    np.testing.assert_array_equal(y, np.maximum(X + 1, 0))
    np.testing.assert_array_equal(again, y)
    np.testing.assert_array_equal(doubled, 2 * (X + 1))


def test_subnormal_numbers():
    x = np.full(1 << 18, 1e-40, np.float32)
    np.testing.assert_array_equal(tf.function(cudarelu.relu)(tf.constant(x)), x)


def test_vectorized_map():
    found = tf.vectorized_map(cudarelu.softmax, tf.constant(X))
    assert_close(found, cudarelu.softmax(X))


# Other processes


def test_a_saved_model_in_a_new_process(tmp_path):
    class Model(tf.Module):
        def __init__(self):
            self.weight = tf.Variable(WEIGHT)

        @tf.function(input_signature=[tf.TensorSpec([None, 8])])
        def __call__(self, x):
            return cudarelu.linear_gelu(cudarelu.layer_norm(x, eps=0.5), self.weight)

    model = Model()
    tf.saved_model.save(model, str(tmp_path / "model"))
    np.save(tmp_path / "x.npy", X)
    np.save(tmp_path / "y.npy", model(X))
    path = cudarelu.tensorflow.library_path()
    loads = (f"tf.load_op_library({path!r})", "import cudarelu.tensorflow")
    for load in loads:
        code = f"import numpy as np, tensorflow as tf\n{load}\n"
        code += "x = tf.constant(np.load('x.npy'))\nmodel = tf.saved_model.load('model')\n"
        code += "np.testing.assert_array_equal(model(x), np.load('y.npy'))\n"
        if load == loads[1]:  # which has the gradients
            code += "with tf.GradientTape() as tape:\n    y = model(x)\n"
            code += "assert np.isfinite(tape.gradient(y, model.weight)).all()\n"
        subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True)


PROGRAM = """
import sys
sys.modules["jax"] = None  # TensorFlow would import it, whatever its version
import numpy as np, tensorflow as tf
assert sys.argv[2] in ("", tf.__version__), tf.__version__
ops = tf.load_op_library(sys.argv[1])
x = np.random.default_rng(0).standard_normal((300, 70)).astype(np.float32)
y = tf.function(lambda x: ops.cudarelu_leaky_relu(x=x, negative_slope=0.5))(tf.constant(x))
np.testing.assert_array_equal(y, np.where(x < 0, x / 2, x))
product = ops.cudarelu_linear(x=x, weight=x, bias=[])
np.testing.assert_allclose(product, x @ x.T, rtol=1e-4, atol=1e-4)
assert ops.cudarelu_layer_norm(x=x, weight=[x[0]], bias=[]).shape == x.shape
for call in (lambda: ops.cudarelu_layer_norm(x=x, weight=[x[0], x[0]], bias=[]),
             lambda: ops.cudarelu_layer_norm(x=x, weight=[x[0, :5]], bias=[]),
             lambda: ops.cudarelu_gelu(x=x, approximate="sigmoid"),
             lambda: ops.cudarelu_layer_norm(x=x, weight=[], bias=[], eps=-1.0)):
    try:
        call()
    except tf.errors.InvalidArgumentError as error:
        print(error.message.splitlines()[0])
    else:
        raise AssertionError
"""


def check_program(version, **changes):
    path = cudarelu.tensorflow.library_path()
    printed = run(sys.executable, "-c", PROGRAM, path, version, env=os.environ | changes)
    for message in (
        "layer_norm: weight must be a list of at most one tensor, not of 2",
        "layer_norm: dimension c is 70 in x but 5 in weight",
        "layer_norm: eps must be in [0, inf]",
    ):
        assert message in printed


def test_the_library_without_this_package():
    check_program("")


def folder_of(version):
    folder = ROOT / f".venv/tensorflow-{version}"
    if not folder.exists():
        pytest.skip(f"TensorFlow {version} is missing: make test-tensorflow installs it")
    return folder


@pytest.mark.parametrize("version", ["2.16.2"])
def test_one_library_serves_other_versions(version):
    check_program(version, PYTHONPATH=str(folder_of(version)))


def test_this_package_in_an_older_tensorflow():
    code = """
import sys
sys.modules["jax"] = None  # TensorFlow would import it, whatever its version
import numpy as np, tensorflow as tf, cudarelu
x = tf.constant([[-1.0, 2.0]])
with tf.GradientTape() as tape:
    tape.watch(x)
    y = tf.function(cudarelu.linear_gelu)(x, tf.eye(2))
np.testing.assert_allclose(y, [[-0.1587, 1.9545]], atol=1e-4)
np.testing.assert_allclose(tape.gradient(y, x), [[-0.0833, 1.0852]], atol=1e-4)
"""
    path = f"{folder_of('2.16.2')}:{Path(cudarelu.__file__).parents[1]}"
    run(sys.executable, "-c", code, env=os.environ | {"PYTHONPATH": path})


def test_the_library_in_a_process_without_tensorflow():
    code = "import ctypes, sys; ctypes.CDLL(sys.argv[1])"
    path = cudarelu.tensorflow.library_path()
    assert run(sys.executable, "-c", code, path, env=environment()) == ""


def test_an_error_while_loading_is_printed(tmp_path):
    copy = tmp_path / "libcopy.so"
    shutil.copy(cudarelu.tensorflow.library_path(), copy)
    Path(f"{copy}.module").write_text("/absent/libmy_ops.so\n")
    code = "import sys, tensorflow as tf; tf.load_op_library(sys.argv[1])"
    printed = run(sys.executable, "-c", code, copy, env=os.environ)
    assert "cudarelu: /absent/libmy_ops.so: there is no such library\n" in printed


# A user's module


def test_a_module():
    module = my()
    x = tf.constant(X)
    assert_close(module.swish(x, beta=2.0), module.swish(X, beta=2.0))
    leaf = torch.from_numpy(X).requires_grad_()
    module.swish(leaf, beta=2.0).sum().backward()
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = tf.function(module.swish)(x, beta=2.0)
    assert_close(tape.gradient(y, x), leaf.grad)


def test_the_library_of_a_module():
    """Without this package, and with a matrix product, which the module `cudarelu` lends."""
    path = cudarelu.tensorflow.library_path(my())
    assert path == cudarelu.tensorflow.library_path(my())
    assert LIBRARY.name in Path(f"{path}.module").read_text()
    names = ", ".join(each.name for each in cudarelu.load_library(LIBRARY).ops())
    assert "linear_swish" in names
    code = "import sys, numpy as np, tensorflow as tf; ops = tf.load_op_library(sys.argv[1])\n"
    code += "x = np.eye(3, dtype=np.float32)\n"
    code += "y = ops.my_linear_swish(x=x, weight=x, bias=[])\n"
    code += "np.testing.assert_allclose(y, x / (1 + np.exp(-x)), rtol=1e-5)"
    run(sys.executable, "-c", code, path, env=os.environ)


# Keras


class Dense(tf.keras.layers.Layer):
    def build(self, shape):
        self.weight = self.add_weight(shape=(5, shape[-1]), initializer="glorot_uniform")
        self.bias = self.add_weight(shape=(5,), initializer="zeros")

    def call(self, x):
        return cudarelu.linear_gelu(x, self.weight, self.bias)


def test_a_layer_of_keras_is_trained():
    tf.keras.utils.set_random_seed(0)
    model = tf.keras.Sequential([Dense(), tf.keras.layers.Dense(1)])
    model.compile(tf.keras.optimizers.Adam(0.02), "mse")
    history = model.fit(X, X[:, :1] * 2, epochs=60, batch_size=8, verbose=0).history["loss"]
    assert history[-1] < history[0] / 2


def test_a_functional_model_of_keras(tmp_path):
    given = tf.keras.Input((8,))
    weight = tf.keras.layers.Dense(8)(given)
    y = cudarelu.leaky_relu(cudarelu.add(given, weight), negative_slope=0.5)
    model = tf.keras.Model(given, cudarelu.layer_norm(y, eps=0.25))
    model.save(tmp_path / "model.keras")
    loaded = tf.keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded(X), model(X))
    assert model(X).shape == X.shape


# What is refused


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda x: cudarelu.softmax(tf.cast(x, tf.int32)),
            TypeError,
            "softmax: x is int32; supported dtypes: float32, float64, float16, bfloat16",
        ),
        (
            lambda x: cudarelu.relu(tf.as_string(x)),
            TypeError,
            "relu: x is string; supported dtypes:",
        ),
        (
            lambda x: cudarelu.layer_norm(x, tf.ones(3)),
            ValueError,
            "layer_norm: dimension c is 8 in x but 3 in weight",
        ),
        (lambda x: cudarelu.softmax(x[0, 0]), ValueError, "softmax: x must be [*, c], not []"),
        (
            lambda x: cudarelu.leaky_relu(x, negative_slope=x[0, 0]),
            TypeError,
            "leaky_relu: negative_slope must be a float",
        ),
        (
            lambda x: cudarelu.gelu(x, approximate="sigmoid"),
            ValueError,
            "gelu: approximate must be none (0) or tanh (1), not sigmoid",
        ),
        (
            lambda x: cudarelu.add(x, torch.ones(16, 8)),
            TypeError,
            "add: takes tensors of TensorFlow, but b is a torch.Tensor",
        ),
        (
            lambda x: cudarelu.relu(tf.RaggedTensor.from_row_lengths(x[0], [3, 5])),
            TypeError,
            "relu: takes tensors of TensorFlow, but x is a tensorflow",
        ),
        (lambda x: cudarelu.add(x), TypeError, "add: b is missing"),
    ],
)
@pytest.mark.parametrize("graph", [False, True])
def test_arguments_are_checked(call, error, message, graph):
    function = tf.function(call, autograph=False) if graph else call
    with pytest.raises(error, match=re.escape(message)):
        function(tf.constant(X))


def test_a_tensor_on_a_gpu_is_refused(monkeypatch):
    x = tf.constant(X)
    on_gpu = SimpleNamespace(device="/job:localhost/replica:0/task:0/device:GPU:0")
    monkeypatch.setattr(tf, "convert_to_tensor", lambda _: on_gpu)
    with pytest.raises(ValueError, match=r"^relu: x is on .*/device:GPU:0: .*no CUDA stream"):
        cudarelu.relu(x)


def test_values_are_checked_when_the_op_runs():
    points, offset = tf.zeros((4, 3)), tf.constant([3, 2])
    for function in (cudarelu.knn_query, tf.function(cudarelu.knn_query)):
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"offset\[1\] is 2, less than 3"):
            function(points, offset)


def test_sizes_are_checked_when_the_graph_runs():
    @tf.function(input_signature=[tf.TensorSpec(None), tf.TensorSpec(None)])
    def function(x, weight):
        return cudarelu.layer_norm(x, weight)

    with pytest.raises(tf.errors.InvalidArgumentError, match="dimension c is 8 in x but 3"):
        function(X, np.ones(3, np.float32))


def test_an_op_without_a_gradient():
    points, size = tf.zeros((4, 3)), tf.ones(3)
    with tf.GradientTape() as tape:
        tape.watch(points)
        y = tf.cast(cudarelu.grid_cluster(points, size), tf.float32)
    assert tape.gradient(y, points) is None
