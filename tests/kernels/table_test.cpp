#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>
#include <stdexcept>
#include <vector>

#include "arguments.h"
#include "cudarelu/detail/boundary.h"

namespace cudarelu::testing {
namespace {

TEST(Table, ContainsTheOpOfEveryFile) {
  std::set<std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(CUDARELU_OPS)) {
    if (entry.path().extension() == ".h") {
      files.insert(entry.path().stem().string());
    }
  }
  std::set<std::string> names;
  for (const Op& op : op_table()) names.emplace(op.name);
  EXPECT_EQ(names, files);
  EXPECT_EQ(names.size(), op_table().size());
}

TEST(Table, EveryOpIsComplete) {
  for (const Op& op : op_table()) {
    SCOPED_TRACE(op.name);
    EXPECT_EQ(find_own(op.name), &op);
    EXPECT_NE(op.cpu, nullptr);
    EXPECT_EQ(op.cuda != nullptr, CUDARELU_TESTS_WITH_CUDA);
    EXPECT_FALSE(op.spec.summary.empty());
    EXPECT_FALSE(op.spec.definition.empty());
  }
  EXPECT_EQ(find_own("no_such_op"), nullptr);
  EXPECT_EQ(find_own("relu_backward")->onnx_type, "ReluBackward");
}

/// Expects that read_module() refuses a module whose op relu is changed, with this sentence.
template <class Change>
void expect_refused(const Change& change, const std::string& sentence) {
  const cudarelu_module& own = *cudarelu_get_module();
  std::vector<cudarelu_op> ops;
  for (std::size_t i = 0; i < own.op_count; ++i) ops.push_back(*own.ops[i]);
  std::vector<const cudarelu_op*> pointers;
  for (const cudarelu_op& op : ops) pointers.push_back(&op);
  cudarelu_module table = own;
  table.ops = pointers.data();
  EXPECT_NO_THROW(read_module(table));
  const auto relu = std::ranges::find_if(ops, [](const cudarelu_op& op) {
    return std::string_view(op.signature).starts_with("relu(");
  });
  change(table, *relu);
  try {
    read_module(table);
    ADD_FAILURE() << sentence;
  } catch (const std::invalid_argument& error) {
    EXPECT_EQ(error.what(), sentence);
  }
}

TEST(Module, IsRefusedWithASentence) {
  const auto with_signature = [](const char* signature) {
    return [=](cudarelu_module&, cudarelu_op& op) { op.signature = signature; };
  };
  expect_refused(with_signature("relu(x: T[*) -> y: T[*]"),
                 "relu: signature: `,` is missing before `) -> y: T[*]` (column 12)");
  expect_refused(with_signature("tanh_(x: T[*]) -> y: T[*]"),
                 "tanh: tanh_ has the ONNX type Tanh too");
  expect_refused(with_signature("tanh(x: T[*]) -> y: T[*]"), "two ops have the name tanh");
  expect_refused([](cudarelu_module&, cudarelu_op& op) { op.definition = " "; },
                 "relu: there is no definition, the op's meaning in ONNX's operators");
  expect_refused([](cudarelu_module&, cudarelu_op& op) { op.dtypes = 0; }, "relu: T has no dtypes");
  expect_refused([](cudarelu_module&, cudarelu_op& op) { op.dtypes = 1u << 30; },
                 "relu: a dtype or a rule for autocast is unknown");
  const auto with_name = [](const char* name) {
    return [=](cudarelu_module& table, cudarelu_op&) { table.name = name; };
  };
  expect_refused(with_name("aten"),
                 "a module cannot have the name aten, which PyTorch uses itself");
  expect_refused(with_name("class"),
                 "a module cannot have the name class, a keyword of C++, Python or gradients");
  expect_refused(
      with_name("My-ops"),
      "a module cannot have the name 'My-ops': a name consists of lower-case letters, digits and "
      "_, and begins with a letter");
  expect_refused(
      [](cudarelu_module& table, cudarelu_op&) { table.version = 2; },
      "the module was built with version 2 of cudarelu/module.h, and this cudarelu reads "
      "version 1: install a newer cudarelu");
  expect_refused(
      [](cudarelu_module& table, cudarelu_op&) { table.version = 0; },
      "the module was built with version 0 of cudarelu/module.h, and this cudarelu reads "
      "version 1: build the module again");
  expect_refused([](cudarelu_module& table, cudarelu_op&) { table.op_count = 0; },
                 "the module cudarelu has no ops");
}

TEST(Module, HasAnAliasWithInputsOfItsOwn) {
  const auto with_inputs = [](const char* inputs) {
    return [=](cudarelu_module&, cudarelu_op& op) {
      op.signature = "relu(x: T[*], y: T[*]?, *, k: int = 2) -> z: T[*]";
      op.in_place = "";
      op.alias_inputs = inputs;
    };
  };
  expect_refused(with_inputs("x, y, q"),
                 "relu: its alias has the input 'q', no input or attribute of the op");
  expect_refused(with_inputs("x,y"),
                 "relu: its alias has the input 'x,y', no input or attribute of the op");
  expect_refused(with_inputs("k, x, k"), "relu: its alias has the input k twice");
  expect_refused(with_inputs("k, x"),
                 "relu: its alias must have all inputs of the op, and 12 inputs at most");

  const Op& knn_query = *find_own("knn_query");
  const std::vector<NodeInput> expected{{true, 0}, {false, 0}, {false, 1}, {false, 2}, {false, 3}};
  EXPECT_EQ(knn_query.alias_inputs, expected);
  EXPECT_EQ(find_own("add")->alias_inputs, inputs_of(*find_own("add")));
}

/// The first modules end before the member.
TEST(Module, IsReadWithoutTheInputsOfAliases) {
  const cudarelu_module& own = *cudarelu_get_module();
  cudarelu_op old = *own.ops[0];
  old.size = offsetof(cudarelu_op, alias_inputs);
  old.alias_inputs = reinterpret_cast<const char*>(1);  // not to be read
  const cudarelu_op* const ops[] = {&old};
  cudarelu_module table = own;
  table.ops = ops;
  table.op_count = 1;
  const auto module = read_module(table);
  const Op& op = module->ops.front();
  EXPECT_EQ(op.alias_inputs, inputs_of(op));
}

/// The first readers do not know the member, and would leave the other matrix out.
TEST(Module, RefusesHostsThatIgnoreTheOtherMatrix) {
  const auto ops = std::span(cudarelu_get_module()->ops, cudarelu_get_module()->op_count);
  const auto linear_add = std::ranges::find_if(ops, [](const cudarelu_op* op) {
    return std::string_view(op->signature).starts_with("linear_add(");
  });
  ASSERT_NE(linear_add, ops.end());
  const std::array<std::int64_t, 2> square{2, 2};
  std::array<float, 4> data{};
  const TensorView matrix{data.data(), DType::float32, square};
  TensorView absent = matrix;
  absent.present = false;
  const std::array inputs{matrix, matrix, matrix, absent};
  const std::array outputs{matrix};
  cudarelu_services services{};
  services.size = offsetof(cudarelu_services, gemm_size);
  cudarelu_call call{};
  call.size = sizeof call;
  call.op = "linear_add";
  call.op_length = std::strlen(call.op);
  call.inputs = to_c(inputs);
  call.input_count = inputs.size();
  call.outputs = to_c(outputs);
  call.output_count = outputs.size();
  call.services = &services;
  cudarelu_error error{};
  EXPECT_EQ((*linear_add)->cpu(&call, &error), CUDARELU_UNAVAILABLE);
  EXPECT_STREQ(error.message,
               "linear_add: this cudarelu is older than the op: it cannot combine a product with "
               "another matrix; update cudarelu");
  Gemm whole{};
  whole.other = data.data();
  cudarelu_gemm gemm = to_c(whole);
  EXPECT_EQ(from_c(gemm).other, data.data());
  gemm.size = offsetof(cudarelu_gemm, other);  // of a module that does not know it
  EXPECT_EQ(from_c(gemm).other, nullptr);
}

TEST(Module, IsKnownByItsName) {
  EXPECT_EQ(find_module("cudarelu"), &own_module());
  EXPECT_EQ(find_module("my"), nullptr);
  EXPECT_EQ(find_same(*read_module(*cudarelu_get_module())), &own_module());
  EXPECT_EQ(find_op("relu", own_module()), find_own("relu"));
  EXPECT_EQ(find_op("cudarelu::relu", own_module()), find_own("relu"));
  EXPECT_EQ(find_op("my::relu", own_module()), nullptr);
}

TEST(Module, IsReadFromAFile) {
  const std::filesystem::path empty = std::filesystem::path(::testing::TempDir()) / "empty.so";
  std::ofstream{empty};
  EXPECT_THROW(open_module(empty), std::invalid_argument);
  EXPECT_THROW(open_module("no_such_file.so"), std::invalid_argument);
  EXPECT_THROW(open_module("libc.so.6"), std::invalid_argument);
}

}  // namespace
}  // namespace cudarelu::testing
