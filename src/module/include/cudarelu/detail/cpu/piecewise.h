// Functions in pieces (cudarelu/detail/piecewise.h) for vectors of elements.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cudarelu/detail/cpu/blocks.h"
#include "cudarelu/detail/piecewise.h"

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>
#endif

namespace cudarelu::cpu {

namespace detail {

using math::PiecewisePolynomial;

// These return how many elements they computed, the first ones.

template <Isa>
std::int64_t piecewise_in_vectors(const PiecewisePolynomial& /*f*/, const float* /*x*/,
                                  float* /*y*/, std::int64_t /*n*/) {
  return 0;
}

#if defined(__x86_64__) && defined(__GNUC__)

// Where the element for 1 + |x| is: the lowest 3 bits of `index` select one of 8, and the signs of
// `odd` and `upper`, which are the next 2 bits, one of 4 such vectors. AVX-512 reads all 5 bits.
struct IndexOfEight {
  __m256i index;
  __m256 odd;
  __m256 upper;
};
[[gnu::target("avx2")]] inline __m256 look_up(const PiecewisePolynomial::Column& column,
                                              const IndexOfEight& at) {
  const __m256 first = _mm256_permutevar8x32_ps(_mm256_load_ps(column.data()), at.index);
  const __m256 second = _mm256_permutevar8x32_ps(_mm256_load_ps(column.data() + 8), at.index);
  const __m256 third = _mm256_permutevar8x32_ps(_mm256_load_ps(column.data() + 16), at.index);
  const __m256 fourth = _mm256_permutevar8x32_ps(_mm256_load_ps(column.data() + 24), at.index);
  return _mm256_blendv_ps(_mm256_blendv_ps(first, second, at.odd),
                          _mm256_blendv_ps(third, fourth, at.odd), at.upper);
}
[[gnu::target("avx2,fma")]] inline __m256 piecewise_of(const PiecewisePolynomial& f, __m256 x) {
  const __m256 sign = _mm256_and_ps(x, _mm256_set1_ps(-0.0f));
  const __m256 a = _mm256_min_ps(_mm256_set1_ps(f.limit), _mm256_xor_ps(x, sign));
  const __m256 sum = _mm256_add_ps(a, _mm256_set1_ps(1.0f));
  const __m256i bits = _mm256_castps_si256(sum);
  const IndexOfEight at{
      _mm256_srli_epi32(bits, PiecewisePolynomial::shift),
      _mm256_castsi256_ps(_mm256_slli_epi32(bits, 31 - PiecewisePolynomial::shift - 3)),
      _mm256_castsi256_ps(_mm256_slli_epi32(bits, 31 - PiecewisePolynomial::shift - 4)),
  };
  const __m256 r = _mm256_sub_ps(a, look_up(f.table[0], at));
  __m256 slope = look_up(f.table[PiecewisePolynomial::columns - 1], at);
  for (std::size_t i = PiecewisePolynomial::columns - 2; i >= 2; --i) {
    slope = _mm256_fmadd_ps(slope, r, look_up(f.table[i], at));
  }
  const __m256 is_near = _mm256_cmp_ps(sum, _mm256_set1_ps(f.near), _CMP_LT_OQ);
  const __m256 start = _mm256_blendv_ps(look_up(f.table[1], at), a, is_near);
  return _mm256_xor_ps(_mm256_fmadd_ps(slope, r, start), sign);
}
template <>
[[gnu::target("avx2,fma")]] inline std::int64_t piecewise_in_vectors<Isa::avx2>(
    const PiecewisePolynomial& f, const float* x, float* y, std::int64_t n) {
  std::int64_t i = 0;
  for (; i + 8 <= n; i += 8) _mm256_storeu_ps(y + i, piecewise_of(f, _mm256_loadu_ps(x + i)));
  return i;
}

[[gnu::target("avx512f")]] inline __m512 look_up(const PiecewisePolynomial::Column& column,
                                                 __m512i index) {
  return _mm512_permutex2var_ps(_mm512_load_ps(column.data()), index,
                                _mm512_load_ps(column.data() + 16));
}
[[gnu::target("avx512f,avx512dq")]] inline __m512 piecewise_of(const PiecewisePolynomial& f,
                                                               __m512 x) {
  const __m512 sign = _mm512_and_ps(x, _mm512_set1_ps(-0.0f));
  const __m512 a = _mm512_maskz_min_ps(every, _mm512_set1_ps(f.limit), _mm512_xor_ps(x, sign));
  const __m512 sum = _mm512_add_ps(a, _mm512_set1_ps(1.0f));
  const __m512i index =
      _mm512_maskz_srli_epi32(every, _mm512_castps_si512(sum), PiecewisePolynomial::shift);
  const __m512 r = _mm512_sub_ps(a, look_up(f.table[0], index));
  __m512 slope = look_up(f.table[PiecewisePolynomial::columns - 1], index);
  for (std::size_t i = PiecewisePolynomial::columns - 2; i >= 2; --i) {
    slope = _mm512_fmadd_ps(slope, r, look_up(f.table[i], index));
  }
  const __mmask16 is_near = _mm512_cmp_ps_mask(sum, _mm512_set1_ps(f.near), _CMP_LT_OQ);
  const __m512 start = _mm512_mask_mov_ps(look_up(f.table[1], index), is_near, a);
  return _mm512_xor_ps(_mm512_fmadd_ps(slope, r, start), sign);
}
template <>
[[gnu::target("avx512f,avx512dq")]] inline std::int64_t piecewise_in_vectors<Isa::avx512>(
    const PiecewisePolynomial& f, const float* x, float* y, std::int64_t n) {
  std::int64_t i = 0;
  for (; i + 16 <= n; i += 16) _mm512_storeu_ps(y + i, piecewise_of(f, _mm512_loadu_ps(x + i)));
  if (i < n) {
    const __mmask16 rest = first_lanes(n - i);
    _mm512_mask_storeu_ps(y + i, rest, piecewise_of(f, _mm512_maskz_loadu_ps(rest, x + i)));
  }
  return n;
}

#endif

}  // namespace detail

/// y[i] = f(x[i]) for n elements; x and y are the same memory or do not overlap.
template <Isa isa>
void evaluate_piecewise(const math::PiecewisePolynomial& f, const float* x, float* y,
                        std::int64_t n) {
  const std::int64_t i = detail::piecewise_in_vectors<isa>(f, x, y, n);
  for_each_index_of_few(n - i, [&](std::int64_t j) { y[i + j] = f(x[i + j]); });
}

}  // namespace cudarelu::cpu
