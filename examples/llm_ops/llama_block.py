"""A block of a Llama model with the ops of libllm_ops.so: compiled, trained, and exported.

usage: python llama_block.py LIBRARY [--device cuda] [--dtype bfloat16] [--model llama_block.onnx]

The model runs in `ort_infer --library LIBRARY llama_block.onnx`.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

import cudarelu
import cudarelu.onnx


class LlamaBlock(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x)), for x of shape [batch, sequence, dim].

    Args:
        ops: what has rms_norm, linear_swiglu and rotary: the module of libllm_ops.so.
        dim: the size of a token; a head has dim / heads.
        hidden: the size inside the MLP.
    """

    def __init__(self, ops: object, dim: int = 256, heads: int = 4, hidden: int = 688) -> None:
        super().__init__()
        self.ops, self.heads, self.eps = ops, heads, 1e-6
        self.attend, self.linear_add = functional.scaled_dot_product_attention, cudarelu.linear_add
        self.attention_norm = nn.Parameter(torch.ones(dim))
        self.mlp_norm = nn.Parameter(torch.ones(dim))
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.out = nn.Linear(dim, dim, bias=False)
        self.gate = nn.Linear(dim, hidden, bias=False)
        self.up = nn.Linear(dim, hidden, bias=False)
        self.down = nn.Linear(hidden, dim, bias=False)

    def attention(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        # Rotary embeddings and cudarelu.attention read these views where they lie, and y has their
        # layout: the forward pass has no copies.
        q, k, v = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in self.qkv(x).chunk(3, dim=-1)
        )
        q, k = self.ops.rotary(q, cos, sin), self.ops.rotary(k, cos, sin)
        y = self.attend(q, k, v, is_causal=True)
        return y.transpose(1, 2).flatten(2)

    def mlp(self, x: Tensor) -> Tensor:
        return self.ops.linear_swiglu(x, self.gate.weight, self.up(x))

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        y = self.attention(self.ops.rms_norm(x, self.attention_norm, eps=self.eps), cos, sin)
        x = self.linear_add(y, self.out.weight, x)
        y = self.mlp(self.ops.rms_norm(x, self.mlp_norm, eps=self.eps))
        return self.linear_add(y, self.down.weight, x)


def angles(sequence: int, head: int, base: float = 10000.0) -> tuple[Tensor, Tensor]:
    """cos and sin of the angles of each position, of shape [sequence, head / 2]."""
    frequencies = base ** -(torch.arange(0, head, 2) / head)
    products = torch.outer(torch.arange(sequence), frequencies)
    return products.cos(), products.sin()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("library", type=Path)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16", "float16"])
    parser.add_argument("--model", type=Path, default=Path("llama_block.onnx"))
    options = parser.parse_args()
    options_of_tensors = {"device": options.device, "dtype": getattr(torch, options.dtype)}

    llm = cudarelu.load_library(options.library)  # the ops are torch.ops.llm.* now, too
    torch.manual_seed(0)
    block = LlamaBlock(llm).to(**options_of_tensors)
    x = torch.randn(2, 33, 256, **options_of_tensors)
    cos, sin = (each.to(**options_of_tensors) for each in angles(33, 64))

    compiled = torch.compile(block, fullgraph=True)
    optimizer = torch.optim.SGD(block.parameters(), lr=1.0)
    for step in range(5):
        loss = compiled(x, cos, sin).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step}: loss {loss.item():.4f}")

    block.eval()
    cudarelu.onnx.export(block, (x, cos, sin), options.model, input_names=["x", "cos", "sin"])
    print(f"{options.model} has been written")


if __name__ == "__main__":
    main()
