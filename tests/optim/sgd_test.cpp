#include <levin/core/optim/sgd.h>

#include "optimizer_problem.h"

#include <gtest/gtest.h>

namespace levin::optim {
namespace {

TEST(SGD, FollowsPyTorch) {
  expect_trajectory<SGD>("sgd", {.lr = 0.1});
  expect_trajectory<SGD>("sgd_weight_decay", {.lr = 0.1, .weight_decay = 0.02});
  expect_trajectory<SGD>("sgd_momentum", {.lr = 0.1, .momentum = 0.9});
  expect_trajectory<SGD>("sgd_dampening", {.lr = 0.1, .momentum = 0.9, .dampening = 0.3, .weight_decay = 0.02});
  expect_trajectory<SGD>("sgd_nesterov", {.lr = 0.1, .momentum = 0.9, .weight_decay = 0.02, .nesterov = true});
  expect_trajectory<SGD>("sgd_maximize", {.lr = 0.1, .momentum = 0.9, .maximize = true});
  expect_trajectory<SGD>("sgd_groups", {.lr = 0.1, .momentum = 0.9}, {.lr = 0.03});
}

TEST(SGD, AParameterThatJoinsLaterTakesItsFirstStepWithoutDampening) {
  const SGDOptions options{.lr = 0.1, .momentum = 0.9, .dampening = 0.5};
  Problem both;
  SGD optimizer(both.params, options);
  both.set_gradients(0);
  both.params[1].mutable_grad().reset();
  optimizer.step();
  both.set_gradients(1);
  optimizer.step();

  Problem alone;
  SGD expected({alone.params[1]}, options);
  alone.set_gradients(1);
  expected.step();
  EXPECT_TRUE(both.params[1].equal(alone.params[1]));
}

TEST(SGD, MomentumMayBeTurnedOnLater) {
  Problem problem;
  SGD optimizer(problem.params, {.lr = 0.1});
  problem.train(optimizer, 0, 2);
  EXPECT_TRUE(set_momentum(optimizer.param_groups()[0].options(), 0.9));
  problem.train(optimizer, 2, 2);
  EXPECT_TRUE(optimizer.parameter_states(problem.names()).at("net.bias").contains("momentum_buffer"));
}

TEST(SGD, RefusesOptionsOutOfRange) {
  Problem problem;
  EXPECT_NE(error_of([&] { SGD(problem.params, {.lr = -1}); }).find("sgd.lr must be at least 0; got -1"),
            std::string::npos);
  EXPECT_NE(error_of([&] { SGD(problem.params, {.nesterov = true}); }).find("sgd.nesterov needs a momentum above 0"),
            std::string::npos);
}

}  // namespace
}  // namespace levin::optim
