// Loops compiled for the vector instructions of the CPU that runs them, without flags of the
// compiler: x86-64 code of the baseline, of AVX2 and of AVX-512. Other CPUs have their baseline's.
#pragma once

#include <cstdint>

namespace cudarelu::cpu {

/// Calls body(i) for each i below n, where no call waits for another: what it writes at i, no other
/// reads.
template <class Body>
void for_each_index(std::int64_t n, const Body& body) {
#ifdef __clang__
#pragma clang loop vectorize(assume_safety)
#else
#pragma GCC ivdep
#pragma GCC unroll 4
#endif
  for (std::int64_t i = 0; i < n; ++i) body(i);
}

/// The same for an n so small, and known to the compiler, that it unrolls the whole loop: arrays
/// that are filled and read in such loops stay in registers.
template <class Body>
void for_each_index_of_few(std::int64_t n, const Body& body) {
#ifdef __clang__
#pragma clang loop vectorize(assume_safety)
#else
#pragma GCC ivdep
#endif
  for (std::int64_t i = 0; i < n; ++i) body(i);
}

/// How wide vectors are to be, where there is a choice. The widest are faster at arithmetic; loops
/// with little of it, which wait for memory, were measured to be slower with them.
enum class Width { half, full };

#if defined(__x86_64__) && defined(__GNUC__)

inline bool has_avx512() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

/// Every CPU with AVX2 has F16C.
inline bool has_avx2() { return __builtin_cpu_supports("avx2"); }

namespace detail {

template <class F>
[[gnu::target("avx512f,avx512bw,avx512dq,avx512vl,avx2,f16c"), gnu::flatten]] void run_with_avx512(
    const F& f) {
  f();
}
template <class F>
[[gnu::target("avx2,f16c"), gnu::flatten]] void run_with_avx2(const F& f) {
  f();
}

}  // namespace detail

/// Calls f(), in which everything is inlined and compiled for this CPU. No resolver runs when the
/// library is loaded, as it would for target_clones: sanitizers and static linking break on those.
template <Width width, class F>
void vectorised(const F& f) {
  if constexpr (width == Width::full) {
    if (has_avx512()) return detail::run_with_avx512(f);
  }
  if (has_avx2()) return detail::run_with_avx2(f);
  f();
}

#else

template <Width, class F>
void vectorised(const F& f) {
  f();
}

#endif

}  // namespace cudarelu::cpu
