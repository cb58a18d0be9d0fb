// exp of differences that are not positive, as in softmax, from a table that the permutations of
// AVX2 and AVX-512 look up. Every CPU gives the same numbers.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <type_traits>

#include "cudarelu/detail/cpu/blocks.h"
#include "cudarelu/transcendental.h"

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>
#endif

namespace cudarelu::cpu {
namespace detail {

/// exp(x) = 2^k 2^(j / 16) exp(r), where |r| <= ln 2 / 32.
struct Exponential {
  static constexpr float lowest = -87.3365402f;  // below, exp(x) is less than 2^-126
  /// Adding this to 16 k + j rounds it to an integer. The bits, shifted, are those of 2^k with j
  /// below the exponent.
  static constexpr float shifter = 0x1.8p23f + 16 * 127;
  static constexpr int shift = 23 - 4;
  static constexpr float scale = 23.0831207f;  // 16 / ln 2
  static constexpr float ln2_high = 0x1.62ep-5f;
  static constexpr float ln2_low = 0x1.0bfbe8p-19f;
  static constexpr float c2 = 0.5000162f;
  static constexpr float c3 = 0.16667038f;

  /// What is added to the shifted bits: for each j, the bits of 2^(j / 16) less those of 1 and j.
  alignas(64) std::array<std::uint32_t, 16> powers{};

  constexpr Exponential() {
    constexpr std::array values{1.0f,        1.04427373f, 1.09050775f, 1.13878858f,
                                1.18920708f, 1.24185777f, 1.29683959f, 1.35425556f,
                                1.41421354f, 1.47682619f, 1.54221082f, 1.61049032f,
                                1.68179286f, 1.75625217f, 1.8340081f,  1.91520655f};
    for (std::uint32_t j = 0; j < 16; ++j) {
      powers[j] = std::bit_cast<std::uint32_t>(values[j]) - (127u << 23) - (j << shift);
    }
  }

  /// With an error of up to 0.99 units in the last place; 0 below 2^-126.
  float operator()(float x) const {
    const float shifted = math::multiply_add(x, scale, shifter);
    const float multiple = shifted - shifter;
    float r = math::multiply_add(-multiple, ln2_high, x);
    r = math::multiply_add(-multiple, ln2_low, r);
    const auto bits = std::bit_cast<std::uint32_t>(shifted);
    const auto power = std::bit_cast<float>((bits << shift) + powers[bits % 16]);
    const float rest = math::multiply_add(math::multiply_add(r, c3, c2), r * r, r);
    return x < lowest ? 0.0f : math::multiply_add(power, rest, power);
  }
};
inline constexpr Exponential exponential;

template <class Base>
auto base_at(Base base, [[maybe_unused]] std::int64_t i) {
  if constexpr (std::is_pointer_v<Base>) {
    return base[i];
  } else {
    return base;
  }
}

// These return how many elements they computed, the first ones.

template <Isa isa, class Base>
std::int64_t exponentials_in_vectors(IsaTag<isa> /*isa*/, const float* /*x*/, Base /*base*/,
                                     float* /*y*/, std::int64_t /*n*/) {
  return 0;
}

#if defined(__x86_64__) && defined(__GNUC__)

[[gnu::target("avx2,fma")]] inline __m256 exponential_of(__m256 x) {
  using E = Exponential;
  const __m256 shifter = _mm256_set1_ps(E::shifter);
  const __m256 shifted = _mm256_fmadd_ps(x, _mm256_set1_ps(E::scale), shifter);
  const __m256 multiple = _mm256_sub_ps(shifted, shifter);
  __m256 r = _mm256_fnmadd_ps(multiple, _mm256_set1_ps(E::ln2_high), x);
  r = _mm256_fnmadd_ps(multiple, _mm256_set1_ps(E::ln2_low), r);
  const __m256i bits = _mm256_castps_si256(shifted);
  const auto* const powers = reinterpret_cast<const __m256i*>(exponential.powers.data());
  const __m256i low = _mm256_permutevar8x32_epi32(_mm256_load_si256(powers), bits);
  const __m256i high = _mm256_permutevar8x32_epi32(_mm256_load_si256(powers + 1), bits);
  const __m256 part = _mm256_blendv_ps(_mm256_castsi256_ps(low), _mm256_castsi256_ps(high),
                                       _mm256_castsi256_ps(_mm256_slli_epi32(bits, 28)));
  const __m256 power = _mm256_castsi256_ps(
      _mm256_add_epi32(_mm256_slli_epi32(bits, E::shift), _mm256_castps_si256(part)));
  const __m256 factor = _mm256_fmadd_ps(r, _mm256_set1_ps(E::c3), _mm256_set1_ps(E::c2));
  const __m256 rest = _mm256_fmadd_ps(factor, _mm256_mul_ps(r, r), r);
  const __m256 counts = _mm256_cmp_ps(x, _mm256_set1_ps(E::lowest), _CMP_NLT_UQ);
  return _mm256_and_ps(counts, _mm256_fmadd_ps(power, rest, power));
}
[[gnu::target("avx2")]] inline __m256 bases_at(const float* base, std::int64_t i) {
  return _mm256_loadu_ps(base + i);
}
[[gnu::target("avx2")]] inline __m256 bases_at(float base, std::int64_t /*i*/) {
  return _mm256_set1_ps(base);
}
template <class Base>
[[gnu::target("avx2,fma")]] std::int64_t exponentials_in_vectors(IsaTag<Isa::avx2> /*isa*/,
                                                                 const float* x, Base base,
                                                                 float* y, std::int64_t n) {
  std::int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    const __m256 difference = _mm256_sub_ps(_mm256_loadu_ps(x + i), bases_at(base, i));
    _mm256_storeu_ps(y + i, exponential_of(difference));
  }
  return i;
}

[[gnu::target("avx512f")]] inline __m512 exponential_of(__m512 x) {
  using E = Exponential;
  const __m512 shifter = _mm512_set1_ps(E::shifter);
  const __m512 shifted = _mm512_fmadd_ps(x, _mm512_set1_ps(E::scale), shifter);
  const __m512 multiple = _mm512_sub_ps(shifted, shifter);
  __m512 r = _mm512_fnmadd_ps(multiple, _mm512_set1_ps(E::ln2_high), x);
  r = _mm512_fnmadd_ps(multiple, _mm512_set1_ps(E::ln2_low), r);
  const __m512i bits = _mm512_castps_si512(shifted);
  const __m512i part =
      _mm512_maskz_permutexvar_epi32(every, bits, _mm512_load_si512(exponential.powers.data()));
  const __m512 power =
      _mm512_castsi512_ps(_mm512_add_epi32(_mm512_maskz_slli_epi32(every, bits, E::shift), part));
  const __m512 factor = _mm512_fmadd_ps(r, _mm512_set1_ps(E::c3), _mm512_set1_ps(E::c2));
  const __m512 rest = _mm512_fmadd_ps(factor, _mm512_mul_ps(r, r), r);
  const __mmask16 counts = _mm512_cmp_ps_mask(x, _mm512_set1_ps(E::lowest), _CMP_NLT_UQ);
  return _mm512_maskz_fmadd_ps(counts, power, rest, power);
}
[[gnu::target("avx512f")]] inline __m512 bases_at(const float* base, std::int64_t i,
                                                  __mmask16 lanes) {
  return _mm512_maskz_loadu_ps(lanes, base + i);
}
[[gnu::target("avx512f")]] inline __m512 bases_at(float base, std::int64_t /*i*/,
                                                  __mmask16 /*lanes*/) {
  return _mm512_set1_ps(base);
}
template <class Base>
[[gnu::target("avx512f")]] std::int64_t exponentials_in_vectors(IsaTag<Isa::avx512> /*isa*/,
                                                                const float* x, Base base, float* y,
                                                                std::int64_t n) {
  std::int64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    const __m512 difference = _mm512_sub_ps(_mm512_loadu_ps(x + i), bases_at(base, i, every));
    _mm512_storeu_ps(y + i, exponential_of(difference));
  }
  if (i < n) {
    const __mmask16 rest = first_lanes(n - i);
    const __m512 difference =
        _mm512_sub_ps(_mm512_maskz_loadu_ps(rest, x + i), bases_at(base, i, rest));
    _mm512_mask_storeu_ps(y + i, rest, exponential_of(difference));
  }
  return n;
}

#endif

}  // namespace detail

/// y[i] = exp(x[i] - base[i]) for n differences that are not positive; 0 for -infinity, and in
/// float32 below 2^-126. `base` is a pointer, or one number. x and y are the same memory or do not
/// overlap.
template <Isa isa, class C, class Base>
void exponentials(const C* x, Base base, C* y, std::int64_t n) {
  using detail::base_at;
  if constexpr (std::is_same_v<C, float>) {
    const std::int64_t done = detail::exponentials_in_vectors(IsaTag<isa>(), x, base, y, n);
    for_each_index_of_few(n - done, [&](std::int64_t j) {
      y[done + j] = detail::exponential(x[done + j] - base_at(base, done + j));
    });
  } else {
    for_each_index(n, [&](std::int64_t i) { y[i] = math::exp(x[i] - base_at(base, i)); });
  }
}

}  // namespace cudarelu::cpu
