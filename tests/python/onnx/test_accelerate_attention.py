"""cudarelu.onnx.accelerate finds attention in the forms in which exporters write it."""

from __future__ import annotations

import io

import numpy as np
import onnx
import onnx.parser
import onnxruntime as ort
import pytest
import torch
from onnx import numpy_helper

import cudarelu.onnx
import cudarelu.ort
from support.cases import slow_after

B, H, S, T, D, E = 2, 4, 6, 5, 8, 3
sdpa = torch.nn.functional.scaled_dot_product_attention


def arrays(seed: int = 0, g: int = H, t: int = T) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(seed)
    shapes = {"q": (B, H, S, D), "k": (B, g, t, D), "v": (B, g, t, E), "mask": (B, 1, S, t)}
    return {name: generator.normal(size=s).astype(np.float32) for name, s in shapes.items()}


def visible(mask: np.ndarray) -> np.ndarray:
    """A mask of bool that hides no row as a whole: models differ from PyTorch there."""
    result = mask > 0
    result[..., 0] = True
    return result


def run(model: onnx.ModelProto, feeds: dict[str, np.ndarray], library: bool) -> list[np.ndarray]:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    if library:
        cudarelu.ort.register(options)
    running = ort.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])
    return running.run(None, feeds)


def accelerated(
    model: onnx.ModelProto, feeds: dict[str, np.ndarray]
) -> tuple[onnx.ModelProto, cudarelu.onnx.Report]:
    """The accelerated model, which is checked and gives the same results."""
    result, report = cudarelu.onnx.accelerate(model)
    onnx.checker.check_model(result, full_check=True)
    for ours, theirs in zip(run(result, feeds, True), run(model, feeds, False), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
    return result, report


def ours(model: onnx.ModelProto) -> onnx.NodeProto:
    (node,) = (node for node in model.graph.node if node.domain == "cudarelu")
    assert node.op_type == "Attention"
    return node


def attributes_of(node: onnx.NodeProto) -> dict[str, object]:
    return {each.name: onnx.helper.get_attribute_value(each) for each in node.attribute}


def types(model: onnx.ModelProto) -> list[str]:
    """The operators, but for those of the number that stands for an absent mask."""
    return [x.op_type for x in model.graph.node if x.op_type not in ("Constant", "CastLike")]


class Fused(torch.nn.Module):
    def __init__(self, **arguments):
        super().__init__()
        self.arguments = arguments
        self.is_causal = arguments.get("is_causal", False)

    def forward(self, q, k, v, mask=None):
        return sdpa(q, k, v, mask, **self.arguments)


class Eager(torch.nn.Module):
    """As models write it out."""

    def __init__(self, scale: str):
        super().__init__()
        self.scale = scale

    def forward(self, q, k, v, mask=None):
        if self.scale == "of q":
            q = q / 3
        scores = q @ k.transpose(-1, -2)
        if self.scale == "after":
            scores = scores * 0.25
        elif self.scale == "divisor":
            scores = scores / 8
        if mask is not None:
            scores = mask + scores
        return torch.softmax(scores, -1) @ v


EXPORTERS = {"18": (True, 18), "23": (True, 23), "TorchScript": (False, 18)}


def export(module, inputs, exporter: str, **arguments) -> onnx.ModelProto:
    dynamo, opset = EXPORTERS[exporter]
    if dynamo:
        program = torch.onnx.export(
            module, inputs, dynamo=True, opset_version=opset, verbose=False, **arguments
        )
        return program.model_proto
    file = io.BytesIO()
    torch.onnx.export(module, inputs, file, dynamo=False, opset_version=opset)
    return onnx.load_from_string(file.getvalue())


MODULES = {
    "bool": (Fused(), "bool"),
    "causal": (Fused(is_causal=True), None),
    "eager": (Eager("after"), "mask"),
    "plain": (Fused(), None),
    "additive": (Fused(), "mask"),
    "scale": (Fused(scale=0.3), None),
    "eager, divisor": (Eager("divisor"), "mask"),
    "eager, scaled q": (Eager("of q"), None),
    "eager, no scale": (Eager("none"), None),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("exporter", slow_after(1, EXPORTERS))
@pytest.mark.parametrize("name", slow_after(3, MODULES))
def test_exported(name, exporter):
    given = arrays()
    module, mask = MODULES[name]
    if mask == "bool":
        given["mask"] = visible(given["mask"])
    elif mask is None:
        del given["mask"]
    inputs = tuple(map(torch.from_numpy, given.values()))
    model = export(module, inputs, exporter)
    feeds = dict(zip([each.name for each in model.graph.input], given.values(), strict=True))
    result, report = accelerated(model, feeds)
    assert [each.op for each in report.replaced if each.op == "attention"] == ["attention"]
    assert not any(node.op_type in ("Softmax", "Attention", "Trilu") and not node.domain
                   for node in result.graph.node)  # fmt: skip
    is_causal = module.is_causal if isinstance(module, Fused) else False
    assert attributes_of(ours(result))["is_causal"] == is_causal


@pytest.mark.filterwarnings("ignore")
def test_nodes_around_it_are_taken_in():
    """One node is left of the ten that torch's exporter writes for a mask of bool."""
    given = arrays()
    given["mask"] = visible(given["mask"])
    model = export(Fused(), tuple(map(torch.from_numpy, given.values())), "18")
    result, _ = accelerated(model, dict(zip("qkv", list(given.values())[:3], strict=True))
                            | {model.graph.input[3].name: given["mask"]})  # fmt: skip
    assert len(result.graph.node) == 1
    assert ours(result).input[3] == model.graph.input[3].name
    attributes = attributes_of(ours(result))
    assert attributes["scale"] == pytest.approx(1 / np.sqrt(D), rel=1e-6)
    assert attributes["is_causal"] == 0


CAUSAL = np.triu(np.full((S, T), -np.inf, np.float32), 1)


@pytest.mark.parametrize(
    ("mask", "is_causal"),
    [
        (CAUSAL, 1),
        (CAUSAL[None, None], 1),
        (np.maximum(CAUSAL, np.finfo(np.float32).min), 1),
        (CAUSAL[:1], 0),  # each query sees the first key
        (np.triu(np.full((S, T), -np.inf, np.float32), 2), 0),
        (CAUSAL + np.float32(1e-3) * (np.arange(T) == 2), 0),
    ],
    ids=["plain", "of four dimensions", "large numbers", "of keys", "shifted", "biased"],
)
def test_constant_masks(mask, is_causal):
    """A constant that hides the keys after a query is the attribute in its place."""
    model = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["": 18]>
        m (float[{B}, {H}, {S}, {D}] q, float[{B}, {H}, {D}, {T}] k, float[{B}, {H}, {T}, {E}] v)
        => (float[{B}, {H}, {S}, {E}] y) {{
            kept = Identity(mask)
            scores = MatMul(q, k)
            seen = Add(scores, kept)
            weights = Softmax<axis = -1>(seen)
            y = MatMul(weights, v)
        }}"""
    )
    model.graph.initializer.append(numpy_helper.from_array(mask.astype(np.float32), "mask"))
    feeds = {name: x for name, x in arrays().items() if name != "mask"}
    feeds["k"] = np.ascontiguousarray(np.swapaxes(feeds["k"], -1, -2))
    result, _ = accelerated(model, feeds)
    assert attributes_of(ours(result))["is_causal"] == is_causal
    left = {each.name for each in result.graph.initializer}
    assert ("mask" in left, "Identity" in types(result)) == (not is_causal, not is_causal)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("exporter", slow_after(1, ["23", "18"]))
def test_named_dimensions(exporter):
    """Sizes of one input are equal by construction; a mask of the same names broadcasts."""

    class OfOne(Fused):
        def forward(self, x, mask):
            return super().forward(x, 2 * x, x.tanh(), mask)

    batch, tokens = (torch.export.Dim(name, min=2, max=64) for name in ("b", "s"))
    shapes = {"x": {0: batch, 2: tokens}, "mask": {0: batch, 2: tokens, 3: tokens}}
    generator = np.random.default_rng(0)
    x = generator.normal(size=(2, 3, 5, 8)).astype(np.float32)
    mask = generator.normal(size=(2, 1, 5, 5)).astype(np.float32)
    inputs = torch.from_numpy(x), torch.from_numpy(mask)
    model = export(OfOne(), inputs, exporter, dynamic_shapes=shapes)
    feeds = dict(zip([each.name for each in model.graph.input], (x, mask), strict=True))
    result, report = accelerated(model, feeds)
    assert [each.op for each in report.replaced if each.op == "attention"] == ["attention"]
    feeds["mask"] = mask[:1]
    (y,), (wanted,) = run(result, feeds, True), run(model, feeds, False)
    np.testing.assert_allclose(y, wanted, rtol=1e-5, atol=1e-6)


def masked(x: str, mask: str, layers: int = 1) -> onnx.ModelProto:
    layer = """t{0} = Transpose<perm = [0, 1, 3, 2]>(x{0}) s{0} = MatMul(x{0}, t{0})
        m{0} = Add(s{0}, mask) p{0} = Softmax(m{0}) x{1} = MatMul(p{0}, x{0}) """
    return onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["" : 18]>
        main (float[{x}] x0, float[{mask}] mask) => (float[n,3,r,8] x{layers}) {{
        {"".join(layer.format(i, i + 1) for i in range(layers))} }}"""
    )


@pytest.mark.parametrize(
    ("mask", "layers", "of_x", "of_mask"),
    [
        ("b,1,s,s", 1, (1, 5), (4, 1, 5, 5)),
        ("b,1,s,s", 1, (3, 5), (3, 1, 5, 5)),
        ("n,1,1,s", 1, (1, 5), (4, 1, 1, 5)),
        ("n,1,1,s", 2, (1, 5), (4, 1, 1, 5)),
        ("n,1,1,s", 1, (3, 5), (1, 1, 1, 5)),
        ("?,?,?,?", 1, (1, 1), (4, 3, 6, 1)),
        ("s,s", 1, (2, 1), (6, 1)),
    ],
)
def test_masks_that_nodes_broadcast_to(mask, layers, of_x, of_mask):
    """One name is no proof of one size: the nodes also run a query of one sample or of one token
    with a mask of several."""
    model = masked("b,3,s,8", mask, layers)
    generator = np.random.default_rng(0)
    x = generator.normal(size=(of_x[0], 3, of_x[1], 8)).astype(np.float32)
    feeds = {"x0": x, "mask": generator.normal(size=of_mask).astype(np.float32)}
    result, report = accelerated(model, feeds)
    assert [each.op for each in report.replaced] == ["attention"] * layers
    (y,), (wanted,) = run(result, feeds, False), run(model, feeds, False)
    np.testing.assert_allclose(y, wanted, rtol=1e-5, atol=1e-6, strict=True)


@pytest.mark.parametrize(
    ("x", "mask", "expanded"),
    [("2,3,5,8", "b,1,s,5", 0), ("b,3,5,8", "1,1,5,5", 0), ("2,3,s,8", "b,1,s,s", 1)],
)
def test_sizes_above_1_need_no_expansion(x, mask, expanded):
    result, _ = cudarelu.onnx.accelerate(masked(x, mask))
    assert types(result).count("Expand") == expanded
    assert types(result)[-1] == "Attention"


@pytest.mark.parametrize(("opset", "found"), [(23, 1), (24, 0)])
def test_a_mask_of_the_first_keys(opset, found):
    """From opset 24, the mask of Attention may be shorter than the keys."""
    model = onnx.parser.parse_model(
        f"""<ir_version: 11, opset_import: ["" : {opset}]>
        main (float[b,3,s,8] x, float[b,1,s,s] mask) => (float[b,3,s,8] y) {{
        y = Attention(x, x, x, mask) }}"""
    )
    result, report = cudarelu.onnx.accelerate(model)
    assert len(report.replaced) == found
    assert "Expand" not in types(result)


def test_keys_and_values_of_before():
    """The sizes of two inputs are equal where the nodes do not run otherwise."""
    past = "float[b,3,p,8]"
    model = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["" : 18]>
        main (float[b,3,s,8] x, {past} past_k, {past} past_v) => (float[b,3,s,8] y) {{
        k = Concat<axis = -2>(past_k, x) v = Concat<axis = -2>(past_v, x)
        t = Transpose<perm = [0, 1, 3, 2]>(k) s = MatMul(x, t) p = Softmax(s) y = MatMul(p, v) }}"""
    )
    generator = np.random.default_rng(0)
    sizes = {"x": 2, "past_k": 4, "past_v": 4}
    feeds = {
        name: generator.normal(size=(2, 3, n, 8)).astype(np.float32) for name, n in sizes.items()
    }
    result, report = accelerated(model, feeds)
    assert [each.op for each in report.replaced] == ["attention"]
    assert list(result.graph.input) == list(model.graph.input)


@pytest.mark.filterwarnings("ignore")
def test_heads_that_share_keys():
    given = arrays(g=2)
    del given["mask"]
    inputs = tuple(map(torch.from_numpy, given.values()))
    result, _ = accelerated(export(Fused(enable_gqa=True), inputs, "23"), given)
    assert list(ours(result).input[:3]) == ["q", "k", "v"]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("exporter", slow_after(1, EXPORTERS))
def test_encoder_of_torch(exporter):
    layer = torch.nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, dropout=0.0)
    encoder = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).train(False)
    x = torch.randn(2, 7, 32, generator=torch.Generator().manual_seed(0))
    enabled = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        model = export(encoder, (x,), exporter)
    finally:
        torch.backends.mha.set_fastpath_enabled(enabled)
    result, report = accelerated(model, {model.graph.input[0].name: x.numpy()})
    assert [each.op for each in report.replaced].count("attention") == 2
    assert not any(node.op_type == "Softmax" for node in result.graph.node)


# Models by hand.


def parse(text: str, opset: int = 18, **constants: np.ndarray) -> onnx.ModelProto:
    model = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : {opset}]> '
        f"main (float[2,4,6,8] q, float[2,4,5,8] k, float[2,4,5,3] v) => (float[2,4,6,3] y) "
        f"{{ {text} }}"
    )
    used = {name for node in model.graph.node for name in node.input}
    for name in sorted(used & constants.keys()):
        model.graph.initializer.append(numpy_helper.from_array(constants[name], name))
    return model


TURNED = "a = Transpose<perm = [0, 1, 3, 2]>(k) "
REST = "w = Softmax<axis = -1>(p) y = MatMul(w, v)"
CONSTANTS = {
    "half": np.float32(0.5),
    "other": np.float32(0.25),
    "zero": np.float32(0),
    "each": np.full((6, 5), 0.5, np.float32),
    "flat": np.array([-1, 5, 8]),
    "back": np.array([2, 4, 8, 5]),
    "wrong": np.array([-1, 8, 5]),
}
FEEDS = {name: array for name, array in arrays().items() if name != "mask"}


@pytest.mark.parametrize(
    ("text", "scale"),
    [
        (TURNED + "p = MatMul(q, a)", 1),
        (TURNED + "s = MatMul(q, a) p = Mul(half, s)", 0.5),
        (TURNED + "s = MatMul(q, a) p = Div(s, half)", 2),
        (TURNED + "r = Mul(q, half) p = MatMul(r, a)", 0.5),
        (TURNED + "r = Div(q, half) p = MatMul(r, a)", 2),
        (TURNED + "r = Mul(a, half) p = MatMul(q, r)", 0.5),
        (TURNED + "r = Mul(q, half) u = Mul(a, half) p = MatMul(r, u)", 0.25),
        ("f = Reshape(k, flat) g = Transpose<perm = [0, 2, 1]>(f) a = Reshape(g, back) "
         "p = MatMul(q, a)", 1),
    ],
)  # fmt: skip
def test_where_the_scale_is(text, scale):
    model = parse(f"{text} {REST}", **CONSTANTS)
    result, _ = accelerated(model, FEEDS)
    node = ours(result)
    assert list(node.input) == ["q", "k", "v", "attn_mask_CastLike"]
    (found,) = (each.f for each in node.attribute if each.name == "scale")
    assert found == scale
    assert types(result) == ["Attention"]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (f"{TURNED} s = MatMul(q, a) p = Mul(s, each) {REST}", None),
        (f"{TURNED} p = MatMul(q, a) {REST.replace('-1', '-2')}", "axis of Softmax"),
        (f"{TURNED} s = MatMul(q, a) p = Div(s, zero) {REST}", "a constant that is 0"),
        ("a = Reshape(k, back) p = MatMul(q, a) " + REST, None),
    ],
)  # fmt: skip
def test_what_means_something_else(text, reason):
    result, report = cudarelu.onnx.accelerate(parse(text, **CONSTANTS))
    kept = [each for each in result.graph.node if each.op_type == "Attention"]
    if reason is None:  # found without what means something else
        accelerated(parse(text, **CONSTANTS), FEEDS)
    else:
        assert not kept
        assert any(reason in each.reason for each in report.left if each.op == "attention")


def test_reshapes_that_mix_heads():
    """Reshape, Transpose, Reshape with other shapes is no transposition of the keys."""
    text = (
        "f = Reshape(k, wrong) g = Transpose<perm = [0, 2, 1]>(f) a = Reshape(g, back) "
        f"p = MatMul(q, a) {REST}"
    )
    result, _ = accelerated(parse(text, **CONSTANTS), FEEDS)
    assert types(result) == ["Reshape", "Transpose", "Reshape", "Transpose", "Attention"]


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        ("y = Attention<softcap = 2.0>(q, k, v)", "the softcap of Attention is 2.0, not 0.0"),
        ("y, n = Attention(q, k, v, , k, v)", None),
    ],
)
def test_attention_of_onnx_with_more(call, reason):
    model = parse(call, opset=23)
    if reason is None:  # keys of earlier calls
        model.graph.node[0].output.append("more")
    _, report = cudarelu.onnx.accelerate(model)
    assert not report.replaced
    assert [each.reason for each in report.left] == ([] if reason is None else [reason])


def test_weights_that_are_also_an_output():
    model = parse(f"{TURNED} p = MatMul(q, a) {REST}")
    model.graph.output.append(
        onnx.helper.make_tensor_value_info("w", onnx.TensorProto.FLOAT, [2, 4, 6, 5])
    )
    _, report = accelerated(model, FEEDS)
    assert [each.op for each in report.replaced] == ["softmax"]
    (left,) = (each for each in report.left if each.op == "attention")
    assert left.reason == "the result of Softmax is used elsewhere too"
