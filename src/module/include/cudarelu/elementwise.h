// For elementwise ops. Such an op is a functor: its operator() takes the inputs and then the
// attributes, all in the compute type of the elements (float for float16). An enumeration is passed
// as the position of its label: 1 for approximate = tanh in `approximate: none | tanh`.
//
// A functor that calls math::sin or cos may have a last parameter, `Angles&& angles = {}` of a
// template parameter `class Angles = math::AnyAngles`, that it passes to them: they are faster
// then.
//
// An input has one of three shapes. For the output [*, c, h, w], for example:
// - The shape of the output, [*, c, h, w].
// - A row, which has only the last dimensions of the output, [h, w], and is repeated. All rows of
// an
//   op have the same number of dimensions.
// - A row whose last dimensions are 1, [c, 1, 1]: each of its elements is repeated, too. All such
//   rows of an op have the same number of ones.
//
// For results of 16 bits, CUDA has faster arithmetic that is precise enough. A functor may name the
// type of it as `ForHalves`, for example onnx::Approximate, or may have a function that takes the
// inputs, `static __device__ float for_halves(float, ...)`.
//
// A functor of one input may have `static constexpr const math::PiecewisePolynomial& piecewise`
// (detail/piecewise.h), which the CPU uses instead of operator() for arithmetic in float32.
#pragma once

#include <cmath>
#include <type_traits>
#include <utility>

#include "cudarelu/call.h"
#include "cudarelu/detail/signature.h"
#include "cudarelu/op_spec.h"
#include "cudarelu/transcendental.h"
#include "cudarelu/types.h"

namespace cudarelu {

template <class F>
inline constexpr Signature signature_of = parse_signature(F::spec.signature);

/// The kernels of the elementwise op F: cpu/elementwise.h and cuda/elementwise.cuh define them.
template <class F>
Status elementwise_cpu(const Call& call);
template <class F>
Status elementwise_cuda(const Call& call);

/// A functor's `static constexpr ArithmeticIntensity intensity`, for the CPU engine: it only moves
/// elements, or its arithmetic takes longer than reading and writing.
enum class ArithmeticIntensity { none, low, high };

namespace elementwise {

template <class F>
inline constexpr ArithmeticIntensity intensity_of = [] {
  if constexpr (requires { F::intensity; }) {
    return F::intensity;
  } else {
    return ArithmeticIntensity::low;
  }
}();

template <class F>
constexpr bool takes_attributes() {
  for (const AttributeSpec& attribute : signature_of<F>.attributes) {
    if (attribute.type == AttributeType::integer || attribute.type == AttributeType::boolean) {
      return false;
    }
  }
  return true;
}

template <class F>
inline constexpr int input_count = static_cast<int>(signature_of<F>.inputs.size());
template <class F>
inline constexpr int attribute_count = static_cast<int>(signature_of<F>.attributes.size());

/// Bit i: input i has only the last dimension of the output, and is repeated over the others. A
/// number, since device code cannot read the signature, an object in host memory.
template <class F>
inline constexpr unsigned row_inputs = [] {
  unsigned bits = 0;
  for (int i = 0; i < input_count<F>; ++i) {
    const bool leading = signature_of<F>.inputs[static_cast<std::size_t>(i)].leading();
    if (signature_of<F>.outputs[0].leading() && !leading) bits |= 1u << i;
  }
  return bits;
}();

template <class F>
constexpr bool is_row(int i) {
  return (row_inputs<F> >> i & 1u) != 0;
}

/// Bit i: input i is a row whose elements are repeated.
template <class F>
inline constexpr unsigned broadcast_inputs = [] {
  unsigned bits = 0;
  for (int i = 0; i < input_count<F>; ++i) {
    const Parameter& input = signature_of<F>.inputs[static_cast<std::size_t>(i)];
    if (is_row<F>(i) && Signature::last_ones(input) > 0) bits |= 1u << i;
  }
  return bits;
}();

template <class F>
constexpr bool is_broadcast(int i) {
  return (broadcast_inputs<F> >> i & 1u) != 0;
}

/// The sizes of a call.
struct Extent {
  std::int64_t size;          // elements of the output
  std::int64_t columns;       // elements of a row; `size` if no input is a row
  std::int64_t inner_repeat;  // how often each element of a row with dimensions of 1 is repeated

  /// The element of input i for element `at` of the output.
  template <class F>
  std::int64_t element_of(int i, std::int64_t at) const {
    if (is_broadcast<F>(i)) return at % columns / inner_repeat;
    return is_row<F>(i) ? at % columns : at;
  }
};

/// count(input) of the inputs with a bit set; 0 without such inputs, and -1 if it differs.
template <class F>
constexpr int common_count(unsigned bits, std::size_t (*count)(const Parameter&)) {
  int common = 0;
  for (int i = 0; i < input_count<F>; ++i) {
    if ((bits >> i & 1u) == 0) continue;
    const auto own = static_cast<int>(count(signature_of<F>.inputs[static_cast<std::size_t>(i)]));
    if (common != 0 && common != own) return -1;
    common = own;
  }
  return common;
}

/// The number of dimensions of the inputs that are rows, and of their last dimensions of 1.
template <class F>
inline constexpr int row_rank =
    common_count<F>(row_inputs<F>, [](const Parameter& input) { return input.dims.size(); });
template <class F>
inline constexpr int broadcast_rank = common_count<F>(broadcast_inputs<F>, Signature::last_ones);

template <class F>
Extent extent_of(const Call& call) {
  static_assert(takes_attributes<F>(), "an elementwise op has no integers for attributes");
  static_assert(row_rank<F> >= 0, "inputs that are rows have the same number of dimensions");
  static_assert(broadcast_rank<F> >= 0, "rows with dimensions of 1 have the same number of them");
  const TensorView& output = call.outputs[0];
  const std::int64_t size = output.size();
  if constexpr (row_rank<F> == 0) return {size, size, 1};
  const auto product_of_last = [&](int count) {
    std::int64_t product = 1;
    for (const std::int64_t each : output.shape.last(count)) product *= each;
    return product;
  };
  return {size, product_of_last(row_rank<F>), product_of_last(broadcast_rank<F>)};
}

/// Reads the attributes that are floating-point numbers.
template <class F, class C>
void read_attributes(const Call& call, C* attributes) {
  for (std::size_t i = 0; i < attribute_count<F>; ++i) {
    if (signature_of<F>.attributes[i].type == AttributeType::real) {
      attributes[i] = static_cast<C>(call.real(i));
    }
  }
}

/// The number of combinations of labels of all enumerations. Each is a kernel of its own, so that a
/// loop has no branches on attributes. Example: `none | tanh` has choices 0 and 1.
template <class F>
inline constexpr int choice_count = [] {
  int count = 1;
  for (const AttributeSpec& attribute : signature_of<F>.attributes) {
    if (attribute.type != AttributeType::label) continue;
    count *= static_cast<int>(attribute.labels.size());
  }
  return count;
}();

/// The label of attribute `index` in a choice, -1 for a number. As row_inputs, it is a number.
template <class F, int choice, std::size_t index>
inline constexpr int label = [] {
  int rest = choice;
  for (std::size_t i = 0; i < index; ++i) {
    const AttributeSpec& before = signature_of<F>.attributes[i];
    if (before.type != AttributeType::label) continue;
    rest /= static_cast<int>(before.labels.size());
  }
  const AttributeSpec& attribute = signature_of<F>.attributes[index];
  // In one expression: nvcc would warn of % 0 after an early return.
  return attribute.type == AttributeType::label ? rest % static_cast<int>(attribute.labels.size())
                                                : -1;
}();

/// Calls f(std::integral_constant<int, choice>) for the choice of a call.
template <class F, class Function>
Status visit_choice(const Call& call, const Function& f) {
  int choice = 0;
  for (std::size_t i = attribute_count<F>; i-- > 0;) {
    const AttributeSpec& attribute = signature_of<F>.attributes[i];
    if (attribute.type != AttributeType::label) continue;
    choice = choice * static_cast<int>(attribute.labels.size()) + static_cast<int>(call.integer(i));
  }
  Status status;
  [&]<int... each>(std::integer_sequence<int, each...>) {
    (void)((choice == each &&
            (static_cast<void>(status = f(std::integral_constant<int, each>{})), true)) ||
           ...);
  }(std::make_integer_sequence<int, choice_count<F>>{});
  return status;
}

/// f(x[0], x[1], ..., a[0], a[1], ..., angles...), in arithmetic of type T.
template <class F, int choice, class T, class C, std::size_t... I, std::size_t... A,
          class... Angles>
CUDARELU_FN C apply(const C* x, [[maybe_unused]] const C* a, std::index_sequence<I...>,
                    std::index_sequence<A...>, Angles&... angles) {
  return C(
      F{}(T(x[I])..., (label<F, choice, A> < 0 ? T(a[A]) : T(label<F, choice, A>))..., angles...));
}
template <class F, int choice, class T, class C, class... Angles>
CUDARELU_FN C apply(const C* x, const C* a, Angles&... angles) {
  return apply<F, choice, T>(x, a, std::make_index_sequence<input_count<F>>{},
                             std::make_index_sequence<attribute_count<F>>{}, angles...);
}

/// Whether F takes angles, and they matter to arithmetic of type C.
template <class F, class C>
inline constexpr bool takes_angles = []<std::size_t... each>(std::index_sequence<each...>) {
  return std::is_same_v<C, float> &&
         std::is_invocable_v<F, decltype(static_cast<void>(each), C())..., math::SmallAngles&>;
}(std::make_index_sequence<input_count<F> + attribute_count<F>>{});

}  // namespace elementwise
}  // namespace cudarelu
