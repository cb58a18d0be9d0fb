"""`cudarelu.attention` in code that calls PyTorch's attention, and in models of Hugging Face.

`sdpa` runs calls of `torch.nn.functional.scaled_dot_product_attention` by our op::

    with cudarelu.nn.attention.sdpa():
        y = model(x)

`register_transformers` makes our op an implementation of transformers::

    cudarelu.nn.attention.register_transformers()
    model = AutoModelForCausalLM.from_pretrained(name, attn_implementation="cudarelu")
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn import functional
from torch.overrides import TorchFunctionMode

import cudarelu

__all__ = ["register_transformers", "sdpa"]


def sdpa(when: Callable[[Tensor, Tensor, Tensor], bool] | None = None) -> TorchFunctionMode:
    """A context in which `torch.nn.functional.scaled_dot_product_attention` runs our op.

    It affects the thread that enters it, and also calls by a name that was imported before.
    Contexts can be nested: the inner one decides first. torch.compile and torch.export accept it
    around a model and inside.

    Calls that our op does not support run torch's function: with dropout, with batches that
    broadcast, with a mask whose dtype is neither bool nor that of query, in forward mode, and with
    tensors that our op has no kernel for, such as nested tensors.

    `torch.nn.MultiheadAttention` calls the function where no context reaches it; convert it by
    `cudarelu.nn.replace`. `torch.utils.checkpoint`, which runs the forward again in the backward
    pass, needs `context_fn=lambda: (sdpa(), sdpa())`. Each call of a function of torch within the
    context costs about 2 us more, which is much for small models in eager mode.

    Args:
        when: called with query, key and value of each call that our op supports; torch runs the
            call if the result is false. None stands for all calls: the context does not look for
            what is faster.
    """
    return _Sdpa(when)


class _Sdpa(TorchFunctionMode):
    def __init__(self, when: Callable[[Tensor, Tensor, Tensor], bool] | None) -> None:
        super().__init__()
        self.when = when

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if function is functional.scaled_dot_product_attention:
            y = _attention(self.when, *args, **kwargs)
            if y is not None:
                return y
        return function(*args, **kwargs)


def _attention(
    when: Callable[[Tensor, Tensor, Tensor], bool] | None,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor | None:
    """Torch's function by our op; None if the op does not mean the same, or `when` says no."""
    if dropout_p != 0 or query.is_nested or query.dim() < 3:
        return None
    if isinstance(scale, bool | Tensor):
        return None
    if forward_ad._current_level >= 0:  # our gradients have no forward mode, as `hessian` needs it
        return None
    # Torch broadcasts batches.
    if not query.shape[:-3] == key.shape[:-3] == value.shape[:-3]:
        return None
    if key.shape[-3] != value.shape[-3] or not (enable_gqa or query.shape[-3] == key.shape[-3]):
        return None
    if attn_mask is not None and (is_causal or not 2 <= attn_mask.dim() <= query.dim()):
        return None
    if when is not None and not when(query, key, value):
        return None
    try:
        return cudarelu.attention(query, key, value, attn_mask, is_causal=is_causal, scale=scale)
    except NotImplementedError:  # no kernel for the tensors
        return None


def register_transformers() -> None:
    """Registers our op in Hugging Face's transformers, as `attn_implementation="cudarelu"`.

    It serves the models that read transformers' AttentionInterface, which are most in version 5.
    Masks are those of the implementation "sdpa", which also runs the calls that our op does not
    support: with dropout, a bias of positions or a paged cache. Heads of key and value that several
    heads of query share are not copied. A model with attention sinks or a softcap raises ValueError
    in its first call.

    Raises:
        ImportError: if transformers is not installed or older than 4.53. Version 5 and later are
            tested.
    """
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    AttentionInterface.register("cudarelu", _transformers_attention)
    AttentionMaskInterface.register("cudarelu", sdpa_mask)


def _transformers_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """Attention of transformers: [b, h, s, d], [b, g, t, d] and [b, g, t, e] to [b, s, h, e]."""
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    # transformers does not ask whether a registered implementation supports a model.
    for name in ("s_aux", "sinks", "softcap"):
        if others.get(name) is not None:
            raise ValueError(f"cudarelu.attention has no {name}: use attn_implementation='eager'")
    if others.get("position_bias") is None and others.get("cache") is None:
        causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
        # In this order, as in "sdpa": under torch.compile, the first may be no bool.
        causal = query.shape[2] > 1 and attention_mask is None and causal
        y = _attention(
            None, query, key, value, attention_mask, dropout, causal, scaling, enable_gqa=True
        )
        if y is not None:
            return y.transpose(1, 2).contiguous(), None
    return sdpa_attention_forward(
        module,
        query,
        key,
        value,
        attention_mask,
        dropout=dropout,
        scaling=scaling,
        is_causal=is_causal,
        **others,
    )
