#include "ops/layer_norm_backward.h"

#include <algorithm>
#include <string>

#include "cpu/moments.h"

namespace cudarelu::ops {
namespace {

constexpr std::int64_t most_parts = 64;  // of the rows: their number alone decides what they are
constexpr std::int64_t group = 64;       // rows that are added up in C, before float64

template <class T>
struct Tensors {
  const T* grad_y;
  const T* x;
  const T* weight;  // or nullptr
  T* grad_x;
  std::int64_t columns;
  double eps;
};

/// grad_x of a row; adds the gradients of the weight and of the bias to those of rows before.
template <class T, class C>
void add_row(const Tensors<T>& of, std::int64_t row, C* grad_weight, C* grad_bias) {
  const T* const grad_y = of.grad_y + row * of.columns;
  const T* const x = of.x + row * of.columns;
  T* const grad_x = of.grad_x + row * of.columns;
  const cpu::Normaliser<C> normalised = cpu::normaliser_of(x, of.columns, of.eps);
  cpu::Block<C> grad_y_block;
  cpu::Block<C> x_block;
  cpu::Block<C> weight_block;
  if (of.weight == nullptr) weight_block.fill(C(1));
  cpu::Sum sum;      // of grad_y * weight
  cpu::Sum product;  // of grad_y * weight * normalised x
  // Blocks of one size for all dtypes: an absent weight is a block of ones.
  const auto for_each_block = [&](const auto& body) {
    for (std::int64_t first = 0; first < of.columns; first += cpu::block_size) {
      const std::int64_t count = std::min(cpu::block_size, of.columns - first);
      const C* const w = of.weight == nullptr ? weight_block.data()
                                              : cpu::read(of.weight + first, count, weight_block);
      body(first, count, cpu::read(grad_y + first, count, grad_y_block),
           cpu::read(x + first, count, x_block), w);
    }
  };
  for_each_block([&](std::int64_t, std::int64_t count, const C* g, const C* values, const C* w) {
    sum.add(count, [&](std::int64_t i) { return g[i] * w[i]; });
    product.add(count, [&](std::int64_t i) { return g[i] * w[i] * normalised(values[i]); });
  });
  const auto columns = static_cast<double>(of.columns);
  const auto mean = static_cast<C>(sum.total() / columns);
  const auto slope = static_cast<C>(product.total() / columns);
  for_each_block(
      [&](std::int64_t first, std::int64_t count, const C* g, const C* values, const C* w) {
        C* const results = cpu::target(grad_x + first, x_block);
        C* const of_weight = grad_weight + first;
        C* const of_bias = grad_bias + first;
        cpu::for_each_index(count, [&](std::int64_t i) {
          const C normal = normalised(values[i]);
          of_weight[i] += g[i] * normal;
          of_bias[i] += g[i];
          results[i] = normalised.scale * (g[i] * w[i] - mean - normal * slope);
        });
        cpu::write(grad_x + first, count, x_block);
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
    const std::int64_t rows = columns == 0 ? 0 : call.inputs[0].size() / columns;
    const std::int64_t of_part =
        std::max<std::int64_t>((rows + most_parts - 1) / most_parts,
                               std::min<std::int64_t>(group, 16384 / (columns + 1) + 1));
    const std::int64_t parts = (rows + of_part - 1) / of_part;

    // For each part: totals in float64, and the sums of a group of rows; of weight and bias.
    const std::size_t bytes =
        static_cast<std::size_t>(parts * 2 * columns + 1) * (sizeof(double) + sizeof(C));
    auto* const totals = static_cast<double*>(call.execution.allocate(bytes));
    if (totals == nullptr) {
      return Status(Status::Code::out_of_memory,
                    "layer_norm_backward: no workspace of " + std::to_string(bytes) + " bytes");
    }
    auto* const sums = reinterpret_cast<C*>(totals + parts * 2 * columns);
    call.execution.parallel_for(parts, 1, [&](std::int64_t begin, std::int64_t end) {
      cpu::vectorised<cpu::Width::full>([&] {
        for (std::int64_t part = begin; part < end; ++part) {
          double* const total = totals + part * 2 * columns;
          C* const sum = sums + part * 2 * columns;
          std::fill_n(total, 2 * columns, 0.0);
          const std::int64_t last = std::min(rows, (part + 1) * of_part);
          for (std::int64_t row = part * of_part; row < last;) {
            std::fill_n(sum, 2 * columns, C(0));
            for (const std::int64_t stop = std::min(last, row + group); row < stop; ++row) {
              add_row(tensors, row, sum, sum + columns);
            }
            cpu::for_each_index(2 * columns, [&](std::int64_t i) { total[i] += sum[i]; });
          }
        }
      });
    });
    auto* const grad_weight = static_cast<T*>(call.outputs[1].data);
    auto* const grad_bias = static_cast<T*>(call.outputs[2].data);
    for (std::int64_t i = 0; i < 2 * columns; ++i) {
      double total = 0;
      for (std::int64_t part = 0; part < parts; ++part) total += totals[part * 2 * columns + i];
      T* const to = i < columns ? grad_weight + i : grad_bias + (i - columns);
      *to = store<T>(static_cast<C>(total));
    }
    return Status();
  });
}

}  // namespace cudarelu::ops
