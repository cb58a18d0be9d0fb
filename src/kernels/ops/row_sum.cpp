#include "ops/row_sum.h"

#include "cudarelu/cpu/rows.h"
#include "ops/row_mean.h"

namespace cudarelu::ops {
namespace {

/// The sum of each row, divided by `divisor`.
Status quotient_of_sums(const Call& call, double divisor) {
  return visit_dtype<floating_types>(call.inputs[0].dtype, [&]<class T>(TypeTag<T>) {
    using C = Compute<T>;
    const std::int64_t columns = call.inputs[0].shape.back();
    cpu::for_each_row<cpu::sum_width<T>>(call, [&](std::int64_t row) {
      const T* x = static_cast<const T*>(call.inputs[0].data) + row;
      const double sum = cpu::sum_of_row(x, columns, [](C value) { return value; });
      std::fill_n(static_cast<T*>(call.outputs[0].data) + row, columns,
                  store<T>(static_cast<C>(sum / divisor)));
    });
    return Status();
  });
}

}  // namespace

Status RowSum::cpu(const Call& call) { return quotient_of_sums(call, 1); }

Status RowMean::cpu(const Call& call) {
  return quotient_of_sums(call, static_cast<double>(call.inputs[0].shape.back()));
}

}  // namespace cudarelu::ops
