#include "rms_norm_backward.h"

#include <cmath>

#include "cudarelu/rows.h"

namespace llm {
namespace {

constexpr std::int64_t max_parts = 64;  // of the rows, independent of the number of threads

template <class T>
struct Tensors {
  const T* grad_y;
  const T* x;
  const T* weight;  // or nullptr
  T* grad_x;
  std::int64_t columns;
  double eps;
};

/// Computes grad_x of the row at `offset`, and adds its terms to grad_weight.
template <class T>
void add_row(const Tensors<T>& of, std::int64_t offset, double* grad_weight) {
  using C = Compute<T>;
  cpu::Block<C> grad_y_block;
  cpu::Block<C> x_block;
  cpu::Block<C> weight_block;
  if (of.weight == nullptr) weight_block.fill(C(1));
  // Blocks of one size for all dtypes, since an absent weight is a block of ones.
  const auto for_each_block = [&](const auto& body) {
    for (std::int64_t first = 0; first < of.columns; first += cpu::block_size) {
      const std::int64_t count = std::min(cpu::block_size, of.columns - first);
      const C* const weight = of.weight == nullptr
                                  ? weight_block.data()
                                  : cpu::read(of.weight + first, count, weight_block);
      body(first, count, cpu::read(of.grad_y + offset + first, count, grad_y_block),
           cpu::read(of.x + offset + first, count, x_block), weight);
    }
  };

  cpu::Sum squares;
  cpu::Sum products;
  for_each_block([&](std::int64_t, std::int64_t count, const C* g, const C* x, const C* w) {
    squares.add(count, [&](std::int64_t i) { return x[i] * x[i]; });
    products.add(count, [&](std::int64_t i) { return g[i] * w[i] * x[i]; });
  });
  const double share = 1 / static_cast<double>(of.columns);
  const double root = std::sqrt(squares.total() * share + of.eps);
  const auto scale = static_cast<C>(1 / root);
  // 0 for squares that overflow, where the products may overflow too.
  const auto slope = scale == 0 ? C(0) : static_cast<C>(products.total() * share / root);

  for_each_block([&](std::int64_t first, std::int64_t count, const C* g, const C* x, const C* w) {
    C* const results = cpu::target(of.grad_x + offset + first, x_block);
    double* const sums = grad_weight + first;
    cpu::for_each_index(count, [&](std::int64_t i) {
      const C normal = x[i] * scale;
      sums[i] += g[i] * normal;
      results[i] = scale * (g[i] * w[i] - normal * slope);
    });
    cpu::write(of.grad_x + offset + first, count, x_block);
  });
}

}  // namespace

Status RmsNormBackward::cpu(const Call& call) {
  return visit_dtype<spec.dtypes>(call.inputs[0].dtype, [&]<class T>(TypeTag<T>) {
    const auto input = [&](std::size_t i) {
      return call.inputs[i].present ? static_cast<const T*>(call.inputs[i].data) : nullptr;
    };
    const std::int64_t columns = call.inputs[0].shape.back();
    if (columns == 0) return Status();
    const Tensors<T> tensors{input(0), input(1),    input(2), static_cast<T*>(call.outputs[0].data),
                             columns,  call.real(0)};
    const std::int64_t rows = call.inputs[0].size() / columns;
    const std::int64_t of_part = std::max((rows + max_parts - 1) / max_parts, 16384 / columns + 1);
    const std::int64_t parts = (rows + of_part - 1) / of_part;

    double* sums = nullptr;  // of grad_weight, for each part
    if (Status status = allocate(call, parts * columns, sums); !status.ok()) return status;
    call.execution.parallel_for(parts, 1, [&](std::int64_t begin, std::int64_t end) {
      cpu::vectorised<cpu::Width::full>([&] {
        std::fill(sums + begin * columns, sums + end * columns, 0.0);
        for (std::int64_t row = begin * of_part; row < std::min(rows, end * of_part); ++row) {
          add_row(tensors, row * columns, sums + row / of_part * columns);
        }
      });
    });
    auto* const grad_weight = static_cast<T*>(call.outputs[1].data);
    call.execution.parallel_for(columns, 4096, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        double total = 0;
        for (std::int64_t part = 0; part < parts; ++part) total += sums[part * columns + i];
        grad_weight[i] = store<T>(static_cast<Compute<T>>(total));
      }
    });
    return Status();
  });
}

}  // namespace llm
