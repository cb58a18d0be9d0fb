"""The kernels of RMSNorm in Triton, which need nothing of this library."""

import triton
import triton.language as tl


@triton.jit
def rms_norm_kernel(x, weight, y, c, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < c
    values = tl.load(x + row * c + column, mask=inside, other=0.0)
    values = values.to(eps.dtype)  # float64 if x is, else float32
    normal = values / tl.sqrt(tl.sum(values * values) / c + eps)
    if weight is not None:
        normal *= tl.load(weight + column, mask=inside).to(eps.dtype)
    tl.store(y + row * c + column, normal, mask=inside)


@triton.jit(do_not_specialize=["rows"])
def rms_norm_backward_kernel(grad_y, x, weight, grad_x, partial, rows, c, eps, BLOCK: tl.constexpr):
    """A program goes through some of the rows, and writes its sum of the weight's gradient."""
    column = tl.arange(0, BLOCK)
    inside = column < c
    factor = tl.full((BLOCK,), 1.0, eps.dtype)
    if weight is not None:
        factor = tl.load(weight + column, mask=inside, other=0.0).to(eps.dtype)
    total = tl.zeros((BLOCK,), eps.dtype)
    for row in range(tl.program_id(0), rows, tl.num_programs(0)):
        offset = row.to(tl.int64) * c + column
        values = tl.load(x + offset, mask=inside, other=0.0).to(eps.dtype)
        grad = tl.load(grad_y + offset, mask=inside, other=0.0).to(eps.dtype)
        rrms = 1 / tl.sqrt(tl.sum(values * values) / c + eps)
        normal = values * rrms
        total += grad * normal
        grad *= factor
        mean = tl.sum(grad * normal) / c
        tl.store(grad_x + offset, (grad - normal * mean) * rrms, mask=inside)
    tl.store(partial + tl.program_id(0) * c + column, total, mask=inside)


@triton.jit(do_not_specialize=["rows"])
def sum_rows_kernel(x, y, rows, c, BLOCK: tl.constexpr):
    column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), x.dtype.element_ty)
    for row in range(rows):
        total += tl.load(x + row * c + column, mask=column < c, other=0.0)
    tl.store(y + column, total, mask=column < c)
