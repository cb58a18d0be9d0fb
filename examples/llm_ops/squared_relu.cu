#include "squared_relu.h"
#include "squared_relu_launcher.h"

namespace llm {

namespace cuda = cudarelu::cuda;  // there is a global namespace of this name, too

Status SquaredRelu::cuda(const Call& call) {
  squared_relu_launcher(static_cast<const float*>(call.inputs[0].data),
                        static_cast<float*>(call.outputs[0].data), call.outputs[0].size(),
                        static_cast<cudaStream_t>(call.execution.stream));
  return cuda::check(call, cudaGetLastError());
}

}  // namespace llm
