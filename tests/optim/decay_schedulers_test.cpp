#include <levin/core/optim/decay_schedulers.h>

#include <levin/core/base/error.h>

#include "scheduler_problem.h"

#include <gtest/gtest.h>

namespace levin::optim {
namespace {

TEST(DecaySchedulers, FollowPyTorch) {
  expect_sequence("step", scheduler_with<StepScheduler>({.step_size = 3, .gamma = 0.5}));
  expect_sequence("multi_step", scheduler_with<MultiStepScheduler>({.milestones = {2, 5, 5, 9}, .gamma = 0.3}));
  expect_sequence("exponential", scheduler_with<ExponentialScheduler>({.gamma = 0.9}));
  expect_sequence("linear_warmup",
                  scheduler_with<LinearWarmupScheduler>({.start_factor = 0.1, .end_factor = 0.9, .total_iters = 6}));
  expect_sequence("linear_warmup_default", scheduler_with<LinearWarmupScheduler>({}));
  expect_sequence("cosine", scheduler_with<CosineScheduler>({.t_max = 7, .eta_min = 0.001}));
  expect_sequence("cosine_one", scheduler_with<CosineScheduler>({.t_max = 1}));
  expect_sequence("cosine_warm_restarts",
                  scheduler_with<CosineWarmRestartsScheduler>({.t_0 = 4, .t_mult = 2, .eta_min = 0.002}));
  expect_sequence("cosine_warm_restarts_even", scheduler_with<CosineWarmRestartsScheduler>({.t_0 = 5}));
}

TEST(DecaySchedulers, ALambdaIsAFactorOfTheBaseLearningRate) {
  expect_sequence("lambda", [] {
    return std::make_shared<LambdaScheduler>([](int64_t n) { return 1.0 / (1.0 + static_cast<double>(n)); });
  });
  expect_sequence("lambda_groups", [] {
    return std::make_shared<LambdaScheduler>(std::vector<LambdaScheduler::Function>{
        [](int64_t n) { return std::pow(0.5, n); }, [](int64_t n) { return 1.0 + static_cast<double>(n); }});
  });
  auto optimizer = make_two_groups();
  LambdaScheduler three(std::vector<LambdaScheduler::Function>(3, [](int64_t) { return 1.0; }));
  EXPECT_NE(error_of([&] { three.attach(*optimizer); }).find("got 3 functions for 2 groups"), std::string::npos);
}

TEST(DecaySchedulers, CosineTakesTheLengthOfTheRun) {
  auto optimizer = make_two_groups();
  CosineScheduler scheduler({});
  const std::string message = error_of([&] { scheduler.attach(*optimizer); });
  EXPECT_NE(message.find("needs t_max because the length of the run is not known"), std::string::npos) << message;
  scheduler.set_estimated_total(10);
  scheduler.attach(*optimizer);
  for (int i = 0; i < 10; ++i) {
    EXPECT_GT(scheduler.last_lr()[0], 1e-4);
    scheduler.step();
  }
  EXPECT_NEAR(scheduler.last_lr()[0], 0, 1e-15);
}

TEST(DecaySchedulers, AGroupAddedLaterStartsFromItsOwnLearningRate) {
  auto optimizer = make_two_groups();
  ExponentialScheduler scheduler({.gamma = 0.5});
  scheduler.attach(*optimizer);
  scheduler.step();
  optimizer->add_param_group(
      {{at::ones({2}, at::kDouble)}, std::make_unique<GroupOptions<SGDOptions>>(SGDOptions{.lr = 8})});
  scheduler.step();
  EXPECT_EQ(scheduler.last_lr(), (std::vector<double>{0.025, 0.01, 4}));
}

TEST(DecaySchedulers, RefuseOptionsOutOfRange) {
  EXPECT_NE(error_of([] { StepScheduler({.step_size = 0}); }).find("step.step_size must be at least 1; got 0"),
            std::string::npos);
  EXPECT_THROW(MultiStepScheduler({.milestones = {3, 0}}), ConfigError);
  EXPECT_THROW(LinearWarmupScheduler({.start_factor = 0}), ConfigError);
  EXPECT_THROW(CosineScheduler({.t_max = 0}), ConfigError);
  EXPECT_NE(error_of([] { ExponentialScheduler({}).step(); }).find("before it was attached"), std::string::npos);
  EXPECT_NE(error_of([] {
              ExponentialScheduler scheduler({});
              scheduler.Scheduler::step(0.5);
            }).find("without a metric"),
            std::string::npos);
}

}  // namespace
}  // namespace levin::optim
