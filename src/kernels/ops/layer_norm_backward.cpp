#include "ops/layer_norm_backward.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <string>

#include "cudarelu/detail/cpu/moments.h"

namespace cudarelu::ops {
namespace {

constexpr std::int64_t max_parts = 64;  // of the rows, independent of the number of threads
constexpr std::int64_t group = 64;      // rows that are added up in C, then in float64

template <class T>
struct Tensors {
  const T* grad_y;
  const T* x;
  const T* weight;  // or nullptr
  T* grad_x;
  std::int64_t columns;
  double eps;
};

/// Sums over a row, where g is grad_y * weight and d is x - base.
struct Sums {
  double d = 0;
  double squares = 0;  // of d
  double g = 0;
  double products = 0;  // of g * d
};

/// Adds the `count` elements of a block, which are summed in C.
template <std::int64_t lanes, class C>
void add_block(Sums& sums, std::int64_t count, C base, const C* grad_y, const C* x,
               const C* weight) {
  std::array<C, lanes> d{};
  std::array<C, lanes> squares{};
  std::array<C, lanes> g{};
  std::array<C, lanes> products{};
  cpu::for_lanes<lanes>(count, [&](std::int64_t lane, std::int64_t i) {
    const C d_i = x[i] - base;
    const C g_i = grad_y[i] * weight[i];
    d[lane] += d_i;
    squares[lane] = math::multiply_add(d_i, d_i, squares[lane]);
    g[lane] += g_i;
    products[lane] = math::multiply_add(g_i, d_i, products[lane]);
  });
  sums.d += cpu::reduce(d, std::plus<C>());
  sums.squares += cpu::reduce(squares, std::plus<C>());
  sums.g += cpu::reduce(g, std::plus<C>());
  sums.products += cpu::reduce(products, std::plus<C>());
}

/// What the gradient of a row needs: grad_x is scale * (g - mean - normal * slope).
template <class C>
struct RowGradient {
  cpu::Normaliser<C> normalised;
  C mean;   // of g
  C slope;  // the mean of g * normal
};

/// A block of the weight. If it is absent, `block` has ones.
template <cpu::Isa isa, class T, class C>
const C* weight_of(const Tensors<T>& of, std::int64_t first, std::int64_t count,
                   cpu::Block<C>& block) {
  return of.weight == nullptr ? block.data() : cpu::read<isa>(of.weight + first, count, block);
}

/// The RowGradient of a row; the sums of a block have so many lanes.
template <cpu::Isa isa, std::int64_t lanes, class T, class C>
RowGradient<C> gradient_of(const Tensors<T>& of, std::int64_t row, cpu::Block<C>& weight_block) {
  const T* const grad_y = of.grad_y + row * of.columns;
  const T* const x = of.x + row * of.columns;
  cpu::Block<C> grad_y_block;
  cpu::Block<C> x_block;
  const double share = 1 / static_cast<double>(of.columns);

  // The base is the median of three elements: near the mean unless two of them are outliers. If it
  // is too far for precise sums, or if its distance overflows, they are computed again about the
  // mean.
  const C first = load(x[0]);
  const C middle = load(x[of.columns / 2]);
  C base =
      std::max(std::min(first, middle), std::min(std::max(first, middle), load(x[of.columns - 1])));
  Sums sums;
  double rest = 0;
  for (bool again = false;; again = true) {
    sums = {};
    // Blocks of one size for all dtypes, since an absent weight is a block of ones.
    for (std::int64_t i = 0; i < of.columns; i += cpu::block_size) {
      const std::int64_t count = std::min(cpu::block_size, of.columns - i);
      const C* const g = cpu::read<isa>(grad_y + i, count, grad_y_block);
      const C* const values = cpu::read<isa>(x + i, count, x_block);
      add_block<lanes>(sums, count, base, g, values, weight_of<isa>(of, i, count, weight_block));
    }
    rest = sums.d * share;
    if (again || rest * rest <= 4 * (sums.squares * share - rest * rest)) [[likely]]
      break;
    base = static_cast<C>(cpu::rare_mean_of_row(x, of.columns));
  }
  const double variance = sums.squares * share - rest * rest + of.eps;
  double scale = 1 / std::sqrt(variance);
  if (std::isfinite(base) && !std::isfinite(variance)) {  // it overflows, as other sums may, too
    scale = 0;
    rest = 0;
    sums.products = 0;
  }
  return {{base, static_cast<C>(scale), static_cast<C>(-rest * scale)},
          static_cast<C>(sums.g * share),
          static_cast<C>((sums.products - rest * sums.g) * scale * share)};
}

/// Computes grad_x of `rows` rows, and adds their part to the gradients of weight and bias.
template <cpu::Isa isa, std::int64_t lanes, std::int64_t rows, class T, class C>
void add_rows(const Tensors<T>& of, std::int64_t row, C* grad_weight, C* grad_bias) {
  cpu::Block<C> weight_block;
  if (of.weight == nullptr) weight_block.fill(C(1));
  std::array<RowGradient<C>, rows> gradients;
  for (std::int64_t r = 0; r < rows; ++r) {
    gradients[r] = gradient_of<isa, lanes>(of, row + r, weight_block);
  }
  std::array<cpu::Block<C>, rows> grad_y_blocks;
  std::array<cpu::Block<C>, rows> x_blocks;
  cpu::for_blocks(of.columns, [&](std::int64_t first, std::int64_t count) {
    const C* const w = weight_of<isa>(of, first, count, weight_block);
    std::array<const C*, rows> g;
    std::array<const C*, rows> values;
    std::array<C*, rows> results;
    for (std::int64_t r = 0; r < rows; ++r) {
      const std::int64_t at = (row + r) * of.columns + first;
      g[r] = cpu::read<isa>(of.grad_y + at, count, grad_y_blocks[r]);
      values[r] = cpu::read<isa>(of.x + at, count, x_blocks[r]);
      results[r] = cpu::target(of.grad_x + at, x_blocks[r]);
    }
    C* const of_weight = grad_weight + first;
    C* const of_bias = grad_bias + first;
    cpu::for_each_index_of_small_block<T>(count, [&](std::int64_t i) {
      C weight_sum = of_weight[i];
      C bias_sum = of_bias[i];
      std::array<C, rows> of_rows;  // all are read before one is written
      for (std::int64_t r = 0; r < rows; ++r) {
        const auto& [normalised, mean, slope] = gradients[r];
        const C normal = normalised(values[r][i]);
        weight_sum = math::multiply_add(g[r][i], normal, weight_sum);
        bias_sum += g[r][i];
        const C centered = g[r][i] * w[i] - mean;  // rounded as in the mean: 0 for one column
        of_rows[r] = normalised.scale * math::multiply_add(-normal, slope, centered);
      }
      of_weight[i] = weight_sum;
      of_bias[i] = bias_sum;
      for (std::int64_t r = 0; r < rows; ++r) results[r][i] = of_rows[r];
    });
    for (std::int64_t r = 0; r < rows; ++r) {
      cpu::write<isa>(of.grad_x + (row + r) * of.columns + first, count, x_blocks[r]);
    }
  });
}

/// The same for `rows` short rows.
template <cpu::Isa isa, class C>
void add_short_rows(const Tensors<C>& of, std::int64_t rows, C* grad_weight, C* grad_bias) {
  constexpr std::int64_t lanes = 16;  // a vector, as in sum_of_few()
  cpu::apart<isa>([=] {
    for (std::int64_t row = 0; row < rows; ++row) {
      add_rows<isa, lanes, 1>(of, row, grad_weight, grad_bias);
    }
  });
}

/// The same for the short rows from `begin` to `end`.
template <cpu::Isa isa, class T, class C>
void add_short_rows(const Tensors<T>& of, std::int64_t begin, std::int64_t end, C* grad_weight,
                    C* grad_bias) {
  cpu::Block<C> weight_block;
  if (of.weight == nullptr) weight_block.fill(C(1));
  const C* const weight = weight_of<isa>(of, 0, of.columns, weight_block);
  cpu::for_blocks_of_rows<isa>(
      std::array{of.grad_y, of.x}, of.grad_x, begin, end, of.columns,
      [&](const auto& inputs, C* grad_x, std::int64_t count) {
        const Tensors<C> converted{inputs[0], inputs[1], weight, grad_x, of.columns, of.eps};
        add_short_rows<isa>(converted, count / of.columns, grad_weight, grad_bias);
      });
}

/// Adds the totals of all parts, `size` each, to those of the first one, from `begin` to `end`.
void add_parts(double* totals, std::int64_t parts, std::int64_t size, std::int64_t begin,
               std::int64_t end) {
  cpu::vectorised<cpu::Width::full>([&] {
    for (std::int64_t part = 1; part < parts; ++part) {
      const double* const more = totals + part * size + begin;
      cpu::for_each_index(end - begin, [&](std::int64_t i) { totals[begin + i] += more[i]; });
    }
  });
}

}  // namespace

Status LayerNormBackward::cpu(const Call& call) {
  return visit_dtype<spec.dtypes>(call.inputs[0].dtype, [&]<class T>(TypeTag<T>) {
    using C = Compute<T>;
    const auto input = [&](std::size_t i) {
      return call.inputs[i].present ? static_cast<const T*>(call.inputs[i].data) : nullptr;
    };
    const std::int64_t columns = call.inputs[0].shape.back();
    const Tensors<T> tensors{input(0), input(1),    input(2), static_cast<T*>(call.outputs[0].data),
                             columns,  call.real(0)};
    // Two rows read weight once, and add to the sums once. Short rows that come from memory are
    // slower in pairs.
    const std::int64_t row_bytes = columns * static_cast<std::int64_t>(sizeof(T));
    const bool by_pairs = row_bytes >= cpu::long_row_bytes && row_bytes <= cpu::max_group_row_bytes;
    const std::int64_t rows = columns == 0 ? 0 : call.inputs[0].size() / columns;
    const std::int64_t of_part =
        std::max((rows + max_parts - 1) / max_parts,
                 std::clamp<std::int64_t>(16384 / (columns + 1), group / 2, group));
    const std::int64_t parts = (rows + of_part - 1) / of_part;

    // For weight and bias: totals of each part in float64, and sums of a group of its rows.
    const std::size_t bytes =
        static_cast<std::size_t>(parts * 2 * columns + 1) * (sizeof(double) + sizeof(C));
    auto* const totals = static_cast<double*>(call.execution.allocate(bytes));
    if (totals == nullptr) {
      return Status(Status::Code::out_of_memory, "layer_norm_backward: cannot allocate " +
                                                     std::to_string(bytes) + " bytes of workspace");
    }
    auto* const sums = reinterpret_cast<C*>(totals + parts * 2 * columns);
    call.execution.parallel_for(parts, 1, [&](std::int64_t begin, std::int64_t end) {
      cpu::vectorised<cpu::Width::full>([&](auto tag) {
        constexpr cpu::Isa isa = decltype(tag)::value;
        C* const sum = sums + begin * 2 * columns;
        for (std::int64_t part = begin; part < end; ++part) {
          double* const total = totals + part * 2 * columns;
          std::fill_n(total, 2 * columns, 0.0);
          const std::int64_t last = std::min(rows, (part + 1) * of_part);
          for (std::int64_t row = part * of_part; row < last;) {
            std::fill_n(sum, 2 * columns, C(0));
            const std::int64_t stop = std::min(last, row + group);
            if (columns <= cpu::short_row) {
              add_short_rows<isa>(tensors, row, stop, sum, sum + columns);
            } else {
              cpu::for_groups_of_rows<2>(row, stop, by_pairs, [&](auto count, std::int64_t first) {
                add_rows<isa, cpu::lanes, decltype(count)::value>(tensors, first, sum,
                                                                  sum + columns);
              });
            }
            row = stop;
            cpu::for_each_index(2 * columns, [&](std::int64_t i) { total[i] += sum[i]; });
          }
        }
      });
    });
    auto* const grad_weight = static_cast<T*>(call.outputs[1].data);
    auto* const grad_bias = static_cast<T*>(call.outputs[2].data);
    call.execution.parallel_for(2 * columns, 4096, [&](std::int64_t begin, std::int64_t end) {
      add_parts(totals, parts, 2 * columns, begin, end);
      for (std::int64_t i = begin; i < end; ++i) {
        T* const to = i < columns ? grad_weight + i : grad_bias + (i - columns);
        *to = store<T>(static_cast<C>(rows == 0 ? 0 : totals[i]));
      }
    });
    return Status();
  });
}

}  // namespace cudarelu::ops
