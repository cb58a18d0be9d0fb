#include "with_own_kernels.h"

#include <algorithm>

namespace my {

using namespace cudarelu;

namespace {

/// Writes factor * x to output `index`.
void scaled(const Call& call, std::size_t index, float factor) {
  const auto* x = static_cast<const float*>(call.inputs[0].data);
  std::transform(x, x + call.inputs[0].size(), static_cast<float*>(call.outputs[index].data),
                 [=](float element) { return factor * element; });
}

}  // namespace

Status Doubled::cpu(const Call& call) {
  scaled(call, 0, 2);
  scaled(call, 1, 2);
  scaled(call, 2, 1);
  return {};
}

Status NegatedIf::cpu(const Call& call) {
  scaled(call, 0, call.integer(0) != 0 ? -1.0f : 1.0f);
  return {};
}

}  // namespace my
