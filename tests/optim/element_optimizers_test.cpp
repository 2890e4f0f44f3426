#include <levin/core/optim/adadelta.h>
#include <levin/core/optim/adamax.h>
#include <levin/core/optim/element_update.h>
#include <levin/core/optim/layerwise_optimizers.h>
#include <levin/core/optim/lion.h>
#include <levin/core/optim/nadam.h>
#include <levin/core/optim/radam.h>
#include <levin/core/optim/rmsprop.h>
#include <levin/core/optim/rprop.h>

#include "optimizer_problem.h"

#include <ATen/ops/allclose.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

namespace levin::optim {
namespace {

TEST(ElementOptimizers, FollowPyTorch) {
  expect_trajectory<RMSprop>("rmsprop", {});
  expect_trajectory<RMSprop>("rmsprop_momentum", {.lr = 0.02, .alpha = 0.9, .weight_decay = 0.1, .momentum = 0.8});
  expect_trajectory<RMSprop>("rmsprop_centered", {.lr = 0.02, .eps = 1e-4, .centered = true, .maximize = true});
  expect_trajectory<RMSprop>("rmsprop_all", {.lr = 0.02, .eps = 1e-4, .momentum = 0.5, .centered = true});
  expect_trajectory<RMSprop>("rmsprop_groups", {.lr = 0.02}, {.lr = 0.01, .momentum = 0.9});
  expect_trajectory<Adamax>("adamax", {});
  expect_trajectory<Adamax>("adamax_all",
                            {.lr = 0.05, .betas = {0.8, 0.95}, .eps = 1e-4, .weight_decay = 0.1, .maximize = true});
  expect_trajectory<Adamax>("adamax_groups", {.lr = 0.05}, {.lr = 0.01, .weight_decay = 0.5});
  expect_trajectory<Adadelta>("adadelta", {});
  expect_trajectory<Adadelta>("adadelta_all",
                              {.lr = 0.5, .rho = 0.8, .eps = 1e-3, .weight_decay = 0.1, .maximize = true});
  expect_trajectory<RAdam>("radam", {});
  expect_trajectory<RAdam>("radam_all",
                           {.lr = 0.05, .betas = {0.8, 0.99}, .eps = 1e-4, .weight_decay = 0.1, .maximize = true});
  expect_trajectory<RAdam>("radam_decoupled", {.lr = 0.05, .weight_decay = 0.3, .decoupled_weight_decay = true});
  expect_trajectory<NAdam>("nadam", {});
  expect_trajectory<NAdam>("nadam_all", {.lr = 0.05, .betas = {0.8, 0.95}, .weight_decay = 0.1, .momentum_decay = 0.1});
  expect_trajectory<NAdam>("nadam_decoupled",
                           {.lr = 0.05, .weight_decay = 0.3, .decoupled_weight_decay = true, .maximize = true});
  expect_trajectory<Rprop>("rprop", {});
  expect_trajectory<Rprop>("rprop_all", {.lr = 0.05, .etas = {0.3, 1.7}, .step_sizes = {0.01, 0.1}, .maximize = true});
  expect_trajectory<Lion>("lion", {});
  expect_trajectory<Lion>("lion_all", {.lr = 0.02, .betas = {0.8, 0.95}, .weight_decay = 0.3, .maximize = true});
}

TEST(ElementOptimizers, OfLargeBatchesFollowTimm) {
  expect_trajectory<LAMB>("lamb", {});
  expect_trajectory<LAMB>("lamb_all", {.lr = 0.05, .betas = {0.8, 0.95}, .eps = 1e-4, .weight_decay = 0.3});
  expect_trajectory<LAMB>("lamb_groups", {.lr = 0.05}, {.lr = 0.02, .weight_decay = 0});
  expect_trajectory<LARS>("lars", {});
  expect_trajectory<LARS>("lars_all",
                          {.lr = 2, .momentum = 0.8, .dampening = 0.1, .weight_decay = 0.1, .trust_coeff = 0.02});
  expect_trajectory<LARS>("lars_nesterov", {.weight_decay = 0.02, .nesterov = true, .always_adapt = true});
}

/// Ten steps of an optimizer on parameters of a type, as float64.
template <class Optimizer>
at::Tensor trained(const typename Optimizer::Options& options, at::ScalarType type) {
  at::Tensor param = at::empty({1003}, type);
  param.copy_(at::linspace(-1, 1, 1003));
  param.requires_grad_();
  Optimizer optimizer({param}, options);
  for (int step = 0; step < 10; ++step) {
    at::NoGradGuard no_grad;
    param.mutable_grad() = param + 0.1 * step;
    optimizer.step();
  }
  return param.detach().to(at::kDouble);
}

template <class Optimizer>
void expect_same_in_every_type(const typename Optimizer::Options& options, double of_16_bits = 0.05) {
  SCOPED_TRACE(typeid(Optimizer).name());
  const at::Tensor exact = trained<Optimizer>(options, at::kDouble);
  EXPECT_TRUE(at::allclose(trained<Optimizer>(options, at::kFloat), exact, 1e-4, 1e-5));
  // By LibTorch's operators, as on devices.
  EXPECT_TRUE(at::allclose(trained<Optimizer>(options, at::kBFloat16), exact, of_16_bits, of_16_bits));
}

TEST(ElementOptimizers, ComputeTheSameInEveryType) {
  expect_same_in_every_type<RMSprop>({.momentum = 0.9, .centered = true});
  expect_same_in_every_type<Adamax>({.lr = 0.01});
  expect_same_in_every_type<Adadelta>({});
  expect_same_in_every_type<RAdam>({.lr = 0.01});
  expect_same_in_every_type<NAdam>({.lr = 0.01});
  // Where a gradient is nearly 0, rounding decides its sign.
  expect_same_in_every_type<Rprop>({.lr = 0.03}, 0.2);
  expect_same_in_every_type<Lion>({.lr = 0.01});
  expect_same_in_every_type<LAMB>({.lr = 0.01});
  expect_same_in_every_type<LARS>({.lr = 0.1, .weight_decay = 0.01});
}

TEST(ElementOptimizers, StateGoesOnWhereItWasSaved) {
  Problem straight;
  NAdam once(straight.params, {.lr = 0.05});
  straight.train(once, 0, 7);

  Problem resumed;
  NAdam before(resumed.params, {.lr = 0.05});
  resumed.train(before, 0, 3);
  NAdam after(resumed.params, {.lr = 0.05});
  after.load_parameter_states(resumed.names(), before.parameter_states(resumed.names()));
  resumed.train(after, 3, 4);
  EXPECT_EQ(straight.values(), resumed.values());
}

TEST(ElementOptimizers, RefuseOptionsOutOfRange) {
  Problem problem;
  EXPECT_NE(error_of([&] { RMSprop(problem.params, {.alpha = 1}); }).find("rmsprop.alpha must be below 1"),
            std::string::npos);
  EXPECT_NE(error_of([&] {
              Rprop(problem.params, {.etas = {1.5, 1.2}});
            }).find("rprop.etas must be"),
            std::string::npos);
  EXPECT_NE(error_of([&] { Lion(problem.params, {.betas = {0.9, 1}}); }).find("lion.betas must be"), std::string::npos);
}

}  // namespace
}  // namespace levin::optim
