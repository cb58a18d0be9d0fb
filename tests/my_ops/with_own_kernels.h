#pragma once

#include "cudarelu/kernel.h"

namespace my {

inline constexpr auto float32_alone = cudarelu::DTypeSet::of({cudarelu::DType::float32});

/// Its gradient has a sum as an argument.
struct Doubled {
  static constexpr cudarelu::OpSpec spec{
      .signature = "doubled(x: T[*]) -> (y: T[*], again: T[*], x_too: T[*])",
      .summary = "2 x, twice, and x.",
      .dtypes = float32_alone,
      .gradient = "x = cudarelu::scale(grad_y + grad_again, 2) + grad_x_too",
      .definition = R"(y = Add(x, x)
                       again = Identity(y)
                       x_too = Identity(x))",
  };
  static cudarelu::Status cpu(const cudarelu::Call& call);
};

/// It has an attribute of type bool, and works in place.
struct NegatedIf {
  static constexpr cudarelu::OpSpec spec{
      .signature = "negated_if(x: T[*], *, flag: bool = false) -> y: T[*]",
      .summary = "-x if the flag is set, else x.",
      .dtypes = float32_alone,
      .in_place = "y = x",
      .definition = R"(flag_i = Constant<value_int: int = @flag>()
                       is_set = Cast<to = 9>(flag_i)
                       negated = Neg(x)
                       y = Where(is_set, negated, x))",
  };
  static cudarelu::Status cpu(const cudarelu::Call& call);
};

}  // namespace my
