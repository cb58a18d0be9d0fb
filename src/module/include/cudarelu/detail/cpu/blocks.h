// Conversion of elements to the type of arithmetic: float16 and bfloat16 in blocks of float32.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <type_traits>

#include "cudarelu/detail/cpu/vectorised.h"
#include "cudarelu/types.h"

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>
#endif

namespace cudarelu::cpu {

/// Elements of a block: several blocks fit the L1 cache.
inline constexpr std::int64_t block_size = 512;

/// Elements of a block that fits the vector registers.
inline constexpr std::int64_t small_block_size = 64;

template <class T>
inline constexpr bool is_narrow = !std::is_same_v<Compute<T>, T>;

template <class C>
struct alignas(64) Block : std::array<C, block_size> {};

/// Fetches the cache lines of `count` results that follow one block after y, and of no more than
/// `left` elements from y on, on CPUs whose hardware prefetcher hardly follows stores.
template <class T>
void prefetch_results(const T* y, std::int64_t count, std::int64_t left) {
  if (!needs_prefetched_results()) return;
  constexpr std::int64_t line = 64 / sizeof(T);
  const std::int64_t end = std::min(block_size + count, left);
  for (std::int64_t i = block_size; i < end; i += line) __builtin_prefetch(y + i, 1);
}

namespace detail {

// widen_vectors() and narrow_vectors() return how many elements they converted: none without F16C.

template <Isa, class T>
std::int64_t widen_vectors(const T* /*from*/, float* /*to*/, std::int64_t /*n*/) {
  return 0;
}
template <Isa, class T>
std::int64_t narrow_vectors(const float* /*from*/, T* /*to*/, std::int64_t /*n*/) {
  return 0;
}

#if defined(__x86_64__) && defined(__GNUC__)

// to_float() and from_float() for whole vectors, with the same results: F16C keeps the bits of a
// NaN, of which from_float() sets all.

[[gnu::target("avx2,f16c")]] inline std::int64_t widen_eights(const Half* from, float* to,
                                                              std::int64_t n) {
  std::int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    const __m128i halves = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i));
    _mm256_storeu_ps(to + i, _mm256_cvtph_ps(halves));
  }
  return i;
}
[[gnu::target("avx2,f16c")]] inline std::int64_t narrow_eights(const float* from, Half* to,
                                                               std::int64_t n) {
  std::int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    const __m256 x = _mm256_loadu_ps(from + i);
    const __m256 is_nan = _mm256_cmp_ps(x, x, _CMP_UNORD_Q);
    const __m256i bits = _mm256_srli_epi32(_mm256_castps_si256(is_nan), 1);
    const __m256 result = _mm256_or_ps(x, _mm256_castsi256_ps(bits));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + i),
                     _mm256_cvtps_ph(result, _MM_FROUND_TO_NEAREST_INT));
  }
  return i;
}

// Conversions have a mask, since GCC 12 warns of uninitialised values in those without one. Loads
// and stores have one only for the rest: the compiler does not keep in registers what masks write.
inline constexpr std::uint16_t every = 0xffff;
inline std::uint16_t first_lanes(std::int64_t n) {
  return static_cast<std::uint16_t>((1 << n) - 1);
}

[[gnu::target("avx512f,avx512bw,avx512vl")]] inline std::int64_t widen_sixteens(const Half* from,
                                                                                float* to,
                                                                                std::int64_t n) {
  std::int64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    const __m256i halves = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + i));
    _mm512_storeu_ps(to + i, _mm512_maskz_cvtph_ps(every, halves));
  }
  if (i < n) {
    const __mmask16 rest = first_lanes(n - i);
    const __m256i halves = _mm256_maskz_loadu_epi16(rest, from + i);
    _mm512_mask_storeu_ps(to + i, rest, _mm512_maskz_cvtph_ps(every, halves));
  }
  return n;
}
[[gnu::target("avx512f,avx512bw,avx512vl")]] inline __m256i narrow_sixteen(__m512 x) {
  const __mmask16 is_nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
  const __m512i bits = _mm512_castps_si512(x);
  const __m512i result = _mm512_mask_or_epi32(bits, is_nan, bits, _mm512_set1_epi32(0x7fffffff));
  return _mm512_maskz_cvtps_ph(every, _mm512_castsi512_ps(result), _MM_FROUND_TO_NEAREST_INT);
}
[[gnu::target("avx512f,avx512bw,avx512vl")]] inline std::int64_t narrow_sixteens(const float* from,
                                                                                 Half* to,
                                                                                 std::int64_t n) {
  std::int64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    const __m256i halves = narrow_sixteen(_mm512_loadu_ps(from + i));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + i), halves);
  }
  if (i < n) {
    const __mmask16 rest = first_lanes(n - i);
    _mm256_mask_storeu_epi16(to + i, rest, narrow_sixteen(_mm512_maskz_loadu_ps(rest, from + i)));
  }
  return n;
}

template <Isa isa>
std::int64_t widen_vectors(const Half* from, float* to, std::int64_t n) {
  if constexpr (isa == Isa::avx512) return widen_sixteens(from, to, n);
  if constexpr (isa == Isa::avx2) return widen_eights(from, to, n);
  if (has_avx512()) return widen_sixteens(from, to, n);
  return has_avx2() ? widen_eights(from, to, n) : 0;
}
template <Isa isa>
std::int64_t narrow_vectors(const float* from, Half* to, std::int64_t n) {
  if constexpr (isa == Isa::avx512) return narrow_sixteens(from, to, n);
  if constexpr (isa == Isa::avx2) return narrow_eights(from, to, n);
  if (has_avx512()) return narrow_sixteens(from, to, n);
  return has_avx2() ? narrow_eights(from, to, n) : 0;
}

#endif

}  // namespace detail

/// Converts `n` elements of float16 or bfloat16 to float32. In a small block, the results stay in
/// registers only if `isa` is known: a test of the CPU would separate the loops.
template <Isa isa = Isa::unknown, class T>
void widen(const T* from, float* to, std::int64_t n) {
  const std::int64_t i = detail::widen_vectors<isa>(from, to, n);
  for_each_index_of_few(n - i, [&](std::int64_t j) { to[i + j] = load(from[i + j]); });
}

/// Rounds `n` numbers to float16 or bfloat16.
template <Isa isa = Isa::unknown, class T>
void narrow(const float* from, T* to, std::int64_t n) {
  const std::int64_t i = detail::narrow_vectors<isa>(from, to, n);
  for_each_index_of_few(n - i, [&](std::int64_t j) { to[i + j] = store<T>(from[i + j]); });
}

/// for_each_index() for an op that converts T in blocks of small_block_size, or does not convert
/// it.
template <class T, class Body>
void for_each_index_of_small_block(std::int64_t n, const Body& body) {
  if constexpr (is_narrow<T>) {
    for_each_index_of_few(n, body);
  } else {
    for_each_index(n, body);
  }
}

/// Calls body(first, count) for blocks of n elements. All but the last have a size that the
/// compiler knows.
template <std::int64_t size = small_block_size, class Body>
void for_blocks(std::int64_t n, const Body& body) {
  std::int64_t first = 0;
  for (; first + size <= n; first += size) body(first, size);
  if (first < n) body(first, n - first);
}

/// The same for a dtype that is converted, or once for all elements without conversion.
template <class T, std::int64_t size = block_size, class Body>
void for_each_block(std::int64_t n, const Body& body) {
  if constexpr (is_narrow<T>) {
    for_blocks<size>(n, body);
  } else {
    if (n > 0) body(std::int64_t{0}, n);
  }
}

/// The `count` elements from x on, converted into `block` if necessary.
template <Isa isa = Isa::unknown, class T>
const Compute<T>* read(const T* x, std::int64_t count, Block<Compute<T>>& block) {
  if constexpr (is_narrow<T>) {
    widen<isa>(x, block.data(), count);
    return block.data();
  } else {
    return x;
  }
}

/// The memory for results from y on, before write().
template <class T>
Compute<T>* target(T* y, Block<Compute<T>>& block) {
  if constexpr (is_narrow<T>) {
    return block.data();
  } else {
    return y;
  }
}

template <Isa isa = Isa::unknown, class T>
void write(T* y, std::int64_t count, const Block<Compute<T>>& block) {
  if constexpr (is_narrow<T>) narrow<isa>(block.data(), y, count);
}

}  // namespace cudarelu::cpu
