#include "star.h"

#include <vector>
namespace star {
using namespace cudarelu;
Status Affine::cpu(const Call& call) {
  return visit_dtype<spec.dtypes>(call.inputs[0].dtype, [&]<class T>(TypeTag<T>) {
    const auto* data = static_cast<const T*>(call.inputs[0].data);
    const auto* warp = static_cast<const T*>(call.inputs[1].data);
    auto* y = static_cast<T*>(call.outputs[0].data);
    const std::int64_t b = call.inputs[0].shape[0], c = call.inputs[0].shape[1];
    const std::int64_t size = call.outputs[0].size();
    for (std::int64_t i = 0; i < size; ++i) {
      const auto x = load(data[i / (size / b) * c + i % c]);
      y[i] = store<T>(x * load(warp[i / c * 2]) + load(warp[i / c * 2 + 1]));
    }
    return Status();
  });
}
Status ChannelScale::cpu(const Call& call) {
  return visit_dtype<spec.dtypes>(call.inputs[0].dtype, [&]<class T>(TypeTag<T>) {
    const auto* x = static_cast<const T*>(call.inputs[0].data);
    const auto* scale = static_cast<const T*>(call.inputs[1].data);
    auto* y = static_cast<T*>(call.outputs[0].data);
    const std::int64_t n = call.inputs[0].shape[0], c = call.inputs[0].shape[1];
    const std::int64_t size = call.outputs[0].size();
    for (std::int64_t i = 0; i < size; ++i) {
      y[i] = store<T>(load(x[i]) * load(scale[i / (size / n / c) % c]));
    }
    return Status();
  });
}
Status ChannelScaleBackward::cpu(const Call& call) {
  return visit_dtype<spec.dtypes>(call.inputs[0].dtype, [&]<class T>(TypeTag<T>) {
    const auto* gy = static_cast<const T*>(call.inputs[0].data);
    const auto* x = static_cast<const T*>(call.inputs[1].data);
    const auto* scale = static_cast<const T*>(call.inputs[2].data);
    auto* gx = static_cast<T*>(call.outputs[0].data);
    auto* gs = static_cast<T*>(call.outputs[1].data);
    const std::int64_t n = call.inputs[0].shape[0], c = call.inputs[0].shape[1];
    const std::int64_t size = call.inputs[0].size();
    std::vector<double> sums(static_cast<std::size_t>(c));
    for (std::int64_t i = 0; i < size; ++i) {
      const std::int64_t channel = i / (size / n / c) % c;
      gx[i] = store<T>(load(gy[i]) * load(scale[channel]));
      sums[static_cast<std::size_t>(channel)] += double(load(gy[i])) * double(load(x[i]));
    }
    for (std::int64_t i = 0; i < c; ++i) {
      gs[i] = store<T>(static_cast<Compute<T>>(sums[static_cast<std::size_t>(i)]));
    }
    return Status();
  });
}
Status Weigh::cpu(const Call& call) {
  return visit_dtype<spec.dtypes>(call.inputs[0].dtype, [&]<class T>(TypeTag<T>) {
    const auto* x = static_cast<const T*>(call.inputs[0].data);
    const auto* weight = static_cast<const T*>(call.inputs[1].data);
    auto* y = static_cast<T*>(call.outputs[0].data);
    const std::int64_t n = call.inputs[0].shape[0], size = call.outputs[0].size();
    for (std::int64_t i = 0; i < size; ++i) {
      const Compute<T> factor = call.inputs[1].present ? load(weight[i / (size / n)]) : 1;
      y[i] = store<T>(load(x[i]) * factor);
    }
    return Status();
  });
}
}  // namespace star
