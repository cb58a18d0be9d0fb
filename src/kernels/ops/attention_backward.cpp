#include "ops/attention_backward.h"

#include "ops/attention/cpu.h"
#include "ops/attention_mask_backward.h"
#include "ops/attention_varlen_backward.h"

namespace cudarelu::ops {
namespace {

using namespace attention;

/// The positions of the inputs.
enum : std::size_t { grad_y, q, k, v, y, lse };

template <class T, std::int64_t lanes>
class Backward : Blocks<T, lanes> {
 public:
  using Base = Blocks<T, lanes>;
  using typename Base::C;

  Backward(const Call& call, const Params& p, const Sequences* sequences,
           const TensorView& grad_lse)
      : Base(call, p, sequences), grad_lse_(grad_lse) {}

  Status run() {
    const std::int64_t d = p_.width;
    const std::int64_t e = p_.value_width;
    constexpr auto q_ends = &Sequences::q_ends;
    constexpr auto k_ends = &Sequences::k_ends;
    this->fill_rest(q_ends, p_.queries, p_.heads, d, this->output(0), p_.grad_q, T{});
    this->fill_rest(k_ends, p_.keys, p_.kv_heads, d, this->output(1), p_.grad_k, T{});
    this->fill_rest(k_ends, p_.keys, p_.kv_heads, e, this->output(2), p_.grad_v, T{});
    if (this->units() == 0) return {};
    if (Status status = find_numbers(); !status.ok()) return status;
    const std::array<Packed, 4> matrices{{{q, &Params::q, true, d, false},
                                          {grad_y, &Params::grad_y, true, e, false},
                                          {q, &Params::q, true, d, true},
                                          {grad_y, &Params::grad_y, true, e, true}}};
    const auto storage_of = [this](const Params& p) {
      return parts_of(p) * size_of_sums(p) + cpu::parts(p.keys, lanes) * size_of_block();
    };
    const std::int64_t size = lanes * (d + e + padded_width() + 2 * chunk);
    const std::int64_t slots = std::min(this->units() * max_parts, this->max_slots);
    C* scratch = nullptr;
    if (Status status = allocate(call_, slots * size, scratch); !status.ok()) return status;
    return this->for_each_group(
        matrices, storage_of, [&](std::int64_t first, std::int64_t count, const auto& unit) {
          std::int64_t rows = 1;  // keys without queries have gradients too
          for (std::int64_t i = 0; i < count; ++i) rows = std::max(rows, unit(first + i).rows());
          Status status;
          for (std::int64_t begin = 0; status.ok() && begin < rows; begin += max_rows) {
            status = this->for_each_block(
                first, count, [](const Unit<C>& each) { return parts_of(each.p) * lanes; },
                [&](std::int64_t index, std::int64_t line, std::int64_t slot) {
                  cpu::apart<Base::isa>(
                      [&] { of_part(unit(index), begin, line / lanes, scratch + slot * size); });
                });
            if (!status.ok()) break;
            status = this->for_each_block(
                first, count,
                [&](const Unit<C>& each) {
                  return std::clamp<std::int64_t>(each.rows() - begin, 0, max_rows);
                },
                [&](std::int64_t index, std::int64_t row, std::int64_t) {
                  cpu::apart<Base::isa>([&] { add_parts(unit(index), begin, row); });
                });
          }
          return status;
        });
  }

  Status run_for_mask() {
    if (this->units() == 0) return {};
    if (Status status = find_numbers(); !status.ok()) return status;
    const std::array<Packed, 2> matrices{
        {{k, &Params::k, false, p_.width, false}, {v, &Params::v, false, p_.value_width, false}}};
    const std::int64_t scratch = lanes * (p_.width + p_.value_width + 2 * chunk);
    return this->for_each_group(
        matrices, [&](std::int64_t first, std::int64_t count, const auto& unit) {
          return this->for_each_block(
              first, count, scratch, [](const Unit<C>& each) { return each.rows(); },
              [&](std::int64_t index, std::int64_t row, C* memory) {
                cpu::apart<Base::isa>([&] { of_mask(unit(index), row, memory); });
              });
        });
  }

 private:
  using Base::call_;
  using Base::p_;
  using typename Base::Row;

  /// The rows of a unit that are processed at a time: they bound the memory for sums.
  static constexpr std::int64_t max_rows = 16 * chunk;

  static constexpr std::int64_t max_parts = 16;
  /// The number of parts of the keys, which are processed at the same time. It depends on the keys
  /// alone, so that sums are in the same order beside any other params of the call.
  static std::int64_t parts_of(const Params& p) {
    return std::clamp<std::int64_t>(cpu::parts(p.keys, 512), 1, max_parts);
  }

  /// d in whole tiles.
  std::int64_t padded_width() const { return cpu::parts(p_.width, lanes) * lanes; }

  /// The rows of the sums of a part, in whole panels.
  std::int64_t rows_of_sums(const Params& p) const {
    return this->size_of(std::min(p.group() * p.queries, max_rows), 1);
  }

  // The storage of a unit: for each part, the sums for the gradients of queries, [padded_width /
  // lanes, rows, lanes]; for each block of keys, the sums for the gradients of k and v.
  std::int64_t size_of_sums(const Params& p) const { return padded_width() * rows_of_sums(p); }
  std::int64_t size_of_block() const {
    return lanes * (this->size_of(p_.width, 1) + this->size_of(p_.value_width, 1));
  }
  C* sums_of(const Unit<C>& unit, std::int64_t part) const {
    return unit.storage + part * size_of_sums(unit.p);
  }
  C* block_of(const Unit<C>& unit, std::int64_t block) const {
    return sums_of(unit, parts_of(unit.p)) + block * size_of_block();
  }

  /// Of each query.
  Status find_numbers() {
    if (Status status = this->find_lse(lse, lse_); !status.ok()) return status;
    C* slopes = nullptr;
    const std::int64_t rows = p_.batch * p_.heads * p_.queries;
    if (Status status = allocate(call_, rows, slopes); !status.ok()) return status;
    compute_slopes(slopes);
    slopes_ = slopes;
    return {};
  }

  void compute_slopes(C* slopes) const {
    const std::int64_t e = p_.value_width;
    const std::int64_t grain = std::max<std::int64_t>(1, 16384 / std::max<std::int64_t>(1, e));
    call_.execution.parallel_for(
        p_.batch * p_.heads * p_.queries, grain, [&](std::int64_t begin, std::int64_t end) {
          for (std::int64_t row = begin; row < end; ++row) {
            C sum = 0;
            const std::int64_t head = row / p_.queries % p_.heads;
            const std::int64_t batch = row / p_.queries / p_.heads;
            const auto offset_in = [&](const Layout& layout) {
              return layout.offset(batch, head) + row % p_.queries * layout.row;
            };
            const T* const gradients = this->input(grad_y) + offset_in(p_.grad_y);
            const T* const results = this->input(y) + offset_in(p_.y);
            const std::int64_t offset = offset_in(p_.lse);
            for (std::int64_t i = 0; i < e; ++i) sum += load(gradients[i]) * load(results[i]);
            if (grad_lse_.present) sum -= static_cast<const float*>(grad_lse_.data)[offset];
            slopes[offset] = sum;
          }
        });
  }

  /// The gradient of the mask for the rows from `first` on, one for each lane.
  void of_mask(const Unit<C>& unit, std::int64_t first, C* memory) const {
    const Params& p = unit.p;
    const Panels<C>& keys = unit.panels[0];
    const Panels<C>& values = unit.panels[1];
    const std::int64_t count = std::min(lanes, unit.rows() - first);
    C* const queries = memory;
    C* const gradients = queries + p.width * lanes;
    C* const weights = gradients + p.value_width * lanes;
    C* const grad_scores = weights + chunk * lanes;
    this->pack_lanes(p.queries_of(this->input(q), p.q, unit.index), first, count, p.width,
                     static_cast<C>(p.scale), queries);
    this->pack_lanes(p.queries_of(this->input(grad_y), p.grad_y, unit.index), first, count,
                     p.value_width, 1, gradients);
    Positions<lanes> of_lanes;
    Positions<chunk> of_items;
    this->set_rows(unit, first, count, false, of_lanes);
    const HeadRows<const C> lse_of = p.queries_of(lse_, p.lse, unit.index);
    const HeadRows<const C> slope_of = p.queries_of(slopes_, p.lse, unit.index);
    Row base{};
    Row slopes{};
    for (std::int64_t i = 0; i < count; ++i) {
      base[static_cast<std::size_t>(i)] = this->base_of(*lse_of[first + i]);
      slopes[static_cast<std::size_t>(i)] = *slope_of[first + i];
    }
    for (std::int64_t key = 0; key < p.keys; key += chunk) {
      const std::int64_t items = std::min(chunk, p.keys - key);
      this->multiply_items(keys, key, items, queries, weights);
      this->multiply_items(values, key, items, gradients, grad_scores);
      this->set_keys(key, items, true, of_items);
      this->finish_scores(weights, items, of_items, of_lanes);
      for (std::int64_t j = 0; j < items; ++j) {
        cpu::for_each_index_of_few(lanes, [&](std::int64_t l) {
          const auto i = static_cast<std::size_t>(l);
          C& gradient = grad_scores[j * lanes + l];
          gradient = math::exp_of_any(weights[j * lanes + l] - base[i]) * (gradient - slopes[i]);
        });
      }
      HeadRows<T> to = p.queries_of(this->output(0), p.grad_mask, unit.index);
      to.data += key;
      this->write(grad_scores, first, count, items, to);
    }
  }

  /// The gradients of k and v for the keys of a part, and the sums for that of q, in the rows from
  /// `begin` on. A part has every parts_of()-th block of keys: with causal attention all parts take
  /// about the same time.
  void of_part(const Unit<C>& unit, std::int64_t begin, std::int64_t part, C* memory) const {
    if (begin > 0 && begin >= unit.rows()) return;
    const std::int64_t rows = this->size_of(std::min(unit.rows() - begin, max_rows), 1);
    for (std::int64_t column = 0; column < p_.width; column += lanes) {
      std::fill_n(sums_of(unit, part) + column * rows_of_sums(unit.p), rows * lanes, C(0));
    }
    const std::int64_t step = parts_of(unit.p) * lanes;
    for (std::int64_t key = part * lanes; key < unit.p.keys; key += step) {
      of_keys(unit, begin, key, sums_of(unit, part), memory);
    }
  }

  /// The gradient of q for the rows from `begin` + `first` on.
  void add_parts(const Unit<C>& unit, std::int64_t begin, std::int64_t first) const {
    const std::int64_t count = std::min(lanes, unit.rows() - begin - first);
    const std::int64_t rows = rows_of_sums(unit.p);
    const HeadRows<T> to = unit.p.queries_of(this->output(0), unit.p.grad_q, unit.index);
    for (std::int64_t row = first; row < first + count; ++row) {
      for (std::int64_t column = 0; column < p_.width; column += lanes) {
        Row total{};
        for (std::int64_t part = 0; part < parts_of(unit.p); ++part) {
          const C* const sums = sums_of(unit, part) + column * rows + row * lanes;
          cpu::for_each_index_of_few(
              lanes, [&](std::int64_t i) { total[static_cast<std::size_t>(i)] += sums[i]; });
        }
        for (std::int64_t i = 0; i < std::min(lanes, p_.width - column); ++i) {
          to[begin + row][column + i] = store<T>(total[static_cast<std::size_t>(i)]);
        }
      }
    }
  }

  /// Adds the terms of the rows from `begin` on to the gradients of k and v, for the keys from
  /// `first` on, one for each lane, and the terms of these keys to the sums for the gradient of q.
  void of_keys(const Unit<C>& unit, std::int64_t begin, std::int64_t first, C* grad_queries,
               C* memory) const {
    const Params& p = unit.p;
    const Panels<C>& queries = unit.panels[0];
    const Panels<C>& gradients = unit.panels[1];
    const Panels<C>& turned_queries = unit.panels[2];
    const Panels<C>& turned_gradients = unit.panels[3];
    const std::int64_t count = std::min(lanes, p.keys - first);
    C* const keys = memory;
    C* const values = keys + p.width * lanes;
    C* const turned_keys = values + p.value_width * lanes;  // [padded_width / lanes, count, lanes]
    C* const weights = turned_keys + padded_width() * lanes;
    C* const grad_scores = weights + chunk * lanes;
    C* const grad_keys = block_of(unit, first / lanes);
    C* const grad_values = grad_keys + this->size_of(p.width, 1) * lanes;
    this->pack_lanes(p.keys_of(this->input(k), p.k, unit.index), first, count, p.width,
                     static_cast<C>(p.scale), keys);
    this->pack_lanes(p.keys_of(this->input(v), p.v, unit.index), first, count, p.value_width, 1,
                     values);
    this->pack_lanes(p.keys_of(this->input(k), p.k, unit.index), first, count, p.width, 1,
                     turned_keys, true);
    Positions<lanes> of_lanes;
    Positions<chunk> of_items;
    this->set_keys(first, count, false, of_lanes);
    if (begin == 0) std::fill_n(grad_keys, size_of_block(), C(0));
    const HeadRows<const C> lse_of = p.queries_of(lse_, p.lse, unit.index);
    const HeadRows<const C> slope_of = p.queries_of(slopes_, p.lse, unit.index);
    const std::int64_t end = std::min(begin + max_rows, unit.rows());
    for (std::int64_t item = begin; item < end; item += chunk) {
      const std::int64_t items = std::min(chunk, end - item);
      this->set_rows(unit, item, items, true, of_items);
      // The latest query of the chunk has the lowest order.
      if (p.is_causal &&
          -*std::min_element(of_items.orders.begin(), of_items.orders.begin() + items) < first) {
        continue;
      }
      this->multiply_items(queries, item, items, keys, weights);
      this->multiply_items(gradients, item, items, values, grad_scores);
      this->finish_scores(weights, items, of_items, of_lanes);
      const auto scale = static_cast<C>(p.scale);
      for (std::int64_t j = 0; j < items; ++j) {
        const C base = this->base_of(*lse_of[item + j]);
        const C slope = *slope_of[item + j];
        cpu::for_each_index_of_few(lanes, [&](std::int64_t i) {
          C& weight = weights[j * lanes + i];
          C& gradient = grad_scores[j * lanes + i];
          weight = math::exp_of_any(weight - base);
          gradient = weight * (gradient - slope) * scale;
        });
      }
      this->multiply(turned_queries, item, items, grad_scores, grad_keys, true);
      this->multiply(turned_gradients, item, items, weights, grad_values, true);
      for (std::int64_t column = 0; column < p.width; column += lanes) {
        this->add_products(grad_scores, items, turned_keys + column * count, count,
                           grad_queries + column * rows_of_sums(p) + (item - begin) * lanes);
      }
    }
    if (end < unit.rows()) return;
    this->write(grad_keys, first, count, p.width, p.keys_of(this->output(1), p.grad_k, unit.index));
    this->write(grad_values, first, count, p.value_width,
                p.keys_of(this->output(2), p.grad_v, unit.index));
  }

  const TensorView& grad_lse_;
  const C* lse_ = nullptr;
  const C* slopes_ = nullptr;  // the sum of grad_y y less grad_lse, for each query
};

Status run(const Call& call, const Params& p, const Sequences* sequences,
           const TensorView& grad_lse, bool of_mask) {
  return visit_dtype<floating_types>(call.inputs[0].dtype, [&]<class T>(TypeTag<T>) {
    return cpu::with_tile_columns<Compute<T>>([&](auto lanes) {
      Backward<T, lanes> backward(call, p, sequences, grad_lse);
      return of_mask ? backward.run_for_mask() : backward.run();
    });
  });
}

}  // namespace

Status AttentionBackward::cpu(const Call& call) {
  return run(call, params_of(call, q), nullptr, call.inputs[6], false);
}

Status AttentionMaskBackward::cpu(const Call& call) {
  return run(call, params_of(call, q), nullptr, call.inputs[6], true);
}

Status AttentionVarlenBackward::cpu(const Call& call) {
  const Params p = packed_problem_of(call, q);
  Sequences sequences = sequences_of(call, 6, 8);
  if (Status status = divide(call, p, sequences); !status.ok()) return status;
  return run(call, p, &sequences, call.inputs[7], false);
}

}  // namespace cudarelu::ops
