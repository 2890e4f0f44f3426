#include <levin/core/sweep/plan.h>

#include <levin/core/base/error.h>

#include <gmock/gmock-matchers.h>

#include <cmath>
#include <set>
#include <string>
#include <vector>

namespace levin::sweep {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

SweepOptions options_of(const std::string& yaml) {
  return parse_options<SweepOptions>(Config::parse(yaml, {.source = "sweep.yaml"}), "sweep");
}

std::vector<std::string> runs_of(const std::string& yaml, int64_t seed = 0) {
  std::vector<std::string> texts;
  for (const Settings& run : make_plan(options_of(yaml), seed).runs) texts.push_back(describe(run));
  return texts;
}

std::string error_of(const std::string& yaml) {
  try {
    make_plan(options_of(yaml), 0);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "no error";
}

TEST(SweepPlan, AGridIsEveryCombinationAndItsFirstOptionVariesSlowest) {
  EXPECT_THAT(runs_of("grid: {model.lr: [0.1, 0.2], data.batch_size: [8, 16]}"),
              ElementsAre("model.lr=0.1, data.batch_size=8", "model.lr=0.1, data.batch_size=16",
                          "model.lr=0.2, data.batch_size=8", "model.lr=0.2, data.batch_size=16"));
}

TEST(SweepPlan, OptionsMayBeWrittenAsMappingsInsideEachOther) {
  EXPECT_EQ(runs_of("grid: {model: {lr: [0.1, 0.2]}, data.batch_size: [8]}"),
            runs_of("grid: {model.lr: [0.1, 0.2], data.batch_size: [8]}"));
}

TEST(SweepPlan, EachEntryOfTheListComesWithEachCombinationOfTheGrid) {
  const Plan plan = make_plan(options_of("{list: [{model.name: mlp}, {model.name: cnn, model.channels: 8}],"
                                         " grid: {seed: [1, 2]}}"),
                              0);
  EXPECT_THAT(plan.options, ElementsAre("model.name", "model.channels", "seed"));
  std::vector<std::string> texts;
  for (const Settings& run : plan.runs) texts.push_back(describe(run));
  EXPECT_THAT(
      texts, ElementsAre("model.name=mlp, seed=1", "model.name=mlp, seed=2", "model.name=cnn, model.channels=8, seed=1",
                         "model.name=cnn, model.channels=8, seed=2"));
}

TEST(SweepPlan, DrawsAreTheSameEachTimeInTheirBoundsAndLogUniformOnes) {
  const std::string yaml =
      "{random: {model.lr: {log_uniform: [0.0001, 0.1]}, model.hidden: {int_uniform: [3, 5]},"
      " model.kind: {choice: [relu, tanh]}, model.dropout: {uniform: [0, 0.5]}}, samples: 300, sample_seed: 4}";
  const auto runs = make_plan(options_of(yaml), 0).runs;
  ASSERT_EQ(runs.size(), 300u);
  EXPECT_EQ(runs_of(yaml), runs_of(yaml));
  int64_t below_middle = 0;
  std::set<std::string> widths;
  std::set<std::string> kinds;
  for (const Settings& run : runs) {
    const double rate = std::stod(find_setting(run, "model.lr")->value.text());
    EXPECT_GE(rate, 0.0001);
    EXPECT_LE(rate, 0.1);
    if (rate < std::sqrt(0.0001 * 0.1)) ++below_middle;
    widths.insert(find_setting(run, "model.hidden")->value.text());
    kinds.insert(find_setting(run, "model.kind")->value.text());
    EXPECT_LE(std::stod(find_setting(run, "model.dropout")->value.text()), 0.5);
  }
  // Half of them, give or take four standard deviations.
  EXPECT_NEAR(static_cast<double>(below_middle), 150.0, 35.0);
  EXPECT_THAT(widths, ElementsAre("3", "4", "5"));
  EXPECT_THAT(kinds, ElementsAre("relu", "tanh"));
}

TEST(SweepPlan, AnOptionThatAppliesOnlyWithAnotherMakesNoFurtherRunsWithoutIt) {
  EXPECT_THAT(runs_of("{grid: {model.name: [mlp, cnn], model.channels: [8, 16]},"
                      " only_when: {model.channels: {model.name: cnn}}}"),
              ElementsAre("model.name=mlp", "model.name=cnn, model.channels=8", "model.name=cnn, model.channels=16"));
}

TEST(SweepPlan, ExcludedCombinationsAreLeftOutHoweverTheirNumbersAreWritten) {
  EXPECT_THAT(runs_of("{grid: {model.lr: [0.1, 0.01], data.batch_size: [8, 16, 32]},"
                      " exclude: [{model.lr: 1e-1, data.batch_size: [16, 32]}]}"),
              ElementsAre("model.lr=0.1, data.batch_size=8", "model.lr=0.01, data.batch_size=8",
                          "model.lr=0.01, data.batch_size=16", "model.lr=0.01, data.batch_size=32"));
}

TEST(SweepPlan, EqualCombinationsAreOneRunHoweverTheyAreWritten) {
  EXPECT_THAT(runs_of("{grid: {model.lr: [0.1, 1e-1, 0.2, 0.10]}}"), ElementsAre("model.lr=0.1", "model.lr=0.2"));
  EXPECT_THAT(runs_of("{list: [{model.lr: 1, data.seed: 2}, {data.seed: 2.0, model.lr: 1.0}, {model.lr: 1}]}"),
              ElementsAre("model.lr=1, data.seed=2", "model.lr=1"));
  EXPECT_THAT(runs_of("{random: {model.kind: {choice: [relu]}}, samples: 5, repeats: 2}"),
              ElementsAre("model.kind=relu, seed=0", "model.kind=relu, seed=1"));
  // Integers that float64 does not hold are different ones.
  EXPECT_THAT(runs_of("{grid: {seed: [9007199254740992, 9007199254740993]}}"),
              ElementsAre("seed=9007199254740992", "seed=9007199254740993"));
}

TEST(SweepPlan, RepeatsFollowEachOtherWithSeedsFromTheFirstOn) {
  EXPECT_THAT(
      runs_of("{grid: {model.lr: [0.1, 0.2]}, repeats: 2}", 42),
      ElementsAre("model.lr=0.1, seed=42", "model.lr=0.1, seed=43", "model.lr=0.2, seed=42", "model.lr=0.2, seed=43"));
}

TEST(SweepPlan, WhatMakesNoPlanIsRefusedWithItsReason) {
  EXPECT_THAT(error_of("{}"), HasSubstr("nothing varies: grid, list and random are empty"));
  EXPECT_THAT(error_of("grid: {}"), HasSubstr("nothing varies"));
  EXPECT_THAT(error_of("grid: {model.lr: []}"), HasSubstr("sweep.grid.model.lr is empty"));
  EXPECT_THAT(error_of("grid: {model.lr: 0.1}"),
              HasSubstr("sweep.grid.model.lr: expected a list of values; got '0.1'"));
  EXPECT_THAT(error_of("{grid: {model.lr: [1]}, exclude: [{model.lr: 1}]}"),
              HasSubstr("leaves out all of the 1 combinations"));
  EXPECT_THAT(error_of("{grid: {model.lr: [1]}, list: [{model.lr: 2}]}"), HasSubstr("model.lr is varied twice"));
  EXPECT_THAT(error_of("{grid: {model.lr: [1]}, exclude: [{model.lrr: 1}]}"), HasSubstr("did you mean 'model.lr'?"));
  EXPECT_THAT(error_of("random: {model.lr: {log_unform: [1, 2]}}"), HasSubstr("did you mean 'log_uniform'?"));
  EXPECT_THAT(error_of("random: {model.lr: {log_uniform: [0, 2]}}"), HasSubstr("must be above 0; got [0, 2]"));
  EXPECT_THAT(error_of("random: {model.lr: {uniform: [2, 1]}}"), HasSubstr("must be [smallest, largest]"));
  EXPECT_THAT(error_of("random: {model.lr: 3}"), HasSubstr("expected a distribution such as"));
  EXPECT_THAT(error_of("{grid: {seed: [1]}, repeats: 2}"), HasSubstr("the sweep varies seed already"));
  EXPECT_THAT(error_of("grid: {a.a: [1, 2, 3, 4, 5, 6, 7, 8, 9, 10], a.b: [1, 2, 3, 4, 5, 6, 7, 8, 9, 10],"
                       " a.c: [1, 2, 3, 4, 5, 6, 7, 8, 9, 10], a.d: [1, 2, 3, 4, 5, 6, 7, 8, 9, 10],"
                       " a.e: [1, 2, 3, 4, 5, 6, 7, 8, 9, 10], a.f: [1, 2]}"),
              HasSubstr("more than 100000 runs"));
}

}  // namespace
}  // namespace levin::sweep
