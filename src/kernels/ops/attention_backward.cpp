#include "ops/attention_backward.h"

#include "ops/attention/cpu.h"
#include "ops/attention_mask_backward.h"

namespace cudarelu::ops {
namespace {

using namespace attention;

/// The positions of the inputs.
enum : std::size_t { grad_y, q, k, v, y, lse, grad_lse };

template <class T, std::int64_t lanes>
class Backward : Blocks<T, lanes> {
 public:
  using Base = Blocks<T, lanes>;
  using typename Base::C;

  Backward(const Call& call, const Problem& p) : Base(call, p) {}

  /// Either the gradients of q, k and v, or only that of the mask.
  Status run(bool of_mask) {
    if (this->units() == 0) return {};
    C* slopes = nullptr;  // the sum of grad_y y less grad_lse, for each query
    const std::int64_t rows = p_.group() * p_.queries;
    if (Status status = allocate(call_, this->units() * rows, slopes); !status.ok()) return status;
    slopes_ = slopes;
    compute_slopes(slopes);
    const std::int64_t d = p_.width;
    const std::int64_t e = p_.value_width;
    const std::int64_t t = p_.keys;
    // For the gradient of the mask, then also for that of q, then for those of k and v.
    const std::array<Packed, 7> matrices{{{k, p_.k, false, t, d, false},
                                          {v, p_.v, false, t, e, false},
                                          {k, p_.k, false, t, d, true},
                                          {q, p_.q, true, rows, d, false},
                                          {grad_y, p_.grad_y, true, rows, e, false},
                                          {q, p_.q, true, rows, d, true},
                                          {grad_y, p_.grad_y, true, rows, e, true}}};
    const std::int64_t scratch =
        lanes * (d + e + 2 * chunk + this->size_of(d, 1) + this->size_of(e, 1));
    return this->for_each_group(
        std::span(matrices).first(of_mask ? 2 : 7),
        [&](std::int64_t first, std::int64_t count, const auto& unit) {
          Status status = this->for_each_block(
              first, count, rows, scratch, [&](std::int64_t index, std::int64_t row, C* memory) {
                of_queries(unit(index), row, of_mask, memory);
              });
          if (!status.ok() || of_mask) return status;
          return this->for_each_block(first, count, t, scratch,
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
    const bool has_grad_lse = call_.inputs[grad_lse].present;
    const std::int64_t grain = std::max<std::int64_t>(1, 16384 / std::max<std::int64_t>(1, e));
    call_.execution.parallel_for(
        p_.batch * p_.heads * p_.queries, grain, [&](std::int64_t begin, std::int64_t end) {
          for (std::int64_t row = begin; row < end; ++row) {
            C sum = 0;
            const std::int64_t head = row / p_.queries % p_.heads;
            const std::int64_t batch = row / p_.queries / p_.heads;
            const auto start_of = [&](std::size_t i, const Layout& layout) {
              return this->input(i) + layout.place(batch, head) + row % p_.queries * layout.row;
            };
            const T* const gradients = start_of(grad_y, p_.grad_y);
            const T* const results = start_of(y, p_.y);
            for (std::int64_t i = 0; i < e; ++i) sum += load(gradients[i]) * load(results[i]);
            slopes[row] = has_grad_lse ? sum - this->template input<float>(grad_lse)[row] : sum;
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
    const Panels<C>& keys = unit.panels[0];
    const Panels<C>& values = unit.panels[1];
    const Panels<C>& turned_keys = unit.panels[2];
    const std::int64_t count = std::min(lanes, unit.rows() - first);
    const std::int64_t row = unit.index * unit.rows() + first;
    C* const queries = memory;
    C* const gradients = queries + p_.width * lanes;
    C* const weights = gradients + p_.value_width * lanes;
    C* const grad_scores = weights + chunk * lanes;
    C* const sums = grad_scores + chunk * lanes;
    this->pack_lanes(p_.queries_of(this->input(q), p_.q, unit.index), first, count, p_.width,
                     static_cast<C>(p_.scale), queries);
    this->pack_lanes(p_.queries_of(this->input(grad_y), p_.grad_y, unit.index), first, count,
                     p_.value_width, 1, gradients);
    Positions<lanes> of_lanes;
    Positions<chunk> of_items;
    this->place_rows(unit, first, count, false, of_lanes);
    Row base{};
    Row slopes{};
    for (std::int64_t i = 0; i < count; ++i) {
      base[static_cast<std::size_t>(i)] = base_of(this->template input<float>(lse)[row + i]);
      slopes[static_cast<std::size_t>(i)] = slopes_[row + i];
    }
    std::fill_n(sums, this->size_of(p_.width, 1) * lanes, C(0));
    const std::int64_t visible = of_mask ? p_.keys : this->visible_keys(of_lanes);
    for (std::int64_t key = 0; key < visible; key += chunk) {
      const std::int64_t items = std::min(chunk, visible - key);
      this->multiply_items(keys, key, items, queries, weights);
      this->multiply_items(values, key, items, gradients, grad_scores);
      this->place_keys(key, items, true, of_items);
      this->finish_scores(weights, items, of_items, of_lanes);
      const C scale = of_mask ? C(1) : static_cast<C>(p_.scale);
      for (std::int64_t j = 0; j < items; ++j) {
        cpu::for_each_index_of_few(lanes, [&](std::int64_t l) {
          const auto i = static_cast<std::size_t>(l);
          C& gradient = grad_scores[j * lanes + l];
          const C weight = math::exp_of_any(weights[j * lanes + l] - base[i]);
          gradient = weight * (gradient - slopes[i]) * scale;
        });
      }
      if (of_mask) {
        HeadRows<T> to = p_.queries_of(this->output(0), p_.grad_mask, unit.index);
        to.data += key;
        this->write(grad_scores, first, count, items, to);
      } else {
        this->multiply(turned_keys, key, items, grad_scores, sums, true);
      }
    }
    if (of_mask) return;
    this->write(sums, first, count, p_.width,
                p_.queries_of(this->output(0), p_.grad_q, unit.index));
  }

  /// The gradients of k and v for the keys from `first` on, one for each lane.
  void of_keys(const Unit<C>& unit, std::int64_t first, C* memory) const {
    const Panels<C>& queries = unit.panels[3];
    const Panels<C>& gradients = unit.panels[4];
    const Panels<C>& turned_queries = unit.panels[5];
    const Panels<C>& turned_gradients = unit.panels[6];
    const std::int64_t count = std::min(lanes, p_.keys - first);
    const std::int64_t row = unit.index * unit.rows();
    C* const keys = memory;
    C* const values = keys + p_.width * lanes;
    C* const weights = values + p_.value_width * lanes;
    C* const grad_scores = weights + chunk * lanes;
    C* const grad_keys = grad_scores + chunk * lanes;
    C* const grad_values = grad_keys + this->size_of(p_.width, 1) * lanes;
    this->pack_lanes(p_.keys_of(this->input(k), p_.k, unit.index), first, count, p_.width,
                     static_cast<C>(p_.scale), keys);
    this->pack_lanes(p_.keys_of(this->input(v), p_.v, unit.index), first, count, p_.value_width, 1,
                     values);
    Positions<lanes> of_lanes;
    Positions<chunk> of_items;
    this->place_keys(first, count, false, of_lanes);
    std::fill_n(grad_keys, this->size_of(p_.width, 1) * lanes, C(0));
    std::fill_n(grad_values, this->size_of(p_.value_width, 1) * lanes, C(0));
    for (std::int64_t item = 0; item < unit.rows(); item += chunk) {
      const std::int64_t items = std::min(chunk, unit.rows() - item);
      this->place_rows(unit, item, items, true, of_items);
      // The latest query of the chunk has the lowest order.
      if (p_.is_causal &&
          -*std::min_element(of_items.orders.begin(), of_items.orders.begin() + items) < first) {
        continue;
      }
      this->multiply_items(queries, item, items, keys, weights);
      this->multiply_items(gradients, item, items, values, grad_scores);
      this->finish_scores(weights, items, of_items, of_lanes);
      const auto scale = static_cast<C>(p_.scale);
      for (std::int64_t j = 0; j < items; ++j) {
        const C base = base_of(this->template input<float>(lse)[row + item + j]);
        const C slope = slopes_[row + item + j];
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
    this->write(grad_keys, first, count, p_.width,
                p_.keys_of(this->output(1), p_.grad_k, unit.index));
    this->write(grad_values, first, count, p_.value_width,
                p_.keys_of(this->output(2), p_.grad_v, unit.index));
  }

  const C* slopes_ = nullptr;
};

Status run(const Call& call, bool of_mask) {
  const Problem p = problem_of(call, q);
  return visit_dtype<floating_types>(call.inputs[0].dtype, [&]<class T>(TypeTag<T>) {
    return cpu::with_tile_columns<Compute<T>>(
        [&](auto lanes) { return Backward<T, lanes>(call, p).run(of_mask); });
  });
}

}  // namespace

Status AttentionBackward::cpu(const Call& call) { return run(call, false); }

Status AttentionMaskBackward::cpu(const Call& call) { return run(call, true); }

}  // namespace cudarelu::ops
