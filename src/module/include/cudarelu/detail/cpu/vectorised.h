// Loops for the vector instructions of the CPU that runs them, without compiler flags: on x86-64
// for the baseline, AVX2 and AVX-512; on other CPUs for the baseline.
#pragma once

#include <cstdint>
#include <type_traits>
#if defined(__x86_64__) && defined(__GNUC__)
#include <cpuid.h>
#endif

namespace cudarelu::cpu {

/// Calls body(i) for each i below n. The calls must be independent: none reads what another writes.
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

/// The same for a small constant n, whose loop the compiler unrolls as a whole: arrays that such
/// loops write and read stay in registers.
template <class Body>
void for_each_index_of_few(std::int64_t n, const Body& body) {
#ifdef __clang__
#pragma clang loop vectorize(assume_safety)
#else
#pragma GCC ivdep
#endif
  for (std::int64_t i = 0; i < n; ++i) body(i);
}

/// The width of vectors. Full width is faster for arithmetic, but slower, as measured, for loops
/// with little of it, which wait for memory.
enum class Width { half, full };

/// The instructions that code is compiled for; `unknown` for code that asks the CPU.
enum class Isa { unknown, avx2, avx512 };
template <Isa isa>
using IsaTag = std::integral_constant<Isa, isa>;

namespace detail {

/// Calls f(arguments...), with an IsaTag before them if f takes one.
template <Isa isa, class F, class... Arguments>
inline void call_for(const F& f, Arguments... arguments) {
  if constexpr (std::is_invocable_v<F, IsaTag<isa>, Arguments...>) {
    f(IsaTag<isa>(), arguments...);
  } else {
    f(arguments...);
  }
}

}  // namespace detail

#if defined(__x86_64__) && defined(__GNUC__)

inline bool has_avx512() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

/// Every CPU with AVX2 has F16C.
inline bool has_avx2() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }

/// Whether prefetching the cache lines of results makes stores faster. It does on an Intel Xeon, up
/// to 1.6 times; on an AMD EPYC relu takes up to 1.2 times as long.
inline bool needs_prefetched_results() { return __builtin_cpu_is("intel") != 0; }

/// Whether this is an AMD CPU whose arithmetic units are as wide as AVX-512, from Zen 5 on.
inline bool is_wide_amd() {
  static const bool is_one = [] {
    unsigned eax = 0;
    unsigned ebx = 0;
    unsigned ecx = 0;
    unsigned edx = 0;
    if (!__builtin_cpu_is("amd") || !has_avx512()) return false;
    if (__get_cpuid(1, &eax, &ebx, &ecx, &edx) == 0) return false;
    const unsigned family = (eax >> 8 & 0xf) + (eax >> 20 & 0xff);
    return family >= 0x1a;
  }();
  return is_one;
}

namespace detail {

template <class F>
[[gnu::target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c"), gnu::flatten]] void
run_with_avx512(const F& f) {
  call_for<Isa::avx512>(f);
}
template <class F>
[[gnu::target("avx2,fma,f16c"), gnu::flatten]] void run_with_avx2(const F& f) {
  call_for<Isa::avx2>(f);
}
/// Compiled for size: every CPU since 2013 has AVX2.
template <class F>
[[gnu::cold, gnu::flatten, gnu::noinline]] void run_with_baseline(const F& f) {
  call_for<Isa::unknown>(f);
}

}  // namespace detail

namespace detail {

template <class F>
[[gnu::target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c"), gnu::flatten, gnu::noinline]]
void run_apart_with_avx512(const F& f) {
  f();
}
template <class F>
[[gnu::target("avx2,fma,f16c"), gnu::flatten, gnu::noinline]] void run_apart_with_avx2(const F& f) {
  f();
}

}  // namespace detail

/// Calls f() in code for `isa`, which this CPU has, as a function that is compiled once for each F:
/// for what several callers share, or what is called from several places.
template <Isa isa, class F>
void apart(const F& f) {
  if constexpr (isa == Isa::avx512) return detail::run_apart_with_avx512(f);
  if constexpr (isa == Isa::avx2) return detail::run_apart_with_avx2(f);
  detail::run_with_baseline(f);
}

/// Calls f(), or f(IsaTag), with everything in it inlined and compiled for this CPU. Not by
/// target_clones, whose resolvers run when the library is loaded: sanitizers and static linking
/// fail with them.
template <Width width, class F>
void vectorised(const F& f) {
  if constexpr (width == Width::full) {
    if (has_avx512()) return detail::run_with_avx512(f);
  }
  if (has_avx2()) return detail::run_with_avx2(f);
  detail::run_with_baseline(f);
}

#else

inline bool needs_prefetched_results() { return false; }
inline bool is_wide_amd() { return false; }

template <Isa isa, class F>
void apart(const F& f) {
  f();
}

template <Width, class F>
void vectorised(const F& f) {
  detail::call_for<Isa::unknown>(f);
}

#endif

}  // namespace cudarelu::cpu
