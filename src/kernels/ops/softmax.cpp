#include "ops/softmax.h"

#include <cmath>

#include "cpu/rows.h"

namespace cudarelu::ops {

Status Softmax::cpu(const Call& call) {
  return visit_dtype<spec.dtypes>(call.inputs[0].dtype, [&]<class T>(TypeTag<T>) {
    using C = Compute<T>;
    const std::int64_t columns = call.inputs[0].shape.back();
    cpu::for_each_row(call, [&](std::int64_t row) {
      const T* x = static_cast<const T*>(call.inputs[0].data) + row;
      T* y = static_cast<T*>(call.outputs[0].data) + row;
      C largest = -std::numeric_limits<C>::infinity();
      for (std::int64_t i = 0; i < columns; ++i) largest = std::max(largest, load(x[i]));
      const auto power = [&](std::int64_t i) { return std::exp(load(x[i]) - largest); };
      const double total = cpu::sum(columns, power);
      for (std::int64_t i = 0; i < columns; ++i) y[i] = store<T>(static_cast<C>(power(i) / total));
    });
    return Status();
  });
}

}  // namespace cudarelu::ops
