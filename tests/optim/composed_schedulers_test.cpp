#include <levin/core/optim/composed_schedulers.h>

#include <levin/core/base/error.h>
#include <levin/core/optim/decay_schedulers.h>
#include <levin/core/optim/reduce_on_plateau_scheduler.h>

#include "scheduler_problem.h"

#include <gtest/gtest.h>

namespace levin::optim {
namespace {

std::vector<Config> parts(const std::string& yaml) { return Config::parse(yaml, {.source = "test"}).items(); }

MakeScheduler chained(const std::string& yaml) {
  return [yaml] { return std::make_shared<ChainedScheduler>(ChainedOptions{.schedulers = parts(yaml)}); };
}

MakeScheduler sequential(const std::string& yaml, const std::vector<int64_t>& milestones) {
  return [=] {
    return std::make_shared<SequentialScheduler>(
        SequentialOptions{.schedulers = parts(yaml), .milestones = milestones});
  };
}

const char* const kWarmup = "{name: linear_warmup, start_factor: 0.2, total_iters: 4}";

TEST(ComposedSchedulers, FollowPyTorch) {
  expect_sequence("chained", chained("[" + std::string(kWarmup) + ", {exponential: {gamma: 0.9}}]"));
  expect_sequence("chained_cosine",
                  chained("[{name: cosine, t_max: 6, eta_min: 0.001}, {name: step, step_size: 4, gamma: 0.5}]"));
  expect_sequence(
      "sequential",
      sequential("[" + std::string(kWarmup) + ", {name: cosine, t_max: 8}, {name: exponential, gamma: 0.8}]", {4, 12}));
  expect_sequence("sequential_decay",
                  sequential("[" + std::string(kWarmup) +
                                 ", {step: {step_size: 2, gamma: 0.5}}, {multi_step: {milestones: [3]}}, "
                                 "{cosine_warm_restarts: {t_0: 3}}]",
                             {5, 9, 14}));
}

TEST(ComposedSchedulers, ASequenceGivesEachPartTheStepsBetweenItsMilestones) {
  auto optimizer = make_two_groups();
  SequentialScheduler scheduler({.schedulers = parts("[linear_warmup, cosine]"), .milestones = {5}});
  EXPECT_NE(error_of([&] { scheduler.attach(*optimizer); }).find("'cosine' needs t_max"), std::string::npos);
  scheduler.set_estimated_total(25);
  scheduler.attach(*optimizer);
  for (int i = 0; i < 15; ++i) scheduler.step();
  EXPECT_NEAR(scheduler.last_lr()[0], 0.05, 1e-12);  // half of the twenty steps that are left to it
  for (int i = 15; i < 25; ++i) scheduler.step();
  EXPECT_NEAR(scheduler.last_lr()[0], 0, 1e-12);
}

TEST(ComposedSchedulers, MayHoldEachOther) {
  auto optimizer = make_two_groups();
  auto inner = std::make_shared<ChainedScheduler>(
      ChainedOptions{.schedulers = parts("[{name: exponential, gamma: 0.5}, {name: exponential, gamma: 0.5}]")});
  SequentialScheduler outer({std::make_shared<LinearWarmupScheduler>(LinearWarmupOptions{}), inner}, {3});
  outer.attach(*optimizer);
  for (int i = 0; i < 4; ++i) outer.step();
  EXPECT_NEAR(outer.last_lr()[0], 0.1 * 0.25, 1e-15);
}

TEST(ComposedSchedulers, RefuseWhatCannotBeComposed) {
  EXPECT_NE(error_of([] { ChainedScheduler(ChainedOptions{}); }).find("no schedulers"), std::string::npos);
  EXPECT_NE(error_of([] { ChainedScheduler({.schedulers = parts("[reduce_on_plateau]")}); }).find("follows a metric"),
            std::string::npos);
  EXPECT_NE(error_of([] { SequentialScheduler({.schedulers = parts("[step, cosine]")}); }).find("got 0 for 2"),
            std::string::npos);
  EXPECT_THROW(SequentialScheduler({.schedulers = parts("[step, step, step]"), .milestones = {4, 2}}), ConfigError);
  const std::string message = error_of([] { ChainedScheduler({.schedulers = parts("[{name: cosin}]")}); });
  EXPECT_NE(message.find("unknown scheduler 'cosin'; did you mean 'cosine'?"), std::string::npos) << message;
  EXPECT_NE(error_of([] { ChainedScheduler({.schedulers = parts("[{name: step, step_siz: 3}]")}); }).find("step_size"),
            std::string::npos);
}

}  // namespace
}  // namespace levin::optim
