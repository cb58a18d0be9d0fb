#include "typed.h"

namespace typed {
using namespace cudarelu;

Status Greater::cpu(const Call& call) {
  return visit_dtype<spec.dtypes>(call.inputs[0].dtype, [&]<class T>(TypeTag<T>) {
    const std::int64_t columns = call.inputs[1].size();
    const auto* x = static_cast<const T*>(call.inputs[0].data);
    const auto* limit = static_cast<const T*>(call.inputs[1].data);
    auto* above = static_cast<bool*>(call.outputs[0].data);
    auto* sign = static_cast<std::int8_t*>(call.outputs[1].data);
    for (std::int64_t i = 0; i < call.inputs[0].size(); ++i) {
      above[i] = load(x[i]) > load(limit[i % columns]);
      sign[i] = static_cast<std::int8_t>((load(x[i]) > 0) - (load(x[i]) < 0));
    }
    return Status();
  });
}

Status Scaled::cpu(const Call& call) {
  return visit_dtypes<floating_types, floating_types>(
      call.inputs[0].dtype, call.inputs[1].dtype, [&]<class T, class U>(TypeTag<T>, TypeTag<U>) {
        const std::int64_t columns = call.inputs[1].size();
        const auto* x = static_cast<const T*>(call.inputs[0].data);
        const auto* weight = static_cast<const U*>(call.inputs[1].data);
        auto* y = static_cast<T*>(call.outputs[0].data);
        for (std::int64_t i = 0; i < call.inputs[0].size(); ++i) {
          // As the definition: the weight is rounded to the dtype of x.
          const auto factor = load(store<T>(static_cast<Compute<T>>(load(weight[i % columns]))));
          y[i] = store<T>(load(x[i]) * factor);
        }
        return Status();
      });
}

Status Int8Matmul::cpu(const Call& call) {
  return visit_dtype<floating_types>(call.outputs[0].dtype, [&]<class T>(TypeTag<T>) {
    const auto shape = call.outputs[0].shape;
    const std::int64_t k = call.inputs[0].shape[1];
    const auto* a = static_cast<const std::int8_t*>(call.inputs[0].data);
    const auto* b = static_cast<const std::int8_t*>(call.inputs[1].data);
    const auto* scale = static_cast<const float*>(call.inputs[2].data);
    auto* y = static_cast<T*>(call.outputs[0].data);
    for (std::int64_t i = 0; i < shape[0]; ++i) {
      for (std::int64_t j = 0; j < shape[1]; ++j) {
        std::int32_t sum = 0;
        for (std::int64_t l = 0; l < k; ++l) sum += a[i * k + l] * b[j * k + l];
        y[i * shape[1] + j] = store<T>(static_cast<float>(sum) * scale[i]);
      }
    }
    return Status();
  });
}

Status Gathered::cpu(const Call& call) {
  constexpr DTypeSet indices = DTypeSet::of({DType::int32, DType::int64});
  return visit_dtypes<floating_types, floating_types>(
      call.inputs[0].dtype, call.outputs[0].dtype, [&]<class T, class V>(TypeTag<T>, TypeTag<V>) {
        return visit_dtype<indices>(call.inputs[1].dtype, [&]<class U>(TypeTag<U>) {
          const auto shape = call.inputs[0].shape;
          const auto* x = static_cast<const T*>(call.inputs[0].data);
          const auto* index = static_cast<const U*>(call.inputs[1].data);
          const auto* weight = static_cast<const V*>(call.inputs[2].data);
          auto* y = static_cast<V*>(call.outputs[0].data);
          for (std::int64_t i = 0; i < call.outputs[0].size(); ++i) {
            const std::int64_t row = i / shape[1];
            const auto n = static_cast<U>(shape[0]);
            const std::int64_t at = (index[row] % n + n) % n;
            const auto value =
                store<V>(static_cast<Compute<V>>(load(x[at * shape[1] + i % shape[1]])));
            y[i] = store<V>(load(value) * load(weight[row]));
          }
          return Status();
        });
      });
}

Status Twice::cpu(const Call& call) {
  constexpr DTypeSet dtypes = DTypeSet::of({DType::float16, DType::float32, DType::uint8});
  return visit_dtype<dtypes>(call.inputs[0].dtype, [&]<class T>(TypeTag<T>) {
    const auto* x = static_cast<const T*>(call.inputs[0].data);
    auto* y = static_cast<T*>(call.outputs[0].data);
    for (std::int64_t i = 0; i < call.outputs[0].size(); ++i) {
      y[i] = store<T>(static_cast<Compute<T>>(load(x[i]) + load(x[i])));
    }
    return Status();
  });
}
}  // namespace typed
