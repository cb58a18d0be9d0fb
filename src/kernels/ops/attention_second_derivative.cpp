#include "ops/attention_second_derivative.h"

#include <initializer_list>

#include "ops/attention/cpu.h"
#include "ops/attention_mask_second_derivative.h"

namespace cudarelu::ops {
namespace {

using namespace attention;

/// The positions of the inputs.
enum : std::size_t {
  grad_y,
  q,
  k,
  v,
  y,
  lse,
  grad_lse,
  grad_grad_q,
  grad_grad_k,
  grad_grad_v,
  grad_grad_mask
};

/// The positions of the outputs.
enum : std::size_t { of_grad_y, of_q, of_k, of_v, of_y, of_lse, of_grad_lse };

/// What a chunk of a block has for each item and lane.
template <class C>
struct Terms {
  C* weights;
  C* grad_scores;
  C* weighted;  // the weights times the gradients of grad_scores
  C* second;    // the second derivatives of the scores
};

/// The names are those of the definition.
template <class T, std::int64_t lanes>
class SecondDerivative : Blocks<T, lanes> {
 public:
  using Base = Blocks<T, lanes>;
  using typename Base::C;

  SecondDerivative(const Call& call, const Params& p) : Base(call, p) {}

  /// Either the gradients of all inputs but the mask, or only that of the mask.
  Status run(bool of_mask) {
    if (this->units() == 0) return {};
    if (Status status = this->find_lse(lse, lse_); !status.ok()) return status;
    const std::int64_t d = p_.width;
    const std::int64_t e = p_.value_width;
    const std::int64_t t = p_.keys;
    const std::int64_t rows = p_.group() * p_.queries;
    const std::int64_t scratch =
        2 * lanes * (d + e + 2 * chunk) + lanes * (this->size_of(d, 1) + this->size_of(e, 1));
    const auto for_each_block = [&](std::span<const Packed> matrices, std::int64_t lines,
                                    const auto& compute) {
      return this->for_each_group(
          matrices, [&](std::int64_t first, std::int64_t count, const auto& unit) {
            return this->for_each_block(
                first, count, scratch, [&](const Unit<C>&) { return lines; },
                [&](std::int64_t index, std::int64_t line, C* memory) {
                  compute(unit(index), line, memory);
                });
          });
    };
    // The last four are for the sums.
    const std::array<Packed, 8> of_keys_and_values{{{k, &Params::k, false, d, false},
                                                    {grad_grad_k, &Params::k, false, d, false},
                                                    {v, &Params::v, false, e, false},
                                                    {grad_grad_v, &Params::v, false, e, false},
                                                    {k, &Params::k, false, d, true},
                                                    {grad_grad_k, &Params::k, false, d, true},
                                                    {v, &Params::v, false, e, true},
                                                    {grad_grad_v, &Params::v, false, e, true}}};
    Status status =
        for_each_block(std::span(of_keys_and_values).first(of_mask ? 4 : 8), rows,
                       [&](const Unit<C>& unit, std::int64_t row, C* memory) {
                         cpu::apart<Base::isa>([&] { of_queries(unit, row, of_mask, memory); });
                       });
    if (!status.ok() || of_mask) return status;
    const std::array<Packed, 6> of_rows{{{q, &Params::q, true, d, false},
                                         {grad_grad_q, &Params::q, true, d, false},
                                         {grad_y, &Params::grad_y, true, e, false},
                                         {q, &Params::q, true, d, true},
                                         {grad_grad_q, &Params::q, true, d, true},
                                         {grad_y, &Params::grad_y, true, e, true}}};
    return for_each_block(of_rows, t, [&](const Unit<C>& unit, std::int64_t key, C* memory) {
      cpu::apart<Base::isa>([&] { of_keys(unit, key, memory); });
    });
  }

 private:
  using Base::call_;
  using Base::p_;
  using typename Base::Row;

  /// The slope of a row of q, for the gradients of the scores.
  C slope_of(std::int64_t row) const {
    const T* const gradients = this->input(grad_y) + row * p_.value_width;
    const T* const outputs = this->input(y) + row * p_.value_width;
    C sum = 0;
    for (std::int64_t i = 0; i < p_.value_width; ++i) sum += load(gradients[i]) * load(outputs[i]);
    return call_.inputs[grad_lse].present ? sum - this->template input<float>(grad_lse)[row] : sum;
  }

  /// Whether an input is present. The terms of an absent one are left out: 0 times infinity is NaN.
  bool has(std::size_t input) const { return call_.inputs[input].present; }

  /// Rows of two inputs, packed; `second` is null if that input is absent.
  struct Factors {
    C* first;
    C* second;
  };
  /// Packs rows to the begin of the memory, and moves it on. rows_of(input) are those of an input.
  Factors pack_both(std::size_t first, std::size_t second, const auto& rows_of, std::int64_t line,
                    std::int64_t count, std::int64_t columns, C factor, C*& memory) const {
    const Factors factors{memory, has(second) ? memory + columns * lanes : nullptr};
    this->pack_lanes(rows_of(first), line, count, columns, factor, factors.first);
    if (has(second)) {
      this->pack_lanes(rows_of(second), line, count, columns, factor, factors.second);
    }
    memory += 2 * columns * lanes;
    return factors;
  }

  static Terms<C> storage_for_terms(C*& memory) {
    C* const first = memory;
    memory += 4 * chunk * lanes;
    return {first, first + chunk * lanes, first + 2 * chunk * lanes, first + 3 * chunk * lanes};
  }

  /// The factors of a product; `b` is null if one of them is absent.
  struct Product {
    const Panels<C>& a;
    const C* b;
  };
  /// out[item, lane] = the sum of the products, for items of a chunk.
  void multiply_present(std::initializer_list<Product> products, std::int64_t item,
                        std::int64_t items, C* out) const {
    bool adds = false;
    for (const auto& [a, b] : products) {
      if (b == nullptr) continue;
      this->multiply({a.data + item * a.steps, items, a.steps}, 0, a.steps, b, out, adds);
      adds = true;
    }
    if (!adds) std::fill_n(out, items * lanes, C(0));
  }

  /// Completes the terms of an item, of which `weights` has the scores, `grad_scores` the products
  /// of grad_y and v, `weighted` the gradients of the products, and `second` the products of grad_y
  /// and grad_grad_v. base(i) and slope(i) are those of lane i.
  void finish(const Terms<C>& terms, std::int64_t item, const auto& base, const auto& slope) const {
    cpu::for_each_index_of_few(lanes, [&](std::int64_t i) {
      const std::int64_t at = item * lanes + i;
      const C weight = math::exp_of_any(terms.weights[at] - base(i));
      const C centred = terms.grad_scores[at] - slope(i);
      const C tangent = terms.weighted[at];
      terms.weights[at] = weight;
      terms.grad_scores[at] = weight * centred;
      terms.weighted[at] = weight * tangent;
      terms.second[at] = weight * (centred * tangent + terms.second[at]);
    });
  }

  /// The gradients of grad_y, q, y, lse and grad_lse, or of the mask, for the rows from `first` on,
  /// one for each lane.
  void of_queries(const Unit<C>& unit, std::int64_t first, bool of_mask, C* memory) const {
    const auto& panels = unit.panels;
    const std::int64_t d = p_.width;
    const std::int64_t e = p_.value_width;
    const std::int64_t count = std::min(lanes, unit.rows() - first);
    const std::int64_t row = unit.index * unit.rows() + first;
    const auto rows_of = [&](std::size_t input, const Layout& layout) {
      return p_.queries_of(this->input(input), layout, unit.index);
    };
    const auto queries_of = [&](std::size_t input) { return rows_of(input, p_.q); };
    const Factors queries =
        pack_both(q, grad_grad_q, queries_of, first, count, d, static_cast<C>(p_.scale), memory);
    C* const gradients = memory;
    this->pack_lanes(rows_of(grad_y, p_.grad_y), first, count, e, 1, gradients);
    memory += e * lanes;
    const Terms<C> terms = storage_for_terms(memory);
    C* const sums = memory;
    C* const value_sums = sums + this->size_of(d, 1) * lanes;
    Positions<lanes> of_lanes;
    Positions<chunk> of_items;
    this->set_rows(unit, first, count, false, of_lanes);
    Row bases{};
    Row slopes{};
    for (std::int64_t i = 0; i < count; ++i) {
      bases[static_cast<std::size_t>(i)] = this->base_of(lse_[row + i]);
      slopes[static_cast<std::size_t>(i)] = slope_of(row + i);
    }
    Row levels{};
    Row second_sums{};
    std::fill_n(sums, this->size_of(d, 1) * lanes, C(0));
    std::fill_n(value_sums, this->size_of(e, 1) * lanes, C(0));
    const std::int64_t visible = of_mask ? p_.keys : this->visible_keys(unit, of_lanes);
    for (std::int64_t key = 0; key < visible; key += chunk) {
      const std::int64_t items = std::min(chunk, visible - key);
      this->multiply_items(panels[0], key, items, queries.first, terms.weights);
      this->multiply_items(panels[2], key, items, gradients, terms.grad_scores);
      multiply_present(
          {{panels[0], queries.second}, {panels[1], has(grad_grad_k) ? queries.first : nullptr}},
          key, items, terms.weighted);
      multiply_present({{panels[3], has(grad_grad_v) ? gradients : nullptr}}, key, items,
                       terms.second);
      this->set_keys(key, items, true, of_items);
      this->finish_scores(terms.weights, items, of_items, of_lanes);
      for (std::int64_t j = 0; j < items; ++j) {
        if (call_.inputs[grad_grad_mask].present) {
          for (std::int64_t i = 0; i < count; ++i) {
            terms.weighted[j * lanes + i] +=
                load(this->input(grad_grad_mask)[(row + i) * p_.keys + key + j]);
          }
        }
        finish(
            terms, j, [&](std::int64_t i) { return bases[static_cast<std::size_t>(i)]; },
            [&](std::int64_t i) { return slopes[static_cast<std::size_t>(i)]; });
        cpu::for_each_index_of_few(lanes, [&](std::int64_t i) {
          levels[static_cast<std::size_t>(i)] += terms.weighted[j * lanes + i];
          second_sums[static_cast<std::size_t>(i)] += terms.second[j * lanes + i];
        });
      }
      if (of_mask) {
        for (std::int64_t i = 0; i < count; ++i) {
          T* const to = this->output(0) + (row + i) * p_.keys + key;
          for (std::int64_t j = 0; j < items; ++j) to[j] = store<T>(terms.second[j * lanes + i]);
        }
        continue;
      }
      this->multiply(panels[4], key, items, terms.second, sums, true);
      if (has(grad_grad_k)) this->multiply(panels[5], key, items, terms.grad_scores, sums, true);
      this->multiply(panels[6], key, items, terms.weighted, value_sums, true);
      if (has(grad_grad_v)) this->multiply(panels[7], key, items, terms.weights, value_sums, true);
    }
    if (of_mask) return;
    this->write(sums, first, count, d, p_.queries_of(this->output(of_q), p_.q, unit.index),
                static_cast<C>(p_.scale));
    for (std::int64_t i = 0; i < count; ++i) {
      const C level = levels[static_cast<std::size_t>(i)];
      for (std::int64_t j = 0; j < e; ++j) {
        const std::int64_t at = (row + i) * e + j;
        this->output(of_y)[at] = store<T>(-level * gradients[j * lanes + i]);
        value_sums[j * lanes + i] -= level * load(this->input(y)[at]);
      }
      this->template output<float>(of_lse)[row + i] =
          static_cast<float>(-second_sums[static_cast<std::size_t>(i)]);
      this->template output<float>(of_grad_lse)[row + i] = static_cast<float>(level);
    }
    this->write(value_sums, first, count, e,
                p_.queries_of(this->output(of_grad_y), p_.grad_y, unit.index));
  }

  /// The gradients of k and v for the keys from `first` on, one for each lane.
  void of_keys(const Unit<C>& unit, std::int64_t first, C* memory) const {
    const auto& panels = unit.panels;
    const std::int64_t d = p_.width;
    const std::int64_t e = p_.value_width;
    const std::int64_t count = std::min(lanes, p_.keys - first);
    const std::int64_t row = unit.index * unit.rows();
    const auto keys_of = [&](std::size_t input) {
      return p_.keys_of(this->input(input), p_.k, unit.index);
    };
    const auto values_of = [&](std::size_t input) {
      return p_.keys_of(this->input(input), p_.v, unit.index);
    };
    const Factors keys =
        pack_both(k, grad_grad_k, keys_of, first, count, d, static_cast<C>(p_.scale), memory);
    const Factors values = pack_both(v, grad_grad_v, values_of, first, count, e, C(1), memory);
    const Terms<C> terms = storage_for_terms(memory);
    C* const sums = memory;
    C* const value_sums = sums + this->size_of(d, 1) * lanes;
    Positions<lanes> of_lanes;
    Positions<chunk> of_items;
    this->set_keys(first, count, false, of_lanes);
    std::fill_n(sums, this->size_of(d, 1) * lanes, C(0));
    std::fill_n(value_sums, this->size_of(e, 1) * lanes, C(0));
    for (std::int64_t item = 0; item < unit.rows(); item += chunk) {
      const std::int64_t items = std::min(chunk, unit.rows() - item);
      this->set_rows(unit, item, items, true, of_items);
      this->multiply_items(panels[0], item, items, keys.first, terms.weights);
      this->multiply_items(panels[2], item, items, values.first, terms.grad_scores);
      multiply_present(
          {{panels[1], has(grad_grad_q) ? keys.first : nullptr}, {panels[0], keys.second}}, item,
          items, terms.weighted);
      multiply_present({{panels[2], values.second}}, item, items, terms.second);
      this->finish_scores(terms.weights, items, of_items, of_lanes);
      for (std::int64_t j = 0; j < items; ++j) {
        const std::int64_t own = row + item + j;
        if (call_.inputs[grad_grad_mask].present) {
          for (std::int64_t i = 0; i < count; ++i) {
            terms.weighted[j * lanes + i] +=
                load(this->input(grad_grad_mask)[own * p_.keys + first + i]);
          }
        }
        const C base = this->base_of(lse_[own]);
        const C slope = slope_of(own);
        finish(terms, j, [&](std::int64_t) { return base; }, [&](std::int64_t) { return slope; });
      }
      this->multiply(panels[3], item, items, terms.second, sums, true);
      if (has(grad_grad_q)) this->multiply(panels[4], item, items, terms.grad_scores, sums, true);
      this->multiply(panels[5], item, items, terms.weighted, value_sums, true);
    }
    this->write(sums, first, count, d, p_.keys_of(this->output(of_k), p_.k, unit.index),
                static_cast<C>(p_.scale));
    this->write(value_sums, first, count, e, p_.keys_of(this->output(of_v), p_.v, unit.index));
  }

  const C* lse_ = nullptr;
};

Status run(const Call& call, bool of_mask) {
  const Params p = params_of(call, q);
  return visit_dtype<floating_types>(call.inputs[0].dtype, [&]<class T>(TypeTag<T>) {
    return cpu::with_tile_columns<Compute<T>>(
        [&](auto lanes) { return SecondDerivative<T, lanes>(call, p).run(of_mask); });
  });
}

}  // namespace

Status AttentionSecondDerivative::cpu(const Call& call) { return run(call, false); }

Status AttentionMaskSecondDerivative::cpu(const Call& call) { return run(call, true); }

}  // namespace cudarelu::ops
