"""The example examples/llm_ops, built as a user builds it: every op in ONNX Runtime and in PyTorch
against its formula in NumPy, its definition, its gradients, and the block of a Llama model.

A build takes a minute on two cores. With CUDARELU_BUILD_DIR it is kept there, so that the next run
compiles only what has changed.
"""

from __future__ import annotations

import fcntl
import inspect
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import ml_dtypes
import numpy as np
import onnxruntime
import pytest
from onnx import helper

from cudarelu.testing.environment import torch_cuda_missing
from support import commands
from support.ort_infer import BUILD, BUILT, ORT_INFER

EXAMPLE = Path(__file__).parents[2] / "examples/llm_ops"
PACKAGE = BUILD / "python/cudarelu"
ENGINES = PACKAGE / "libcudarelu_ops.so"
CUDA = "-DCUDARELU_CUDA=OFF" if torch_cuda_missing() else "-DCUDARELU_CUDA=ON"
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
# Those of cudarelu.testing, which needs PyTorch's binding: relative to the largest magnitude in the
# inputs and outputs of a call.
TOLERANCE = {"float64": 1e-13, "float32": 1e-6, "float16": 1e-3, "bfloat16": 8e-3}
DTYPES = {name: np.dtype(name) for name in ("float64", "float32", "float16")} | {
    "bfloat16": BFLOAT16
}

pytestmark = [
    pytest.mark.skipif(not ENGINES.exists(), reason=f"{ENGINES} has not been built"),
    pytest.mark.skipif(shutil.which("cmake") is None, reason="cmake is missing"),
]


def build(source: Path, binary: Path, target: str) -> Path:
    """Builds an op module, for CUDA too if there is a GPU, and returns its library."""
    generator = ["-G", "Ninja"] if shutil.which("ninja") else []
    options = [f"-DCMAKE_PREFIX_PATH={PACKAGE / 'sdk'}", CUDA]
    configure = ["cmake", *generator, "-B", binary, "-S", source, *options]
    for command in (configure, ["cmake", "--build", binary]):
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
    return binary / f"lib{target}.so"


@pytest.fixture(scope="session")
def llm_ops(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if "CUDARELU_BUILD_DIR" not in os.environ:
        return build(EXAMPLE, tmp_path_factory.mktemp("llm_ops"), "llm_ops")
    folder = BUILD / "examples"
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:  # against other processes of the same test run
        fcntl.flock(lock, fcntl.LOCK_EX)
        return build(EXAMPLE, folder / "llm_ops", "llm_ops")


@pytest.fixture(scope="module")
def llm(llm_ops: Path):
    """The module in PyTorch."""
    cudarelu = pytest.importorskip("cudarelu", exc_type=ImportError)
    return cudarelu.load_library(llm_ops)


def of_the_module(test: Callable[..., None]) -> Callable[..., None]:
    """Marks a test of the module, whose build takes a minute: one worker and one share have all."""
    return pytest.mark.slow(pytest.mark.xdist_group("llm_ops")(test))


Arrays = list[np.ndarray]


def run(
    library: Path,
    domain: str,
    op_type: str,
    inputs: list[np.ndarray | None],
    outputs: int = 1,
    **attributes: object,
) -> Arrays:
    """The outputs of a node in ONNX Runtime."""
    given = {f"x{i}": array for i, array in enumerate(inputs) if array is not None}
    kind = helper.np_dtype_to_tensor_dtype(next(iter(given.values())).dtype)
    names = [f"x{i}" if array is not None else "" for i, array in enumerate(inputs)]
    results = [f"y{i}" for i in range(outputs)]
    node = helper.make_node(op_type, names, results, domain=domain, **attributes)
    graph = helper.make_graph(
        [node],
        "test",
        [helper.make_tensor_value_info(name, kind, array.shape) for name, array in given.items()],
        [helper.make_tensor_value_info(name, kind, None) for name in results],
    )
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid(domain, 1)]
    model = helper.make_model(graph, ir_version=10, opset_imports=opsets)
    options = onnxruntime.SessionOptions()
    options.register_custom_ops_library(str(library))
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    binding = session.io_binding()  # it takes bfloat16, which run() does not
    for name, array in given.items():
        bits = array.view(np.uint16) if array.dtype == BFLOAT16 else array
        value = onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(
            np.ascontiguousarray(bits), kind
        )
        binding.bind_ortvalue_input(name, value)
    for name in results:
        binding.bind_output(name)
    session.run_with_iobinding(binding)
    arrays = []
    for value in binding.get_outputs():
        dtype = helper.tensor_dtype_to_np_dtype(kind)
        arrays.append(onnx_array(value, dtype))
    return arrays


def onnx_array(value: onnxruntime.OrtValue, dtype: np.dtype) -> np.ndarray:
    """The elements of a tensor, of any dtype."""
    if dtype != BFLOAT16:
        return value.numpy()
    import torch  # NumPy's interface of ONNX Runtime has no bfloat16

    tensor = torch.from_dlpack(value._get_c_value().to_dlpack())
    return tensor.view(torch.int16).numpy().view(BFLOAT16)


# The formulas, in float64.


def sigmoid(x):
    return np.where(x > 0, 1 / (1 + np.exp(-abs(x))), np.exp(-abs(x)) / (1 + np.exp(-abs(x))))


def silu(x):
    return x * sigmoid(x)


def silu_slope(x):
    return sigmoid(x) * (1 + x * (1 - sigmoid(x)))


def silu_curvature(x):
    s = sigmoid(x)
    return s * (1 - s) * (2 + x * (1 - 2 * s))


def row_mean(x):
    return x.sum(-1, keepdims=True) / max(1, x.shape[-1])


def rrms(x, eps):
    return 1 / np.sqrt(row_mean(x * x) + eps)


def rms_norm(x, weight=None, eps=1e-6):
    return [x * rrms(x, eps) * (1 if weight is None else weight)]


def rms_norm_backward(grad_y, x, weight=None, eps=1e-6):
    scale = rrms(x, eps)
    normal = x * scale
    g = grad_y * (1 if weight is None else weight)
    grad_x = scale * (g - normal * row_mean(g * normal))
    return [grad_x, (grad_y * normal).sum(tuple(range(x.ndim - 1)))]


def elements_of_pairs(h, layout):  # 0: halves, 1: pairs
    if layout == 0:
        return np.s_[..., :h], np.s_[..., h:]
    return np.s_[..., ::2], np.s_[..., 1::2]


def rotary(x, cos, sin, layout=0):
    first, second = elements_of_pairs(cos.shape[1], layout)
    y = np.empty_like(x)
    y[first] = x[first] * cos - x[second] * sin
    y[second] = x[second] * cos + x[first] * sin
    return [y]


def rotary_angles_backward(grad_y, x, cos, layout=0):
    first, second = elements_of_pairs(cos.shape[1], layout)
    matrices = tuple(range(x.ndim - 2))
    grad_cos = grad_y[first] * x[first] + grad_y[second] * x[second]
    grad_sin = grad_y[second] * x[first] - grad_y[first] * x[second]
    return [grad_cos.sum(matrices), grad_sin.sum(matrices)]


def linear_sum(x, weight, bias=None):
    return x @ weight.T + (0 if bias is None else bias)


def linear_swish_with_sum(x, weight, bias=None):
    total = linear_sum(x, weight, bias)
    return [silu(total), total]


def linear_swiglu_with_gate(x, weight, up, bias=None):
    gate = linear_sum(x, weight, bias)
    return [silu(gate) * up, gate]


@dataclass
class Op:
    """An op, its formula, and the shapes of its inputs (None: absent) in each case."""

    onnx_type: str
    formula: Callable[..., Arrays]
    shapes: list[tuple]
    attributes: list[dict[str, object]] = field(default_factory=lambda: [{}])
    dtypes: tuple[str, ...] = tuple(DTYPES)


# No element, one, around the width of a vector, odd, large; several leading dimensions or none.
SIZES = [(0,), (1,), (7,), (8, 16), (3, 5, 11), (33, 1025), (70001,)]
ROWS = [(1,), (3,), (2, 8), (0, 5), (5, 0), (4, 64), (2, 3, 127), (9, 513), (300, 40), (2, 5000)]
ROWS += [(1000, 128), (5, 256), (5, 512), (3, 4096), (3, 8192), (2, 16384), (2, 20000)]
PRODUCTS = [
    ((1, 1), (1, 1)),
    ((5, 7), (3, 7)),
    ((2, 3, 33), (65, 33)),
    ((0, 4), (2, 4)),
    ((8,), (16, 8)),
]
ANGLES = [
    ((1, 1, 2), (1, 1)),
    ((3, 4, 6), (4, 3)),
    ((2, 3, 5, 32), (5, 16)),
    ((2, 1, 9, 5, 16), (5, 8)),
    ((1, 7, 0), (7, 0)),
]

OPS = [
    Op("RmsNorm", rms_norm, [(s, w) for s in ROWS for w in (None, s[-1:])], [{}, {"eps": 0.5}]),
    Op(
        "RmsNormBackward",
        rms_norm_backward,
        [(s, s, w) for s in ROWS for w in (None, s[-1:])],
        [{}, {"eps": 0.5}],
    ),
    Op(
        "RowRrms",
        lambda x, eps=1e-6: [np.broadcast_to(rrms(x, eps), x.shape)],
        [(s,) for s in ROWS],
        [{}, {"eps": 0.5}],
    ),
    Op("Swiglu", lambda gate, up: [silu(gate) * up], [(s, s) for s in SIZES]),
    Op(
        "SwigluBackward",
        lambda grad_y, gate, up: [grad_y * up * silu_slope(gate)],
        [(s, s, s) for s in SIZES],
    ),
    Op("SiluBackward", lambda grad_y, x: [grad_y * silu_slope(x)], [(s, s) for s in SIZES]),
    Op("SiluSecondDerivative", lambda x: [silu_curvature(x)], [(s,) for s in SIZES]),
    Op(
        "Rotary",
        rotary,
        [(x, angles, angles) for x, angles in ANGLES],
        [{}, {"layout": 0}, {"layout": 1}],
    ),
    Op(
        "RotaryAnglesBackward",
        rotary_angles_backward,
        [(x, x, angles) for x, angles in [*ANGLES, ((2, 3, 140), (3, 70)), ((0, 3, 4), (3, 2))]],
        [{}, {"layout": 0}, {"layout": 1}],
    ),
    Op(
        "LinearSwish",
        lambda *inputs: linear_swish_with_sum(*inputs)[:1],
        [(x, w, b) for x, w in PRODUCTS for b in (None, w[:1])],
    ),
    Op(
        "LinearSwishWithSum",
        linear_swish_with_sum,
        [(x, w, b) for x, w in PRODUCTS for b in (None, w[:1])],
    ),
    Op(
        "LinearSwiglu",
        lambda *inputs: linear_swiglu_with_gate(*inputs)[:1],
        [(x, w, (*x[:-1], *w[:1]), b) for x, w in PRODUCTS for b in (None, w[:1])],
    ),
    Op(
        "LinearSwigluWithGate",
        linear_swiglu_with_gate,
        [(x, w, (*x[:-1], *w[:1]), b) for x, w in PRODUCTS for b in (None, w[:1])],
    ),
    Op(
        "SquaredRelu",
        lambda x: [np.maximum(x, 0) ** 2],
        [(s,) for s in SIZES],
        dtypes=("float32",),
    ),
]


Run = Callable[[Arrays, dict[str, object], int], Arrays]


def check(op: Op, dtype: str, run_op: Run) -> None:
    """Compares run_op(inputs, attributes, number of outputs) with the formula in every case."""
    random = np.random.default_rng(1)
    for shapes in op.shapes:
        inputs = [
            None if shape is None else (3 * random.standard_normal(shape)).astype(DTYPES[dtype])
            for shape in shapes
        ]
        exact = [x if x is None else x.astype(np.float64) for x in inputs]
        for attributes in op.attributes:
            expected = op.formula(*exact, **attributes)
            # ONNX rounds an attribute such as 1e-6 to float32.
            rounded = 2**-24 if "eps" in inspect.signature(op.formula).parameters else 0
            tolerance = max(TOLERANCE[dtype], rounded)
            for y, wanted in zip(run_op(inputs, attributes, len(expected)), expected, strict=True):
                assert y.dtype == DTYPES[dtype]
                assert y.shape == wanted.shape, (shapes, attributes)
                magnitudes = [abs(a).max() for a in (*exact, wanted) if a is not None and a.size]
                np.testing.assert_allclose(
                    y.astype(np.float64),
                    wanted,
                    rtol=tolerance,
                    atol=tolerance * max([1.0, *magnitudes]),
                    err_msg=f"{shapes} {attributes}",
                )


def name_of(op: Op) -> str:
    """The name of an op: rms_norm for RmsNorm."""
    return re.sub("(?<!^)([A-Z])", r"_\1", op.onnx_type).lower()


def with_labels(attributes: dict[str, object]) -> dict[str, object]:
    """Attributes of ONNX as PyTorch has them."""
    if "layout" not in attributes:
        return attributes
    return attributes | {"layout": ["halves", "pairs"][attributes["layout"]]}


EVERY_OP = pytest.mark.parametrize("op", OPS, ids=lambda op: op.onnx_type)
EVERY_DTYPE = pytest.mark.parametrize("dtype", DTYPES)


@of_the_module
@EVERY_DTYPE
@EVERY_OP
def test_onnx_runtime(llm_ops: Path, op: Op, dtype: str) -> None:
    def run_op(inputs: Arrays, attributes: dict[str, object], outputs: int) -> Arrays:
        return run(llm_ops, "llm", op.onnx_type, inputs, outputs, **attributes)

    if dtype in op.dtypes:
        check(op, dtype, run_op)
    else:
        with pytest.raises(Exception, match=op.onnx_type):
            run_op([np.zeros((2,), DTYPES[dtype])], {}, 1)


@of_the_module
@EVERY_OP
def test_definition(llm, op: Op) -> None:
    from cudarelu._onnx.evaluator import evaluate

    declared = next(each for each in llm.ops() if each.name == name_of(op))
    names = [each.name for each in declared.inputs]

    def run_op(inputs: Arrays, attributes: dict[str, object], outputs: int) -> Arrays:
        return evaluate(declared, dict(zip(names, inputs, strict=True)), with_labels(attributes))

    check(op, "float64", run_op)


@of_the_module
@pytest.mark.parametrize(
    "device",
    [
        "cpu",
        pytest.param(
            "cuda",
            marks=pytest.mark.skipif(bool(torch_cuda_missing()), reason=torch_cuda_missing() or ""),
        ),
    ],
)
@EVERY_DTYPE
@EVERY_OP
def test_torch(llm, op: Op, dtype: str, device: str) -> None:
    import torch

    name = name_of(op)

    def tensor(array: np.ndarray | None) -> torch.Tensor | None:
        if array is None:
            return None
        if dtype == "bfloat16":
            return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16).to(device)
        return torch.from_numpy(array).to(device)

    def array(tensor: torch.Tensor) -> np.ndarray:
        if dtype == "bfloat16":
            return tensor.cpu().view(torch.int16).numpy().view(BFLOAT16)
        return tensor.cpu().numpy()

    def run_op(inputs: Arrays, attributes: dict[str, object], outputs: int) -> Arrays:
        result = getattr(llm, name)(*map(tensor, inputs), **with_labels(attributes))
        return [array(each) for each in (result if outputs > 1 else [result])]

    if dtype in op.dtypes:
        check(op, dtype, run_op)
    else:
        with pytest.raises(NotImplementedError, match=name):
            run_op([np.zeros((2,), DTYPES[dtype])], {}, 1)


@of_the_module
def test_rotary_refuses_other_sizes(llm_ops: Path) -> None:
    x, angles = np.zeros((1, 2, 6), np.float32), np.zeros((2, 2), np.float32)
    message = "rotary: the last dimension of x must be twice that of cos, 4, but is 6"
    with pytest.raises(Exception, match=message):
        run(llm_ops, "llm", "Rotary", [x, angles, angles])


ONE_DEVICE = """
#pragma once
#include "cudarelu/kernel.h"
namespace one {
using namespace cudarelu;
struct OnCpu {
  static constexpr OpSpec spec{.signature = "on_cpu(x: T[*]) -> y: T[*]", .summary = "0.",
                               .dtypes = floating_types, .definition = "y = Sub(x, x)"};
  static Status cpu(const Call& call) {
    std::memset(call.outputs[0].data, 0, call.outputs[0].size() * size_of(call.outputs[0].dtype));
    return {};
  }
};
struct OnCuda {
  static constexpr OpSpec spec{.signature = "on_cuda(x: T[*]) -> y: T[*]", .summary = "0.",
                               .dtypes = floating_types, .definition = "y = Sub(x, x)"};
  static Status cuda(const Call& call);
};
}  // namespace one
"""


def test_op_for_one_device(tmp_path: Path) -> None:
    (tmp_path / "one_device.h").write_text(
        ONE_DEVICE.replace("#include", "#include <cstring>\n#include", 1)
    )
    (tmp_path / "CMakeLists.txt").write_text(
        """cmake_minimum_required(VERSION 3.25)
project(one LANGUAGES CXX)
set(CUDARELU_CUDA OFF)  # the function `cuda` is not defined
find_package(cudarelu REQUIRED)
cudarelu_add_ops(one_ops NAMESPACE one SOURCES one_device.h)
"""
    )
    library = build(tmp_path, tmp_path / "build", "one_ops")
    x = np.ones((3,), np.float32)
    np.testing.assert_array_equal(run(library, "one", "OnCpu", [x])[0], 0)
    message = "on_cuda: the op has no kernel for the CPU; the module one was built for the CPU"
    with pytest.raises(Exception, match=message):
        run(library, "one", "OnCuda", [x])


GRADIENTS = {
    "rms_norm": lambda llm: (llm.rms_norm, [(2, 3, 5), (5,)]),
    "rms_norm without a weight": lambda llm: (lambda x: llm.rms_norm(x, eps=0.1), [(4, 3)]),
    "rms_norm_backward": lambda llm: (llm.rms_norm_backward, [(4, 3), (4, 3), (3,)]),
    "row_rrms": lambda llm: (llm.row_rrms, [(4, 3)]),
    "swiglu": lambda llm: (llm.swiglu, [(3, 4), (3, 4)]),
    "swiglu_backward": lambda llm: (llm.swiglu_backward, [(5,), (5,), (5,)]),
    "rotary of halves": lambda llm: (
        partial(llm.rotary, layout="halves"),
        [(2, 3, 4), (3, 2), (3, 2)],
    ),
    "rotary of pairs": lambda llm: (
        partial(llm.rotary, layout="pairs"),
        [(2, 3, 4), (3, 2), (3, 2)],
    ),
    "linear_swiglu": lambda llm: (llm.linear_swiglu, [(2, 3, 4), (5, 4), (2, 3, 5), (5,)]),
    "linear_swish": lambda llm: (llm.linear_swish, [(2, 3, 4), (5, 4), (5,)]),
    "linear_swish without a bias": lambda llm: (llm.linear_swish, [(3, 4), (5, 4)]),
}


@of_the_module
@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients(llm, name: str) -> None:
    import torch

    torch.manual_seed(0)
    function, shapes = GRADIENTS[name](llm)
    inputs = [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]
    assert torch.autograd.gradcheck(function, inputs)
    if name != "swiglu_backward":  # the second derivative of silu has no gradient
        assert torch.autograd.gradgradcheck(function, inputs)


@of_the_module
def test_gradient_of_squared_relu(llm) -> None:
    import torch

    x = torch.tensor([-1.0, 0.0, 3.0], requires_grad=True)
    llm.squared_relu(x).sum().backward()
    torch.testing.assert_close(x.grad, torch.tensor([0.0, 0.0, 6.0]))


def assert_near(actual, expected, what: str) -> None:
    """Equal up to a few roundings, relative to the largest element."""
    error = ((actual - expected).abs().max() / expected.abs().max()).item()
    assert error < 1e-5, what


@of_the_module
def test_llama_block_equals_pytorchs(
    llm, llm_ops: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    import cudarelu.onnx

    monkeypatch.syspath_prepend(EXAMPLE)
    import llama_block
    import reference

    torch.manual_seed(0)
    ours = llama_block.LlamaBlock(llm)
    theirs = llama_block.LlamaBlock(reference)
    theirs.linear_add = reference.linear_add
    theirs.load_state_dict(ours.state_dict())
    arguments = torch.randn(2, 33, 256), *llama_block.angles(33, 64)
    expected = theirs(*arguments)
    assert_near(ours(*arguments), expected, "forward")
    assert_near(torch.compile(ours, fullgraph=True)(*arguments), expected, "compiled")
    for block in (ours, theirs):
        block(*arguments).square().mean().backward()
    wanted = dict(theirs.named_parameters())
    for name, parameter in ours.named_parameters():
        assert_near(parameter.grad, wanted[name].grad, f"gradient of {name}")

    names, path = ["x", "cos", "sin"], tmp_path / "block.onnx"
    cudarelu.onnx.export(ours.eval(), arguments, path, input_names=names)
    options = onnxruntime.SessionOptions()
    options.register_custom_ops_library(str(llm_ops))
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    feeds = {name: x.numpy() for name, x in zip(names, arguments, strict=True)}
    (y,) = session.run(None, feeds)
    assert_near(torch.from_numpy(y), expected.detach(), "ONNX Runtime")


@of_the_module
@pytest.mark.parametrize("layout", ["halves", "pairs"])
@pytest.mark.parametrize("width", [16, 10, 3], ids=lambda width: f"d = {2 * width}")
def test_rotary_reads_the_heads_of_a_projection(llm, layout: str, width: int) -> None:
    import torch

    device = "cpu" if torch_cuda_missing() else "cuda"
    projected = torch.randn(2, 5, 3 * 7 * 2 * width, device=device)
    angles = [torch.randn(5, width, device=device) for _ in range(2)]
    for part in projected.chunk(3, dim=-1):
        x = part.unflatten(-1, (7, -1)).transpose(1, 2)
        y = llm.rotary(x, *angles, layout=layout)
        assert torch.equal(y, llm.rotary(x.contiguous(), *angles, layout=layout))
        assert y.transpose(1, 2).is_contiguous()


@of_the_module
def test_rotary_reads_views_of_angles(llm) -> None:
    import torch

    device = "cpu" if torch_cuda_missing() else "cuda"
    x, table = torch.randn(3, 5, 16, device=device), torch.randn(10, 32, device=device)
    views = [table[:5, 8:16], table[::2, :8], table[:1, :8].expand(5, 8), table[5:, 1:9]]
    for cos, sin in zip(views, [*views[1:], views[0]], strict=True):
        y = llm.rotary(x, cos, sin)
        assert torch.equal(y, llm.rotary(x, cos.contiguous(), sin.contiguous()))


@of_the_module
@BUILT
def test_llama_block(llm, llm_ops: Path, tmp_path: Path) -> None:
    settings = commands.environment(PYTHONPATH=os.pathsep.join(filter(None, sys.path)))
    command = (sys.executable, EXAMPLE / "llama_block.py", llm_ops)
    output = commands.run(*command, cwd=tmp_path, env=settings)
    losses = [float(loss) for loss in re.findall(r"loss ([\d.]+)", output)]
    assert len(losses) == 5
    assert losses == sorted(losses, reverse=True)
    output = commands.run(ORT_INFER, "--library", llm_ops, "llama_block.onnx", cwd=tmp_path)
    assert "2 x llm::Rotary" in output
