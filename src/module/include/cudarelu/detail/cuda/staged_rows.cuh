// Rows staged in shared memory (compute capability 9.0 and later): a block, or a cluster of blocks,
// processes one row after the other, while the copy engine brings the next rows.
//
// Each block has a range of each row, in chunks, and keeps its range of the shared rows. Its warps
// have four tasks and run independently: one thread requests chunks in order, as long as there are
// free stages; 8 warps reduce chunks as they arrive; one warp combines the values of a row when all
// blocks have reduced it; 8 warps write the results. A stage is free again when the writing warps
// have read its chunk.
//
// Example: a float32 row of 32,768 columns is 8,192 vectors. A cluster of 4 blocks has slices of
// 2,048 vectors, which are 2 chunks of 16 KiB, and 8 stages for 4 rows. While row 0 is written, row
// 1 is combined, row 2 can be reduced and row 3 can arrive.
//
// Multiprocessors differ in memory bandwidth. So rows are not assigned in advance: a cluster draws
// a ticket for its next row when it has requested all chunks of the row before.
#pragma once

#include "cudarelu/detail/cuda/cluster.cuh"
#include "cudarelu/detail/cuda/launch.cuh"
#include "cudarelu/detail/cuda/register_rows.cuh"

#if __CUDA_ARCH__ >= 900
#include <cuda/ptx>
#endif

namespace cudarelu::gpu {

/// How the shared memory of a block is used: for barriers, and for the chunks in a ring of stages.
struct RowStages {
  static constexpr int workers = 256;               // threads that reduce; as many others write
  static constexpr int threads = 2 * workers + 64;  // with the warps that request and combine
  static constexpr int chunk_bytes = 64 * workers;  // of one input: four vectors per thread
  static constexpr int most = 192 * 1024 / chunk_bytes;  // in a block; values use the rest
  static constexpr int rows = 4;                         // in shared memory at the same time
  static constexpr int max_blocks = 16;  // in a cluster; a device may support only 8
  static constexpr int kinds = 8;        // most kinds of rows: see take_row()
  static constexpr int header_bytes = 512;

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
  static constexpr int max_threads = RowStages::threads;
  /// For __launch_bounds__(): 1 allows all registers to the one block that fits; 0: the compiler
  /// decides, and takes fewer.
  static constexpr int min_blocks = sizeof(T) == 2 ? 1 : 0;
  static constexpr int warp_lanes = 32;
  static constexpr bool one_warp = false;

  __device__ StagedRows(const RowInputs<T, inputs, shared>& data, std::int64_t rows,
                        std::int64_t columns)
      : data_(data),
        columns_(static_cast<int>(columns)),
        blocks_(blocks_of_cluster()),
        rows_(rows),
        row_(blockIdx.x / blocks_),
        step_(gridDim.x / blocks_) {
    kinds_ = shared == 0 || columns_ % width == 0 ? 1 : width;
    slice_ = (columns_ / width + blocks_ - 1) / blocks_;
    chunks_ = (slice_ + chunk_vectors - 1) / chunk_vectors;
    const int bytes = ptx::get_sreg_dynamic_smem_size() - RowStages::header_bytes;
    stages_ = (bytes - shared * slice_ * 16) / RowStages::chunk_bytes / inputs;
    if (threadIdx.x == 0) {
      for (int stage = 0; stage < stages_; ++stage) {
        ptx::mbarrier_init(&header().full[stage], 1);
        ptx::mbarrier_init(&header().empty[stage], warps);
      }
      for (auto& barrier : header().exchanged) ptx::mbarrier_init(&barrier, warps);
      for (auto& barrier : header().combined) ptx::mbarrier_init(&barrier, 1);
      for (auto& barrier : header().taken) ptx::mbarrier_init(&barrier, 1);
      ptx::fence_mbarrier_init(ptx::sem_release, ptx::scope_cluster);
    }
    arrive_at_cluster();
    wait_for_cluster();
    wait_for_previous_kernel();
  }

  /// As RegisterRows::run, for all rows of the block.
  template <class Prepare, class Reduce, class Combine, class Value>
  __device__ void run(T* output, T outside, const Prepare& prepare, const Reduce& reduce,
                      const Combine& combine, const Value& value) const {
    using OfWarp = decltype(reduce([](const auto&) {}));
    using OfRow = decltype(combine([](const auto&) {}));
    if (threadIdx.x < RowStages::workers) {
      reduce_all(outside, prepare, reduce);
    } else if (threadIdx.x < 2 * RowStages::workers) {
      write_all<OfRow>(output, prepare, value);
    } else if (threadIdx.x >= 2 * RowStages::workers + 32) {
      combine_all<OfWarp, OfRow>(combine);
    } else if (threadIdx.x % 32 == 0) {
      fetch_all<!std::is_same_v<Prepare, Unchanged>>();
    }
  }

 private:
  /// The slots for the values of rows. Eight are enough: a block that sends values of row 8 to the
  /// slot of row 0 has reduced row 8 in stages of row 4, and so has written row 4. For that, all
  /// blocks had reduced row 4, in stages of row 0, and so had combined and written row 0.
  static constexpr int exchanges = 2 * RowStages::rows;
  /// The slots for numbers of rows: one more, since they are taken an iteration ahead, and one to
  /// spare.
  static constexpr int takes = exchanges + 2;

  using Vector = RowVector<T, width>;
  struct Header {
    std::uint64_t full[RowStages::most];
    std::uint64_t empty[RowStages::most];
    std::uint64_t exchanged[exchanges];
    std::uint64_t combined[exchanges];
    std::uint64_t taken[takes];
    std::int64_t rows[takes];
  };
  static_assert(sizeof(Header) <= RowStages::header_bytes);

  /// The block's range of a row: aligned vectors, and in the first and the last block the elements
  /// before and after all vectors. Example: 30 float32 of which the first is at element 1 of a
  /// vector are a head of 3, 6 vectors of 4, and a tail of 3.
  struct RowRange {
    std::int64_t offset;  // of the first vector in the tensors
    int column;           // the same in the row
    int count;            // of vectors
    int head;
    int tail;
  };

  /// One element of a row.
  using Element = RowPart<T, inputs + shared, 1, 1>;

  /// The stage of a chunk, and how many times it has been used before.
  struct RingPosition {
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

  /// The values for the row of a iteration: one from each warp of each block of the cluster.
  template <class P>
  __device__ static P* values(int iteration) {
    __shared__ alignas(8) P values[exchanges][RowStages::max_blocks * warps];
    return values[iteration % exchanges];
  }

  /// The value for the row of a iteration, from those of all warps.
  template <class R>
  __device__ static R* combined(int iteration) {
    __shared__ alignas(R) char values[exchanges][sizeof(R)];
    return reinterpret_cast<R*>(values[iteration % exchanges]);
  }

  /// The mark of the thread's part of the chunk in a stage.
  __device__ static Compute<T>& mark_of(int stage) {
    __shared__ Compute<T> marks[RowStages::most][RowStages::workers];
    return marks[stage][threadIdx.x % RowStages::workers];
  }

  /// Waits until a barrier has completed `uses + 1` phases.
  __device__ static void wait(std::uint64_t* barrier, unsigned uses) {
    while (!ptx::mbarrier_try_wait_parity(barrier, uses % 2)) {
    }
  }

  /// The row of a iteration, or a number past the last row if the cluster has no more.
  __device__ std::int64_t row_of(int iteration) const {
    if (iteration == 0) return row_;
    const int slot = (iteration - 1) % takes;
    wait(&header().taken[slot], (iteration - 1) / takes);
    return header().rows[slot];
  }

  /// Takes the row of the iteration after `iteration` for all blocks of the cluster, in one thread
  /// of each. Rows of one kind begin at the same element of a vector. A block keeps the shared rows
  /// with the alignment of one kind, so that it takes rows of its `kind` while there are any.
  /// tickets[kind] counts the rows of a kind that were taken after iteration 0; without tickets
  /// there are no more rows. Example: rows of 33 float32 have 4 kinds; with 6 clusters, iteration 0
  /// takes rows 0-5, among them rows 0 and 4 of kind 0, and the first ticket of kind 0 is row 8.
  __device__ void take_row(int iteration, int& kind) const {
    const int slot = iteration % takes;
    std::uint64_t* const barrier = &header().taken[slot];
    if (blocks_ > 1) {
      ptx::mbarrier_arrive_expect_tx(ptx::sem_release, ptx::scope_cta, ptx::space_shared, barrier,
                                     sizeof(std::int64_t));
      if (rank_in_cluster() != 0) return;
    }
    std::int64_t row = rows_;
    for (int tries = 0; data_.tickets != nullptr && tries < kinds_; ++tries) {
      const std::int64_t first = (step_ - kind + kinds_ - 1) / kinds_;  // after iteration 0
      row = kind + kinds_ * (first + atomicAdd(data_.tickets + kind, 1u));
      if (row < rows_) break;
      kind = (kind + 1) % kinds_;
    }
    if (blocks_ == 1) {  // asynchronous stores are for clusters of two or more
      header().rows[slot] = row;
      ptx::mbarrier_arrive(barrier);
      return;
    }
    for (unsigned i = 0; i < blocks_; ++i) {
      ptx::st_async(of_cluster(&header().rows[slot], i), row, of_cluster(barrier, i));
    }
  }

  __device__ RowRange range_of(std::int64_t row) const {
    const T* const first = data_.data[0] + row * columns_;
    const int past = static_cast<int>(reinterpret_cast<std::uintptr_t>(first) / sizeof(T) % width);
    const int head = past == 0 ? 0 : width - past;
    const int all = (columns_ - head) / width;
    const unsigned rank = rank_in_cluster();
    const int before = static_cast<int>(rank) * slice_;
    const int column = head + before * width;
    return {row * columns_ + column, column, max(0, min(all - before, slice_)),
            rank == 0 ? head : 0, rank == blocks_ - 1 ? (columns_ - head) % width : 0};
  }

  /// The column of the element of the head or the tail that the thread has, or -1.
  __device__ int end_column(const RowRange& range) const {
    const auto i = static_cast<int>(threadIdx.x % RowStages::workers);
    if (i < range.head) return i;
    return i >= width && i < width + range.tail ? columns_ - range.tail + i - width : -1;
  }

  __device__ Element element_at(const RowRange& range, int column) const {
    Element element;
    element.inside[0] = column >= 0;
    if (column >= 0) {
#pragma unroll
      for (int input = 0; input < inputs; ++input) {
        element.data[input][0].set(0, data_.data[input][range.offset - range.column + column]);
      }
    }
    return element;
  }

  /// The position in the range of the thread's vector v of a chunk.
  __device__ static int number(int chunk, int v) {
    return chunk * chunk_vectors + v * RowStages::workers +
           static_cast<int>(threadIdx.x % RowStages::workers);
  }

  /// Requests the vectors of all rows, chunk by chunk, in one thread. `prepares`: threads have
  /// written to the previous chunk of a stage, which a fence orders before the copy.
  template <bool prepares>
  __device__ void fetch_all() const {
    RingPosition position;
    auto kind = static_cast<int>(row_ % kinds_);
    for (int iteration = 0;; ++iteration) {
      const std::int64_t row = row_of(iteration);
      if (row >= rows_) break;
      const RowRange range = range_of(row);
      for (int chunk = 0; chunk < chunks_; ++chunk, position.advance(stages_)) {
        std::uint64_t* const full = &header().full[position.stage];
        if (position.uses > 0) {
          wait(&header().empty[position.stage], position.uses - 1);
          if constexpr (prepares) ptx::fence_proxy_async(ptx::space_shared);
        }
        const int start = chunk * chunk_vectors;
        const unsigned bytes = 16 * max(0, min(range.count - start, chunk_vectors));
        ptx::mbarrier_arrive_expect_tx(ptx::sem_release, ptx::scope_cta, ptx::space_shared, full,
                                       bytes * inputs);
        if (bytes == 0) continue;
#pragma unroll
        for (int input = 0; input < inputs; ++input) {
          ptx::cp_async_bulk(ptx::space_cluster, ptx::space_global,
                             stage_data(position.stage, input),
                             data_.data[input] + range.offset + start * width, bytes, full);
        }
      }
      take_row(iteration, kind);
    }
  }

  /// Reduces all rows, in the first RowStages::workers threads.
  template <class Prepare, class Reduce>
  __device__ void reduce_all(T outside, const Prepare& prepare, const Reduce& reduce) const {
    constexpr bool prepares = !std::is_same_v<Prepare, Unchanged>;
    RingPosition position;
    for (int iteration = 0;; ++iteration) {
      const std::int64_t row = row_of(iteration);
      if (row >= rows_) break;
      const RowRange range = range_of(row);
      Element end = element_at(range, end_column(range));  // early: it comes from global memory
      send(iteration, reduce([&](const auto& visit) {
             for (int chunk = 0; chunk < chunks_; ++chunk, position.advance(stages_)) {
               wait(&header().full[position.stage], position.uses);
               with_part(range, position.stage, chunk, outside, [&](auto& part) {
                 if constexpr (prepares) {
                   static_assert(inputs == 1);
                   prepare(part);
#pragma unroll
                   for (int v = 0; v < vectors; ++v) {
                     stage_data(position.stage, 0)[number(0, v)] = part.data[0][v];
                   }
                   mark_of(position.stage) = part.mark;
                 }
                 visit(part);
               });
             }
             if (end.inside[0]) {
               prepare(end);
               visit(end);
             }
           }));
    }
  }

  /// Writes the results of all rows, in the next RowStages::workers threads.
  template <class OfRow, class Prepare, class Value>
  __device__ void write_all(T* output, const Prepare& prepare, const Value& value) const {
    RingPosition position;
    Element shared_end;  // the thread's element of the shared rows
    int kept = -1;       // the kind of the shared rows
    for (int iteration = 0;; ++iteration) {
      const std::int64_t row = row_of(iteration);
      if (row >= rows_) break;
      const RowRange range = range_of(row);
      const int column = end_column(range);
      Element end = element_at(range, column);
      if constexpr (shared > 0) {
        const auto kind = static_cast<int>(row % kinds_);
        if (kind != kept) {
          keep_shared_rows(range);
          shared_end.inside[0] = end.inside[0];
          if (column >= 0) load_shared_rows(shared_end, data_, 0, column);
        }
        kept = kind;
      }
      wait(&header().combined[iteration % exchanges], iteration / exchanges);
      const OfRow of_row = *combined<OfRow>(iteration);
      for (int chunk = 0; chunk < chunks_; ++chunk, position.advance(stages_)) {
        wait(&header().full[position.stage], position.uses);
        // Unrolled, it would be no faster, and slower for a chunk that is not full.
        const int end_of_chunk = min(range.count, (chunk + 1) * chunk_vectors);
        const Vector* from = stage_data(position.stage, 0) + number(0, 0);
#pragma unroll 1
        for (int at = number(chunk, 0); at < end_of_chunk; at += RowStages::workers) {
          RowPart<T, inputs + shared, 1, width> part;
          part.inside[0] = part.all;
          if constexpr (!std::is_same_v<Prepare, Unchanged>) part.mark = mark_of(position.stage);
#pragma unroll
          for (int input = 0; input < inputs; ++input) {
            part.data[input][0] = from[input * (RowStages::chunk_bytes / 16)];
          }
#pragma unroll
          for (int i = 0; i < shared; ++i) part.data[inputs + i][0] = *shared_vector(i, at);
          part.results(0, [&](int i) { return value(part, i, of_row); })
              .write_to(output + range.offset + at * width);
          from += RowStages::workers;
        }
        __syncwarp();  // after the results, which need the reads of the chunk to be complete
        if (threadIdx.x % 32 == 0) ptx::mbarrier_arrive(&header().empty[position.stage]);
      }
      if (column >= 0) {
        prepare(end);
#pragma unroll
        for (int i = 0; i < shared; ++i) end.data[inputs + i][0] = shared_end.data[inputs + i][0];
        const auto result = Element::results(0, [&](int i) { return value(end, i, of_row); });
        output[range.offset - range.column + column] = result[0];
      }
    }
  }

  /// Sends the value of this warp to all blocks of the cluster. The stores complete the barrier.
  template <class P>
  __device__ void send(int iteration, const P& value) const {
    std::uint64_t* const barrier = &header().exchanged[iteration % exchanges];
    const unsigned lane = threadIdx.x % 32;
    P* const slot = values<P>(iteration) + rank_in_cluster() * warps + threadIdx.x / 32;
    __syncwarp();        // the barrier makes what the warp has written to stages visible
    if (blocks_ == 1) {  // as in take_row()
      if (lane != 0) return;
      *slot = value;
      ptx::mbarrier_arrive(barrier);
      return;
    }
    if (threadIdx.x == 0) {
      ptx::mbarrier_arrive_expect_tx(ptx::sem_release, ptx::scope_cta, ptx::space_shared, barrier,
                                     blocks_ * warps * static_cast<unsigned>(sizeof(P)));
    } else if (lane == 0) {
      ptx::mbarrier_arrive(barrier);
    }
    if (lane >= blocks_) return;
    using Word = std::conditional_t<sizeof(P) == 4, std::int32_t, std::int64_t>;
    static_assert(sizeof(P) % sizeof(Word) == 0, "a value has 4 bytes or a multiple of 8");
    constexpr int words = sizeof(P) / sizeof(Word);
    auto* const to = reinterpret_cast<Word*>(of_cluster(slot, lane));
    alignas(8) const P aligned = value;
    const auto* const from = reinterpret_cast<const Word*>(&aligned);
#pragma unroll
    for (int i = 0; i < words; ++i) {
      ptx::st_async(to + i, from[i], of_cluster(barrier, lane));
    }
  }

  /// Combines the values of all rows, in one warp.
  template <class OfWarp, class OfRow, class Combine>
  __device__ void combine_all(const Combine& combine) const {
    for (int iteration = 0; row_of(iteration) < rows_; ++iteration) {
      const OfRow of_row = combine([&](const auto& visit) { receive<OfWarp>(iteration, visit); });
      if (threadIdx.x % 32 == 0) {
        *combined<OfRow>(iteration) = of_row;
        ptx::mbarrier_arrive(&header().combined[iteration % exchanges]);
      }
    }
  }

  template <class P, class Visit>
  __device__ void receive(int iteration, const Visit& visit) const {
    wait(&header().exchanged[iteration % exchanges], iteration / exchanges);
    for (unsigned i = threadIdx.x % 32; i < blocks_ * warps; i += 32)
      visit(values<P>(iteration)[i]);
  }

  /// Calls use(part) with the thread's part of a chunk.
  template <class Use>
  __device__ void with_part(const RowRange& range, int stage, int chunk, T outside,
                            const Use& use) const {
    if (number(chunk, 0) >= range.count) return;
    Part part;
    if (number(chunk, vectors - 1) < range.count) {
#pragma unroll
      for (int v = 0; v < vectors; ++v) {
        part.inside[v] = Part::all;
#pragma unroll
        for (int input = 0; input < inputs; ++input) {
          part.data[input][v] = stage_data(stage, input)[number(0, v)];
        }
      }
      use(part);  // compiled separately, for vectors that all exist
      return;
    }
#pragma unroll
    for (int v = 0; v < vectors; ++v) {
      const bool inside = number(chunk, v) < range.count;
      part.inside[v] = inside ? Part::all : 0;
#pragma unroll
      for (int input = 0; input < inputs; ++input) {
        if (inside) {
          part.data[input][v] = stage_data(stage, input)[number(0, v)];
        } else {
          part.data[input][v].fill(outside);
        }
      }
    }
    use(part);
  }

  /// A vector of the range of shared row i, which is after the stages.
  __device__ Vector* shared_vector(int i, int at) const {
    return stage_data(stages_, 0) + i * slice_ + at;
  }

  /// Each writing thread copies its vectors of the shared rows, which it needs for many rows.
  __device__ void keep_shared_rows(const RowRange& range) const {
    const auto first = static_cast<int>(threadIdx.x % RowStages::workers);
#pragma unroll 4
    for (int at = first; at < range.count; at += RowStages::workers) {
      RowPart<T, inputs + shared, 1, width> part;
      part.inside[0] = part.all;
      load_shared_rows(part, data_, 0, range.column + at * width);
#pragma unroll
      for (int i = 0; i < shared; ++i) *shared_vector(i, at) = part.data[inputs + i][0];
    }
  }

  RowInputs<T, inputs, shared> data_;
  int columns_;
  unsigned blocks_;
  std::int64_t rows_;
  std::int64_t row_;   // of iteration 0
  std::int64_t step_;  // the number of clusters
  int kinds_;          // of rows: see take_row()
  int slice_;          // vectors of a row for each block; the last ones may have fewer
  int chunks_;         // of a slice
  int stages_;
};

#else

/// Never launched; the kernels compile with it.
template <class T, int inputs, int shared = 0>
struct StagedRows : RegisterRows<T, inputs, RowLayout<0, 1, 1, false>, shared> {
  using RegisterRows<T, inputs, RowLayout<0, 1, 1, false>, shared>::RegisterRows;
};

#endif

}  // namespace cudarelu::gpu
