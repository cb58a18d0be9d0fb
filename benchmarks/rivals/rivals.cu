// The rivals besides PyTorch: CUB's transform, the tutorials' kernel for relu, and pointops' method
// for the nearest points, written from its description. cudarelu.bench.rivals calls them by ctypes;
// each returns the cudaError_t of its launch.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <cub/device/device_transform.cuh>
#include <cuda/functional>

namespace {

constexpr int threads = 256;

unsigned blocks_for(std::int64_t count) {
  return static_cast<unsigned>((count + threads - 1) / threads);
}

struct Relu {
  template <class T>
  __device__ T operator()(T x) const {
    return x < T(0) ? T(0) : x;
  }
};

struct WithCub {
  template <class T>
  static cudaError_t run(const T* x, T* y, std::int64_t count, cudaStream_t stream) {
    // Otherwise CUB loads single elements, since the function might take their addresses.
    const auto relu = ::cuda::proclaim_copyable_arguments(Relu{});
    return cub::DeviceTransform::Transform(x, y, count, relu, stream);
  }
};

template <class T>
__global__ void one_element_a_thread(const T* x, T* y, std::int64_t count) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < count) y[i] = x[i] > T(0) ? x[i] : T(0);
}

struct Naive {
  template <class T>
  static cudaError_t run(const T* x, T* y, std::int64_t count, cudaStream_t stream) {
    one_element_a_thread<<<blocks_for(count), threads, 0, stream>>>(x, y, count);
    return cudaGetLastError();
  }
};

enum class Dtype : int { float32, float64, float16, bfloat16, int8, uint8, int32, int64 };

template <class Method>
cudaError_t relu(int dtype, const void* x, void* y, std::int64_t count, cudaStream_t stream) {
  const auto run = [&]<class T>(T /*tag*/) {
    return Method::run(static_cast<const T*>(x), static_cast<T*>(y), count, stream);
  };
  switch (static_cast<Dtype>(dtype)) {
    case Dtype::float32:
      return run(float());
    case Dtype::float64:
      return run(double());
    case Dtype::float16:
      return run(__half());
    case Dtype::bfloat16:
      return run(__nv_bfloat16());
    case Dtype::int8:
      return run(std::int8_t());
    case Dtype::uint8:
      return run(std::uint8_t());
    case Dtype::int32:
      return run(std::int32_t());
    case Dtype::int64:
      return run(std::int64_t());
  }
  return cudaErrorInvalidValue;
}

constexpr int max_neighbours = 128;

/// The nearest points that a thread has found: a heap with the farthest point first.
struct Heap {
  float distances[max_neighbours];
  int indices[max_neighbours];

  __device__ void swap(int a, int b) {
    const float distance = distances[a];
    distances[a] = distances[b];
    distances[b] = distance;
    const int index = indices[a];
    indices[a] = indices[b];
    indices[b] = index;
  }

  /// Restores the order of a heap of `size` points after its first point was replaced.
  __device__ void sink(int size) {
    for (int root = 0, child = 1; child < size; child = 2 * root + 1) {
      if (child + 1 < size && distances[child + 1] > distances[child]) ++child;
      if (distances[root] >= distances[child]) return;
      swap(root, child);
      root = child;
    }
  }
};

/// One thread per query compares all points of the query's batch.
__global__ void nearest(const float* xyz, const int* offset, const float* new_xyz,
                        const int* new_offset, int* idx, float* squared, int queries, int nsample) {
  const int query = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (query >= queries) return;
  int batch = 0;
  while (query >= new_offset[batch]) ++batch;
  const float x = new_xyz[3 * query], y = new_xyz[3 * query + 1], z = new_xyz[3 * query + 2];

  Heap heap;
  for (int i = 0; i < nsample; ++i) {
    heap.distances[i] = 1e10f;
    heap.indices[i] = -1;
  }
  for (int point = batch == 0 ? 0 : offset[batch - 1]; point < offset[batch]; ++point) {
    const float dx = x - xyz[3 * point], dy = y - xyz[3 * point + 1], dz = z - xyz[3 * point + 2];
    const float distance = dx * dx + dy * dy + dz * dz;
    if (distance < heap.distances[0]) {
      heap.distances[0] = distance;
      heap.indices[0] = point;
      heap.sink(nsample);
    }
  }
  for (int last = nsample - 1; last > 0; --last) {
    heap.swap(0, last);
    heap.sink(last);
  }
  for (int i = 0; i < nsample; ++i) {
    idx[static_cast<std::int64_t>(query) * nsample + i] = heap.indices[i];
    squared[static_cast<std::int64_t>(query) * nsample + i] = heap.distances[i];
  }
}

}  // namespace

extern "C" {

__attribute__((visibility("default"))) int cub_relu(int dtype, const void* x, void* y,
                                                    std::int64_t count, cudaStream_t stream) {
  return relu<WithCub>(dtype, x, y, count, stream);
}

__attribute__((visibility("default"))) int naive_relu(int dtype, const void* x, void* y,
                                                      std::int64_t count, cudaStream_t stream) {
  return relu<Naive>(dtype, x, y, count, stream);
}

/// For float32. `nsample` is at most 128, and every query is in a batch.
__attribute__((visibility("default"))) int pointops_knn(const float* xyz, const int* offset,
                                                        const float* new_xyz, const int* new_offset,
                                                        int* idx, float* squared, int queries,
                                                        int nsample, cudaStream_t stream) {
  if (nsample > max_neighbours) return cudaErrorInvalidValue;
  nearest<<<blocks_for(queries), threads, 0, stream>>>(xyz, offset, new_xyz, new_offset, idx,
                                                       squared, queries, nsample);
  return cudaGetLastError();
}

}  // extern "C"
