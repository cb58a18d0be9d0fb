"""The ops in ONNX Runtime's CUDA provider: streams, CUDA graphs, memory and precision.

test_ort_session.py tests sessions on arrays.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch
from onnx import helper

import cudarelu
from cudarelu.testing import DTYPES, Case, assert_close, cases, reference
from cudarelu.testing.cases import is_float
from cudarelu.testing.environment import ort_cuda_missing
from cudarelu.testing.hosts import Torch, numpy_of, one_op_model, onnx_type
from support.cases import reversed_rows, tier
from support.models import make_model, make_options, node, tensor

OPS = {op.name: op for op in cudarelu.ops()}
FLOATS = ("float32", "float16", "bfloat16")
OP_DTYPES = [
    pytest.param(op.name, dtype, marks=tier(op.name, dtype))
    for op in cudarelu.ops()
    for dtype in op.dtypes
    if dtype in FLOATS
]
SLOW = 50_000_000  # clock cycles, some 25 ms: longer than a call on the host
PROVIDERS = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}

needs_cuda = pytest.mark.skipif(bool(ort_cuda_missing()), reason=ort_cuda_missing() or "")
DEVICES = ["cpu", pytest.param("cuda", marks=needs_cuda)]


def large_case(name: str, dtype: str) -> Case:
    (case,) = cases(OPS[name], DTYPES[dtype], "large")
    return case


def make_session(model: bytes, device="cuda", provider_options=None, **attributes):
    """A session in which the device's provider runs every node."""
    options = make_options()
    for name, value in attributes.items():
        setattr(options, name, value)
    if device == "cuda":
        options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    given = {"use_tf32": 0} if device == "cuda" else {}
    given |= provider_options or {}
    provider = (PROVIDERS[device], {key: str(x) for key, x in given.items()})
    return ort.InferenceSession(model, options, providers=[provider], enable_fallback=0)


@needs_cuda
def test_a_constant_that_stands_for_an_absent_mask():
    """Attention is that of calls without a mask, which other kernels compute, to the bit."""
    q, k, v = (np.random.default_rng(i).normal(size=(1, 2, 256, 64)) for i in range(3))
    feeds = {name: x.astype(np.float16) for name, x in zip("qkv", (q, k, v), strict=True)}
    zero = np.zeros((), np.float16)

    def results(constant: bool) -> np.ndarray:
        values = [helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT16, x.shape)
                  for n, x in (feeds | {"mask": zero}).items()]  # fmt: skip
        call = helper.make_node("Attention", [*feeds, "mask"], ["y"], domain="cudarelu")
        y = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT16, None)
        graph = helper.make_graph([call], "g", values[: 3 if constant else 4], [y])
        if constant:
            graph.initializer.append(onnx.numpy_helper.from_array(zero, "mask"))
        versions = [helper.make_opsetid(*each) for each in (("", 18), ("cudarelu", 1))]
        model = helper.make_model(graph, ir_version=8, opset_imports=versions)
        given = feeds if constant else feeds | {"mask": zero}
        return make_session(model.SerializeToString()).run(None, given)[0]

    tensors = [torch.from_numpy(x).cuda() for x in feeds.values()]
    expected = cudarelu.attention(*tensors).cpu().numpy()
    assert np.array_equal(results(True), expected)
    other = results(False)
    assert not np.array_equal(other, expected)
    np.testing.assert_allclose(other, expected, atol=2e-3)


class Bound:
    """A session of one op, bound to tensors whose addresses do not change."""

    def __init__(self, name: str, dtype: str, device="cuda", **provider_options):
        self.op, self.dtype, self.host = OPS[name], DTYPES[dtype], Torch(device)
        self.case = large_case(name, dtype)
        model = one_op_model(self.op, [self.case]).SerializeToString()
        self.session = make_session(model, device, provider_options)
        self.given = {name: x for name, x in self.case.inputs.items() if x is not None}
        self.inputs = [self.host.tensor(x) for x in self.given.values()]
        self.outputs, self.binding = self.bind()

    def bind(self):
        """New outputs, and a binding to them and to the inputs."""
        binding, outputs = self.session.io_binding(), []
        device = (self.host.device, 0)
        for (name, x), memory in zip(self.given.items(), self.inputs, strict=True):
            element, shape = onnx_type(x.dtype), tuple(memory.shape)
            binding.bind_input(f"{name}_0", *device, element, shape, memory.data_ptr())
        for p, y in zip(self.op.outputs, reference(self.op, self.case), strict=True):
            dtype = self.dtype if p.dtype == "T" else np.dtype(p.dtype)
            outputs.append(self.host.tensor(np.full(y.shape, 77, dtype)))
            element, address = onnx_type(dtype), outputs[-1].data_ptr()
            binding.bind_output(f"{p.name}_0", *device, element, y.shape, address)
        return outputs, binding

    def fill(self, inputs: list[torch.Tensor]) -> None:
        for memory, x in zip(self.inputs, inputs, strict=True):
            memory.copy_(x)

    def forget(self) -> None:
        """Changes the inputs, so that they no longer give the outputs of the case."""
        for memory in self.inputs:
            if memory.is_floating_point():
                memory.zero_()

    def run(self, **entries: str) -> None:
        options = ort.RunOptions()
        for key, value in entries.items():
            options.add_run_config_entry(key, value)
        self.session.run_with_iobinding(self.binding, options)

    def check(self, case: Case | None = None) -> None:
        case = case or self.case
        for p, y, expected in zip(
            self.op.outputs, self.outputs, reference(self.op, case), strict=True
        ):
            dtype = self.dtype if p.dtype == "T" else np.dtype(p.dtype)
            assert_close(self.op, case, numpy_of(y), expected, dtype)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("name", "dtype"), OP_DTYPES)
def test_bindings(name, dtype, device):
    """A run writes the bound outputs and reads the current values of the bound inputs."""
    bound = Bound(name, dtype, device)
    for case in (bound.case, reversed_rows(bound.case)):
        bound.fill([bound.host.tensor(x) for x in case.inputs.values() if x is not None])
        if device == "cuda":
            torch.cuda.synchronize()
        bound.run()
        bound.check(case)


@needs_cuda
@pytest.mark.parametrize(("name", "dtype"), OP_DTYPES)
def test_the_users_stream(name, dtype):
    """An op runs after the work queued before it and before the work queued after it, and the host
    does not wait. On the default stream, it would run immediately."""
    stream = torch.cuda.Stream()
    bound = Bound(name, dtype, user_compute_stream=stream.cuda_stream)
    (options,) = [bound.session.get_provider_options()[PROVIDERS["cuda"]]]
    assert int(options["user_compute_stream"]) == stream.cuda_stream
    inputs = [x.clone() for x in bound.inputs]
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        bound.run()  # loads the kernels
        for cycles in (SLOW, 20 * SLOW):  # on a busy machine, a call on the host takes longer
            bound.forget()
            torch.cuda.synchronize()
            torch.cuda._sleep(cycles)
            bound.fill(inputs)
            bound.run(disable_synchronize_execution_providers="1")
            bound.forget()
            if in_time := not stream.query():
                break
        assert in_time, "the call waits for the device"
    stream.synchronize()
    bound.check()


@needs_cuda
@pytest.mark.parametrize(("name", "dtype"), OP_DTYPES)
def test_graphs(name, dtype):
    """A graph is captured, and replayed with other inputs."""
    bound = Bound(name, dtype, enable_cuda_graph=1)
    other = reversed_rows(bound.case)
    for case in (bound.case, other, bound.case, other):
        bound.fill([bound.host.tensor(x) for x in case.inputs.values() if x is not None])
        torch.cuda.synchronize()
        bound.run()
        bound.check(case)
    # The graph is replayed: it does not write outputs that were bound later.
    untouched, later = bound.bind()
    bound.session.run_with_iobinding(later)
    torch.cuda.synchronize()
    assert all(bool((y == 77).all()) for y in untouched)
    bound.check(other)


@needs_cuda
def test_two_sessions_on_two_streams_at_once():
    streams = [torch.cuda.Stream() for _ in range(2)]
    names = ["softmax", "sum_rows"]
    bounds = [
        Bound(name, "float32", user_compute_stream=stream.cuda_stream)
        for name, stream in zip(names, streams, strict=True)
    ]
    inputs = [[x.clone() for x in bound.inputs] for bound in bounds]
    for bound in bounds:
        bound.run()
    torch.cuda.synchronize()

    def run(i):
        bound, stream = bounds[i], streams[i]
        with torch.cuda.stream(stream):
            bound.forget()
            torch.cuda._sleep(4 * SLOW)
            for _ in range(50):
                bound.fill(inputs[i])
                bound.run(disable_synchronize_execution_providers="1")
        return not stream.query()

    with ThreadPoolExecutor(2) as pool:
        assert all(pool.map(run, range(2)))
    torch.cuda.synchronize()
    for bound in bounds:
        bound.check()


# Between ONNX Runtime's own nodes


def between_negations(op, case: Case) -> onnx.ModelProto:
    """The model of the case with its floating-point inputs and outputs negated."""
    model = one_op_model(op, [case])
    graph = model.graph
    (call,) = graph.node
    before, after = [], []
    floating = {x.name for x in graph.input if x.type.tensor_type.elem_type in (1, 10)}
    for i, name in enumerate(call.input):
        if name in floating:
            before.append(helper.make_node("Neg", [name], [f"negative_{name}"]))
            call.input[i] = f"negative_{name}"
    for i, output in enumerate(graph.output):
        if output.type.tensor_type.elem_type in (1, 10):
            after.append(helper.make_node("Neg", [f"negative_{output.name}"], [output.name]))
            call.output[i] = f"negative_{output.name}"
    nodes = [*before, call, *after]
    del graph.node[:]
    graph.node.extend(nodes)
    return model


def types_of_nodes(path) -> set[str]:
    return {each.op_type for each in onnx.load(path).graph.node}


COPIES = {"MemcpyFromHost", "MemcpyToHost"}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("name", "dtype"), [each for each in OP_DTYPES if "bfloat16" not in each.values]
)
def test_nothing_is_copied_between_nodes(name, dtype, device, tmp_path):
    """ONNX Runtime's own nodes around the op run in the same provider, without copies."""
    op, case = OPS[name], large_case(name, dtype)
    path = tmp_path / "optimized.onnx"
    model = between_negations(op, case).SerializeToString()
    session = make_session(model, device, optimized_model_filepath=str(path))
    types = types_of_nodes(path)
    assert {op.onnx.op_type, "Neg"} <= types
    assert not types & COPIES
    given = {name: x for name, x in case.inputs.items() if x is not None}
    feed = {f"{name}_0": -x if is_float(x.dtype) else x for name, x in given.items()}
    for p, y, expected in zip(
        op.outputs, session.run(None, feed), reference(op, case), strict=True
    ):
        wanted = DTYPES[dtype] if p.dtype == "T" else np.dtype(p.dtype)
        assert_close(op, case, -y if is_float(y.dtype) else y, expected, wanted)


@needs_cuda
def test_copies_would_be_seen(tmp_path):
    path = tmp_path / "optimized.onnx"
    nodes = [
        node("Relu", ["x"], ["r"]),
        helper.make_node("Unique", ["r"], ["u"]),  # not available on CUDA
        node("Relu", ["u"], ["y"]),
    ]
    options = make_options()
    options.optimized_model_filepath = str(path)
    model = make_model(nodes, [tensor("x", ["N"])], [tensor("y", None)])
    ort.InferenceSession(model, options, providers=["CUDAExecutionProvider"])
    assert types_of_nodes(path) >= COPIES


# Products


@needs_cuda
@pytest.mark.parametrize("use_tf32", [0, 1])
@pytest.mark.parametrize("name", ["Linear", "LinearRelu", "LinearGelu"])
def test_products_are_in_tf32_where_the_provider_says_so(name, use_tf32):
    generator = np.random.default_rng(0)
    x, weight = (generator.normal(size=(512, 2048)).astype(np.float32) for _ in range(2))
    tensors = [tensor("x", [512, 2048]), tensor("w", [512, 2048])]
    model = make_model([node(name, ["x", "w"], ["y"])], tensors, [tensor("y", None)])
    session = make_session(model, "cuda", {"use_tf32": use_tf32})
    (y,) = session.run(None, {"x": x, "w": weight})
    exact = x.astype(np.float64) @ weight.T.astype(np.float64)
    error = np.abs(y - exact)[exact > 6].max()  # here every activation is the identity
    assert (error > 5e-3) == bool(use_tf32)  # the error is about 0.05 in TF32, 1e-4 in float32


# In place


SIZE = 1 << 24  # elements: tensors of 64 MiB
ENOUGH_FOR_ONE = 100 << 20  # bytes


def run_in_little_memory(nodes, x_shape) -> torch.Tensor:
    """The output y for x = 1, where the session has memory for one intermediate tensor only; x and
    y are outside this memory."""
    options = {"gpu_mem_limit": ENOUGH_FOR_ONE, "arena_extend_strategy": "kSameAsRequested"}
    model = make_model(nodes, [tensor("x", x_shape)], [tensor("y", None)])
    session = make_session(model, "cuda", options)
    x, y = torch.ones(SIZE, device="cuda"), torch.zeros(SIZE, device="cuda")
    torch.cuda.synchronize()
    binding = session.io_binding()
    binding.bind_input("x", "cuda", 0, np.float32, (SIZE,), x.data_ptr())
    binding.bind_output("y", "cuda", 0, np.float32, (SIZE,), y.data_ptr())
    session.run_with_iobinding(binding)
    return y


@needs_cuda
@pytest.mark.parametrize("x_shape", [[SIZE], ["N"]])
def test_in_place(x_shape):
    nodes = [
        helper.make_node("Neg", ["x"], ["a"]),
        node("Scale", ["a"], ["b"], factor=3.0),
        helper.make_node("Neg", ["b"], ["y"]),
    ]
    assert bool((run_in_little_memory(nodes, x_shape) == 3).all())


@needs_cuda
def test_not_in_place_where_another_node_reads_the_input():
    """An op that cannot run in place runs out of memory. This shows that the test above works."""
    nodes = [
        helper.make_node("Neg", ["x"], ["a"]),
        node("Scale", ["a"], ["b"], factor=3.0),
        helper.make_node("Add", ["a", "b"], ["y"]),
    ]
    with pytest.raises(Exception, match=r"[Mm]emory"):
        run_in_little_memory(nodes, [SIZE])
