#include "ops/grid_cluster.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <sstream>
#include <vector>

#include "cudarelu/detail/cpu/vectorised.h"

namespace cudarelu::ops {
namespace {

constexpr std::int64_t points_of_task = 8192;

template <class T>
struct Points {
  const T* pos;
  std::int64_t n;
  std::int64_t dims;
};

template <class C>
struct Grid {
  std::vector<C> size;
  std::vector<C> start;
  std::vector<C> end;
  std::vector<std::int64_t> strides;
};

/// The minimum of a and b in the order `before`, or NaN if one of them is.
template <class C, class Before>
C extreme(C a, C b, const Before& before) {
  return before(b, a) || std::isnan(b) ? b : a;
}

/// The extremes of each dimension.
template <class T, class C, class Before>
std::vector<C> extremes_of(const Call& call, const Points<T>& points, const Before& before) {
  const std::int64_t dims = points.dims;
  if (points.n == 0) return std::vector<C>(static_cast<std::size_t>(dims));
  const std::int64_t tasks = (points.n + points_of_task - 1) / points_of_task;
  std::vector<C> of_tasks(static_cast<std::size_t>(tasks * dims));
  call.execution.parallel_for(tasks, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t task = begin; task < end; ++task) {
      C* const found = of_tasks.data() + task * dims;
      const std::int64_t first = task * points_of_task;
      const std::int64_t last = std::min(points.n, first + points_of_task);
      for (std::int64_t dim = 0; dim < dims; ++dim) {
        C result = load(points.pos[first * dims + dim]);
        for (std::int64_t i = first + 1; i < last; ++i) {
          result = extreme(result, load(points.pos[i * dims + dim]), before);
        }
        found[dim] = result;
      }
    }
  });
  std::vector<C> result(of_tasks.begin(), of_tasks.begin() + dims);
  for (std::size_t i = result.size(); i < of_tasks.size(); ++i) {
    C& found = result[i % result.size()];
    found = extreme(found, of_tasks[i], before);
  }
  return result;
}

/// Sets the strides. An error if the number of cells does not fit int64.
template <class C>
Status count_cells(Grid<C>& grid) {
  std::int64_t stride = 1;
  double cells = 1;
  for (std::size_t dim = 0; dim < grid.size.size(); ++dim) {
    grid.strides.push_back(stride);
    const C extent = grid.end[dim] - grid.start[dim];
    stride = wrapping_sum(stride, truncated(extent / grid.size[dim]), stride);
    const double quotient = static_cast<double>(extent) / static_cast<double>(grid.size[dim]);
    if (std::isfinite(quotient)) cells *= std::max(1.0, std::abs(std::trunc(quotient) + 1));
  }
  if (cells < 0x1p63) return {};
  std::ostringstream message;
  message << "grid_cluster: there are " << cells
          << " cells between start and end, more than int64 holds; take larger sizes";
  return {Status::Code::invalid_argument, message.str()};
}

/// `dims_` is the number of dimensions if it is small, to unroll loops; else 0.
template <int dims_, class T, class C>
void map_points(const Points<T>& points, const Grid<C>& grid, std::int64_t* cluster,
                std::int64_t begin, std::int64_t end) {
  const std::int64_t dims = dims_ > 0 ? dims_ : points.dims;
  const C* const size = grid.size.data();
  const C* const start = grid.start.data();
  const std::int64_t* const strides = grid.strides.data();
  cpu::for_each_index(end - begin, [&](std::int64_t i) {
    const T* const point = points.pos + (begin + i) * dims;
    std::int64_t result = 0;
    for (std::int64_t dim = 0; dim < dims; ++dim) {
      result = wrapping_sum(result, truncated((load(point[dim]) - start[dim]) / size[dim]),
                            strides[dim]);
    }
    cluster[begin + i] = result;
  });
}

}  // namespace

Status GridCluster::cpu(const Call& call) {
  return visit_dtype<spec.dtypes>(call.inputs[0].dtype, [&]<class T>(TypeTag<T>) {
    using C = Compute<T>;
    const Points<T> points{static_cast<const T*>(call.inputs[0].data), call.inputs[0].shape[0],
                           call.inputs[0].shape[1]};
    const auto numbers = [&](const TensorView& tensor) {
      const auto* const values = static_cast<const T*>(tensor.data);
      std::vector<C> result(static_cast<std::size_t>(points.dims));
      std::transform(values, values + points.dims, result.begin(), load<T>);
      return result;
    };
    Grid<C> grid;
    grid.size = numbers(call.inputs[1]);
    grid.start = call.inputs[2].present ? numbers(call.inputs[2])
                                        : extremes_of<T, C>(call, points, std::less<C>());
    grid.end = call.inputs[3].present ? numbers(call.inputs[3])
                                      : extremes_of<T, C>(call, points, std::greater<C>());
    if (Status status = count_cells(grid); !status.ok()) return status;
    auto* const cluster = static_cast<std::int64_t*>(call.outputs[0].data);
    call.execution.parallel_for(points.n, points_of_task,
                                [&](std::int64_t begin, std::int64_t end) {
                                  cpu::vectorised<cpu::Width::full>([&] {
                                    switch (points.dims) {
                                      case 1:
                                        return map_points<1>(points, grid, cluster, begin, end);
                                      case 2:
                                        return map_points<2>(points, grid, cluster, begin, end);
                                      case 3:
                                        return map_points<3>(points, grid, cluster, begin, end);
                                      default:
                                        return map_points<0>(points, grid, cluster, begin, end);
                                    }
                                  });
                                });
    return Status();
  });
}

}  // namespace cudarelu::ops
