// A thread has the angles of `width` pairs at one position, and rotates these pairs in several
// vectors, which are those of the heads and the batch.
#include <algorithm>

#include "cudarelu/cuda/alignment.h"
#include "cudarelu/cuda/row_vector.cuh"
#include "rotary.h"

namespace llm {

namespace cuda = cudarelu::cuda;  // there is a global namespace of this name, too

namespace {

constexpr int block_size = 256;
constexpr int at_once = 4;  // vectors of a thread whose loads are in flight at the same time

template <class T>
struct Arguments {
  const T* x;
  const T* cos;
  const T* sin;
  T* y;
  RotarySizes sizes;
};

template <class T, int width, bool halves>
__global__ void __launch_bounds__(block_size) rotate(Arguments<T> of) {
  using C = Compute<T>;
  using Vector = cuda::RowVector<T, width>;
  const std::int64_t position = static_cast<std::int64_t>(blockIdx.x) * blockDim.y + threadIdx.y;
  cuda::wait_for_previous_kernel();
  if (position >= of.sizes.positions) return;
  const std::int64_t matrix = of.sizes.positions * 2 * of.sizes.pairs;
  for (std::int64_t pair = threadIdx.x * width; pair < of.sizes.pairs; pair += blockDim.x * width) {
    const Vector cos = *reinterpret_cast<const Vector*>(of.cos + position * of.sizes.pairs + pair);
    const Vector sin = *reinterpret_cast<const Vector*>(of.sin + position * of.sizes.pairs + pair);
    const std::int64_t offset = position * 2 * of.sizes.pairs + (halves ? pair : 2 * pair);
    const std::int64_t apart = halves ? of.sizes.pairs : width;
    for (std::int64_t first = blockIdx.y * at_once; first < of.sizes.leading;
         first += gridDim.y * at_once) {
      Vector x[at_once][2];
#pragma unroll
      for (int i = 0; i < at_once; ++i) {
        if (first + i >= of.sizes.leading) continue;
        const T* const from = of.x + (first + i) * matrix + offset;
        x[i][0] = *reinterpret_cast<const Vector*>(from);
        x[i][1] = *reinterpret_cast<const Vector*>(from + apart);
      }
#pragma unroll
      for (int i = 0; i < at_once; ++i) {
        if (first + i >= of.sizes.leading) continue;
        C turned[2 * width];
#pragma unroll
        for (int j = 0; j < width; ++j) {
          // Element `place` of the two vectors is the first of pair j, and `partner` the second.
          const int place = halves ? j : 2 * j;
          const int partner = halves ? width + j : 2 * j + 1;
          const C a = load(x[i][place / width][place % width]);
          const C b = load(x[i][partner / width][partner % width]);
          turned[place] = a * load(cos[j]) - b * load(sin[j]);
          turned[partner] = b * load(cos[j]) + a * load(sin[j]);
        }
        T* const to = of.y + (first + i) * matrix + offset;
#pragma unroll
        for (int v = 0; v < 2; ++v) {
          Vector y;
#pragma unroll
          for (int j = 0; j < width; ++j) y.set(j, store<T>(turned[v * width + j]));
          y.write_to(to + v * apart);
        }
      }
    }
  }
}

template <int width, class T>
Status launch_rotate(const Call& call, const Arguments<T>& of) {
  const std::int64_t across = std::min<std::int64_t>(of.sizes.pairs / width, block_size);
  const std::int64_t down = block_size / across;
  const std::int64_t parts =
      std::min<std::int64_t>(cuda::ceil_div(of.sizes.leading, at_once), 65535);
  const cuda::Grid grid{
      dim3(cuda::blocks_for(of.sizes.positions, down), static_cast<unsigned>(parts)),
      dim3(static_cast<unsigned>(across), static_cast<unsigned>(down))};
  const auto kernel = call.integer(0) == 0 ? rotate<T, width, true> : rotate<T, width, false>;
  return cuda::launch(call, kernel, grid, of);
}

}  // namespace

Status Rotary::cuda(const Call& call) {
  if (Status status = check_rotary(call); !status.ok()) return status;
  if (call.outputs[0].size() == 0) return {};
  return visit_dtype<spec.dtypes>(call.inputs[0].dtype, [&]<class T>(TypeTag<T>) {
    const Arguments<T> of{static_cast<const T*>(call.inputs[0].data),
                          static_cast<const T*>(call.inputs[1].data),
                          static_cast<const T*>(call.inputs[2].data),
                          static_cast<T*>(call.outputs[0].data), RotarySizes(call)};
    constexpr int width = cuda::vector_bytes / sizeof(T);
    const bool even = of.sizes.pairs % width == 0 && cuda::misalignment(of.x) == 0 &&
                      cuda::misalignment(of.cos) == 0 && cuda::misalignment(of.sin) == 0 &&
                      cuda::misalignment(of.y) == 0;
    return even ? launch_rotate<width>(call, of) : launch_rotate<1>(call, of);
  });
}

}  // namespace llm
