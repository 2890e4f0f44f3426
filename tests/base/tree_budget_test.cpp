#include <levin/core/base/tree_budget.h>

#include <levin/core/base/error.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

namespace levin {
namespace {

using ::testing::HasSubstr;

std::string budget_error(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(TreeBudget, CountsLevelsWhileTheyLastAndAllElse) {
  TreeBudget budget("weights", {.depth = 3, .visits = 4, .bytes = 100});
  const auto outer = budget.enter();
  for (int i = 0; i < 5; ++i) {
    const auto second = budget.enter();
    const auto third = budget.enter();
    EXPECT_THAT(budget_error([&] { (void)budget.enter(); }),
                HasSubstr("[weights] values lie too deep inside each other; got more than 3 levels"));
  }
  budget.visit();
  budget.visit(3);
  EXPECT_THAT(budget_error([&] { budget.visit(); }), HasSubstr("they stand for too many; got more than 4"));
  budget.copy(60);
  budget.copy(40);
  EXPECT_THAT(budget_error([&] { budget.copy(1); }), HasSubstr("copied again and again; got more than 100 bytes"));
  EXPECT_THAT(budget_error([&] { budget.copy(~uint64_t{0}); }), HasSubstr("more than 100 bytes"));
  EXPECT_THAT(budget_error([&] { budget.visit(~uint64_t{0}); }), HasSubstr("more than 4"));
}

TEST(TreeBudget, JsonIsMeasuredOutsideOfItsTexts) {
  const auto nested = [](size_t depth, const std::string& open, const std::string& inside, const std::string& close) {
    std::string text;
    for (size_t i = 0; i < depth; ++i) text += open;
    text += inside;
    for (size_t i = 0; i < depth; ++i) text += close;
    return text;
  };
  const std::string brackets(1000, '[');
  EXPECT_FALSE(is_too_deep_json(""));
  EXPECT_FALSE(is_too_deep_json(nested(400, "[", "1", "]")));
  EXPECT_TRUE(is_too_deep_json(nested(401, "[", "1", "]")));
  EXPECT_TRUE(is_too_deep_json(nested(401, "{\"a\":", "1", "}")));
  EXPECT_TRUE(is_too_deep_json(nested(201, "[{\"a\":", "1", "}]")));
  EXPECT_FALSE(is_too_deep_json("[\"" + brackets + "\"]"));
  EXPECT_FALSE(is_too_deep_json("[\"\\\"" + brackets + "\"]")) << "an escaped quote ends no text";
  EXPECT_TRUE(is_too_deep_json("[\"\\\\\"," + brackets)) << "an escaped backslash escapes nothing";
  std::string side_by_side = "[";
  for (int i = 0; i < 1000; ++i) side_by_side += "[],";
  EXPECT_FALSE(is_too_deep_json(side_by_side));
}

}  // namespace
}  // namespace levin
