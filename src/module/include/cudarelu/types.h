// The C++ types of the elements and of arithmetic on them.
#pragma once

#include <cstdint>
#include <type_traits>

#include "cudarelu/detail/dtype.h"
#include "cudarelu/detail/float16.h"
#include "cudarelu/detail/status.h"

namespace cudarelu {

/// The type of arithmetic on T.
template <class T>
using Compute =
    std::conditional_t<std::is_same_v<T, Half> || std::is_same_v<T, BFloat16>, float, T>;

template <class T>
CUDARELU_FN Compute<T> load(T x) {
  if constexpr (std::is_same_v<Compute<T>, T>) {
    return x;
  } else {
    return to_float(x);
  }
}

/// Rounds `x` to T.
template <class T>
CUDARELU_FN T store(Compute<T> x) {
  if constexpr (std::is_same_v<Compute<T>, T>) {
    return x;
  } else {
    T result;
    from_float(x, result);
    return result;
  }
}

template <class T>
inline constexpr DType dtype_of = DType::float32;
template <>
inline constexpr DType dtype_of<double> = DType::float64;
template <>
inline constexpr DType dtype_of<Half> = DType::float16;
template <>
inline constexpr DType dtype_of<BFloat16> = DType::bfloat16;
template <>
inline constexpr DType dtype_of<std::int8_t> = DType::int8;
template <>
inline constexpr DType dtype_of<std::uint8_t> = DType::uint8;
template <>
inline constexpr DType dtype_of<std::int32_t> = DType::int32;
template <>
inline constexpr DType dtype_of<std::int64_t> = DType::int64;
template <>
inline constexpr DType dtype_of<bool> = DType::boolean;

template <class T>
struct TypeTag {
  using type = T;
};

namespace detail {

template <DTypeSet dtypes, class T, class... Others, class F>
Status visit_dtype(DType dtype, const F& f) {
  if constexpr (dtypes.contains(dtype_of<T>)) {
    if (dtype == dtype_of<T>) return f(TypeTag<T>{});
  }
  if constexpr (sizeof...(Others) > 0) {
    return visit_dtype<dtypes, Others...>(dtype, f);
  } else {
    return {Status::Code::unsupported_dtype, "the kernels do not have this dtype"};
  }
}

}  // namespace detail

/// Calls f(TypeTag<T>) with the C++ type T of `dtype`. Compiles f only for the dtypes of the set.
template <DTypeSet dtypes, class F>
Status visit_dtype(DType dtype, const F& f) {
  return detail::visit_dtype<dtypes, float, double, Half, BFloat16, std::int8_t, std::uint8_t,
                             std::int32_t, std::int64_t, bool>(dtype, f);
}

/// Calls f(TypeTag<T>, TypeTag<U>) for two tensors of dtypes of their own.
template <DTypeSet t_dtypes, DTypeSet u_dtypes, class F>
Status visit_dtypes(DType t, DType u, const F& f) {
  return visit_dtype<t_dtypes>(t, [&](auto t_tag) {
    return visit_dtype<u_dtypes>(u, [&](auto u_tag) { return f(t_tag, u_tag); });
  });
}

}  // namespace cudarelu
