#include "ops/row_sum.h"

#include "cpu/rows.h"

namespace cudarelu::ops {

Status RowSum::cpu(const Call& call) {
  return visit_dtype<spec.dtypes>(call.inputs[0].dtype, [&]<class T>(TypeTag<T>) {
    const std::int64_t columns = call.inputs[0].shape.back();
    cpu::for_each_row(call, [&](std::int64_t row) {
      const T* x = static_cast<const T*>(call.inputs[0].data) + row;
      const double total = cpu::sum(columns, [&](std::int64_t i) { return load(x[i]); });
      std::fill_n(static_cast<T*>(call.outputs[0].data) + row, columns,
                  store<T>(static_cast<Compute<T>>(total)));
    });
    return Status();
  });
}

}  // namespace cudarelu::ops
