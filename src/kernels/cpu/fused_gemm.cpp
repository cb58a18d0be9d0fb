#include "cpu/fused_gemm.h"

#include <string>

#include "activation.h"
#include "cudarelu/detail/cpu/blocks.h"

namespace cudarelu::cpu {
namespace {

/// The elements of a strip of the output, whose epilogue runs while it is in a cache. Products of
/// fewer rows are slower, since the host packs b again for each.
constexpr std::int64_t strip_size = 1 << 20;
constexpr std::int64_t strip_rows = 512;

/// The fewest elements for a thread.
constexpr std::int64_t grain = 16384;

template <class T>
class Product {
 public:
  using C = Compute<T>;

  Product(const Call& call, const Gemm& gemm)
      : execution_(call.execution),
        gemm_(gemm),
        converts_(is_narrow<T> && !execution_.has_matmul(gemm.dtype)),
        finishes_(converts_ || gemm.activation != Activation::none || gemm.sum != nullptr ||
                  gemm.other != nullptr) {}

  Status run() {
    if (gemm_.batch == 0 || gemm_.m == 0 || gemm_.n == 0) return {};
    if (!finishes_ && gemm_.k > 0) return execution_.matmul(gemm_);
    // Some rows of a transposed matrix are not contiguous: the host does not accept them.
    const std::int64_t rows = gemm_.a_transposed && !converts_
                                  ? gemm_.m
                                  : std::min(gemm_.m, std::max(strip_rows, strip_size / gemm_.n));
    const std::int64_t matrices =
        std::clamp<std::int64_t>(strip_size / (gemm_.m * gemm_.n), 1, gemm_.batch);
    if (converts_) {
      if (Status status = reserve(matrices, rows); !status.ok()) return status;
    }
    for (std::int64_t matrix = 0; matrix < gemm_.batch; matrix += matrices) {
      const std::int64_t count = std::min(matrices, gemm_.batch - matrix);
      for (std::int64_t row = 0; row < gemm_.m; row += rows) {
        Status status = compute({matrix, count, row, std::min(rows, gemm_.m - row)});
        if (!status.ok()) return status;
      }
    }
    return {};
  }

 private:
  /// Several matrices of the batch, or some rows of one.
  struct Strip {
    std::int64_t first_matrix;
    std::int64_t matrices;
    std::int64_t first_row;
    std::int64_t rows;
  };

  /// Workspace for the operands and the product of a strip in float32.
  Status reserve(std::int64_t matrices, std::int64_t rows) {
    const std::int64_t size =
        gemm_.n + matrices * (rows * gemm_.k + gemm_.k * gemm_.n + rows * gemm_.n);
    const std::size_t bytes = static_cast<std::size_t>(size) * sizeof(float);
    wide_bias_ = static_cast<float*>(execution_.allocate(bytes));
    if (wide_bias_ == nullptr) {
      return {Status::Code::out_of_memory, "cannot allocate " + std::to_string(bytes) +
                                               " bytes of workspace for a matrix product"};
    }
    wide_a_ = wide_bias_ + gemm_.n;
    wide_b_ = wide_a_ + matrices * rows * gemm_.k;
    wide_d_ = wide_b_ + matrices * gemm_.k * gemm_.n;
    return {};
  }

  Status compute(const Strip& strip) {
    const std::int64_t first = strip.first_matrix * gemm_.m + strip.first_row;
    const std::int64_t rows = strip.matrices * strip.rows;
    Gemm part = gemm_;
    part.batch = strip.matrices;
    part.m = strip.rows;
    part.a = static_cast<const T*>(gemm_.a) + first * gemm_.k;
    part.b = static_cast<const T*>(gemm_.b) + strip.first_matrix * gemm_.k * gemm_.n;
    part.d = static_cast<T*>(gemm_.d) + first * gemm_.n;
    if (converts_) {
      part.dtype = DType::float32;
      part.a = gemm_.a_transposed && strip.rows < gemm_.m
                   ? widened_transposed(strip)
                   : widened(part.a, wide_a_, rows * gemm_.k);
      part.d = wide_d_;
      // All strips of one matrix use the same b and bias.
      if (strip.first_row == 0) widened(part.b, wide_b_, strip.matrices * gemm_.k * gemm_.n);
      if (gemm_.bias != nullptr) part.bias = widened(gemm_.bias, wide_bias_, gemm_.n);
      part.b = wide_b_;
    }
    if (gemm_.k == 0) {
      converts_ ? repeat_bias<C>(part, rows) : repeat_bias<T>(part, rows);
    } else if (Status status = execution_.matmul(part); !status.ok()) {
      return status;
    }
    if (finishes_) finish(first, rows);
    return {};
  }

  float* widened(const void* from, float* to, std::int64_t size) {
    if constexpr (is_narrow<T>) {
      execution_.parallel_for(size, grain, [&](std::int64_t begin, std::int64_t end) {
        vectorised<Width::full>(
            [&] { widen(static_cast<const T*>(from) + begin, to + begin, end - begin); });
      });
    }
    return to;
  }

  /// Copies some rows of a transposed matrix, which are columns in memory, to a matrix.
  float* widened_transposed(const Strip& strip) {
    if constexpr (is_narrow<T>) {
      const T* const from =
          static_cast<const T*>(gemm_.a) + strip.first_matrix * gemm_.m * gemm_.k + strip.first_row;
      const std::int64_t least = std::max<std::int64_t>(1, grain / strip.rows);
      execution_.parallel_for(gemm_.k, least, [&](std::int64_t begin, std::int64_t end) {
        vectorised<Width::full>([&] {
          for (std::int64_t k = begin; k < end; ++k) {
            widen(from + k * gemm_.m, wide_a_ + k * strip.rows, strip.rows);
          }
        });
      });
    }
    return wide_a_;
  }

  /// The result for k = 0.
  template <class E>
  static void repeat_bias(const Gemm& part, std::int64_t rows) {
    for (std::int64_t row = 0; row < rows; ++row) {
      E* const d = static_cast<E*>(part.d) + row * part.n;
      if (part.bias == nullptr) {
        std::fill_n(d, part.n, E{});
      } else {
        std::copy_n(static_cast<const E*>(part.bias), part.n, d);
      }
    }
  }

  /// The epilogue for rows of the output.
  void finish(std::int64_t first, std::int64_t rows) {
    const std::int64_t n = gemm_.n;
    const std::int64_t least = std::max<std::int64_t>(1, grain / n);
    execution_.parallel_for(rows, least, [&](std::int64_t begin, std::int64_t end) {
      vectorised<Width::full>([&] {
        for (std::int64_t row = begin; row < end; ++row) {
          for_each_block<T>(n, [&](std::int64_t column, std::int64_t count) {
            finish_block((first + row) * n + column, row * n + column, count);
          });
        }
      });
    });
  }

  /// The same for `count` elements from `offset` on; their float32, if any, is at `wide_offset`.
  void finish_block(std::int64_t offset, std::int64_t wide_offset, std::int64_t count) {
    T* const d = static_cast<T*>(gemm_.d) + offset;
    Block<C> block;
    C* values = nullptr;
    if constexpr (is_narrow<T>) {
      values = converts_ ? wide_d_ + wide_offset : block.data();
      if (!converts_) widen(d, values, count);
    } else {
      values = d;
    }
    if (gemm_.sum != nullptr) put(values, static_cast<T*>(gemm_.sum) + offset, count);
    visit_activation(gemm_.activation, [&](auto constant) {
      if constexpr (constant.value != Activation::none) {
        for_each_index(count,
                       [&](std::int64_t i) { values[i] = activated<constant.value>(values[i]); });
      }
    });
    if (gemm_.other != nullptr) combine(values, static_cast<const T*>(gemm_.other) + offset, count);
    if constexpr (is_narrow<T>) narrow(values, d, count);
  }

  void combine(C* values, const T* others, std::int64_t count) const {
    if constexpr (is_narrow<T>) {
      Block<C> wide;
      widen(others, wide.data(), count);
      combine_with(values, wide.data(), count);
    } else {
      combine_with(values, others, count);
    }
  }

  void combine_with(C* values, const C* others, std::int64_t count) const {
    const auto each = [&](auto constant) {
      for_each_index(count, [&](std::int64_t i) {
        values[i] = combined(constant.value, values[i], others[i]);
      });
    };
    if (gemm_.combine == Combine::add) {
      each(std::integral_constant<Combine, Combine::add>());
    } else {
      each(std::integral_constant<Combine, Combine::multiply>());
    }
  }

  static void put(const C* values, T* to, std::int64_t count) {
    if constexpr (is_narrow<T>) {
      narrow(values, to, count);
    } else {
      std::copy_n(values, count, to);
    }
  }

  Execution& execution_;
  const Gemm& gemm_;
  const bool converts_;  // from and to float32
  const bool finishes_;  // there is an epilogue after the product of the host
  float* wide_bias_ = nullptr;
  float* wide_a_ = nullptr;
  float* wide_b_ = nullptr;
  float* wide_d_ = nullptr;
};

}  // namespace

Status fused_gemm(const Call& call, const Gemm& gemm) {
  return visit_dtype<floating_types>(
      gemm.dtype, [&]<class T>(TypeTag<T>) { return Product<T>(call, gemm).run(); });
}

}  // namespace cudarelu::cpu
