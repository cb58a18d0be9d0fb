#include "squared_relu.h"
#include "squared_relu_launcher.h"

namespace llm {

Status SquaredRelu::cuda(const Call& call) {
  squared_relu_launcher(static_cast<const float*>(call.inputs[0].data),
                        static_cast<float*>(call.outputs[0].data), call.outputs[0].size(),
                        static_cast<cudaStream_t>(call.execution.stream));
  return gpu::check(call, cudaGetLastError());
}

}  // namespace llm
