#include "ops/softmax_backward.h"

#include "cpu/rows.h"

namespace cudarelu::ops {

Status SoftmaxBackward::cpu(const Call& call) {
  return visit_dtype<spec.dtypes>(call.inputs[0].dtype, [&]<class T>(TypeTag<T>) {
    using C = Compute<T>;
    const std::int64_t columns = call.inputs[0].shape.back();
    cpu::for_each_row(call, [&](std::int64_t row) {
      const T* grad_y = static_cast<const T*>(call.inputs[0].data) + row;
      const T* y = static_cast<const T*>(call.inputs[1].data) + row;
      T* grad_x = static_cast<T*>(call.outputs[0].data) + row;
      const C dot = static_cast<C>(cpu::sum(columns, [&](std::int64_t i) {
        return static_cast<double>(load(grad_y[i])) * load(y[i]);
      }));
      for (std::int64_t i = 0; i < columns; ++i) {
        grad_x[i] = store<T>(load(y[i]) * (load(grad_y[i]) - dot));
      }
    });
    return Status();
  });
}

}  // namespace cudarelu::ops
