#include <levin/core/optim/adafactor.h>
#include <levin/core/optim/muon.h>
#include <levin/core/optim/optimizer_state.h>

#include "optimizer_problem.h"

#include <ATen/ops/allclose.h>
#include <ATen/ops/eye.h>
#include <ATen/ops/linspace.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

namespace levin::optim {
namespace {

constexpr int kLong = 50;

template <class Optimizer>
void expect_long_run(const std::string& name, const typename Optimizer::Options& options, double tolerance = 1e-9) {
  Problem problem;
  Optimizer optimizer(problem.params, options);
  problem.train(optimizer, 0, kLong);
  expect_values(problem, name, tolerance);
}

TEST(Adafactor, FollowsPyTorch) {
  expect_long_run<Adafactor>("adafactor", {});
  expect_long_run<Adafactor>(
      "adafactor_all",
      {.lr = 0.2, .beta2_decay = -0.6, .eps1 = 1e-3, .eps2 = 0.05, .d = 1.5, .weight_decay = 0.1, .maximize = true});
  Problem problem;
  Adafactor optimizer({{{problem.params[0]}, {.lr = 0.1}}, {{problem.params[1]}, {.lr = 0.02, .weight_decay = 0.5}}});
  problem.train(optimizer, 0, kLong);
  expect_values(problem, "adafactor_groups", 1e-9);
}

TEST(Adafactor, KeepsRowsAndColumns) {
  Problem problem;
  Adafactor optimizer(problem.params);
  problem.train(optimizer, 0, 1);
  const State states = optimizer.parameter_states(problem.names());
  EXPECT_EQ(states.at("net.weight").at("variance").as_tensor().sizes(), (std::vector<int64_t>{37}));
  EXPECT_FALSE(states.at("net.weight").contains("row_var"));
  EXPECT_EQ(states.at("net.bias").at("row_var").as_tensor().sizes(), (std::vector<int64_t>{3, 1}));
  EXPECT_EQ(states.at("net.bias").at("col_var").as_tensor().sizes(), (std::vector<int64_t>{1, 4}));
  EXPECT_FALSE(states.at("net.bias").contains("variance"));
}

TEST(Muon, FollowsPyTorchWithAdamWForWhatIsNoMatrix) {
  expect_long_run<Muon>("muon", {.bfloat16 = false});
  expect_long_run<Muon>("muon_all", {.lr = 0.02,
                                     .weight_decay = 0.3,
                                     .momentum = 0.8,
                                     .nesterov = false,
                                     .ns_coefficients = {3.0, -3.2, 1.2},
                                     .eps = 1e-5,
                                     .ns_steps = 3,
                                     .adjust_lr_fn = "match_rms_adamw",
                                     .bfloat16 = false,
                                     .adamw_betas = {0.8, 0.95},
                                     .adamw_eps = 1e-4});
  expect_long_run<Muon>("muon_off", {.lr = 0.02, .orthogonalize = false});
  // In bfloat16 the order of sums in matrix products, which processors differ in, shows.
  expect_long_run<Muon>("muon_bfloat16", {.lr = 0.02}, 0.01);
}

TEST(Muon, AStepOfTheFirstMomentumIsNearlyOrthogonal) {
  for (const auto& sizes : {std::vector<int64_t>{6, 20}, std::vector<int64_t>{20, 6}}) {
    at::Tensor param = at::zeros(sizes).requires_grad_();
    Muon optimizer({param}, {.lr = 1, .weight_decay = 0, .bfloat16 = false});
    at::NoGradGuard no_grad;
    param.mutable_grad() = at::randn(sizes);
    optimizer.step();
    const at::Tensor step = sizes[0] < sizes[1] ? param.detach() : param.detach().t() / std::sqrt(20.0 / 6);
    EXPECT_TRUE(at::allclose(step.mm(step.t()), at::eye(6), 0, 0.6));
  }
}

template <class Optimizer>
void expect_resumes(const typename Optimizer::Options& options) {
  Problem straight;
  Optimizer once(straight.params, options);
  straight.train(once, 0, 7);

  Problem resumed;
  Optimizer before(resumed.params, options);
  resumed.train(before, 0, 3);
  Optimizer after(resumed.params, {});
  load_optimizer_state_dict(after, resumed.names(), optimizer_state_dict(before, resumed.names()));
  resumed.train(after, 3, 4);
  EXPECT_EQ(straight.values(), resumed.values());
}

TEST(MatrixOptimizers, StateGoesOnWhereItWasSaved) {
  expect_resumes<Adafactor>({.lr = 0.1, .eps1 = 1e-4, .weight_decay = 0.1});
  expect_resumes<Adafactor>({});
  expect_resumes<Muon>({.lr = 0.05});
}

template <class Optimizer>
at::Tensor matrix_trained(const typename Optimizer::Options& options, at::ScalarType type) {
  at::Tensor param = at::empty({17, 59}, type);
  param.copy_(at::linspace(-1, 1, 1003).sin().reshape({17, 59}));
  param.requires_grad_();
  Optimizer optimizer({param}, options);
  for (int step = 0; step < 10; ++step) {
    at::NoGradGuard no_grad;
    param.mutable_grad() = param + 0.1 * step;
    optimizer.step();
  }
  return param.detach().to(at::kDouble);
}

TEST(MatrixOptimizers, ComputeTheSameInEveryType) {
  const auto expect_same = [](const auto& trained) {
    const at::Tensor exact = trained(at::kDouble);
    EXPECT_TRUE(at::allclose(trained(at::kFloat), exact, 1e-3, 1e-4));
    EXPECT_TRUE(at::allclose(trained(at::kBFloat16), exact, 0.05, 0.05));
  };
  expect_same([](at::ScalarType type) { return matrix_trained<Adafactor>({.eps1 = 1e-3}, type); });
  expect_same([](at::ScalarType type) { return matrix_trained<Muon>({.lr = 0.01, .orthogonalize = false}, type); });
}

TEST(MatrixOptimizers, RefuseOptionsOutOfRange) {
  Problem problem;
  EXPECT_NE(error_of([&] { Adafactor(problem.params, {.beta2_decay = 0.8}); }).find("adafactor.beta2_decay must be"),
            std::string::npos);
  EXPECT_NE(error_of([&] { Muon(problem.params, {.adjust_lr_fn = "x"}); }).find("muon.adjust_lr_fn must be"),
            std::string::npos);
}

}  // namespace
}  // namespace levin::optim
