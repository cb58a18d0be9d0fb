#include "sized.h"

#include <cmath>
namespace sized {
using namespace cudarelu;
Status SiluAndMul::cpu(const Call& call) {
  return visit_dtype<spec.dtypes>(call.inputs[0].dtype, [&]<class T>(TypeTag<T>) {
    const std::int64_t d = call.outputs[0].shape.back();
    const auto* x = static_cast<const T*>(call.inputs[0].data);
    auto* y = static_cast<T*>(call.outputs[0].data);
    for (std::int64_t i = 0; i < call.outputs[0].size(); ++i) {
      const auto g = load(x[i / d * 2 * d + i % d]), u = load(x[i / d * 2 * d + d + i % d]);
      y[i] = store<T>(g / (1 + std::exp(-g)) * u);
    }
    return Status();
  });
}
Status SiluAndMulBackward::cpu(const Call& call) {
  return visit_dtype<spec.dtypes>(call.inputs[0].dtype, [&]<class T>(TypeTag<T>) {
    const std::int64_t d = call.inputs[0].shape.back();
    const auto* gy = static_cast<const T*>(call.inputs[0].data);
    const auto* x = static_cast<const T*>(call.inputs[1].data);
    auto* gx = static_cast<T*>(call.outputs[0].data);
    for (std::int64_t i = 0; i < call.inputs[0].size(); ++i) {
      const auto at = i / d * 2 * d + i % d;
      const auto g = load(x[at]), u = load(x[at + d]), o = load(gy[i]);
      const auto s = 1 / (1 + std::exp(-g));
      gx[at] = store<T>(o * u * (s + g * s * (1 - s)));
      gx[at + d] = store<T>(o * g * s);
    }
    return Status();
  });
}
Status Conv::cpu(const Call& call) {
  return visit_dtype<spec.dtypes>(call.inputs[0].dtype, [&]<class T>(TypeTag<T>) {
    const auto xs = call.inputs[0].shape, ws = call.inputs[1].shape, ys = call.outputs[0].shape;
    const auto* x = static_cast<const T*>(call.inputs[0].data);
    const auto* w = static_cast<const T*>(call.inputs[1].data);
    auto* y = static_cast<T*>(call.outputs[0].data);
    const auto pad = call.integer(0), stride = call.integer(1);
    std::int64_t at = 0;
    for (std::int64_t n = 0; n < ys[0]; ++n)
      for (std::int64_t o = 0; o < ys[1]; ++o)
        for (std::int64_t i = 0; i < ys[2]; ++i)
          for (std::int64_t j = 0; j < ys[3]; ++j) {
            double sum = 0;
            for (std::int64_t c = 0; c < xs[1]; ++c)
              for (std::int64_t p = 0; p < ws[2]; ++p)
                for (std::int64_t q = 0; q < ws[3]; ++q) {
                  const auto a = i * stride + p - pad, b = j * stride + q - pad;
                  if (a < 0 || b < 0 || a >= xs[2] || b >= xs[3]) continue;
                  sum += double(load(x[((n * xs[1] + c) * xs[2] + a) * xs[3] + b])) *
                         double(load(w[((o * xs[1] + c) * ws[2] + p) * ws[3] + q]));
                }
            y[at++] = store<T>(static_cast<Compute<T>>(sum));
          }
    return Status();
  });
}
}  // namespace sized
