#include <cub/device/device_radix_sort.cuh>

#include "cudarelu/detail/cuda/launch.cuh"
#include "cudarelu/detail/workspace.h"
#include "ops/knn_query.h"
#include "ops/knn_query/search.cuh"
#include "ops/knn_query/threads.cuh"

namespace cudarelu::ops {
namespace {

/// Points or queries in the order of the curve: keys and indices, with storage to sort them.
struct Sorting {
  cub::DoubleBuffer<std::uint64_t> keys;
  cub::DoubleBuffer<std::int32_t> order;
};

/// The workspace of a search through a tree.
template <class C>
struct Workspace {
  Quantiles<C>* quantiles;
  Sorting points;
  Sorting queries;
  void* temporary;  // of the sorts
  Tree<C> tree{};

  /// Lays the parts out from `memory` on, and returns their size in bytes.
  std::size_t lay_out(char* memory, std::int64_t point_count, std::int64_t query_count,
                      std::size_t temporary_bytes) {
    std::size_t used = 0;
    const auto take = [&]<class T>(T*& part, std::int64_t count) {
      part = reinterpret_cast<T*>(memory + used);
      used += (static_cast<std::size_t>(count) * sizeof(T) + 255) / 256 * 256;
    };
    const auto take_sorting = [&](Sorting& sorting, std::int64_t count) {
      for (std::uint64_t*& keys : sorting.keys.d_buffers) take(keys, count);
      for (std::int32_t*& order : sorting.order.d_buffers) take(order, count);
    };
    take(quantiles, 1);
    take_sorting(points, point_count);
    take_sorting(queries, query_count);
    char* bytes = nullptr;
    take(bytes, static_cast<std::int64_t>(temporary_bytes));
    temporary = bytes;

    tree.size = static_cast<int>(point_count);
    tree.levels = 0;
    take(tree.points, point_count);
    std::int64_t count = point_count;
    for (int bits = leaf_bits; tree.levels == 0 || count > 32; bits = node_bits) {
      count = (count + (1 << bits) - 1) >> bits;
      take(tree.boxes[tree.levels], count);
      tree.counts[tree.levels++] = static_cast<int>(count);
    }
    return used;
  }
};

using ConfigForMany = TileConfig<8, 4, 8, 4096, 3>;
/// One block for each multiprocessor, with most of its shared memory.
struct ConfigForFew : TileConfig<16, 2, 16, 8192, 1> {
  static constexpr int max_queries = 16384;
};

template <class T>
class KnnCall {
  using C = Compute<T>;
  using S = SearchType<T>;

 public:
  explicit KnnCall(const Call& call)
      : call_(call),
        xyz_(static_cast<const T*>(call.inputs[0].data)),
        points_(call.inputs[0].shape[0]),
        queries_{.new_xyz = reals<T>(call.inputs[2].data),
                 .new_offset = static_cast<const std::int32_t*>(call.inputs[3].data),
                 .offset = static_cast<const std::int32_t*>(call.inputs[1].data),
                 .batches = call.inputs[1].shape[0],
                 .points = points_,
                 .count = call.inputs[2].shape[0],
                 .order = nullptr,
                 .own = false},
        results_{.idx = static_cast<std::int32_t*>(call.outputs[0].data),
                 .distance = reals<T>(call.outputs[1].data),
                 .nsample = static_cast<int>(call.integer(0))} {}

  Status run() {
    if (queries_.count == 0) return {};
    if (pays_for_tree()) return search_with_tree();
    if constexpr (std::is_same_v<C, float>) {
      if (results_.nsample <= max_tile_neighbours) return search_with_tiles();
    }
    return search_without_tree();
  }

 private:
  /// Building a tree takes tens of microseconds even for few points. The results are the same.
  bool pays_for_tree() const {
    if (queries_.batches == 0 || std::max(points_, queries_.count) > max_tree_points) return false;
    const std::int64_t batch = points_ / queries_.batches;
    if (std::is_same_v<C, float> && results_.nsample <= max_tile_neighbours) {
      return batch > 2048 && batch * queries_.count > std::int64_t{1} << 27;
    }
    return batch > 8192 || batch * queries_.count > std::int64_t{1} << 25;
  }

  /// Searches all points, in tiles in shared memory.
  Status search_with_tiles() const {
    if (queries_.count <= ConfigForFew::max_queries) {
      int points = 0;
      if (Status status = tile_points<ConfigForFew>(points); !status.ok()) return status;
      if (points >= ConfigForFew::points / 2) return search_with_tiles<ConfigForFew>(points);
    }
    int points = 0;
    if (Status status = tile_points<ConfigForMany>(points); !status.ok()) return status;
    return search_with_tiles<ConfigForMany>(points);
  }

  template <class TileConfig>
  static constexpr int tile_bytes(int points) {
    return static_cast<int>(sizeof(TilesStorage<TileConfig>) + points * sizeof(Point<float>));
  }

  /// The number of points of a tile for which a block has storage on the device.
  template <class TileConfig>
  Status tile_points(int& points) const {
    const int storage =
        gpu::number_of<cudaDevAttrMaxSharedMemoryPerBlockOptin>(call_.execution.device_index);
    points = TileConfig::points;
    while (points > 0 && tile_bytes<TileConfig>(points) > storage) points /= 2;
    if (points == 0) return {};
    return gpu::allow_shared_memory<search_tiles<S, TileConfig>>(call_,
                                                                 tile_bytes<TileConfig>(points));
  }

  /// In tiles of up to `points` points.
  template <class TileConfig>
  Status search_with_tiles(int points) const {
    const std::int64_t batch = points_ / std::max<std::int64_t>(queries_.batches, 1);
    while (points > 1024 && points / 2 >= batch) points /= 2;
    const gpu::Grid grid{gpu::blocks_for(queries_.count, TilesStorage<TileConfig>::queries),
                         TileConfig::warps * 32,
                         static_cast<std::size_t>(tile_bytes<TileConfig>(points))};
    return gpu::launch(call_, search_tiles<S, TileConfig>, grid, reals<T>(xyz_), queries_, results_,
                       points);
  }

  Status search_without_tree() const {
    return visit_list([&]<class List>(TypeTag<List>) {
      return launch_warps<List>(search_all<S, List>, reals<T>(xyz_), queries_, results_);
    });
  }

  Status search_with_tree() {
    queries_.own = queries_.new_xyz.data == xyz_ && queries_.count == points_ &&
                   queries_.new_offset == queries_.offset;
    const KeyBits bits(points_, queries_.batches);
    const std::int64_t other_queries = queries_.own ? 0 : queries_.count;
    Workspace<C> workspace;
    std::size_t sort_bytes = 0;
    Sorting none;
    if (Status status = sort(none, std::max(points_, other_queries), bits, nullptr, sort_bytes);
        !status.ok()) {
      return status;
    }
    const std::size_t bytes = workspace.lay_out(nullptr, points_, other_queries, sort_bytes);
    char* memory = nullptr;
    if (Status status = allocate(call_, static_cast<std::int64_t>(bytes), memory); !status.ok()) {
      return status;
    }
    workspace.lay_out(memory, points_, other_queries, sort_bytes);

    if (Status status = gpu::launch(call_, sample_quantiles<T>, {3, Quantiles<C>::count}, xyz_,
                                    points_, workspace.quantiles);
        !status.ok()) {
      return status;
    }
    const auto order = [&](const T* xyz, const std::int32_t* offset, std::int64_t count,
                           Sorting& sorting) -> Status {
      if (Status status =
              gpu::launch(call_, make_keys<T>, {gpu::blocks_for(count, tree_block), tree_block},
                          xyz, offset, count, queries_.batches, workspace.quantiles, bits,
                          sorting.keys.Current(), sorting.order.Current());
          !status.ok()) {
        return status;
      }
      return sort(sorting, count, bits, workspace.temporary, sort_bytes);
    };
    if (Status status = order(xyz_, queries_.offset, points_, workspace.points); !status.ok()) {
      return status;
    }
    if (!queries_.own) {
      if (Status status = order(static_cast<const T*>(queries_.new_xyz.data), queries_.new_offset,
                                queries_.count, workspace.queries);
          !status.ok()) {
        return status;
      }
    }
    queries_.order = (queries_.own ? workspace.points : workspace.queries).order.Current();
    if (Status status = make_boxes(workspace.tree, workspace.points.order.Current());
        !status.ok()) {
      return status;
    }
    return search(workspace.tree);
  }

  /// Sorts by the lower bits of the keys. If `temporary` is null, sets its size `bytes` only.
  Status sort(Sorting& sorting, std::int64_t count, const KeyBits& bits, void* temporary,
              std::size_t& bytes) const {
    const auto stream = static_cast<cudaStream_t>(call_.execution.stream);
    return gpu::check(
        call_, cub::DeviceRadixSort::SortPairs(temporary, bytes, sorting.keys, sorting.order,
                                               static_cast<int>(count), 0, bits.total(), stream));
  }

  Status make_boxes(const Tree<C>& tree, const std::int32_t* order) const {
    if (Status status =
            gpu::launch(call_, make_leaves<T>, {gpu::blocks_for(tree.size, tree_block), tree_block},
                        xyz_, order, tree);
        !status.ok()) {
      return status;
    }
    for (int level = 1; level < tree.levels; ++level) {
      const unsigned blocks = gpu::blocks_for(tree.counts[level - 1], tree_block);
      if (Status status = gpu::launch(call_, make_nodes<C>, {blocks, tree_block}, tree, level);
          !status.ok()) {
        return status;
      }
    }
    return {};
  }

  /// A thread for each query is cheapest, but for few queries leaves multiprocessors idle.
  Status search(const Tree<C>& tree) const {
    if constexpr (std::is_same_v<C, float>) {
      if (results_.nsample <= 32 && queries_.count > 16384) return search_by_threads(tree);
    }
    return visit_list([&]<class List>(TypeTag<List>) {
      return launch_warps<List>(search_by_warp<S, List>, tree, queries_, results_);
    });
  }

  Status search_by_threads(const Tree<float>& tree) const {
    const auto kernel = results_.nsample <= 8    ? search_by_thread<S, 8>
                        : results_.nsample <= 16 ? search_by_thread<S, 16>
                                                 : search_by_thread<S, 32>;
    constexpr int threads = threads_warps * 32;
    return gpu::launch(call_, kernel, {gpu::blocks_for(queries_.count, threads), threads}, tree,
                       queries_, results_);
  }

  /// Calls f(TypeTag<List>{}) with the best kind of list for nsample.
  template <class F>
  Status visit_list(const F& f) const {
    if (results_.nsample <= 32) return f(TypeTag<RegisterList<C, 1>>{});
    if (results_.nsample <= 64) return f(TypeTag<RegisterList<C, 2>>{});
    if (results_.nsample <= 128) return f(TypeTag<RegisterList<C, 4>>{});
    return f(TypeTag<SharedList<C>>{});
  }

  /// A warp for each query, with a list each.
  template <class List, class... Parameters>
  Status launch_warps(void (*kernel)(Parameters...),
                      std::type_identity_t<Parameters>... arguments) const {
    const int warps = results_.nsample > 128 ? 2 : search_warps;  // the lists must fit 48 KiB
    const gpu::Grid grid{gpu::blocks_for(queries_.count, warps), static_cast<unsigned>(warps) * 32,
                         warps * List::shared_bytes(results_.nsample)};
    return gpu::launch(call_, kernel, grid, arguments...);
  }

  const Call& call_;
  const T* xyz_;
  std::int64_t points_;
  Queries<S> queries_;
  Results<S> results_;
};

}  // namespace

Status KnnQuery::cuda(const Call& call) {
  return visit_dtype<spec.dtypes>(call.inputs[0].dtype,
                                  [&]<class T>(TypeTag<T>) { return KnnCall<T>(call).run(); });
}

}  // namespace cudarelu::ops
