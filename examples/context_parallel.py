"""Attention over a sequence that is sharded over processes: each has a part of q, k and v.

    torchrun --nproc-per-node 2 examples/context_parallel.py

The parts of k and v travel around the ring of processes (Liu et al., Ring Attention with Blockwise
Transformers, 2023). Each process attends with its queries to the part that it has, and combines the
results by their log-sum-exps. In the gradient they travel once more; the gradients of a part of k
and v travel with it. The program compares this with attention over the whole sequence.
"""

import os
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist

import cudarelu

Tensors = list[torch.Tensor]


def shard(x: torch.Tensor, rank: int, processes: int) -> torch.Tensor:
    """The part of x [..., s, d] of a process: of 2 * processes chunks of the sequence, the one with
    the number of the process and the one as far from the end. With causal order, all processes thus
    have the same work."""
    chunks = x.chunk(2 * processes, -2)
    return torch.cat((chunks[rank], chunks[-1 - rank]), -2)


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
    return _RingAttention.apply(q, k, v, is_causal, scale, group or dist.group.WORLD)


class _RingAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        is_causal: bool,
        scale: float | None,
        group: dist.ProcessGroup,
    ) -> torch.Tensor:
        for step, (rows, keys, held) in enumerate(_ring(q, k, v, is_causal, group)):
            of_part, lse_of_part = cudarelu.attention_with_lse(
                q[..., rows, :],
                *(each[..., keys, :] for each in held),
                is_causal=is_causal and step == 0,
                scale=scale,
            )
            if step == 0:
                y, lse = of_part.to(_wide(q)), lse_of_part
                continue
            total = torch.logaddexp(lse[..., rows], lse_of_part)
            before, added = (torch.exp(each - total) for each in (lse[..., rows], lse_of_part))
            y[..., rows, :] = y[..., rows, :] * before[..., None] + of_part * added[..., None]
            lse[..., rows] = total
        y = y.to(q.dtype)
        ctx.save_for_backward(q, k, v, y, lse)
        ctx.is_causal, ctx.scale, ctx.group = is_causal, scale, group
        return y

    @staticmethod
    def backward(ctx: Any, grad_y: torch.Tensor) -> Any:
        q, k, v, y, lse = ctx.saved_tensors
        grad_q, *grads_held = (torch.zeros_like(each, dtype=_wide(q)) for each in (q, k, v))
        for step, (rows, keys, held) in enumerate(_ring(q, k, v, ctx.is_causal, ctx.group)):
            if step > 0:
                grads_held = _Shift(grads_held, ctx.group).wait()
            # With y and lse of the whole sequence, these are the terms of the whole's gradients.
            terms = cudarelu.attention_backward(
                grad_y[..., rows, :],
                q[..., rows, :],
                *(each[..., keys, :] for each in held),
                y[..., rows, :],
                lse[..., rows],
                is_causal=ctx.is_causal and step == 0,
                scale=ctx.scale,
            )
            grad_q[..., rows, :] += terms[0]
            for grad, term in zip(grads_held, terms[1:], strict=True):
                grad[..., keys, :] += term
        grads = (grad_q, *_Shift(grads_held, ctx.group).wait())  # back to where the parts are from
        return *(each.to(q.dtype) for each in grads), None, None, None


def _wide(x: torch.Tensor) -> torch.dtype:
    """The dtype of sums: float32 for dtypes of 16 bits."""
    return torch.promote_types(x.dtype, torch.float32)


def _ring(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, is_causal: bool, group: dist.ProcessGroup
) -> Iterator[tuple[slice, slice, Tensors]]:
    """The parts of k and v of all processes, from that of this process backwards, with the queries
    here that see keys of them, and those keys. The next part arrives during the work on one.

    In causal order, the first keys of a process before this one are before all queries here, and
    its last keys are after all. The keys of a process after this one are between the first and the
    last queries here."""
    held: Tensors = [k, v]
    half, everything = q.shape[-2] // 2, slice(None)
    for step in range(group.size()):
        shift = _Shift(held, group) if step + 1 < group.size() else None
        if step == 0 or not is_causal:
            yield everything, everything, held
        elif step <= group.rank():
            yield everything, slice(half), held
        else:
            yield slice(half, None), everything, held
        if shift is not None:
            held = shift.wait()


class _Shift:
    """Tensors on their way to the next process of the ring, and those of the previous one."""

    def __init__(self, tensors: Tensors, group: dist.ProcessGroup) -> None:
        following, previous = (
            dist.get_global_rank(group, (group.rank() + step) % group.size()) for step in (1, -1)
        )
        self._sent = [each.contiguous() for each in tensors]
        self._received = [torch.empty_like(each) for each in self._sent]
        if group.size() == 1:
            self._received, self._requests = self._sent, []
            return
        operations = [dist.P2POp(dist.isend, each, following, group) for each in self._sent]
        operations += [dist.P2POp(dist.irecv, each, previous, group) for each in self._received]
        self._requests = dist.batch_isend_irecv(operations)

    def wait(self) -> Tensors:
        """The tensors of the previous process."""
        for request in self._requests:
            request.wait()
        return self._received


def main() -> None:
    on_cuda = torch.cuda.device_count() >= int(os.environ["WORLD_SIZE"])
    device = torch.device("cuda" if on_cuda else "cpu", int(os.environ["LOCAL_RANK"]))
    if on_cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if on_cuda else "gloo")
    rank, processes = dist.get_rank(), dist.get_world_size()
    for dtype, is_causal, limit in [
        (torch.float32, False, 2e-6),
        (torch.float32, True, 2e-6),
        (torch.bfloat16, True, 2e-2),
    ]:
        torch.manual_seed(0)
        q, k, v, grad_y = (
            torch.randn(2, heads, 64 * processes, 32).to(device, dtype) for heads in (4, 2, 2, 4)
        )
        parts = [shard(each, rank, processes).requires_grad_() for each in (q, k, v)]
        y = context_parallel_attention(*parts, is_causal=is_causal)
        y.backward(shard(grad_y, rank, processes))

        whole = [each.requires_grad_() for each in (q, k, v)]
        expected = cudarelu.attention(*whole, is_causal=is_causal)
        expected.backward(grad_y)
        ours, all_of_it = [y, *(p.grad for p in parts)], [expected, *(w.grad for w in whole)]
        differences = [
            (part - shard(of, rank, processes)).abs().max() / of.abs().max()
            for part, of in zip(ours, all_of_it, strict=True)
        ]
        # Not reduced over the processes: a thread of gloo that releases a tensor while Python ends
        # aborts the process. A process whose part differs ends the program anyway.
        difference = max(float(each) for each in differences)
        if rank == 0:
            order = "causal" if is_causal else "not causal"
            print(f"{dtype}, {order}: differs by {difference:.1e} of the largest number")
        assert difference < limit
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
