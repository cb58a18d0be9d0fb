"""RMSNorm, whose CUDA kernels are written in Triton, forward and backward.

Build the module, and check and measure its ops:

    python -m cudarelu build examples/triton_ops.py -o libtriton_ops.so
    python -m cudarelu check libtriton_ops.so
    python -m cudarelu bench --library libtriton_ops.so
"""

import triton
import triton.language as tl

import cudarelu

MOST_COLUMNS = 16384


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
        place = row.to(tl.int64) * c + column
        values = tl.load(x + place, mask=inside, other=0.0).to(eps.dtype)
        grad = tl.load(grad_y + place, mask=inside, other=0.0).to(eps.dtype)
        rrms = 1 / tl.sqrt(tl.sum(values * values) / c + eps)
        normal = values * rrms
        total += grad * normal
        grad *= factor
        mean = tl.sum(grad * normal) / c
        tl.store(grad_x + place, (grad - normal * mean) * rrms, mask=inside)
    tl.store(partial + tl.program_id(0) * c + column, total, mask=inside)


@triton.jit(do_not_specialize=["rows"])
def sum_rows_kernel(x, y, rows, c, BLOCK: tl.constexpr):
    column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), x.dtype.element_ty)
    for row in range(rows):
        total += tl.load(x + row * c + column, mask=column < c, other=0.0)
    tl.store(y + column, total, mask=column < c)


with cudarelu.Library("triton_ops") as library:

    @cudarelu.triton_op(
        "rms_norm(x: T[*, c], weight: T[c]? = 1, *, eps: float = 1e-6 in [0, inf]) -> y: T[*, c]",
        definition="""last = Constant<value_ints = [-1]>()
                      squares = Mul(x, x)
                      mean = ReduceMean<keepdims = 1>(squares, last)
                      eps_f = Constant<value_float: float = @eps>()
                      eps_t = CastLike(eps_f, x)
                      sum = Add(mean, eps_t)
                      root = Sqrt(sum)
                      normal = Div(x, root)
                      y = Mul(normal, weight)""",
        gradient="""x = rms_norm_backward(grad_y, x, weight, eps).grad_x;
                    weight = rms_norm_backward(grad_y, x, weight, eps).grad_weight""",
        dtypes=("float32", "float64", "float16", "bfloat16"),
    )
    def rms_norm(call):
        """x / sqrt(mean(x^2) + eps) * weight, along the last dimension."""
        block = call.next_power_of_2(call.c, least=1024, most=MOST_COLUMNS)
        arguments = {"x": call.x, "weight": call.weight, "y": call.y, "c": call.c, "eps": call.eps}
        options = {"BLOCK": block, "num_warps": min(max(block // 512, 1), 16)}
        return rms_norm_kernel, call.x.numel() // call.c, arguments | options

    @cudarelu.triton_op(
        "rms_norm_backward(grad_y: T[*, c], x: T[*, c], weight: T[c]? = 1, *,"
        " eps: float = 1e-6 in [0, inf]) -> (grad_x: T[*, c], grad_weight: T[c])",
        definition="""last = Constant<value_ints = [-1]>()
                      squares = Mul(x, x)
                      mean_square = ReduceMean<keepdims = 1>(squares, last)
                      eps_f = Constant<value_float: float = @eps>()
                      eps_t = CastLike(eps_f, x)
                      sum = Add(mean_square, eps_t)
                      root = Sqrt(sum)
                      normal = Div(x, root)
                      weighted = Mul(grad_y, weight)
                      along = Mul(weighted, normal)
                      mean = ReduceMean<keepdims = 1>(along, last)
                      radial = Mul(normal, mean)
                      rest = Sub(weighted, radial)
                      grad_x = Div(rest, root)
                      each = Mul(grad_y, normal)
                      shape = Shape(x)
                      rank = Size(shape)
                      zero = Constant<value_int = 0>()
                      one = Constant<value_int = 1>()
                      last_axis = Sub(rank, one)
                      axes = Range(zero, last_axis, one)
                      grad_weight = ReduceSum<keepdims = 0, noop_with_empty_axes = 1>(
                          each, axes)""",
        dtypes=("float32", "float64", "float16", "bfloat16"),
    )
    def rms_norm_backward(call):
        """The gradients of rms_norm."""
        rows = call.x.numel() // call.c
        programs = min(rows, 1024)
        dtype = "float64" if call.x.dtype == "float64" else "float32"
        partial = call.workspace(programs * call.c, dtype)
        block = call.next_power_of_2(call.c, least=1024, most=MOST_COLUMNS)
        shared = {"weight": call.weight, "partial": partial, "eps": call.eps, "rows": rows}
        tensors = {"grad_y": call.grad_y, "x": call.x, "grad_x": call.grad_x, "c": call.c}
        options = {"BLOCK": block, "num_warps": min(max(block // 512, 1), 16)}
        sums = {"x": partial, "y": call.grad_weight, "rows": programs, "c": call.c, "BLOCK": 64}
        return [
            (rms_norm_backward_kernel, programs, shared | tensors | options),
            (sum_rows_kernel, (call.c + 63) // 64, sums),
        ]
