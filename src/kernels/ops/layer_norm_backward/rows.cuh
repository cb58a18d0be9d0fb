// Persistent blocks, or clusters, process one row after the other, so that each input is read once:
// their threads keep the sums of the gradients of weight and bias over their rows. While they
// process a row, the next rows are copied to shared memory. Each thread copies what it reads
// itself, and adds up the next row before it waits for the sums of this one.
//
// Vectors are aligned in memory, and a row may begin within one. The elements before the first
// whole vector and after the last one are the edges of the row, one for a lane. The columns of a
// thread depend on the element of a vector at which a row begins: a thread takes rows of one kind,
// which begin at the same one. Example: of rows of 10 float32, even rows have vectors at columns 0
// and 4, and edges 8 and 9; odd rows begin at element 2 of a vector, and have edges 0 and 1, and
// vectors at columns 2 and 6.
#pragma once

#include "cudarelu/detail/cuda/async_copy.cuh"
#include "cudarelu/detail/cuda/cluster.cuh"
#include "cudarelu/detail/cuda/launch.cuh"
#include "cudarelu/detail/cuda/pace.cuh"
#include "ops/layer_norm_backward/exchange.cuh"

namespace cudarelu::ops::layer_norm_gradient {

/// Rows of one kind.
struct Rows {
  std::int64_t first;
  std::int64_t step;
  int number;
  int iteration;  // of the first of them, among the rows of the block
};

/// Writes grad_x of the rows, and the sums of the gradients of weight and bias over them.
template <class T, class Layout>
__device__ __forceinline__ void gradients_of(const Arguments<T>& of, const Rows& rows,
                                             const Exchange<Compute<T>, Layout>& exchange,
                                             unsigned rank, const gpu::Pace& pace,
                                             Compute<T>* sums_of_rows) {
  using C = Compute<T>;
  constexpr int width = Layout::width;
  constexpr int vectors = Layout::vectors;
  constexpr bool of_warp = Layout::lanes != 0;         // a warp, or a part of one, has a row
  constexpr int lanes = of_warp ? Layout::lanes : 32;  // of a warp that share a row
  using Vector = gpu::RowVector<T, width>;
  // Aligned, since copies that cross a boundary of 128 bytes in shared memory take twice as long.
  extern __shared__ __align__(128) uint4 staged[];

  const int workers = static_cast<int>(blockDim.x) - Layout::others;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % lanes;
  const int columns = static_cast<int>(of.columns);

  // The thread's columns: whole vectors `lanes` apart, and perhaps an edge.
  const auto before = static_cast<int>(
      (reinterpret_cast<std::uintptr_t>(of.x) / sizeof(T) + rows.first * of.columns) % width);
  const int head = before == 0 ? 0 : min(width - before, columns);
  const int whole = (columns - head) / width;  // vectors
  const int edges = columns - whole * width;
  const int first_of_block = of_warp ? 0 : static_cast<int>(rank) * workers * vectors;
  const int first = first_of_block + (of_warp ? 0 : warp * lanes * vectors) + lane;
  const auto column = [&](int v) { return head + (first + v * lanes) * width; };
  constexpr int apart = lanes * width;  // columns from a vector to the next
  const bool is_worker = of_warp || warp < workers / 32;
  int mine = is_worker ? min(max((whole - first + lanes - 1) / lanes, 0), vectors) : 0;
  asm volatile("" : "+r"(mine));  // keeps the compiler from computing it again
  const bool may_have_edge = of_warp ? Layout::edges : !is_worker && rank == 0;
  const bool has_edge = may_have_edge && lane < edges;
  const int edge = lane < head ? lane : lane + whole * width;

  // The threads of a warp take the same number of iterations; past the last row they do nothing.
  const int iterations = rows.number;
  const auto is_there = [&](int iteration) {
    return of_warp ? rows.first + iteration * rows.step < of.rows : iteration < iterations;
  };
  std::int64_t at = rows.first * of.columns + column(0);  // of the iteration
  const std::int64_t at_step = rows.step * of.columns;

  struct Element {
    C grad_y = 0;
    C x = 0;
  };
  const auto edge_of = [&](int iteration) {
    if (!has_edge || !is_there(iteration)) return Element{};
    const std::int64_t i = (rows.first + iteration * rows.step) * of.columns + edge;
    return Element{load(of.grad_y[i]), load(of.x[i])};
  };
  const C edge_weight = has_edge && of.weight != nullptr ? load(of.weight[edge]) : C(1);
  C edge_grad_weight = 0;
  C edge_grad_bias = 0;
  const auto write_edge = [&](int iteration, const Element& element,
                              const RowGradient<C>& gradient) {
    if (!has_edge || !is_there(iteration)) return;
    const C normal = gradient.normalised(element.x);
    edge_grad_weight = gpu::fused(element.grad_y, normal, edge_grad_weight);
    edge_grad_bias += element.grad_y;
    of.grad_x[(rows.first + iteration * rows.step) * of.columns + edge] =
        store<T>(gradient(normal, element.grad_y * edge_weight));
  };

  C grad_weight[vectors * width] = {};
  C grad_bias[vectors * width] = {};
  gpu::Pace::PacedSteps steps(pace);  // not of the caller: there they cost registers
  const auto work = [&] {
    const auto slot = [&](int stage, int v, int input) {
      auto* const of_thread =
          reinterpret_cast<Vector*>(staged) + warp * 64 * vectors + threadIdx.x % 32;
      return of_thread + stage * (2 * vectors * workers) + (v * 2 + input) * 32;
    };
    const auto fetch = [&](int iteration, int stage, std::int64_t from) {
      if (is_there(iteration)) {
#pragma unroll
        for (int v = 0; v < vectors; ++v) {
          if (v >= mine) continue;
          gpu::copy_async<Layout::vector_bytes>(slot(stage, v, 0), of.grad_y + from + v * apart,
                                                true);
          gpu::copy_async<Layout::vector_bytes>(slot(stage, v, 1), of.x + from + v * apart, true);
        }
      }
      gpu::commit_copies();
    };
#pragma unroll
    for (int stage = 0; stage < Layout::stages; ++stage) {
      fetch(stage, stage, at + stage * at_step);
    }
    Element edge_now = of_warp ? edge_of(0) : Element{};
    Element edge_next = of_warp ? edge_of(1) : Element{};
    Vector weights[vectors];
#pragma unroll
    for (int v = 0; v < vectors; ++v) {
#pragma unroll
      for (int j = 0; j < width; ++j) {
        const bool given = of.weight != nullptr && v < mine;
        weights[v].set(j, given ? of.weight[column(v) + j] : store<T>(1));
      }
    }

    // The base of the sums is the mean of the first vectors of lanes, or of the edges of a row
    // without vectors: of a power of two of lanes, so that it is exact for a row of one value. The
    // sum of squares about it is at most 2 * `vectors` times that about the mean of all elements.
    const C edge_count = of_warp && has_edge ? 1 : 0;
    const C count = gpu::sum_in_warp<lanes>(static_cast<C>(mine * width) + edge_count);
    const int with_vectors = static_cast<int>(gpu::sum_in_warp<lanes>(C(mine > 0 ? 1 : 0)));
    const int all = with_vectors > 0 ? with_vectors : static_cast<int>(count);
    const int firsts = 1 << (31 - __clz(max(all, 1)));
    const C share_of_first =
        lane < firsts ? 1 / static_cast<C>(with_vectors > 0 ? firsts * width : firsts) : C(0);
    // Keeps the compiler from reading all vectors in advance and from holding weights of two bytes
    // as float, which takes too many registers.
    const auto one_at_a_time = [&](int v) {
      if constexpr (Layout::large) asm volatile("" ::: "memory");
      weights[v].stay_packed();
    };
    const auto sums_of = [&](int stage, const Element& edge) {
      Sums<C> sums{};
      if (mine > 0) {
        const Vector x = *slot(stage, 0, 1);
#pragma unroll
        for (int j = 0; j < width; ++j) {
          sums.base = gpu::fused(load(x[j]), share_of_first, sums.base);
        }
      }
      if (of_warp && has_edge && mine == 0) sums.base = edge.x * share_of_first;
      sums.base = gpu::sum_in_warp<lanes>(sums.base);
      sums.count = count;
#pragma unroll
      for (int v = 0; v < vectors; ++v) {
        one_at_a_time(v);
        if (v >= mine) continue;
        const Vector grad_y = *slot(stage, v, 0);
        const Vector x = *slot(stage, v, 1);
#pragma unroll
        for (int j = 0; j < width; ++j) sums.add(load(x[j]), load(grad_y[j]) * load(weights[v][j]));
      }
      if (of_warp && has_edge) sums.add(edge.x, edge.grad_y * edge_weight);
      sums.template add_lanes<lanes>();
      return sums;
    };
    const auto write = [&](int iteration, int stage, const RowGradient<C>& gradient) {
      if (!is_there(iteration)) return;
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
          sum = gpu::fused(g, normal, sum);
          grad_bias[v * width + j] += g;
          result.set(j, store<T>(gradient(normal, g * load(weights[v][j]))));
        }
        *reinterpret_cast<Vector*>(of.grad_x + at + v * apart) = result;
      }
    };

    int stage = 0;
    gpu::wait_for_copies<Layout::stages - 1>();
    Sums<C> sums = sums_of(0, edge_now);
    if constexpr (!of_warp) exchange.send(rows.iteration, sums);
    for (int iteration = 0; iteration < iterations; ++iteration) {
      gpu::wait_for_copies<Layout::stages - 2>();
      const int next_stage = stage + 1 == Layout::stages ? 0 : stage + 1;
      const Element edge_later = of_warp ? edge_of(iteration + 2) : Element{};
      Sums<C> next = sums;
      if (iteration + 1 < iterations) {
        next = sums_of(next_stage, edge_next);
        if constexpr (!of_warp) exchange.send(rows.iteration + iteration + 1, next);
      }
      if constexpr (of_warp) {
        const RowGradient<C> gradient(sums, 1 / static_cast<C>(of.columns), of.eps);
        write(iteration, stage, gradient);
        write_edge(iteration, edge_now, gradient);
      } else {
        write(iteration, stage, exchange.receive(rows.iteration + iteration));
      }
      if constexpr (of_warp) steps.begin(iteration, threadIdx.x == 0);
      fetch(iteration + Layout::stages, stage, at + Layout::stages * at_step);
      at += at_step;
      sums = next;
      edge_now = edge_next;
      edge_next = edge_later;
      stage = next_stage;
    }
    gpu::wait_for_copies<0>();
  };

  // The columns of the block, without edges if the block or cluster has the row.
  const int origin = of_warp ? 0 : head + first_of_block * width;
  const int extent =
      of_warp ? columns : max(min(whole - first_of_block, workers * vectors), 0) * width;
  if constexpr (of_warp) {
    work();
  } else if (is_worker) {
    work();
  } else {
    const C count = static_cast<C>(extent + (rank == 0 ? edges : 0));
    Element next = edge_of(0);
    for (int iteration = 0; iteration < iterations; ++iteration) {
      const Element element = next;
      next = edge_of(iteration + 1);
      steps.begin(rows.iteration + iteration, lane == 0);
      write_edge(iteration, element,
                 exchange.combine(rows.iteration + iteration, count, static_cast<C>(of.columns),
                                  has_edge, element.x, element.grad_y * edge_weight, of.eps));
    }
  }

  // Adds up the sums of the rows of one block in shared memory.
  C* const of_rows = reinterpret_cast<C*>(staged);
  const int offset = static_cast<int>(threadIdx.x) / lanes % Layout::rows * extent - origin;
  const auto add_up = [&](const C(&of_vectors)[vectors* width], C of_edge, C* to) {
    __syncthreads();
#pragma unroll
    for (int v = 0; v < vectors; ++v) {
      if (v >= mine) continue;
#pragma unroll
      for (int j = 0; j < width; ++j) of_rows[offset + column(v) + j] = of_vectors[v * width + j];
    }
    if (has_edge) (of_warp ? of_rows + offset : to)[edge] = of_edge;
    __syncthreads();
    for (int i = threadIdx.x; i < extent; i += blockDim.x) {
      C total = 0;
      for (int row = 0; row < Layout::rows; ++row) total += of_rows[row * extent + i];
      to[origin + i] = total;
    }
  };
  add_up(grad_weight, edge_grad_weight, sums_of_rows);
  add_up(grad_bias, edge_grad_bias, sums_of_rows + of.columns);
}

/// Writes grad_x, and the sums of the gradients of weight and bias over the rows of each block or
/// cluster: [blocks, 2, columns]. Every `period`-th row is of one kind. A block that takes rows of
/// two kinds writes sums for each: [blocks + kinds - 1, 2, columns].
template <class T, class Layout>
__global__ void __launch_bounds__(Layout::max_threads, Layout::min_blocks)
    rows_of_blocks(Arguments<T> of, Compute<T>* sums_of_rows, int period, gpu::Pace pace) {
  using C = Compute<T>;
  std::int64_t block = blockIdx.x;
  std::int64_t blocks = gridDim.x;
  unsigned rank = 0;
#if __CUDA_ARCH__ >= 900
  if constexpr (Layout::cluster) {
    block /= gpu::blocks_of_cluster();
    blocks /= gpu::blocks_of_cluster();
    rank = gpu::rank_in_cluster();
  }
#endif
  const Exchange<C, Layout> exchange((blockDim.x - Layout::others) / 32);
  gpu::wait_for_previous_kernel();
  if constexpr (Layout::lanes != 0) {  // `step` is a multiple of the period, as Layout::rows is
    const std::int64_t first = block * Layout::rows + threadIdx.x / 32 * (32 / Layout::lanes);
    const std::int64_t step = blocks * Layout::rows;
    const auto number = first < of.rows ? static_cast<int>((of.rows - first + step - 1) / step) : 0;
    gradients_of(of, Rows{first + threadIdx.x % 32 / Layout::lanes, step, number, 0}, exchange,
                 rank, pace, sums_of_rows + block * 2 * of.columns);
  } else {
    const std::int64_t end = (block + 1) * of.rows / blocks;
    std::int64_t i = block * of.rows / blocks;
    int iteration = 0;
    do {
      Rows rows{block, blocks, static_cast<int>((of.rows - block + blocks - 1) / blocks), 0};
      std::int64_t part = block;
      if (blocks % period == 0) {
        i = end;
      } else {
        // The rows, ordered by kind, are divided evenly. Example: for 10 rows, 2 kinds and 3 blocks
        // the order is 0 2 4 | 6 8 1 | 3 5 7 9.
        const std::int64_t least = of.rows / period;
        const std::int64_t more = of.rows % period * (least + 1);  // rows of kinds with one more
        const std::int64_t of_kind = i < more ? least + 1 : least;
        const std::int64_t kind = i < more ? i / of_kind : of.rows % period + (i - more) / of_kind;
        const std::int64_t in_kind = i < more ? i % of_kind : (i - more) % of_kind;
        rows = {kind + in_kind * period, period, static_cast<int>(min(of_kind - in_kind, end - i)),
                iteration};
        part = block + kind;
        if (iteration == 0 && in_kind == 0 && block > 0 &&
            rank == 0) {  // no block has the part before
          C* const before = sums_of_rows + (part - 1) * 2 * of.columns;
          for (std::int64_t c = threadIdx.x; c < 2 * of.columns; c += blockDim.x) before[c] = 0;
        }
        if (iteration > 0) __syncthreads();
        i += rows.number;
        iteration += rows.number;
      }
      gradients_of(of, rows, exchange, rank, pace, sums_of_rows + part * 2 * of.columns);
    } while (i < end);
  }
}

}  // namespace cudarelu::ops::layer_norm_gradient
