#include "squared_relu.h"

#include "cudarelu/activation_functions.h"

namespace llm {

Status SquaredRelu::cpu(const Call& call) {
  const auto* x = static_cast<const float*>(call.inputs[0].data);
  auto* y = static_cast<float*>(call.outputs[0].data);
  const auto compute = [=](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) y[i] = relu(x[i]) * relu(x[i]);
  };
  call.execution.parallel_for(call.outputs[0].size(), 32768, compute);
  return {};
}

}  // namespace llm
