#include "rms_norm.h"

#include <cmath>

#include "cudarelu/rows.h"

namespace llm {
namespace {

/// 1 / sqrt(mean(x^2) + eps) of a row.
template <class T>
Compute<T> rrms_of(const T* x, std::int64_t columns, double eps) {
  using C = Compute<T>;
  const double squares = cpu::sum_of_row(x, columns, [](C value) { return value * value; });
  return static_cast<C>(1 / std::sqrt(squares / static_cast<double>(columns) + eps));
}

}  // namespace

Status RmsNorm::cpu(const Call& call) {
  return visit_dtype<spec.dtypes>(call.inputs[0].dtype, [&]<class T>(TypeTag<T>) {
    using C = Compute<T>;
    const std::int64_t columns = call.inputs[0].shape.back();
    const T* const weight =
        call.inputs[1].present ? static_cast<const T*>(call.inputs[1].data) : nullptr;
    cpu::for_each_row<cpu::Width::full>(call, [&](std::int64_t row) {
      const T* const x = static_cast<const T*>(call.inputs[0].data) + row;
      T* const y = static_cast<T*>(call.outputs[0].data) + row;
      const C scale = rrms_of(x, columns, call.real(0));
      cpu::Block<C> block;
      cpu::Block<C> weight_block;
      cpu::for_each_block<T>(columns, [&](std::int64_t first, std::int64_t count) {
        const C* const values = cpu::read(x + first, count, block);
        C* const results = cpu::target(y + first, block);
        if (weight == nullptr) {
          cpu::for_each_index(count, [&](std::int64_t i) { results[i] = values[i] * scale; });
        } else {
          const C* const w = cpu::read(weight + first, count, weight_block);
          cpu::for_each_index(count,
                              [&](std::int64_t i) { results[i] = values[i] * scale * w[i]; });
        }
        cpu::write(y + first, count, block);
      });
    });
    return Status();
  });
}

Status RowRrms::cpu(const Call& call) {
  return visit_dtype<spec.dtypes>(call.inputs[0].dtype, [&]<class T>(TypeTag<T>) {
    const std::int64_t columns = call.inputs[0].shape.back();
    cpu::for_each_row<cpu::sum_width<T>>(call, [&](std::int64_t row) {
      const T* const x = static_cast<const T*>(call.inputs[0].data) + row;
      std::fill_n(static_cast<T*>(call.outputs[0].data) + row, columns,
                  store<T>(rrms_of(x, columns, call.real(0))));
    });
    return Status();
  });
}

}  // namespace llm
