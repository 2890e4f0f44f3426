#include <levin/core/optim/reduce_on_plateau_scheduler.h>

#include <levin/core/base/error.h>

#include "scheduler_problem.h"

#include <gtest/gtest.h>

#include <cmath>

namespace levin::optim {
namespace {

const std::vector<double> kMetrics = {1.0, 0.9, 0.95, 0.95, 0.95, 0.95, 0.8, 0.8, 0.8, 0.8,
                                      0.8, 0.8, 0.8,  0.79, 0.8,  0.8,  0.8, 0.8, 0.8, 0.8};

MakeScheduler with(const ReduceOnPlateauOptions& options) {
  return [options] { return std::make_shared<ReduceOnPlateauScheduler>(options); };
}

TEST(ReduceOnPlateauScheduler, FollowsPyTorch) {
  expect_sequence("reduce_on_plateau", with({.factor = 0.5, .patience = 2, .cooldown = 1}), kMetrics);
  expect_sequence(
      "reduce_on_plateau_max",
      with({.mode = "max", .factor = 0.3, .patience = 1, .threshold = 0.01, .threshold_mode = "abs", .min_lr = 0.01}),
      kMetrics);
  const double nan = std::nan("");
  expect_sequence("reduce_on_plateau_nan", with({.patience = 1}), {1.0, nan, nan, nan, 0.5, 0.4});
}

TEST(ReduceOnPlateauScheduler, NeedsAMetric) {
  auto optimizer = make_two_groups();
  ReduceOnPlateauScheduler scheduler({});
  scheduler.attach(*optimizer);
  EXPECT_TRUE(scheduler.needs_metric());
  EXPECT_NE(error_of([&] { scheduler.step(); }).find("set `monitor`"), std::string::npos);
  EXPECT_THROW(ReduceOnPlateauScheduler({.factor = 1}), ConfigError);
  EXPECT_THROW(ReduceOnPlateauScheduler({.mode = "minimum"}), ConfigError);
}

}  // namespace
}  // namespace levin::optim
