// Persistent blocks, or clusters of them, take one row after the other, so that each input is read
// once: their threads keep the sums of the weight's and the bias's gradients over their rows. While
// they work on a row, the next ones are on their way to shared memory; each thread asks for what it
// will read itself, and sums up the next row before it waits for the sums of this one.
//
// Vectors are aligned in memory, and a row may begin within one: who has a row has those that begin
// at the same place of a vector, and so the same columns of each.
#pragma once

#include "cuda/async_copy.cuh"
#include "cuda/launch.cuh"
#include "ops/layer_norm_backward/exchange.cuh"

namespace cudarelu::ops::layer_norm_gradient {

/// Writes grad_x, and the sums of the gradients of weight and bias over the rows of each block or
/// cluster: [blocks, 2, columns].
template <class T, class Layout>
__global__ void __launch_bounds__(Layout::most_threads, Layout::least_blocks)
    rows_of_blocks(Arguments<T> of, Compute<T>* sums_of_rows) {
  using C = Compute<T>;
  constexpr int width = Layout::width;
  constexpr int vectors = Layout::vectors;
  constexpr bool whole = Layout::whole;
  constexpr int lanes = Layout::lanes == 0 ? 32 : Layout::lanes;  // of a warp that share a row
  constexpr int apart = lanes * width;                            // elements between its vectors
  using Vector = cuda::RowVector<T, width>;
  extern __shared__ uint4 staged[];

  // The thread's rows, and its columns of each, which stay the same.
  std::int64_t row = blockIdx.x;
  std::int64_t step = gridDim.x;
  int first_of_block = 0;  // vector of the row
#if __CUDA_ARCH__ >= 900
  if constexpr (Layout::cluster) {
    using Cluster = cooperative_groups::cluster_group;
    row /= Cluster::num_blocks();
    step /= Cluster::num_blocks();
    first_of_block = Cluster::block_rank() * blockDim.x * vectors;
  }
#endif
  C* const sums_of_block = sums_of_rows + row * 2 * of.columns;
  const int warp = threadIdx.x / 32;
  int first = first_of_block + threadIdx.x % lanes;
  if constexpr (Layout::lanes == 0) {
    first += warp * lanes * vectors;
  } else {
    row = row * Layout::rows + threadIdx.x / lanes;
    step *= Layout::rows;
  }
  // The threads of a warp take the same number of turns: those past the end have nothing to do.
  const auto turns_from = [&](std::int64_t row) {
    return row < of.rows ? static_cast<int>((of.rows - row + step - 1) / step) : 0;
  };
  const int own_turns = turns_from(row);
  const int turns = Layout::lanes == 0 ? own_turns : turns_from(row - threadIdx.x % 32 / lanes);
  int before = 0;  // elements from the boundary of a vector to the row
  if constexpr (!whole) {
    before = static_cast<int>(
        (reinterpret_cast<std::uintptr_t>(of.x) / sizeof(T) + row * of.columns) % width);
  }
  const int columns = static_cast<int>(of.columns);
  const auto column = [&](int v) { return first * width + v * apart - before; };
  int mine = 0;   // how many vectors the thread has
  int tail = -1;  // the one that goes past the end of the row
#pragma unroll
  for (int v = 0; v < vectors; ++v) {
    if (column(v) >= columns) continue;
    mine = v + 1;
    if (column(v) + width > columns) tail = v;
  }
  asm volatile("" : "+r"(mine));  // else they are computed again and again
  if constexpr (!whole) asm volatile("" : "+r"(tail));
  const bool has_head = !whole && column(0) < 0;
  const auto is_cut = [&](int v) { return !whole && (v == tail || (v == 0 && has_head)); };
  const auto is_inside = [&](int v, int j) {
    return v < mine && (whole || (column(v) + j >= 0 && column(v) + j < columns));
  };

  /// Element(j) in the places of a vector that are of the row, and `outside` in the others.
  const auto inside_of = [&](int v, const auto& element, T outside) {
    Vector vector;
#pragma unroll
    for (int j = 0; j < width; ++j) vector.set(j, is_inside(v, j) ? element(j) : outside);
    return vector;
  };

  const auto slot = [&](int stage, int v, int input) {
    auto* const of_thread =
        reinterpret_cast<Vector*>(staged) + warp * 64 * vectors + threadIdx.x % 32;
    return of_thread + stage * (2 * vectors * static_cast<int>(blockDim.x)) + (v * 2 + input) * 32;
  };
  std::int64_t at = row * of.columns + column(0);  // of the turn
  const std::int64_t at_step = step * of.columns;
  const auto fetch = [&](int turn, int stage, std::int64_t from) {
    if (turn < own_turns) {
      const T* const grad_y = of.grad_y + from;
      const T* const x = of.x + from;
#pragma unroll
      for (int v = 0; v < vectors; ++v) {
        if (v >= mine) continue;
        Vector* const grad_y_slot = slot(stage, v, 0);
        Vector* const x_slot = slot(stage, v, 1);
        if (!is_cut(v)) {
          cuda::copy_async<cuda::vector_bytes>(grad_y_slot, grad_y + v * apart, true);
          cuda::copy_async<cuda::vector_bytes>(x_slot, x + v * apart, true);
        } else if (v == 0 && from < 0) {  // begins before the tensor
          *grad_y_slot = inside_of(v, [&](int j) { return grad_y[j]; }, T{});
          *x_slot = inside_of(v, [&](int j) { return x[j]; }, T{});
        } else {
          const int size = min(columns - column(v), width) * static_cast<int>(sizeof(T));
          cuda::copy_async_part<cuda::vector_bytes>(grad_y_slot, grad_y + v * apart, size);
          cuda::copy_async_part<cuda::vector_bytes>(x_slot, x + v * apart, size);
        }
      }
    }
    cuda::commit_copies();
  };

  const auto total = static_cast<C>(of.columns);
  const C share = 1 / total;
  C count = 0;
#pragma unroll
  for (int i = 0; i < vectors * width; ++i) count += is_inside(i / width, i % width) ? C(1) : C(0);
  const C of_warp = cuda::sum_in_warp(count);
  const int origin = Layout::lanes == 0 ? first_of_block * width - before : 0;
  const int extent = (Layout::lanes == 0 ? blockDim.x : lanes) * vectors * width;
  const Exchange<T, Layout> exchange{
      static_cast<C>(max(min(columns, origin + extent) - max(origin, 0), 0))};
  cuda::wait_for_previous_kernel();
#pragma unroll
  for (int stage = 0; stage < Layout::stages; ++stage) {
    fetch(stage, stage, at + stage * at_step);
  }
  Vector weights[vectors];
#pragma unroll
  for (int v = 0; v < vectors; ++v) {
#pragma unroll
    for (int j = 0; j < width; ++j) {
      const bool is_there = of.weight != nullptr && is_inside(v, j);
      weights[v].set(j, is_there ? of.weight[column(v) + j] : store<T>(1));
    }
  }
  C grad_weight[vectors * width] = {};
  C grad_bias[vectors * width] = {};

  // Else the compiler reads all vectors ahead, and holds weights of two bytes as float: too many
  // registers.
  const auto one_at_a_time = [&](int v) {
    if constexpr (Layout::large) asm volatile("" ::: "memory");
    weights[v].stay_packed();
  };
  const auto sums_of = [&](int turn, int stage) {
    Sums<C> own;
    if constexpr (whole) {
      const Vector x = *slot(stage, 0, 1);
      own.base = 0;
#pragma unroll
      for (int j = 0; j < width; ++j) own.base += load(x[j]);
      own.base *= C(1) / width;
    } else {
      own.base = load(reinterpret_cast<const T*>(slot(stage, 0, 1))[has_head ? before : 0]);
    }
    own.base = __shfl_sync(0xffffffffu, mine > 0 ? own.base : C(0), 0, lanes);
    own.count = of_warp;
#pragma unroll
    for (int v = 0; v < vectors; ++v) {
      one_at_a_time(v);
      if (v >= mine) continue;
      Vector grad_y = *slot(stage, v, 0);
      Vector x = *slot(stage, v, 1);
      if (is_cut(v)) {  // what lies outside adds nothing
        grad_y = inside_of(v, [&](int j) { return grad_y[j]; }, store<T>(0));
        x = inside_of(v, [&](int j) { return x[j]; }, store<T>(own.base));
        *slot(stage, v, 0) = grad_y;
        *slot(stage, v, 1) = x;
      }
#pragma unroll
      for (int j = 0; j < width; ++j) own.add(load(x[j]), load(grad_y[j]) * load(weights[v][j]));
    }
    own.template add_lanes<lanes>();
    if constexpr (Layout::lanes == 0) exchange.send(turn, own);
    return own;
  };
  const auto write = [&](int turn, int stage, Sums<C> sums) {
    if constexpr (Layout::lanes == 0) sums = exchange.receive(turn);
    const RowGradient<C> gradient(sums, share, of.eps);
    if (turn >= own_turns) return;
    T* const grad_x = of.grad_x + at;
#pragma unroll
    for (int v = 0; v < vectors; ++v) {
      one_at_a_time(v);
      if (v >= mine) continue;
      const Vector grad_y = *slot(stage, v, 0);
      const Vector x = *slot(stage, v, 1);
      Vector result;
#pragma unroll
      for (int j = 0; j < width; ++j) {
        const C g = load(grad_y[j]);
        const C normal = gradient.normalised(load(x[j]));
        C& sum = grad_weight[v * width + j];
        sum = cuda::fused(g, normal, sum);
        grad_bias[v * width + j] += g;
        result.set(j, store<T>(gradient(normal, g * load(weights[v][j]))));
      }
      if (is_cut(v)) {
#pragma unroll
        for (int j = 0; j < width; ++j) {
          if (is_inside(v, j)) grad_x[v * apart + j] = result[j];
        }
      } else {
        *reinterpret_cast<Vector*>(grad_x + v * apart) = result;
      }
    }
  };

  int stage = 0;
  Sums<C> sums{};
  cuda::wait_for_copies<Layout::stages - 1>();
  if (turns > 0) sums = sums_of(0, 0);
  for (int turn = 0; turn < turns; ++turn) {
    cuda::wait_for_copies<Layout::stages - 2>();
    const int next_stage = stage + 1 == Layout::stages ? 0 : stage + 1;
    const Sums<C> next = turn + 1 < turns ? sums_of(turn + 1, next_stage) : Sums<C>{};
    write(turn, stage, sums);
    fetch(turn + Layout::stages, stage, at + Layout::stages * at_step);
    at += at_step;
    sums = next;
    stage = next_stage;
  }

  // Rows of one block are added up in shared memory.
  C* const of_rows = reinterpret_cast<C*>(staged);
  const int place = threadIdx.x / lanes % Layout::rows * extent - origin;
  cuda::wait_for_copies<0>();
  const auto add_up = [&](const C(&of_thread)[vectors* width], C* to) {
    __syncthreads();
#pragma unroll
    for (int i = 0; i < vectors * width; ++i) {
      const int v = i / width;
      const int j = i % width;
      if (is_inside(v, j)) of_rows[place + column(v) + j] = of_thread[i];
    }
    __syncthreads();
    for (int i = threadIdx.x; i < extent; i += blockDim.x) {
      if (origin + i < 0 || origin + i >= columns) continue;
      C total = 0;
      for (int row = 0; row < Layout::rows; ++row) total += of_rows[row * extent + i];
      to[origin + i] = total;
    }
  };
  add_up(grad_weight, sums_of_block);
  add_up(grad_bias, sums_of_block + of.columns);
}

}  // namespace cudarelu::ops::layer_norm_gradient
