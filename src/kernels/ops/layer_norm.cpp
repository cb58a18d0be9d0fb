#include "ops/layer_norm.h"

#include <array>

#include "cudarelu/cpu/moments.h"

namespace cudarelu::ops {
namespace {

template <class T>
struct Tensors {
  const T* weight;  // or nullptr
  const T* bias;    // or nullptr
  std::int64_t columns;
  double eps;
};

/// For `rows` rows from x on. They read weight and bias once.
template <cpu::Isa isa, std::int64_t rows, class T>
void normalise(const Tensors<T>& of, const T* x, T* y) {
  using C = Compute<T>;
  std::array<cpu::Normaliser<C>, rows> normalised;
  for (std::int64_t row = 0; row < rows; ++row) {
    normalised[row] = cpu::normaliser_of<isa>(x + row * of.columns, of.columns, of.eps);
  }
  cpu::Block<C> weight_block;
  cpu::Block<C> bias_block;
  std::array<cpu::Block<C>, rows> blocks;
  cpu::for_blocks(of.columns, [&](std::int64_t first, std::int64_t count) {
    const auto read = [&](const T* from, cpu::Block<C>& block) {
      return from == nullptr ? nullptr : cpu::read<isa>(from + first, count, block);
    };
    const C* const w = read(of.weight, weight_block);
    const C* const b = read(of.bias, bias_block);
    std::array<const C*, rows> values;
    std::array<C*, rows> results;
    for (std::int64_t row = 0; row < rows; ++row) {
      values[row] = read(x + row * of.columns, blocks[row]);
      results[row] = cpu::target(y + row * of.columns + first, blocks[row]);
    }
    const auto write = [&](const auto& value) {
      cpu::for_each_index_of_small_block<T>(count, [&](std::int64_t i) {
        std::array<C, rows> of_rows;  // all are read before one is written
        for (std::int64_t row = 0; row < rows; ++row) {
          of_rows[row] = value(normalised[row](values[row][i]), i);
        }
        for (std::int64_t row = 0; row < rows; ++row) results[row][i] = of_rows[row];
      });
    };
    if (w != nullptr && b != nullptr) {
      write([&](C normal, std::int64_t i) { return math::multiply_add(normal, w[i], b[i]); });
    } else if (w != nullptr) {
      write([&](C normal, std::int64_t i) { return normal * w[i]; });
    } else if (b != nullptr) {
      write([&](C normal, std::int64_t i) { return normal + b[i]; });
    } else {
      write([&](C normal, std::int64_t) { return normal; });
    }
    for (std::int64_t row = 0; row < rows; ++row) {
      cpu::write<isa>(y + row * of.columns + first, count, blocks[row]);
    }
  });
}

/// For the short rows from `begin` to `end`.
template <cpu::Isa isa, class T>
void normalise_short_rows(const Tensors<T>& of, const T* x, T* y, std::int64_t begin,
                          std::int64_t end) {
  using C = Compute<T>;
  cpu::Block<C> weight_block;
  cpu::Block<C> bias_block;
  const auto read_all = [&](const T* from, cpu::Block<C>& to) {
    return from == nullptr ? nullptr : cpu::read<isa>(from, of.columns, to);
  };
  const Tensors<C> converted{read_all(of.weight, weight_block), read_all(of.bias, bias_block),
                             of.columns, of.eps};
  cpu::for_blocks_of_rows<isa>(std::array{x}, y, begin, end, of.columns,
                               [&](const auto& inputs, C* results, std::int64_t count) {
                                 for (std::int64_t i = 0; i < count; i += of.columns) {
                                   normalise<isa, 1>(converted, inputs[0] + i, results + i);
                                 }
                               });
}

}  // namespace

Status LayerNorm::cpu(const Call& call) {
  return visit_dtype<spec.dtypes>(call.inputs[0].dtype, [&]<class T>(TypeTag<T>) {
    const auto input = [&](std::size_t i) {
      return call.inputs[i].present ? static_cast<const T*>(call.inputs[i].data) : nullptr;
    };
    const Tensors<T> tensors{input(1), input(2), call.inputs[0].shape.back(), call.real(0)};
    const T* const x = input(0);
    T* const y = static_cast<T*>(call.outputs[0].data);
    // Rows without conversions that fit the L1 cache are faster one at a time: the next one is read
    // while the results of this one are on their way to memory.
    const std::int64_t row_bytes = tensors.columns * static_cast<std::int64_t>(sizeof(T));
    const bool by_groups = row_bytes <= cpu::most_group_row_bytes &&
                           (cpu::is_narrow<T> || row_bytes >= cpu::long_row_bytes);
    cpu::for_parts_of_rows<cpu::Width::full>(
        call, [&](auto tag, std::int64_t begin, std::int64_t end) {
          constexpr cpu::Isa isa = decltype(tag)::value;
          if (tensors.columns <= cpu::short_row) {
            return normalise_short_rows<isa>(tensors, x, y, begin, end);
          }
          cpu::for_groups_of_rows<4>(begin, end, by_groups, [&](auto rows, std::int64_t row) {
            const std::int64_t offset = row * tensors.columns;
            normalise<isa, decltype(rows)::value>(tensors, x + offset, y + offset);
          });
        });
    return Status();
  });
}

}  // namespace cudarelu::ops
