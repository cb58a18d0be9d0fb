// What the file of an elementwise op includes. Such an op is a functor: its operator() takes the
// inputs and then the attributes, all in the type that the elements are computed with.
//
// An input has the shape of the output, or is its last dimension, [c] for [*, c].
#pragma once

#include <cmath>

#include "cudarelu/call.h"
#include "types.h"

namespace cudarelu {

template <class F>
inline constexpr Signature signature_of = parse_signature(F::spec.signature);

/// The kernels of the elementwise op F: pointwise/cpu.h and pointwise/cuda.cuh define them.
template <class F>
Status pointwise_cpu(const Call& call);
template <class F>
Status pointwise_cuda(const Call& call);

/// What a functor may say of itself, as `static constexpr Work work`: that it only moves elements,
/// or that it computes for longer than reading and writing take. The engine for the CPU reads it.
enum class Work { move, little, much };

namespace pointwise {

template <class F>
inline constexpr Work work_of = [] {
  if constexpr (requires { F::work; }) {
    return F::work;
  } else {
    return Work::little;
  }
}();

template <class F>
constexpr bool has_real_attributes() {
  for (const AttributeSpec& attribute : signature_of<F>.attributes) {
    if (attribute.integer) return false;
  }
  return true;
}

template <class F>
inline constexpr int input_count = static_cast<int>(signature_of<F>.inputs.size());
template <class F>
inline constexpr int attribute_count = static_cast<int>(signature_of<F>.attributes.size());

/// Bit i: input i is the last dimension of the output, repeated over the others. A number, since
/// device code cannot read the signature, which is an object of the host's.
template <class F>
inline constexpr unsigned row_inputs = [] {
  unsigned bits = 0;
  for (int i = 0; i < input_count<F>; ++i) {
    const bool leading = signature_of<F>.inputs[static_cast<std::size_t>(i)].leading;
    if (signature_of<F>.outputs[0].leading && !leading) bits |= 1u << i;
  }
  return bits;
}();

template <class F>
constexpr bool is_row(int i) {
  return (row_inputs<F> >> i & 1u) != 0;
}

/// The sizes of a call: the elements of the output, and of its last dimension where an input is
/// that (the whole otherwise).
struct Extent {
  std::int64_t size;
  std::int64_t columns;
};

template <class F>
Extent extent_of(const Call& call) {
  static_assert(has_real_attributes<F>(), "the attributes of an elementwise op are float");
  const TensorView& output = call.outputs[0];
  const std::int64_t size = output.size();
  return {size, row_inputs<F> != 0 ? output.shape.back() : size};
}

/// f(x[0], x[1], ..., a[0], a[1], ...).
template <class F, class C, std::size_t... I, std::size_t... A>
CUDARELU_FN C apply(const C* x, const C* a, std::index_sequence<I...>, std::index_sequence<A...>) {
  return F{}(x[I]..., a[A]...);
}
template <class F, class C>
CUDARELU_FN C apply(const C* x, const C* a) {
  return apply<F>(x, a, std::make_index_sequence<input_count<F>>{},
                  std::make_index_sequence<attribute_count<F>>{});
}

}  // namespace pointwise
}  // namespace cudarelu
