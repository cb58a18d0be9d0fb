#include "ops/row_sum.h"

#include "cudarelu/detail/cpu/rows.h"
#include "ops/row_mean.h"

namespace cudarelu::ops {
namespace {

/// Fills each row with of_row(IsaTag, its elements, their number).
template <class OfRow>
Status fill_rows(const Call& call, const OfRow& of_row) {
  return visit_dtype<floating_types>(call.inputs[0].dtype, [&]<class T>(TypeTag<T>) {
    const std::int64_t columns = call.inputs[0].shape.back();
    cpu::for_each_row<cpu::sum_width<T>>(call, [&](auto isa, std::int64_t row) {
      const double value = of_row(isa, static_cast<const T*>(call.inputs[0].data) + row, columns);
      std::fill_n(static_cast<T*>(call.outputs[0].data) + row, columns,
                  store<T>(static_cast<Compute<T>>(value)));
    });
    return Status();
  });
}

}  // namespace

Status RowSum::cpu(const Call& call) {
  return fill_rows(call, []<class T>(auto isa, const T* x, std::int64_t columns) {
    return cpu::sum_of_row<isa.value>(x, columns, [](Compute<T> value) { return value; });
  });
}

Status RowMean::cpu(const Call& call) {
  return fill_rows(call, [](auto isa, const auto* x, std::int64_t n) {
    return cpu::mean_of_row<isa.value>(x, n);
  });
}

}  // namespace cudarelu::ops
