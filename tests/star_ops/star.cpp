#include "star.h"

#include <cmath>
#include <vector>
namespace star {
using namespace cudarelu;
namespace {
/// The dimension of a tensor that an attribute places.
struct Placed {
  std::int64_t outer = 1, size = 1, inner = 1;

  Placed(const TensorView& x, std::int64_t axis) {
    const auto rank = static_cast<std::int64_t>(x.shape.size());
    for (std::int64_t i = 0; i < rank; ++i) {
      const std::int64_t place = axis < 0 ? axis + rank : axis;
      (i < place ? outer : i == place ? size : inner) *= x.shape[static_cast<std::size_t>(i)];
    }
  }
};
Status add_up(const Call& call, bool reverse) {
  return visit_dtype<Cumsum::spec.dtypes>(call.inputs[0].dtype, [&]<class T>(TypeTag<T>) {
    const auto* x = static_cast<const T*>(call.inputs[0].data);
    auto* y = static_cast<T*>(call.outputs[0].data);
    const Placed at(call.inputs[0], call.integer(0));
    for (std::int64_t i = 0; i < at.outer * at.inner; ++i) {
      double sum = 0;
      for (std::int64_t j = 0; j < at.size; ++j) {
        const std::int64_t k = reverse ? at.size - 1 - j : j;
        const std::int64_t element = (i / at.inner * at.size + k) * at.inner + i % at.inner;
        sum += double(load(x[element]));
        y[element] = store<T>(static_cast<Compute<T>>(sum));
      }
    }
    return Status();
  });
}
}  // namespace
Status Cumsum::cpu(const Call& call) { return add_up(call, false); }
Status CumsumBackward::cpu(const Call& call) { return add_up(call, true); }
Status Total::cpu(const Call& call) {
  return visit_dtype<spec.dtypes>(call.inputs[0].dtype, [&]<class T>(TypeTag<T>) {
    const auto* x = static_cast<const T*>(call.inputs[0].data);
    const auto* weight = static_cast<const T*>(call.inputs[1].data);
    auto* y = static_cast<T*>(call.outputs[0].data);
    auto* kept = static_cast<T*>(call.outputs[1].data);
    const Placed at(call.inputs[0], call.integer(0));
    for (std::int64_t i = 0; i < at.outer * at.inner; ++i) {
      double sum = 0;
      for (std::int64_t j = 0; j < at.size; ++j) {
        const std::int64_t element = (i / at.inner * at.size + j) * at.inner + i % at.inner;
        sum += double(load(x[element])) * double(load(weight[j]));
      }
      y[i] = kept[i] = store<T>(static_cast<Compute<T>>(sum));
    }
    return Status();
  });
}
Status TotalBackward::cpu(const Call& call) {
  return visit_dtype<spec.dtypes>(call.inputs[0].dtype, [&]<class T>(TypeTag<T>) {
    const auto* gy = static_cast<const T*>(call.inputs[0].data);
    const auto* gk = static_cast<const T*>(call.inputs[1].data);
    const auto* x = static_cast<const T*>(call.inputs[2].data);
    const auto* weight = static_cast<const T*>(call.inputs[3].data);
    auto* gx = static_cast<T*>(call.outputs[0].data);
    auto* gw = static_cast<T*>(call.outputs[1].data);
    const Placed at(call.inputs[2], call.integer(0));
    for (std::int64_t j = 0; j < at.size; ++j) {
      double sum = 0;
      for (std::int64_t i = 0; i < at.outer * at.inner; ++i) {
        const std::int64_t element = (i / at.inner * at.size + j) * at.inner + i % at.inner;
        const auto both = load(gy[i]) + load(gk[i]);
        gx[element] = store<T>(both * load(weight[j]));
        sum += double(both) * double(load(x[element]));
      }
      gw[j] = store<T>(static_cast<Compute<T>>(sum));
    }
    return Status();
  });
}
Status Glu::cpu(const Call& call) {
  return visit_dtype<spec.dtypes>(call.inputs[0].dtype, [&]<class T>(TypeTag<T>) {
    const auto* x = static_cast<const T*>(call.inputs[0].data);
    auto* y = static_cast<T*>(call.outputs[0].data);
    const Placed at(call.outputs[0], call.integer(0));
    const std::int64_t half = at.size * at.inner;
    for (std::int64_t i = 0; i < at.outer * half; ++i) {
      const std::int64_t first = i / half * 2 * half + i % half;
      y[i] = store<T>(load(x[first]) / (1 + std::exp(-load(x[first + half]))));
    }
    return Status();
  });
}
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
