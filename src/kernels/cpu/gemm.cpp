#include "cpu/gemm.h"

#include <string>

#include "activation.h"
#include "cpu/blocks.h"

namespace cudarelu::cpu {
namespace {

/// Elements of the output that are computed before what follows them: they fit the second cache,
/// and are enough for a GEMM to be fast.
constexpr std::int64_t strip_size = 1 << 18;

/// Elements that a thread works on at least.
constexpr std::int64_t grain = 16384;

template <class T>
class Product {
 public:
  using C = Compute<T>;

  Product(const Call& call, const Gemm& gemm) : execution_(call.execution), gemm_(gemm) {}

  Status run() {
    if (gemm_.batch == 0 || gemm_.m == 0 || gemm_.n == 0) return {};
    const bool is_all = !is_narrow<T> && gemm_.bias == nullptr && gemm_.sum == nullptr &&
                        gemm_.activation == Activation::none;
    if (is_all && gemm_.k > 0) return execution_.gemm(gemm_);
    return run_in_strips();
  }

 private:
  /// Several matrices of the batch, or some rows of one.
  struct Strip {
    std::int64_t first_matrix;
    std::int64_t matrices;
    std::int64_t first_row;
    std::int64_t rows;
  };

  Status run_in_strips() {
    // The rows of a transposed matrix lie apart: no part of them is a matrix that the host takes.
    const std::int64_t rows =
        gemm_.a_transposed ? gemm_.m : std::clamp<std::int64_t>(strip_size / gemm_.n, 1, gemm_.m);
    const std::int64_t matrices =
        std::clamp<std::int64_t>(strip_size / (gemm_.m * gemm_.n), 1, gemm_.batch);
    if (Status status = reserve(matrices, rows); !status.ok()) return status;
    for (std::int64_t matrix = 0; matrix < gemm_.batch; matrix += matrices) {
      const std::int64_t count = std::min(matrices, gemm_.batch - matrix);
      for (std::int64_t row = 0; row < gemm_.m; row += rows) {
        Status status = compute({matrix, count, row, std::min(rows, gemm_.m - row)});
        if (!status.ok()) return status;
      }
    }
    return {};
  }

  /// Workspace for the factors and the product of a strip in float32.
  Status reserve(std::int64_t matrices, std::int64_t rows) {
    if constexpr (is_narrow<T>) {
      const std::int64_t size = matrices * (rows * gemm_.k + gemm_.k * gemm_.n + rows * gemm_.n);
      const std::size_t bytes = static_cast<std::size_t>(size) * sizeof(C);
      wide_a_ = static_cast<C*>(execution_.allocate(bytes));
      if (wide_a_ == nullptr) {
        return {Status::Code::out_of_memory,
                "no workspace of " + std::to_string(bytes) + " bytes for a matrix product"};
      }
      wide_b_ = wide_a_ + matrices * rows * gemm_.k;
      wide_d_ = wide_b_ + matrices * gemm_.k * gemm_.n;
    }
    return {};
  }

  Status compute(const Strip& strip) {
    const std::int64_t first = strip.first_matrix * gemm_.m + strip.first_row;
    Gemm part{.dtype = dtype_of<C>,
              .batch = strip.matrices,
              .m = strip.rows,
              .n = gemm_.n,
              .k = gemm_.k,
              .a = static_cast<const T*>(gemm_.a) + first * gemm_.k,
              .b = static_cast<const T*>(gemm_.b) + strip.first_matrix * gemm_.k * gemm_.n,
              .d = static_cast<T*>(gemm_.d) + first * gemm_.n,
              .a_transposed = gemm_.a_transposed,
              .b_transposed = gemm_.b_transposed};
    const std::int64_t rows = strip.matrices * strip.rows;
    if constexpr (is_narrow<T>) {
      part.a = widened(part.a, wide_a_, rows * gemm_.k);
      // The rows of one matrix have one factor.
      part.b = strip.first_row == 0 ? widened(part.b, wide_b_, strip.matrices * gemm_.k * gemm_.n)
                                    : wide_b_;
      part.d = wide_d_;
    }
    if (gemm_.k == 0) {
      std::fill_n(static_cast<C*>(part.d), rows * gemm_.n, C(0));
    } else if (Status status = execution_.gemm(part); !status.ok()) {
      return status;
    }
    const std::int64_t rows_at_least = std::max<std::int64_t>(1, grain / gemm_.n);
    execution_.parallel_for(rows, rows_at_least, [&](std::int64_t begin, std::int64_t end) {
      vectorised<Width::full>([&] {
        for (std::int64_t row = begin; row < end; ++row) {
          finish(static_cast<C*>(part.d) + row * gemm_.n, (first + row) * gemm_.n);
        }
      });
    });
    return {};
  }

  C* widened(const void* from, C* to, std::int64_t size) {
    execution_.parallel_for(size, grain, [&](std::int64_t begin, std::int64_t end) {
      vectorised<Width::full>(
          [&] { widen(static_cast<const T*>(from) + begin, to + begin, end - begin); });
    });
    return to;
  }

  /// What follows the product, for one row of it, which is to lie at `offset` in the outputs.
  void finish(C* row, std::int64_t offset) {
    for_each_block<T>(gemm_.n, [&](std::int64_t first, std::int64_t count) {
      C* const values = row + first;
      if (gemm_.bias != nullptr) {
        Block<C> block;
        const C* const bias = read(static_cast<const T*>(gemm_.bias) + first, count, block);
        for_each_index(count, [&](std::int64_t i) { values[i] += bias[i]; });
      }
      if (gemm_.sum != nullptr) put(values, gemm_.sum, offset + first, count);
      with_activation(gemm_.activation, [&](const auto& activation) {
        for_each_index(count, [&](std::int64_t i) { values[i] = activation(values[i]); });
      });
      if constexpr (is_narrow<T>) put(values, gemm_.d, offset + first, count);
    });
  }

  static void put(const C* values, void* tensor, std::int64_t offset, std::int64_t count) {
    T* const to = static_cast<T*>(tensor) + offset;
    if constexpr (is_narrow<T>) {
      narrow(values, to, count);
    } else {
      std::copy_n(values, count, to);
    }
  }

  Execution& execution_;
  const Gemm& gemm_;
  C* wide_a_ = nullptr;
  C* wide_b_ = nullptr;
  C* wide_d_ = nullptr;
};

}  // namespace

Status gemm(const Call& call, const Gemm& gemm) {
  return visit_dtype<floating_types>(
      gemm.dtype, [&]<class T>(TypeTag<T>) { return Product<T>(call, gemm).run(); });
}

}  // namespace cudarelu::cpu
