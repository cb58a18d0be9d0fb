"""What tests of the custom-op library share: sessions with it, and an op between two probes."""

from __future__ import annotations

import ctypes

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

import cudarelu
from cudarelu.testing.cases import attribute_values
from support.cases import tier
from support.models import make_model, make_options, node, one_node, tensor
from support.ort_infer import BUILD

MINOR = int(ort.__version__.split(".")[1])  # the tests also run with old ONNX Runtimes
NAN = float("nan")
X = np.array([[-1, 2, NAN, -0.0], [0.5, -3, 4, 0]], np.float32)
DTYPES = {
    "float16": (TensorProto.FLOAT16, np.float16),
    "float32": (TensorProto.FLOAT, np.float32),
    "float64": (TensorProto.DOUBLE, np.float64),
    "int32": (TensorProto.INT32, np.int32),
}


def make_session(model: bytes, options: ort.SessionOptions | None = None) -> ort.InferenceSession:
    return ort.InferenceSession(
        model, options or make_options(), providers=["CPUExecutionProvider"]
    )


def run_one(op_type: str, x: np.ndarray = X, **attributes) -> np.ndarray:
    dtype = helper.np_dtype_to_tensor_dtype(x.dtype)
    model = one_node(op_type, [None] * x.ndim, dtype, **attributes)
    return make_session(model).run(None, {"x": x})[0]


def relu(x: np.ndarray) -> np.ndarray:
    return np.where(x < 0, np.zeros_like(x), x)


IN_PLACE = [op for op in cudarelu.ops() if op.in_place]
every_in_place_op = pytest.mark.parametrize(
    "op", [pytest.param(op, id=op.name, marks=tier(op.name)) for op in IN_PLACE]
)


def probe_library() -> ctypes.CDLL:
    """The library of probe::Neg, which computes -x and records the addresses of its tensors."""
    return ctypes.CDLL(str(BUILD / "libcudarelu_ort_probe.so"))


def values_of(op) -> dict[str, np.ndarray]:
    """A float32 array for each input; `*` is 64 rows."""
    rng = np.random.default_rng(0)
    sizes = [[64 if dim == "*" else 4 for dim in p.dims] for p in op.inputs]
    arrays = [rng.standard_normal(shape).astype(np.float32) for shape in sizes]
    return dict(zip([p.name for p in op.inputs], arrays, strict=True))


def run_between_probes(op, symbolic: bool, make=make_session, others=(), outputs=("result",)):
    """Runs probe::Neg -> op -> probe::Neg, connected by the input that the op may overwrite.
    Returns the addresses of this input and of the op's output, and the results."""
    library = probe_library()
    target, source = op.in_place.split(" = ")
    nodes = [
        node("Neg", [source], ["before"], "probe"),
        node(
            op.onnx.op_type,
            ["before" if p.name == source else p.name for p in op.inputs],
            ["after" if p.name == target else f"{p.name}_out" for p in op.outputs],
            **attribute_values(op, "default"),
        ),
        node("Neg", ["after"], ["result"], "probe"),
        *others,
    ]
    values = values_of(op)
    dims = {p.name: [("N" if dim == "*" else dim) for dim in p.dims] for p in op.inputs}
    shapes = {name: dims[name] if symbolic else array.shape for name, array in values.items()}
    model = make_model(
        nodes,
        [tensor(name, shape) for name, shape in shapes.items()],
        [tensor(name, None) for name in outputs],
        value_info=[tensor("before", shapes[source])],
    )
    options = make_options()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.register_custom_ops_library(library._name)
    results = make(model, options).run(list(outputs), values)
    addresses = (ctypes.c_void_p * 4)()
    assert library.take_addresses(addresses, 4) == 4
    return addresses[1], addresses[2], results


XYZ = np.random.default_rng(0).random((7, 3)).astype(np.float32)
OFFSET = np.array([3, 7], np.int32)
POINTS = np.random.default_rng(0).standard_normal((9, 3)).astype(np.float32)
CLOUD = {
    "xyz": POINTS,
    "offset": np.array([4, 9], np.int32),
    "new_xyz": POINTS[2:7] / 2,
    "new_offset": np.array([2, 5], np.int32),
}
OUTPUTS = {"idx": TensorProto.INT32, "distance": TensorProto.FLOAT, "cluster": TensorProto.INT64}


def run_node(
    domain: str, op_type: str, inputs, outputs, constants=(), make=make_options, **attributes
):
    """Runs one node. A name in `constants` is an initializer, an input of None is absent."""
    names = [name if array is not None else "" for name, array in inputs.items()]
    arrays = {name: array for name, array in inputs.items() if array is not None}
    model = onnx.ModelProto.FromString(
        make_model(
            [node(op_type, names, outputs, domain, **attributes)],
            [
                tensor(name, array.shape, helper.np_dtype_to_tensor_dtype(array.dtype))
                for name, array in arrays.items()
                if name not in constants
            ],
            [tensor(name, None, OUTPUTS[name]) for name in outputs],
        )
    )
    for name in constants:
        model.graph.initializer.append(onnx.numpy_helper.from_array(arrays.pop(name), name))
    session = make_session(model.SerializeToString(), make())
    return session.run(None, arrays)


def run_knnquery(nsample, cloud=CLOUD, constants=(), **options):
    inputs = {"nsample": nsample, **cloud}
    return run_node("custom", "knnquery", inputs, ["idx", "distance"], constants, **options)
