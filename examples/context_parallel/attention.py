"""Attention over a sequence that is sharded over processes: each has a part of q, k and v.

    torchrun --nproc-per-node 2 examples/context_parallel/attention.py

The parts of k and v travel around the ring of processes (Liu et al., Ring Attention with Blockwise
Transformers, 2023). Each process attends with its queries to the part that it has, and combines the
results by their log-sum-exps. In the gradient they travel once more; the gradients of a part of k
and v travel with it.
"""

import os

import torch
import torch.distributed as dist
from ring import Shift, ring, shard

import cudarelu


def context_parallel_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    is_causal: bool = False,
    scale: float | None = None,
    group: dist.ProcessGroup | None = None,
) -> torch.Tensor:
    """As cudarelu.attention(q, k, v), where each process of the group has a shard() of each tensor
    and of the result. The length of a shard is even, and the same in all processes."""
    return RingAttention.apply(q, k, v, is_causal, scale, group or dist.group.WORLD)


class RingAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, is_causal, scale, group):
        y = q.new_zeros(*q.shape[:-1], v.shape[-1], dtype=dtype_of_sums(q))
        lse = q.new_full(q.shape[:-1], -torch.inf, dtype=torch.float32)
        for rows, _, part, in_order in ring(k, v, is_causal, group):
            of_part, lse_of_part = cudarelu.attention_with_lse(
                q[..., rows, :], *part, is_causal=in_order, scale=scale
            )
            total = torch.logaddexp(lse[..., rows], lse_of_part)
            before, added = (torch.exp(x - total) for x in (lse[..., rows], lse_of_part))
            y[..., rows, :] = y[..., rows, :] * before[..., None] + of_part * added[..., None]
            lse[..., rows] = total
        y = y.to(q.dtype)
        ctx.save_for_backward(q, k, v, y, lse)
        ctx.arguments = is_causal, scale, group
        return y

    @staticmethod
    def backward(ctx, grad_y):
        q, k, v, y, lse = ctx.saved_tensors
        is_causal, scale, group = ctx.arguments
        grad_q, *grads = (torch.zeros_like(x, dtype=dtype_of_sums(q)) for x in (q, k, v))
        for rows, keys, part, in_order in ring(k, v, is_causal, group):
            # With y and lse of the whole sequence, these are the terms of the whole's gradients.
            of_q, *terms = cudarelu.attention_backward(
                grad_y[..., rows, :],
                q[..., rows, :],
                *part,
                y[..., rows, :],
                lse[..., rows],
                is_causal=in_order,
                scale=scale,
            )
            grad_q[..., rows, :] += of_q
            for grad, term in zip(grads, terms, strict=True):
                grad[..., keys, :] += term
            grads = Shift(grads, group).wait()  # the last time back to where the part is from
        return *(grad.to(q.dtype) for grad in (grad_q, *grads)), None, None, None


def dtype_of_sums(x: torch.Tensor) -> torch.dtype:
    """float32 for dtypes of 16 bits."""
    return torch.promote_types(x.dtype, torch.float32)


def main() -> None:
    on_cuda = torch.cuda.device_count() >= int(os.environ["WORLD_SIZE"])
    device = torch.device("cuda" if on_cuda else "cpu", int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if on_cuda else "gloo", device_id=device if on_cuda else None)
    rank, processes = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)  # for the same sequence in all processes
    q, k, v = (torch.randn(2, heads, 64 * processes, 32).to(device) for heads in (4, 2, 2))
    parts = [shard(x, rank, processes).requires_grad_() for x in (q, k, v)]
    y = context_parallel_attention(*parts, is_causal=True)
    y.square().sum().backward()
    whole = cudarelu.attention(q, k, v, is_causal=True)
    difference = (y - shard(whole, rank, processes)).abs().max()
    print(f"process {rank}: differs from attention over the whole sequence by {difference:.1e}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
