// A warp sums neighbouring pairs at one position over every eighth matrix, and the first of eight
// warps adds their sums. The sums are in double, since there may be many matrices.
#include "rotary_angles_backward.h"

namespace llm {

namespace {

constexpr int pairs_of_block = 32;
constexpr int parts = 8;  // of the matrices

template <class T>
struct Arguments {
  const T* grad_y;
  const T* x;
  T* grad_cos;
  T* grad_sin;
  RotarySizes sizes;
  bool halves;
};

template <class T>
__global__ void __launch_bounds__(pairs_of_block* parts) sum_matrices(Arguments<T> of) {
  using C = Compute<T>;
  __shared__ double cos_sums[parts][pairs_of_block];
  __shared__ double sin_sums[parts][pairs_of_block];
  const int lane = static_cast<int>(threadIdx.x);
  const int part = static_cast<int>(threadIdx.y);
  const std::int64_t pairs = of.sizes.pairs;
  const std::int64_t blocks = gpu::ceil_div(pairs, pairs_of_block);  // of a position
  const std::int64_t position = blockIdx.x / blocks;
  const std::int64_t pair = blockIdx.x % blocks * pairs_of_block + lane;
  gpu::wait_for_previous_kernel();
  double cos_sum = 0;
  double sin_sum = 0;
  if (pair < pairs) {
    for (std::int64_t matrix = part; matrix < of.sizes.leading; matrix += parts) {
      const std::int64_t row = (matrix * of.sizes.positions + position) * 2 * pairs;
      const std::int64_t first = row + (of.halves ? pair : 2 * pair);
      const std::int64_t second = first + (of.halves ? pairs : 1);
      const C a = load(of.x[first]);
      const C b = load(of.x[second]);
      const C grad_a = load(of.grad_y[first]);
      const C grad_b = load(of.grad_y[second]);
      cos_sum += grad_a * a + grad_b * b;
      sin_sum += grad_b * a - grad_a * b;
    }
  }
  cos_sums[part][lane] = cos_sum;
  sin_sums[part][lane] = sin_sum;
  __syncthreads();
  if (part != 0 || pair >= pairs) return;
  for (int i = 1; i < parts; ++i) {
    cos_sum += cos_sums[i][lane];
    sin_sum += sin_sums[i][lane];
  }
  of.grad_cos[position * pairs + pair] = store<T>(static_cast<C>(cos_sum));
  of.grad_sin[position * pairs + pair] = store<T>(static_cast<C>(sin_sum));
}

}  // namespace

Status RotaryAnglesBackward::cuda(const Call& call) {
  if (Status status = check_rotary(call, call.inputs[1], call.inputs[2]); !status.ok())
    return status;
  if (call.outputs[0].size() == 0) return {};
  return visit_dtype<spec.dtypes>(call.inputs[0].dtype, [&]<class T>(TypeTag<T>) {
    const Arguments<T> of{
        static_cast<const T*>(call.inputs[0].data),  static_cast<const T*>(call.inputs[1].data),
        static_cast<T*>(call.outputs[0].data),       static_cast<T*>(call.outputs[1].data),
        RotarySizes(call.inputs[1], call.inputs[2]), call.integer(0) == 0};
    const std::int64_t blocks =
        of.sizes.positions * gpu::ceil_div(of.sizes.pairs, std::int64_t{pairs_of_block});
    const gpu::Grid grid{dim3(gpu::blocks_for(blocks, 1)), dim3(pairs_of_block, parts)};
    return gpu::launch(call, sum_matrices<T>, grid, of);
  });
}

}  // namespace llm
