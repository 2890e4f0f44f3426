#include <levin/core/optim/schedulers.h>

#include <levin/core/base/error.h>
#include <levin/core/optim/adam.h>
#include <levin/core/optim/decay_schedulers.h>
#include <levin/core/optim/optimizer_config.h>

#include "scheduler_problem.h"

#include <gtest/gtest.h>
#include <torch/optim/sgd.h>

namespace levin::optim {
namespace {

TEST(Schedulers, EveryNameMakesAScheduler) {
  const std::vector<std::string> names = {"step",
                                          "multi_step",
                                          "exponential",
                                          "cosine",
                                          "cosine_warm_restarts",
                                          "linear_warmup",
                                          "polynomial",
                                          "constant",
                                          "inverse_square_root",
                                          "warmup_stable_decay",
                                          "cyclic",
                                          "one_cycle",
                                          "chained",
                                          "sequential",
                                          "reduce_on_plateau"};
  EXPECT_EQ(scheduler_registry().names(), names);
  for (const auto& name : names) {
    Config options;
    if (name == "chained" || name == "sequential") options = Config::parse("{schedulers: [step]}", {});
    auto scheduler = make_scheduler({.name = name, .monitor = "loss", .options = options}, 20);
    auto optimizer = make_two_groups();
    scheduler->attach(*optimizer);
    if (scheduler->needs_metric())
      scheduler->step(1.0);
    else
      scheduler->step();
    EXPECT_EQ(scheduler->init_name(), name);
  }
}

TEST(Schedulers, NoNameIsNoScheduler) {
  EXPECT_EQ(make_scheduler({}, 10), nullptr);
  EXPECT_FALSE(SchedulerConfig{});
  EXPECT_TRUE(SchedulerConfig{.name = "step"});
}

TEST(Schedulers, WrongConfigurationsAreNamed) {
  EXPECT_NE(error_of([] { make_scheduler({.name = "exponental"}, 10); }).find("did you mean 'exponential'?"),
            std::string::npos);
  EXPECT_NE(error_of([] {
              make_scheduler({.name = "cosine", .options = Config::parse("{tmax: 3}", {.source = "here"})}, 10);
            }).find("t_max"),
            std::string::npos);
  EXPECT_NE(
      error_of([] { make_scheduler({.name = "reduce_on_plateau"}, 10); }).find("'reduce_on_plateau' needs `monitor`"),
      std::string::npos);
  EXPECT_NE(error_of([] { make_scheduler({.name = "step", .frequency = 0}, 10); }).find("at least 1; got 0"),
            std::string::npos);
  EXPECT_THROW(make_scheduler({.name = "step", .scheduler = std::make_shared<StepScheduler>(StepOptions{})}, 10),
               ConfigError);
  auto optimizer = make_two_groups();
  EXPECT_NE(error_of([&] {
              make_scheduler({.name = "one_cycle"}, -1)->attach(*optimizer);
            }).find("'one_cycle' needs total_steps because the length of the run is not known"),
            std::string::npos);
}

struct HalvingOptions {
  static void describe(Schema<HalvingOptions>& /*schema*/) {}
};
class Halving : public StepwiseScheduler {
 public:
  using Options = HalvingOptions;
  explicit Halving(const Options& /*options*/) {}

 protected:
  double next_lr(size_t /*group*/, double current) const override { return current / 2; }
};

TEST(Schedulers, AUsersSchedulerIsNamedLikeABuiltInOne) {
  Registry<Scheduler> registry("scheduler");
  register_builtin_schedulers(registry);
  registry.add<Halving>("halving");
  auto optimizer = make_two_groups();
  auto scheduler = registry.make("halving", Config::null(), "scheduler");
  scheduler->attach(*optimizer);
  scheduler->step();
  EXPECT_EQ(scheduler->last_lr()[0], 0.05);
}

OptimizerConfigs from_config(const std::shared_ptr<AdamW>& adamw) {
  return levin::OptimizerConfig{.optimizer = adamw,
                                .scheduler = {.name = "cosine", .interval = levin::Interval::kStep}};
}
OptimizerConfigs from_pointer(const std::shared_ptr<AdamW>& adamw) { return adamw; }
OptimizerConfigs from_list(const std::shared_ptr<AdamW>& adamw) {
  const OptimizerConfig config{.optimizer = adamw};
  return {config, config};
}
OptimizerConfigs from_pointers(const std::shared_ptr<AdamW>& adamw) {
  return {adamw, std::make_shared<torch::optim::SGD>(adamw->param_groups()[0].params(), 0.1)};
}
OptimizerConfigs from_nothing() { return {}; }

TEST(OptimizerConfigs, ComeFromWhatUsersReturn) {
  const auto params = Problem::make_parameters();
  auto adamw = std::make_shared<levin::optim::AdamW>(params, levin::optim::AdamWOptions{.lr = 1e-3});
  const auto one = from_config(adamw);
  ASSERT_EQ(one.size(), 1);
  EXPECT_EQ(one[0].scheduler.name, "cosine");
  EXPECT_EQ(one[0].scheduler.interval, Interval::kStep);
  EXPECT_TRUE(one[0].scheduler.strict);
  EXPECT_EQ(from_pointer(adamw).at(0).optimizer, adamw);
  EXPECT_EQ(from_list(adamw).size(), 2);
  EXPECT_EQ(from_pointers(adamw).size(), 2);
  EXPECT_TRUE(from_nothing().empty());
}

}  // namespace
}  // namespace levin::optim
