// The resources of PyTorch for a call: its current stream, threads, caching allocator and matrix
// product.
#pragma once

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/cpu/Utils.h>
#include <ATen/ops/addmm_cpu_dispatch.h>
#include <ATen/ops/baddbmm_cpu_dispatch.h>
#include <ATen/ops/bmm_cpu_dispatch.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/mm_cpu_dispatch.h>
#include <c10/core/Allocator.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <exception>

#include "cudarelu/call.h"
#include "cudarelu/detail/cpu/vectorised.h"
#include "cudarelu/op.h"
#include "dtypes.h"
#include "errors.h"

namespace cudarelu::binding {

/// Whether engine_matmul() is faster than PyTorch's product, measured with one and two threads. On
/// such a CPU, MKL uses vectors of 256 bits. Threads share blocks of 96 rows and 256 columns. Few
/// rows do not make up for the copy of b to panels, which takes longer from rows.
inline bool prefers_engine_matmul(const Gemm& gemm) {
  if (!cpu::is_wide_amd() || !at::hasMKL() || gemm.batch != 1) return false;
  if (gemm.dtype != DType::float32 && gemm.dtype != DType::float64) return false;
  const std::int64_t blocks = (gemm.m + 95) / 96 * ((gemm.n + 255) / 256);
  return gemm.m >= (gemm.b_transposed ? 24 : 48) && gemm.n >= 32 && gemm.k >= 16 &&
         blocks >= at::get_num_threads();
}

class TorchExecution final : public Execution {
 public:
  explicit TorchExecution(c10::Device device)
      : Execution(device.is_cuda() ? DeviceType::cuda : DeviceType::cpu,
                  device.is_cuda() ? device.index() : 0, current_stream(device)),
        device_(device) {}

  void parallel_for(std::int64_t n, std::int64_t grain,
                    FunctionRef<void(std::int64_t, std::int64_t)> body) override {
    if (n <= grain) return body(0, n);
    // In blocks of `grain` items, since torch may split ranges into half of its own grain.
    at::parallel_for(0, (n + grain - 1) / grain, 1, [&](std::int64_t begin, std::int64_t end) {
      body(begin * grain, std::min(end * grain, n));
    });
  }

  void* allocate(std::size_t bytes) override {
    try {
      workspace_.push_back(c10::GetAllocator(device_.type())->allocate(bytes));
      return workspace_.back().get();
    } catch (...) {  // raise_error() throws it later: no exception may pass through the kernels
      allocation_error_ = std::current_exception();
      return nullptr;
    }
  }

  /// Calls at::cpu functions, without the dispatcher: modes and autocast have already seen the op.
  Status matmul(const Gemm& gemm) override {
    if (prefers_engine_matmul(gemm)) return engine_matmul(gemm, *this);
    try {
      const at::Tensor a = matrices(gemm, gemm.a, gemm.m, gemm.k, gemm.a_transposed);
      const at::Tensor b = matrices(gemm, gemm.b, gemm.k, gemm.n, gemm.b_transposed);
      at::Tensor d = matrices(gemm, gemm.d, gemm.m, gemm.n, false);
      if (gemm.bias != nullptr) {
        const at::Tensor bias = tensor(gemm, gemm.bias, {gemm.n}, {1});
        gemm.batch == 1 ? at::cpu::addmm_out(d, bias, a, b) : at::cpu::baddbmm_out(d, bias, a, b);
      } else {
        gemm.batch == 1 ? at::cpu::mm_out(d, a, b) : at::cpu::bmm_out(d, a, b);
      }
      return {};
    } catch (const std::exception& error) {
      return {Status::Code::internal, error.what()};
    }
  }

  /// Requires instructions for the type: without them, torch converts to float32, more slowly than
  /// the kernels.
  bool has_matmul(DType half) const override {
    static const auto capabilities = at::cpu::get_cpu_capabilities();
    const auto found = capabilities.find(half == DType::bfloat16 ? "avx512_bf16" : "amx_fp16");
    return found != capabilities.end() && found->second.toBool();
  }

  bool allow_tf32() const override {
    const auto precision =
        at::globalContext().float32Precision(at::Float32Backend::CUDA, at::Float32Op::MATMUL);
    return precision == at::Float32Precision::TF32;
  }

  /// Throws the error of `status` or, if an allocation failed, torch's own error with its details.
  [[noreturn]] void raise_error(const Status& status) const {
    if (allocation_error_ != nullptr) std::rethrow_exception(allocation_error_);
    raise(status);
  }

 private:
  static void* current_stream(c10::Device device) {
    if (!device.is_cuda()) return nullptr;
    // A virtual guard needs no link to torch's CUDA library.
    return c10::impl::VirtualGuardImpl(c10::DeviceType::CUDA).getStream(device).native_handle();
  }

  static at::Tensor tensor(const Gemm& gemm, const void* data, at::IntArrayRef sizes,
                           at::IntArrayRef strides) {
    const auto options = at::TensorOptions().dtype(scalar_type_of(gemm.dtype));
    return at::for_blob(const_cast<void*>(data), sizes)
        .strides(strides)
        .options(options)
        .make_tensor();
  }

  static at::Tensor matrices(const Gemm& gemm, const void* data, std::int64_t rows,
                             std::int64_t columns, bool transposed) {
    const std::array<std::int64_t, 3> sizes{gemm.batch, rows, columns};
    const std::array<std::int64_t, 3> strides{rows * columns, transposed ? 1 : columns,
                                              transposed ? rows : 1};
    const std::size_t first = gemm.batch == 1 ? 1 : 0;
    return tensor(gemm, data, at::IntArrayRef(sizes).slice(first),
                  at::IntArrayRef(strides).slice(first));
  }

  c10::Device device_;
  c10::SmallVector<c10::DataPtr, 2> workspace_;  // freed at the end, in stream order
  std::exception_ptr allocation_error_;
};

}  // namespace cudarelu::binding
