#include "count_above.h"

#include <algorithm>

namespace my {

using namespace cudarelu;

Status CountAbove::cpu(const Call& call) {
  return visit_dtype<spec.dtypes>(call.inputs[0].dtype, [&]<class T>(TypeTag<T>) {
    const std::int64_t columns = call.inputs[0].shape.back();
    const auto* x = static_cast<const T*>(call.inputs[0].data);
    auto* count = static_cast<std::int64_t*>(call.outputs[0].data);
    const auto limit = static_cast<Compute<T>>(call.real(0));
    call.execution.parallel_for(
        call.outputs[0].size(), 256, [&](std::int64_t begin, std::int64_t end) {
          for (std::int64_t row = begin; row < end; ++row) {
            count[row] = std::count_if(x + row * columns, x + (row + 1) * columns,
                                       [=](T element) { return load(element) > limit; });
          }
        });
    return Status();
  });
}

}  // namespace my
