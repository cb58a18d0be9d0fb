"""The modules: they match torch's in arguments, results and training, and can replace them."""

import copy
import functools
import io
import pickle
import re

import numpy as np
import pytest
import torch
from torch import nn

import cudarelu
import cudarelu.nn
from cudarelu.testing.torch_calls import attributes_of, call_of, inputs_of
from support.torch_calls import Calls

PAIRS = [  # the class name, here and in torch.nn, and its arguments
    ("ReLU", (), {}),
    ("ReLU", (True,), {}),
    ("LeakyReLU", (), {}),
    ("LeakyReLU", (0.2, True), {}),
    ("LeakyReLU", (), {"negative_slope": 1}),
    ("Tanh", (), {}),
    ("GELU", (), {}),
    ("GELU", ("tanh",), {}),
    ("Softmax", (-1,), {}),
    ("Softmax", (), {"dim": 1}),
    ("Softmax", (0,), {}),
]
each_pair = pytest.mark.parametrize(("name", "arguments", "named"), PAIRS)
IN_PLACE = [functools.partial(getattr(cudarelu.nn, n), inplace=True) for n in ("ReLU", "LeakyReLU")]
BACKENDS = [None, "aot_eager", pytest.param("inductor", marks=pytest.mark.slow)]


def pair(name, arguments, named):
    return [getattr(source, name)(*arguments, **named) for source in (cudarelu.nn, nn)]


def losses(model, x, backend=None, steps=2):
    """The losses of some training steps, and the loss after them."""
    torch._dynamo.reset()
    run = torch.compile(model, backend=backend, fullgraph=True) if backend else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    result = []
    for _ in range(steps + 1):
        loss = run(x).square().mean()
        result.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return torch.tensor(result)


@each_pair
def test_results_and_gradients_are_those_of_torch(name, arguments, named):
    ours, theirs = pair(name, arguments, named)
    for shape in [(2, 3, 4, 5), (3, 4), (2, 0)]:
        x = torch.randn(shape, dtype=torch.float64)
        inputs = [x.clone().requires_grad_() for _ in range(2)]
        results = [m(input=i * 1) for m, i in zip((ours, theirs), inputs, strict=True)]
        if x.numel():  # the strides of an empty tensor have no meaning
            assert results[0].stride() == results[1].stride()
        torch.testing.assert_close(*results)
        for result in results:
            result.square().sum().backward()
        torch.testing.assert_close(inputs[0].grad, inputs[1].grad)


@each_pair
def test_modules_run_our_ops(name, arguments, named):
    module, _ = pair(name, arguments, named)
    with Calls() as calls:
        module(torch.randn(2, 3))
    op = {"ReLU": "relu", "LeakyReLU": "leaky_relu"}.get(name, name.lower())
    assert calls.names == [op + "_" * getattr(module, "inplace", False)]


@each_pair
def test_representation_copies_and_pickles(name, arguments, named):
    ours, theirs = pair(name, arguments, named)
    assert repr(ours) == repr(theirs)
    file = io.BytesIO()
    torch.save(ours, file)
    file.seek(0)
    for copied in (copy.deepcopy(ours), torch.load(file, weights_only=False)):
        assert type(copied) is type(ours)
        assert repr(copied) == repr(theirs)
        x = torch.randn(3, 4)
        torch.testing.assert_close(copied(x.clone()), theirs(x.clone()))


@pytest.mark.filterwarnings("ignore:.*torch.jit")
@pytest.mark.parametrize(
    ("name", "arguments", "named"),
    # Torch's LeakyReLU with an integer slope does not work either.
    [pair for pair in PAIRS if 1 not in pair[2].values() or pair[0] != "LeakyReLU"],
)
def test_torchscript(name, arguments, named, tmp_path):
    ours = getattr(cudarelu.nn, name)(*arguments, **named)
    torch.jit.script(ours).save(tmp_path / "scripted.pt")
    loaded = torch.jit.load(tmp_path / "scripted.pt")
    x = torch.randn(3, 4)
    torch.testing.assert_close(loaded(x.clone()), ours(x.clone()), rtol=0, atol=0)
    assert "ops.cudarelu" in loaded.code


def test_a_module_of_any_op():
    for op in cudarelu.ops():
        module = cudarelu.nn.Op(getattr(cudarelu, op.name), **attributes_of(op))
        inputs = inputs_of(op)
        expected = call_of(op)(*inputs)
        for each in (module, copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
            torch.testing.assert_close(each(*inputs), expected)
            assert not each.state_dict()
            assert each.function is module.function
    module = cudarelu.nn.Op(cudarelu.leaky_relu, negative_slope=0.5)
    assert repr(module) == "Op(cudarelu::leaky_relu, negative_slope=0.5)"
    x = torch.randn(3, 4)
    expected = cudarelu.leaky_relu(x, negative_slope=0.5)
    for each in (
        torch.compile(module, backend="eager", fullgraph=True),
        torch.jit.trace(module, x),
    ):
        torch.testing.assert_close(each(x), expected)


@pytest.mark.parametrize(
    ("name", "attributes"),
    [
        ("scale", {}),
        ("relu", {"slope": 1.0}),
        ("leaky_relu", {"negative_slope": "1"}),
        ("leaky_relu", {"negative_slope": True}),
        ("layer_norm", {"eps": -1.0}),
        ("layer_norm", {"eps": float("nan")}),
        ("gelu", {"approximate": "other"}),
        ("knn_query", {"nsample": 0}),
    ],
)
def test_a_module_of_an_op_checks_attributes_as_a_call_does(name, attributes):
    function = getattr(cudarelu, name)
    op = next(op for op in cudarelu.ops() if op.name == name)
    with pytest.raises((TypeError, ValueError, RuntimeError)) as expected:
        function(*(x.float() if x.is_floating_point() else x for x in inputs_of(op)), **attributes)
    with pytest.raises(expected.type, match=re.escape(str(expected.value))):
        cudarelu.nn.Op(function, **attributes)


def test_a_module_of_an_op_needs_a_function_of_an_op():
    with pytest.raises(TypeError, match="is not the function of an op"):
        cudarelu.nn.Op(torch.relu)
    with pytest.raises(TypeError, match="x is an input of the op, not an attribute"):
        cudarelu.nn.Op(cudarelu.relu, x=1.0)


def test_softmax_of_any_dimension():
    for shape in [(4,), (3, 4), (2, 3, 4), (2, 3, 4, 5)]:
        x = torch.randn(shape)
        for dim in range(-len(shape), len(shape)):
            torch.testing.assert_close(cudarelu.nn.Softmax(dim)(x), x.softmax(dim))
        with pytest.raises(IndexError, match="Dimension out of range"):
            cudarelu.nn.Softmax(len(shape))(x)
        with pytest.warns(UserWarning, match="Implicit dimension choice") as ours:
            actual = cudarelu.nn.Softmax(None)(x)
        with pytest.warns(UserWarning, match="Implicit dimension choice") as theirs:
            expected = nn.Softmax(None)(x)
        torch.testing.assert_close(actual, expected)
        assert str(ours[0].message) == str(theirs[0].message)
        assert ours[0].filename == __file__
    assert cudarelu.nn.Softmax().dim == -1


def test_bias_relu():
    module = cudarelu.nn.BiasReLU(4, 0.5, dtype=torch.float64)
    assert repr(module) == "BiasReLU(4, scale=0.5)"
    assert module.bias.tolist() == [0] * 4
    nn.init.normal_(module.bias)
    x = torch.randn(2, 3, 4, dtype=torch.float64, requires_grad=True)
    torch.testing.assert_close(module(x), torch.relu(x + module.bias) * 0.5)
    assert torch.autograd.gradcheck(lambda x, bias: module(x), (x, module.bias))

    other = cudarelu.nn.BiasReLU(4, 0.5, device="cpu", dtype=torch.float64)
    other.load_state_dict(module.state_dict())
    assert torch.equal(other(x), module(x))
    copied = copy.deepcopy(module)
    copied.reset_parameters()
    assert copied.bias.tolist() == [0] * 4
    assert torch.equal(other.bias, module.bias)
    assert cudarelu.nn.BiasReLU(4, device="meta").bias.device.type == "meta"


# In place


@pytest.mark.parametrize("make", IN_PLACE)
def test_in_place_returns_the_input_itself(make):
    x = torch.randn(3, 4)
    expected = make(inplace=False)(x)
    assert not torch.equal(x, expected)
    base = x.clone()
    for run in (make(), torch.compile(make(), backend="aot_eager", fullgraph=True)):
        x = base.clone()
        result = run(x)
        assert result is x
        assert torch.equal(x, expected)
    with pytest.raises(RuntimeError, match="a leaf Variable that requires grad"):
        make()(torch.zeros(3, requires_grad=True))


class Aliasing(nn.Module):
    """Uses its hidden tensor again after the activation has overwritten it."""

    def __init__(self, activation):
        super().__init__()
        self.linear, self.activation = nn.Linear(4, 4), activation

    def forward(self, x):
        hidden = self.linear(x)
        return self.activation(hidden) * 2 + hidden


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("make", IN_PLACE)
def test_export_has_the_functional_op_and_the_same_result(make, strict):
    model, x = Aliasing(make()), torch.randn(2, 4)
    program = torch.export.export(model, (x,), strict=strict)
    called = {str(node.target) for node in program.graph.nodes if "cudarelu" in str(node.target)}
    assert called in ({"cudarelu.relu.default"}, {"cudarelu.leaky_relu.default"})
    for exported in (program, program.run_decompositions()):
        assert torch.equal(exported.module()(x), model(x))


@pytest.mark.parametrize("make", IN_PLACE)
def test_in_place_under_torch_func(make):
    model, x = Aliasing(make()), torch.randn(3, 4)
    parameters = dict(model.named_parameters())

    def loss(parameters, row):
        return torch.func.functional_call(model, parameters, (row,)).square().sum()

    per_sample = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))
    actual = per_sample(parameters, x)
    for i, row in enumerate(x):
        model.zero_grad()
        model(row).square().sum().backward()
        for name, parameter in parameters.items():
            torch.testing.assert_close(actual[name][i], parameter.grad)
    torch._dynamo.reset()
    compiled = torch.compile(per_sample, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(parameters, x), actual)


@pytest.mark.parametrize("make", IN_PLACE)
def test_in_place_under_vmap_and_functionalize(make):
    base = torch.randn(3, 4)
    expected = make(inplace=False)(base)
    batched = torch.vmap(make())
    torch._dynamo.reset()
    compiled = torch.compile(batched, backend="aot_eager", fullgraph=True)
    for function in (batched, compiled, torch.func.functionalize(make())):
        x = base.clone()
        torch.testing.assert_close(function(x), expected)
        torch.testing.assert_close(x, expected)


# Training


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("inplace", [False, True])
def test_training_steps_are_those_of_torch(inplace, backend):
    def model(source):
        torch.manual_seed(0)
        return nn.Sequential(
            Aliasing(source.ReLU(inplace)),
            nn.Linear(4, 6),
            source.LeakyReLU(0.1, inplace),
            nn.Linear(6, 3),
            source.Tanh(),
            nn.Linear(3, 5),
            source.Softmax(dim=-1),
        )

    x = torch.randn(8, 4)
    actual = losses(model(cudarelu.nn), x, backend)
    torch.testing.assert_close(actual, losses(model(nn), x))
    assert actual.unique().numel() == 3  # each step changes the loss


@pytest.mark.parametrize("backend", [None, "aot_eager"])
def test_training_of_bias_relu(backend):
    torch.manual_seed(0)
    module, x = cudarelu.nn.BiasReLU(4), torch.randn(8, 4)
    bias = torch.zeros(4, requires_grad=True)
    expected = []
    for _ in range(3):
        loss = torch.relu(x + bias).square().mean()
        expected.append(loss.item())
        (gradient,) = torch.autograd.grad(loss, bias)
        bias = (bias - 0.5 * gradient).detach().requires_grad_()
    torch.testing.assert_close(losses(module, x, backend), torch.tensor(expected))


LINEAR = [
    ("Linear", nn.Identity, {}),
    ("LinearReLU", nn.ReLU, {}),
    *(("LinearGELU", nn.GELU, {"approximate": approximate}) for approximate in ("none", "tanh")),
]


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("name", "activation", "named"), LINEAR)
def test_linear_with_its_activation(name, activation, named, bias):
    torch.manual_seed(0)
    module = getattr(cudarelu.nn, name)(4, 3, bias, **named)
    theirs = nn.Sequential(nn.Linear(4, 3, bias), activation(**named))
    theirs[0].load_state_dict(module.state_dict())
    x = torch.randn(2, 8, 4)
    torch.testing.assert_close(losses(module, x, "aot_eager"), losses(theirs, x))
    assert repr(copy.deepcopy(module)).startswith(f"{name}(in_features=4, out_features=3")
    with torch.no_grad(), Calls() as calls:
        torch.testing.assert_close(module(x), theirs(x))
    op = {"Linear": "linear", "LinearReLU": "linear_relu", "LinearGELU": "linear_gelu"}[name]
    assert calls.names == [op]


@pytest.mark.parametrize("strict", [False, True])
def test_export_has_the_form_for_inference(strict):
    program = torch.export.export(cudarelu.nn.LinearGELU(4, 3), (torch.randn(2, 4),), strict=strict)
    program = program.run_decompositions({})
    assert "cudarelu.linear_gelu.default" in str(program.graph)


# replace


class OwnReLU(nn.ReLU):
    """A subclass, which may compute something else."""


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.relu = nn.ReLU(inplace=True)
        self.features = nn.Sequential(
            nn.Conv2d(3, 4, 3), self.relu, nn.Conv2d(4, 4, 3), self.relu, nn.LeakyReLU(0.3)
        )
        self.head = nn.ModuleDict({"tanh": nn.Tanh(), "own": OwnReLU(), "softmax": nn.Softmax(1)})
        self.elsewhere = [self.relu]  # a reference that is not a submodule

    def forward(self, x):
        x = self.features(x).flatten(2).mean(-1)
        return self.head["softmax"](self.head["own"](self.head["tanh"](self.elsewhere[0](x))))


def test_replace():
    torch.manual_seed(0)
    theirs, x = Net().eval(), torch.randn(2, 3, 8, 8)
    theirs.features[4].train()
    ours = copy.deepcopy(theirs)
    report = cudarelu.nn.replace(ours)
    assert report.swapped == {
        "relu": "ReLU",
        "features.1": "ReLU",
        "features.3": "ReLU",
        "features.4": "LeakyReLU",
        "head.tanh": "Tanh",
        "head.softmax": "Softmax",
    }
    assert report.left == {"head.own": "OwnReLU, a subclass"}
    assert "features.4: LeakyReLU" in str(report)
    assert repr(ours) == repr(theirs)
    assert type(ours.relu) is cudarelu.nn.ReLU
    assert ours.relu is ours.features[1] is ours.features[3] is ours.elsewhere[0]
    assert [m.training for m in ours.modules()] == [m.training for m in theirs.modules()]
    assert list(ours.state_dict()) == list(theirs.state_dict())
    with Calls() as calls:
        actual = ours(x)
    assert calls.names == ["relu_", "relu_", "leaky_relu", "relu_", "tanh", "softmax"]
    torch.testing.assert_close(actual, theirs(x))
    torch.testing.assert_close(losses(ours, x), losses(theirs, x))
    assert cudarelu.nn.replace(ours).swapped == {}


def test_replace_keeps_hooks():
    model, seen = nn.Sequential(nn.ReLU(), nn.Tanh()), []
    model[0].register_forward_pre_hook(lambda *_: seen.append("before"))
    handle = model[0].register_forward_hook(lambda module, *_: seen.append(type(module)))
    model[1].register_full_backward_hook(lambda *_: seen.append("backward"))
    cudarelu.nn.replace(model)
    model(torch.randn(3, requires_grad=True)).sum().backward()
    assert seen == ["before", cudarelu.nn.ReLU, "backward"]
    handle.remove()
    model(torch.zeros(3))
    assert seen[3:] == ["before"]


def test_replace_the_model_itself():
    model = nn.Softmax(dim=0)
    report = cudarelu.nn.replace(model)
    assert type(model) is cudarelu.nn.Softmax
    assert report.swapped == {"": "Softmax"}
    assert str(report) == "swapped: 1\n  (the model): Softmax\nleft: 0"


def test_replace_in_a_compiled_model():
    model, x = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.ReLU()), torch.randn(2, 4)
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="eager")
    expected = compiled(x)
    swapped = {"_orig_mod.0": "Linear", "_orig_mod.1": "Tanh", "_orig_mod.2": "ReLU"}
    assert cudarelu.nn.replace(compiled).swapped == swapped
    with Calls() as calls:
        torch.testing.assert_close(compiled(x), expected)
    assert calls.names == ["linear", "tanh", "relu"]


def test_replace_leaves_what_it_cannot_swap():
    class Half(nn.Module):
        def forward(self, x):
            return x / 2

    model = nn.Sequential(nn.ReLU(), nn.ReLU())
    model[0].forward = lambda x: x + 1
    model[1].slope = nn.Parameter(torch.ones(1))
    nn.utils.parametrize.register_parametrization(model[1], "slope", Half())
    report = cudarelu.nn.replace(model)
    assert report.swapped == {}
    assert report.left == {
        "0": "ReLU with a forward of its own",
        "1": "ParametrizedReLU, a subclass",
    }
    assert model(torch.tensor(-0.5)) == 0.5
    assert model[1].slope == 0.5


class Doubled(torch.Tensor):
    """A weight that defines its own product, as quantised weights do."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        result = super().__torch_function__(func, types, args, kwargs)
        return result.as_subclass(torch.Tensor) * 2 if func is nn.functional.linear else result


def test_replace_leaves_linear_with_other_weights():
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2, dtype=torch.complex64))
    model[0].weight = nn.Parameter(model[0].weight.data.as_subclass(Doubled))
    x = torch.randn(2, 4)
    expected = model[:2](x)
    report = cudarelu.nn.replace(model)
    assert report.swapped == {"1": "ReLU"}
    assert report.left == {
        "0": "Linear with a weight of class Doubled",
        "2": "Linear of torch.complex64",
    }
    assert torch.equal(model[:2](x), expected)


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        (nn.LeakyReLU(True), "LeakyReLU with negative_slope of class bool"),
        (nn.LeakyReLU(torch.tensor(0.1)), "LeakyReLU with negative_slope of class Tensor"),
        (nn.LayerNorm(4, eps=True), "LayerNorm with eps of class bool"),
        (nn.LayerNorm(4, eps=-1e-9), "LayerNorm with eps -1e-09, not in [0, inf]"),
        (nn.LayerNorm(4, eps=float("nan")), "LayerNorm with eps nan, not in [0, inf]"),
    ],
)
def test_replace_leaves_attributes_that_our_ops_do_not_take(module, reason):
    x = torch.randn(3, 4)
    expected = module(x)
    model = nn.Sequential(module)
    report = cudarelu.nn.replace(model)
    assert report.swapped == {}
    assert report.left == {"0": reason}
    torch.testing.assert_close(model(x), expected, equal_nan=True)
    if isinstance(module, nn.LayerNorm):
        with pytest.raises(ValueError, match=re.escape(reason)):
            cudarelu.nn.LayerNorm(4, eps=module.eps)


@pytest.mark.parametrize("slope", [1, np.float32(0.5)], ids=type)
def test_replace_takes_every_number(slope):
    ours, theirs, x = nn.LeakyReLU(slope), nn.LeakyReLU(slope), torch.randn(3, 4)
    assert cudarelu.nn.replace(ours).swapped == {"": "LeakyReLU"}
    with Calls() as calls:
        torch.testing.assert_close(ours(x), theirs(x))
    assert calls.names == ["leaky_relu"]


OTHER_TENSORS = {
    "quantised": lambda x: torch.quantize_per_tensor(x, 0.1, 10, torch.quint8),
    "sparse": torch.Tensor.to_sparse,
    "nested": lambda x: torch.nested.nested_tensor([x, x[:2]]),
    "jagged": lambda x: torch.nested.nested_tensor([x, x[:2]], layout=torch.jagged),
    "complex": lambda x: x.to(torch.complex64),
    "int32": lambda x: x.to(torch.int32),
    "bfloat16": lambda x: x.to(torch.bfloat16),  # another dtype than the parameters
    "float16": lambda x: x.to(torch.float16),
}


def parts(x: torch.Tensor) -> list[torch.Tensor]:
    """A tensor of any kind as a list of dense floating-point tensors."""
    if x.is_nested:
        return list(x.unbind())
    return [x.dequantize() if x.is_quantized else x.to_dense()]


@pytest.mark.filterwarnings("ignore:.*nested tensors")
@pytest.mark.parametrize("kind", OTHER_TENSORS)
@pytest.mark.parametrize(
    "make",
    [
        nn.ReLU,
        functools.partial(nn.ReLU, inplace=True),
        nn.LeakyReLU,
        functools.partial(nn.LeakyReLU, inplace=True),
        nn.Tanh,
        nn.GELU,
        functools.partial(nn.Softmax, dim=-1),
        lambda: nn.Linear(4, 4),
        lambda: nn.LayerNorm(4),
        lambda: nn.Sequential(nn.Linear(4, 4), nn.ReLU()),
    ],
    ids=lambda make: str(make()).split("\n")[0],
)
def test_a_replaced_module_takes_what_torchs_takes(make, kind):
    """A replaced module accepts tensors that our op has no kernel for."""
    theirs = make()
    ours, x = copy.deepcopy(theirs), OTHER_TENSORS[kind](torch.randn(3, 4))
    assert cudarelu.nn.replace(ours).swapped
    try:
        expected = theirs(x.clone())
    except (NotImplementedError, RuntimeError) as error:
        with pytest.raises(type(error)):
            ours(x.clone())
        return
    actual = ours(x.clone())
    assert (actual.dtype, actual.layout) == (expected.dtype, expected.layout)
    torch.testing.assert_close(parts(actual), parts(expected))


@pytest.mark.parametrize("backend", [None, "aot_eager"])
def test_layer_norm_of_float32_and_a_lower_dtype(backend):
    """Some models keep their LayerNorms in float32."""
    torch.manual_seed(0)
    theirs = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.LayerNorm(8)).to(torch.bfloat16)
    theirs[2].float()
    ours, x = copy.deepcopy(theirs), torch.randn(3, 4, dtype=torch.bfloat16)
    cudarelu.nn.replace(ours)
    torch._dynamo.reset()
    run = torch.compile(ours, backend=backend) if backend else ours
    for model in (run, theirs):
        model(x).square().sum().backward()
    torch.testing.assert_close(run(x), theirs(x))
    for mine, wanted in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, wanted.grad)
    with torch.autocast("cpu"), Calls() as calls:
        torch.testing.assert_close(ours(x).bfloat16(), theirs(x))
    assert "layer_norm" in calls.names


def test_replace_reads_no_weight_of_what_it_leaves():
    packed = nn.Linear(3, 4)
    weight = packed.weight.detach().clone()
    del packed.weight
    packed.forward = lambda x: x @ weight.T
    model = nn.Sequential(packed, nn.utils.parametrizations.spectral_norm(nn.Linear(4, 3)))
    before = copy.deepcopy(model.state_dict())
    report = cudarelu.nn.replace(model)
    assert report.swapped == {}
    assert report.left == {
        "0": "Linear with a forward of its own",
        "1": "ParametrizedLinear, a subclass",
    }
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)


def test_a_module_that_is_compiled_apart_runs_apart():
    model, seen = nn.Sequential(nn.Linear(4, 4), nn.ReLU()), []
    cudarelu.nn.replace(model)
    torch._dynamo.reset()
    model[0].compile(backend=lambda graph, _: seen.append(graph) or graph)
    model(torch.randn(2, 4))
    assert len(seen) == 1


def test_replace_in_resnet18():
    models = pytest.importorskip("torchvision.models", reason="torchvision is not installed")
    torch.manual_seed(0)
    theirs, x = models.resnet18(weights=None), torch.randn(2, 3, 64, 64)
    ours = copy.deepcopy(theirs)
    report = cudarelu.nn.replace(ours)
    assert len(report.swapped) == 10
    torch.testing.assert_close(copy.deepcopy(ours).eval()(x), copy.deepcopy(theirs).eval()(x))
    torch.testing.assert_close(losses(ours, x, steps=1), losses(theirs, x, steps=1))


def test_replace_fuses_linear_and_activation():
    torch.manual_seed(0)
    shared = nn.Linear(4, 4)
    theirs = nn.Sequential(
        nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Linear(4, 4), nn.GELU("tanh")),
        nn.Sequential(shared, nn.ReLU(), shared, nn.GELU()),
        nn.Sequential(nn.Linear(4, 4), nn.ReLU()),
    )
    theirs[2][0].register_forward_hook(lambda module, inputs, output: output + 1)
    ours, x = copy.deepcopy(theirs), torch.randn(3, 4)
    report = cudarelu.nn.replace(ours)
    assert report.swapped == {
        "0": "Sequential, with 0 + 1, 2 + 3 fused",
        "0.0": "Linear",
        "0.1": "ReLU",
        "0.2": "Linear",
        "0.3": "GELU",
        "1": "Sequential, with 0 + 1, 2 + 3 fused",
        "1.0": "Linear",
        "1.1": "ReLU",
        "1.2": "Linear",
        "1.3": "GELU",
        "2.0": "Linear",
        "2.1": "ReLU",
    }
    assert repr(ours) == repr(theirs)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    with torch.no_grad(), Calls() as calls:
        torch.testing.assert_close(ours(x), theirs(x))
    fused = ["linear_relu", "linear_gelu"]
    assert calls.names == [*fused, *fused, "linear", "relu"]
    torch.testing.assert_close(losses(ours, x), losses(theirs, x))
    assert cudarelu.nn.replace(ours).swapped == {}


class Apart(nn.Module):
    """Calls the modules of a Sequential one by one."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4), nn.GELU())

    def forward(self, x):
        seen = [x]
        for layer in self.layers:
            seen.append(layer(seen[-1]))
        return torch.stack([*seen, self.layers[1](x), self.layers[:3](x), self.layers(x)])


def test_fused_modules_alone_do_their_own_part():
    torch.manual_seed(0)
    theirs, x = Apart(), torch.randn(3, 4)
    ours = copy.deepcopy(theirs)
    cudarelu.nn.replace(ours)
    with torch.no_grad(), Calls() as calls:
        torch.testing.assert_close(ours(x), theirs(x))
    alone = ["linear", "relu", "linear", "gelu", "relu"]
    assert calls.names == [*alone, "linear_relu", "linear", "linear_relu", "linear_gelu"]


@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize(
    "register",
    [
        lambda module: module.register_forward_hook(lambda module, inputs, output: 2 * output),
        lambda module: module.register_forward_pre_hook(lambda module, inputs: (2 * inputs[0],)),
        lambda module: module.register_full_backward_hook(lambda module, ours, _: (2 * ours[0],)),
        lambda module: setattr(module, "forward", lambda x: 2 * x),
        lambda _: nn.modules.module.register_module_forward_hook(
            lambda module, inputs, output: 2 * output if isinstance(module, nn.Linear) else output
        ),
    ],
    ids=["forward", "before", "backward", "own-forward", "global"],
)
def test_hooks_after_a_replacement(register, place):
    torch.manual_seed(0)
    ours = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    theirs, x = copy.deepcopy(ours), torch.randn(3, 4)
    cudarelu.nn.replace(ours)
    results = []
    for model in (ours, theirs):
        handle = register(model[place])
        leaf = x.clone().requires_grad_()
        y = model(leaf)
        y.square().sum().backward()
        results.append((y, leaf.grad))
        if handle:
            handle.remove()
    torch.testing.assert_close(*results)


@pytest.mark.filterwarnings("ignore:.*torch.jit")
def test_fused_modules_in_graphs():
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(4, 4), nn.ReLU()), torch.randn(3, 4)
    cudarelu.nn.replace(model)
    expected = model(x)
    for strict in (False, True):
        program = torch.export.export(model, (x,), strict=strict).run_decompositions({})
        assert "cudarelu.linear_relu.default" in str(program.graph)
    torch.testing.assert_close(torch.jit.script(model)(x), expected)
    model[0].register_forward_hook(lambda module, inputs, output: -output)
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), model(x))


def test_a_sequential_with_a_forward_of_its_own_is_left():
    model, x = nn.Sequential(nn.Linear(4, 4), nn.ReLU()), torch.randn(3, 4)
    model.forward = lambda x: x + 1
    assert cudarelu.nn.replace(model).swapped == {"0": "Linear", "1": "ReLU"}
    torch.testing.assert_close(model(x), x + 1)
