#include <levin/core/base/flat_config.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace levin {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

FlatConfig flat(const std::string& yaml) { return flatten(Config::parse(yaml, {.source = "test"})); }

TEST(FlatConfigTest, PathsAreThoseOfTheCommandLine) {
  const FlatConfig expected{{"seed", "1"},
                            {"model.layers", "[1, 2]"},
                            {"trainer.callbacks.progress_bar", "{}"},
                            {"trainer.callbacks.early_stopping.patience", "3"},
                            {"trainer.callbacks.early_stopping#2.patience", "4"},
                            {"trainer.logger", "[csv, tensorboard]"},
                            {"empty", "{}"},
                            {"nothing", "null"}};
  EXPECT_EQ(flat("seed: 1\nmodel: {layers: [1, 2]}\ntrainer:\n  callbacks:\n    - progress_bar\n"
                 "    - early_stopping: {patience: 3}\n    - early_stopping: {patience: 4}\n"
                 "  logger: [csv, tensorboard]\nempty: {}\nnothing: null\n"),
            expected);
  EXPECT_THAT(flatten(Config()), IsEmpty());
}

TEST(FlatConfigTest, DifferencesAreValuesAndMissingPaths) {
  const auto rows = compare_configs({flat("a: 1\nb: 2\nc: 3"), flat("a: 1\nb: 5\nd: null"), flat("a: 1\nb: 2\nc: 3")});
  ASSERT_EQ(rows.size(), 4u);
  EXPECT_EQ(rows[0].path, "a");
  EXPECT_FALSE(rows[0].differs);
  EXPECT_EQ(rows[1].path, "b");
  EXPECT_TRUE(rows[1].differs);
  EXPECT_THAT(rows[1].values, ElementsAre("2", "5", "2"));
  EXPECT_EQ(rows[2].path, "c");
  EXPECT_TRUE(rows[2].differs);
  EXPECT_THAT(rows[2].values, ElementsAre("3", std::nullopt, "3"));
  EXPECT_EQ(rows[3].path, "d");
  EXPECT_TRUE(rows[3].differs);
  EXPECT_THAT(compare_configs({}), IsEmpty());
}

}  // namespace
}  // namespace levin
