"""A sequence that is sharded over processes, whose parts travel around the ring of processes."""

from collections.abc import Iterator

import torch
import torch.distributed as dist

Tensors = list[torch.Tensor]


def shard(x: torch.Tensor, rank: int, processes: int) -> torch.Tensor:
    """The part of x [..., s, d] of a process: of 2 * processes chunks of the sequence, the one with
    the number of the process and the one as far from the end. With causal order, all processes thus
    have the same work."""
    chunks = x.chunk(2 * processes, -2)
    return torch.cat((chunks[rank], chunks[-1 - rank]), -2)


def ring(
    k: torch.Tensor, v: torch.Tensor, is_causal: bool, group: dist.ProcessGroup
) -> Iterator[tuple[slice, slice, Tensors, bool]]:
    """The shards of k and v of all processes, from that of this process backwards. For each: the
    rows of the queries here that see keys of it, the rows of those keys, their k and v, and whether
    these queries and keys are in causal order. The next shard arrives during the work on one.

    In causal order, the first keys of a process before this one are before all queries here, and
    its last keys are after all. The keys of a process after this one are between the first and the
    last queries here."""
    held, half = [k, v], k.shape[-2] // 2
    for step in range(group.size()):
        shift = Shift(held, group) if step + 1 < group.size() else None
        rows = keys = slice(None)
        if is_causal and step > group.rank():
            rows = slice(half, None)
        elif is_causal and step > 0:
            keys = slice(half)
        yield rows, keys, [x[..., keys, :] for x in held], is_causal and step == 0
        if shift is not None:
            held = shift.wait()


class Shift:
    """Tensors on their way to the next process of the ring, and those of the previous one."""

    def __init__(self, tensors: Tensors, group: dist.ProcessGroup) -> None:
        self._sent = [x.contiguous() for x in tensors]  # kept until they have arrived
        self._received, self._requests = self._sent, []
        if group.size() > 1:
            self._received = [torch.empty_like(x) for x in self._sent]
            following, previous = ((group.rank() + step) % group.size() for step in (1, -1))
            sends = [(dist.isend, x, following) for x in self._sent]
            receipts = [(dist.irecv, x, previous) for x in self._received]
            self._requests = dist.batch_isend_irecv(
                [
                    dist.P2POp(operation, x, group=group, group_peer=peer)
                    for operation, x, peer in sends + receipts
                ]
            )

    def wait(self) -> Tensors:
        """The tensors of the previous process."""
        for request in self._requests:
            request.wait()
        return self._received
