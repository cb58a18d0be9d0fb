#pragma once

#include "cudarelu/elementwise.h"

namespace cudarelu::ops {

struct Add {
  static constexpr OpSpec spec{
      .signature = "add(a: T[*], b: T[*]) -> c: T[*]",
      .summary = "a + b, elementwise; integers wrap around.",
      .dtypes = real_types,
      .in_place = "c = a",
      .gradient = "a = grad_c; b = grad_c",
      .definition = "c = Add(a, b)",
  };
  template <class T>
  CUDARELU_FN T operator()(T a, T b) const {
    if constexpr (std::is_integral_v<T>) {
      // Unsigned, since the overflow of a signed sum is undefined.
      using U = std::make_unsigned_t<T>;
      return static_cast<T>(static_cast<U>(static_cast<U>(a) + static_cast<U>(b)));
    } else {
      return a + b;
    }
  }
};

}  // namespace cudarelu::ops
