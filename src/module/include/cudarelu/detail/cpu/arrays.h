// Arrays for the evaluation of definitions: where their elements lie, and loops over them.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <numeric>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "cudarelu/call.h"

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
  if (std::ranges::any_of(shape, [](auto dim) { return dim < 0; })) {
    fail("the shape " + text(shape) + " has a negative size");
  }
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
    fail("axis " + std::to_string(axis) + " is out of range for " + std::to_string(rank) +
         " dimensions");
  }
  return static_cast<std::size_t>(axis < 0 ? axis + signed_rank : axis);
}

/// Axis i of the result is axis order[i]; an empty order reverses them.
inline Layout transposed(const Layout& x, const Dims& order) {
  Layout result{{}, {}, x.first};
  if (!order.empty() && order.size() != x.rank()) {
    fail("the permutation " + text(order) + " does not fit the shape " + text(x.shape));
  }
  for (std::size_t i = 0; i < x.rank(); ++i) {
    const std::size_t from = order.empty() ? x.rank() - 1 - i : axis_of(order[i], x.rank());
    result.shape.push_back(x.shape[from]);
    result.strides.push_back(x.strides[from]);
  }
  return result;
}

/// The axis moved to a new position.
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
    if (result[axis_of(axis, rank)]) fail("the axes " + text(axes) + " contain a duplicate");
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
inline Layout part_of(Layout x, std::size_t axis, std::int64_t start, std::int64_t end,
                      std::int64_t step = 1) {
  if (step == 0) fail("the step of a slice must not be 0");
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
  if (ends.size() != starts.size() || (!axes.empty() && axes.size() != starts.size()) ||
      (!steps.empty() && steps.size() != starts.size()) || starts.size() > x.rank()) {
    fail("cannot slice the shape " + text(x.shape) + " from " + text(starts) + " to " + text(ends));
  }
  for (std::size_t i = 0; i < starts.size(); ++i) {
    const auto axis = axes.empty() ? static_cast<std::int64_t>(i) : axes[i];
    const std::int64_t step = steps.empty() ? 1 : steps[i];
    x = part_of(x, axis_of(axis, x.rank()), starts[i], ends[i], step);
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
  for (std::int64_t i = 0; i < count; ++i) y[i] = static_cast<R>(f(x[i]...));
}

template <class... E>
Dims broadcast_shape_of(const Array<E>&... x) {
  Dims shape;
  ((shape = broadcast_shape(shape, x.shape)), ...);
  return shape;
}

/// Calls target(run, compute) for runs of the shape to which all x broadcast. compute(R* y) writes
/// the elements f(x...) of the run.
template <class R, class F, class Target, class... E>
void for_each_result(const Call& call, const Target& target, const F& f, const Array<E>&... x) {
  static_assert(sizeof...(E) <= max_operands);
  const Dims shape = broadcast_shape_of(x...);
  const std::array<Layout, sizeof...(E)> operands{broadcast(x, shape)...};
  for_each_run(call, shape, operands, [&](const Run& run) {
    [&]<std::size_t... k>(std::index_sequence<k...>) {
      target(run, [&](R* y) {
        map_run(y, run.count, f,
                Block<E>().read(x.data.get() + run.offsets[k], run.strides[k], run.count)...);
      });
    }(std::index_sequence_for<E...>());
  });
}

/// f(x...) for all elements, whose shapes broadcast.
template <class R, class F, class... E>
Array<R> map(const Call& call, const F& f, const Array<E>&... x) {
  const Array<R> y(broadcast_shape_of(x...));
  for_each_result<R>(
      call, [&](const Run& run, const auto& compute) { compute(y.data.get() + run.begin); }, f,
      x...);
  return y;
}

/// Copies x to a view of the same shape.
template <class E>
void copy(const Call& call, const Array<E>& x, const Array<E>& to) {
  if (x.shape != to.shape)
    fail("the shape is " + text(x.shape) + ", but must be " + text(to.shape));
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

}  // namespace cudarelu::definition
