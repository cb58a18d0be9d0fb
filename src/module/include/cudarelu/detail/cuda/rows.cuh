// The launch of row-wise ops on CUDA: how rows are distributed to threads.
//
// A kernel is written once, for RegisterRows and StagedRows. It defines how the elements of a
// thread are reduced, how the values of warps are combined, and the result for each element; see
// RegisterRows::run.
#pragma once

#include <algorithm>
#include <array>
#include <limits>

#include "cudarelu/detail/cuda/alignment.h"
#include "cudarelu/detail/cuda/counters.cuh"
#include "cudarelu/detail/cuda/register_rows.cuh"
#include "cudarelu/detail/cuda/staged_rows.cuh"

namespace cudarelu::gpu {

/// Writes value(part, i, sum) for each element i; sum is that of term(part, i) over the row.
template <class Rows, class T, class Term, class Value>
__device__ void write_from_sum(Rows rows, T* output, const Term& term, const Value& value) {
  using C = Compute<T>;
  const auto reduce = [&](const auto& visit) {
    C total = 0;
    visit([&](const auto& part) {
      C of_part = 0;  // one sum over all parts of a long row would err more
#pragma unroll
      for (int i = 0; i < part.size; ++i) of_part += term(part, i);
      total += of_part;
    });
    return sum_in_warp<Rows::warp_lanes>(total);
  };
  const auto combine = [](const auto& all) {
    C total = 0;
    all([&](C of_warp) { total += of_warp; });
    return sum_in_warp(total);
  };
  rows.run(output, T{}, Unchanged{}, reduce, combine, value);
}

/// Whether the first `inputs` inputs and the output have the same alignment to vectors.
template <class T>
bool have_vectors_alike(const Call& call, int inputs) {
  const std::uintptr_t past = misalignment(call.outputs[0].data);
  bool alike = past % sizeof(T) == 0;
  for (const TensorView& input : call.inputs.first(inputs)) {
    alike &= misalignment(input.data) == past;
  }
  return alike;
}

/// The number of chunks in a block's slice of a row of `vectors` vectors.
inline int chunks_of_slice(std::int64_t vectors, unsigned cluster) {
  constexpr std::int64_t chunk = RowStages::chunk_bytes / vector_bytes;
  return static_cast<int>(blocks_for(blocks_for(vectors, cluster), chunk));
}

/// The bytes of a block's slice of the shared rows.
inline std::int64_t bytes_of_shared(std::int64_t vectors, unsigned cluster, int shared) {
  return std::int64_t{shared} * blocks_for(vectors, cluster) * vector_bytes;
}

/// The number of stages of a block in a cluster: for RowStages::rows rows, or as many as fit.
inline int stages_of_block(std::int64_t vectors, unsigned cluster, int inputs, int shared) {
  const std::int64_t room =
      RowStages::most * RowStages::chunk_bytes - bytes_of_shared(vectors, cluster, shared);
  const std::int64_t fit = std::max<std::int64_t>(room, 0) / (inputs * RowStages::chunk_bytes);
  return static_cast<int>(
      std::min<std::int64_t>(RowStages::rows * chunks_of_slice(vectors, cluster), fit));
}

/// The number of blocks that share a row of `vectors` vectors. Each block gets 32 KiB of an input
/// or more. There are at most 8 blocks, unless 16 are needed for room for two rows. Example: rows
/// of 128 KiB of one input get clusters of 4 blocks with slices of 32 KiB.
inline unsigned row_cluster(std::int64_t vectors, int inputs, int shared) {
  unsigned blocks = 1;
  while (blocks < 8 && vectors * vector_bytes >= blocks * 64 * 1024) blocks *= 2;
  while (blocks < RowStages::max_blocks &&
         stages_of_block(vectors, blocks, inputs, shared) < 2 * chunks_of_slice(vectors, blocks)) {
    blocks *= 2;
  }
  return blocks;
}

/// Launches the kernel of an op on rows. The first `inputs` inputs and the output have one shape.
/// The next `shared` inputs are shared rows; absent[i] is the value of every element of an absent
/// one. `kernel_of` returns the kernel for a type of rows, given in a TypeTag. `arguments` are the
/// last arguments of the kernel.
template <class T, int inputs, int shared = 0, class KernelOf, class... Arguments>
Status launch_rows(const Call& call, const std::array<T, shared>& absent, const KernelOf& kernel_of,
                   Arguments... arguments) {
  const TensorView& tensor = call.outputs[0];
  if (tensor.size() == 0) return {};
  const std::int64_t columns = tensor.shape.back();
  const std::int64_t rows = tensor.size() / columns;
  RowInputs<T, inputs, shared> data;
  for (int i = 0; i < inputs + shared; ++i) {
    data.data[i] = call.inputs[i].present ? static_cast<const T*>(call.inputs[i].data) : nullptr;
  }
  if constexpr (shared > 0) std::ranges::copy(absent, data.absent);
  auto* const output = static_cast<T*>(tensor.data);

  const auto in_registers = [&]<class Layout>(Layout, std::int64_t vectors) {
    const auto kernel = kernel_of(TypeTag<RegisterRows<T, inputs, Layout, shared>>{});
    Grid grid{blocks_for(rows, 1), Layout::max_threads};
    if constexpr (Layout::lanes != 0) {
      grid.blocks = blocks_for(rows, Layout::max_threads / Layout::lanes);
    } else {
      const std::int64_t threads = (vectors + Layout::vectors - 1) / Layout::vectors;
      if (threads < Layout::max_threads) grid.threads = blocks_for(threads, 32) * 32;
    }
    return launch(call, kernel, grid, data, output, rows, columns, arguments...);
  };
  const auto in_elements = [&] {
    if (columns <= 256) return in_registers(RowLayout<32, 8, 1>{}, columns);
    return in_registers(RowLayout<0, 8, 1, false>{}, columns);
  };
  if (!have_vectors_alike<T>(call, inputs)) return in_elements();

  constexpr int width = vector_bytes / sizeof(T);
  const bool even = columns % width == 0 && misalignment(output) == 0;
  const std::int64_t vectors = columns / width + (even ? 0 : 2);
  const auto in_warps = [&]<int lanes, int n>(RowLayout<lanes, n, width> layout) {
    if (even) return in_registers(RowLayout<lanes, n, width, true, true>{}, vectors);
    return in_registers(layout, vectors);
  };
  // float64 is rare and gets few kernels, the fastest ones for rows of 1,024 and 4,096 columns.
  constexpr bool few_kernels = sizeof(T) == 8;
  if constexpr (few_kernels) {
    if (vectors <= 128) return in_elements();
  } else {
    // The fastest layouts on an H200. Few rows need many threads each. For many rows, one vector of
    // one input is too little work for a thread, and two inputs leave registers for few vectors.
    if (rows <= 256 && vectors <= 2048) {
      if (vectors <= 32) return in_warps(RowLayout<32, 1, width>{});
      if (vectors <= 64) return in_warps(RowLayout<32, 2, width>{});
      if (vectors <= 256) return in_registers(RowLayout<0, 1, width>{}, vectors);
      return in_registers(RowLayout<0, 4, width>{}, vectors);
    }
    if constexpr (inputs == 1) {
      if (vectors <= 8) return in_warps(RowLayout<4, 2, width>{});
      if (vectors <= 16) return in_warps(RowLayout<8, 2, width>{});
      if (vectors <= 32) return in_warps(RowLayout<16, 2, width>{});
    } else {
      if (vectors <= 8) return in_warps(RowLayout<8, 1, width>{});
      if (vectors <= 16) return in_warps(RowLayout<16, 1, width>{});
      if (vectors <= 32) return in_warps(RowLayout<32, 1, width>{});
    }
    if (vectors <= 64) return in_warps(RowLayout<32, 2, width>{});
    if (vectors <= 128) return in_warps(RowLayout<32, 4, width>{});
  }
  if constexpr (inputs == 2) {
    if (vectors <= 512) return in_registers(RowLayout<0, 2, width>{}, vectors);
  }
  if (vectors <= 1024) return in_registers(RowLayout<0, 4, width>{}, vectors);
  if constexpr (inputs == 1) {
    if (vectors <= 2048) return in_registers(RowLayout<0, 8, width>{}, vectors);
  }
  if constexpr (!few_kernels || inputs > 1) {
    if (has_programmatic_launch(call.execution.device_index)) {
      constexpr auto kernel = KernelOf{}(TypeTag<StagedRows<T, inputs, shared>>{});
      constexpr int kinds =
          (RowStages::max_blocks + 1) * (RowStages::most + 1);  // clusters, chunks
      const std::int64_t whole = columns / width;
      for (unsigned cluster = row_cluster(whole, inputs, shared); cluster > 0; cluster /= 2) {
        const int stages = stages_of_block(whole, cluster, inputs, shared);
        if (stages < chunks_of_slice(whole, cluster)) break;
        const std::int64_t shared_bytes = bytes_of_shared(whole, cluster, shared);
        const int all =
            stages * inputs + static_cast<int>(blocks_for(shared_bytes, RowStages::chunk_bytes));
        Grid grid{cluster, RowStages::threads, static_cast<std::size_t>(RowStages::bytes_for(all)),
                  cluster};
        const int kind = static_cast<int>(cluster) * (RowStages::most + 1) + all;
        const int clusters =
            resident<kernel, kinds>(call, grid, kind, RowStages::bytes_for(RowStages::most));
        if (clusters == 0) continue;
        grid.blocks = static_cast<unsigned>(std::min<std::int64_t>(rows, clusters)) * cluster;
        if (rows > clusters) {
          Status status = allocate_counters(call, RowStages::kinds, data.tickets);
          if (!status.ok()) return status;
        }
        return launch(call, kernel, grid, data, output, rows, columns, arguments...);
      }
    }
  }
  if constexpr (few_kernels) {
    return in_elements();
  } else {
    return in_registers(RowLayout<0, 4, width, false>{}, vectors);
  }
}

template <class T, int inputs, class KernelOf>
Status launch_rows(const Call& call, const KernelOf& kernel_of) {
  return launch_rows<T, inputs, 0>(call, std::array<T, 0>{}, kernel_of);
}

}  // namespace cudarelu::gpu
