// Attention for few rows of q that share a head of k, as when a model generates text one token at a
// time. Reading the keys and values takes the time. So the warps of a block divide the keys of its
// tiles, and each multiplies them with all rows.

#include "ops/attention/mma_forward.cuh"

namespace cudarelu::ops::attention::mma {
namespace {

template <int width>
using Few = MmaConfig<width, 1, 1, width == 256 ? 2 : 4,
                      width == 256   ? 32
                      : width == 128 ? 64
                                     : 128,
                      2, 3>;

constexpr int adding_warps = 4;

/// A block for each row. Its warps divide the parts, and the lanes the columns.
template <class T>
__global__ void __launch_bounds__(32 * adding_warps)
    add_parts_of_row(const __grid_constant__ Arguments args) {
#if __CUDA_ARCH__ >= 800
  gpu::wait_for_previous_kernel();
  gpu::let_next_kernel_start();
  constexpr int max_columns = 256;
  __shared__ float all_sums[adding_warps][max_columns];
  __shared__ float all_totals[adding_warps];
  const auto width = static_cast<int>(args.params.value_width);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const std::int64_t row = blockIdx.x;
  const int parts = args.parts.count.number;
  const Parts::Scale* const scales = args.parts.scales + row * parts;
  float largest = low<float>;
  for (int part = lane; part < parts; part += 32) largest = fmaxf(largest, scales[part].base);
  largest = gpu::reduce_in_warp<32>(largest, [](float a, float b) { return fmaxf(a, b); });
  const float base = largest == low<float> ? 0.0f : largest;

  constexpr int vectors = max_columns / (32 * 4);  // of a lane
  float sums[vectors][4] = {};
  float total = 0;
#pragma unroll 4
  for (int part = warp; part < parts; part += adding_warps) {
    const Parts::Scale scale = scales[part];
    const float weight = power_of_two(scale.base - base);
    total += weight * scale.total;
    const float* const from = args.parts.sums + (row * parts + part) * width;
#pragma unroll
    for (int i = 0; i < vectors; ++i) {
      const int column = 4 * lane + 128 * i;
      if (column >= width) break;
      const float4 values = *reinterpret_cast<const float4*>(from + column);
      sums[i][0] = fmaf(weight, values.x, sums[i][0]);
      sums[i][1] = fmaf(weight, values.y, sums[i][1]);
      sums[i][2] = fmaf(weight, values.z, sums[i][2]);
      sums[i][3] = fmaf(weight, values.w, sums[i][3]);
    }
  }
#pragma unroll
  for (int i = 0; i < vectors; ++i) {
    *reinterpret_cast<float4*>(all_sums[warp] + 4 * lane + 128 * i) = {sums[i][0], sums[i][1],
                                                                       sums[i][2], sums[i][3]};
  }
  if (lane == 0) all_totals[warp] = total;
  __syncthreads();

  total = 0;
#pragma unroll
  for (const float other : all_totals) total += other;
  const float inverse = total == 0 ? 0.0f : reciprocal(total);
  const int column = 2 * static_cast<int>(threadIdx.x);
  float2 values{};
#pragma unroll
  for (const auto& other : all_sums) {
    values.x += other[column];
    values.y += other[column + 1];
  }
  values = {values.x * inverse, values.y * inverse};
  if (column < width) {
    const Layout& layout = args.params.y;
    const unsigned head = args.queries.quotient(blockIdx.x);  // counted over the batch
    const unsigned item = args.item_heads.quotient(head);
    T* const y = static_cast<T*>(args.y) +
                 layout.offset(item, head - item * args.item_heads.number) +
                 (blockIdx.x - head * args.queries.number) * layout.row;
    *reinterpret_cast<unsigned*>(y + column) = pack<T>(values.x, values.y);
  }
  if (threadIdx.x == 0 && args.lse != nullptr) args.lse[row] = fmaf(base, ln_2, logf(total));
  const float check = values.x + values.y;
  if (__syncthreads_or(check != check) && warp == 0) attend_again<T>(args, row);
#endif
}

}  // namespace

Status add_parts(const Call& call, const Arguments& args) {
  const Params& p = args.params;
  const auto rows = static_cast<unsigned>(p.batch * p.heads * p.queries);
  const auto kernel =
      call.inputs[0].dtype == DType::float16 ? add_parts_of_row<Half> : add_parts_of_row<BFloat16>;
  return gpu::launch(call, kernel, {rows, 32 * adding_warps}, args);
}

std::optional<Status> attend_few(const Call& call, const Arguments& args) {
  return visit_width<64>(args.params, [&]<int width>(std::integral_constant<int, width>) {
    if (call.inputs[0].dtype == DType::float16) return launch_plan<Half, Few<width>>(call, args);
    return launch_plan<BFloat16, Few<width>>(call, args);
  });
}

}  // namespace cudarelu::ops::attention::mma
