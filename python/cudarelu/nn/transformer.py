"""`torch.nn.MultiheadAttention` and `TransformerEncoderLayer` by `cudarelu.attention`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

import cudarelu
from cudarelu.nn.modules import GELU, LayerNorm, Linear, ReLU, is_pair, run_pair, weight_unlike_ours


class MultiheadAttention(torch.nn.MultiheadAttention):
    """`cudarelu.attention` between the products of a `torch.nn.MultiheadAttention`.

    Arguments, parameters, state and calls are those of torch's module. A call runs torch's own
    `forward` if it asks for the weights (`need_weights`, which is true by default), drops out
    weights in training, or has masks of two dtypes or tensors that our ops have no kernel for; so
    does every call of a module with `add_bias_kv` or `add_zero_attn`.

    A query whose keys are all hidden attends to zeros, where torch's fast path gives NaN in eval
    mode. As in torch, `is_causal` says that `attn_mask` is the causal mask, which then is not read.
    `torch.jit.trace` accepts the module, but `torch.jit.script` does not. There are first and
    second derivatives.
    """

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        if not need_weights and self._can_attend(
            query, key, key_padding_mask, attn_mask, is_causal
        ):
            masks = (key_padding_mask, None if is_causal else attn_mask)
            try:
                return self._attend(query, key, value, *masks, is_causal), None
            except NotImplementedError:
                pass
        return super().forward(
            query,
            key,
            value,
            key_padding_mask=key_padding_mask,
            need_weights=need_weights,
            attn_mask=attn_mask,
            average_attn_weights=average_attn_weights,
            is_causal=is_causal,
        )

    def _can_attend(
        self,
        query: Tensor,
        key: Tensor,
        key_padding_mask: Tensor | None,
        attn_mask: Tensor | None,
        is_causal: bool,
    ) -> bool:
        """Whether `_attend` computes what torch does. If not, torch computes it or raises an error.

        What is not checked here is an error in both.
        """
        if added_keys(self) or (self.training and self.dropout > 0):
            return False
        if query.is_nested or key.is_nested or query.dim() not in (2, 3) or key.dim() not in (2, 3):
            return False
        if is_causal and attn_mask is None:
            return False
        # The op would broadcast masks of other shapes.
        sequence, samples = (1, 0) if self.batch_first else (0, 1)
        batch = (query.shape[samples],) if query.dim() == 3 else ()
        s, t = (x.shape[sequence if x.dim() == 3 else 0] for x in (query, key))
        rows = (batch[0] if batch else 1) * self.num_heads
        if attn_mask is not None and attn_mask.shape not in ((s, t), (rows, s, t)):
            return False
        if key_padding_mask is not None and key_padding_mask.shape != (*batch, t):
            return False
        dtypes = {mask.dtype for mask in (attn_mask, key_padding_mask) if mask is not None}
        return len(dtypes) <= 1 and all(d is torch.bool or d.is_floating_point for d in dtypes)

    def _attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None,
        attn_mask: Tensor | None,
        is_causal: bool,
    ) -> Tensor:
        sequence_first = query.dim() == 3 and not self.batch_first  # [sequence, batch, features]

        def heads(x: Tensor) -> Tensor:  # [*, sequence, features] to [*, heads, sequence, head_dim]
            x = x.unflatten(-1, (self.num_heads, self.head_dim))
            return (x.transpose(0, 1) if sequence_first else x).transpose(-3, -2)

        q, k, v = map(heads, self._projections(query, key, value))
        if attn_mask is not None and attn_mask.dim() == 3 and q.dim() == 4:
            attn_mask = attn_mask.unflatten(0, (-1, self.num_heads))
        if key_padding_mask is not None:
            key_padding_mask = key_padding_mask[..., None, None, :]
        mask = _mask_of_op(attn_mask, key_padding_mask)
        y = cudarelu.attention(q, k, v, mask, is_causal=is_causal).transpose(-3, -2)
        y = (y.transpose(0, 1) if sequence_first else y).flatten(-2)
        # Torch's module does not call out_proj, but reads its parameters.
        return cudarelu.linear(y, self.out_proj.weight, self.out_proj.bias)

    def _projections(self, query: Tensor, key: Tensor, value: Tensor) -> Any:
        weight, bias = self.in_proj_weight, self.in_proj_bias
        if weight is not None and query is key is value:
            return cudarelu.linear(query, weight, bias).chunk(3, -1)
        separate = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
        weights = separate if weight is None else weight.chunk(3)
        biases = (None, None, None) if bias is None else bias.chunk(3)
        inputs = (query, key, value)
        return [cudarelu.linear(*each) for each in zip(inputs, weights, biases, strict=True)]


def _mask_of_op(attn_mask: Tensor | None, key_padding_mask: Tensor | None) -> Tensor | None:
    """Two masks as one of `cudarelu.attention`, in which true shows a key, as false does here."""
    given = [mask for mask in (attn_mask, key_padding_mask) if mask is not None]
    if not given:
        return None
    both = given[0] if len(given) == 1 else given[0] + given[1]
    return ~both if both.dtype == torch.bool else both


def added_keys(module: torch.nn.MultiheadAttention) -> str | None:
    """The argument that adds keys to those of a call; None if there is none."""
    if module.bias_k is not None or module.bias_v is not None:
        return "add_bias_kv"
    return "add_zero_attn" if module.add_zero_attn else None


def attention_unlike_ours(module: torch.nn.MultiheadAttention) -> str | None:
    """The reason why a module of torch can never run our ops; None if it can."""
    if argument := added_keys(module):
        return f"MultiheadAttention with {argument}"
    separate = (module.q_proj_weight, module.k_proj_weight, module.v_proj_weight)
    for weight in (module.in_proj_weight, *separate, module.out_proj.weight):
        if weight is not None and (reason := weight_unlike_ours("MultiheadAttention", weight)):
            return reason
    return None


class TransformerEncoderLayer(torch.nn.TransformerEncoderLayer):
    """A `torch.nn.TransformerEncoderLayer` of our modules, which run our ops in eval mode too.

    Arguments, parameters, state and calls are those of torch's module. The first Linear and the
    activation run as one op if the activation is a ReLU or GELU. Nested tensors run torch's own
    `forward`: a `torch.nn.TransformerEncoder` makes them of padded batches in eval mode, without
    gradients, unless its `enable_nested_tensor` is false.
    """

    def __init__(
        self,
        d_model: int,
        nhead: int,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: str | Callable[[Tensor], Tensor] = functional.relu,
        layer_norm_eps: float = 1e-5,
        batch_first: bool = False,
        norm_first: bool = False,
        bias: bool = True,
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(
            d_model,
            nhead,
            dim_feedforward,
            dropout,
            activation,
            layer_norm_eps,
            batch_first,
            norm_first,
            bias,
            device,
            dtype,
        )
        self.self_attn.__class__ = MultiheadAttention
        for linear in (self.linear1, self.linear2):
            linear.__class__ = Linear
        for norm in (self.norm1, self.norm2):
            norm.__class__ = LayerNorm

    def forward(
        self,
        src: Tensor,
        src_mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        is_causal: bool = False,
    ) -> Tensor:
        masks = (src_mask, src_key_padding_mask, is_causal)
        if src.is_nested:
            return super().forward(src, *masks)
        if self.norm_first:
            x = src + self._sa_block(self.norm1(src), *masks)
            return x + self._ff_block(self.norm2(x))
        x = self.norm1(src + self._sa_block(src, *masks))
        return self.norm2(x + self._ff_block(x))

    def _ff_block(self, x: Tensor) -> Tensor:
        activation: Any = self.activation
        if activation is functional.relu:
            activation = _RELU
        elif activation is functional.gelu:
            activation = _GELU
        if is_pair(self.linear1, activation):
            hidden = run_pair(self.linear1, activation, x)
        else:
            hidden = activation(self.linear1(x))
        return self.dropout2(self.linear2(self.dropout(hidden)))


_RELU, _GELU = ReLU(), GELU()
