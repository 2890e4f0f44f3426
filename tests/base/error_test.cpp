#include <levin/core/base/error.h>

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace levin {
namespace {

TEST(ErrorTest, TellsTheComponent) {
  const Error error("optim", "lr must be above 0; got -1");
  EXPECT_STREQ(error.what(), "[optim] lr must be above 0; got -1");
  EXPECT_EQ(error.component(), "optim");
}

TEST(ErrorTest, NamesFromFilesAreEscaped) {
  EXPECT_STREQ(Error("weights", "no tensor '\x1b]0;title\x07'; hint: look").what(),
               "[weights] no tensor '\\x1b]0;title\\x07'; hint: look");
  EXPECT_STREQ(ConfigError("unknown option 'a\rb'").what(), "[config] unknown option 'a\\x0db'");
}

TEST(ErrorTest, ConfigErrorIsAnErrorOfTheComponentConfig) {
  try {
    throw ConfigError("wrong");
  } catch (const Error& error) {
    EXPECT_EQ(error.component(), "config");
    EXPECT_STREQ(error.what(), "[config] wrong");
  }
}

TEST(ErrorTest, BrokenInvariantNamesConditionAndPlace) {
  const int answer = 41;
  try {
    LEVIN_CHECK(answer == 42, "the answer is wrong");
    FAIL() << "no exception";
  } catch (const InternalError& error) {
    const std::string message = error.what();
    EXPECT_NE(message.find("the answer is wrong"), std::string::npos);
    EXPECT_NE(message.find("answer == 42"), std::string::npos);
    EXPECT_NE(message.find("error_test.cpp"), std::string::npos);
  }
  EXPECT_NO_THROW(LEVIN_CHECK(answer == 41, "never"));
}

TEST(NearestNameTest, FindsTypingErrors) {
  const std::vector<std::string> names = {"max_epochs", "min_epochs", "max_steps", "devices"};
  EXPECT_EQ(nearest_name("max_epoch", names), "max_epochs");
  EXPECT_EQ(nearest_name("mx_epochs", names), "max_epochs");
  EXPECT_EQ(nearest_name("device", names), "devices");
  EXPECT_EQ(nearest_name("max_epochs", names), "max_epochs");
}

TEST(NearestNameTest, IsSilentWhereNothingIsNear) {
  const std::vector<std::string> names = {"max_epochs", "devices"};
  EXPECT_EQ(nearest_name("learning_rate", names), "");
  EXPECT_EQ(nearest_name("anything", {}), "");
}

TEST(NearestNameTest, ShortNamesAreNotReplacedByWhollyDifferentOnes) {
  const std::vector<std::string> names = {"lr", "csv"};
  EXPECT_EQ(nearest_name("ls", names), "lr");
  EXPECT_EQ(nearest_name("ab", names), "");
}

TEST(NearestNameTest, HintListsTheValidNames) {
  const std::vector<std::string> names = {"csv", "tensorboard"};
  EXPECT_EQ(valid_names_hint("tensorbord", names), "; did you mean 'tensorboard'?; valid: csv, tensorboard");
  EXPECT_EQ(valid_names_hint("mlflow_server", names), "; valid: csv, tensorboard");
  EXPECT_EQ(valid_names_hint("csv", {}), "");
}

TEST(JoinTest, SeparatesParts) {
  EXPECT_EQ(join(std::vector<std::string>{}), "");
  EXPECT_EQ(join(std::vector<std::string>{"a"}), "a");
  EXPECT_EQ(join(std::vector<std::string>{"a", "", "c"}, "|"), "a||c");
}

}  // namespace
}  // namespace levin
