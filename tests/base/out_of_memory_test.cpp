#include <levin/core/base/out_of_memory.h>

#include <gtest/gtest.h>

#include <new>
#include <stdexcept>

namespace levin {
namespace {

TEST(OutOfMemory, ASizeThatNoMemoryHasIsAMistakeOfTheProgram) {
  const auto is_called_so = [](const auto& error) { return is_out_of_memory(std::make_exception_ptr(error)); };
  EXPECT_TRUE(is_called_so(std::bad_alloc()));
  EXPECT_TRUE(is_called_so(OutOfMemoryError("16 runs out of memory")));
  EXPECT_FALSE(is_called_so(std::bad_array_new_length()));
  EXPECT_FALSE(is_called_so(std::length_error("vector")));
}

}  // namespace
}  // namespace levin
