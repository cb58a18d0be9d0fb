// Rows staged in shared memory (compute capability 9.0 and later): blocks, or clusters of blocks,
// take one row after the other, and the copy engine brings the next ones while they work on one.
//
// Each block has a slice of each row, in chunks; it keeps its slice of rows that go with each. Its
// warps work apart, so that none waits for what another's row needs: one asks for chunks, in order,
// as far ahead as there is room; some reduce them as they come; the others write the results of a
// row once all blocks have reduced it. A chunk's room is free again when these have read it.
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
  static constexpr int workers = 256;               // threads that reduce, and as many that write
  static constexpr int threads = 2 * workers + 32;  // with the warp that asks for chunks
  static constexpr int chunk_bytes = 64 * workers;  // of one input: four vectors a thread
  static constexpr int most = 192 * 1024 / chunk_bytes;  // of a block's 227 KiB; values need some
  static constexpr int rows = 3;                         // whose chunks a block has at a time
  static constexpr int most_blocks = 16;  // in a cluster; a device may have no more than 8
  static constexpr int header_bytes = 256;

  static constexpr int bytes_for(int chunks) { return header_bytes + chunks * chunk_bytes; }
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
        columns_(static_cast<int>(columns)),
        blocks_(Cluster::num_blocks()),
        row_(blockIdx.x / blocks_),
        step_(gridDim.x / blocks_) {
    // A row that begins and ends within vectors has one more of them.
    const bool even = columns_ % width == 0 && first_column(row_) == 0;
    const int all = columns_ / width + (even ? 0 : 2);
    slice_ = (all + blocks_ - 1) / blocks_;
    chunks_ = (slice_ + chunk_vectors - 1) / chunk_vectors;
    const int bytes = ptx::get_sreg_dynamic_smem_size() - RowStages::header_bytes;
    stages_ = (bytes / RowStages::chunk_bytes - shared * chunks_) / inputs;
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
  }

  /// As RegisterRows::run, for all rows of the block.
  template <class Reduce, class Combine, class Value>
  __device__ void run(T* output, T outside, const Reduce& reduce, const Combine& combine,
                      const Value& value) const {
    if (threadIdx.x < RowStages::workers) {
      reduce_all(outside, reduce);
    } else if (threadIdx.x < 2 * RowStages::workers) {
      using OfWarp = decltype(reduce([](const auto&) {}));
      write_all<OfWarp>(output, outside, combine, value);
    } else if (threadIdx.x % 32 == 0) {
      fetch_all();
    }
  }

 private:
  /// A block has reduced a row once it has written the third before, which all had then reduced,
  /// and so had written the sixth before: the place of that one's values is free.
  static constexpr int exchanges = 2 * RowStages::rows;

  using Cluster = cooperative_groups::cluster_group;
  using Vector = RowVector<T, width>;
  struct Header {
    std::uint64_t full[RowStages::most];
    std::uint64_t empty[RowStages::most];
    std::uint64_t exchanged[exchanges];
  };
  static_assert(sizeof(Header) <= RowStages::header_bytes);

  /// The block's vectors of a row. Vectors are aligned in memory: a row may begin within one.
  struct Slice {
    std::int64_t offset;  // of its first element in the tensors
    int column;           // of that element in the row, negative where it is of the row before
    int count;            // of vectors
  };

  /// The stage of a chunk, and how often it has been used before.
  struct Place {
    int stage = 0;
    unsigned uses = 0;

    __device__ void advance(int stages) {
      if (++stage == stages) {
        stage = 0;
        ++uses;
      }
    }
  };

  __device__ static Header& header() {
    extern __shared__ uint4 staged[];
    return *reinterpret_cast<Header*>(staged);
  }
  __device__ static Vector* stage_data(int stage, int input) {
    return reinterpret_cast<Vector*>(reinterpret_cast<char*>(&header()) +
                                     RowStages::bytes_for(stage * inputs + input));
  }

  /// What warps give to all blocks of the cluster for the row of a turn: a value each.
  template <class P>
  __device__ static P* values(int turn) {
    __shared__ P values[exchanges][RowStages::most_blocks * warps];
    return values[turn % exchanges];
  }

  /// Waits until a barrier has been passed `uses + 1` times.
  __device__ static void wait(std::uint64_t* barrier, unsigned uses) {
    while (!ptx::mbarrier_try_wait_parity(barrier, uses % 2)) {
    }
  }

  /// Of the first vector of a row: zero, or less.
  __device__ int first_column(std::int64_t row) const {
    const T* const first = data_.data[0] + row * columns_;
    return -static_cast<int>(reinterpret_cast<std::uintptr_t>(first) / sizeof(T) % width);
  }

  __device__ Slice slice_of(int turn) const {
    const std::int64_t row = row_ + turn * step_;
    const int before = first_column(row);
    const int first = static_cast<int>(Cluster::block_rank()) * slice_;
    const int all = (columns_ - before + width - 1) / width;
    const int column = before + first * width;
    return {row * columns_ + column, column, max(0, min(all - first, slice_))};
  }

  /// Whether vectors [first, last) of a slice are of the row, with all their elements.
  __device__ bool are_whole(const Slice& slice, int first, int last) const {
    return slice.column + first * width >= 0 && last <= slice.count &&
           slice.column + last * width <= columns_;
  }

  /// A bit for each element of a vector that is of the slice.
  __device__ unsigned elements_of(const Slice& slice, int at) const {
    const int column = slice.column + at * width;
    return at < slice.count ? element_bits(max(-column, 0), min(columns_ - column, width)) : 0;
  }

  /// The number in the slice of the thread's vector v of a chunk.
  __device__ static int number(int chunk, int v) {
    return chunk * chunk_vectors + v * RowStages::workers +
           static_cast<int>(threadIdx.x % RowStages::workers);
  }

  /// Asks for the chunks of all rows, in one thread: for the vectors that are of the row alone.
  __device__ void fetch_all() const {
    Place place;
    for (int turn = 0; turn < turns_; ++turn) {
      const Slice slice = slice_of(turn);
      for (int chunk = 0; chunk < chunks_; ++chunk, place.advance(stages_)) {
        std::uint64_t* const full = &header().full[place.stage];
        if (place.uses > 0) wait(&header().empty[place.stage], place.uses - 1);
        const int start = chunk * chunk_vectors;
        int first = start;
        int last = min(slice.count, start + chunk_vectors);
        if (first < last && !are_whole(slice, first, first + 1)) ++first;
        if (first < last && !are_whole(slice, last - 1, last)) --last;
        const unsigned bytes = 16 * max(0, last - first);
        ptx::mbarrier_arrive_expect_tx(ptx::sem_release, ptx::scope_cta, ptx::space_shared, full,
                                       bytes * inputs);
        if (bytes == 0) continue;
#pragma unroll
        for (int input = 0; input < inputs; ++input) {
          ptx::cp_async_bulk(ptx::space_cluster, ptx::space_global,
                             stage_data(place.stage, input) + (first - start),
                             data_.data[input] + slice.offset + first * width, bytes, full);
        }
      }
    }
  }

  /// Reduces all rows, in the threads that do.
  template <class Reduce>
  __device__ void reduce_all(T outside, const Reduce& reduce) const {
    Place place;
    for (int turn = 0; turn < turns_; ++turn) {
      const Slice slice = slice_of(turn);
      send(turn, reduce([&](const auto& visit) {
             for (int chunk = 0; chunk < chunks_; ++chunk, place.advance(stages_)) {
               wait(&header().full[place.stage], place.uses);
               with_part(slice, place.stage, chunk, outside, visit);
             }
           }));
    }
  }

  /// Writes the results of all rows, in the threads that do.
  template <class OfWarp, class Combine, class Value>
  __device__ void write_all(T* output, T outside, const Combine& combine,
                            const Value& value) const {
    if constexpr (shared > 0) keep_shared_rows();
    Place place;
    for (int turn = 0; turn < turns_; ++turn) {
      const Slice slice = slice_of(turn);
      const auto combined = combine([&](const auto& visit) { receive<OfWarp>(turn, visit); });
      for (int chunk = 0; chunk < chunks_; ++chunk, place.advance(stages_)) {
        wait(&header().full[place.stage], place.uses);
        with_part(slice, place.stage, chunk, outside, [&](auto& part) {
#pragma unroll
          for (int v = 0; v < vectors; ++v) {
            if (part.inside[v] == 0) continue;
#pragma unroll
            for (int i = 0; i < shared; ++i) part.data[inputs + i][v] = *shared_vector(i, chunk, v);
            const Vector vector = Part::results(v, [&](int i) { return value(part, i, combined); });
            T* const to = output + slice.offset + number(chunk, v) * width;
            if (part.inside[v] == Part::all) {
              vector.write_to(to);
              continue;
            }
#pragma unroll
            for (int j = 0; j < width; ++j) {
              if (part.inside[v] >> j & 1u) to[j] = vector[j];
            }
          }
        });
        __syncwarp();  // after the results: the chunk has been read, not only asked for
        if (threadIdx.x % 32 == 0) ptx::mbarrier_arrive(&header().empty[place.stage]);
      }
    }
  }

  /// Gives the value of this warp to all blocks of the cluster. The stores complete the barrier.
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
  __device__ void receive(int turn, const Visit& visit) const {
    wait(&header().exchanged[turn % exchanges], turn / exchanges);
    for (unsigned i = threadIdx.x % 32; i < blocks_ * warps; i += 32) visit(values<P>(turn)[i]);
  }

  /// Calls use(part) with the thread's part of a chunk.
  template <class Use>
  __device__ void with_part(const Slice& slice, int stage, int chunk, T outside,
                            const Use& use) const {
    const int start = chunk * chunk_vectors;
    Part part;
    if (are_whole(slice, start, start + chunk_vectors)) {
#pragma unroll
      for (int v = 0; v < vectors; ++v) {
        part.inside[v] = Part::all;
#pragma unroll
        for (int input = 0; input < inputs; ++input) {
          part.data[input][v] = stage_data(stage, input)[number(0, v)];
        }
      }
      use(part);  // compiled apart, for vectors that are known to be whole
      return;
    }
#pragma unroll
    for (int v = 0; v < vectors; ++v) {
      const int at = number(chunk, v);
      part.inside[v] = elements_of(slice, at);
#pragma unroll
      for (int input = 0; input < inputs; ++input) {
        if (part.inside[v] == Part::all) {
          part.data[input][v] = stage_data(stage, input)[at - start];
          continue;
        }
        const T* const from = data_.data[input] + slice.offset + at * width;
#pragma unroll
        for (int j = 0; j < width; ++j) {
          part.data[input][v].set(j, part.inside[v] >> j & 1u ? from[j] : outside);
        }
      }
    }
    use(part);
  }

  /// Where a thread keeps its vector v of a chunk of shared row i: behind the stages.
  __device__ Vector* shared_vector(int i, int chunk, int v) const {
    return stage_data(stages_, 0) + i * chunks_ * chunk_vectors + number(chunk, v);
  }

  /// Each thread that writes reads the vectors of shared rows that it will need once for all rows.
  __device__ void keep_shared_rows() const {
    const Slice slice = slice_of(0);
    for (int chunk = 0; chunk < chunks_; ++chunk) {
#pragma unroll
      for (int v = 0; v < vectors; ++v) {
        const int at = number(chunk, v);
        Part part;
        part.inside[v] = elements_of(slice, at);
        load_shared_rows(part, data_, v, slice.column + at * width);
#pragma unroll
        for (int i = 0; i < shared; ++i) *shared_vector(i, chunk, v) = part.data[inputs + i][v];
      }
    }
  }

  RowInputs<T, inputs, shared> data_;
  int columns_;
  unsigned blocks_;
  std::int64_t row_;   // the first
  std::int64_t step_;  // to the next
  int turns_;          // rows of the block
  int slice_;          // vectors of a row for each block, or what is left for the last ones
  int chunks_;         // of a slice
  int stages_;
};

#else

/// Never launched: has what the kernels name.
template <class T, int inputs, int shared = 0>
struct StagedRows : RegisterRows<T, inputs, RowLayout<0, 1, 1, false>, shared> {
  using RegisterRows<T, inputs, RowLayout<0, 1, 1, false>, shared>::RegisterRows;
};

#endif

}  // namespace cudarelu::cuda
