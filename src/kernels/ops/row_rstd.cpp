#include "ops/row_rstd.h"

#include "cudarelu/detail/cpu/moments.h"

namespace cudarelu::ops {

Status RowRstd::cpu(const Call& call) {
  return visit_dtype<spec.dtypes>(call.inputs[0].dtype, [&]<class T>(TypeTag<T>) {
    const std::int64_t columns = call.inputs[0].shape.back();
    cpu::for_each_row<cpu::sum_width<T>>(call, [&](auto isa, std::int64_t row) {
      const T* x = static_cast<const T*>(call.inputs[0].data) + row;
      std::fill_n(static_cast<T*>(call.outputs[0].data) + row, columns,
                  store<T>(cpu::normaliser_of<isa.value>(x, columns, call.real(0)).scale));
    });
    return Status();
  });
}

}  // namespace cudarelu::ops
