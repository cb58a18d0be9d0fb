"""RMSNorm, whose CUDA kernels are written in Triton, forward and backward.

Build the module, and check and measure its ops:

    python -m cudarelu build examples/triton_ops/rms_norm.py -o libtriton_ops.so
    python -m cudarelu check libtriton_ops.so
    python -m cudarelu bench --library libtriton_ops.so
"""

from rms_norm_kernels import rms_norm_backward_kernel, rms_norm_kernel, sum_rows_kernel

import cudarelu

MOST_COLUMNS = 16384

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
