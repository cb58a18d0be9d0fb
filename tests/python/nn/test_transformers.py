"""Models of Hugging Face's transformers with attn_implementation="cudarelu"."""

from __future__ import annotations

import functools

import pytest
import torch

from cudarelu.nn.attention import register_transformers
from support.torch_calls import Calls

# Older versions of BERT and GPT-2 do not use registered implementations, or not fully.
transformers = pytest.importorskip("transformers", minversion="5")

SIZES = {
    "vocab_size": 50,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
}
MODELS = {
    "bert": ("BertForMaskedLM", "BertConfig", SIZES | {"attention_probs_dropout_prob": 0.5}),
    "llama": ("LlamaForCausalLM", "LlamaConfig", SIZES | {"num_key_value_heads": 2}),
    "qwen2": (
        "Qwen2ForCausalLM",
        "Qwen2Config",
        SIZES
        | {"num_key_value_heads": 2}
        | {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1},
    ),
    "gpt2": (
        "GPT2LMHeadModel",
        "GPT2Config",
        {"vocab_size": 50, "n_embd": 32, "n_layer": 2, "n_head": 4, "pad_token_id": 0}
        | {"eos_token_id": None, "bos_token_id": None, "scale_attn_by_inverse_layer_idx": True},
    ),
}
IDS = torch.randint(1, 50, (2, 9), generator=torch.Generator().manual_seed(0))
PADDED = torch.ones_like(IDS)
PADDED[0, :3] = 0


@pytest.fixture(autouse=True, scope="module")
def _registered():
    register_transformers()


@functools.cache
def model_of(name):
    torch.manual_seed(0)
    kind, config, arguments = MODELS[name]
    config = getattr(transformers, config)(**arguments)
    return getattr(transformers, kind)(config).eval()


def with_attention(model, implementation):
    model.set_attn_implementation(implementation)
    return model


def slow(value):
    return pytest.param(value, marks=pytest.mark.slow)


@pytest.mark.parametrize("mask", [slow(None), PADDED], ids=["whole", "padded"])
@pytest.mark.parametrize("name", MODELS)
def test_logits_and_gradients(name, mask):
    def run(implementation):
        model = with_attention(model_of(name), implementation)
        model.zero_grad()
        with Calls() as calls:
            logits = model(input_ids=IDS, attention_mask=mask).logits
        if mask is not None:
            logits = logits[mask.bool()]  # the rows of padding have no meaning, and differ
        logits.square().sum().backward()
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        return calls.names, (logits, gradients)

    called, found = run("cudarelu")
    assert called == ["attention_with_lse"] * 2
    for other in ("eager", "sdpa"):
        called, expected = run(other)
        assert called == []
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("cache", [None, slow("static")])
@pytest.mark.parametrize("mask", [slow(torch.ones_like(IDS)), PADDED], ids=["whole", "padded"])
@pytest.mark.parametrize("name", ["llama", slow("qwen2"), "gpt2"])
def test_generate(name, mask, cache):
    def run(implementation):
        model = with_attention(model_of(name), implementation)
        return model.generate(
            IDS,
            attention_mask=mask,
            max_new_tokens=5,
            do_sample=False,
            cache_implementation=cache,
            disable_compile=True,
            return_dict_in_generate=True,
            output_logits=True,
        )

    with Calls() as calls:
        found = run("cudarelu")
    assert calls.names == ["attention"] * 10  # five tokens, two layers
    for other in ("eager", "sdpa"):
        expected = run(other)
        assert torch.equal(found.sequences, expected.sequences)
        torch.testing.assert_close(found.logits, expected.logits)


def test_dropout_runs_torchs_attention():
    found = []
    for implementation in ("cudarelu", "sdpa"):
        model = with_attention(model_of("bert"), implementation).train()
        torch.manual_seed(1)
        with torch.no_grad(), Calls() as calls:
            found.append(model(input_ids=IDS).logits)
        assert calls.names == []
        model.eval()
    torch.testing.assert_close(*found, rtol=0, atol=0)


def attention_of(implementation):
    return transformers.AttentionInterface()[implementation]


def test_a_bias_of_positions():
    q, k, v = (torch.randn(2, 4, 5, 8) for _ in range(3))
    bias = torch.randn(1, 4, 5, 5)
    found = [
        attention_of(name)(torch.nn.Module(), q, k, v, None, position_bias=bias)[0]
        for name in ("cudarelu", "sdpa")
    ]
    torch.testing.assert_close(*found, rtol=0, atol=0)


@pytest.mark.parametrize("name", ["s_aux", "softcap"])
def test_what_the_op_lacks_is_an_error(name):
    """transformers would not notice that the values are ignored."""
    x = torch.randn(2, 4, 5, 8)
    with pytest.raises(ValueError, match=f"has no {name}: use attn_implementation='eager'"):
        attention_of("cudarelu")(torch.nn.Module(), x, x, x, None, **{name: torch.ones(4)})


def test_torch_compile():
    model = with_attention(model_of("llama"), "cudarelu")
    torch._dynamo.reset()
    codes = []

    def backend(graph, _):
        codes.append(graph.code)
        return graph

    compiled = torch.compile(model, backend=backend, fullgraph=True)
    with torch.no_grad():
        found = compiled(input_ids=IDS, attention_mask=PADDED, use_cache=False).logits
        expected = model(input_ids=IDS, attention_mask=PADDED, use_cache=False).logits
    torch.testing.assert_close(found, expected)
    assert sum(code.count("ops.cudarelu.attention") for code in codes) == 2
