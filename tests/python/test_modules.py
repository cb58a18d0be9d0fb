"""The ops of a second module are served as those of this library are, by their qualified names."""

from __future__ import annotations

import copy
import json
import lzma
import pickle
import platform
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnx.helper
import pytest
import torch

import cudarelu
import cudarelu.nn
import cudarelu.onnx
import cudarelu.ort
from cudarelu.__main__ import main
from cudarelu._pytorch.after_import import after_import
from cudarelu._pytorch.functions import FUNCTIONS, op_of, overload_of
from cudarelu._table import all_ops, op_in_onnx, op_named
from cudarelu.testing.torch_calls import attributes_of, inputs_of
from support.cases import slow_after
from support.op_modules import LIBRARY, my

BUILT_BEFORE = Path(__file__).parents[1] / "support/built_before"
X = torch.tensor([[-3.0, -0.5, 0.0], [0.5, 2.0, 30.0]])


@pytest.fixture(scope="module", autouse=True)
def _second_module():
    my()


def swish(beta: float) -> torch.Tensor:
    return X * torch.sigmoid(beta * X)


# Loading and look-ups


def test_modules():
    second = my()
    own = cudarelu.modules()[0]
    assert second in cudarelu.modules()
    assert cudarelu.load_library(LIBRARY) is second
    assert (own.name, second.name) == ("cudarelu", "my")
    assert own.ops() == cudarelu.ops()
    assert own.relu is cudarelu.relu
    assert second.ops()[0].name == "swish"
    assert {op.namespace for op in second.ops()} == {"my"}
    both = [op for op in all_ops() if op.namespace in ("cudarelu", "my")]
    assert both == own.ops() + second.ops()
    assert {op.name for op in second.ops()} <= {*dir(second)}
    count = len(second.ops())
    assert repr(second) == f"<op module my: {count} ops for {second.built_for}, {second.path}>"


CHECK = """
import sys, cudarelu, cudarelu.testing
module = cudarelu.load_library(sys.argv[1])
for op in module.ops():
    for host in ("torch-cpu", "numpy", "ort-cpu", "jax-jit-cpu", "tvm-ffi-cpu", "ort_infer-cpu"):
        cudarelu.testing.check(op.qualified_name, host, "float32", "odd")
        print(op.name, host)
"""


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the library is for x86_64")
@pytest.mark.parametrize("path", sorted(BUILT_BEFORE.glob("*.xz")), ids=lambda path: path.name)
def test_modules_that_were_built_before(path, tmp_path):
    library = tmp_path / "built_before.so"
    library.write_bytes(lzma.decompress(path.read_bytes()))
    done = subprocess.run(  # its namespace is that of my()
        [sys.executable, "-c", CHECK, library], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 7 * 6


def test_look_ups():
    op = op_named("my::swish")
    assert (op.qualified_name, op.short_name) == ("my::swish", "my::swish")
    assert op_of(my().swish) is op
    assert op_in_onnx("my", "Swish") is op
    relu = op_named("relu")
    assert repr(relu) == "<op cudarelu::relu(x: T[*]) -> y: T[*]>"
    assert relu is op_named("cudarelu::relu")
    assert (relu.qualified_name, relu.short_name) == ("cudarelu::relu", "relu")
    assert op_in_onnx(*relu.onnx.alias) is relu
    assert op_in_onnx("my", "Relu") is None
    with pytest.raises(ValueError, match=r"no op 'swish': there are .*relu, .*, my::swish"):
        op_named("swish")
    with pytest.raises(TypeError, match="is not the function of an op"):
        op_of(torch.relu)


def test_an_unknown_attribute():
    with pytest.raises(AttributeError, match=r"^the op module my has no swich; did you mean swish"):
        my().swich  # noqa: B018
    with pytest.raises(AttributeError, match=r"^the op module my has no relu$"):
        my().relu  # noqa: B018


def test_modules_and_functions_are_pickled():
    for each in (my(), my().swish):
        assert pickle.loads(pickle.dumps(each)) is each
        assert copy.deepcopy(each) is each
    code = "import sys, pickle; pickle.load(sys.stdin.buffer)"
    program = [sys.executable, "-c", code]
    subprocess.run(program, input=pickle.dumps(my().swish), check=True)


def test_the_own_functions_are_pickled_by_name():
    assert b"load_library" not in pickle.dumps(cudarelu.relu)


# PyTorch


def test_calls_and_gradients():
    torch.testing.assert_close(my().swish(X, beta=2.0), swish(2.0))
    torch.testing.assert_close(torch.ops.my.swish(X, beta=2.0), swish(2.0))
    x = X.double().requires_grad_()
    assert torch.autograd.gradcheck(lambda x: my().swish(x, beta=2.0), x)


def test_a_sum_of_absent_gradients_is_zeros():
    """The gradient of `doubled` calls an op with the sum of two gradients."""
    x = X.clone().requires_grad_()
    for outputs, factor in (([0], 2), ([1], 2), ([2], 1), ([0, 1, 2], 5), ([0, 2], 3)):
        results = my().doubled(x)
        (gradient,) = torch.autograd.grad(sum(results[i].sum() for i in outputs), x)
        torch.testing.assert_close(gradient, torch.full_like(X, factor))


def test_arrays():
    np.testing.assert_allclose(my().swish(X.numpy(), beta=2.0), swish(2.0).numpy(), rtol=1e-6)


def test_vmap():
    for op in my().ops():
        inputs, attributes = inputs_of(op), attributes_of(op)
        function = FUNCTIONS[op.qualified_name]
        batch = [torch.stack([x, x + 1, x - 1]) for x in inputs]
        each = [function(*x, **attributes) for x in zip(*batch, strict=True)]
        several = len(op.outputs) > 1
        expected = (
            tuple(map(torch.stack, zip(*each, strict=True))) if several else torch.stack(each)
        )
        actual = torch.vmap(lambda *x: function(*x, **attributes))(*batch)  # noqa: B023
        torch.testing.assert_close(actual, expected)


def test_vmap_in_place():
    def overwrite(x):
        torch.ops.my.swish_(x, beta=2.0)
        return x

    x = torch.stack([X, X + 1])
    torch.vmap(overwrite)(x)
    torch.testing.assert_close(x[0], swish(2.0))


@pytest.mark.filterwarnings("ignore:.*torch.jit")
def test_torchscript_traces_a_bool_of_an_op_in_place():
    for flag, expected in ((True, -X), (False, X)):

        def overwrite(x):
            torch.ops.my.negated_if_(x, flag=flag)  # noqa: B023
            return x

        torch.testing.assert_close(torch.jit.trace(overwrite, (X.clone(),))(X.clone()), expected)


@pytest.mark.filterwarnings("ignore:.*torch.jit")
def test_compilers_and_scripts():
    module = my()

    def function(x):
        return module.swish(x, beta=2.0)

    compiled = torch.compile(function, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(X), swish(2.0))
    program = torch.export.export(cudarelu.nn.Op(module.swish, beta=2.0), (X,))
    assert torch.ops.my.swish.default in [node.target for node in program.graph.nodes]

    @torch.jit.script
    def scripted(x: torch.Tensor):
        return module.swish(x, beta=2.0)

    torch.testing.assert_close(scripted(X), swish(2.0))
    assert "ops.my.swish" in scripted.code


@pytest.mark.slow
def test_inductor():
    import cudarelu.inductor

    module = my()
    assert overload_of(op_named("my::swish")) in cudarelu.inductor._DECOMPOSITIONS
    cudarelu.inductor.enable_fusion()
    try:
        before = torch.compiler.config.cache_key_tag
        cudarelu.inductor.register([])  # a module without ops, while fusion is enabled
        assert torch.compiler.config.cache_key_tag == before
        program = torch.compile(lambda x: module.swish(x * 2, beta=2.0), fullgraph=True)
        expected = X * 2 * torch.sigmoid(X * 4)
        torch.testing.assert_close(program(X), expected)
        # A bool in a definition, which is fused, and several outputs, which are not.
        program = torch.compile(lambda x: module.doubled(module.negated_if(x, flag=True))[2])
        torch.testing.assert_close(program(X), -X)
    finally:
        cudarelu.inductor.disable_fusion()
    assert overload_of(op_named("my::swish")) not in torch._inductor.decomposition.decompositions


LATE = """
import torch
if {early}:
    import torch._dynamo, torch.distributed.tensor, torch.utils.flop_counter, cudarelu.inductor
from support.op_modules import my
module = my()
if not {early}:
    assert "torch.distributed.tensor" not in sys.modules
    assert not {{"torch.utils.flop_counter", "cudarelu._flops"}} & set(sys.modules)
    import torch._dynamo, torch.distributed.tensor, torch.utils.flop_counter, cudarelu.inductor
from cudarelu._pytorch.functions import overload_of
from torch.distributed.tensor import DTensor
x = torch.randn(4)
torch.compile(lambda x: module.swish(x), backend="eager", fullgraph=True)(x)
propagator = DTensor._op_dispatcher.sharding_propagator
for op in module.ops():
    assert overload_of(op) in propagator.op_strategy_funcs, op.name
assert overload_of(module.ops()[0]) in cudarelu.inductor._DECOMPOSITIONS
with torch.utils.flop_counter.FlopCounterMode(display=False) as counter:
    module.linear_swish(torch.randn(2, 3, 5), torch.randn(7, 5))
assert counter.get_total_flops() == 2 * 2 * 3 * 5 * 7
"""


@pytest.mark.parametrize("early", slow_after(1, [True, False]))
def test_parts_of_pytorch_that_are_imported_before_or_after_the_module(early, pytestconfig):
    folder = str(pytestconfig.rootpath / "tests")
    code = f"import sys; sys.path.insert(0, {folder!r})\n" + LATE.format(early=early)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_every_action_follows_an_import(tmp_path, monkeypatch):
    (tmp_path / "imported_late.py").write_text("x = 1")
    monkeypatch.syspath_prepend(tmp_path)
    calls = []
    after_import("imported_late", lambda: calls.append(1))
    after_import("imported_late", lambda: calls.append(2))
    assert not calls
    import imported_late  # noqa: F401

    assert calls == [1, 2]
    after_import("imported_late", lambda: calls.append(3))
    assert calls == [1, 2, 3]
    assert not [each for each in sys.meta_path if getattr(each, "name", "") == "imported_late"]


# torch.nn


def test_module_of_an_op():
    module = cudarelu.nn.Op(my().swish, beta=2.0)
    assert repr(module) == "Op(my::swish, beta=2.0)"
    assert not module.state_dict()
    torch.testing.assert_close(module(X), swish(2.0))
    torch.testing.assert_close(copy.deepcopy(module)(X), swish(2.0))
    with pytest.raises(RuntimeError, match=r"swish: beta must be in \[0, inf\], not -1"):
        cudarelu.nn.Op(my().swish, beta=-1.0)


def test_a_module_of_an_op_is_pickled():
    module = cudarelu.nn.Op(my().swish, beta=2.0)
    assert pickle.loads(pickle.dumps(module)).function is my().swish


# ONNX


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dynamo", [True, False])
def test_onnx(dynamo, tmp_path, capsys):
    layers = torch.nn.Sequential(cudarelu.nn.Op(my().swish, beta=2.0), cudarelu.nn.ReLU())
    path = tmp_path / "model.onnx"
    model = cudarelu.onnx.export(layers, (X,), path, dynamo=dynamo)
    version = op_named("my::swish").onnx.version
    assert {"my": version, "cudarelu": 1}.items() <= {
        each.domain: each.version for each in model.opset_import
    }.items()
    assert {(each.domain, each.name) for each in model.functions} == {
        ("my", "Swish"),
        ("cudarelu", "Relu"),
    }
    expected = swish(2.0).relu().numpy()
    (name,) = (each.name for each in model.graph.input)
    for each in (model, cudarelu.onnx.lower(model)):
        run = onnx.reference.ReferenceEvaluator(each).run(None, {name: X.numpy()})
        np.testing.assert_allclose(run[0], expected, rtol=1e-6)
    session = cudarelu.ort.Session(path, "cpu")
    np.testing.assert_allclose(session(X.numpy()), expected, rtol=1e-6)

    capsys.readouterr()
    assert main(["inspect", str(path), "--library", str(LIBRARY), "--json"]) == 0
    ours = json.loads(capsys.readouterr().out)["ours"]
    assert {each["op"] for each in ours.values()} == {"my::swish", "relu"}

    accelerated, report = cudarelu.onnx.accelerate(cudarelu.onnx.lower(model))
    assert {each.op for each in report.replaced} == {"my::swish", "relu"}
    run = onnx.reference.ReferenceEvaluator(accelerated).run(None, {name: X.numpy()})
    np.testing.assert_allclose(run[0], expected, rtol=1e-6)


def test_errors_of_onnx_models():
    op = op_named("my::swish")

    def model(op_type: str, version: int, **attributes: float) -> onnx.ModelProto:
        node = onnx.helper.make_node(op_type, ["x"], ["y"], domain="my", **attributes)
        x, y = (
            onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["n"]) for name in "xy"
        )
        opsets = [onnx.helper.make_opsetid(*each) for each in (("", 18), ("my", version))]
        graph = onnx.helper.make_graph([node], "test", [x], [y])
        return onnx.helper.make_model(graph, ir_version=8, opset_imports=opsets)

    version = op.onnx.version
    cudarelu.onnx.attach_definitions(model("Swish", version, beta=2.0))
    with pytest.raises(ValueError, match="my::Swosh: there is no such op"):
        cudarelu.onnx.attach_definitions(model("Swosh", version))
    with pytest.raises(ValueError, match="there is no attribute gamma"):
        cudarelu.onnx.attach_definitions(model("Swish", version, gamma=1.0))
    message = f"version {version + 1} of the domain my, but this library has {version}"
    with pytest.raises(ValueError, match=message):
        cudarelu.onnx.attach_definitions(model("Swish", version + 1))


# The command line


def test_ops_command(capsys):
    assert main(["ops", "--library", str(LIBRARY)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("relu(") for line in lines)
    assert any(line.startswith("my::swish(") for line in lines)
    assert main(["ops", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert next(each["name"] for each in found if each["namespace"] == "my") == "swish"


def test_ops_in_markdown(capsys):
    assert main(["ops", "--library", str(LIBRARY), "--module", "my", "--markdown"]) == 0
    text = capsys.readouterr().out
    headings = [line for line in text.splitlines() if line.startswith("#")]
    assert headings == ["# The ops of my", *(f"## my::{op.name}" for op in my().ops())]
    swish = text.partition("## my::swish\n")[2].partition("\n## ")[0]
    for part in (
        op_named("my::swish").signature,
        "| T | float32, float64, float16, bfloat16 |",
        "| `beta` | `float` | 0.0 or more, default 1.0 |",
        "| Gradient | `x = swish_backward(grad_y, x, beta)` |",
        "| In place | torch.ops.my.swish_ writes y over x |",
        f"| ONNX | my::Swish, version {op_named('my::swish').onnx.version} |",
        "\ny = my.swish(x)\n",
        "\ny = Mul(x, s)\n",
    ):
        assert part in swish
    assert main(["ops", "--markdown"]) == 0
    assert "also custom_domain::CustomRelu" in capsys.readouterr().out
    assert main(["ops", "--module", "your"]) == 2
    assert "no op module 'your' is loaded" in capsys.readouterr().err


def test_bench_command(tmp_path):
    """The ops of the library are measured, and compared with their definitions and a copy."""
    path = tmp_path / "bench.jsonl"
    command = ["bench", "--library", str(LIBRARY), "--suite", "cpu-sizes", "--largest", "1024"]
    command += ["--seconds", "0.001", "--no-plots", "--out", str(path)]
    assert main([*command, "--without", "torch.compile"]) == 0
    records = [json.loads(line) for line in path.read_text().splitlines()]
    measured: dict[str, set[str]] = {}
    for each in records:
        if "contender" in each:
            assert "failed" not in each, each
            measured.setdefault(each["op"], set()).add(each["contender"])
    rivals = {"cudarelu", "torch", "copy"}
    assert measured == {
        **dict.fromkeys(("my::swish", "my::swish_backward", "my::shift", "my::negated_if"), rivals),
        "my::count_above": {"cudarelu", "copy"},  # no definition in torch's operators
        "my::doubled": {"cudarelu", "copy"},  # several outputs
    }


def test_a_file_that_is_no_library_of_ops(tmp_path, capsys):
    path = tmp_path / "libnone.so"
    path.write_text("nothing")
    with pytest.raises(ValueError, match=r"libnone\.so: not a shared library;"):
        cudarelu.load_library(path)
    assert main(["ops", "--library", str(path)]) == 2
    assert "libnone.so" in capsys.readouterr().err
