// Rotary position embeddings: an op with kernels of its own.
#pragma once

#include <string>

#include "cudarelu/kernel.h"

namespace llm {

using namespace cudarelu;

struct Rotary {
  static constexpr OpSpec spec{
      .signature =
          "rotary(x: T[*, heads, s, d], cos: T[s, h divides d], sin: T[s, h], *, "
          "layout: halves | pairs = halves) -> y: T[*, heads, s, d]",
      .summary =
          "Rotates each pair (a, b) of a vector of d = 2h elements to (a cos - b sin, b cos + a "
          "sin), by the angles of its position in the sequence: elements i and i + h are pair i "
          "(halves, as in Llama), or elements 2i and 2i + 1 (pairs, as in GPT-J).",
      .dtypes = floating_types,
      .gradient = R"(x = rotary(grad_y, cos, cudarelu::scale(sin, -1), layout);
                     cos = rotary_angles_backward(grad_y, x, cos, layout).grad_cos;
                     sin = rotary_angles_backward(grad_y, x, cos, layout).grad_sin)",
      .strided = true,  // the heads of a linear layer's result need no copy
      // Element i is rotated with element `other`, by the angle of its pair `angle`.
      .definition = R"(zero = Constant<value_int = 0>()
                       one = Constant<value_int = 1>()
                       two = Constant<value_int = 2>()
                       label = Constant<value_int: int = @layout>()
                       is_pairs = Equal(label, one)
                       d_shape = Shape<start = -1>(x)
                       h_shape = Shape<start = -1>(cos)
                       d = Squeeze(d_shape)
                       h = Squeeze(h_shape)
                       i = Range(zero, d, one)
                       pair = Div(i, two)
                       even_i = Mul(pair, two)
                       odd = Sub(i, even_i)
                       distance_back = Mul(odd, two)
                       next = Add(i, one)
                       other_of_pair = Sub(next, distance_back)
                       opposite = Add(i, h)
                       other_of_half = Mod(opposite, d)
                       in_half = Mod(i, h)
                       other = Where(is_pairs, other_of_pair, other_of_half)
                       angle = Where(is_pairs, pair, in_half)
                       is_even = Equal(odd, zero)
                       is_low = Less(i, h)
                       is_first = Where(is_pairs, is_even, is_low)
                       cosines = Gather<axis = 1>(cos, angle)
                       sines = Gather<axis = 1>(sin, angle)
                       negative = Neg(sines)
                       signed = Where(is_first, negative, sines)
                       others = Gather<axis = -1>(x, other)
                       own_part = Mul(x, cosines)
                       other_part = Mul(others, signed)
                       y = Add(own_part, other_part))",
  };
  static Status cpu(const Call& call);
  static Status cuda(const Call& call);
};

/// The sizes of x, [leading, positions, 2 * pairs], and of the angles, [positions, pairs].
struct RotarySizes {
  std::int64_t leading;
  std::int64_t positions;
  std::int64_t pairs;

  RotarySizes(const TensorView& x, const TensorView& cos)
      : positions(cos.shape[0]), pairs(cos.shape[1]) {
    const std::int64_t matrix = positions * x.shape.back();
    leading = matrix == 0 ? 0 : x.size() / matrix;
  }
};

/// The steps, in elements, to the next batch, head and position of a tensor [*, heads, s, d].
struct RotaryLayout {
  std::int64_t batch;
  std::int64_t head;
  std::int64_t position;

  /// Of the first tensor of the call's inputs or outputs, whose strides those of Call::strides are.
  RotaryLayout(const TensorView& tensor, const std::int64_t* const* strides) {
    const auto sizes = tensor.shape.last(3);
    position = sizes[2];
    head = sizes[1] * position;
    batch = sizes[0] * head;
    if (strides == nullptr || strides[0] == nullptr) return;
    batch = strides[0][0];
    head = strides[0][1];
    position = strides[0][2];
  }
};

/// The step, in elements, from the cosines or sines of a position to the next; they are an input.
inline std::int64_t rotary_angles_step(const Call& call, std::size_t input) {
  const auto* const strides = call.strides.inputs;
  const bool is_dense = strides == nullptr || strides[input] == nullptr;
  return is_dense ? call.inputs[input].shape[1] : strides[input][0];
}

/// The error of x that has not two elements for each angle.
inline Status check_rotary(const Call& call, const TensorView& x, const TensorView& cos) {
  const std::int64_t d = x.shape.back();
  const std::int64_t h = cos.shape[1];
  if (d == 2 * h) return {};
  return {Status::Code::invalid_argument,
          std::string(call.op) + ": the last dimension of x must be twice that of cos, " +
              std::to_string(2 * h) + ", but is " + std::to_string(d)};
}

}  // namespace llm
