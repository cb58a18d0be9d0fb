#include "cudarelu/rows.h"
#include "rms_norm.h"

namespace llm {

namespace {

template <class T, class Rows>
__global__ void __launch_bounds__(Rows::max_threads)
    rms_norm(gpu::RowInputs<T, 1, 1> x_and_weight, T* y, std::int64_t rows, std::int64_t columns,
             Compute<T> eps) {
  using C = Compute<T>;
  const C share = 1 / static_cast<C>(columns);
  gpu::write_from_sum(
      Rows(x_and_weight, rows, columns), y,
      [](const auto& part, int i) { return part(0, i) * part(0, i); },
      [=](const auto& part, int i, C squares) {
        // The compiler computes the root once for all elements of a thread.
        return part(0, i) * gpu::reciprocal_root(gpu::fused(squares, share, eps)) * part(1, i);
      });
}

template <class T, class Rows>
__global__ void __launch_bounds__(Rows::max_threads)
    row_rrms(gpu::RowInputs<T, 1> x, T* y, std::int64_t rows, std::int64_t columns,
             Compute<T> eps) {
  using C = Compute<T>;
  const C share = 1 / static_cast<C>(columns);
  gpu::write_from_sum(
      Rows(x, rows, columns), y, [](const auto& part, int i) { return part(0, i) * part(0, i); },
      [=](const auto&, int, C squares) {
        return gpu::reciprocal_root(gpu::fused(squares, share, eps));
      });
}

}  // namespace

Status RmsNorm::cuda(const Call& call) {
  return visit_dtype<spec.dtypes>(call.inputs[0].dtype, [&]<class T>(TypeTag<T>) {
    return gpu::launch_rows<T, 1, 1>(
        call, {store<T>(1)}, []<class Rows>(TypeTag<Rows>) { return rms_norm<T, Rows>; },
        static_cast<Compute<T>>(call.real(0)));
  });
}

Status RowRrms::cuda(const Call& call) {
  return visit_dtype<spec.dtypes>(call.inputs[0].dtype, [&]<class T>(TypeTag<T>) {
    return gpu::launch_rows<T, 1>(
        call, {}, []<class Rows>(TypeTag<Rows>) { return row_rrms<T, Rows>; },
        static_cast<Compute<T>>(call.real(0)));
  });
}

}  // namespace llm
