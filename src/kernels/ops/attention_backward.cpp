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

  Backward(const Call& call, const Problem& p, const Sequences* sequences,
           const TensorView& grad_lse)
      : Base(call, p, sequences), grad_lse_(grad_lse) {}

  /// Either the gradients of q, k and v, or only that of the mask.
  Status run(bool of_mask) {
    const std::int64_t d = p_.width;
    const std::int64_t e = p_.value_width;
    if (!of_mask) {
      constexpr auto q_ends = &Sequences::q_ends;
      constexpr auto k_ends = &Sequences::k_ends;
      this->fill_rest(q_ends, p_.queries, p_.heads, d, this->output(0), p_.grad_q, T{});
      this->fill_rest(k_ends, p_.keys, p_.kv_heads, d, this->output(1), p_.grad_k, T{});
      this->fill_rest(k_ends, p_.keys, p_.kv_heads, e, this->output(2), p_.grad_v, T{});
    }
    if (this->units() == 0) return {};
    C* slopes = nullptr;  // the sum of grad_y y less grad_lse, for each query
    const std::int64_t rows = p_.batch * p_.heads * p_.queries;
    if (Status status = allocate(call_, rows, slopes); !status.ok()) return status;
    slopes_ = slopes;
    compute_slopes(slopes);
    // For the gradient of the mask, then also for that of q, then for those of k and v.
    const std::array<Packed, 7> matrices{{{k, &Problem::k, false, d, false},
                                          {v, &Problem::v, false, e, false},
                                          {k, &Problem::k, false, d, true},
                                          {q, &Problem::q, true, d, false},
                                          {grad_y, &Problem::grad_y, true, e, false},
                                          {q, &Problem::q, true, d, true},
                                          {grad_y, &Problem::grad_y, true, e, true}}};
    const std::int64_t scratch =
        lanes * (d + e + 2 * chunk + this->size_of(d, 1) + this->size_of(e, 1));
    return this->for_each_group(
        std::span(matrices).first(of_mask ? 2 : 7),
        [&](std::int64_t first, std::int64_t count, const auto& unit) {
          Status status = this->for_each_block(
              first, count, scratch, [](const Unit<C>& each) { return each.rows(); },
              [&](std::int64_t index, std::int64_t row, C* memory) {
                of_queries(unit(index), row, of_mask, memory);
              });
          if (!status.ok() || of_mask) return status;
          return this->for_each_block(
              first, count, scratch, [](const Unit<C>& each) { return each.p.keys; },
              [&](std::int64_t index, std::int64_t key, C* memory) {
                of_keys(unit(index), key, memory);
              });
        });
  }

 private:
  using Base::call_;
  using Base::low;
  using Base::p_;
  using typename Base::Row;

  void compute_slopes(C* slopes) const {
    const std::int64_t e = p_.value_width;
    const std::int64_t grain = std::max<std::int64_t>(1, 16384 / std::max<std::int64_t>(1, e));
    call_.execution.parallel_for(
        p_.batch * p_.heads * p_.queries, grain, [&](std::int64_t begin, std::int64_t end) {
          for (std::int64_t row = begin; row < end; ++row) {
            C sum = 0;
            const std::int64_t head = row / p_.queries % p_.heads;
            const std::int64_t batch = row / p_.queries / p_.heads;
            const auto place_in = [&](const Layout& layout) {
              return layout.place(batch, head) + row % p_.queries * layout.row;
            };
            const T* const gradients = this->input(grad_y) + place_in(p_.grad_y);
            const T* const results = this->input(y) + place_in(p_.y);
            const std::int64_t place = place_in(p_.lse);
            for (std::int64_t i = 0; i < e; ++i) sum += load(gradients[i]) * load(results[i]);
            if (grad_lse_.present) sum -= static_cast<const float*>(grad_lse_.data)[place];
            slopes[place] = sum;
          }
        });
  }

  /// exp(score - lse) for a finite lse; where no key is visible, all scores are -infinity.
  static C base_of(float lse) {
    const C base = lse;
    return base == low ? C(0) : base;
  }

  /// The gradient of q, or of the mask, for the rows from `first` on, one for each lane.
  void of_queries(const Unit<C>& unit, std::int64_t first, bool of_mask, C* memory) const {
    const Problem& p = unit.p;
    const Panels<C>& keys = unit.panels[0];
    const Panels<C>& values = unit.panels[1];
    const Panels<C>& turned_keys = unit.panels[2];
    const std::int64_t count = std::min(lanes, unit.rows() - first);
    C* const queries = memory;
    C* const gradients = queries + p.width * lanes;
    C* const weights = gradients + p.value_width * lanes;
    C* const grad_scores = weights + chunk * lanes;
    C* const sums = grad_scores + chunk * lanes;
    this->pack_lanes(p.queries_of(this->input(q), p.q, unit.index), first, count, p.width,
                     static_cast<C>(p.scale), queries);
    this->pack_lanes(p.queries_of(this->input(grad_y), p.grad_y, unit.index), first, count,
                     p.value_width, 1, gradients);
    Positions<lanes> of_lanes;
    Positions<chunk> of_items;
    this->place_rows(unit, first, count, false, of_lanes);
    const auto lse_of = p.queries_of(this->template input<float>(lse), p.lse, unit.index);
    const HeadRows<const C> slope_of = p.queries_of(slopes_, p.lse, unit.index);
    Row base{};
    Row slopes{};
    for (std::int64_t i = 0; i < count; ++i) {
      base[static_cast<std::size_t>(i)] = base_of(*lse_of[first + i]);
      slopes[static_cast<std::size_t>(i)] = *slope_of[first + i];
    }
    std::fill_n(sums, this->size_of(p.width, 1) * lanes, C(0));
    const std::int64_t visible = of_mask ? p.keys : this->visible_keys(unit, of_lanes);
    for (std::int64_t key = 0; key < visible; key += chunk) {
      const std::int64_t items = std::min(chunk, visible - key);
      this->multiply_items(keys, key, items, queries, weights);
      this->multiply_items(values, key, items, gradients, grad_scores);
      this->place_keys(key, items, true, of_items);
      this->finish_scores(weights, items, of_items, of_lanes);
      const C scale = of_mask ? C(1) : static_cast<C>(p.scale);
      for (std::int64_t j = 0; j < items; ++j) {
        cpu::for_each_index_of_few(lanes, [&](std::int64_t l) {
          const auto i = static_cast<std::size_t>(l);
          C& gradient = grad_scores[j * lanes + l];
          const C weight = math::exp_of_any(weights[j * lanes + l] - base[i]);
          gradient = weight * (gradient - slopes[i]) * scale;
        });
      }
      if (of_mask) {
        HeadRows<T> to = p.queries_of(this->output(0), p.grad_mask, unit.index);
        to.data += key;
        this->write(grad_scores, first, count, items, to);
      } else {
        this->multiply(turned_keys, key, items, grad_scores, sums, true);
      }
    }
    if (of_mask) return;
    this->write(sums, first, count, p.width, p.queries_of(this->output(0), p.grad_q, unit.index));
  }

  /// The gradients of k and v for the keys from `first` on, one for each lane.
  void of_keys(const Unit<C>& unit, std::int64_t first, C* memory) const {
    const Problem& p = unit.p;
    const Panels<C>& queries = unit.panels[3];
    const Panels<C>& gradients = unit.panels[4];
    const Panels<C>& turned_queries = unit.panels[5];
    const Panels<C>& turned_gradients = unit.panels[6];
    const std::int64_t count = std::min(lanes, p.keys - first);
    C* const keys = memory;
    C* const values = keys + p.width * lanes;
    C* const weights = values + p.value_width * lanes;
    C* const grad_scores = weights + chunk * lanes;
    C* const grad_keys = grad_scores + chunk * lanes;
    C* const grad_values = grad_keys + this->size_of(p.width, 1) * lanes;
    this->pack_lanes(p.keys_of(this->input(k), p.k, unit.index), first, count, p.width,
                     static_cast<C>(p.scale), keys);
    this->pack_lanes(p.keys_of(this->input(v), p.v, unit.index), first, count, p.value_width, 1,
                     values);
    Positions<lanes> of_lanes;
    Positions<chunk> of_items;
    this->place_keys(first, count, false, of_lanes);
    std::fill_n(grad_keys, this->size_of(p.width, 1) * lanes, C(0));
    std::fill_n(grad_values, this->size_of(p.value_width, 1) * lanes, C(0));
    const auto lse_of = p.queries_of(this->template input<float>(lse), p.lse, unit.index);
    const HeadRows<const C> slope_of = p.queries_of(slopes_, p.lse, unit.index);
    for (std::int64_t item = 0; item < unit.rows(); item += chunk) {
      const std::int64_t items = std::min(chunk, unit.rows() - item);
      this->place_rows(unit, item, items, true, of_items);
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
        const C base = base_of(*lse_of[item + j]);
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
    }
    this->write(grad_keys, first, count, p.width, p.keys_of(this->output(1), p.grad_k, unit.index));
    this->write(grad_values, first, count, p.value_width,
                p.keys_of(this->output(2), p.grad_v, unit.index));
  }

  const TensorView& grad_lse_;
  const C* slopes_ = nullptr;
};

Status run(const Call& call, const Problem& p, const Sequences* sequences,
           const TensorView& grad_lse, bool of_mask) {
  return visit_dtype<floating_types>(call.inputs[0].dtype, [&]<class T>(TypeTag<T>) {
    return cpu::with_tile_columns<Compute<T>>(
        [&](auto lanes) { return Backward<T, lanes>(call, p, sequences, grad_lse).run(of_mask); });
  });
}

}  // namespace

Status AttentionBackward::cpu(const Call& call) {
  return run(call, problem_of(call, q), nullptr, call.inputs[6], false);
}

Status AttentionMaskBackward::cpu(const Call& call) {
  return run(call, problem_of(call, q), nullptr, call.inputs[6], true);
}

Status AttentionVarlenBackward::cpu(const Call& call) {
  const Problem p = packed_problem_of(call, q);
  Sequences sequences = sequences_of(call, 6, 8);
  if (Status status = divide(call, p, sequences); !status.ok()) return status;
  return run(call, p, &sequences, call.inputs[7], false);
}

}  // namespace cudarelu::ops
