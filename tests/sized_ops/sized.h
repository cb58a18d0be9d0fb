#pragma once
#include "cudarelu/kernel.h"
namespace sized {
struct SiluAndMul {
  static constexpr cudarelu::OpSpec spec{
      .signature = "silu_and_mul(x: T[*, 2*d]) -> y: T[*, d]",
      .summary = "silu of the first half of each row times the second half.",
      .dtypes = cudarelu::floating_types,
      .gradient = "x = silu_and_mul_backward(grad_y, x)",
      .definition = R"(gate, up = Split<axis = -1, num_outputs = 2>(x)
                       one = Sigmoid(gate)
                       silu = Mul(gate, one)
                       y = Mul(silu, up))",
  };
  static cudarelu::Status cpu(const cudarelu::Call& call);
};
struct SiluAndMulBackward {
  static constexpr cudarelu::OpSpec spec{
      .signature = "silu_and_mul_backward(grad_y: T[*, d], x: T[*, 2*d]) -> grad_x: T[*, 2*d]",
      .summary = "The gradient of silu_and_mul.",
      .dtypes = cudarelu::floating_types,
      .definition = R"(gate, up = Split<axis = -1, num_outputs = 2>(x)
                       s = Sigmoid(gate)
                       silu = Mul(gate, s)
                       one_f = Constant<value_float = 1.0>()
                       one = CastLike(one_f, x)
                       rest = Sub(one, s)
                       slope_part = Mul(silu, rest)
                       slope = Add(s, slope_part)
                       by_up = Mul(grad_y, up)
                       grad_gate = Mul(by_up, slope)
                       grad_up = Mul(grad_y, silu)
                       grad_x = Concat<axis = -1>(grad_gate, grad_up))",
  };
  static cudarelu::Status cpu(const cudarelu::Call& call);
};
struct Conv {
  static constexpr cudarelu::OpSpec spec{
      .signature =
          "conv(x: T[n, c, h, w], weight: T[o, c, p, q], *, pad: int = 0 in [0, inf], "
          "stride: int = 1 in [1, inf]) -> y: T[n, o, (h + 2*pad - p)//stride + 1, "
          "(w + 2*pad - q)//stride + 1]",
      .summary = "A convolution.",
      .dtypes = cudarelu::floating_types,
      .definition = R"(pads_a = Constant<value_int: int = @pad>()
                       four = Constant<value_ints = [4]>()
                       pads = Expand(pads_a, four)
                       axes = Constant<value_ints = [2, 3]>()
                       zero_f = Constant<value_float = 0.0>()
                       zero = CastLike(zero_f, x)
                       padded = Pad(x, pads, zero, axes)
                       whole = Conv(padded, weight)
                       starts = Constant<value_ints = [0, 0]>()
                       ends = Constant<value_ints = [1000000000, 1000000000]>()
                       step = Constant<value_int: int = @stride>()
                       two = Constant<value_ints = [2]>()
                       steps = Expand(step, two)
                       y = Slice(whole, starts, ends, axes, steps))",
  };
  static cudarelu::Status cpu(const cudarelu::Call& call);
};
}  // namespace sized
