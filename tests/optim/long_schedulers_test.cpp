#include <levin/core/optim/long_schedulers.h>

#include "scheduler_problem.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numbers>

namespace levin::optim {
namespace {

TEST(LongSchedulers, FollowPyTorch) {
  expect_sequence("polynomial", scheduler_with<PolynomialScheduler>({.total_iters = 7, .power = 2}));
  expect_sequence("polynomial_line", scheduler_with<PolynomialScheduler>({.total_iters = 6}));
  expect_sequence("constant", scheduler_with<ConstantScheduler>({}));
  expect_sequence("constant_half", scheduler_with<ConstantScheduler>({.factor = 0.5, .total_iters = 3}));
  expect_sequence("inverse_square_root", scheduler_with<InverseSquareRootScheduler>({.timescale = 4}));
  expect_sequence("cyclic", scheduler_with<CyclicScheduler>({.base_lr = 0.01, .max_lr = 0.2, .step_size_up = 4}));
  expect_sequence("cyclic_halving", scheduler_with<CyclicScheduler>({.base_lr = 0.01,
                                                                     .max_lr = 0.2,
                                                                     .step_size_up = 2,
                                                                     .step_size_down = 4,
                                                                     .mode = "triangular2",
                                                                     .base_momentum = 0.7}));
  expect_sequence("cyclic_exponential", scheduler_with<CyclicScheduler>({.base_lr = 0.01,
                                                                         .max_lr = 0.2,
                                                                         .step_size_up = 3,
                                                                         .mode = "exp_range",
                                                                         .gamma = 0.9,
                                                                         .cycle_momentum = false}));
}

TEST(LongSchedulers, StableDecayFallsInTheLastPartOfTheRun) {
  for (const char* type : {"linear", "sqrt", "cosine"}) {
    SCOPED_TRACE(type);
    auto optimizer = make_two_groups();
    StableDecayScheduler scheduler({.decay_ratio = 0.4, .decay_type = type, .min_lr_factor = 0.1});
    scheduler.set_estimated_total(10);
    scheduler.attach(*optimizer);
    for (int steps = 0; steps <= 12; ++steps) {
      const double progress = std::clamp((steps - 6) / 4.0, 0.0, 1.0);
      double left = 1 - progress;
      if (type == std::string("sqrt")) left = 1 - std::sqrt(progress);
      if (type == std::string("cosine")) left = (1 + std::cos(std::numbers::pi * progress)) / 2;
      EXPECT_NEAR(learning_rates(*optimizer)[0], 0.1 * (0.1 + 0.9 * left), 1e-12) << steps;
      scheduler.step();
    }
  }
}

TEST(LongSchedulers, RefuseOptionsOutOfRange) {
  EXPECT_NE(error_of([] { StableDecayScheduler({.decay_ratio = 0}); }).find("decay_ratio must be above 0"),
            std::string::npos);
  EXPECT_NE(error_of([] { CyclicScheduler({.mode = "square"}); }).find("cyclic.mode must be one of triangular"),
            std::string::npos);
  EXPECT_NE(error_of([] { PolynomialScheduler({.power = 0}); }).find("polynomial.power must be above 0"),
            std::string::npos);
}

}  // namespace
}  // namespace levin::optim
