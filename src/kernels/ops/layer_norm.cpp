#include "ops/layer_norm.h"

#include <algorithm>
#include <array>

#include "cudarelu/detail/cpu/moments.h"

namespace cudarelu::ops {
namespace {

/// The weight or the bias. If it is absent, `data` is a block of one value.
template <class T>
struct Factors {
  const T* data;
  std::int64_t mask;  // of the columns: 0 if it is absent, else -1

  const T* from(std::int64_t column) const { return data + (column & mask); }
};

template <class T>
struct Tensors {
  Factors<T> weight;
  Factors<T> bias;
  std::int64_t columns;
  double eps;
};

/// For `rows` rows of more than short_row elements from x on. They read weight and bias once.
template <cpu::Isa isa, std::int64_t rows, class T>
void normalise(const Tensors<T>& of, const T* x, T* y) {
  using C = Compute<T>;
  std::array<cpu::Normaliser<C>, rows> normalised;
  for (std::int64_t row = 0; row < rows; ++row) {
    normalised[row] =
        cpu::normaliser_of<isa, cpu::Length::many>(x + row * of.columns, of.columns, of.eps);
  }
  const auto [weight, bias, columns, eps] = of;  // in registers
  constexpr std::int64_t size =
      rows == 1 && !cpu::is_narrow<T> ? 2 * cpu::small_block_size : cpu::small_block_size;
  static_assert(size <= cpu::short_row + 1);
  for (std::int64_t column = 0; column < columns; column += size) {
    // The last block begins within the one before, so that the compiler knows the size of all.
    const std::int64_t first = std::min(column, columns - size);
    cpu::Block<C> weight_block;
    cpu::Block<C> bias_block;
    std::array<cpu::Block<C>, rows> blocks;
    const C* const w = cpu::read<isa>(weight.from(first), size, weight_block);
    const C* const b = cpu::read<isa>(bias.from(first), size, bias_block);
    std::array<const C*, rows> values;
    std::array<C*, rows> results;
    for (std::int64_t row = 0; row < rows; ++row) {
      const std::int64_t at = row * columns + first;
      values[row] = cpu::read<isa>(x + at, size, blocks[row]);
      results[row] = cpu::target(y + at, blocks[row]);
    }
    cpu::for_each_index_of_small_block<T>(size, [&](std::int64_t i) {
      std::array<C, rows> of_rows;  // all are read before one is written
      for (std::int64_t row = 0; row < rows; ++row) {
        of_rows[row] = math::multiply_add(normalised[row](values[row][i]), w[i], b[i]);
      }
      for (std::int64_t row = 0; row < rows; ++row) results[row][i] = of_rows[row];
    });
    for (std::int64_t row = 0; row < rows; ++row) {
      cpu::write<isa>(y + row * columns + first, size, blocks[row]);
    }
  }
}

/// For `count` elements of short rows.
template <cpu::Isa isa, class C>
void normalise_short_rows(const Tensors<C>& of, const C* x, C* y, std::int64_t count) {
  cpu::apart<isa>([&] {
    const C* const w = of.weight.data;
    const C* const b = of.bias.data;
    for (std::int64_t i = 0; i < count; i += of.columns) {
      const auto normalised = cpu::normaliser_of<isa, cpu::Length::few>(x + i, of.columns, of.eps);
      cpu::for_each_index(of.columns, [&](std::int64_t j) {
        y[i + j] = math::multiply_add(normalised(x[i + j]), w[j], b[j]);
      });
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
  const Tensors<C> converted{{cpu::read<isa>(of.weight.data, of.columns, weight_block), -1},
                             {cpu::read<isa>(of.bias.data, of.columns, bias_block), -1},
                             of.columns,
                             of.eps};
  cpu::for_blocks_of_rows<isa>(std::array{x}, y, begin, end, of.columns,
                               [&](const auto& inputs, C* results, std::int64_t count) {
                                 normalise_short_rows<isa>(converted, inputs[0], results, count);
                               });
}

}  // namespace

Status LayerNorm::cpu(const Call& call) {
  return visit_dtype<spec.dtypes>(call.inputs[0].dtype, [&]<class T>(TypeTag<T>) {
    static_assert(cpu::block_size > cpu::short_row);
    std::array<std::array<T, cpu::block_size>, 2> absent;
    absent[0].fill(store<T>(1));
    absent[1].fill(store<T>(-0.0f));  // unlike 0, it keeps the sign of a zero
    const auto factors = [&](std::size_t i) {
      const TensorView& input = call.inputs[i];
      return input.present ? Factors<T>{static_cast<const T*>(input.data), -1}
                           : Factors<T>{absent[i - 1].data(), 0};
    };
    const Tensors<T> tensors{factors(1), factors(2), call.inputs[0].shape.back(), call.real(0)};
    const auto* const x = static_cast<const T*>(call.inputs[0].data);
    T* const y = static_cast<T*>(call.outputs[0].data);
    // Rows without conversions that fit the L1 cache are faster one at a time: the next one is read
    // while the results of this one are on their way to memory.
    const std::int64_t row_bytes = tensors.columns * static_cast<std::int64_t>(sizeof(T));
    const bool by_groups = row_bytes <= cpu::max_group_row_bytes &&
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
