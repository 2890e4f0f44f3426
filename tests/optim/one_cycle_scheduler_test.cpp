#include <levin/core/optim/one_cycle_scheduler.h>

#include <levin/core/base/error.h>
#include <levin/core/optim/adagrad.h>
#include <levin/core/optim/adam.h>

#include "scheduler_problem.h"

#include <gtest/gtest.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

namespace levin::optim {
namespace {

MakeScheduler with(const OneCycleOptions& options) {
  return [options] { return std::make_shared<OneCycleScheduler>(options); };
}

TEST(OneCycleScheduler, FollowsPyTorch) {
  expect_sequence("one_cycle", with({.max_lr = 0.5, .total_steps = 20}));
  expect_sequence("one_cycle_linear", with({.max_lr = 0.5,
                                            .total_steps = 20,
                                            .pct_start = 0.25,
                                            .anneal_strategy = "linear",
                                            .base_momentum = 0.8,
                                            .max_momentum = 0.99,
                                            .div_factor = 10,
                                            .final_div_factor = 100}));
  expect_sequence("one_cycle_three_phase",
                  with({.max_lr = 0.5, .total_steps = 20, .cycle_momentum = false, .three_phase = true}));
}

TEST(OneCycleScheduler, RisesAndFallsOnceAndRefusesToGoOn) {
  auto optimizer = make_two_groups();
  OneCycleScheduler scheduler({.total_steps = 10});
  scheduler.attach(*optimizer);
  std::vector<double> rates = {scheduler.last_lr()[0]};
  for (int i = 1; i < 10; ++i) {
    scheduler.step();
    rates.push_back(scheduler.last_lr()[0]);
  }
  const auto peak = std::max_element(rates.begin(), rates.end());
  EXPECT_TRUE(std::is_sorted(rates.begin(), peak));
  EXPECT_TRUE(std::is_sorted(peak, rates.end(), std::greater<>()));
  EXPECT_NEAR(*peak, 0.1, 1e-12);  // each group's own learning rate
  scheduler.step();
  const std::string message = error_of([&] { scheduler.step(); });
  EXPECT_NE(message.find("stepped beyond its end; got step 11; valid: up to total_steps, 10"), std::string::npos)
      << message;
}

TEST(OneCycleScheduler, CyclesTheMomentumOfAnyOptimizerThatHasOne) {
  const auto params = Problem::make_parameters();
  const OneCycleOptions options{.max_lr = 0.5, .total_steps = 10};
  AdamW adamw(params);
  OneCycleScheduler(options).attach(adamw);
  EXPECT_EQ(adamw.group_options(0).betas, (std::array<double, 2>{0.95, 0.999}));

  torch::optim::SGD sgd(params, torch::optim::SGDOptions(0.1).momentum(0.9));
  OneCycleScheduler(options).attach(sgd);
  EXPECT_EQ(static_cast<torch::optim::SGDOptions&>(sgd.param_groups()[0].options()).momentum(), 0.95);

  torch::optim::AdamW torch_adamw(params);
  OneCycleScheduler(options).attach(torch_adamw);
  EXPECT_EQ(std::get<0>(static_cast<torch::optim::AdamWOptions&>(torch_adamw.param_groups()[0].options()).betas()),
            0.95);

  Adagrad adagrad(params);
  EXPECT_NE(error_of([&] { OneCycleScheduler(options).attach(adagrad); }).find("set cycle_momentum to false"),
            std::string::npos);
}

TEST(OneCycleScheduler, NeedsALengthAndOneStepIsEnough) {
  auto optimizer = make_two_groups();
  OneCycleScheduler scheduler({});
  EXPECT_NE(error_of([&] { scheduler.attach(*optimizer); }).find("needs total_steps"), std::string::npos);
  scheduler.set_estimated_total(1);
  scheduler.attach(*optimizer);
  scheduler.step();
  for (const double rate : scheduler.last_lr()) EXPECT_TRUE(std::isfinite(rate));
}

}  // namespace
}  // namespace levin::optim
