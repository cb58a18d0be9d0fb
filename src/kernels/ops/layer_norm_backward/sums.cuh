// The sums over a row from which its gradient is computed.
#pragma once

#include "cudarelu/detail/cuda/moments.cuh"

namespace cudarelu::ops::layer_norm_gradient {

template <class T>
struct Arguments {
  const T* grad_y;
  const T* x;
  const T* weight;  // or nullptr
  T* grad_x;
  std::int64_t rows;
  std::int64_t columns;
  Compute<T> eps;
};

/// Sums over `count` elements of a row, where g is grad_y * weight and d is x - base.
template <class C>
struct alignas(2 * sizeof(C)) Sums {
  C base;  // near the mean of x
  C count;
  C d = 0;
  C squares = 0;  // of d
  C g = 0;
  C products = 0;  // of g * d

  /// Adds an element, except to the count.
  __device__ void add(C x, C g_i) {
    const C d_i = x - base;
    d += d_i;
    squares = gpu::fused(d_i, d_i, squares);
    g += g_i;
    products = gpu::fused(g_i, d_i, products);
  }

  /// Changes the base.
  __device__ void move_to(C to) {
    const C by = base - to;
    squares = gpu::fused(by, gpu::fused(count, by, 2 * d), squares);
    d = gpu::fused(count, by, d);
    products = gpu::fused(g, by, products);
    base = to;
  }

  /// Adds up the sums of `lanes` neighbours in a warp, which have one base; each gets the result.
  /// Does not change the count. After the first step a half of the lanes has two of the sums, after
  /// the second a quarter has one.
  template <int lanes>
  __device__ void add_lanes() {
    const auto fold = [](int distance, C low, C high) {
      const bool upper = threadIdx.x & distance;
      return (upper ? high : low) + __shfl_xor_sync(0xffffffffu, upper ? low : high, distance);
    };
    const C d_or_g = fold(lanes / 2, d, g);
    const C other = fold(lanes / 2, squares, products);
    const C one = gpu::sum_in_warp<lanes / 4>(fold(lanes / 4, d_or_g, other));
    const auto of_quarter = [&](int quarter) {
      return __shfl_sync(0xffffffffu, one, quarter * (lanes / 4), lanes);
    };
    d = of_quarter(0);
    squares = of_quarter(1);
    g = of_quarter(2);
    products = of_quarter(3);
  }
};

/// Computes grad_x of a row: scale * (g - mean(g) - normal * mean(g * normal)).
template <class C>
struct RowGradient {
  gpu::Normaliser<C> normalised;
  C factor;  // of g
  C slope;   // of normal
  C offset;

  /// `share` is 1 / columns.
  __device__ RowGradient(const Sums<C>& sums, C share, C eps)
      : normalised({sums.base, sums.d, sums.squares, sums.count}, share, eps) {
    const C scale = normalised.scale;
    // 0 for one column, where the rounding of `offset` would leave a difference.
    factor = share < 1 ? scale : C(0);
    // 0 for a variance that overflows, where the products may overflow too.
    slope = scale == 0
                ? C(0)
                : -gpu::fused(scale, sums.products, normalised.shift * sums.g) * share * scale;
    offset = -sums.g * share * factor;
  }

  /// grad_x of an element.
  __device__ C operator()(C normal, C g) const {
    return gpu::fused(normal, slope, gpu::fused(g, factor, offset));
  }
};

}  // namespace cudarelu::ops::layer_norm_gradient
