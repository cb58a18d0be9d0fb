// Rows staged in shared memory (compute capability 9.0 and later): blocks, or clusters of blocks,
// take one row after the other, and the copy engine brings the next ones while they work on one.
//
// Each block has a slice of each row, in chunks; it keeps its slice of rows that go with each. A
// warp of its own asks for them, in order, as far ahead as there is room; a chunk's room is free
// again when the row's results have been written.
#pragma once

#include "cuda/launch.cuh"
#include "cuda/register_rows.cuh"

#if __CUDA_ARCH__ >= 900
#include <cooperative_groups.h>

#include <cuda/ptx>
#endif

namespace cudarelu::cuda {

/// How the shared memory of a block is used: for barriers, and for the chunks in a ring of stages.
struct RowStages {
  static constexpr int workers = 512;           // threads
  static constexpr int threads = workers + 32;  // with the warp that asks for chunks
  static constexpr int chunk_bytes = 16384;     // of one input
  static constexpr int most = 13;
  static constexpr int most_blocks = 8;  // in a cluster: what every device with clusters can do
  static constexpr int header_bytes = 512;

  /// Of `inputs` inputs: a block of compute capability 9.0 or 10.0 may have 227 KiB.
  static constexpr int stages_for(int inputs) { return most / inputs; }
  static constexpr int bytes_for(int stages, int inputs) {
    return header_bytes + stages * inputs * chunk_bytes;
  }
};

#if __CUDA_ARCH__ >= 900

namespace ptx = ::cuda::ptx;

template <class T, int inputs, int shared = 0>
class StagedRows {
  static constexpr int width = 16 / sizeof(T);
  static constexpr int chunk_vectors = RowStages::chunk_bytes / 16;
  static constexpr int vectors = chunk_vectors / RowStages::workers;
  static constexpr int warps = RowStages::workers / 32;

 public:
  using Part = RowPart<T, inputs + shared, vectors, width>;
  static constexpr int most_threads = RowStages::threads;
  static constexpr int warp_lanes = 32;
  static constexpr bool one_warp = false;

  __device__ StagedRows(const RowInputs<T, inputs, shared>& data, std::int64_t rows,
                        std::int64_t columns)
      : data_(data),
        columns_(columns),
        blocks_(Cluster::num_blocks()),
        row_(blockIdx.x / blocks_),
        step_(gridDim.x / blocks_) {
    const auto all = static_cast<int>(columns / width);
    const int slice = (all + blocks_ - 1) / blocks_;
    shared_chunks_ = shared == 0 ? 0 : (slice + chunk_vectors - 1) / chunk_vectors;
    const int bytes = ptx::get_sreg_dynamic_smem_size() - RowStages::header_bytes;
    stages_ = (bytes / RowStages::chunk_bytes - shared * shared_chunks_) / inputs;
    first_ = min(all, static_cast<int>(Cluster::block_rank()) * slice);
    count_ = min(all - first_, slice);
    chunks_ = (count_ + chunk_vectors - 1) / chunk_vectors;
    turns_ = static_cast<int>((rows - row_ + step_ - 1) / step_);
    if (threadIdx.x == 0) {
      for (int stage = 0; stage < stages_; ++stage) {
        ptx::mbarrier_init(&header().full[stage], 1);
        ptx::mbarrier_init(&header().empty[stage], warps);
      }
      for (auto& barrier : header().exchanged) ptx::mbarrier_init(&barrier, 1);
      ptx::fence_mbarrier_init(ptx::sem_release, ptx::scope_cluster);
    }
    Cluster::sync();
    wait_for_previous_kernel();
    if (threadIdx.x == RowStages::workers) fetch_all();
    if (shared > 0 && threadIdx.x < RowStages::workers) keep_shared_rows();
  }

  /// As RegisterRows::run, for all rows of the block. Where there is room for two rows, the next
  /// one is reduced before the results of one are written: nobody waits for the values of others.
  template <class Reduce, class Combine, class Value>
  __device__ void run(T* output, T outside, const Reduce& reduce, const Combine& combine,
                      const Value& value) {
    if (threadIdx.x >= RowStages::workers) return;
    const auto begin = [&](int turn) {
      const auto of_warp = reduce([&](const auto& visit) {
        for (int chunk = 0; chunk < chunks_; ++chunk) {
          const int sequence = turn * chunks_ + chunk;
          const int stage = sequence % stages_;
          wait(&header().full[stage], sequence / stages_);
          Part part;
          load(part, stage, chunk, outside);
          visit(part);
        }
      });
      send(turn, of_warp);
      return of_warp;
    };
    const auto end = [&](int turn, const auto& of_warp) {
      const auto combined = combine([&](const auto& visit) { receive(turn, of_warp, visit); });
      auto* const row = output + (row_ + turn * step_) * columns_;
      for (int chunk = 0; chunk < chunks_; ++chunk) {
        const int stage = (turn * chunks_ + chunk) % stages_;
        Part part;
        load(part, stage, chunk, outside);
        __syncwarp();
        if (threadIdx.x % 32 == 0) ptx::mbarrier_arrive(&header().empty[stage]);
#pragma unroll
        for (int v = 0; v < vectors; ++v) {
          const int at = place(chunk, v);
          if (at >= count_) continue;
#pragma unroll
          for (int i = 0; i < shared; ++i) part.data[inputs + i][v] = *shared_vector(i, chunk, v);
          reinterpret_cast<RowVector<T, width>*>(row)[first_ + at] =
              Part::results(v, [&](int i) { return value(part, i, combined); });
        }
      }
    };
    const bool ahead = 2 * chunks_ <= stages_;
    auto of_warp = begin(0);
    for (int turn = 0; turn < turns_; ++turn) {
      const bool more = turn + 1 < turns_;
      if (ahead && more) {
        const auto next = begin(turn + 1);
        end(turn, of_warp);
        of_warp = next;
      } else {
        end(turn, of_warp);
        if (more) of_warp = begin(turn + 1);
      }
    }
  }

 private:
  /// Who sends the value of a row has the values of the row before the last one from everybody, who
  /// had then read those of the row before that: four places are enough.
  static constexpr int exchanges = 4;

  using Cluster = cooperative_groups::cluster_group;
  struct Header {
    std::uint64_t full[RowStages::most];
    std::uint64_t empty[RowStages::most];
    std::uint64_t exchanged[exchanges];
  };
  static_assert(sizeof(Header) <= RowStages::header_bytes);

  __device__ static Header& header() {
    extern __shared__ uint4 staged[];
    return *reinterpret_cast<Header*>(staged);
  }
  __device__ static char* stage_data(int stage, int input) {
    return reinterpret_cast<char*>(&header()) + RowStages::bytes_for(stage, inputs) +
           input * RowStages::chunk_bytes;
  }

  template <class P>
  __device__ static P* values(int turn) {
    __shared__ P values[exchanges][RowStages::most_blocks * warps];
    return values[turn % exchanges];
  }

  /// Gives the value of this warp to all blocks of the cluster. The stores complete the barrier: an
  /// arrival would wait for the results that the thread has written to be seen by the cluster.
  template <class P>
  __device__ void send(int turn, const P& value) const {
    std::uint64_t* const barrier = &header().exchanged[turn % exchanges];
    if (threadIdx.x == 0) {
      ptx::mbarrier_arrive_expect_tx(ptx::sem_release, ptx::scope_cta, ptx::space_shared, barrier,
                                     blocks_ * warps * static_cast<unsigned>(sizeof(P)));
    }
    const unsigned lane = threadIdx.x % 32;
    if (lane >= blocks_) return;
    P* const place = values<P>(turn) + Cluster::block_rank() * warps + threadIdx.x / 32;
    using Word = std::conditional_t<sizeof(P) == 4, std::int32_t, std::int64_t>;
    constexpr int words = sizeof(P) / sizeof(Word);
    auto* const to = reinterpret_cast<Word*>(Cluster::map_shared_rank(place, lane));
    const auto* const from = reinterpret_cast<const Word*>(&value);
#pragma unroll
    for (int i = 0; i < words; ++i) {
      ptx::st_async(to + i, from[i], Cluster::map_shared_rank(barrier, lane));
    }
  }

  template <class P, class Visit>
  __device__ void receive(int turn, const P&, const Visit& visit) const {
    wait(&header().exchanged[turn % exchanges], turn / exchanges);
    for (unsigned i = threadIdx.x % 32; i < blocks_ * warps; i += 32) visit(values<P>(turn)[i]);
  }

  /// Waits until a barrier has been passed `uses + 1` times.
  __device__ static void wait(std::uint64_t* barrier, int uses) {
    while (!ptx::mbarrier_try_wait_parity(barrier, static_cast<unsigned>(uses) % 2)) {
    }
  }

  /// The number in the slice of the thread's vector v of a chunk.
  __device__ static int place(int chunk, int v) {
    return chunk * chunk_vectors + v * RowStages::workers + static_cast<int>(threadIdx.x);
  }

  __device__ void load(Part& part, int stage, int chunk, T outside) const {
#pragma unroll
    for (int input = 0; input < inputs; ++input) {
      const auto* from = reinterpret_cast<const RowVector<T, width>*>(stage_data(stage, input));
#pragma unroll
      for (int v = 0; v < vectors; ++v) {
        if (place(chunk, v) < count_) {
          part.data[input][v] = from[v * RowStages::workers + threadIdx.x];
          part.inside[v] = Part::all;
        } else {
          part.data[input][v].fill(outside);
          part.inside[v] = 0;
        }
      }
    }
  }

  /// Where a thread keeps its vector v of a chunk of shared row i: behind the stages.
  __device__ RowVector<T, width>* shared_vector(int i, int chunk, int v) const {
    auto* const rows = reinterpret_cast<RowVector<T, width>*>(stage_data(stages_, 0));
    return rows + ((i * shared_chunks_ + chunk) * vectors + v) * RowStages::workers + threadIdx.x;
  }

  /// Each thread reads the vectors of shared rows that it will need once for all rows.
  __device__ void keep_shared_rows() const {
    for (int chunk = 0; chunk < chunks_; ++chunk) {
#pragma unroll
      for (int v = 0; v < vectors; ++v) {
        const int at = place(chunk, v);
        if (at >= count_) continue;
        Part part;
        part.inside[v] = Part::all;
        load_shared_rows(part, data_, v, (first_ + at) * width);
#pragma unroll
        for (int i = 0; i < shared; ++i) *shared_vector(i, chunk, v) = part.data[inputs + i][v];
      }
    }
  }

  /// Asks for the chunks of all rows, in one thread.
  __device__ void fetch_all() const {
    int sequence = 0;
    for (int turn = 0; turn < turns_; ++turn) {
      for (int chunk = 0; chunk < chunks_; ++chunk, ++sequence) {
        const int stage = sequence % stages_;
        std::uint64_t* const full = &header().full[stage];
        if (sequence >= stages_) wait(&header().empty[stage], sequence / stages_ - 1);
        const int vectors_left = count_ - chunk * chunk_vectors;
        const unsigned bytes = 16 * min(vectors_left, chunk_vectors);
        ptx::mbarrier_arrive_expect_tx(ptx::sem_release, ptx::scope_cta, ptx::space_shared, full,
                                       bytes * inputs);
        const std::int64_t at =
            (row_ + turn * step_) * columns_ + (first_ + chunk * chunk_vectors) * width;
#pragma unroll
        for (int input = 0; input < inputs; ++input) {
          ptx::cp_async_bulk(ptx::space_cluster, ptx::space_global, stage_data(stage, input),
                             data_.data[input] + at, bytes, full);
        }
      }
    }
  }

  RowInputs<T, inputs, shared> data_;
  std::int64_t columns_;
  unsigned blocks_;
  std::int64_t row_;   // the first
  std::int64_t step_;  // to the next
  int turns_;          // rows of the block
  int stages_;
  int first_;          // vector of the slice, in the row
  int count_;          // of its vectors
  int chunks_;         // of the slice
  int shared_chunks_;  // of shared rows: of the largest slice
};

#else

/// Never launched: has what the kernels name.
template <class T, int inputs, int shared = 0>
struct StagedRows : RegisterRows<T, inputs, RowLayout<0, 1, 1, false>, shared> {
  using RegisterRows<T, inputs, RowLayout<0, 1, 1, false>, shared>::RegisterRows;
};

#endif

}  // namespace cudarelu::cuda
