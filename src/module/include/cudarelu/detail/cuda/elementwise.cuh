// The elementwise engine for CUDA: one 16-byte vector per thread.
//
// On an H200 one vector per thread is faster than two, four, or a loop over a persistent grid.
#pragma once

#include <algorithm>

#include "cudarelu/detail/cuda/alignment.h"
#include "cudarelu/detail/cuda/launch.cuh"
#include "cudarelu/elementwise.h"

namespace cudarelu {
namespace elementwise {

inline constexpr int block_size = 256;

/// The type of element indices: divisions of 32 bits are cheap.
using Index = std::uint32_t;

/// The limit elements of one launch: an index past the end of the grid does not overflow Index.
inline constexpr std::int64_t max_elements = std::int64_t{1} << 30;

template <class T, int width>
struct alignas(sizeof(T) * width) Vector {
  T items[width];
};

template <class F, class T>
struct Operands {
  const T* inputs[input_count<F>];
  T* output;
  Compute<T> attributes[attribute_count<F> + 1];  // one more, for ops without any
};

/// F::for_halves(x[0], x[1], ...).
template <class F, std::size_t... I>
__device__ auto apply_for_halves(const float* x, std::index_sequence<I...>)
    -> decltype(F::for_halves(x[I]...)) {
  return F::for_halves(x[I]...);
}

/// apply(), for results of 16 bits in the functor's own arithmetic for them.
template <class F, int choice, class T, class... Angles>
__device__ Compute<T> result_of(const Compute<T>* x, const Compute<T>* attributes,
                                Angles&... angles) {
  constexpr auto inputs = std::make_index_sequence<input_count<F>>{};
  if constexpr (sizeof(T) == 2 && requires { apply_for_halves<F>(x, inputs); }) {
    return apply_for_halves<F>(x, inputs);
  } else if constexpr (sizeof(T) == 2 && requires { typename F::ForHalves; }) {
    return apply<F, choice, typename F::ForHalves>(x, attributes, angles...);
  } else {
    return apply<F, choice, Compute<T>>(x, attributes);
  }
}

/// Computes `head` elements, then `vectors` vectors of `width`, then the rest. The first threads
/// take the vectors, those after them the single elements. Elements of vectors with large angles
/// are computed one by one. `columns` is for row inputs, whose elements are repeated `inner_repeat`
/// times if they have dimensions of 1. `row_vectors`: no vector crosses the end of a row or of a
/// repeated element, and row inputs are aligned. Example: size 21, head 3 and width 4 give 4
/// vectors, for threads 0-3; threads 4-6 take elements 0-2 and threads 7-8 elements 19-20.
template <class F, int choice, class T, int width>
__global__ void __launch_bounds__(block_size)
    kernel(const __grid_constant__ Operands<F, T> operands, Index size, Index head, Index vectors,
           Index columns, Index inner_repeat, bool row_vectors) {
  using C = Compute<T>;
  using V = Vector<T, width>;
  constexpr int n = input_count<F>;
  gpu::wait_for_previous_kernel();
  const Index thread = static_cast<Index>(blockIdx.x) * block_size + threadIdx.x;
  Index first = 0;
  int count = 1;
  if (thread < vectors) {
    first = head + thread * width;
    Index column = row_inputs<F> != 0 ? first % columns : 0;
    V x[n];
#pragma unroll
    for (int i = 0; i < n; ++i) {
      if (!is_row<F>(i)) {
        x[i] = *reinterpret_cast<const V*>(operands.inputs[i] + first);
      } else if (is_broadcast<F>(i)) {
        Index at = column / inner_repeat;
        Index left = row_vectors ? width : (at + 1) * inner_repeat - column;
#pragma unroll
        for (int j = 0; j < width; ++j, --left) {
          if (left == 0) {
            if (++at * inner_repeat == columns) at = 0;
            left = inner_repeat;
          }
          x[i].items[j] = operands.inputs[i][at];
        }
      } else if (row_vectors) {
        x[i] = *reinterpret_cast<const V*>(operands.inputs[i] + column);
      } else {
        Index at = column;
#pragma unroll
        for (int j = 0; j < width; ++j) {
          x[i].items[j] = operands.inputs[i][at];
          if (++at == columns) at = 0;
        }
      }
    }
    V y;
    const auto compute = [&](auto&... angles) {
#pragma unroll
      for (int j = 0; j < width; ++j) {
        C values[n];
#pragma unroll
        for (int i = 0; i < n; ++i) values[i] = load(x[i].items[j]);
        y.items[j] = store<T>(result_of<F, choice, T>(values, operands.attributes, angles...));
      }
    };
    bool done = true;
    if constexpr (sizeof(T) == 2 && takes_angles<F, C> && requires { typename F::ForHalves; }) {
      math::SmallAngles angles;  // a branch for each angle would keep the elements apart
      compute(angles);
      done = angles.large == 0;
    } else {
      compute();
    }
    if (done) {
      *reinterpret_cast<V*>(operands.output + first) = y;
      return;
    }
    count = width;
  } else {
    const Index rest = thread - vectors;
    if (rest >= size - vectors * width) return;
    first = rest < head ? rest : rest + vectors * width;
  }
#pragma unroll 1
  for (Index at = first; count > 0; --count, ++at) {
    C values[n];
#pragma unroll
    for (int i = 0; i < n; ++i) {
      const Index column = is_row<F>(i) ? at % columns : at;
      values[i] = load(operands.inputs[i][is_broadcast<F>(i) ? column / inner_repeat : column]);
    }
    operands.output[at] = store<T>(result_of<F, choice, T>(values, operands.attributes));
  }
}

template <class F, int choice, class T, int width>
Status launch(const Call& call, const Operands<F, T>& operands, Extent extent) {
  bool row_vectors = extent.columns % width == 0;
  if (broadcast_inputs<F> != 0) row_vectors &= extent.inner_repeat % width == 0;
  for (int i = 0; i < input_count<F>; ++i) {
    if (is_row<F>(i) && !is_broadcast<F>(i))
      row_vectors &= gpu::misalignment(operands.inputs[i]) == 0;
  }
  std::int64_t head = 0;
  if constexpr (width > 1) {
    const auto past = static_cast<std::int64_t>(gpu::misalignment(operands.output) / sizeof(T));
    head = std::min(extent.size, (width - past) % width);
  }
  const std::int64_t vectors = (extent.size - head) / width;
  const std::int64_t threads = vectors + (extent.size - vectors * width);
  return gpu::launch(call, kernel<F, choice, T, width>,
                     {gpu::blocks_for(threads, block_size), block_size}, operands,
                     static_cast<Index>(extent.size), static_cast<Index>(head),
                     static_cast<Index>(vectors), static_cast<Index>(extent.columns),
                     static_cast<Index>(extent.inner_repeat), row_vectors && head == 0);
}

/// The elements from `begin` on for one launch: whole rows, or a part of one row: of whole repeated
/// elements, or a part of one.
template <class F>
Extent part_from(std::int64_t begin, Extent whole) {
  const std::int64_t rest = whole.size - begin;
  if (row_inputs<F> == 0) {
    const std::int64_t size = std::min(rest, max_elements);
    return {size, size, 1};
  }
  const std::int64_t column = begin % whole.columns;
  if (column == 0 && whole.columns <= max_elements) {
    const std::int64_t max_rows = max_elements / whole.columns;
    return {std::min(rest, max_rows * whole.columns), whole.columns, whole.inner_repeat};
  }
  if (whole.inner_repeat > max_elements) {
    const std::int64_t size =
        std::min(whole.inner_repeat - column % whole.inner_repeat, max_elements);
    return {size, size, size};
  }
  const std::int64_t limit = max_elements / whole.inner_repeat * whole.inner_repeat;
  const std::int64_t size = std::min(whole.columns - column, limit);
  return {size, size, whole.inner_repeat};
}

template <class F, int choice, class T>
Status run(const Call& call, Extent whole) {
  Operands<F, T> operands{};
  read_attributes<F>(call, operands.attributes);
  for (std::int64_t begin = 0; begin < whole.size;) {
    const Extent part = part_from<F>(begin, whole);
    operands.output = static_cast<T*>(call.outputs[0].data) + begin;
    // Vectors need all pointers at the same whole number of elements past a boundary.
    const std::uintptr_t past = gpu::misalignment(operands.output);
    bool aligned = past % sizeof(T) == 0;
    for (int i = 0; i < input_count<F>; ++i) {
      const std::int64_t first = whole.element_of<F>(i, begin);
      operands.inputs[i] = static_cast<const T*>(call.inputs[i].data) + first;
      if (!is_row<F>(i)) aligned &= gpu::misalignment(operands.inputs[i]) == past;
    }
    constexpr int width = gpu::vector_bytes / sizeof(T);
    Status status = aligned ? launch<F, choice, T, width>(call, operands, part)
                            : launch<F, choice, T, 1>(call, operands, part);
    if (!status.ok()) return status;
    begin += part.size;
  }
  return {};
}

}  // namespace elementwise

template <class F>
Status elementwise_cuda(const Call& call) {
  const elementwise::Extent extent = elementwise::extent_of<F>(call);
  return visit_dtype<F::spec.dtypes>(call.outputs[0].dtype, [&]<class T>(TypeTag<T>) {
    return elementwise::visit_choice<F>(call, [&]<int choice>(std::integral_constant<int, choice>) {
      return elementwise::run<F, choice, T>(call, extent);
    });
  });
}

}  // namespace cudarelu
