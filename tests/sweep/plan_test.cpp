#include <levin/core/sweep/plan.h>

#include <levin/core/base/error.h>
#include <levin/core/base/schema.h>
#include <levin/core/options/option_types.h>

#include <gmock/gmock-matchers.h>

#include <algorithm>
#include <cmath>
#include <optional>
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

/// Options of several types, as those of a program.
struct TypedOptions {
  std::string name = "mlp";
  double lr = 0;
  std::string tag = "";
  std::optional<std::string> note = {};
  int64_t width = 0;
  bool bias = true;
  std::vector<double> betas = {};
  TimeLimit time = "00:00:01:00";
  Config extras = {};

  static void describe(Schema<TypedOptions>& schema) {
    using O = TypedOptions;
    schema.field("name", &O::name, "");
    schema.field("lr", &O::lr, "");
    schema.field("tag", &O::tag, "");
    schema.field("note", &O::note, "");
    schema.field("width", &O::width, "");
    schema.field("bias", &O::bias, "");
    schema.field("betas", &O::betas, "");
    schema.field("time", &O::time, "");
    schema.field("extras", &O::extras, "");
  }
};

/// Options of `model` have the types of TypedOptions, all others any.
Config resolve_typed(const Settings& settings) {
  Config model = Config::mapping();
  Config all = Config::mapping();
  for (const auto& [option, value] : settings) {
    std::string name = option.starts_with("model.") ? option.substr(6) : "";
    if (name == "alias") name = "lr";
    const auto known = schema_of<TypedOptions>().names();
    const bool is_typed = std::find(known.begin(), known.end(), name) != known.end();
    (is_typed ? model : all).set(is_typed ? name : option, value);
  }
  all.set("model", schema_of<TypedOptions>().resolve(model, "model"));
  return all;
}

Plan plan_of(const std::string& yaml, int64_t seed = 0) {
  SettingMeanings meanings(resolve_typed);
  return make_plan(options_of(yaml), seed, meanings);
}

std::vector<std::string> runs_of(const std::string& yaml, int64_t seed = 0) {
  std::vector<std::string> texts;
  for (const Settings& run : plan_of(yaml, seed).runs) texts.push_back(describe(run));
  return texts;
}

std::string error_of(const std::string& yaml) {
  try {
    plan_of(yaml);
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
  const Plan plan = plan_of("{list: [{model.name: mlp}, {model.name: cnn, model.channels: 8}], grid: {seed: [1, 2]}}");
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
  const auto runs = plan_of(yaml).runs;
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
  EXPECT_THAT(runs_of("{list: [{model.lr: 1, model.width: 2}, {model.width: 02, model.lr: 1.0}, {model.lr: 1}]}"),
              ElementsAre("model.lr=1, model.width=2", "model.lr=1"));
  EXPECT_THAT(runs_of("{random: {model.kind: {choice: [relu]}}, samples: 5, repeats: 2}"),
              ElementsAre("model.kind=relu, seed=0", "model.kind=relu, seed=1"));
  // Integers that float64 does not hold are different ones.
  EXPECT_THAT(runs_of("{grid: {seed: [9007199254740992, 9007199254740993]}}"),
              ElementsAre("seed=9007199254740992", "seed=9007199254740993"));
}

TEST(SweepPlan, TheTypeOfAnOptionDecidesWhatIsEqual) {
  const auto count = [](const std::string& values) { return runs_of("{grid: {" + values + "}}").size(); };
  EXPECT_EQ(count("model.lr: [1.1, 1.10, 0.11e1, .inf, inf]"), 2u);
  EXPECT_EQ(count("model.tag: [1.1, 1.10, 0.11e1, 1, 01, inf, .inf, 1e1, 10]"), 9u);
  EXPECT_EQ(count("model.tag: [1, '1', \"1\"]"), 1u);
  EXPECT_EQ(count("model.note: [1.1, 1.10, null, 'null', ~]"), 4u);
  EXPECT_EQ(count("model.width: [16, 016, +16]"), 1u);
  EXPECT_EQ(count("model.bias: [true, false]"), 2u);
  EXPECT_EQ(count("model.betas: [[0.9, 0.999], [9e-1, 0.9990], [0.9, 0.99]]"), 2u);
  EXPECT_EQ(count("model.time: ['00:01:00:00', '00:00:60:00', '0:01:00:00', '00:01:00:01']"), 2u);
  EXPECT_EQ(count("model.extras: [1.1, 1.10, '1.1']"), 3u) << "of no type";
  EXPECT_EQ(count("model.extras: [a, 'a', {b: 1, c: 2}, {c: 2, b: 1}]"), 2u);
  EXPECT_EQ(count("trainer: [{devices: 2}, {devices: '2'}, {devices: 3}]"), 2u);

  EXPECT_THAT(runs_of("{grid: {model.tag: [1.1, 1.10]}, exclude: [{model.tag: 1.1}]}"), ElementsAre("model.tag=1.10"));
  EXPECT_THAT(runs_of("{grid: {model.tag: [1.1, 1.10], model.lr: [0.1, 0.2]},"
                      " only_when: {model.lr: {model.tag: 1.10}}}"),
              ElementsAre("model.tag=1.1", "model.tag=1.10, model.lr=0.1", "model.tag=1.10, model.lr=0.2"));
  EXPECT_THAT(runs_of("{grid: {model.lr: [0.1, 0.2]}, exclude: [{model.lr: [2e-1, 3e-1]}]}"),
              ElementsAre("model.lr=0.1"));
}

TEST(SweepPlan, ConditionsAndExclusionsSeeWhatTheConfigurationHas) {
  // By default `name` is mlp, and `width` 0.
  EXPECT_THAT(runs_of("{list: [{model.name: mlp}, {model.tag: a}], grid: {model.lr: [0.1, 0.2]},"
                      " only_when: {model.lr: {model.name: mlp}}}"),
              ElementsAre("model.name=mlp, model.lr=0.1", "model.name=mlp, model.lr=0.2", "model.tag=a, model.lr=0.1",
                          "model.tag=a, model.lr=0.2"));
  EXPECT_THAT(runs_of("{list: [{model.width: 8}, {model.tag: a}], grid: {model.lr: [0.1, 0.2]},"
                      " exclude: [{model.width: 0, model.lr: 0.1}]}"),
              ElementsAre("model.width=8, model.lr=0.1", "model.width=8, model.lr=0.2", "model.tag=a, model.lr=0.2"));
}

TEST(SweepPlan, ConditionsThatDependOnEachOtherHoldInAnyOrder) {
  const std::string grid = "{grid: {model.width: [8, 16], model.tag: [a, b], model.lr: [0.1, 0.2]}, only_when: {";
  const std::string lr = "model.lr: {model.tag: a}";
  const std::string tag = "model.tag: {model.width: 8}";
  const auto expected =
      ElementsAre("model.width=8, model.tag=a, model.lr=0.1", "model.width=8, model.tag=a, model.lr=0.2",
                  "model.width=8, model.tag=b", "model.width=16");
  EXPECT_THAT(runs_of(grid + lr + ", " + tag + "}}"), expected);
  EXPECT_THAT(runs_of(grid + tag + ", " + lr + "}}"), expected);
}

TEST(SweepPlan, WhatTheConfigurationSaysAnywayMakesNoFurtherRun) {
  EXPECT_THAT(runs_of("{list: [{model.name: mlp}, {model.width: 0}, {}, {model.width: 1}]}"),
              ElementsAre("model.name=mlp", "model.width=1"));
}

TEST(SweepPlan, AnOptionUnderTwoNamesIsRefused) {
  // `alias` is `lr` once more, as trainer.optimizer.lr is optimizer.lr.
  EXPECT_THAT(error_of("{list: [{model.alias: 5}, {model.alias: 6}], grid: {model.lr: [1, 2]}}"),
              HasSubstr("model.alias has no effect beside the others that vary (model.lr=1)"));
  EXPECT_EQ(error_of("{list: [{model.alias: 5}, {model.alias: 6}], grid: {model.width: [1, 2]}}"), "no error");
}

TEST(SweepPlan, RoundedDrawsStayWithinTheirBounds) {
  for (const char* kind : {"uniform", "log_uniform"}) {
    const std::string yaml = std::string("{random: {model.lr: {") + kind + ": [0.12345649, 0.12345651]}}, samples: 40}";
    for (const Settings& run : plan_of(yaml).runs) {
      const double drawn = std::stod(find_setting(run, "model.lr")->value.text());
      EXPECT_GE(drawn, 0.12345649) << kind;
      EXPECT_LE(drawn, 0.12345651) << kind;
    }
  }
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
