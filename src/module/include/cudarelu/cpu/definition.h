// Evaluates the definition of an op on the CPU, node by node: arrays, and what ONNX's operators do
// with them. Generated code uses it.
//
// The elements of an array are float, double, std::int64_t or bool. float16 and bfloat16 are read
// as float and rounded once, when an output is written; all integers are read as std::int64_t.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "cudarelu/call.h"
#include "cudarelu/cpu/vectorised.h"
#include "cudarelu/onnx.h"
#include "cudarelu/types.h"

namespace cudarelu::definition {

using Dims = std::vector<std::int64_t>;  // sizes, strides, axes, or other integers

[[noreturn]] inline void fail(const std::string& message) { throw std::invalid_argument(message); }

inline std::int64_t product(const Dims& dims) {
  return std::accumulate(dims.begin(), dims.end(), std::int64_t{1}, std::multiplies<>());
}

/// "[2, 3]".
inline std::string text(const Dims& dims) {
  std::string result;
  for (const std::int64_t dim : dims) result += (result.empty() ? "" : ", ") + std::to_string(dim);
  return "[" + result + "]";
}

/// Where the elements of an array lie.
struct Layout {
  Dims shape;
  Dims strides;
  std::int64_t first = 0;

  std::size_t rank() const { return shape.size(); }
  std::int64_t size() const { return product(shape); }
};

/// That of a new array.
inline Layout row_major(Dims shape) {
  Layout result{std::move(shape), {}};
  result.strides.assign(result.rank(), 1);
  for (std::size_t i = result.rank(); i-- > 1;) {
    result.strides[i - 1] = result.strides[i] * result.shape[i];
  }
  return result;
}

/// An array, whose elements several views share. Only the function that makes it writes them.
template <class E>
struct Array : Layout {
  std::shared_ptr<E[]> data;
  bool present = true;  // false: an input that is absent

  Array() = default;
  explicit Array(Dims of_shape)
      : Layout(row_major(std::move(of_shape))), data(new E[static_cast<std::size_t>(size())]) {}
  Array(Layout layout, std::shared_ptr<E[]> of_data)
      : Layout(std::move(layout)), data(std::move(of_data)) {}

  E* begin() const { return data.get() + first; }
  Array view(Layout layout) const { return {std::move(layout), data}; }
};

// Operators that only move elements, as layouts of the same elements.

inline std::size_t axis_of(std::int64_t axis, std::size_t rank) {
  const auto signed_rank = static_cast<std::int64_t>(rank);
  if (axis < -signed_rank || axis >= signed_rank) {
    fail("there is no axis " + std::to_string(axis) + " among " + std::to_string(rank));
  }
  return static_cast<std::size_t>(axis < 0 ? axis + signed_rank : axis);
}

/// Axis i of the result is axis order[i]; an empty order reverses them.
inline Layout transposed(const Layout& x, const Dims& order) {
  Layout result{{}, {}, x.first};
  if (!order.empty() && order.size() != x.rank()) {
    fail("the permutation " + text(order) + " of the shape " + text(x.shape));
  }
  for (std::size_t i = 0; i < x.rank(); ++i) {
    const std::size_t from = order.empty() ? x.rank() - 1 - i : axis_of(order[i], x.rank());
    result.shape.push_back(x.shape[from]);
    result.strides.push_back(x.strides[from]);
  }
  return result;
}

/// The axis moved to a new place.
inline Layout moved(const Layout& x, std::size_t from, std::size_t to) {
  Dims order(x.rank());
  std::iota(order.begin(), order.end(), 0);
  order.erase(order.begin() + static_cast<std::ptrdiff_t>(from));
  order.insert(order.begin() + static_cast<std::ptrdiff_t>(to), static_cast<std::int64_t>(from));
  return transposed(x, order);
}

/// Whether each axis is in `axes`, which may be negative.
inline std::vector<bool> marked(const Dims& axes, std::size_t rank) {
  std::vector<bool> result(rank);
  for (const std::int64_t axis : axes) {
    if (result[axis_of(axis, rank)]) fail("the axes " + text(axes) + " repeat one");
    result[axis_of(axis, rank)] = true;
  }
  return result;
}

inline Layout unsqueezed(const Layout& x, const Dims& axes) {
  Layout result{{}, {}, x.first};
  std::size_t next = 0;
  for (const bool is_new : marked(axes, x.rank() + axes.size())) {
    result.shape.push_back(is_new ? 1 : x.shape[next]);
    result.strides.push_back(is_new ? 0 : x.strides[next]);
    if (!is_new) ++next;
  }
  return result;
}

/// Without the axes, or without all of size 1.
inline Layout squeezed(const Layout& x, const Dims& axes) {
  Layout result{{}, {}, x.first};
  const std::vector<bool> removed = marked(axes, x.rank());
  for (std::size_t i = 0; i < x.rank(); ++i) {
    if (removed[i] && x.shape[i] != 1) {
      fail("the axes " + text(axes) + " of the shape " + text(x.shape) + " are not all of size 1");
    }
    if (axes.empty() ? x.shape[i] == 1 : removed[i]) continue;
    result.shape.push_back(x.shape[i]);
    result.strides.push_back(x.strides[i]);
  }
  return result;
}

/// The shape to which both broadcast.
inline Dims broadcast_shape(const Dims& a, const Dims& b) {
  Dims result = a.size() < b.size() ? b : a;
  const Dims& shorter = a.size() < b.size() ? a : b;
  for (std::size_t i = 1; i <= shorter.size(); ++i) {
    const std::int64_t dim = shorter[shorter.size() - i];
    std::int64_t& other = result[result.size() - i];
    if (other == 1) other = dim;
    if (dim != 1 && dim != other) {
      fail("the shapes " + text(a) + " and " + text(b) + " do not broadcast");
    }
  }
  return result;
}

/// Repeated along axes of size 1, and along new ones in front. For a shape that x broadcasts to.
inline Layout broadcast(const Layout& x, const Dims& shape) {
  Layout result{shape, Dims(shape.size(), 0), x.first};
  const std::size_t lead = shape.size() - x.rank();
  for (std::size_t i = 0; i < x.rank(); ++i) {
    if (x.shape[i] != 1) result.strides[lead + i] = x.strides[i];
  }
  return result;
}

/// x[start : end : step] along one axis, with the bounds of ONNX.
inline Layout sliced(Layout x, std::size_t axis, std::int64_t start, std::int64_t end,
                     std::int64_t step = 1) {
  if (step == 0) fail("a slice with step 0");
  const std::int64_t size = x.shape[axis];
  const std::int64_t low = step > 0 ? 0 : -1;
  start = std::clamp<std::int64_t>(start < 0 ? start + size : start, 0, size + low);
  end = std::clamp(end < 0 ? end + size : end, low, size + low);
  step = std::clamp(step, -size - 1, size + 1);
  const std::int64_t distance = step > 0 ? end - start : start - end;
  x.shape[axis] = distance <= 0 || size == 0 ? 0 : (distance - 1) / std::abs(step) + 1;
  x.first += start * x.strides[axis];
  x.strides[axis] *= step;
  return x;
}
inline Layout sliced(Layout x, const Dims& starts, const Dims& ends, const Dims& axes,
                     const Dims& steps) {
  for (std::size_t i = 0; i < starts.size(); ++i) {
    const auto axis = axes.empty() ? static_cast<std::int64_t>(i) : axes.at(i);
    const std::int64_t step = steps.empty() ? 1 : steps.at(i);
    x = sliced(x, axis_of(axis, x.rank()), starts[i], ends.at(i), step);
  }
  return x;
}

// Loops.

inline constexpr std::int64_t grain = 16384;  // elements for a thread
inline constexpr std::int64_t block = 512;    // elements of a run: some blocks fit the L1 cache
inline constexpr std::size_t max_operands = 8;

using Offsets = std::array<std::int64_t, max_operands>;

/// Elements that lie in a row in all operands.
struct Run {
  std::int64_t begin;  // counted in the order of the shape
  std::int64_t count;
  Offsets offsets;  // of the first element, in each operand
  Offsets strides;
};

/// Calls body(run) for runs that have all elements of a shape, on the host's threads.
inline void for_each_run(const Call& call, const Dims& shape, std::span<const Layout> operands,
                         FunctionRef<void(const Run&)> body) {
  struct Dimension {
    std::int64_t size;
    Offsets strides;
  };
  std::vector<Dimension> dims;  // as few as possible
  for (std::size_t i = 0; i < shape.size(); ++i) {
    if (shape[i] == 1) continue;
    Dimension next{shape[i], {}};
    bool merges = !dims.empty();
    for (std::size_t k = 0; k < operands.size(); ++k) {
      next.strides[k] = operands[k].strides[i];
      merges = merges && dims.back().strides[k] == next.strides[k] * shape[i];
    }
    if (merges) {
      next.size *= dims.back().size;
      dims.back() = next;
    } else {
      dims.push_back(next);
    }
  }
  if (dims.empty()) dims.push_back({1, {}});
  call.execution.parallel_for(product(shape), grain, [&](std::int64_t begin, std::int64_t end) {
    while (begin < end) {
      const std::int64_t row_end = dims.back().size - begin % dims.back().size;
      Run run{begin, std::min({end - begin, row_end, block}), {}, dims.back().strides};
      for (std::size_t k = 0; k < operands.size(); ++k) run.offsets[k] = operands[k].first;
      std::int64_t rest = begin;
      for (std::size_t i = dims.size(); i-- > 0; rest /= dims[i].size) {
        const std::int64_t index = rest % dims[i].size;
        for (std::size_t k = 0; k < operands.size(); ++k) {
          run.offsets[k] += index * dims[i].strides[k];
        }
      }
      body(run);
      begin += run.count;
    }
  });
}

/// The elements of a run one after another: loops over them are vectorised.
template <class E>
struct Block {
  Block() {}  // NOLINT: no initial values
  const E* read(const E* from, std::int64_t stride, std::int64_t count) {
    if (stride == 1) return from;
    for (std::int64_t i = 0; i < count; ++i) elements[i] = from[i * stride];
    return elements;
  }
  E elements[block];
};

template <class R, class F, class... E>
void map_run(R* y, std::int64_t count, const F& f, const E*... x) {
  cpu::for_each_index(count, [&](std::int64_t i) { y[i] = static_cast<R>(f(x[i]...)); });
}

/// f(x...) for all elements, whose shapes broadcast.
template <class R, class F, class... E>
Array<R> map(const Call& call, const F& f, const Array<E>&... x) {
  static_assert(sizeof...(E) <= max_operands);
  Dims shape;
  ((shape = broadcast_shape(shape, x.shape)), ...);
  Array<R> y(shape);
  const std::array<Layout, sizeof...(E)> operands{broadcast(x, shape)...};
  for_each_run(call, shape, operands, [&](const Run& run) {
    [&]<std::size_t... k>(std::index_sequence<k...>) {
      map_run(y.data.get() + run.begin, run.count, f,
              Block<E>().read(x.data.get() + run.offsets[k], run.strides[k], run.count)...);
    }
    (std::index_sequence_for<E...>());
  });
  return y;
}

/// Copies x to a view of the same shape.
template <class E>
void copy(const Call& call, const Array<E>& x, const Array<E>& to) {
  const std::array<Layout, 2> operands{x, to};
  for_each_run(call, x.shape, operands, [&](const Run& run) {
    const E* from = x.data.get() + run.offsets[0];
    E* y = to.data.get() + run.offsets[1];
    for (std::int64_t i = 0; i < run.count; ++i) y[i * run.strides[1]] = from[i * run.strides[0]];
  });
}

/// The same elements, row-major without gaps from begin() on.
template <class E>
Array<E> dense(const Call& call, const Array<E>& x) {
  const Layout layout = row_major(x.shape);
  bool is_dense = true;
  for (std::size_t i = 0; i < x.rank(); ++i) {
    is_dense = is_dense && (x.shape[i] == 1 || x.strides[i] == layout.strides[i]);
  }
  if (is_dense || x.size() == 0) return x.view({x.shape, layout.strides, x.first});
  Array<E> y(x.shape);
  copy(call, x, y);
  return y;
}

// Numbers.

/// The type of sums: integers wrap around.
template <class E>
using Total = std::conditional_t<std::is_integral_v<E>, std::uint64_t, double>;

/// In place of a signed integer, whose overflow is undefined.
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

/// An array of rank 0.
template <class E>
Array<E> scalar(E value) {
  Array<E> y(Dims{});
  y.data[0] = value;
  return y;
}

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

/// The only element.
template <class E>
E item(const Array<E>& x) {
  if (x.size() != 1) fail("the shape " + text(x.shape) + " where one number is needed");
  return *x.begin();
}

/// The elements of a vector, or of a number.
inline Dims integers(const Array<std::int64_t>& x) {
  if (x.rank() > 1) fail("the shape " + text(x.shape) + " where a vector is needed");
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
  if (delta == 0) fail("a range with step 0");
  const double count = std::ceil((static_cast<double>(limit) - static_cast<double>(start)) /
                                 static_cast<double>(delta));
  Array<E> y({count > 0 ? static_cast<std::int64_t>(count) : 0});
  for (std::int64_t i = 0; i < y.size(); ++i) y.data[i] = start + static_cast<E>(i) * delta;
  return y;
}

/// The sizes [start, end) of the shape.
inline Array<std::int64_t> shape(const Layout& x, std::int64_t start, std::int64_t end) {
  const Array<std::int64_t> all = vector_of(x.shape);
  return all.view(sliced(all, 0, start, end));
}

// Operators that move elements to other places.

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
    Dims expected = shape;
    if (part.rank() == shape.size()) expected[axis] = part.shape[axis];
    if (part.shape != expected) {
      fail("the shapes " + text(parts[0].shape) + " and " + text(part.shape) + " of parts");
    }
    shape[axis] += part.shape[axis];
  }
  const Array<E> y(shape);
  std::int64_t begin = 0;
  for (const Array<E>& part : parts) {
    copy(call, part, y.view(sliced(y, axis, begin, begin + part.shape[axis])));
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
    parts.push_back(x.view(sliced(x, axis, begin, begin + part)));
    begin += part;
  }
  return parts;
}

template <class E>
Array<E> tile(const Call& call, const Array<E>& x, const Dims& repeats) {
  if (repeats.size() != x.rank()) fail("the repeats " + text(repeats) + " of " + text(x.shape));
  Layout repeated{{}, {}, x.first};
  Dims shape;
  for (std::size_t i = 0; i < x.rank(); ++i) {
    repeated.shape.insert(repeated.shape.end(), {repeats[i], x.shape[i]});
    repeated.strides.insert(repeated.strides.end(), {0, x.strides[i]});
    shape.push_back(repeats[i] * x.shape[i]);
  }
  return reshape(call, x.view(repeated), shape, true);
}

/// The pads of an axis may be negative: they remove elements.
template <class E>
Array<E> pad(const Call& call, const Array<E>& x, const Dims& pads, E value, const Dims& axes) {
  const std::size_t count = axes.empty() ? x.rank() : axes.size();
  if (pads.size() != 2 * count) fail("the pads " + text(pads) + " of " + text(x.shape));
  Layout kept = x;
  Dims before(x.rank(), 0);
  Dims shape = x.shape;
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t axis = axes.empty() ? i : axis_of(axes[i], x.rank());
    const std::int64_t low = pads[i];
    const std::int64_t high = pads[i + count];
    shape[axis] += low + high;
    if (shape[axis] < 0) fail("the pads " + text(pads) + " of " + text(x.shape));
    before[axis] = std::max<std::int64_t>(low, 0);
    kept = sliced(kept, axis, std::max<std::int64_t>(-low, 0),
                  x.shape[axis] - std::max<std::int64_t>(-high, 0));
  }
  const Array<E> y = full(shape, value);
  Layout place = y;
  for (std::size_t i = 0; i < x.rank(); ++i) {
    place = sliced(place, i, before[i], before[i] + kept.shape[i]);
  }
  copy(call, x.view(kept), y.view(place));
  return y;
}

/// y[i] is the element of x at i, but at indices[i] along the axis. `places` is the layout of x in
/// the shape of y, without steps along the axis.
template <class E>
Array<E> pick(const Call& call, const Array<E>& x, std::size_t axis, const Layout& places,
              const Array<std::int64_t>& indices, const Layout& index_places) {
  const std::int64_t size = x.shape[axis];
  const Array<std::int64_t> all = dense(call, indices);
  for (std::int64_t i = 0; i < all.size(); ++i) {
    if (all.begin()[i] < -size || all.begin()[i] >= size) {
      fail("the index " + std::to_string(all.begin()[i]) + " for " + std::to_string(size) +
           " elements");
    }
  }
  const Array<E> y(places.shape);
  const std::array<Layout, 2> operands{places, index_places};
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
  Layout places{{}, {}, x.first};
  Layout index_places{{}, {}, indices.first};
  const auto append = [&](const Layout& from, std::size_t i, std::int64_t step,
                          std::int64_t index) {
    places.shape.push_back(from.shape[i]);
    places.strides.push_back(step);
    index_places.strides.push_back(index);
  };
  for (std::size_t i = 0; i < x.rank(); ++i) {
    if (i != axis) {
      append(x, i, x.strides[i], 0);
      continue;
    }
    for (std::size_t j = 0; j < indices.rank(); ++j) append(indices, j, 0, indices.strides[j]);
  }
  return pick(call, x, axis, places, indices, index_places);
}

template <class E>
Array<E> gather_elements(const Call& call, const Array<E>& x, const Array<std::int64_t>& indices,
                         std::int64_t along) {
  const std::size_t axis = axis_of(along, x.rank());
  Layout places{indices.shape, x.strides, x.first};
  bool fits = indices.rank() == x.rank();
  for (std::size_t i = 0; fits && i < x.rank(); ++i) {
    fits = i == axis || indices.shape[i] <= x.shape[i];
  }
  if (!fits) fail("indices of the shape " + text(indices.shape) + " into " + text(x.shape));
  places.strides[axis] = 0;
  return pick(call, x, axis, places, indices, indices);
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
  if (left.rank() == 0 || right.rank() == 0) fail("a matrix product with a number");
  Layout rows = left;
  Layout others = right;
  if (left.rank() == 1) rows = unsqueezed(rows, {0});
  if (right.rank() == 1) others = unsqueezed(others, {1});
  const Array<E> columns = dense(call, right.view(others));
  const std::int64_t m = rows.shape.end()[-2];
  const std::int64_t k = rows.shape.end()[-1];
  const std::int64_t n = columns.shape.end()[-1];
  if (columns.shape.end()[-2] != k) {
    fail("the product of the shapes " + text(left.shape) + " and " + text(right.shape));
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
    return reverse ? sliced(y, i, -1, std::numeric_limits<std::int64_t>::min(), -1) : y;
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

/// The position of the largest or smallest element; of several, of the first or last one.
template <bool largest, class E>
Array<std::int64_t> arg(const Call& call, const Array<E>& x, std::int64_t along, bool keeps_dims,
                        bool selects_last) {
  const std::size_t axis = axis_of(along, x.rank());
  const std::int64_t n = x.shape[axis];
  Dims shape = x.shape;
  shape[axis] = 1;
  const Array<std::int64_t> y(shape);
  if (n == 0 && y.size() != 0) fail("the largest or smallest of no elements");
  const Array<E> rows = dense(call, x.view(moved(x, axis, x.rank() - 1)));
  for_each_row(call, rows, y.size(), n, [&](const E* row, std::int64_t i) {
    std::int64_t best = 0;
    for (std::int64_t j = 1; j < n; ++j) {
      if (selects_last ? !precedes<largest>(row[best], row[j])
                       : precedes<largest>(row[j], row[best])) {
        best = j;
      }
    }
    y.data[i] = best;
  });
  return keeps_dims ? y : y.view(squeezed(y, {along}));
}

/// The k largest or smallest elements in order, and their positions; of equal ones, the first.
template <bool largest, class E>
std::pair<Array<E>, Array<std::int64_t>> top_k(const Call& call, const Array<E>& x, std::int64_t k,
                                               std::int64_t along) {
  const std::size_t axis = axis_of(along, x.rank());
  const std::size_t last = x.rank() - 1;
  const std::int64_t n = x.shape[axis];
  if (k < 0 || k > n) fail(std::to_string(k) + " of " + std::to_string(n) + " elements");
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
  const Array<std::int64_t> positions = order.view(moved(sliced(order, last, 0, k), last, axis));
  return {gather_elements(call, x, positions, along), positions};
}

// A call.

template <class E>
inline constexpr DTypeSet stored_as{};
template <>
inline constexpr DTypeSet stored_as<float> = DTypeSet::of({DType::float32, DType::float16,
                                                           DType::bfloat16});
template <>
inline constexpr DTypeSet stored_as<double> = DTypeSet::of({DType::float64});
template <>
inline constexpr DTypeSet stored_as<std::int64_t> = DTypeSet::of({DType::int8, DType::uint8,
                                                                  DType::int32, DType::int64});

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

template <class E>
void write(const Call& call, std::size_t output, const Array<E>& y) {
  const TensorView& tensor = call.outputs[output];
  if (y.shape != dims_of(tensor)) {
    fail("the definition gives output " + std::to_string(output) + " the shape " + text(y.shape) +
         ", the signature " + text(dims_of(tensor)));
  }
  const Array<E> from = dense(call, y);
  check(visit_dtype<stored_as<E>>(tensor.dtype, [&]<class S>(TypeTag<S>) {
    auto* const to = static_cast<S*>(tensor.data);
    call.execution.parallel_for(y.size(), grain, [&](std::int64_t begin, std::int64_t end) {
      for (auto i = begin; i < end; ++i) {
        to[i] = store<S>(static_cast<Compute<S>>(from.begin()[i]));
      }
    });
    return Status();
  }));
}

/// An input that the definition cannot do without.
template <class E>
const Array<E>& required(const Array<E>& x, const char* name) {
  if (!x.present) fail(std::string("the definition needs the input ") + name + ", which is absent");
  return x;
}

/// In place of an absent operand of an operator.
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
