#include <levin/core/optim/adagrad.h>

#include "optimizer_problem.h"

#include <gtest/gtest.h>

namespace levin::optim {
namespace {

TEST(Adagrad, FollowsPyTorch) {
  expect_trajectory<Adagrad>("adagrad", {});
  expect_trajectory<Adagrad>(
      "adagrad_all",
      {.lr = 0.1, .lr_decay = 0.05, .weight_decay = 0.02, .initial_accumulator_value = 0.3, .eps = 1e-6});
  expect_trajectory<Adagrad>("adagrad_maximize", {.lr = 0.1, .maximize = true});
  expect_trajectory<Adagrad>("adagrad_groups", {.lr = 0.1}, {.lr = 0.02, .weight_decay = 0.5});
}

TEST(Adagrad, RefusesOptionsOutOfRange) {
  Problem problem;
  EXPECT_NE(error_of([&] { Adagrad(problem.params, {.lr_decay = -1}); }).find("adagrad.lr_decay must be at least 0"),
            std::string::npos);
}

}  // namespace
}  // namespace levin::optim
