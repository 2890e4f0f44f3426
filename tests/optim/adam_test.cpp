#include <levin/core/optim/adam.h>

#include "optimizer_problem.h"

#include <gtest/gtest.h>

namespace levin::optim {
namespace {

TEST(Adam, FollowsPyTorch) {
  expect_trajectory<Adam>("adam", {});
  expect_trajectory<Adam>("adam_betas", {.lr = 0.05, .betas = {0.8, 0.95}, .eps = 1e-4});
  expect_trajectory<Adam>("adam_weight_decay", {.lr = 0.05, .weight_decay = 0.1});
  expect_trajectory<Adam>("adam_amsgrad", {.lr = 0.05, .amsgrad = true});
  expect_trajectory<Adam>("adam_maximize", {.lr = 0.05, .weight_decay = 0.1, .maximize = true});
  expect_trajectory<Adam>("adam_groups", {.lr = 0.05}, {.lr = 0.01, .amsgrad = true});
}

TEST(AdamW, FollowsPyTorch) {
  expect_trajectory<AdamW>("adamw", {});
  expect_trajectory<AdamW>("adamw_weight_decay", {.lr = 0.05, .betas = {0.8, 0.95}, .weight_decay = 0.3});
  expect_trajectory<AdamW>("adamw_amsgrad", {.lr = 0.05, .weight_decay = 0.3, .amsgrad = true});
  expect_trajectory<AdamW>("adamw_maximize", {.lr = 0.05, .maximize = true});
  expect_trajectory<AdamW>("adamw_groups", {.lr = 0.05}, {.lr = 0.01, .weight_decay = 0.5});
}

TEST(Adam, RefusesOptionsOutOfRange) {
  Problem problem;
  EXPECT_NE(error_of([&] {
              Adam(problem.params, {.betas = {0.9, 1.0}});
            }).find("adam.betas must be two numbers"),
            std::string::npos);
  EXPECT_NE(error_of([&] { AdamW(problem.params, {.eps = -1e-8}); }).find("adamw.eps must be at least 0"),
            std::string::npos);
}

TEST(AdamOptions, ReadFromYaml) {
  const auto options = parse_options<AdamWOptions>(Config::parse("{lr: 0.5, betas: [0.8, 0.95]}", {}), "optimizer");
  EXPECT_EQ(options.lr, 0.5);
  EXPECT_EQ(options.betas[1], 0.95);
  EXPECT_THROW(parse_options<AdamWOptions>(Config::parse("{betas: [0.8]}", {}), "optimizer"), ConfigError);
}

}  // namespace
}  // namespace levin::optim
