#include "cudarelu/detail/cuda/rows.cuh"
#include "ops/softmax.h"

namespace cudarelu::ops {
namespace {

template <class C>
inline constexpr C lowest = -std::numeric_limits<C>::infinity();

/// The larger number. Ignores NaN, which propagates through the sum.
__device__ float larger(float a, float b) { return fmaxf(a, b); }
__device__ double larger(double a, double b) { return fmax(a, b); }

/// exp(x - base), to the precision of T.
template <class T>
__device__ Compute<T> exp_above(Compute<T> x, Compute<T> base) {
  if constexpr (sizeof(T) == 2) {
    constexpr float log2_e = 1.4426950408889634f;
    float result;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"((x - base) * log2_e));
    return result;
  } else {
    return exp(x - base);
  }
}

/// The largest of some elements, and the sum of exp(element - largest).
template <class T>
struct Sums {
  Compute<T> largest;
  Compute<T> total;

  __device__ void raise(Compute<T> to) {
    if (total != 0 && largest != to) total *= exp_above<T>(largest, to);
    largest = to;
  }

  /// Combines the sums of `lanes` neighbours in a warp; each gets the result.
  template <int lanes>
  __device__ Sums of_lanes() const {
    using C = Compute<T>;
    Sums sums = *this;
    sums.raise(gpu::reduce_in_warp<lanes>(largest, [](C a, C b) { return larger(a, b); }));
    sums.total = gpu::sum_in_warp<lanes>(sums.total);
    return sums;
  }
};

/// a / b, to the precision of T. For 16 bits, the compiler computes 1 / b once for many a.
template <class T>
__device__ Compute<T> quotient(Compute<T> a, Compute<T> b) {
  if constexpr (sizeof(T) == 2) return a * (1 / b);
  return a / b;
}

/// Changes the elements of a part to exp(element - mark), where the mark is the largest element.
struct Exponentials {
  template <class Part>
  __device__ void operator()(Part& part) const {
    float largest = part(0, 0);
#pragma unroll
    for (int i = 1; i < Part::size; ++i) largest = larger(largest, part(0, i));
    part.mark = largest;
    const float base = largest == lowest<float> ? 0 : largest;  // -infinity less itself is NaN
#pragma unroll
    for (int v = 0; v < Part::size / Part::width; ++v) {
      if (part.inside[v] == 0) {
        part.data[0][v].fill(0);
        continue;
      }
#pragma unroll
      for (int j = 0; j < Part::width; ++j) {
        part.data[0][v].set(j, exp_above<float>(part(0, v * Part::width + j), base));
      }
    }
  }
};

template <class T, class Rows>
__global__ void __launch_bounds__(Rows::max_threads)
    softmax(gpu::RowInputs<T, 1> x, T* y, std::int64_t rows, std::int64_t columns) {
  using C = Compute<T>;
  // Exponentials take most of the time: in float32 they replace the elements. 16 bits are not
  // precise enough for them, and marks of float64 do not fit the shared memory of StagedRows.
  constexpr bool once = sizeof(T) == 4;
  const auto add = [](Sums<T>& sums, Sums<T> value) {
    sums.raise(larger(sums.largest, value.largest));
    value.raise(sums.largest);
    sums.total += value.total;
  };
  const auto reduce = [&](const auto& visit) {
    Sums<T> sums{lowest<C>, 0};
    visit([&](auto& part) {
      if constexpr (once) {
        Sums<T> of_part{part.mark, 0};
#pragma unroll
        for (int i = 0; i < part.size; ++i) of_part.total += part(0, i);
        add(sums, of_part);
      } else {
        C largest = sums.largest;
#pragma unroll
        for (int i = 0; i < part.size; ++i) largest = larger(largest, part(0, i));
        part.stay_packed();
        sums.raise(largest);
        const C base = largest == lowest<C> ? C(0) : largest;  // -infinity less itself is NaN
#pragma unroll
        for (int i = 0; i < part.size; ++i) sums.total += exp_above<T>(part(0, i), base);
      }
    });
    return sums.template of_lanes<Rows::warp_lanes>();
  };
  const auto combine = [&](const auto& all) {
    Sums<T> sums{lowest<C>, 0};
    all([&](Sums<T> value) { add(sums, value); });
    return sums.template of_lanes<32>();
  };
  const auto value = [](const auto& part, int i, const Sums<T>& sums) {
    if constexpr (once) {
      return part(0, i) * (exp_above<T>(part.mark, sums.largest) / sums.total);
    } else {
      return quotient<T>(exp_above<T>(part(0, i), sums.largest), sums.total);
    }
  };
  using Prepare = std::conditional_t<once, Exponentials, gpu::Unchanged>;
  Rows(x, rows, columns).run(y, cudarelu::store<T>(lowest<C>), Prepare{}, reduce, combine, value);
}

}  // namespace

Status Softmax::cuda(const Call& call) {
  return visit_dtype<spec.dtypes>(call.inputs[0].dtype, [&]<class T>(TypeTag<T>) {
    return gpu::launch_rows<T, 1>(call, []<class Rows>(TypeTag<Rows>) { return softmax<T, Rows>; });
  });
}

}  // namespace cudarelu::ops
