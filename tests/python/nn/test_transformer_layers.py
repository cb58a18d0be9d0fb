"""MultiheadAttention and TransformerEncoderLayer beside torch's."""

from __future__ import annotations

import copy
import itertools
import pickle
import re

import onnx
import pytest
import torch
from torch import nn

import cudarelu.nn
import cudarelu.onnx
import cudarelu.ort
from support.torch_calls import Calls

N, S, T, E, HEADS = 3, 5, 7, 16, 4
LAYER = ["linear", "attention", "linear", "layer_norm", "linear_relu", "linear", "layer_norm"]
CAUSAL = torch.ones(S, S, dtype=torch.bool).triu(1)
PADDING = torch.zeros(N, S, dtype=torch.bool)
PADDING[0, 3:] = True


def pair(theirs):
    """A copy that `replace` has converted, and the module itself."""
    ours = copy.deepcopy(theirs)
    assert "" in cudarelu.nn.replace(ours).swapped
    return ours, theirs


def attention_pair(seed=0, **options):
    torch.manual_seed(seed)
    return pair(nn.MultiheadAttention(E, HEADS, **options))


def layer_pair(**options):
    torch.manual_seed(0)
    options = {"dim_feedforward": 24, "dropout": 0.0, "batch_first": True} | options
    return pair(nn.TransformerEncoderLayer(E, HEADS, **options))


def names(function):
    with torch.no_grad(), Calls() as calls:
        function()
    return calls.names


def check(ours, theirs, inputs, rtol=None, atol=None, **options):
    """Outputs and gradients agree."""
    found = []
    for module in (ours, theirs):
        module.zero_grad()
        # One leaf for each tensor: inputs may be the same one.
        leaves = {id(x): x.detach().clone().requires_grad_() for x in inputs}
        y = module(*(leaves[id(x)] for x in inputs), **options)
        y = y[0] if isinstance(y, tuple) else y
        y.square().sum().backward()
        gradients = [each.grad for each in (*leaves.values(), *module.parameters())]
        found.append((y, [g for g in gradients if g is not None]))
    assert len(found[0][1]) == len(found[1][1]) > len(leaves)
    torch.testing.assert_close(*found, rtol=rtol, atol=atol)


def masks(kind, batch):
    """Masks of a call: bool, where true hides a key, or numbers."""
    if kind == "none":
        return {}
    if kind == "causal":  # torch does not read the mask then
        return {"attn_mask": torch.ones(S, T, dtype=torch.bool), "is_causal": True}
    rows = (*batch, HEADS) if batch else (HEADS,)
    hides = {
        "keys": {"key_padding_mask": torch.rand(*batch, T) > 0.6},
        "pairs": {"attn_mask": torch.rand(S, T) > 0.6},
        "heads": {"attn_mask": (torch.rand(*rows, S, T) > 0.6).flatten(0, len(rows) - 1)},
    }
    chosen = hides["heads"] | hides["keys"] if "both" in kind else hides[kind.split()[0]]
    if "numbers" in kind:
        return {name: torch.randn(mask.shape, dtype=torch.float64) for name, mask in chosen.items()}
    return chosen


MASKS = ["none", "causal", "keys", "pairs", "heads", "both", "both numbers", "pairs numbers"]


@pytest.mark.parametrize("kind", MASKS)
@pytest.mark.parametrize("batched", [True, False], ids=["batched", "unbatched"])
@pytest.mark.parametrize(
    "options",
    [{"batch_first": True}, {"bias": False}, {"kdim": 12, "vdim": 20}],
    ids=["batch-first", "no-bias", "kdim"],
)
def test_attention_is_that_of_torch(options, batched, kind):
    ours, theirs = attention_pair(dtype=torch.float64, **options)
    batch = (N,) if batched else ()
    features = (E, theirs.kdim, theirs.vdim)
    inputs = [
        torch.randn(*batch, size, n, dtype=torch.float64)
        for size, n in zip((S, T, T), features, strict=True)
    ]
    if batched and not theirs.batch_first:
        inputs = [x.transpose(0, 1) for x in inputs]
    given = masks(kind, batch)
    # The gradients of float64 are computed from sums in float32.
    check(ours, theirs, inputs, rtol=1e-6, atol=1e-6, need_weights=False, **given)
    assert names(lambda: ours(*inputs, need_weights=False, **given))[-2:] == ["attention", "linear"]


def test_self_attention_has_one_product():
    ours, theirs = attention_pair()
    x = torch.randn(S, N, E)
    check(ours, theirs, [x, x, x], need_weights=False)
    assert names(lambda: ours(x, x, x, need_weights=False)) == ["linear", "attention", "linear"]


def test_a_query_without_keys_attends_to_zeros():
    ours, theirs = attention_pair(batch_first=True)
    nn.init.normal_(theirs.out_proj.bias)
    ours.load_state_dict(theirs.state_dict())
    x, hidden = torch.randn(N, S, E), torch.zeros(N, S, dtype=torch.bool)
    hidden[1] = True
    check(ours, theirs, [x, x, x], key_padding_mask=hidden, need_weights=False)
    y, _ = ours.eval()(x, x, x, key_padding_mask=hidden, need_weights=False)
    torch.testing.assert_close(y[1], theirs.out_proj.bias.expand(S, E))


FALL_BACKS = {
    "weights": ({}, {}),
    "weights-of-heads": ({}, {"average_attn_weights": False}),
    "dropout": ({"dropout": 0.5}, {"need_weights": False}),
    "masks-of-two-dtypes": (
        {},
        {"need_weights": False, "attn_mask": CAUSAL.float(), "key_padding_mask": PADDING},
    ),
}


@pytest.mark.filterwarnings("ignore:Support for mismatched")
@pytest.mark.parametrize(("options", "call"), FALL_BACKS.values(), ids=FALL_BACKS)
def test_other_calls_run_torchs_forward(options, call):
    ours, theirs = attention_pair(batch_first=True, **options)
    x, found, called = torch.randn(N, S, E), [], []
    for module in (ours, theirs):
        torch.manual_seed(1)
        called += names(lambda module=module: found.append(module(x, x, x, **call)))
    torch.testing.assert_close(*found, rtol=0, atol=0)
    assert "linear" not in called


def test_a_mask_of_another_dtype():
    ours, theirs = attention_pair(batch_first=True, dtype=torch.bfloat16)
    x, mask = torch.randn(N, S, E, dtype=torch.bfloat16), torch.randn(S, S)
    found = [module(x, x, x, attn_mask=mask, need_weights=False) for module in (ours, theirs)]
    torch.testing.assert_close(*found, rtol=0, atol=0)


@pytest.mark.parametrize(
    "call",
    [
        {"attn_mask": torch.zeros(1, S)},
        {"attn_mask": torch.zeros(N, S, S)},
        {"attn_mask": torch.zeros(S, S, dtype=torch.int32)},
        {"key_padding_mask": torch.zeros(1, S)},
        {"is_causal": True},
    ],
    ids=str,
)
def test_errors_are_those_of_torch(call):
    ours, theirs = attention_pair(batch_first=True)
    x = torch.randn(N, S, E)
    with pytest.raises((RuntimeError, AssertionError)) as expected:
        theirs(x, x, x, need_weights=False, **call)
    with pytest.raises(expected.type, match=re.escape(str(expected.value))):
        ours(x, x, x, need_weights=False, **call)


@pytest.mark.parametrize("argument", ["add_bias_kv", "add_zero_attn"])
def test_keys_that_a_module_adds(argument):
    torch.manual_seed(0)
    options = {argument: True, "batch_first": True}
    ours = cudarelu.nn.MultiheadAttention(E, HEADS, **options)
    theirs = nn.MultiheadAttention(E, HEADS, **options)
    theirs.load_state_dict(ours.state_dict())
    x = torch.randn(N, S, E)
    check(ours, theirs, [x, x, x], need_weights=False)
    assert "attention" not in names(lambda: ours(x, x, x, need_weights=False))
    report = cudarelu.nn.replace(theirs)
    assert report.swapped == {}
    assert report.left == {"": f"MultiheadAttention with {argument}"}


def test_modules_are_made_as_torchs_are():
    for name, arguments in (
        ("MultiheadAttention", (E, HEADS)),
        ("TransformerEncoderLayer", (E, HEADS, 24)),
    ):
        made = []
        for source in (cudarelu.nn, nn):
            torch.manual_seed(0)
            made.append(getattr(source, name)(*arguments, batch_first=True))
        ours, theirs = made
        assert repr(ours) == repr(theirs)
        torch.testing.assert_close(ours.state_dict(), theirs.state_dict(), rtol=0, atol=0)
        for each in (copy.deepcopy(ours), pickle.loads(pickle.dumps(ours))):
            assert type(each) is type(ours)
            theirs.load_state_dict(each.state_dict())
        ours.load_state_dict(theirs.state_dict())
        assert cudarelu.nn.replace(ours).swapped == {}
        assert cudarelu.nn.replace(ours).left == {}


# The layer


LAYERS = {
    "relu": ({}, LAYER),
    "sequence-first": ({"batch_first": False}, LAYER),
    "norm-first": (
        {"norm_first": True, "activation": "gelu"},
        ["layer_norm", "linear", "attention", "linear", "layer_norm", "linear_gelu", "linear"],
    ),
    "tanh-no-bias": (
        {"activation": nn.GELU("tanh"), "bias": False},
        [name.replace("relu", "gelu") for name in LAYER],
    ),
    "module": (
        {"activation": nn.LeakyReLU(0.2)},
        [*LAYER[:4], "linear", "leaky_relu", *LAYER[5:]],
    ),
    "function": ({"activation": nn.functional.silu}, [*LAYER[:4], "linear", *LAYER[5:]]),
}


@pytest.mark.parametrize(("options", "expected"), LAYERS.values(), ids=LAYERS)
def test_layers_are_those_of_torch(options, expected):
    ours, theirs = layer_pair(**options)
    x = torch.randn(N, S, E) if theirs.self_attn.batch_first else torch.randn(S, N, E)
    for training in (True, False):
        for given in ({}, {"src_mask": CAUSAL, "src_key_padding_mask": PADDING}):
            check(ours.train(training), theirs.train(training), [x], **given)
            assert names(lambda given=given: ours(x, **given)) == expected
    check(ours, theirs, [x[:, 0] if options.get("batch_first") is False else x[0]])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_dtypes_of_layers(dtype):
    ours, theirs = layer_pair(dtype=dtype)
    tolerance = {torch.bfloat16: (0.05, 0.25), torch.float64: (1e-6, 1e-6)}.get(dtype, (None, None))
    check(ours, theirs, [torch.randn(N, S, E, dtype=dtype)], *tolerance, src_mask=CAUSAL)
    assert names(lambda: ours(torch.randn(N, S, E, dtype=dtype))) == LAYER


def test_training_of_layers_with_dropout():
    ours, theirs = layer_pair(dropout=0.3)
    x, found = torch.randn(N, S, E), []
    for module in (ours, theirs):
        torch.manual_seed(1)
        found.append(module(x))
    torch.testing.assert_close(*found)
    assert "attention" not in names(lambda: ours(x))  # which has no dropout
    torch.testing.assert_close(ours.eval()(x), theirs.eval()(x))
    assert names(lambda: ours(x)) == LAYER


def test_a_hook_separates_the_activation():
    ours, theirs = layer_pair()
    for module in (ours, theirs):
        module.linear1.register_forward_hook(lambda module, inputs, output: -output)
    x = torch.randn(N, S, E)
    check(ours, theirs, [x])
    assert names(lambda: ours(x))[4:6] == ["linear", "relu"]


# replace


def test_replace_in_an_encoder():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(E, HEADS, 24, 0.0, batch_first=True)
    theirs = nn.TransformerEncoder(layer, 2)
    ours = copy.deepcopy(theirs)
    report = cudarelu.nn.replace(ours)
    assert report.swapped == {
        f"layers.{i}{part}": name
        for i in range(2)
        for part, name in {
            "": "TransformerEncoderLayer",
            ".self_attn": "MultiheadAttention",
            ".linear1": "Linear",
            ".linear2": "Linear",
            ".norm1": "LayerNorm",
            ".norm2": "LayerNorm",
        }.items()
    }
    assert report.left == {
        "": "TransformerEncoder with enable_nested_tensor, for padded batches in eval mode"
    }
    assert cudarelu.nn.replace(ours).swapped == {}
    assert repr(ours) == repr(theirs)
    x = torch.randn(N, S, E)
    for training, given in itertools.product(
        (True, False), ({}, {"mask": CAUSAL}, {"src_key_padding_mask": PADDING})
    ):
        check(ours.train(training), theirs.train(training), [x], **given)
    assert names(lambda: ours(x)) == 2 * LAYER
    with torch.no_grad():  # the encoder makes a nested tensor
        padded = {"src_key_padding_mask": PADDING}
        torch.testing.assert_close(ours(x, **padded), theirs(x, **padded))
    assert names(lambda: ours(x, **padded)) == []
    ours.use_nested_tensor = False
    assert names(lambda: ours(x, **padded)) == 2 * LAYER


def test_replace_in_a_whole_transformer():
    """The layers of the decoder are torch's, and call our modules."""
    torch.manual_seed(0)
    theirs = nn.Transformer(E, HEADS, 1, 1, 24, 0.0)
    ours = copy.deepcopy(theirs)
    report = cudarelu.nn.replace(ours)
    assert {k: v for k, v in report.swapped.items() if v == "MultiheadAttention"}.keys() == {
        "encoder.layers.0.self_attn",
        "decoder.layers.0.self_attn",
        "decoder.layers.0.multihead_attn",
    }
    assert report.left == {}
    source, target = torch.randn(T, N, E), torch.randn(S, N, E)
    given = {"tgt_mask": CAUSAL, "tgt_is_causal": True}
    check(ours, theirs, [source, target], **given)
    assert names(lambda: ours(source, target, **given)).count("attention") == 3


class Doubled(torch.Tensor):
    """A weight of a class that defines its own product."""


def test_replace_leaves_other_weights():
    model = nn.ModuleList(
        [nn.MultiheadAttention(E, HEADS), nn.MultiheadAttention(E, HEADS, dtype=torch.complex64)]
    )
    weight = model[0].out_proj.weight
    model[0].out_proj.weight = nn.Parameter(weight.data.as_subclass(Doubled))
    report = cudarelu.nn.replace(model)
    assert report.swapped == {}
    assert report.left == {
        "0": "MultiheadAttention with a weight of class Doubled",
        "1": "MultiheadAttention of torch.complex64",
    }


# Compilers, exporters and transforms


def test_torch_compile():
    ours, theirs = layer_pair()
    x = torch.randn(N, S, E)
    torch._dynamo.reset()
    compiled = torch.compile(ours, backend="aot_eager", fullgraph=True)
    check(compiled, theirs, [x], src_key_padding_mask=PADDING)


@pytest.mark.parametrize("strict", [False, True])
def test_torch_export(strict):
    ours, _ = layer_pair()
    x = torch.randn(N, S, E)
    sizes = {0: torch.export.Dim("n", min=2), 1: torch.export.Dim("s", min=2)}
    program = torch.export.export(ours.eval(), (x,), dynamic_shapes=(sizes,), strict=strict)
    called = [str(node.target) for node in program.run_decompositions({}).graph.nodes]
    expected = [f"cudarelu.{name}.default" for name in LAYER]
    assert [name for name in called if "cudarelu" in name] == expected
    longer = torch.randn(N + 1, S + 2, E)
    torch.testing.assert_close(program.module()(longer), ours(longer))


def test_an_exported_layer_in_onnx_runtime(tmp_path):
    ours, theirs = layer_pair(activation="gelu")
    x, sizes = torch.randn(N, S, E), {0: "n", 1: "s"}
    model = cudarelu.onnx.export(
        ours.eval(),
        (x,),
        tmp_path / "layer.onnx",
        kwargs={"src_key_padding_mask": PADDING},
        dynamic_shapes={"src": sizes, "src_key_padding_mask": sizes},
        verbose=False,
    )
    assert "Attention" in [node.op_type for node in model.graph.node if node.domain == "cudarelu"]
    onnx.checker.check_model(model)
    x, hidden = torch.randn(N + 1, S + 2, E), torch.rand(N + 1, S + 2) > 0.7
    run = cudarelu.ort.Session(tmp_path / "layer.onnx", provider="cpu")
    y = torch.as_tensor(run(x.numpy(), hidden.numpy()))
    with torch.no_grad():
        expected = theirs.train()(x, src_key_padding_mask=hidden)
    torch.testing.assert_close(y, expected, rtol=1e-4, atol=1e-5)


def test_autocast():
    ours, theirs = layer_pair()
    x = torch.randn(N, S, E)
    for given in ({}, {"src_mask": CAUSAL}, {"src_mask": torch.randn(S, S)}):
        with torch.autocast("cpu", torch.bfloat16):
            y, expected = ours(x, **given), theirs(x, **given)
            assert y.dtype == expected.dtype
            torch.testing.assert_close(y, expected, rtol=0.05, atol=0.05)
            assert names(lambda given=given: ours(x, **given)) == LAYER


def test_vmap():
    ours, theirs = layer_pair()
    samples = torch.randn(2, N, S, E)
    padding = torch.stack([PADDING, ~PADDING.flip(1)])
    expected = [theirs(x, CAUSAL, hidden) for x, hidden in zip(samples, padding, strict=True)]
    run = torch.vmap(ours, in_dims=(0, None, 0))
    torch.testing.assert_close(run(samples, CAUSAL, padding), torch.stack(expected))
    rows = torch.vmap(ours)(samples[0])  # of unbatched inputs
    torch.testing.assert_close(rows, theirs(samples[0]))


@pytest.mark.filterwarnings("ignore:.*nested tensors")
def test_nested_tensors():
    nested = torch.nested.nested_tensor([torch.randn(n, E) for n in (3, 5)])
    for modules, inputs in (
        (layer_pair(), [nested]),
        (attention_pair(batch_first=True), [nested, nested, nested]),
    ):
        call = {"need_weights": False} if len(inputs) == 3 else {}
        with torch.no_grad():
            y, expected = (module.eval()(*inputs, **call) for module in modules)
        y, expected = (x[0] if isinstance(x, tuple) else x for x in (y, expected))
        torch.testing.assert_close(y.unbind(), expected.unbind())
