// run(): stand-ins and the checks of values.
#include <gtest/gtest.h>

#include "arguments.h"

namespace cudarelu::testing {
namespace {

Status run_knn(std::vector<std::int32_t> offset, std::vector<std::int32_t> new_offset) {
  const Op& op = *find_op("knn_query");
  std::vector<float> xyz(9 * 3, 0.0f);
  const Sizes points{9, 3};
  const Sizes offsets{static_cast<std::int64_t>(offset.size())};
  const Sizes result{9, 1};
  std::vector<std::int32_t> idx(9);
  std::vector<float> distance(9);
  const TensorView inputs[] = {{xyz.data(), DType::float32, points},
                               {offset.data(), DType::int32, offsets},
                               {nullptr, DType::float32, {}, false},
                               {new_offset.data(), DType::int32, offsets, !new_offset.empty()}};
  const TensorView outputs[] = {{idx.data(), DType::int32, result},
                                {distance.data(), DType::float32, result}};
  const Attribute attributes[] = {std::int64_t{1}};
  SerialExecution execution(0);
  return run({op, inputs, outputs, attributes, execution});
}

TEST(Run, AbsentInputsHaveStandIns) {
  const Status status = run_knn({4, 9}, {});
  EXPECT_TRUE(status.ok()) << status.message();
}

TEST(Run, OffsetsAreChecked) {
  EXPECT_EQ(run_knn({9, 4}, {}).message(), "knn_query: offset[1] is 4, less than 9 before it");
  EXPECT_EQ(run_knn({-1, 9}, {}).message(), "knn_query: offset[0] is -1, less than 0 before it");
  EXPECT_EQ(run_knn({4, 10}, {}).message(),
            "knn_query: offset[1] is 10, over dimension n, which is 9");
  EXPECT_EQ(run_knn({4, 9}, {9, 8}).message(),
            "knn_query: new_offset[1] is 8, less than 9 before it");
}

}  // namespace
}  // namespace cudarelu::testing
