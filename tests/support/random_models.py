"""Random ONNX models with our ops among standard ones, and their results in ONNX Runtime."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

import numpy as np
import onnx
import onnxruntime as ort
from onnx import helper, numpy_helper

import cudarelu.onnx
import cudarelu.ort
from cudarelu.testing.hosts import full_precision

OURS, OWN = "cudarelu", "own"
ROWS = 4  # the last dimension of most tensors
LEADING = ((), (1,), (3,), (2, 3), (0,), (3, 1))


@dataclasses.dataclass(frozen=True)
class Value:
    name: str
    shape: tuple[int, ...]
    boolean: bool = False


class Scope:
    """The nodes of a graph or a function, and the values that they may use."""

    def __init__(self, model: RandomModel, outer: list[Value], prefix: str) -> None:
        self.model, self.values, self.prefix = model, list(outer), prefix
        self.nodes: list[onnx.NodeProto] = []
        self.count = 0

    def pick(self, fits: Callable[[Value], bool] = lambda value: True) -> Value:
        """A value, a late one more often."""
        found = [each for each in self.values if not each.boolean and fits(each)]
        if not found:
            found = [self.constant((2, ROWS))]
            return found[0] if fits(found[0]) else self.constant((ROWS,))
        late = found[-3:] if self.model.random.random() < 0.6 else found
        return late[self.model.random.integers(len(late))]

    def node(self, op_type: str, inputs: list[str], shape, domain="", boolean=False, **attributes):
        self.count += 1
        # Names of other scopes may be the same, as those that exporters give are.
        name = f"{self.prefix}{op_type}_{self.count}"
        self.nodes.append(
            helper.make_node(op_type, inputs, [name], domain=domain, name=f"n_{name}", **attributes)
        )
        return self.add(Value(name, tuple(shape), boolean))

    def add(self, value: Value) -> Value:
        self.values.append(value)
        return value

    def constant(self, shape: tuple[int, ...], scale: float = 1.0) -> Value:
        array = self.model.array(shape) * self.model.dtype.type(scale)
        return self.node("Constant", [], shape, value=numpy_helper.from_array(array))

    def integers(self, *numbers: int) -> str:
        array = np.array(numbers, np.int64)
        value = self.node(
            "Constant", [], array.shape, boolean=True, value=numpy_helper.from_array(array)
        )
        self.values.pop()
        return value.name

    def condition(self) -> str:
        """An input of the model, or a constant, with which ONNX Runtime inlines a branch."""
        # An If of a constant in another makes ONNX Runtime 1.31 crash.
        if self.prefix or self.model.random.random() < 0.5:
            return self.model.condition
        array = np.array(bool(self.model.random.integers(2)))
        return self.node(
            "Constant", [], (), boolean=True, value=numpy_helper.from_array(array)
        ).name

    def step(self) -> None:
        choice = CHOICES[self.model.random.integers(len(CHOICES))]
        if self.model.dtype == np.float64 and choice in FLOAT32_ONLY:
            choice = CHOICES[3]
        choice(self)


def has_rows(value: Value) -> bool:
    return len(value.shape) > 0 and value.shape[-1] == ROWS


def unary(op_type: str, domain: str = "", **attributes) -> Callable[[Scope], object]:
    def make(scope: Scope) -> None:
        x = scope.pick()
        scope.node(op_type, [x.name], x.shape, domain, **attributes)

    return make


def on_rows(op_type: str, domain: str = "", **attributes) -> Callable[[Scope], object]:
    def make(scope: Scope) -> None:
        x = scope.pick(has_rows)
        scope.node(op_type, [x.name], x.shape, domain, **attributes)

    return make


def binary(op_type: str, domain: str = "", **attributes) -> Callable[[Scope], object]:
    def make(scope: Scope) -> None:
        a = scope.pick()
        if domain or scope.model.random.random() < 0.6:
            b = scope.pick(lambda value: value.shape == a.shape)
        else:
            shape = ((), (1,), a.shape[-1:])[scope.model.random.integers(3)]
            b = scope.constant(shape)
        if domain and b.shape != a.shape:
            b = a
        names = (
            [a.name, b.name] if scope.model.random.random() < 0.5 or domain else [b.name, a.name]
        )
        shape = np.broadcast_shapes(a.shape, b.shape)
        scope.node(op_type, names, shape, domain, **attributes)

    return make


def linear(op_type: str, has_bias: bool) -> Callable[[Scope], object]:
    def make(scope: Scope) -> None:
        x = scope.pick(lambda value: has_rows(value) and len(value.shape) > 1)
        weight = scope.constant((ROWS, x.shape[-1]), 0.5)
        bias = [scope.constant((ROWS,)).name] if has_bias else []
        scope.node(op_type, [x.name, weight.name, *bias], (*x.shape[:-1], ROWS), OURS)

    return make


def matmul(scope: Scope) -> None:
    x = scope.pick(lambda value: has_rows(value) and len(value.shape) > 1)
    weight = scope.constant((x.shape[-1], ROWS), 0.5)
    y = scope.node("MatMul", [x.name, weight.name], (*x.shape[:-1], ROWS))
    if scope.model.random.random() < 0.5:
        scope.node("Add", [y.name, scope.constant((ROWS,)).name], y.shape)


def layer_norm(scope: Scope) -> None:
    x = scope.pick(has_rows)
    inputs = [x.name, scope.constant((ROWS,)).name, scope.constant((ROWS,)).name]
    inputs = inputs[: scope.model.random.integers(1, 4)]
    scope.node(
        "LayerNorm", inputs, x.shape, OURS, eps=10.0 ** -int(scope.model.random.integers(1, 6))
    )


def bias_relu(scope: Scope) -> None:
    x = scope.pick(has_rows)
    scope.node("BiasRelu", [x.name, scope.constant((ROWS,)).name], x.shape, OURS, scale=0.5)


def mean(scope: Scope) -> None:
    # ONNX Runtime 1.31 gives the mean of an empty tensor the shape of that.
    x = scope.pick(lambda value: has_rows(value) and 0 not in value.shape)
    scope.node("ReduceMean", [x.name, scope.integers(-1)], (*x.shape[:-1], 1))


def transpose(scope: Scope) -> None:
    x = scope.pick(lambda value: len(value.shape) > 1)
    order = [*range(len(x.shape) - 2), len(x.shape) - 1, len(x.shape) - 2]
    scope.node("Transpose", [x.name], [x.shape[i] for i in order], perm=order)


def flatten(scope: Scope) -> None:
    x = scope.pick()
    count = int(np.prod(x.shape))
    scope.node("Reshape", [x.name, scope.integers(count)], (count,), allowzero=1)


def where(scope: Scope) -> None:
    x = scope.pick()
    positive = scope.node("Greater", [x.name, scope.constant(()).name], x.shape, boolean=True)
    # Both sides are equal at the border.
    y = scope.node("Sub", [x.name, scope.nodes[-2].output[0]], x.shape)
    zero = scope.node("Sub", [y.name, y.name], x.shape)
    scope.node("Where", [positive.name, y.name, zero.name], x.shape)


def branch(scope: Scope) -> None:
    """An If whose branches use values of the graph around it."""
    if len(scope.prefix) > 4 or scope.model.in_function:
        return
    x = scope.pick()
    graphs = []
    for _ in range(2):
        inner = Scope(scope.model, scope.values, scope.prefix + "b")
        for _ in range(scope.model.random.integers(1, 4)):
            inner.step()
        inner.node("Mul", [x.name, x.name], x.shape)
        made = [each for each in inner.values[len(scope.values) :] if not each.boolean]
        same = [each for each in made if each.shape == x.shape]
        last = same[scope.model.random.integers(len(same))]
        graphs.append(
            helper.make_graph(inner.nodes, "branch", [], [scope.model.info(last.name, None)])
        )
    scope.node("If", [scope.condition()], x.shape, then_branch=graphs[0], else_branch=graphs[1])


def loop(scope: Scope) -> None:
    """Two iterations on one value."""
    if len(scope.prefix) > 4 or scope.model.in_function:
        return
    x = scope.pick()
    state = Value(f"{scope.prefix}state", x.shape)
    inner = Scope(scope.model, [*scope.values, state], scope.prefix + "l")
    for _ in range(scope.model.random.integers(1, 4)):
        inner.step()
    y = inner.node("Tanh", [inner.pick(lambda value: value.shape == x.shape).name], x.shape)
    if inner.nodes[-1].input[0] not in {v.name for v in inner.values if v.shape == x.shape}:
        return
    more = inner.node("Identity", [scope.model.condition], (), boolean=True)
    inputs = [
        helper.make_tensor_value_info(f"{scope.prefix}i", onnx.TensorProto.INT64, []),
        helper.make_tensor_value_info(f"{scope.prefix}go", onnx.TensorProto.BOOL, []),
        scope.model.info(state.name, x.shape),
    ]
    outputs = [
        helper.make_tensor_value_info(more.name, onnx.TensorProto.BOOL, []),
        scope.model.info(y.name, None),
    ]
    body = helper.make_graph(inner.nodes, "body", inputs, outputs)
    count = scope.integers(2)
    scalar = scope.node("Squeeze", [count], (), boolean=True)
    scope.values.pop()
    scope.node("Loop", [scalar.name, scope.condition(), x.name], x.shape, body=body)


def function(scope: Scope) -> None:
    """A call of a local function of one input, which another call may share."""
    if scope.model.in_function:
        return
    x = scope.pick()
    model = scope.model
    key = model.random.integers(2), x.shape
    if key not in model.functions:
        model.in_function = True
        inner = Scope(model, [Value("x", x.shape)], "")  # names of the graph
        for _ in range(model.random.integers(1, 4)):
            inner.step()
        inner.node("Tanh", [inner.pick(lambda value: value.shape == x.shape).name], x.shape)
        model.in_function = False
        names = {"x", *(n for node in inner.nodes for n in node.output)}
        if not all(set(node.input) <= names for node in inner.nodes):
            return
        if inner.nodes[-1].input[0] not in {v.name for v in inner.values if v.shape == x.shape}:
            return
        output = [inner.nodes[-1].output[0]]
        model.functions[key] = helper.make_function(
            OWN, f"F{len(model.functions)}", ["x"], output, inner.nodes, model.opsets()
        )
    scope.node(model.functions[key].name, [x.name], x.shape, OWN)


# ONNX Runtime has no Erf and Asinh of float64.
FLOAT32_ONLY = [
    unary("Erf"),
    unary("Asinh", OURS),
    unary("Gelu", OURS),
    linear("LinearGelu", False),
    linear("LinearGelu", True),
]
CHOICES: list[Callable[[Scope], object]] = [
    *(unary(each) for each in ("Neg", "Abs", "Sigmoid", "Tanh", "Relu", "Identity")),
    *(unary(each, OURS) for each in ("Relu", "Tanh")),
    *FLOAT32_ONLY,
    unary("Gelu", OURS, approximate=1),
    unary("LeakyRelu", OURS, negative_slope=0.25),
    unary("Scale", OURS, factor=0.5),
    unary("ReluScale", OURS, scale=2.0),
    unary("CustomRelu", "custom_domain"),
    unary("Relu", OURS),
    *(binary(each) for each in ("Add", "Mul", "Sub")),
    *(binary(each, OURS) for each in ("Add", "Mul", "ScaledAdd")),
    on_rows("Softmax", axis=-1),
    *(on_rows(each, OURS) for each in ("Softmax", "RowMean", "RowSum")),
    *(linear(each, bias) for each in ("Linear", "LinearRelu") for bias in (False, True)),
    *(matmul, layer_norm, bias_relu, mean, transpose, flatten, where),
    *(branch, branch, loop, loop, function, function),
]


class RandomModel:
    """A model of `size` steps. The first steps of a seed are the same for every size."""

    def __init__(self, seed: int, size: int) -> None:
        self.random = np.random.default_rng(seed)
        self.dtype = np.dtype(("float32", "float32", "float64")[self.random.integers(3)])
        self.in_function = False
        self.functions: dict[tuple, onnx.FunctionProto] = {}
        self.condition = "c"
        self.feeds = {"c": np.array(bool(self.random.integers(2)))}
        inputs = [helper.make_tensor_value_info("c", onnx.TensorProto.BOOL, [])]
        values = []
        for i in range(self.random.integers(1, 4)):
            leading = LEADING[self.random.integers(len(LEADING))]
            shape = (*leading, ROWS) if self.random.random() < 0.85 else leading
            values.append(Value(f"x{i}", shape))
            self.feeds[f"x{i}"] = self.array(shape)
            named = self.random.random() < 0.4
            dims = [f"N{i}_{k}" if named and k + 1 < len(shape) else n for k, n in enumerate(shape)]
            inputs.append(self.info(f"x{i}", dims))
        scope = Scope(self, values, "")
        for _ in range(size):
            scope.step()
        used = {name for node in scope.nodes for name in node.input}
        made = [each for each in scope.values if not each.boolean and each not in values]
        if not made:
            made = [scope.node("Identity", [values[0].name], values[0].shape)]
        outputs = [each for each in made if each.name not in used or self.random.random() < 0.15]
        graph = helper.make_graph(
            scope.nodes, "random", inputs, [self.info(each.name, None) for each in outputs]
        )
        self.proto = helper.make_model(
            graph, ir_version=8, opset_imports=self.opsets(), functions=[*self.functions.values()]
        )

    def opsets(self) -> list[onnx.OperatorSetIdProto]:
        versions = {"": 18, OURS: 1, OWN: 1, "custom_domain": 1}
        return [helper.make_opsetid(*each) for each in versions.items()]

    def array(self, shape: tuple[int, ...]) -> np.ndarray:
        return np.asarray(self.random.normal(size=shape)).astype(self.dtype)

    def info(self, name: str, shape) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(
            name, helper.np_dtype_to_tensor_dtype(self.dtype), shape
        )


def run(
    model: onnx.ModelProto, feeds, device: str, library: bool, optimized: bool, libraries=()
) -> list[np.ndarray]:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    level = ort.GraphOptimizationLevel
    options.graph_optimization_level = level.ORT_ENABLE_ALL if optimized else level.ORT_DISABLE_ALL
    for each in libraries:
        options.register_custom_ops_library(str(each))
    if library:
        cudarelu.ort.register(options)
    providers = [full_precision(device)]
    session = ort.InferenceSession(model.SerializeToString(), options, providers)
    wanted = {each.name for each in session.get_inputs()}
    return session.run(None, {name: x for name, x in feeds.items() if name in wanted})


def differences(expected: list[np.ndarray], actual: list[np.ndarray], dtype: np.dtype) -> list[str]:
    """What differs by more than rounding, which the magnitudes of a tensor determine."""
    tolerance = 2e-3 if dtype == np.float32 else 1e-6
    found = []
    for i, (a, b) in enumerate(zip(expected, actual, strict=True)):
        if a.shape != b.shape or a.dtype != b.dtype:
            found.append(f"output {i}: {a.dtype}{a.shape} and {b.dtype}{b.shape}")
            continue
        scale = max(1.0, float(np.max(np.abs(a[np.isfinite(a)]), initial=0)))
        if not np.allclose(a, b, rtol=tolerance, atol=tolerance * scale, equal_nan=True):
            found.append(f"output {i}: {np.max(np.abs(a - b))} of {scale}")
    return found


def roads(
    model: onnx.ModelProto, fuse: bool
) -> Iterator[tuple[str, onnx.ModelProto, bool, tuple[object, ...]]]:
    """Models that mean the same: a name, the model, and the libraries that it runs with."""
    # ONNX Runtime cannot type a custom op in a local function without its definition.
    if not any(node.domain not in ("", OWN) for each in model.functions for node in each.node):
        yield "library", model, True, ()
    defined = cudarelu.onnx.attach_definitions(model)
    yield "definitions", defined, False, ()
    yield "definitions and library", defined, True, ()
    lowered = cudarelu.onnx.lower(model)
    yield "lowered", lowered, False, ()
    yield "accelerated", cudarelu.onnx.accelerate(model)[0], True, ()
    accelerated = cudarelu.onnx.accelerate(lowered)[0]
    yield "lowered and accelerated", accelerated, True, ()
    yield "lowered and accelerated, without library", accelerated, False, ()
    yield "lowered again", cudarelu.onnx.lower(accelerated), False, ()
    if fuse:
        fused, report = cudarelu.onnx.accelerate(lowered, fuse=True)
        libraries = () if report.library is None else (report.library,)
        yield "fused", fused, True, libraries
        yield "fused, without library", fused, False, ()


def failures(seed: int, size: int, device: str, fuse: bool = False) -> list[str]:
    """What differs on a device from the lowered model, run on the CPU without optimizations."""
    made = RandomModel(seed, size)
    expected = run(cudarelu.onnx.lower(made.proto), made.feeds, "cpu", False, False)
    found = []
    for road, model, library, libraries in roads(made.proto, fuse):
        for optimized in (False, True):
            label = f"{road}, {'with' if optimized else 'without'} optimizations: "
            try:
                actual = run(model, made.feeds, device, library, optimized, libraries)
            except Exception as error:  # ONNX Runtime has no class of its own for all
                found.append(label + " ".join(str(error).split()))
                continue
            found += [label + each for each in differences(expected, actual, made.dtype)]
    return found


def smallest(seed: int, size: int, device: str, fuse: bool) -> tuple[onnx.ModelProto, int]:
    """The first steps of a model that fails as the whole does."""
    found = next(n for n in range(1, size + 1) if n == size or failures(seed, n, device, fuse))
    return RandomModel(seed, found).proto, found
