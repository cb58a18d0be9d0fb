#include "ops/attention.h"

#include "cudarelu/detail/cpu/exponential.h"
#include "ops/attention/cpu.h"
#include "ops/attention_varlen.h"
#include "ops/attention_varlen_with_lse.h"
#include "ops/attention_with_lse.h"

namespace cudarelu::ops {
namespace {

using namespace attention;

/// Multiplies the sums of each lane, [columns, lanes], by its factor.
template <class C, std::int64_t lanes>
void multiply_sums(C* sums, std::int64_t columns, const RowOfLanes<C, lanes>& factors) {
  for (std::int64_t j = 0; j < columns; ++j) {
    cpu::for_each_index_of_few(lanes, [&](std::int64_t i) {
      sums[j * lanes + i] *= factors[static_cast<std::size_t>(i)];
    });
  }
}

/// Replaces scores by exp(score - the largest so far), and scales the earlier sums, [columns,
/// lanes], accordingly. One function for all dtypes with the arithmetic of C.
template <class C, std::int64_t lanes>
void exponentiate(C* scores, std::int64_t items, RowOfLanes<C, lanes>& largest,
                  RowOfLanes<C, lanes>& totals, C* sums, std::int64_t columns) {
  using Row = RowOfLanes<C, lanes>;
  constexpr cpu::Isa isa = cpu::isa_of_tile<C, lanes>;
  constexpr C low = -std::numeric_limits<C>::infinity();
  cpu::apart<isa>([=, &largest, &totals] {
    Row raised = largest;
    for (std::int64_t j = 0; j < items; ++j) {
      cpu::for_each_index(lanes, [&](std::int64_t l) {
        const auto i = static_cast<std::size_t>(l);
        const C score = scores[j * lanes + l];
        const C most = raised[i];
        raised[i] = score > most ? score : most;  // NaN propagates through the sum
      });
    }
    Row base;
    Row factors;
    Row added{};
    cpu::for_each_index_of_few(lanes, [&](std::int64_t l) {
      const auto i = static_cast<std::size_t>(l);
      base[i] = raised[i] == low ? C(0) : raised[i];  // -infinity less itself is NaN
      factors[i] = largest[i] == raised[i] ? C(1) : math::exp(largest[i] - base[i]);
    });
    for (C* row = scores; row < scores + items * lanes; row += lanes) {
      cpu::exponentials<isa>(row, base.data(), row, lanes);
      cpu::for_each_index_of_few(
          lanes, [&](std::int64_t l) { added[static_cast<std::size_t>(l)] += row[l]; });
    }
    bool scales = false;
    for (const C factor : factors) scales = scales || factor != 1;
    cpu::for_each_index_of_few(lanes, [&](std::int64_t l) {
      const auto i = static_cast<std::size_t>(l);
      totals[i] = totals[i] * factors[i] + added[i];
      largest[i] = raised[i];
    });
    if (scales) multiply_sums<C, lanes>(sums, columns, factors);
  });
}

template <class T, std::int64_t lanes>
class Forward : Blocks<T, lanes> {
 public:
  using Base = Blocks<T, lanes>;
  using typename Base::C;

  /// `lse` may be null.
  Forward(const Call& call, const Params& p, const Sequences* sequences, float* lse)
      : Base(call, p, sequences), lse_(lse) {}

  /// For find_exact_lse().
  Forward(const Call& call, const Params& p, const Sequences* sequences, double* exact_lse)
      : Base(call, p, sequences), exact_lse_(exact_lse) {}

  Status run() {
    if (p_.batch * p_.heads * p_.queries == 0) return {};
    constexpr auto ends = &Sequences::q_ends;
    if (!is_for_gradient()) {
      this->fill_rest(ends, p_.queries, p_.heads, p_.value_width, this->output(0), p_.y, T{});
    }
    if (lse_ != nullptr) {
      this->fill_rest(ends, p_.queries, p_.heads, 1, lse_, p_.lse, static_cast<float>(low));
    }
    const std::array<Packed, 2> matrices{{{q() + 1, &Params::k, false, p_.width, false},
                                          {q() + 2, &Params::v, false, p_.value_width, true}}};
    const std::int64_t scratch = lanes * (p_.width + chunk + this->size_of(p_.value_width, 1));
    return this->for_each_group(
        std::span(matrices).first(is_for_gradient() ? 1 : 2),
        [&](std::int64_t first, std::int64_t count, const auto& unit) {
          return this->for_each_block(
              first, count, scratch, [](const Unit<C>& each) { return each.rows(); },
              [&](std::int64_t index, std::int64_t row, C* memory) {
                cpu::apart<Base::isa>([&] { compute(unit(index), row, memory); });
              });
        });
  }

 private:
  using Base::low;
  using Base::p_;
  using typename Base::Row;

  /// Whether only exact_lse() of each query is wanted, for the inputs of a gradient.
  bool is_for_gradient() const { return std::is_same_v<T, double> && exact_lse_ != nullptr; }
  /// The position of q in the inputs.
  std::size_t q() const { return is_for_gradient() ? 1 : 0; }

  /// The outputs for the rows from `first` on, one for each lane.
  void compute(const Unit<C>& unit, std::int64_t first, C* memory) const {
    const Params& p = unit.p;
    const Panels<C>& keys = unit.panels[0];
    const Panels<C>& values = unit.panels[1];
    const std::int64_t count = std::min(lanes, unit.rows() - first);
    C* const queries = memory;
    C* const scores = queries + p.width * lanes;
    C* const sums = scores + chunk * lanes;
    this->pack_lanes(p.queries_of(this->input(q()), p.q, unit.index), first, count, p.width,
                     static_cast<C>(p.scale), queries);
    Positions<lanes> of_lanes;
    Positions<chunk> of_items;
    this->set_rows(unit, first, count, false, of_lanes);
    Row largest;
    Row totals;
    largest.fill(low);
    totals.fill(0);
    std::fill_n(sums, this->size_of(p.value_width, 1) * lanes, C(0));
    const std::int64_t visible = this->visible_keys(unit, of_lanes);
    for (std::int64_t key = 0; key < visible; key += chunk) {
      const std::int64_t items = std::min(chunk, visible - key);
      this->multiply_items(keys, key, items, queries, scores);
      this->set_keys(key, items, true, of_items);
      this->finish_scores(scores, items, of_items, of_lanes);
      exponentiate<C, lanes>(scores, items, largest, totals, sums, p.value_width);
      if (!is_for_gradient()) this->multiply(values, key, items, scores, sums, true);
    }
    const auto lse_of = [&](std::size_t lane) {
      return (largest[lane] == low ? C(0) : largest[lane]) + std::log(totals[lane]);
    };
    if (is_for_gradient()) {
      const auto given = p.queries_of(this->template input<float>(5), p.lse, unit.index);
      const auto exact = p.queries_of(exact_lse_, p.lse, unit.index);
      for (std::int64_t i = 0; i < count; ++i) {
        *exact[first + i] = exact_lse(*given[first + i], lse_of(static_cast<std::size_t>(i)));
      }
      return;
    }
    Row scales;
    cpu::for_each_index_of_few(lanes, [&](std::int64_t l) {
      const auto i = static_cast<std::size_t>(l);
      scales[i] = totals[i] == 0 ? C(0) : 1 / totals[i];
    });
    multiply_sums<C, lanes>(sums, p.value_width, scales);
    this->write(sums, first, count, p.value_width, p.queries_of(this->output(0), p.y, unit.index));
    for (std::int64_t i = 0; lse_ != nullptr && i < count; ++i) {
      *p.queries_of(lse_, p.lse, unit.index)[first + i] =
          static_cast<float>(lse_of(static_cast<std::size_t>(i)));
    }
  }

  float* const lse_ = nullptr;
  double* const exact_lse_ = nullptr;
};

Status run(const Call& call, Params p, const Sequences* sequences, float* lse) {
  return visit_dtype<floating_types>(call.inputs[0].dtype, [&]<class T>(TypeTag<T>) {
    if (is_neutral<T>(p.mask)) p.mask = {};
    return cpu::with_tile_columns<Compute<T>>(
        [&](auto lanes) { return Forward<T, lanes>(call, p, sequences, lse).run(); });
  });
}

Status run_packed(const Call& call, float* lse) {
  const Params p = packed_problem_of(call, 0);
  Sequences sequences = sequences_of(call, 3, 4);
  if (Status status = divide(call, p, sequences); !status.ok()) return status;
  return run(call, p, &sequences, lse);
}

float* lse_of(const Call& call) { return static_cast<float*>(call.outputs[1].data); }

}  // namespace

Status attention::find_exact_lse(const Call& call, const Params& p, const Sequences* sequences,
                                 double* lse) {
  return cpu::with_tile_columns<double>(
      [&](auto lanes) { return Forward<double, lanes>(call, p, sequences, lse).run(); });
}

Status Attention::cpu(const Call& call) { return run(call, params_of(call, 0), nullptr, nullptr); }

Status AttentionWithLse::cpu(const Call& call) {
  return run(call, params_of(call, 0), nullptr, lse_of(call));
}

Status AttentionVarlen::cpu(const Call& call) { return run_packed(call, nullptr); }

Status AttentionVarlenWithLse::cpu(const Call& call) { return run_packed(call, lse_of(call)); }

}  // namespace cudarelu::ops
