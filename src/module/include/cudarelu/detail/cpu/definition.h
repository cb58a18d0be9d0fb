// Evaluates the definition of an op on the CPU, node by node: what ONNX's operators do with arrays.
// Generated code uses it.
//
// The elements of an array are float, double, std::int64_t or bool. float16 and bfloat16 are read
// as float and rounded once, when an output is written; all integers are read as std::int64_t.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "cudarelu/detail/cpu/arrays.h"
#include "cudarelu/detail/cpu/vectorised.h"
#include "cudarelu/onnx.h"
#include "cudarelu/types.h"

namespace cudarelu::definition {

// Numbers.

/// The type of sums: integers wrap around.
template <class E>
using Total = std::conditional_t<std::is_integral_v<E>, std::uint64_t, double>;

/// Instead of a signed integer, whose overflow is undefined.
template <class E>
using Wrapping = std::conditional_t<std::is_integral_v<E>, std::uint64_t, E>;

template <class E>
E add(E a, E b) {
  return static_cast<E>(Wrapping<E>(a) + Wrapping<E>(b));
}
template <class E>
E sub(E a, E b) {
  return static_cast<E>(Wrapping<E>(a) - Wrapping<E>(b));
}
template <class E>
E mul(E a, E b) {
  return static_cast<E>(Wrapping<E>(a) * Wrapping<E>(b));
}
/// An integer divided by 0 is 0.
template <class E>
E div(E a, E b) {
  if constexpr (std::is_integral_v<E>) {
    if (b == 0) return 0;
    if (b == -1) return sub(E(0), a);
  }
  return a / b;
}
/// The remainder of integers, with the sign of b.
template <class E>
E mod(E a, E b) {
  const E rest = b == 0 || b == -1 ? 0 : a % b;
  return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}

/// As Cast: truncates, and gives the lowest integer for NaN and for numbers that do not fit.
template <class To, class From>
To convert(From x) {
  if constexpr (std::is_same_v<To, bool>) {
    return x != From(0);
  } else if constexpr (std::is_integral_v<To> && !std::is_integral_v<From>) {
    return x >= From(-0x1p63) && x < From(0x1p63) ? static_cast<To>(static_cast<std::int64_t>(x))
                                                  : std::numeric_limits<To>::min();
  } else {
    return static_cast<To>(x);
  }
}

// Arrays that are not made of others.

template <class E>
Array<E> constant(Dims shape, const std::vector<std::type_identity_t<E>>& elements) {
  Array<E> y(std::move(shape));
  std::copy(elements.begin(), elements.end(), y.data.get());
  return y;
}

template <class E>
Array<E> full(Dims shape, E value) {
  Array<E> y(std::move(shape));
  std::fill_n(y.data.get(), y.size(), value);
  return y;
}

/// An array of rank 0.
template <class E>
Array<E> scalar(E value) {
  return full(Dims{}, value);
}

/// The only element.
template <class E>
E item(const Array<E>& x) {
  if (x.size() != 1) fail("expected one element, not the shape " + text(x.shape));
  return *x.begin();
}

/// The elements of a vector, or of a number.
inline Dims integers(const Array<std::int64_t>& x) {
  if (x.rank() > 1) fail("expected a vector, not the shape " + text(x.shape));
  Dims result;
  for (std::int64_t i = 0; i < x.size(); ++i) {
    result.push_back(x.begin()[x.rank() == 0 ? 0 : i * x.strides[0]]);
  }
  return result;
}
inline Array<std::int64_t> vector_of(const Dims& x) {
  return constant<std::int64_t>({static_cast<std::int64_t>(x.size())}, x);
}

template <class E>
Array<E> range(E start, E limit, E delta) {
  if (delta == 0) fail("the step of a range must not be 0");
  const double count = std::ceil((static_cast<double>(limit) - static_cast<double>(start)) /
                                 static_cast<double>(delta));
  Array<E> y({count > 0 ? convert<std::int64_t>(count) : 0});
  for (std::int64_t i = 0; i < y.size(); ++i) y.data[i] = start + static_cast<E>(i) * delta;
  return y;
}

/// The sizes [start, end) of the shape.
inline Array<std::int64_t> shape(const Layout& x, std::int64_t start, std::int64_t end) {
  const Array<std::int64_t> all = vector_of(x.shape);
  return all.view(part_of(all, 0, start, end));
}

// Operators that move elements to other positions.

template <class E>
Array<E> reshape(const Call& call, const Array<E>& x, Dims shape, bool allow_zero) {
  const std::string wanted = text(shape);
  std::int64_t known = 1;
  std::int64_t* inferred = nullptr;
  for (std::size_t i = 0; i < shape.size(); ++i) {
    if (shape[i] == 0 && !allow_zero && i < x.rank()) shape[i] = x.shape[i];
    if (shape[i] == -1 && inferred == nullptr) {
      inferred = &shape[i];
    } else {
      known *= shape[i];
    }
  }
  if (inferred != nullptr && known > 0) *inferred = x.size() / known;
  if (product(shape) != x.size() || std::ranges::any_of(shape, [](auto i) { return i < 0; })) {
    fail("the shape " + text(x.shape) + " cannot become " + wanted);
  }
  const Array<E> y = dense(call, x);
  return y.view({shape, row_major(shape).strides, y.first});
}

template <class E>
Array<E> concat(const Call& call, std::int64_t along, const std::vector<Array<E>>& parts) {
  const std::size_t axis = axis_of(along, parts[0].rank());
  Dims shape = parts[0].shape;
  shape[axis] = 0;
  for (const Array<E>& part : parts) {
    if (part.rank() != shape.size()) fail("parts of different ranks");
    shape[axis] += part.shape[axis];
  }
  const Array<E> y(shape);
  std::int64_t begin = 0;
  for (const Array<E>& part : parts) {
    copy(call, part, y.view(part_of(y, axis, begin, begin + part.shape[axis])));
    begin += part.shape[axis];
  }
  return y;
}

/// Parts of these sizes; without sizes, `count` parts of equal sizes except the last.
template <class E>
std::vector<Array<E>> split(const Array<E>& x, std::int64_t along, Dims sizes, std::int64_t count) {
  const std::size_t axis = axis_of(along, x.rank());
  const std::int64_t size = x.shape[axis];
  if (sizes.empty()) {
    sizes.assign(static_cast<std::size_t>(count), (size + count - 1) / count);
    sizes.back() = size - (count - 1) * sizes[0];
  }
  if (std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0}) != size ||
      std::ssize(sizes) != count || *std::ranges::min_element(sizes) < 0) {
    fail("the shape " + text(x.shape) + " in parts of " + text(sizes));
  }
  std::vector<Array<E>> parts;
  std::int64_t begin = 0;
  for (const std::int64_t part : sizes) {
    parts.push_back(x.view(part_of(x, axis, begin, begin + part)));
    begin += part;
  }
  return parts;
}

template <class E>
Array<E> tile(const Call& call, const Array<E>& x, const Dims& repeats) {
  if (repeats.size() != x.rank())
    fail("the repeats " + text(repeats) + " do not fit the shape " + text(x.shape));
  Layout repeated{{}, {}, x.first};
  Dims shape;
  for (std::size_t i = 0; i < x.rank(); ++i) {
    repeated.shape.insert(repeated.shape.end(), {repeats[i], x.shape[i]});
    repeated.strides.insert(repeated.strides.end(), {0, x.strides[i]});
    shape.push_back(repeats[i] * x.shape[i]);
  }
  return reshape(call, x.view(repeated), shape, true);
}

template <class E>
Array<E> pad(const Call& call, const Array<E>& x, const Dims& pads, E value, const Dims& axes) {
  const std::size_t count = axes.empty() ? x.rank() : axes.size();
  if (pads.size() != 2 * count || std::ranges::any_of(pads, [](auto i) { return i < 0; })) {
    fail("the pads " + text(pads) + " do not fit the shape " + text(x.shape));
  }
  Dims before(x.rank(), 0);
  Dims shape = x.shape;
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t axis = axes.empty() ? i : axis_of(axes[i], x.rank());
    before[axis] = pads[i];
    shape[axis] += pads[i] + pads[i + count];
  }
  const Array<E> y = full(shape, value);
  Layout target = y;
  for (std::size_t i = 0; i < x.rank(); ++i) {
    target = part_of(target, i, before[i], before[i] + x.shape[i]);
  }
  copy(call, x, y.view(target));
  return y;
}

/// y[i] is the element of x at i, but at indices[i] along the axis. `source_layout` is the layout
/// of x in the shape of y, without steps along the axis.
template <class E>
Array<E> pick(const Call& call, const Array<E>& x, std::size_t axis, const Layout& source_layout,
              const Array<std::int64_t>& indices, const Layout& index_layout) {
  const std::int64_t size = x.shape[axis];
  const Array<std::int64_t> all = dense(call, indices);
  for (std::int64_t i = 0; i < all.size(); ++i) {
    if (all.begin()[i] < -size || all.begin()[i] >= size) {
      fail("index " + std::to_string(all.begin()[i]) + " is out of range for " +
           std::to_string(size) + " elements");
    }
  }
  const Array<E> y(source_layout.shape);
  const std::array<Layout, 2> operands{source_layout, index_layout};
  for_each_run(call, y.shape, operands, [&](const Run& run) {
    for (std::int64_t i = 0; i < run.count; ++i) {
      const std::int64_t index = indices.data[run.offsets[1] + i * run.strides[1]];
      const std::int64_t step = (index < 0 ? index + size : index) * x.strides[axis];
      y.data[run.begin + i] = x.data[run.offsets[0] + i * run.strides[0] + step];
    }
  });
  return y;
}

template <class E>
Array<E> gather(const Call& call, const Array<E>& x, const Array<std::int64_t>& indices,
                std::int64_t along) {
  const std::size_t axis = axis_of(along, x.rank());
  Layout source_layout{{}, {}, x.first};
  Layout index_layout{{}, {}, indices.first};
  const auto append = [&](const Layout& from, std::size_t i, std::int64_t step,
                          std::int64_t index) {
    source_layout.shape.push_back(from.shape[i]);
    source_layout.strides.push_back(step);
    index_layout.strides.push_back(index);
  };
  for (std::size_t i = 0; i < x.rank(); ++i) {
    if (i != axis) {
      append(x, i, x.strides[i], 0);
      continue;
    }
    for (std::size_t j = 0; j < indices.rank(); ++j) append(indices, j, 0, indices.strides[j]);
  }
  return pick(call, x, axis, source_layout, indices, index_layout);
}

template <class E>
Array<E> gather_elements(const Call& call, const Array<E>& x, const Array<std::int64_t>& indices,
                         std::int64_t along) {
  const std::size_t axis = axis_of(along, x.rank());
  Layout source_layout{indices.shape, x.strides, x.first};
  bool fits = indices.rank() == x.rank();
  for (std::size_t i = 0; fits && i < x.rank(); ++i) {
    fits = i == axis || indices.shape[i] <= x.shape[i];
  }
  if (!fits)
    fail("indices of the shape " + text(indices.shape) + " do not fit the shape " + text(x.shape));
  source_layout.strides[axis] = 0;
  return pick(call, x, axis, source_layout, indices, indices);
}

// Operators on rows.

/// Calls body(row, i) for n rows of a dense array, on the host's threads.
template <class E, class Body>
void for_each_row(const Call& call, const Array<E>& x, std::int64_t n, std::int64_t columns,
                  const Body& body) {
  const std::int64_t rows_of_thread =
      std::max<std::int64_t>(1, grain / std::max<std::int64_t>(columns, 1));
  call.execution.parallel_for(n, rows_of_thread, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) body(x.begin() + i * columns, i);
  });
}

enum class Reduction { sum, mean, max, min, prod, sum_square, l2 };

/// Over no axes: over all, unless `keeps_all`. Sums of floating-point numbers are float64.
template <Reduction kind, class E>
Array<E> reduce(const Call& call, const Array<E>& x, const Dims& axes, bool keeps_all,
                bool keeps_dims) {
  constexpr bool is_max = kind == Reduction::max;
  constexpr bool is_extreme = is_max || kind == Reduction::min;
  using A = std::conditional_t<is_extreme, E, Total<E>>;
  const std::vector<bool> reduced = marked(axes, x.rank());
  const bool all = axes.empty() && !keeps_all;
  Dims order;
  Dims shape;
  Dims last;
  for (std::size_t i = 0; i < x.rank(); ++i) {
    const bool is_kept = !all && !reduced[i];
    (is_kept ? order : last).push_back(static_cast<std::int64_t>(i));
    if (is_kept || keeps_dims) shape.push_back(is_kept ? x.shape[i] : 1);
  }
  order.insert(order.end(), last.begin(), last.end());
  const Array<E> y(shape);
  std::int64_t n = 1;
  for (const std::int64_t i : last) n *= x.shape[static_cast<std::size_t>(i)];
  const auto combined = [](A a, A b) -> A {
    if constexpr (kind == Reduction::max) return onnx::max(a, b);
    if constexpr (kind == Reduction::min) return onnx::min(a, b);
    return kind == Reduction::prod ? a * b : a + b;
  };
  const auto term = [](E value) -> A {
    const A wide = static_cast<A>(value);
    return kind == Reduction::sum_square || kind == Reduction::l2 ? wide * wide : wide;
  };
  A initial = kind == Reduction::prod ? 1 : 0;
  if constexpr (is_extreme) {
    using Limits = std::numeric_limits<E>;
    initial = is_max ? Limits::lowest() : Limits::max();
    if constexpr (Limits::has_infinity) initial = is_max ? -Limits::infinity() : Limits::infinity();
  }
  constexpr std::int64_t lanes = 8;  // independent of one another
  const Array<E> rows = dense(call, x.view(transposed(x, order)));
  for_each_row(call, rows, y.size(), n, [&](const E* row, std::int64_t i) {
    std::array<A, lanes> totals;
    totals.fill(initial);
    std::int64_t j = 0;
    for (; j + lanes <= n; j += lanes) {
      for (std::int64_t k = 0; k < lanes; ++k) totals[k] = combined(totals[k], term(row[j + k]));
    }
    for (; j < n; ++j) totals[0] = combined(totals[0], term(row[j]));
    for (std::int64_t k = 1; k < lanes; ++k) totals[0] = combined(totals[0], totals[k]);
    E result = static_cast<E>(totals[0]);
    if constexpr (kind == Reduction::mean) {
      result = std::is_integral_v<E> ? div(result, static_cast<E>(n))
                                     : static_cast<E>(totals[0] / static_cast<A>(n));
    }
    if constexpr (kind == Reduction::l2) {
      result = static_cast<E>(std::sqrt(static_cast<double>(totals[0])));
    }
    y.data[i] = result;
  });
  return y;
}

/// The products of matrices, for all shapes that broadcast before the last two axes. Sums of
/// floating-point numbers are float64.
template <class E>
Array<E> matmul(const Call& call, const Array<E>& left, const Array<E>& right) {
  if (left.rank() == 0 || right.rank() == 0)
    fail("the operands of a matrix product must have at least one dimension");
  Layout rows = left;
  Layout others = right;
  if (left.rank() == 1) rows = unsqueezed(rows, {0});
  if (right.rank() == 1) others = unsqueezed(others, {1});
  const Array<E> columns = dense(call, right.view(others));
  const std::int64_t m = rows.shape.end()[-2];
  const std::int64_t k = rows.shape.end()[-1];
  const std::int64_t n = columns.shape.end()[-1];
  if (columns.shape.end()[-2] != k) {
    fail("cannot multiply the shapes " + text(left.shape) + " and " + text(right.shape));
  }
  Dims shape = broadcast_shape({rows.shape.begin(), rows.shape.end() - 2},
                               {columns.shape.begin(), columns.shape.end() - 2});
  const Dims batch = shape;
  shape.insert(shape.end(), {m, n});
  const auto of_batch = [&](const Layout& x) {
    Dims own = batch;
    own.insert(own.end(), x.shape.end() - 2, x.shape.end());
    return broadcast(x, own);
  };
  // A size of 1 has no stride there, and needs none.
  const Layout a = of_batch(rows);
  const Layout b = of_batch(columns);
  const Array<E> y(shape);
  const std::int64_t work = std::max<std::int64_t>(n * k, 1);
  const auto compute = [&](std::int64_t row) {
    std::int64_t from_a = a.first + row % m * a.strides.end()[-2];
    std::int64_t from_b = b.first;
    std::int64_t rest = row / m;
    for (std::size_t i = batch.size(); i-- > 0; rest /= batch[i]) {
      from_a += rest % batch[i] * a.strides[i];
      from_b += rest % batch[i] * b.strides[i];
    }
    std::array<Total<E>, block> totals;
    for (std::int64_t first = 0; first < n; first += block) {
      const std::int64_t count = std::min(block, n - first);
      totals.fill(0);
      for (std::int64_t i = 0; i < k; ++i) {
        const auto factor = static_cast<Total<E>>(left.data[from_a + i * a.strides.end()[-1]]);
        const E* const other = columns.data.get() + from_b + i * n + first;
        cpu::for_each_index(
            count, [&](std::int64_t j) { totals[j] += factor * static_cast<Total<E>>(other[j]); });
      }
      for (std::int64_t j = 0; j < count; ++j) {
        y.data[row * n + first + j] = static_cast<E>(totals[j]);
      }
    }
  };
  call.execution.parallel_for(product(batch) * m, std::max<std::int64_t>(1, grain / work),
                              [&](std::int64_t begin, std::int64_t end) {
                                cpu::vectorised<cpu::Width::full>([&] {
                                  for (auto row = begin; row < end; ++row) compute(row);
                                });
                              });
  if (left.rank() == 1) shape.erase(shape.end() - 2);
  if (right.rank() == 1) shape.pop_back();
  return y.view(row_major(shape));
}

template <class E>
Array<E> cumsum(const Call& call, const Array<E>& x, std::int64_t along, bool exclusive,
                bool reverse) {
  const std::size_t axis = axis_of(along, x.rank());
  const std::int64_t n = x.shape[axis];
  const auto turned = [&](const Layout& y, std::size_t i) {
    return reverse ? part_of(y, i, -1, std::numeric_limits<std::int64_t>::min(), -1) : y;
  };
  const std::size_t last = x.rank() - 1;
  const Array<E> rows = dense(call, x.view(moved(turned(x, axis), axis, last)));
  const Array<E> y(rows.shape);
  for_each_row(call, rows, n == 0 ? 0 : x.size() / n, n, [&](const E* row, std::int64_t i) {
    Total<E> total = 0;
    for (std::int64_t j = 0; j < n; ++j) {
      const Total<E> next = total + static_cast<Total<E>>(row[j]);
      y.data[i * n + j] = static_cast<E>(exclusive ? total : next);
      total = next;
    }
  });
  return y.view(turned(moved(y, last, axis), axis));
}

/// Whether a comes before b, NaN before all numbers.
template <bool largest, class E>
bool precedes(E a, E b) {
  if (a != a || b != b) return a != a && b == b;
  return largest ? a > b : a < b;
}

/// The k largest or smallest elements in order, and their positions; of equal ones, the first.
template <bool largest, class E>
std::pair<Array<E>, Array<std::int64_t>> top_k(const Call& call, const Array<E>& x, std::int64_t k,
                                               std::int64_t along) {
  const std::size_t axis = axis_of(along, x.rank());
  const std::size_t last = x.rank() - 1;
  const std::int64_t n = x.shape[axis];
  if (k < 0 || k > n)
    fail("cannot select " + std::to_string(k) + " of " + std::to_string(n) + " elements");
  const Array<E> rows = dense(call, x.view(moved(x, axis, last)));
  const Array<std::int64_t> order(rows.shape);
  for_each_row(call, order, n == 0 ? 0 : x.size() / n, n, [&](std::int64_t* row, std::int64_t i) {
    const E* const values = rows.begin() + i * n;
    std::iota(row, row + n, 0);
    std::partial_sort(row, row + k, row + n, [&](std::int64_t a, std::int64_t b) {
      const bool is_before = precedes<largest>(values[a], values[b]);
      return is_before || (!precedes<largest>(values[b], values[a]) && a < b);
    });
  });
  const Array<std::int64_t> positions = order.view(moved(part_of(order, last, 0, k), last, axis));
  return {gather_elements(call, x, positions, along), positions};
}

// A call.

template <class E>
inline constexpr DTypeSet stored_as{};
template <>
inline constexpr DTypeSet stored_as<float> =
    DTypeSet::of({DType::float32, DType::float16, DType::bfloat16});
template <>
inline constexpr DTypeSet stored_as<double> = DTypeSet::of({DType::float64});
template <>
inline constexpr DTypeSet stored_as<std::int64_t> =
    DTypeSet::of({DType::int8, DType::uint8, DType::int32, DType::int64});

inline Dims dims_of(const TensorView& tensor) { return {tensor.shape.begin(), tensor.shape.end()}; }

inline void check(const Status& status) {
  if (!status.ok()) fail(status.message());
}

/// An input; its own memory where the type is the same, unless the op may overwrite it.
template <class E>
Array<E> read(const Call& call, std::size_t input, bool is_overwritten = false) {
  const TensorView& tensor = call.inputs[input];
  Array<E> x;
  x.present = tensor.present;
  if (!tensor.present) return x;
  check(visit_dtype<stored_as<E>>(tensor.dtype, [&]<class S>(TypeTag<S>) {
    auto* const from = static_cast<S*>(tensor.data);
    if constexpr (std::is_same_v<S, E>) {
      if (!is_overwritten) {
        x = Array<E>(row_major(dims_of(tensor)), {std::shared_ptr<void>(), from});
        return Status();
      }
    }
    x = Array<E>(dims_of(tensor));
    call.execution.parallel_for(x.size(), grain, [&](std::int64_t begin, std::int64_t end) {
      for (auto i = begin; i < end; ++i) x.data[i] = static_cast<E>(load(from[i]));
    });
    return Status();
  }));
  return x;
}

inline void check_output(const TensorView& tensor, std::size_t output, const Dims& shape) {
  if (shape != dims_of(tensor)) {
    fail("the definition gives output " + std::to_string(output) + " the shape " + text(shape) +
         ", the signature " + text(dims_of(tensor)));
  }
}

/// Rounds the elements of a run and writes them to an output.
template <class E>
void store_run(const TensorView& tensor, const Run& run, const E* from) {
  static_cast<void>(visit_dtype<stored_as<E>>(tensor.dtype, [&]<class S>(TypeTag<S>) {
    S* const to = static_cast<S*>(tensor.data) + run.begin;
    for (std::int64_t i = 0; i < run.count; ++i) to[i] = store<S>(static_cast<Compute<S>>(from[i]));
    return Status();
  }));
}

/// Writes f(x...) to an output, which must have the shape of the result.
template <class E, class F, class... X>
void write(const Call& call, std::size_t output, const F& f, const Array<X>&... x) {
  const TensorView& tensor = call.outputs[output];
  check_output(tensor, output, broadcast_shape_of(x...));
  const bool is_direct = tensor.dtype == dtype_of<E>;
  const auto write_run = [&](const Run& run, const auto& compute) {
    Block<E> results;
    compute(is_direct ? static_cast<E*>(tensor.data) + run.begin : results.elements);
    if (!is_direct) store_run(tensor, run, results.elements);
  };
  for_each_result<E>(call, write_run, f, x...);
}

/// An input that the definition cannot do without.
template <class E>
const Array<E>& required(const Array<E>& x, const char* name) {
  if (!x.present) fail(std::string("the definition needs the input ") + name + ", which is absent");
  return x;
}

/// Instead of an absent operand of an operator.
template <class E>
Array<E> value_or(const Array<E>& x, E value) {
  return x.present ? x : scalar(value);
}

/// Calls f(TypeTag<T>) with the type of arithmetic on elements of `dtype`, one of `dtypes`.
template <DTypeSet dtypes, class F>
Status evaluate(const Call& call, DType dtype, const F& f) {
  try {
    const auto covers = [&]<class T>(TypeTag<T> tag) {
      if constexpr ((dtypes.bits & stored_as<T>.bits) != 0) {
        if (stored_as<T>.contains(dtype)) return f(tag), true;
      }
      return false;
    };
    if (covers(TypeTag<float>{}) || covers(TypeTag<double>{}) || covers(TypeTag<std::int64_t>{})) {
      return {};
    }
    return {Status::Code::unsupported_dtype, std::string(call.op) + ": no kernel for this dtype"};
  } catch (const std::invalid_argument& error) {
    return {Status::Code::invalid_argument, std::string(call.op) + ": " + error.what()};
  }
}

}  // namespace cudarelu::definition
