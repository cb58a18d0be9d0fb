// The mean and the variance of rows.
#pragma once

#include <limits>

#include "cudarelu/detail/cuda/row_vector.cuh"

namespace cudarelu::gpu {

__device__ __forceinline__ float fused(float a, float b, float c) { return fmaf(a, b, c); }
__device__ __forceinline__ double fused(double a, double b, double c) { return fma(a, b, c); }

/// a / b with an error of a few bits.
__device__ __forceinline__ float rough_quotient(float a, float b) { return __fdividef(a, b); }
__device__ __forceinline__ double rough_quotient(double a, double b) { return a / b; }

__device__ __forceinline__ float reciprocal_root(float x) {
  const float rough = rsqrtf(x);
  const float finer = fused(fused(-x * rough, rough, 1.0f), 0.5f * rough, rough);
  return x > 0x1p-100f && x < 0x1p100f ? finer : rough;  // else the correction overflows
}
__device__ __forceinline__ double reciprocal_root(double x) { return 1 / sqrt(x); }

/// The sums of x - base and (x - base)^2 over `count` numbers x. If the base is near the mean,
/// there is no cancellation, and the mean, base + sum / count, is more precise than C. Means are
/// computed as sums of shares, which do not overflow.
template <class C>
struct Moments {
  C base = 0;
  C sum = 0;
  C squares = 0;
  C count = 0;

  /// Adds an element, except to the count.
  __device__ void add(C x) {
    const C apart = x - base;
    sum += apart;
    squares = fused(apart, apart, squares);
  }

  /// Changes the base.
  __device__ void move_to(C to) {
    const C by = base - to;
    squares = fused(by, fused(count, by, 2 * sum), squares);
    sum = fused(count, by, sum);
    base = to;
  }

  /// Combines the moments of `lanes` neighbours in a warp, of `total` numbers; all get the result.
  template <int lanes>
  __device__ Moments of_lanes(C total) const {
    const C share = total == 0 ? C(0) : rough_quotient(C(1), total);
    // The mean, relative to the base of the first lane: exact for a row of one value, whose square
    // of a rounding error could be larger than eps. Halves do not overflow.
    const C half = C(0.5) * base;
    const C first = __shfl_sync(0xffffffffu, half, 0, lanes);
    const C apart = sum_in_warp<lanes>(fused(2 * count * share, half - first, sum * share));
    Moments moved = *this;
    moved.move_to(fused(C(2), first, apart));
    return {moved.base, sum_in_warp<lanes>(moved.sum), sum_in_warp<lanes>(moved.squares), total};
  }
  /// The same for a warp and an unknown total.
  __device__ Moments of_warp() const { return of_lanes<32>(sum_in_warp(count)); }
};

/// Adds the elements of one input of a part. The base is the mean of the first vector. That is near
/// enough: an element that is far from it is far from the mean of the row too.
template <class C, class Part>
__device__ void add_part(Moments<C>& moments, const Part& part, int input) {
  constexpr int width = Part::width;
  if (moments.count == 0) {
    C share = C(1) / width;
    if (part.inside[0] != Part::all) {
      share = rough_quotient(C(1), static_cast<C>(max(__popc(part.inside[0]), 1)));
    }
#pragma unroll
    for (int j = 0; j < width; ++j) {
      moments.base = fused(part(input, j), share, moments.base);  // 0 outside of the row
    }
  }
#pragma unroll
  for (int v = 0; v < Part::size / width; ++v) {
    if (part.inside[v] == Part::all) {
#pragma unroll
      for (int j = 0; j < width; ++j) moments.add(part(input, v * width + j));
      moments.count += width;
    } else if (part.inside[v] != 0) {
#pragma unroll
      for (int j = 0; j < width; ++j) {
        if (part.inside[v] >> j & 1u) moments.add(part(input, v * width + j));
      }
      moments.count += static_cast<C>(__popc(part.inside[v]));
    }
  }
}

/// Computes (x - mean) / sqrt(variance + eps): 0 if the squares of finite numbers overflow, NaN if
/// their sums do.
template <class C>
struct Normaliser {
  C base;
  C scale;
  C shift;

  /// `share` is 1 / count.
  __device__ Normaliser(const Moments<C>& moments, C share, C eps) : base(moments.base) {
    const C rest = moments.sum * share;
    const C variance = fused(moments.squares, share, fused(-rest, rest, eps));
    // By rounding, a variance may be less than 0. If it overflows, or is NaN since its terms do,
    // the scale is 0; if `rest` is NaN or infinite, the shift is NaN.
    scale = reciprocal_root(max(min(variance, std::numeric_limits<C>::infinity()), eps));
    shift = -rest * scale;
  }
  __device__ C operator()(C x) const { return fused(x - base, scale, shift); }
};

/// Writes value(part, i, normaliser) for each element i of each row, with the row's Normaliser.
template <class C, class Rows, class T, class Value>
__device__ void write_normalised(Rows rows, T* output, std::int64_t columns, C eps,
                                 const Value& value) {
  const auto total = static_cast<C>(columns);
  const C share = 1 / total;
  const auto reduce = [=](const auto& visit) {
    Moments<C> moments;
    visit([&](const auto& part) { add_part(moments, part, 0); });
    if constexpr (Rows::one_warp) {
      return Normaliser<C>(moments.template of_lanes<Rows::warp_lanes>(total), share, eps);
    } else {
      return moments.of_warp();
    }
  };
  const auto combine = [=](const auto& all) {
    Moments<C> moments;
    all([&](Moments<C> of_warp) {
      if (moments.count == 0) moments.base = of_warp.base;
      of_warp.move_to(moments.base);
      moments.sum += of_warp.sum;
      moments.squares += of_warp.squares;
      moments.count += of_warp.count;
    });
    return Normaliser<C>(moments.template of_lanes<32>(total), share, eps);
  };
  rows.run(output, T{}, Unchanged{}, reduce, combine, value);
}

}  // namespace cudarelu::gpu
