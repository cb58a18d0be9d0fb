// Attention on the CPU: blocks of the scores, as many as the cache holds, for some queries and all
// keys, or for some keys and all queries. The block has "lanes", one for each element of a vector
// of the innermost loop of matrix products, and "items", in chunks: the lanes of the forward pass
// are queries and its items keys. All sums are in an order that does not depend on the threads.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <type_traits>

#include "cpu/product_tile.h"
#include "cudarelu/detail/cpu/vectorised.h"
#include "cudarelu/detail/workspace.h"
#include "cudarelu/transcendental.h"
#include "ops/attention/params.h"

namespace cudarelu::ops::attention {

/// The items of a chunk: a multiple of the rows of all tiles.
inline constexpr std::int64_t chunk = 240;

/// A matrix of each unit, and its panels.
struct Packed {
  std::size_t input;
  Layout Params::* layout;
  bool is_of_queries;  // else of keys
  std::int64_t columns;
  bool turned;  // the lines of the panels are columns

  std::int64_t rows(const Params& p) const {
    return is_of_queries ? p.group() * p.queries : p.keys;
  }
  std::int64_t lines(const Params& p) const { return turned ? columns : rows(p); }
  std::int64_t steps(const Params& p) const { return turned ? rows(p) : columns; }
};

/// A matrix in panels of the rows of a tile.
template <class C>
struct Panels {
  C* data;
  std::int64_t lines;
  std::int64_t steps;
};

/// Where the lanes or items of a block are in the mask and in the order of causal attention.
template <std::int64_t size>
struct Positions {
  std::array<std::int64_t, size> mask_offsets;
  std::array<std::int64_t, size> orders;  // an item is hidden from lanes of a lower number
};

/// One head of k and v, and the heads of q that share it. Their queries are the rows of one matrix.
template <class C>
struct Unit {
  static constexpr std::size_t max_matrices = 8;

  const Params& p;
  std::int64_t index;  // batch * kv_heads + head of k
  std::array<Panels<C>, max_matrices> panels;
  C* storage = nullptr;  // of for_each_group()

  std::int64_t rows() const { return p.group() * p.queries; }
  std::int64_t offset(std::int64_t row) const {
    const std::int64_t head = index % p.kv_heads * p.group() + row / p.queries;
    return p.mask.offset(index / p.kv_heads, head) + row % p.queries * p.mask.query_stride;
  }
};

/// cpu::pack() for `count` rows from `first` on, or for their columns if `turned`, in panels of
/// `width` lines.
template <class T, class C>
void pack_rows(const HeadRows<const T>& rows, std::int64_t first, std::int64_t count,
               std::int64_t columns, bool turned, std::int64_t width, C* to) {
  const std::int64_t lines = turned ? columns : count;
  const std::int64_t steps = turned ? count : columns;
  if (rows.jump == 0) {
    return cpu::pack(rows[first], turned ? 1 : rows.stride, turned ? rows.stride : 1, lines, steps,
                     width, to);
  }
  std::fill_n(to, cpu::parts(lines, width) * width * steps, C(0));
  for (std::int64_t row = 0; row < count; ++row) {
    const T* const from = rows[first + row];
    for (std::int64_t column = 0; column < columns; ++column) {
      const std::int64_t line = turned ? column : row;
      const std::int64_t step = turned ? row : column;
      to[line / width * width * steps + step * width + line % width] = load(from[column]);
    }
  }
}

/// An element for each lane.
template <class C, std::int64_t lanes>
struct alignas(64) RowOfLanes : std::array<C, lanes> {};

/// Whether the mask is one element that changes nothing, as models have it for an absent mask.
template <class T>
bool is_neutral(const Mask& mask) {
  if (mask.data == nullptr || mask.elements != 1) return false;
  return mask.is_bool ? *static_cast<const std::uint8_t*>(mask.data) != 0
                      : load(*static_cast<const T*>(mask.data)) == 0;
}

/// Sets the parameters of sequences that are packed.
inline Status divide(const Call& call, const Params& p, Sequences& sequences) {
  if (Status status = allocate(call, sequences.count, sequences.params); !status.ok()) {
    return status;
  }
  for (std::int64_t i = 0; i < sequences.count; ++i) {
    std::construct_at(sequences.params + i, sequence_of(p, batch_of(i, sequences.q_ends, p.queries),
                                                        batch_of(i, sequences.k_ends, p.keys)));
  }
  return {};
}

/// Sets `lse` to exact_lse() of each query, for a call of a gradient in float64.
Status find_exact_lse(const Call& call, const Params& p, const Sequences* sequences, double* lse);

/// Blocks of scores in the type C, which T is converted to; `lanes` are the columns of a tile.
template <class T, std::int64_t lanes>
class Blocks {
 public:
  using C = Compute<T>;

  /// `sequences` is null unless the call has several in one.
  Blocks(const Call& call, const Params& p, const Sequences* sequences = nullptr)
      : call_(call), p_(p), sequences_(sequences) {}

 protected:
  using Row = RowOfLanes<C, lanes>;

  static constexpr cpu::Isa isa = cpu::isa_of_tile<C, lanes>;
  static constexpr std::int64_t tile_rows = cpu::rows_of_tile<C, lanes>;
  static constexpr std::int64_t max_slots = 64;
  static constexpr C low = -std::numeric_limits<C>::infinity();

  std::int64_t units() const {
    return (sequences_ == nullptr ? p_.batch : sequences_->count) * p_.kv_heads;
  }

  /// A unit without panels.
  Unit<C> unit_of(std::int64_t index) const {
    if (sequences_ == nullptr) return {p_, index, {}};
    return {sequences_->params[index / p_.kv_heads], p_.kv_heads + index % p_.kv_heads, {}};
  }

  /// Fills the rows that belong to no sequence, of a tensor with `rows` rows and these ends.
  template <class E>
  void fill_rest(const std::int32_t* Sequences::* ends, std::int64_t rows, std::int64_t heads,
                 std::int64_t columns, E* data, const Layout& layout, E value) const {
    if (sequences_ == nullptr) return;
    const std::int64_t count = sequences_->count;
    for (std::int64_t i = count == 0 ? 0 : (sequences_->*ends)[count - 1]; i < rows; ++i) {
      for (std::int64_t head = 0; head < heads; ++head) {
        std::fill_n(data + layout.offset(0, head) + i * layout.row, columns, value);
      }
    }
  }

  /// The elements of panels that hold a matrix.
  std::int64_t size_of(std::int64_t lines, std::int64_t steps) const {
    return cpu::parts(lines, tile_rows) * tile_rows * steps;
  }

  using Group = FunctionRef<Status(std::int64_t, std::int64_t, FunctionRef<Unit<C>(std::int64_t)>)>;
  using SwizzledMatrix = FunctionRef<std::int64_t(const Unit<C>&)>;

  /// Copies the matrices of the units to panels, for as many units at once as about 2^24 elements
  /// hold, and calls f(first, count, unit) for each such group of units; unit(i) is Unit `i` of
  /// all, with the panels in the order of the matrices and storage for storage_of(its params)
  /// elements.
  [[gnu::noinline]] Status for_each_group(std::span<const Packed> matrices,
                                          FunctionRef<std::int64_t(const Params&)> storage_of,
                                          Group f) const {
    constexpr std::int64_t most = 1 << 24;
    Begins begins;  // of the panels of a unit
    Status status = begin_parts(0, units(), begins, [&](const Unit<C>& unit) {
      std::int64_t size = storage_of(unit.p);
      for (const Packed& each : matrices) size += size_of(each.lines(unit.p), each.steps(unit.p));
      return size;
    });
    if (!status.ok()) return status;
    C* memory = nullptr;
    status = allocate(call_, std::min(std::max(most, begins.largest), begins[units()]), memory);
    for (std::int64_t first = 0, end = 0; status.ok() && first < units(); first = end) {
      for (end = first + 1; end < units() && begins[end + 1] - begins[first] <= most;) ++end;
      const auto unit = [&](std::int64_t index) {
        Unit<C> result = unit_of(index);
        C* panels = memory + begins[index] - begins[first];
        for (std::size_t i = 0; i < matrices.size(); ++i) {
          result.panels[i] = {panels, matrices[i].lines(result.p), matrices[i].steps(result.p)};
          panels += size_of(result.panels[i].lines, result.panels[i].steps);
        }
        result.storage = panels;
        return result;
      };
      const auto kinds = static_cast<std::int64_t>(matrices.size());
      call_.execution.parallel_for((end - first) * kinds, 1, [&](std::int64_t a, std::int64_t b) {
        for (std::int64_t i = a; i < b; ++i) {
          const auto kind = static_cast<std::size_t>(i % kinds);
          const Unit<C> to = unit(first + i / kinds);
          pack(matrices[kind], to, to.panels[kind].data);
        }
      });
      status = f(first, end - first, unit);
    }
    return status;
  }

  Status for_each_group(std::span<const Packed> matrices, Group f) const {
    return for_each_group(matrices, [](const Params&) { return std::int64_t{0}; }, f);
  }

  /// Calls f(index of a unit, first line, slot) for each block of the lines(unit) lines of each
  /// unit, on the host's threads. At any time, no two of the calls have the same slot, of
  /// max_slots.
  [[gnu::noinline]] Status for_each_block(
      std::int64_t first, std::int64_t count, SwizzledMatrix lines_of,
      FunctionRef<void(std::int64_t, std::int64_t, std::int64_t)> f) const {
    Begins begins;  // the first block of a unit
    Status status = begin_parts(first, count, begins, [&](const Unit<C>& unit) {
      return cpu::parts(lines_of(unit), lanes);
    });
    if (!status.ok()) return status;
    const std::int64_t blocks = begins[count];
    const std::int64_t slots = std::min(blocks, max_slots);
    // Blocks of a unit follow each other, so that its panels stay in the cache. But causal
    // attention and packed sequences have blocks that take longer than others: unless there are
    // whole units for all slots, the slots alternate, in a direction that alternates.
    const bool take_turns = sequences_ != nullptr || (p_.is_causal && count < slots);
    call_.execution.parallel_for(slots, 1, [&](std::int64_t begin, std::int64_t end) {
      const auto run = [&](std::int64_t block, std::int64_t slot) {
        const std::int64_t unit = begins.part_of(block, count);
        f(first + unit, (block - begins[unit]) * lanes, slot);
      };
      if (take_turns) {
        for (std::int64_t round = 0; round * slots < blocks; ++round) {
          for (std::int64_t slot = begin; slot < end; ++slot) {
            const std::int64_t block = round * slots + (round % 2 == 0 ? slot : slots - 1 - slot);
            if (block < blocks) run(block, slot);
          }
        }
      } else {
        for (std::int64_t slot = begin; slot < end; ++slot) {
          const std::int64_t last = (slot + 1) * blocks / slots;
          for (std::int64_t block = slot * blocks / slots; block < last; ++block) run(block, slot);
        }
      }
    });
    return {};
  }

  /// The same where f takes memory of `size` elements instead of the slot.
  [[gnu::noinline]] Status for_each_block(
      std::int64_t first, std::int64_t count, std::int64_t size, SwizzledMatrix lines_of,
      FunctionRef<void(std::int64_t, std::int64_t, C*)> f) const {
    std::int64_t blocks = 0;
    for (std::int64_t i = 0; i < count && blocks < max_slots; ++i) {
      blocks += cpu::parts(lines_of(unit_of(first + i)), lanes);
    }
    const std::int64_t padded = cpu::parts(size, 16) * 16;
    C* memory = nullptr;
    Status status = allocate(call_, std::min(blocks, max_slots) * padded, memory);
    if (!status.ok()) return status;
    return for_each_block(first, count, lines_of,
                          [&](std::int64_t index, std::int64_t line, std::int64_t slot) {
                            f(index, line, memory + slot * padded);
                          });
  }

  /// Copies `count` rows from `first` on, up to one for each lane, to [columns, lanes], times a
  /// factor; if `turned`, the columns of the rows to panels of `lanes` columns.
  void pack_lanes(const HeadRows<const T>& rows, std::int64_t first, std::int64_t count,
                  std::int64_t columns, C factor, C* to, bool turned = false) const {
    cpu::apart<isa>([=] {
      pack_rows(rows, first, count, columns, turned, lanes, to);
      if (turned) return;
      cpu::for_each_index(columns * lanes, [&](std::int64_t i) { to[i] *= factor; });
    });
  }

  /// out[line, lane] = or += the sum over steps of a[line, step] b[step, lane], for the steps from
  /// `first` on. `out` has storage for whole panels. Sums for the last 4 of 64 lines, as of heads
  /// with d = 64, take a third of a tile; the rest of `out` stays as it is.
  void multiply(const Panels<C>& a, std::int64_t first, std::int64_t steps, const C* b, C* out,
                bool adds) const {
    for (std::int64_t line = 0; line < a.lines; line += tile_rows) {
      const bool are_few = adds && a.lines - line <= tile_rows / 3;
      const auto product = are_few ? tile_.multiply_few : tile_.multiply;
      product(a.data + line * a.steps + first * tile_rows, b, steps, out + line * lanes, adds);
    }
  }

  /// The same where the lines are the items of a chunk.
  void multiply_items(const Panels<C>& a, std::int64_t item, std::int64_t items, const C* b,
                      C* out) const {
    multiply({a.data + item * a.steps, items, a.steps}, 0, a.steps, b, out, false);
  }

  /// out[item, lane] += the sum over `steps` steps of a[item, step] b[step, lane], where a has a
  /// row of `lanes` elements for each item.
  void add_products(const C* a, std::int64_t items, const C* b, std::int64_t steps, C* out) const {
    for (std::int64_t item = 0; item < items; item += tile_rows) {
      tile_.multiply_rows(a + item * lanes, b, steps, out + item * lanes, true);
    }
  }

  /// Adds the mask to the products of a chunk, [item, lane], and hides what is hidden.
  void finish_scores(C* scores, std::int64_t items, const Positions<chunk>& of_items,
                     const Positions<lanes>& of_lanes) const {
    if (p_.mask.data == nullptr && !p_.is_causal) return;
    cpu::apart<isa>(
        [=, this, &of_items, &of_lanes] { mask_scores(scores, items, of_items, of_lanes); });
  }

  /// Positions of `count` rows of a unit from `first` on; those of lanes without a row are those of
  /// the last one.
  template <std::int64_t size>
  [[gnu::noinline]] void set_rows(const Unit<C>& unit, std::int64_t first, std::int64_t count,
                                  bool are_items, Positions<size>& to) const {
    if (p_.mask.data == nullptr && !p_.is_causal) return;
    const std::int64_t used = are_items ? count : size;
    for (std::int64_t i = 0; i < used; ++i) {
      const std::int64_t row = first + std::min<std::int64_t>(i, count - 1);
      const std::int64_t query = row % unit.p.queries;
      if (p_.mask.data != nullptr) to.mask_offsets[static_cast<std::size_t>(i)] = unit.offset(row);
      to.orders[static_cast<std::size_t>(i)] = are_items ? -query : query;
    }
  }
  /// Likewise of keys.
  template <std::int64_t size>
  [[gnu::noinline]] void set_keys(std::int64_t first, std::int64_t count, bool are_items,
                                  Positions<size>& to) const {
    if (p_.mask.data == nullptr && !p_.is_causal) return;
    const std::int64_t used = are_items ? count : size;
    for (std::int64_t i = 0; i < used; ++i) {
      const std::int64_t key = first + std::min<std::int64_t>(i, count - 1);
      to.mask_offsets[static_cast<std::size_t>(i)] = key * p_.mask.key_stride;
      to.orders[static_cast<std::size_t>(i)] = are_items ? key : -key;
    }
  }

  /// The keys of a unit from the first on that one of the queries may see.
  std::int64_t visible_keys(const Unit<C>& unit, const Positions<lanes>& queries) const {
    if (!p_.is_causal) return unit.p.keys;
    return std::min(unit.p.keys, *std::ranges::max_element(queries.orders) + 1);
  }

  /// A weight is exp(score - base); where no key is visible, all scores are -infinity.
  static C base_of(C lse) { return lse == low ? C(0) : lse; }

  /// Sets `lse` to input i, in float64 to exact_lse().
  Status find_lse(std::size_t i, const C*& lse) const {
    if constexpr (std::is_same_v<C, float>) {
      lse = input<float>(i);
      return {};
    } else {
      C* exact = nullptr;
      Status status = allocate(call_, p_.batch * p_.heads * p_.queries, exact);
      lse = exact;
      if (!status.ok()) return status;
      return find_exact_lse(call_, p_, sequences_, exact);
    }
  }

  template <class E = T>
  const E* input(std::size_t i) const {
    return static_cast<const E*>(call_.inputs[i].data);
  }
  template <class E = T>
  E* output(std::size_t i) const {
    return static_cast<E*>(call_.outputs[i].data);
  }

  /// Writes the sums of lanes, [columns, lanes], times a factor, to `count` rows from `first` on.
  void write(const C* sums, std::int64_t first, std::int64_t count, std::int64_t columns,
             const HeadRows<T>& rows, C factor = 1) const {
    cpu::apart<isa>([=] {
      if constexpr (std::is_same_v<T, C>) {
        if (factor == 1 && rows.jump == 0) {
          return cpu::transpose(sums, lanes, columns, count, rows[first], rows.stride);
        }
      }
      for (std::int64_t i = 0; i < count; ++i) {
        T* const to = rows[first + i];
        for (std::int64_t j = 0; j < columns; ++j) to[j] = store<T>(sums[j * lanes + i] * factor);
      }
    });
  }

  const Call& call_;
  const Params& p_;  // of all sequences, if several are packed
  const Sequences* const sequences_;

 private:
  /// Where the parts of units begin that lie one after the other.
  struct Begins {
    std::int64_t* of_unit = nullptr;  // null if all parts have the largest size
    std::int64_t largest = 0;

    std::int64_t operator[](std::int64_t unit) const {
      return of_unit == nullptr ? unit * largest : of_unit[unit];
    }
    /// The unit, of `count`, that has an element of the parts.
    std::int64_t part_of(std::int64_t element, std::int64_t count) const {
      if (of_unit == nullptr) return element / largest;
      return std::upper_bound(of_unit, of_unit + count, element) - of_unit - 1;
    }
  };

  /// Lays out parts of size_of_part(unit) elements for `count` units from `first` on.
  [[gnu::noinline]] Status begin_parts(std::int64_t first, std::int64_t count, Begins& begins,
                                       SwizzledMatrix size_of_part) const {
    if (sequences_ == nullptr) {
      begins.largest = size_of_part(unit_of(first));
      return {};
    }
    if (Status status = allocate(call_, count + 1, begins.of_unit); !status.ok()) return status;
    begins.of_unit[0] = 0;
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t size = size_of_part(unit_of(first + i));
      begins.of_unit[i + 1] = begins.of_unit[i] + size;
      begins.largest = std::max(begins.largest, size);
    }
    return {};
  }

  void mask_scores(C* scores, std::int64_t items, const Positions<chunk>& of_items,
                   const Positions<lanes>& of_lanes) const {
    if (p_.mask.data != nullptr) {
      for (std::int64_t j = 0; j < items; ++j) {
        for (std::int64_t i = 0; i < lanes; ++i) {
          C& score = scores[j * lanes + i];
          const std::int64_t offset = of_items.mask_offsets[static_cast<std::size_t>(j)] +
                                      of_lanes.mask_offsets[static_cast<std::size_t>(i)];
          if (p_.mask.is_bool) {
            if (static_cast<const std::uint8_t*>(p_.mask.data)[offset] == 0) score = low;
          } else {
            const C bias = load(static_cast<const T*>(p_.mask.data)[offset]);
            score = bias == low ? low : score + bias;
          }
        }
      }
    }
    if (!p_.is_causal) return;
    const std::int64_t earliest = *std::ranges::min_element(of_lanes.orders);
    for (std::int64_t j = 0; j < items; ++j) {
      const std::int64_t order = of_items.orders[static_cast<std::size_t>(j)];
      if (order <= earliest) continue;
      cpu::for_each_index_of_few(lanes, [&](std::int64_t i) {
        C& score = scores[j * lanes + i];
        score = order > of_lanes.orders[static_cast<std::size_t>(i)] ? low : score;
      });
    }
  }

  void pack(const Packed& matrix, const Unit<C>& unit, C* to) const {
    if (!call_.inputs[matrix.input].present) return;
    const T* const data = input(matrix.input);
    const Layout& layout = unit.p.*matrix.layout;
    const auto rows = matrix.is_of_queries ? unit.p.queries_of(data, layout, unit.index)
                                           : unit.p.keys_of(data, layout, unit.index);
    const std::int64_t count = matrix.rows(unit.p);
    cpu::apart<isa>([=, columns = matrix.columns, turned = matrix.turned] {
      pack_rows(rows, 0, count, columns, turned, tile_rows, to);
    });
  }

  const cpu::Tile<C>& tile_ = cpu::tile_for_cpu<C>();
};

}  // namespace cudarelu::ops::attention
