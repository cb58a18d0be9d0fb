"""ONNX Runtime's quantization and symbolic shape inference, on models with our ops and on lowered
ones, with the arguments that docs/onnx.md gives."""

from __future__ import annotations

import functools

import numpy as np
import onnx
import onnx.checker
import onnx.helper
import onnx.numpy_helper
import onnx.parser
import onnxruntime
import pytest
import torch

import cudarelu.onnx
import cudarelu.ort

pytest.importorskip("onnxruntime.quantization")  # some builds of ONNX Runtime leave it out
from onnxruntime.quantization import CalibrationDataReader, quantize_dynamic, quantize_static
from onnxruntime.quantization.shape_inference import quant_pre_process
from onnxruntime.tools.symbolic_shape_infer import SymbolicShapeInference

TYPES = ["Gemm", "MatMul"]
HEAD = '<ir_version: 8, opset_import: ["" : 18, "cudarelu" : 1, "user" : 1]> main '
LAYERS = (
    HEAD
    + """(float[batch,8] x) => (float[batch,8] y)
    <float[6,8] w1, float[6] b1, float[8,6] w2, float[8] b2> {
    h = cudarelu.Linear(x, w1, b1)
    r = cudarelu.ACTIVATION(h)
    y = Gemm<transB = 1>(r, w2, b2)
}"""
)
MODELS = {
    "relu": LAYERS.replace("ACTIVATION", "Relu"),
    "leaky_relu": LAYERS.replace("ACTIVATION", "LeakyRelu<negative_slope = 0.1>"),
    "attention": HEAD
    + """(float[batch,5,8] x) => (float[batch,5,8] y)
    <float[24,8] w1, float[24] b1, float[8,8] w2, float[8] b2,
     int64[5] heads = {0, 5, 3, 2, 4}, int64[3] whole = {0, 5, 8}, int64[1] first = {0}> {
    h = cudarelu.Linear(x, w1, b1)
    parts = Reshape(h, heads)
    turned = Transpose<perm = [2, 0, 3, 1, 4]>(parts)
    q_1, k_1, v_1 = Split<num_outputs = 3>(turned)
    q = Squeeze(q_1, first)
    k = Squeeze(k_1, first)
    v = Squeeze(v_1, first)
    a = cudarelu.Attention<is_causal = 1>(q, k, v)
    back = Transpose<perm = [0, 2, 1, 3]>(a)
    joined = Reshape(back, whole)
    o = cudarelu.Linear(joined, w2, b2)
    y = Add(x, o)
}""",
}


@functools.cache
def model_of(name: str) -> onnx.ModelProto:
    """A model as PyTorch's exporter writes it: the types of weights are in value_info, too."""
    model = onnx.parser.parse_model(MODELS[name])
    random = np.random.default_rng(0)
    for each in model.graph.value_info:
        shape = [dim.dim_value for dim in each.type.tensor_type.shape.dim]
        weight = random.uniform(-0.4, 0.4, shape).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(weight, each.name))
    return cudarelu.onnx.attach_definitions(model)


def feeds_of(name: str) -> dict[str, np.ndarray]:
    shape = [2, 5, 8] if name == "attention" else [3, 8]
    return {"x": np.random.default_rng(1).normal(size=shape).astype(np.float32)}


def results(model: onnx.ModelProto, feeds, library: bool = False) -> list[np.ndarray]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    if library:
        cudarelu.ort.register(options)
    providers = ["CPUExecutionProvider"]
    running = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=providers)
    return running.run(None, feeds)


class Inputs(CalibrationDataReader):
    def __init__(self, name):
        self._given = iter([feeds_of(name)])

    def get_next(self):
        return next(self._given, None)


@pytest.mark.parametrize("is_static", [False, True])
@pytest.mark.parametrize("prepared", [False, True])
@pytest.mark.parametrize("lowered", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_quantized(name, lowered, prepared, is_static, tmp_path):
    whole, prepared_file, file = (tmp_path / f"{each}.onnx" for each in ("a", "b", "c"))
    model = model_of(name)
    onnx.save(cudarelu.onnx.lower(model) if lowered else model, whole)
    if prepared:
        quant_pre_process(whole, prepared_file, skip_symbolic_shape=True)
    source = prepared_file if prepared else whole
    if is_static:
        quantize_static(source, file, Inputs(name), op_types_to_quantize=TYPES)
    else:
        quantize_dynamic(source, file, op_types_to_quantize=TYPES)
    quantized = onnx.load(file)
    onnx.checker.check_model(quantized, full_check=True)
    matrices = [
        each
        for each in quantized.graph.initializer
        if each.data_type == onnx.TensorProto.INT8 and len(each.dims) == 2
    ]
    of_standard_nodes = 0 if name == "attention" else 1
    assert len(matrices) == (2 if lowered or prepared else of_standard_nodes)
    (expected,) = results(model, feeds_of(name))
    for library in (False, True):
        (y,) = results(quantized, feeds_of(name), library)
        np.testing.assert_allclose(y, expected, rtol=0, atol=0.05)


@pytest.mark.parametrize("name", ["relu", "leaky_relu"])
def test_symbolic_shapes(name):
    """Of nodes of ours, ONNX Runtime's script does not know the batch."""
    model = model_of(name)
    SymbolicShapeInference.infer_shapes(model, auto_merge=True)
    (y,) = SymbolicShapeInference.infer_shapes(cudarelu.onnx.lower(model)).graph.output
    assert [each.dim_param or each.dim_value for each in y.type.tensor_type.shape.dim] == [
        "batch",
        8,
    ]


def test_no_type_of_a_weight():
    """A weight has its type: a tool that transposes it does not change a second one."""
    model = onnx.parser.parse_model(
        HEAD
        + """(float[N,4] x, bool c) => (float[N,4] y)
        <float[4] w = {1, 2, 3, 4}, float[N,4] h, float[4] unused> {
            h = Mul(x, w)
            y = If (c) <
                then_branch = t () => (float[N,4] p) <float[4] b = {1, 2, 3, 4}> { p = Add(h, b) },
                else_branch = e () => (float[N,4] q) { q = cudarelu.Relu(h) }>
        }"""
    )
    branch = next(a.g for a in model.graph.node[1].attribute if a.name == "then_branch")
    branch.value_info.add(name="b").type.CopyFrom(onnx.helper.make_tensor_type_proto(1, [4]))
    for change in (
        cudarelu.onnx.attach_definitions,
        cudarelu.onnx.lower,
        lambda model: cudarelu.onnx.accelerate(model)[0],
    ):
        result = change(model)
        inner = [a.g for a in result.graph.node[-1].attribute]
        for graph in (result.graph, *inner):
            typed = {each.name for each in graph.value_info}
            assert typed.isdisjoint(each.name for each in graph.initializer)
    assert "h" in {each.name for each in result.graph.value_info}


def test_lowered_nodes_do_not_read_the_shapes_of_weights():
    """onnxruntime.quantization transposes the weight of a Gemm, also where a Shape reads it."""
    lowered = cudarelu.onnx.lower(model_of("attention"))
    weights = {each.name for each in lowered.graph.initializer}
    read = {node.input[0] for node in lowered.graph.node if node.op_type == "Shape"}
    assert read
    assert read.isdisjoint(weights)


@pytest.mark.parametrize(("scale", "count"), [("", 0), ("<scale = 0.5>", 1)])
def test_lowered_attention_without_a_scale(scale, count):
    """The number that stands for an absent scale is NaN, which tools cannot make an integer."""
    model = onnx.parser.parse_model(
        f"""{HEAD} (float[N,2,S,4] q) => (float[N,2,S,4] y, float[N,2,S,4] z) {{
            y = cudarelu.Attention{scale}(q, q, q)
            z = user.F<scale = 0.25>(q)
        }}
        <domain: "user", opset_import: ["" : 18, "cudarelu" : 1]> F <scale> (q) => (z) {{
            z = cudarelu.Attention<scale: float = @scale>(q, q, q)
        }}"""
    )
    lowered = cudarelu.onnx.lower(model)
    onnx.checker.check_model(lowered, full_check=True)
    for scope, expected in ((lowered.graph, count), (lowered.functions[0], 1)):
        assert [node.op_type for node in scope.node].count("IsNaN") == expected
    q = torch.linspace(-2, 2, 80).reshape(2, 2, 5, 4)
    for y, factor in zip(results(lowered, {"q": q.numpy()}), (0.5, 0.25), strict=True):
        wanted = torch.nn.functional.scaled_dot_product_attention(q, q, q, scale=factor)
        np.testing.assert_allclose(y, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("level", ["ORT_DISABLE_ALL", "ORT_ENABLE_ALL"])
def test_an_optimized_model(level, tmp_path):
    """Without the library it has standard operators; with it, our nodes, but no definitions."""
    for library in (False, True):
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3  # such a file is meant for this machine
        options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
        options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
        if library:
            cudarelu.ort.register(options)
        onnxruntime.InferenceSession(
            cudarelu.onnx.demo_model().SerializeToString(),
            options,
            providers=["CPUExecutionProvider"],
        )
        optimized = onnx.load(tmp_path / "optimized.onnx")
        assert not optimized.functions
        types = [node.op_type for node in optimized.graph.node]
        assert types == (["CustomRelu"] if library else ["Relu"])
    attached = cudarelu.onnx.attach_definitions(optimized)
    assert [each.name for each in attached.functions] == ["CustomRelu"]
