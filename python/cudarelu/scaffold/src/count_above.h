#pragma once

#include "cudarelu/kernel.h"

namespace my {

struct CountAbove {
  static constexpr cudarelu::OpSpec spec{
      .signature = "count_above(x: T[*, c], *, limit: float = 0.0) -> count: i64[*]",
      .summary = "How many elements of each row are above the limit.",
      .dtypes = cudarelu::real_types,
      .definition = R"(limit_f = Constant<value_float: float = @limit>()
                       bound = CastLike(limit_f, x)
                       above = Greater(x, bound)
                       number = Cast<to = 7>(above)
                       axes = Constant<value_ints = [-1]>()
                       count = ReduceSum<keepdims = 0>(number, axes))",
  };
  static cudarelu::Status cpu(const cudarelu::Call& call);
  static cudarelu::Status cuda(const cudarelu::Call& call);
};

}  // namespace my
