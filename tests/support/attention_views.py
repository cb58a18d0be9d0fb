"""Views of [batch, heads, sequence, d] for attention: the results are those for dense tensors."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

import cudarelu


def _unaligned(x: Tensor) -> Tensor:
    """Rows of the heads side by side, from the second element of a storage on."""
    inside = x.transpose(1, 2)
    return x.new_empty(x.numel() + 1)[1:].view(inside.shape).copy_(inside).transpose(1, 2)


def _packed(x: Tensor) -> Tensor:
    """As the slice for k of a projection to q, k and v."""
    inside = x.transpose(1, 2)
    return torch.stack([inside + 1, inside, inside - 1], 2)[:, :, 1].transpose(1, 2)


VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "dense": lambda x: x.contiguous(),
    "heads inside": lambda x: x.transpose(1, 2).contiguous().transpose(1, 2),
    "sequence first": lambda x: x.permute(2, 0, 1, 3).contiguous().permute(1, 2, 0, 3),
    "batch inside": lambda x: x.permute(1, 2, 0, 3).contiguous().permute(2, 0, 1, 3),
    "packed": _packed,
    "every other row": lambda x: x.repeat_interleave(2, 2)[:, :, ::2],
    "expanded batch": lambda x: x[:1].expand(x.shape),
    "expanded heads": lambda x: x[:, :1].expand(x.shape),
    "unaligned": _unaligned,
    "columns apart": lambda x: x.repeat_interleave(2, -1)[..., ::2],
    "transposed": lambda x: x.mT.contiguous().mT,
}
# Of these the op makes dense copies.
COPIED = ("columns apart", "transposed")


def with_gradients(
    given: tuple[Tensor, Tensor, Tensor], grad_y: Tensor, grad_lse: Tensor, **options
) -> list[Tensor]:
    """y, lse and the gradients of q, k and v."""
    leaves = [x.detach().requires_grad_() for x in given]
    outputs = cudarelu.attention_with_lse(*leaves, **options)
    return [*outputs, *torch.autograd.grad(outputs, leaves, (grad_y, grad_lse))]


def check_views(view: str, shape: tuple[int, ...], dtype: torch.dtype, device: str, **options):
    """Compares views with their dense copies; `shape` is that of q, then heads of k, keys and e."""
    b, h, s, d, g, t, e = shape
    torch.manual_seed(sum(shape))
    sizes = ((b, h, s, d), (b, g, t, d), (b, g, t, e), (b, h, s, e))
    dense = [torch.randn(size, device=device).to(dtype) for size in sizes]
    *given, grad_y = (VIEWS[view](x) for x in dense)
    grad_lse = torch.randn(b, h, s, device=device)
    actual = with_gradients(given, grad_y, grad_lse, **options)
    copies = [x.contiguous() for x in given]
    expected = with_gradients(copies, grad_y.contiguous(), grad_lse, **options)
    for name, x, y in zip(("y", "lse", "q", "k", "v"), actual, expected, strict=True):
        assert torch.equal(x, y), f"{name}: {(x - y).abs().max().item()}"
    assert torch.equal(cudarelu.attention(*given, **options), actual[0])
    likes = copies if view in COPIED else given
    for x, like in zip((actual[0], *actual[2:]), (likes[0], *likes), strict=True):
        assert _order(x) == _order(torch.empty_like(like)), (x.stride(), like.stride())
        assert torch.empty_like(x).stride() == x.stride()  # dense
    assert actual[1].is_contiguous()


def _order(x: Tensor) -> list[int]:
    """The dimensions from the outermost to the innermost, except those of one element."""
    return sorted((i for i in range(3) if x.shape[i] > 1), key=lambda i: -x.stride(i))
