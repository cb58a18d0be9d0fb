// A thread has the angles of some pairs at one position, and rotates these pairs in all heads of
// all batches. In the layout `halves`, the pairs are in two vectors of x that are far apart. In the
// layout `pairs` they are in one, so that neighbouring threads access neighbouring vectors.
#include <algorithm>

#include "cudarelu/rows.h"
#include "rotary.h"

namespace llm {

namespace {

constexpr int block_size = 256;
constexpr int in_flight = 8;  // vectors that a thread loads at the same time

template <class T>
struct Arguments {
  const T* x;
  const T* cos;
  const T* sin;
  T* y;
  RotarySizes sizes;
  std::int64_t heads;
  RotaryLayout of_x;
  RotaryLayout of_y;
  std::int64_t cos_step;
  std::int64_t sin_step;
};

template <class T, int width, int vectors, bool halves>
__global__ void __launch_bounds__(block_size) rotate(Arguments<T> of) {
  using C = Compute<T>;
  using Vector = gpu::RowVector<T, width>;
  constexpr int pairs = width * vectors / 2;  // of a thread
  using Angles = gpu::RowVector<T, pairs>;
  constexpr int at_once = in_flight / vectors;
  const std::int64_t position = static_cast<std::int64_t>(blockIdx.x) * blockDim.y + threadIdx.y;
  gpu::wait_for_previous_kernel();
  if (position >= of.sizes.positions) return;
  for (std::int64_t pair = threadIdx.x * pairs; pair < of.sizes.pairs; pair += blockDim.x * pairs) {
    const Angles cos = *reinterpret_cast<const Angles*>(of.cos + position * of.cos_step + pair);
    const Angles sin = *reinterpret_cast<const Angles*>(of.sin + position * of.sin_step + pair);
    const std::int64_t column = halves ? pair : 2 * pair;
    const std::int64_t apart = halves ? of.sizes.pairs : width;
    for (std::int64_t first = blockIdx.y * at_once; first < of.sizes.leading;
         first += gridDim.y * at_once) {
      Vector x[at_once][vectors];
      std::int64_t to[at_once];
      std::int64_t batch = first / of.heads;
      std::int64_t head = first % of.heads;
      const auto offset_in = [&](const RotaryLayout& layout) {
        return batch * layout.batch + head * layout.head + position * layout.position + column;
      };
#pragma unroll
      for (int i = 0; i < at_once; ++i) {
        if (first + i >= of.sizes.leading) continue;
        const T* const from = of.x + offset_in(of.of_x);
        to[i] = offset_in(of.of_y);
#pragma unroll
        for (int v = 0; v < vectors; ++v) {
          x[i][v] = *reinterpret_cast<const Vector*>(from + v * apart);
        }
        if (++head == of.heads) {
          head = 0;
          ++batch;
        }
      }
#pragma unroll
      for (int i = 0; i < at_once; ++i) {
        if (first + i >= of.sizes.leading) continue;
        C turned[2 * pairs];
#pragma unroll
        for (int j = 0; j < pairs; ++j) {
          // Element `at` of the vectors is the first of pair j, and `partner` the second.
          const int at = halves ? j : 2 * j;
          const int partner = halves ? pairs + j : 2 * j + 1;
          const C a = load(x[i][at / width][at % width]);
          const C b = load(x[i][partner / width][partner % width]);
          turned[at] = a * load(cos[j]) - b * load(sin[j]);
          turned[partner] = b * load(cos[j]) + a * load(sin[j]);
        }
#pragma unroll
        for (int v = 0; v < vectors; ++v) {
          Vector y;
#pragma unroll
          for (int j = 0; j < width; ++j) y.set(j, store<T>(turned[v * width + j]));
          y.write_to(of.y + to[i] + v * apart);
        }
      }
    }
  }
}

template <int width, int vectors, bool halves, class T>
Status launch_rotate(const Call& call, const Arguments<T>& of) {
  const std::int64_t across =
      std::min<std::int64_t>(of.sizes.pairs / (width * vectors / 2), block_size);
  const std::int64_t down = block_size / across;
  const std::int64_t parts =
      std::min<std::int64_t>(gpu::ceil_div(of.sizes.leading, in_flight / vectors), 65535);
  const gpu::Grid grid{
      dim3(gpu::blocks_for(of.sizes.positions, down), static_cast<unsigned>(parts)),
      dim3(static_cast<unsigned>(across), static_cast<unsigned>(down))};
  return gpu::launch(call, rotate<T, width, vectors, halves>, grid, of);
}

}  // namespace

Status Rotary::cuda(const Call& call) {
  if (Status status = check_rotary(call, call.inputs[0], call.inputs[1]); !status.ok())
    return status;
  if (call.outputs[0].size() == 0) return {};
  return visit_dtype<spec.dtypes>(call.inputs[0].dtype, [&]<class T>(TypeTag<T>) {
    const Arguments<T> of{static_cast<const T*>(call.inputs[0].data),
                          static_cast<const T*>(call.inputs[1].data),
                          static_cast<const T*>(call.inputs[2].data),
                          static_cast<T*>(call.outputs[0].data),
                          RotarySizes(call.inputs[0], call.inputs[1]),
                          call.inputs[0].shape.last(3)[0],
                          RotaryLayout(call.inputs[0], call.strides.inputs),
                          RotaryLayout(call.outputs[0], call.strides.outputs),
                          rotary_angles_step(call, 1),
                          rotary_angles_step(call, 2)};
    constexpr int width = gpu::vector_bytes / sizeof(T);
    const auto rows_are_even = [](const RotaryLayout& layout) {
      return (layout.batch | layout.head | layout.position) % width == 0;
    };
    const bool even = of.sizes.pairs % width == 0 && rows_are_even(of.of_x) &&
                      rows_are_even(of.of_y) && (of.cos_step | of.sin_step) % width == 0 &&
                      gpu::misalignment(of.x) == 0 && gpu::misalignment(of.cos) == 0 &&
                      gpu::misalignment(of.sin) == 0 && gpu::misalignment(of.y) == 0;
    const bool halves = call.integer(0) == 0;
    if (!even)
      return halves ? launch_rotate<1, 2, true>(call, of) : launch_rotate<1, 2, false>(call, of);
    return halves ? launch_rotate<width, 2, true>(call, of)
                  : launch_rotate<width, 1, false>(call, of);
  });
}

}  // namespace llm
