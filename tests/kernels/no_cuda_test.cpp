// Test of a call on CUDA in a build without CUDA.
#include <gtest/gtest.h>

#include "arguments.h"

namespace cudarelu::testing {
namespace {

TEST(Run, ReportsThatCudaIsMissing) {
  const Op& op = *find_own("relu");
  std::mt19937 random(1);
  Arguments arguments = make_arguments(op, DType::float32, {{2}, 2}, 0, random);
  SerialExecution execution(0, DeviceType::cuda);
  const Status status = run_arguments(op, arguments, execution);
  EXPECT_EQ(status.code(), Status::Code::unavailable);
  EXPECT_EQ(status.message(),
            "relu: the op has no kernel for CUDA; the module cudarelu was built for the CPU");
}

}  // namespace
}  // namespace cudarelu::testing
