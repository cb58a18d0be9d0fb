#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <set>
#include <stdexcept>
#include <vector>

#include "cudarelu/op.h"

namespace cudarelu {
namespace {

TEST(Table, ContainsTheOpOfEveryFile) {
  std::set<std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(CUDARELU_OPS)) {
    if (entry.path().extension() == ".h" && entry.path().stem() != "list") {
      files.insert(entry.path().stem().string());
    }
  }
  std::set<std::string> names;
  for (const Op& op : op_table()) names.emplace(op.name);
  EXPECT_EQ(names, files);
  EXPECT_EQ(names.size(), op_table().size());
}

TEST(Table, IdsAreAppendOnly) {
  // The order of the first release. New ops are appended; this list does not change.
  const char* const released[] = {"relu",        "relu_backward",
                                  "leaky_relu",  "leaky_relu_backward",
                                  "tanh",        "tanh_backward",
                                  "asinh",       "asinh_backward",
                                  "add",         "scaled_add",
                                  "mul",         "scale",
                                  "relu_scale",  "relu_scale_backward",
                                  "bias_relu",   "bias_relu_backward",
                                  "expand_rows", "sum_rows",
                                  "softmax",     "softmax_backward",
                                  "row_sum",     "knn_query"};
  std::size_t id = 0;
  for (const char* name : released) EXPECT_EQ(op_table()[id++].name, name);
}

TEST(Table, EveryOpIsComplete) {
  for (const Op& op : op_table()) {
    SCOPED_TRACE(op.name);
    EXPECT_EQ(find_op(op.name), &op);
    EXPECT_NE(op.cpu, nullptr);
    EXPECT_EQ(op.cuda != nullptr, has_cuda_kernels());
    EXPECT_FALSE(op.spec.summary.empty());
    EXPECT_FALSE(op.spec.definition.empty());
  }
  EXPECT_EQ(find_op("no_such_op"), nullptr);
  EXPECT_EQ(find_op("relu_backward")->onnx_type, "ReluBackward");
}

TEST(Table, ErrorsNameTheOp) {
  const auto expect_refused = [](const char* name, auto change, const std::string& sentence) {
    std::vector<Op> table(op_table().begin(), op_table().end());
    EXPECT_NO_THROW(check_table(table));
    change(*std::ranges::find(table, std::string_view(name), &Op::name));
    try {
      check_table(table);
      ADD_FAILURE() << sentence;
    } catch (const std::invalid_argument& error) {
      EXPECT_EQ(error.what(), sentence);
    }
  };
  expect_refused(
      "relu", [](Op& op) { op.spec.gradient = "x = mul(grad_y, none)"; },
      "relu: the gradient passes none for b of mul, which is required");
  expect_refused(
      "linear_gelu", [](Op& op) { op.spec.gradient = "as gelu"; },
      "linear_gelu: the gradient names no op of its form");
  expect_refused(
      "scale", [](Op& op) { op.name = "no_scale"; },
      "tanh_backward: the gradient calls scale, which is not in the table");
  expect_refused(
      "softmax", [](Op& op) { op.onnx_type = "Tanh"; }, "softmax: tanh has the ONNX type Tanh too");
  expect_refused("tanh", [](Op& op) { op.spec.dtypes = {}; }, "tanh: T has no dtypes");
}

}  // namespace
}  // namespace cudarelu
