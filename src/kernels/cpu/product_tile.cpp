#include "cpu/product_tile.h"

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>
#endif

namespace cudarelu::cpu {
namespace {

/// A tile of `rows` rows and two vectors; multiply_add() is one instruction where the CPU has it.
template <class T>
struct AnyCpu {
  using Vector [[gnu::vector_size(16)]] = T;
  static constexpr int rows = 4;
  static void load(const T* from, Vector& to) { __builtin_memcpy(&to, from, sizeof(Vector)); }
  static void store(const Vector& from, T* to) { __builtin_memcpy(to, &from, sizeof(Vector)); }
  static void multiply_add(Vector& sum, T a, const Vector& b) { sum += a * b; }
};

#if defined(__x86_64__) && defined(__GNUC__)

template <class T>
struct Avx2 {
  using Vector [[gnu::vector_size(32)]] = T;
  static constexpr int rows = 6;
  [[gnu::target("avx2,fma")]] static void load(const T* from, Vector& to) {
    if constexpr (sizeof(T) == 4) to = _mm256_loadu_ps(from);
    if constexpr (sizeof(T) == 8) to = _mm256_loadu_pd(from);
  }
  [[gnu::target("avx2,fma")]] static void store(const Vector& from, T* to) {
    if constexpr (sizeof(T) == 4) _mm256_storeu_ps(to, from);
    if constexpr (sizeof(T) == 8) _mm256_storeu_pd(to, from);
  }
  [[gnu::target("avx2,fma")]] static void multiply_add(Vector& sum, T a, const Vector& b) {
    if constexpr (sizeof(T) == 4) sum = _mm256_fmadd_ps(_mm256_set1_ps(a), b, sum);
    if constexpr (sizeof(T) == 8) sum = _mm256_fmadd_pd(_mm256_set1_pd(a), b, sum);
  }
};

template <class T>
struct Avx512 {
  using Vector [[gnu::vector_size(64)]] = T;
  static constexpr int rows = 12;
  [[gnu::target("avx512f")]] static void load(const T* from, Vector& to) {
    if constexpr (sizeof(T) == 4) to = _mm512_loadu_ps(from);
    if constexpr (sizeof(T) == 8) to = _mm512_loadu_pd(from);
  }
  [[gnu::target("avx512f")]] static void store(const Vector& from, T* to) {
    if constexpr (sizeof(T) == 4) _mm512_storeu_ps(to, from);
    if constexpr (sizeof(T) == 8) _mm512_storeu_pd(to, from);
  }
  [[gnu::target("avx512f")]] static void multiply_add(Vector& sum, T a, const Vector& b) {
    if constexpr (sizeof(T) == 4) sum = _mm512_fmadd_ps(_mm512_set1_ps(a), b, sum);
    if constexpr (sizeof(T) == 8) sum = _mm512_fmadd_pd(_mm512_set1_pd(a), b, sum);
  }
};

#endif

/// tile[rows][columns] = or += the product of a and a panel of b, where a is a panel, or has rows
/// of as many elements as the tile if `of_rows`; only the first `rows` rows of the tile. Each
/// vector is loaded and stored on its own: an array that is initialised or copied as a whole is one
/// in memory.
template <class Cpu, bool of_rows, int rows, class T>
inline void multiply(const T* a, const T* b, std::int64_t k, T* tile, bool adds) {
  typename Cpu::Vector sums[rows][2];
  constexpr int lanes = sizeof(sums[0][0]) / sizeof(T);
  constexpr int step = of_rows ? 1 : Cpu::rows;              // from an element of a row to the next
  constexpr std::ptrdiff_t apart = of_rows ? 2 * lanes : 1;  // from a row to the next
#pragma GCC unroll 16
  for (int row = 0; row < rows; ++row) {
    if (adds) {
      Cpu::load(tile + 2 * row * lanes, sums[row][0]);
      Cpu::load(tile + (2 * row + 1) * lanes, sums[row][1]);
    } else {
      sums[row][0] = typename Cpu::Vector{};
      sums[row][1] = typename Cpu::Vector{};
    }
  }
  for (std::int64_t i = 0; i < k; ++i, a += step, b += 2 * lanes) {
    typename Cpu::Vector b0;
    typename Cpu::Vector b1;
    Cpu::load(b, b0);
    Cpu::load(b + lanes, b1);
#pragma GCC unroll 16
    for (int row = 0; row < rows; ++row) {
      Cpu::multiply_add(sums[row][0], a[row * apart], b0);
      Cpu::multiply_add(sums[row][1], a[row * apart], b1);
    }
  }
#pragma GCC unroll 16
  for (int row = 0; row < rows; ++row) {
    Cpu::store(sums[row][0], tile + 2 * row * lanes);
    Cpu::store(sums[row][1], tile + (2 * row + 1) * lanes);
  }
}

#if defined(__x86_64__) && defined(__GNUC__)
template <class T, bool of_rows, int rows>
[[gnu::target("avx512f"), gnu::flatten]] void multiply_with_avx512(const T* a, const T* b,
                                                                   std::int64_t k, T* tile,
                                                                   bool adds) {
  multiply<Avx512<T>, of_rows, rows>(a, b, k, tile, adds);
}
template <class T, bool of_rows, int rows>
[[gnu::target("avx2,fma"), gnu::flatten]] void multiply_with_avx2(const T* a, const T* b,
                                                                  std::int64_t k, T* tile,
                                                                  bool adds) {
  multiply<Avx2<T>, of_rows, rows>(a, b, k, tile, adds);
}
#endif

}  // namespace

template <class T>
const Tile<T>& tile_for_cpu() {
  static const Tile<T> tile = [] {
#if defined(__x86_64__) && defined(__GNUC__)
    if (has_avx512()) {
      return Tile<T>{12, 128 / sizeof(T), multiply_with_avx512<T, false, 12>,
                     multiply_with_avx512<T, false, 4>, multiply_with_avx512<T, true, 12>};
    }
    if (has_avx2()) {
      return Tile<T>{6, 64 / sizeof(T), multiply_with_avx2<T, false, 6>,
                     multiply_with_avx2<T, false, 2>, multiply_with_avx2<T, true, 6>};
    }
#endif
    return Tile<T>{4, 32 / sizeof(T), multiply<AnyCpu<T>, false, 4, T>,
                   multiply<AnyCpu<T>, false, 1, T>, multiply<AnyCpu<T>, true, 4, T>};
  }();
  return tile;
}

template const Tile<float>& tile_for_cpu<float>();
template const Tile<double>& tile_for_cpu<double>();

}  // namespace cudarelu::cpu
