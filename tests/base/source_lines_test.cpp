#include <levin/core/base/source_lines.h>

#include <levin/core/base/error_notes.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <stdexcept>
#include <string>
#include <vector>

// CMakeLists.txt has this file compiled with debug information.

namespace app {
namespace {

struct Lookup {
  static constexpr int kLine = __LINE__ + 1;
  [[gnu::noinline]] static int find(const std::map<int, int>& values, int key) { return values.at(key); }
};

/// The lines of an error thrown by a function.
template <class Function>
std::vector<std::string> lines_of_error(const Function& function) {
  try {
    levin::noting_errors(function, [](levin::ErrorNotes&) {});
  } catch (const std::exception&) {
    return levin::user_source_lines(levin::take_error_notes(std::current_exception()).stack);
  }
  return {};
}

TEST(SourceLines, AreThoseOfTheUsersFunctions) {
#ifndef LEVIN_HAS_SOURCE_LINES
  GTEST_SKIP() << "Levin was built without libdw";
#endif
  const int here = __LINE__ + 1;
  const auto lines = lines_of_error([] { return Lookup::find({{1, 2}}, 3); });
  ASSERT_GE(lines.size(), 2U);
  EXPECT_THAT(lines[0],
              ::testing::HasSubstr("source_lines_test.cpp:" + std::to_string(Lookup::kLine) + " in Lookup::find"));
  EXPECT_THAT(lines[1], ::testing::HasSubstr("source_lines_test.cpp:" + std::to_string(here)));
  for (const std::string& line : lines) {
    EXPECT_THAT(line, ::testing::Not(::testing::HasSubstr("stl_map.h")));
    EXPECT_THAT(line, ::testing::Not(::testing::HasSubstr("error_notes.h")));
    EXPECT_THAT(line, ::testing::Not(::testing::HasSubstr("gtest")));
  }
}

TEST(SourceLines, NothingWithoutAStack) { EXPECT_TRUE(levin::user_source_lines({}).empty()); }

}  // namespace
}  // namespace app
