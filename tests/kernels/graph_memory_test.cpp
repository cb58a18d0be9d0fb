// Tests of the workspace of captured calls, with a library in place of NVIDIA's driver. A program
// of its own, since no other test must find that library.
#include "graph_memory.h"

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <optional>

namespace cudarelu::xla {
namespace {

class OtherDriver : public ::testing::Test {
 protected:
  static int ask(const char* name) { return reinterpret_cast<int (*)()>(dlsym(driver, name))(); }
  static int allocations() { return ask("other_driver_allocations"); }

  static inline void* const driver = dlopen(CUDARELU_OTHER_DRIVER, RTLD_NOW);
};

TEST_F(OtherDriver, EachWorkspaceStaysWhereItIs) {
  std::optional<GraphMemory> memory(std::in_place);
  void* const first = memory->take(0, 0, 100);
  void* const second = memory->take(0, 1, 100);
  void* const of_other_device = memory->take(1, 0, 100);
  ASSERT_NE(first, nullptr);
  EXPECT_NE(first, second);
  EXPECT_NE(first, of_other_device);
  EXPECT_EQ(memory->take(0, 0, 60), first);
  EXPECT_EQ(memory->take(0, 1, 100), second);
  EXPECT_EQ(allocations(), 3);
  // Graphs with the smaller one may exist.
  void* const larger = memory->take(0, 0, 200);
  EXPECT_NE(larger, first);
  EXPECT_EQ(memory->take(0, 0, 200), larger);
  EXPECT_EQ(allocations(), 4);
  memory.reset();
  EXPECT_EQ(allocations(), 0);
  EXPECT_EQ(ask("other_driver_mode"), 0) << "the mode of captures was not restored";
}

TEST_F(OtherDriver, AFailureLeavesNothing) {
  GraphMemory memory;
  EXPECT_EQ(memory.take(0, 0, 2'000'000), nullptr);
  EXPECT_NE(memory.take(0, 0, 100), nullptr);
  EXPECT_EQ(allocations(), 1);
}

TEST_F(OtherDriver, TellsWhetherAStreamIsCaptured) {
  int stream = 0;
  EXPECT_TRUE(is_captured(&stream));
  EXPECT_FALSE(is_captured(nullptr));
}

}  // namespace
}  // namespace cudarelu::xla
