"""PyTorch models in ONNX: one file for every runtime, with both of PyTorch's exporters."""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import os
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnx.reference
import onnxruntime as ort
import pytest
import torch
from onnx import TensorProto, helper
from torch import nn
from torch.onnx._internal.exporter import _registration as registration

import cudarelu
import cudarelu.nn
import cudarelu.onnx
import cudarelu.ort
from cudarelu._onnx.absent_inputs import with_default_inputs
from cudarelu._onnx.definitions import specialised
from cudarelu._table import op_named
from cudarelu.onnx.inspection import describe
from cudarelu.testing import DTYPES, Plan, assert_close, make_case, reference
from cudarelu.testing.environment import ort_cuda_missing
from cudarelu.testing.exports import Calls, arrays, export_calls, feeds, symbols
from cudarelu.testing.hosts import BFLOAT16, onnx_type
from support.cases import slow_after, tier

pytestmark = [
    pytest.mark.filterwarnings("ignore:You are using the legacy TorchScript"),
    pytest.mark.filterwarnings("ignore:The feature will be removed"),
]

OPS = {op.name: op for op in cudarelu.ops()}
EXPORTERS = ["dynamo", "torchscript"]
EXPORTED = [  # the tests of one export run in one worker, so that it is made only once
    pytest.param(exporter, name, marks=[pytest.mark.xdist_group(f"{exporter}-{name}"), *tier(name)])
    for name in OPS
    for exporter in EXPORTERS
]
X = torch.tensor([[-1.0, 2, -3, 4], [0.5, -0.5, 0, 3]])


@pytest.fixture(autouse=True, scope="module")
def _translations_read_once():
    """PyTorch parses its 500 translations for each export, which takes half of the time."""
    apis = registration.onnxscript_apis
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(apis, "get_torchlib_ops", functools.cache(apis.get_torchlib_ops))
        yield


def plans(op, leading: tuple[int, ...], size: int) -> list[Plan]:
    """Calls with default attributes, with other attributes, and with absent inputs."""
    optional = [p.name for p in op.inputs if p.optional]
    absent = [(), *((name,) for name in optional), tuple(optional)] if optional else [()]
    calls = [Plan(f"absent{i}", leading, size, absent=names) for i, names in enumerate(absent)]
    return calls + [Plan("given", leading, size, attributes="low")] * bool(op.attributes)


def calls(op, dtype: str, leading: tuple[int, ...], size: int):
    return [make_case(op, DTYPES[dtype], plan) for plan in plans(op, leading, size)]


def export(module, args, exporter: str, names=None, sizes=None, path=None, **options):
    """Exports a module; sizes[i][axis] is the name or the size of a dimension of input i."""
    named = [{a: n for a, n in enumerate(each) if isinstance(n, str)} for each in sizes or []]
    if exporter == "dynamo":
        if sizes:
            shapes = tuple(named)
            is_variadic = isinstance(module, Calls)
            options["dynamic_shapes"] = (shapes,) if is_variadic else shapes
    else:
        options |= {"dynamo": False}
        if sizes:
            options["dynamic_axes"] = dict(zip(names, named, strict=True))
    return cudarelu.onnx.export(
        module.eval(), args, path, input_names=names, verbose=False, **options
    )


@functools.cache
def exported(op_name: str, exporter: str):
    return export_calls(OPS[op_name], calls(OPS[op_name], "float32", (3, 5, 7), 13), exporter)


# The runtimes


def session(
    model: onnx.ModelProto, library: bool = False, provider: Any = "CPUExecutionProvider"
) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    if library:
        cudarelu.ort.register(options)
    return ort.InferenceSession(model.SerializeToString(), options, providers=[provider])


def domains_run(running: ort.InferenceSession) -> set[str]:
    parts = running.get_provider_graph_assignment_info()
    return {node.domain for part in parts for node in part.get_nodes()}


def run_ort_without(model, feeds):
    running = session(model)
    assert "cudarelu" not in domains_run(running)
    return running.run(None, feeds)


def run_ort_with(model, feeds):
    running = session(model, library=True)
    # The models have no other nodes, except those for absent inputs.
    assert "cudarelu" in domains_run(running)
    assert domains_run(running) <= {node.domain for node in model.graph.node}
    values = {
        name: ort.OrtValue.ortvalue_from_numpy_with_onnx_type(a, onnx_type(a.dtype))
        for name, a in feeds.items()
    }
    results = running.run_with_ort_values(None, values)
    return [
        torch.from_dlpack(r._ortvalue.to_dlpack()).view(torch.int16).numpy().view(BFLOAT16)
        if r.element_type() == TensorProto.BFLOAT16
        else r.numpy()
        for r in results
    ]


def run_reference(model, feeds):
    with np.errstate(all="ignore"):
        return onnx.reference.ReferenceEvaluator(model).run(None, feeds)


def run_lowered(model, feeds):
    lowered = cudarelu.onnx.lower(model)
    onnx.checker.check_model(lowered, full_check=True)
    assert {each.domain for each in lowered.opset_import} == {""}
    assert not lowered.functions
    return session(lowered).run(None, feeds)


def run_openvino(model, feeds):
    if importlib.util.find_spec("openvino") is None:
        pytest.skip("OpenVINO is not installed")
    import openvino

    core = openvino.Core()
    lowered = core.read_model(cudarelu.onnx.lower(model).SerializeToString())
    compiled = core.compile_model(lowered, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    return list(compiled(feeds).values())


RUNTIMES = [run_ort_without, run_ort_with, run_reference, run_lowered, run_openvino]


@pytest.mark.parametrize(("exporter", "op_name"), EXPORTED)
@pytest.mark.parametrize("runtime", RUNTIMES, ids=lambda f: f.__name__)
def test_one_file_every_runtime(runtime, exporter, op_name):
    """The sizes differ from those at the export."""
    op, model = OPS[op_name], exported(op_name, exporter)
    check_results(op, calls(op, "float32", (2, 6, 4), 9), runtime, model)


def check_results(op, cases, runtime, model) -> None:
    outputs = list(runtime(model, feeds(model, cases)))
    for case in cases:
        variable = next(a.dtype for a in case.inputs.values() if a is not None)
        for parameter, wanted in zip(op.outputs, reference(op, case), strict=True):
            dtype = variable if parameter.dtype == "T" else np.dtype(parameter.dtype)
            y = outputs.pop(0)
            if runtime is run_openvino and parameter.dtype != "T":
                assert y.shape == wanted.shape  # its TopK returns equal elements in any order
            else:
                assert_close(op, case, y, wanted, dtype)
    assert not outputs


# What is in the file


def shape_of(info: onnx.ValueInfoProto) -> list[str | int]:
    assert info.type.tensor_type.elem_type
    return [d.dim_param or d.dim_value for d in info.type.tensor_type.shape.dim]


@pytest.mark.parametrize(("exporter", "op_name"), EXPORTED)
def test_the_file(exporter, op_name):
    op, model = OPS[op_name], exported(op_name, exporter)
    onnx.checker.check_model(model, full_check=True)
    assert model.ir_version == 8
    assert {each.domain: each.version for each in model.opset_import} == {"": 18, "cudarelu": 1}
    assert [each.name for each in model.functions] == [op.onnx.op_type]
    assert not model.functions[0].attribute_proto  # not in IR version 8

    cases = calls(op, "float32", (3, 5, 7), 13)
    ours = [node for node in model.graph.node if node.domain == "cudarelu"]
    assert len(ours) == len(cases)
    default_inputs = {"Shape", "Concat", "ConstantOfShape", "CastLike", "Constant"}
    default_inputs |= {"ReduceMin", "ReduceMax"}
    assert {node.op_type for node in model.graph.node if node.domain == ""} <= default_inputs
    for node, case in zip(ours, cases, strict=True):
        assert len(node.input) == len(op.inputs)
        for name, each in zip(node.input, op.inputs, strict=True):
            assert name or (each.optional and not each.default_input)
        given = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        values = {a.name: a.default for a in op.attributes} | case.attributes
        wanted = op.onnx_attributes(values)
        rounded = {name: type(value)(np.float32(value)) for name, value in wanted.items()}
        np.testing.assert_equal(given, rounded)  # NaN equals NaN

    assert list(map(shape_of, model.graph.input)) == symbols(op, cases)
    if exporter == "dynamo":
        whole = [i for i, case in enumerate(cases) if len(arrays([case])) == len(op.inputs)]
        count = len(op.outputs)
        shapes = list(map(shape_of, model.graph.output))
        for number in whole:
            part = slice(number * count, (number + 1) * count)
            assert shapes[part] == symbols(op, cases, "outputs")[part]


class Block(nn.Module):
    """Our ops, some of them in place, between torch's ops."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.torch_relu = nn.ReLU(inplace=True)
        self.relu = cudarelu.nn.ReLU(inplace=True)
        self.leaky_relu = cudarelu.nn.LeakyReLU(0.25, inplace=True)

    def forward(self, x):
        y = self.relu(self.linear(x) + 0.5)
        y = self.torch_relu(cudarelu.scaled_add(self.leaky_relu(y - 1), y))
        return cudarelu.relu(x), cudarelu.softmax(y)


@pytest.mark.parametrize("exporter", EXPORTERS)
def test_a_model(exporter, tmp_path):
    torch.manual_seed(0)
    path, block = tmp_path / "model.onnx", Block()
    returned = export(block, (X,), exporter, ["x"], [["batch", 4]], path)
    assert os.listdir(tmp_path) == ["model.onnx"]
    model = onnx.load(path)
    assert model == returned
    onnx.checker.check_model(path, full_check=True)
    names = sorted(each.name for each in model.functions)
    assert names == ["LeakyRelu", "Relu", "ScaledAdd", "Softmax"]
    assert list(map(shape_of, model.graph.output)) == [["batch", 4]] * 2

    known = {each.name: shape_of(each) for each in (*model.graph.value_info, *model.graph.output)}
    for node in model.graph.node:
        assert not node.metadata_props  # not in IR version 8
        for name in node.output:
            if node.op_type not in ("Constant", "Shape"):
                assert known[name] == ["batch", 4]

    x = torch.randn(7, 4)
    expected = [y.detach().numpy() for y in block(x)]
    for runtime in (session(model), session(model, True), session(cudarelu.onnx.lower(model))):
        for y, wanted in zip(runtime.run(None, {"x": x.numpy()}), expected, strict=True):
            np.testing.assert_allclose(y, wanted, rtol=1e-5, atol=1e-6)
    assert domains_run(session(model, True)) == {"", "cudarelu"}
    assert domains_run(session(model)) == {""}


@pytest.mark.parametrize("opset", slow_after(1, [23, 20]))
def test_later_opsets(opset):
    op = OPS["knn_query"]
    model = export_calls(op, calls(op, "float32", (), 13), "dynamo", opset_version=opset)
    assert {each.domain: each.version for each in model.opset_import}[""] == opset
    assert model.functions[0].opset_import[0].version == opset
    assert model.ir_version == {20: 9, 23: 11}[opset]
    check_results(op, calls(op, "float32", (), 9), run_ort_without, model)


@pytest.mark.parametrize("exporter", EXPORTERS)
def test_keyword_inputs(exporter):
    class Module(nn.Module):
        def forward(self, x, bias=None):
            return cudarelu.bias_relu(x, bias)

    bias = torch.ones(4)
    model = export(Module(), (X,), exporter, kwargs={"bias": bias})
    feeds = dict(zip([i.name for i in model.graph.input], (X.numpy(), bias.numpy()), strict=True))
    y = session(model).run(None, feeds)[0]
    np.testing.assert_array_equal(y, Module()(X, bias).numpy())


def test_a_function_is_no_module():
    with pytest.raises(TypeError, match=r"takes a torch.nn.Module, .*; cudarelu.nn.Op wraps an op"):
        cudarelu.onnx.export(cudarelu.relu, (torch.randn(3),))


def test_an_exported_program():
    program = torch.export.export(cudarelu.nn.ReLU(), (X,))
    model = cudarelu.onnx.export(program, verbose=False)
    np.testing.assert_array_equal(
        session(model).run(None, {model.graph.input[0].name: X.numpy()})[0], X.relu().numpy()
    )


def test_external_data(tmp_path, monkeypatch):
    path, block, written = tmp_path / "model.onnx", Block(), []
    replace = os.replace
    monkeypatch.setattr(os, "replace", lambda a, b: (written.append(b), replace(a, b)))
    returned = export(block, (X,), "dynamo", path=path, external_data=True)
    assert written[-1] == path  # the model is written after its weights
    assert sorted(os.listdir(tmp_path)) == ["model.onnx", "model.onnx.data"]
    assert returned == onnx.load(path, load_external_data=False)
    onnx.checker.check_model(path, full_check=True)
    lowered = cudarelu.onnx.lower(returned)  # the weights remain in their file
    onnx.save(lowered, tmp_path / "lowered.onnx")
    for name in ("model.onnx", "lowered.onnx"):
        running = ort.InferenceSession(tmp_path / name, providers=["CPUExecutionProvider"])
        y = running.run(None, {running.get_inputs()[0].name: X.numpy()})[1]
        np.testing.assert_allclose(y, block(X)[1].detach().numpy(), rtol=1e-5, atol=1e-6)


def test_the_table_for_torchs_own_export():
    """A translation of another op may call ours."""
    table = cudarelu.onnx.translation_table()
    assert {torch.ops.cudarelu.relu.default, torch.ops.cudarelu.softmax.default} <= {*table}
    relu = table[torch.ops.cudarelu.relu.default]
    table[torch.ops.aten.sinh.default] = lambda x: relu(x)
    program = torch.onnx.export(
        Sinh().eval(), (X,), dynamo=True, custom_translation_table=table, verbose=False
    )
    model = cudarelu.onnx.attach_definitions(program.model_proto)
    (name,) = [each.name for each in model.graph.input]
    np.testing.assert_array_equal(session(model).run(None, {name: X.numpy()})[0], X.relu().numpy())


def test_a_translation_of_ours():
    """The user's translation takes precedence."""
    from onnxscript import opset18

    table = {torch.ops.cudarelu.relu.default: lambda x: opset18.Neg(x)}
    model = export(cudarelu.nn.ReLU(), (X,), "dynamo", custom_translation_table=table)
    assert [node.op_type for node in model.graph.node] == ["Neg"]


def test_torchscript_knows_the_types(capfd):
    export(cudarelu.nn.ReLU(), (X,), "torchscript")
    assert "shape inference of cudarelu" not in capfd.readouterr().err


class Sinh(nn.Module):
    def forward(self, x):
        return torch.sinh(x)


@pytest.mark.parametrize("library", [False, True])
def test_cuda(library):
    """A model on CUDA can be exported, and the CUDA provider runs all nodes."""
    if reason := ort_cuda_missing():
        pytest.skip(reason)
    block = Block()
    expected = [y.detach().numpy() for y in block(X)]
    model = export(block.cuda(), (X.cuda(),), "dynamo", ["x"], [["batch", 4]])
    running = session(model, library, ("CUDAExecutionProvider", {"use_tf32": "0"}))
    parts = running.get_provider_graph_assignment_info()
    assert {part.ep_name for part in parts} == {"CUDAExecutionProvider"}
    assert ("cudarelu" in domains_run(running)) == library
    for y, wanted in zip(running.run(None, {"x": X.numpy()}), expected, strict=True):
        np.testing.assert_allclose(y, wanted, rtol=1e-5, atol=1e-6)


# Ops of other libraries


class Asinh(nn.Module):
    def forward(self, x):
        return cudarelu.relu(torch.asinh(x))


@pytest.mark.parametrize("exporter", EXPORTERS)
def test_an_op_of_torch(exporter):
    """The TorchScript exporter has no translation of asinh; the test adds ONNX's Asinh."""
    options = {}
    if exporter == "dynamo":
        from onnxscript import opset18

        options["custom_translation_table"] = {
            torch.ops.aten.asinh.default: lambda x: opset18.Asinh(x)
        }
    else:
        torch.onnx.register_custom_op_symbolic("aten::asinh", lambda g, x: g.op("Asinh", x), 18)
    try:
        model = export(Asinh(), (X,), exporter, ["x"], **options)
    finally:
        if exporter == "torchscript":
            torch.onnx.unregister_custom_op_symbolic("aten::asinh", 18)
    assert [node.op_type for node in model.graph.node] == ["Asinh", "Relu"]
    np.testing.assert_allclose(
        session(model, True).run(None, {"x": X.numpy()})[0], Asinh()(X).numpy(), rtol=1e-6
    )


@torch.library.custom_op("torch_cluster::grid", mutates_args=())
def grid(pos: torch.Tensor, size: float) -> torch.Tensor:
    return torch.floor(pos / size).to(torch.int64)


@grid.register_fake
def _(pos, size):
    return torch.empty_like(pos, dtype=torch.int64)


class Grid(nn.Module):
    def forward(self, x):
        return torch.ops.torch_cluster.grid(cudarelu.relu(x), 0.75)


@pytest.mark.parametrize("exporter", EXPORTERS)
def test_an_op_of_another_library(exporter):
    options = {}
    if exporter == "dynamo":
        from onnxscript import opset18

        def translation(pos, size: float):
            cells = opset18.Floor(opset18.Div(pos, opset18.Constant(value_float=size)))
            return opset18.Cast(cells, to=TensorProto.INT64)

        options["custom_translation_table"] = {torch.ops.torch_cluster.grid.default: translation}
    else:

        @torch.onnx.symbolic_helper.parse_args("v", "f")
        def symbolic(g, pos, size):
            cells = g.op("Floor", g.op("Div", pos, g.op("Constant", value_t=torch.tensor(size))))
            return g.op("Cast", cells, to_i=TensorProto.INT64)

        torch.onnx.register_custom_op_symbolic("torch_cluster::grid", symbolic, 18)
    try:
        model = export(Grid(), (X,), exporter, ["x"], **options)
    finally:
        if exporter == "torchscript":
            torch.onnx.unregister_custom_op_symbolic("torch_cluster::grid", 18)
    for library in (False, True):
        y = session(model, library).run(None, {"x": X.numpy()})[0]
        np.testing.assert_array_equal(y, Grid()(X).numpy())


class Twice(torch.autograd.Function):
    """The dynamo exporter traces `forward`; the TorchScript exporter calls `symbolic`."""

    @staticmethod
    def forward(ctx, x):
        return cudarelu.scale(x, factor=2.0)

    @staticmethod
    def backward(ctx, grad):
        return cudarelu.scale(grad, factor=2.0)

    @staticmethod
    def symbolic(g, x):
        return g.op("cudarelu::Scale", x, factor_f=2.0).setType(x.type())


@pytest.mark.parametrize("exporter", EXPORTERS)
def test_an_autograd_function(exporter):
    class Module(nn.Module):
        def forward(self, x):
            return Twice.apply(x)

    model = export(Module(), (X,), exporter, ["x"])
    assert [node.op_type for node in model.graph.node] == ["Scale"]
    for library in (False, True):
        y = session(model, library).run(None, {"x": X.numpy()})[0]
        np.testing.assert_array_equal(y, 2 * X.numpy())


# Lowering


HEADER = '<ir_version: 8, opset_import: ["" : 18, "cudarelu" : 1, "custom_domain" : 1, "user" : 1]>'


def parse(text: str, header: str = HEADER) -> onnx.ModelProto:
    return onnx.parser.parse_model(f"{header}\n{text}")


def one_node(call: str, header: str = HEADER) -> onnx.ModelProto:
    return parse(f"main (float[N,4] x, float[4] b) => (float[N,4] y) {{ y = {call} }}", header)


def test_lower_looks_everywhere():
    """Branches, loops, functions and aliases are lowered. Defaults are filled in, and names remain
    unique."""
    model = parse(
        """main (float[N,4] x, bool c, int64 n) => (float[N,4] y) {
            a = If (c) <
                then_branch = t () => (float[N,4] p) { p = cudarelu.LeakyRelu(x) },
                else_branch = e () => (float[N,4] q) {
                    slope = cudarelu.LeakyRelu<negative_slope = 0.5>(x)
                    q = custom_domain.CustomRelu(slope)
                }>
            d = Loop (n, c, a) <body = l (int64 i, bool go, float[N,4] v)
                => (bool on, float[N,4] w) {
                on = Identity(go)
                w = cudarelu.ScaledAdd(v, x)
            }>
            y = user.Twice (d)
        }
        <domain: "user", opset_import: ["" : 18, "cudarelu" : 1]> Twice (x) => (y) {
            z = cudarelu.Scale<factor = 0.5>(x)
            y = Add(z, z)
        }"""
    )
    lowered = cudarelu.onnx.lower(model)
    onnx.checker.check_model(lowered, full_check=True)
    assert "cudarelu" not in onnx.printer.to_text(lowered)
    assert {each.domain for each in lowered.opset_import} == {"", "user"}
    assert [each.name for each in lowered.functions] == ["Twice"]
    for condition, leak in ((True, 0.01), (False, 0.0)):
        feeds = {"x": X.numpy(), "c": np.array(condition), "n": np.array(2)}
        y = torch.nn.functional.leaky_relu(X, leak)
        y = 2 * (2 * y + X) + X if condition else y
        np.testing.assert_allclose(session(lowered).run(None, feeds)[0], y, rtol=1e-6)


def test_lower_leaves_what_is_not_ours():
    model = one_node("custom_domain.CustomOther(x)")
    assert cudarelu.onnx.lower(model) == model
    both = parse(
        """main (float[N,4] x) => (float[N,4] y) {
            z = custom_domain.CustomRelu(x)
            y = custom_domain.CustomOther(z)
        }"""
    )
    lowered = cudarelu.onnx.lower(both)
    assert [node.op_type for node in lowered.graph.node] == ["Relu", "CustomOther"]
    assert "custom_domain" in {each.domain for each in lowered.opset_import}
    assert len(both.functions) == 0  # the argument is not changed


def test_lower_by_the_definition_that_is_attached():
    model = cudarelu.onnx.demo_model()
    model.functions[0].node[0].name = "a name without a meaning"
    assert [node.op_type for node in cudarelu.onnx.lower(model).graph.node] == ["Relu"]
    model.functions[0].node[0].op_type = "Neg"
    with pytest.raises(ValueError, match="definition of custom_domain::CustomRelu in the model"):
        cudarelu.onnx.lower(model)


@pytest.mark.parametrize(
    ("shape", "nodes"),
    [("b,4", ["Gemm", "Gemm"]), ("3,4", ["Gemm", "Gemm"]), ("2,b,4", None)],
)
def test_lower_a_linear_layer_of_a_matrix(shape, nodes):
    """It needs no Reshape, with which the definition supports any rank."""
    model = parse(
        f"""main (float[{shape}] x, float[4,4] w, bool c) => (float[{shape}] y, float[{shape}] z) {{
            y = cudarelu.Linear(x, w)
            z = If (c) <
                then_branch = t () => (float[{shape}] p) {{ p = cudarelu.Linear(y, w) }},
                else_branch = e () => (float[{shape}] q) {{ s = Shape(y) q = Reshape(y, s) }}>
        }}"""
    )
    lowered = cudarelu.onnx.lower(model)
    onnx.checker.check_model(lowered, full_check=True)
    outer, branch = lowered.graph.node, lowered.graph.node[-1].attribute[0].g.node
    types = [node.op_type for node in (*outer[:-1], *branch)]
    assert types == nodes if nodes else types.count("Reshape") == 4
    x = np.linspace(-1, 1, 24, dtype=np.float32).reshape([2, 3, 4] if "2" in shape else [6, 4])
    x = x[:3] if shape == "3,4" else x
    weight = np.linspace(-1, 2, 16, dtype=np.float32).reshape(4, 4)
    for condition in (True, False):
        results = session(lowered).run(None, {"x": x, "w": weight, "c": np.array(condition)})
        y = x @ weight.T
        expected = (y, y @ weight.T if condition else y)
        for actual, wanted in zip(results, expected, strict=True):
            np.testing.assert_allclose(actual, wanted, rtol=1e-5, atol=1e-5)


def test_lower_keeps_references_to_attributes():
    model = parse(
        """main (float[N,4] x) => (float[N,4] y) { y = user.Leak<slope = 0.5>(x) }
        <domain: "user", opset_import: ["" : 18, "cudarelu" : 1]> Leak <slope> (x) => (y) {
            y = cudarelu.LeakyRelu<negative_slope: float = @slope>(x)
        }"""
    )
    y = session(cudarelu.onnx.lower(model)).run(None, {"x": X.numpy()})[0]
    np.testing.assert_array_equal(y, torch.nn.functional.leaky_relu(X, 0.5))


KNNQUERY = """main (int64[1] k, float[n,3] xyz, int32[b] offset) => (int32[?,?] idx, float[?,?] d) {
    idx, d = custom.knnquery(k, xyz, offset)
}"""
CLOUD = {
    "k": np.array([2]),
    "xyz": np.random.default_rng(0).standard_normal((7, 3)).astype(np.float32),
    "offset": np.array([3, 7], np.int32),
}


def test_an_alias_with_inputs_of_its_own():
    """The definition that is attached has the attribute as an input, too."""
    model = parse(KNNQUERY, HEADER.replace("user", "custom"))
    attached = cudarelu.onnx.attach_definitions(model)
    onnx.checker.check_model(attached, full_check=True)
    (definition,) = attached.functions
    assert list(definition.input) == ["nsample", "xyz", "offset", "new_xyz", "new_offset"]
    assert not definition.attribute
    assert list(attached.graph.node[-1].input) == ["k", "xyz", "offset", "xyz", "offset"]
    assert cudarelu.onnx.attach_definitions(attached) == attached
    assert describe(attached)["definitions"] == {"custom::knnquery": True}
    assert describe(attached)["ours"] == {"custom::knnquery": {"op": "knn_query", "alias": True}}
    lowered = cudarelu.onnx.lower(model)
    assert {each.domain for each in lowered.opset_import} == {"", "cudarelu", "custom_domain"}
    results = [
        session(model, library=True).run(None, CLOUD),
        session(attached).run(None, CLOUD),
        session(lowered).run(None, CLOUD),
        onnx.reference.ReferenceEvaluator(attached).run(None, CLOUD),
    ]
    assert results[0][0].shape == (7, 2)
    for idx, distance in results[1:]:
        np.testing.assert_array_equal(idx, results[0][0])
        np.testing.assert_allclose(distance, results[0][1], rtol=1e-6)


def test_an_alias_with_two_to_four_inputs():
    model = parse(
        """main (float[n,3] x, float[3] size, float[3] end) => (int64[n] a, int64[n] b) {
            a = custom.torch_cluster_grid(x, size)
            b = custom.torch_cluster_grid(x, size, , end)
        }""",
        HEADER.replace("user", "custom"),
    )
    x = CLOUD["xyz"]
    feeds = {"x": x, "size": np.float32([0.5, 1, 1]), "end": x.max(0) + np.float32(1)}
    expected = session(model, library=True).run(None, feeds)
    for other in (cudarelu.onnx.attach_definitions(model), cudarelu.onnx.lower(model)):
        for one, two in zip(session(other).run(None, feeds), expected, strict=True):
            np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("custom.knnquery(xyz, offset)", "input offset is missing"),
        ("custom.knnquery(, xyz, offset)", "input nsample is missing"),
        ("custom.knnquery(k, xyz, offset, xyz, offset, k)", "6 inputs, but it has 5"),
        ("custom.knnquery<nsample = 2>(k, xyz, offset)", "no attribute nsample, which is an input"),
        ("custom.knnquery<count = 2>(k, xyz, offset)", "there is no attribute count$"),
    ],
)
def test_a_node_of_an_alias_that_is_wrong(call, message):
    text = KNNQUERY.replace("custom.knnquery(k, xyz, offset)", call)
    with pytest.raises(ValueError, match=f"a node, custom::knnquery: .*{message}"):
        cudarelu.onnx.attach_definitions(parse(text, HEADER.replace("user", "custom")))


def aliased(name: str, *inputs: str, **fields):
    """An op with an alias, custom::other, with these inputs."""
    onnx_name = dataclasses.replace(OPS[name].onnx, alias=("custom", "other"), alias_inputs=inputs)
    return dataclasses.replace(OPS[name], onnx=onnx_name, **fields)


@pytest.mark.parametrize(
    ("name", "attribute", "value"),
    [("leaky_relu", "negative_slope", np.float64(0.25)), ("gelu", "approximate", np.int32([1]))],
)
def test_a_definition_with_an_attribute_as_an_input(name, attribute, value):
    definition = cudarelu.onnx.function(aliased(name, attribute, "x"), "custom", "other")
    evaluator = onnx.reference.ReferenceEvaluator
    inputs = {definition.input[0]: np.asarray(value), "x": X.numpy()}
    found = evaluator(definition).run(None, inputs, attributes={})
    whole = evaluator(cudarelu.onnx.function(OPS[name]))
    expected = whole.run(None, {"x": X.numpy()}, attributes={attribute: value.item()})
    np.testing.assert_array_equal(found, expected)


def test_a_definition_whose_input_cannot_be_an_attribute():
    op = aliased("leaky_relu", "negative_slope", "x")
    op = dataclasses.replace(op, definition="y = LeakyRelu<alpha: float = @negative_slope>(x)")
    with pytest.raises(ValueError, match="@negative_slope in a node LeakyRelu, but a model gives"):
        cudarelu.onnx.function(op, "custom", "other")


def test_a_definition_with_a_value_of_the_attributes_name():
    text = """negative_slope = Constant<value_float: float = @negative_slope>()
              y = Mul(x, negative_slope)"""
    op = aliased("leaky_relu", "x", "negative_slope", definition=text)
    definition = cudarelu.onnx.function(op, "custom", "other")
    onnx.checker.check_function(definition)
    assert list(definition.input) == ["x", "negative_slope_1"]


LABELLED = [
    (name, attribute.name, value)
    for name, op in OPS.items()
    for attribute in op.attributes
    for value in range(len(attribute.labels))
]


@pytest.mark.parametrize(("op_name", "attribute", "value"), LABELLED)
def test_a_definition_for_one_value_of_an_attribute(op_name, attribute, value):
    """The specialised definition computes the same as the whole one, without the attribute."""
    whole = cudarelu.onnx.function(OPS[op_name])
    part = specialised(whole, {attribute: value})
    assert len(part.node) < len(whole.node)
    assert not any(a.ref_attr_name == attribute for node in part.node for a in node.attribute)
    case = make_case(OPS[op_name], DTYPES["float64"], Plan("given", (3,), 5, attributes=str(value)))
    inputs = with_default_inputs(OPS[op_name], case.inputs)
    results = [
        onnx.reference.ReferenceEvaluator(each).run(None, inputs, attributes={attribute: value})
        for each in (part, whole)
    ]
    for actual, expected in zip(*results, strict=True):
        np.testing.assert_array_equal(actual, expected)


def test_a_branch_that_depends_on_the_inputs_stays():
    definition = onnx.parser.parse_function(
        """<domain: "user", opset_import: ["" : 18]> F <kind: int = 0> (x, mask) => (y, z) {
            one = Constant<value_int = 1>()
            label = Constant<value_int: int = @kind>()
            is_one = Equal(label, one)
            is_zero = Not(is_one)
            root = Sqrt(x)
            chosen = Where(is_one, root, x)
            y = Where(mask, chosen, x)
            z = Where(is_zero, x, root)
        }"""
    )
    assert specialised(definition, {}) == definition
    types = [[n.op_type for n in specialised(definition, {"kind": k}).node] for k in (0, 1)]
    assert types == [["Where", "Identity"], ["Sqrt", "Where"]]
    x, mask = np.array([4.0, 9.0]), np.array([True, False])
    for kind, (y, z) in enumerate([([4, 9], [4, 9]), ([2, 9], [2, 3])]):
        part = onnx.reference.ReferenceEvaluator(specialised(definition, {"kind": kind}))
        results = part.run(None, {"x": x, "mask": mask}, attributes={"kind": kind})
        np.testing.assert_array_equal(results, [y, z])


def test_what_only_a_subgraph_reads_is_needed():
    definition = onnx.parser.parse_function(
        """<domain: "user", opset_import: ["" : 18]> F <kind: int = 0> (x, positive) => (y) {
            root = Sqrt(x)
            label = Constant<value_int: int = @kind>()
            one = Constant<value_int = 1>()
            is_one = Equal(label, one)
            chosen = Where(is_one, root, x)
            y = If(positive) <
              then_branch = f () => (double[N] a) { a = Add(chosen, root) },
              else_branch = g () => (double[N] b) { b = Neg(chosen) }
            >
        }"""
    )
    x = np.array([4.0, 9.0])
    for kind, expected in enumerate([[6, 12], [4, 6]]):
        part = specialised(definition, {"kind": kind})
        assert "Where" not in [node.op_type for node in part.node]
        run = onnx.reference.ReferenceEvaluator(part).run
        (result,) = run(None, {"x": x, "positive": np.array(True)}, attributes={"kind": kind})
        np.testing.assert_array_equal(result, expected)


class _HalfOfTheNeighbours(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x, offset):
        return self.function(x, offset, nsample=x.shape[0] // 2)[1]


@pytest.mark.parametrize("function", [cudarelu.knn_query, torch.ops.cudarelu.knn_query])
def test_an_attribute_that_is_a_dynamic_size(function, tmp_path):
    example = (torch.randn(8, 3), torch.tensor([8], dtype=torch.int32))
    module, file = _HalfOfTheNeighbours(function).eval(), tmp_path / "model.onnx"
    message = r"knn_query: nsample is .*, which depends on a dynamic size, but an attribute"
    with pytest.raises(ValueError, match=message):
        cudarelu.onnx.export(module, example, file, dynamic_shapes=({0: "n"}, None))
    assert not file.exists()
    if function is cudarelu.knn_query:  # a static size is a constant
        model = cudarelu.onnx.export(module, example)
        (node,) = [each for each in model.graph.node if each.op_type == "KnnQuery"]
        assert [each.i for each in node.attribute] == [4]


DOUBLE_GELU = "main (double[N,4] x) => (double[N,4] y) { y = cudarelu.Gelu<approximate = 1>(x) }"


def test_a_branch_that_is_not_taken_is_not_needed():
    """ONNX Runtime has no float64 Erf on the CPU, so a model with this branch could not run."""
    model = cudarelu.onnx.attach_definitions(parse(DOUBLE_GELU))
    assert "Erf" not in {node.op_type for node in model.functions[0].node}
    for each in (model, cudarelu.onnx.lower(model)):
        onnx.checker.check_model(each, full_check=True)
        (y,) = session(each).run(None, {"x": X.double().numpy()})
        torch.testing.assert_close(
            torch.tensor(y), nn.functional.gelu(X.double(), approximate="tanh")
        )


def test_nodes_of_several_values():
    """Nodes with different values share the whole definition. When lowered, each node has only the
    branch for its own value."""
    model = parse(
        """main (double[N,4] x, float[N,4] w) => (double[N,4] y, float[N,4] z, float[N,4] u) {
            y = cudarelu.Gelu<approximate = 1>(x)
            z = cudarelu.Gelu(w)
            u = user.F<kind = 1>(w)
        }
        <domain: "user", opset_import: ["" : 18, "cudarelu" : 1]> F <kind> (x) => (y) {
            y = cudarelu.Gelu<approximate: int = @kind>(x)
        }"""
    )
    attached = cudarelu.onnx.attach_definitions(model)
    assert [each.name for each in attached.functions] == ["Gelu", "F"]
    assert "Where" in {node.op_type for node in attached.functions[0].node}
    lowered = cudarelu.onnx.lower(attached)
    onnx.checker.check_model(lowered, full_check=True)
    assert [node.op_type for node in lowered.graph.node].count("Erf") == 1
    assert [each.name for each in lowered.functions] == ["F"]
    assert {"Erf", "Where"} <= {node.op_type for node in lowered.functions[0].node}
    gelu = functools.partial(nn.functional.gelu, approximate="tanh")
    results = session(lowered).run(None, {"x": X.double().numpy(), "w": X.numpy()})
    expected = [gelu(X.double()), nn.functional.gelu(X), gelu(X)]
    for actual, wanted in zip(results, expected, strict=True):
        torch.testing.assert_close(torch.tensor(actual), wanted)


def test_a_definition_for_another_value_is_replaced():
    model = cudarelu.onnx.attach_definitions(parse(DOUBLE_GELU))
    model.graph.node[0].attribute[0].i = 0
    assert describe(model)["definitions"] == {"cudarelu::Gelu": False}
    again = cudarelu.onnx.attach_definitions(model)
    assert describe(again)["definitions"] == {"cudarelu::Gelu": True}
    assert "Erf" in {node.op_type for node in again.functions[0].node}
    assert "Tanh" not in {node.op_type for node in again.functions[0].node}


def test_definitions_are_before_the_functions_that_call_them():
    """onnx.reference reads functions in order."""
    model = parse(
        """main (float[N,4] x) => (float[N,4] y) { y = user.F(x) }
        <domain: "user", opset_import: ["" : 18, "cudarelu" : 1]> F (x) => (y) {
            z = cudarelu.Relu(x) y = cudarelu.Tanh(z) }"""
    )
    attached = cudarelu.onnx.attach_definitions(model)
    (y,) = onnx.reference.ReferenceEvaluator(attached).run(None, {"x": X.numpy()})
    torch.testing.assert_close(torch.tensor(y), X.relu().tanh())


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("cudarelu.Mish(x)", "a node, cudarelu::Mish: there is no such op"),
        (
            "cudarelu.Gelu<approximate = 2>(x)",
            r"approximate must be none \(0\) or tanh \(1\), not 2",
        ),
        ('cudarelu.Gelu<approximate = "tanh">(x)', r"approximate must be none \(0\) or tanh \(1\)"),
        ("cudarelu.Relu()", "cudarelu::Relu: input x is missing"),
        ('cudarelu.BiasRelu("", b)', "cudarelu::BiasRelu: input x is missing"),
        ("cudarelu.Relu(x, b)", "cudarelu::Relu: 2 inputs, but it has 1"),
        ("cudarelu.Scale(x)", "cudarelu::Scale: attribute factor is missing"),
        ("cudarelu.Scale<factor = 2>(x)", "cudarelu::Scale: factor must be a floating-point"),
        ("cudarelu.Relu<slope = 2>(x)", "cudarelu::Relu: there is no attribute slope"),
        ("cudarelu.KnnQuery<nsample = 0>(x, b)", r"nsample must be in \[1, 1024\], not 0"),
        ("cudarelu.KnnQuery<nsample = 1234567>(x, b)", r"in \[1, 1024\], not 1234567$"),
        ("cudarelu.LayerNorm<eps = -1.0>(x)", r"eps must be in \[0, inf\], not -1"),
        ("cudarelu.KnnQuery<nsample = 1.5>(x, b)", "nsample must be an integer"),
        ("custom_domain.CustomRelu(x, b)", "custom_domain::CustomRelu: 2 inputs"),
    ],
)
def test_lower_refuses_a_wrong_node(call, message):
    with pytest.raises(ValueError, match=message) as error:
        cudarelu.onnx.lower(one_node(call))
    assert "\n" not in str(error.value)


def test_the_range_of_an_integer_has_all_digits():
    (nsample,) = op_named("knn_query").attributes
    assert dataclasses.replace(nsample, highest=1234567).outside(0) == "[1, 1234567]"


def test_lower_refuses_too_many_outputs():
    model = parse("main (float[N,4] x) => (float[N,4] y) { y, z = cudarelu.Relu(x) }")
    with pytest.raises(ValueError, match="2 outputs, but it has 1"):
        cudarelu.onnx.lower(model)


@pytest.mark.parametrize(
    ("imports", "message"),
    [
        ('"" : 18, "cudarelu" : 2', "version 2 of the domain cudarelu, but this library has 1"),
        ('"" : 18', "version None of the domain cudarelu"),
    ],
)
def test_lower_refuses_other_versions(imports, message):
    header = f"<ir_version: 8, opset_import: [{imports}]>"
    with pytest.raises(ValueError, match=message):
        cudarelu.onnx.lower(one_node("cudarelu.Relu(x)", header))


def test_lower_of_custom_nodes_alone():
    header = '<ir_version: 8, opset_import: ["cudarelu" : 1]>'
    lowered = cudarelu.onnx.lower(one_node("cudarelu.Relu(x)", header))
    onnx.checker.check_model(lowered, full_check=True)


# Errors, and the files that remain after them


class Fails(nn.Module):
    def forward(self, x):
        raise ValueError("of the model's own\nin two lines")


class Bessel(nn.Module):
    def forward(self, x):
        return torch.special.bessel_j0(cudarelu.relu(x))


@pytest.mark.parametrize(
    ("module", "options", "error", "message"),
    [
        (Fails(), {}, RuntimeError, "ValueError: of the model's own"),
        (Bessel(), {}, RuntimeError, "No ONNX function found for .*bessel_j0"),
        (Bessel(), {"dynamo": False}, RuntimeError, "aten::special_bessel_j0.* not supported"),
        (Block(), {"opset_version": 17}, ValueError, "opset_version is 17, .* need 18"),
        (Block(), {"dynamo": False, "dynamic_shapes": ()}, ValueError, "takes dynamic_axes"),
    ],
)
def test_errors_leave_nothing(module, options, error, message, tmp_path):
    path = tmp_path / "model.onnx"
    path.write_bytes(b"before")
    with pytest.raises(error, match=message) as raised:
        cudarelu.onnx.export(module.eval(), (X,), path, verbose=False, **options)
    assert "\n" not in str(raised.value)
    assert os.listdir(tmp_path) == ["model.onnx"]
    assert path.read_bytes() == b"before"


def test_a_dtype_that_the_definition_lacks(tmp_path):
    """The message is ONNX's own, in one line."""
    with pytest.raises(
        ValueError, match=r"tensor\(bfloat16\); Asinh has it from opset 22 on"
    ) as raised:
        export(OursAsinh(), (X.bfloat16(),), "dynamo", path=tmp_path / "model.onnx")
    assert "\n" not in str(raised.value)
    assert os.listdir(tmp_path) == []


class OursAsinh(nn.Module):
    def forward(self, x):
        return cudarelu.asinh(x)


def test_a_path_that_is_no_file(tmp_path):
    with pytest.raises(ValueError, match="exists and is not a file"):
        cudarelu.onnx.export(Block().eval(), (X,), tmp_path)
    with pytest.raises(FileNotFoundError):
        cudarelu.onnx.export(Block().eval(), (X,), tmp_path / "missing/model.onnx")


def test_through_a_link(tmp_path):
    (tmp_path / "real.onnx").touch()
    (tmp_path / "link.onnx").symlink_to("real.onnx")
    export(Block(), (X,), "dynamo", path=tmp_path / "link.onnx")
    assert (tmp_path / "link.onnx").is_symlink()
    onnx.checker.check_model(tmp_path / "real.onnx", full_check=True)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("dynamo", [True, False])
@pytest.mark.parametrize(
    "export", [cudarelu.onnx.export, torch.onnx.export], ids=["ours", "torchs"]
)
def test_ops_in_place_are_refused(export, dynamo, tmp_path):
    """The TorchScript exporter would omit them without an error."""

    class Overwrite(torch.nn.Module):
        def forward(self, x):
            y = x - 1
            torch.ops.cudarelu.relu_(y[1:])
            return y

    with pytest.raises(RuntimeError, match="relu_"):
        export(Overwrite(), (torch.randn(3),), tmp_path / "model.onnx", dynamo=dynamo)
    assert not (tmp_path / "model.onnx").exists()


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:.*torch.jit")
@pytest.mark.parametrize("form", [torch.jit.script, lambda m: torch.jit.trace(m, torch.randn(3))])
@pytest.mark.parametrize(
    "export", [cudarelu.onnx.export, torch.onnx.export], ids=["ours", "torchs"]
)
def test_ops_in_place_of_torchscript_are_refused(export, form, tmp_path):
    """The exporter runs the model, but does not trace it."""

    class Overwrite(torch.nn.Module):
        def forward(self, x):
            y = x - 1
            torch.ops.cudarelu.relu_(y)
            return y

    with pytest.raises(RuntimeError, match="relu_ cannot be exported"):
        export(form(Overwrite()), (torch.randn(3),), tmp_path / "model.onnx", dynamo=False)
    assert not (tmp_path / "model.onnx").exists()


@pytest.mark.parametrize("opset", [18, 23])
def test_constants_of_lowered_models(opset):
    """Tools such as ONNX Runtime's symbolic_shape_infer read only the `value` of a Constant."""
    model = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["" : {opset}, "cudarelu" : 1]>
        main (float[N,4] x, float[4,4] w, float[4] s) => (float[N,4] y, int64[N] c) {{
            h = cudarelu.LeakyRelu (x) y = cudarelu.Linear (h, w)
            c = cudarelu.GridCluster (x, s) }}"""
    )
    # attach_definitions adds the start and the end that are absent.
    for each in cudarelu.onnx.lower(model), cudarelu.onnx.attach_definitions(model):
        constants = [node for node in each.graph.node if node.op_type == "Constant"]
        assert constants
        assert {a.name for node in constants for a in node.attribute} == {"value"}
        onnx.checker.check_model(each, full_check=True)
