#include <levin/core/base/gradient_groups.h>
#include <levin/core/optim/adagrad.h>
#include <levin/core/optim/adam.h>
#include <levin/core/optim/gradient_clipping.h>
#include <levin/core/optim/lookahead.h>
#include <levin/core/optim/optimizer_state.h>
#include <levin/core/optim/sam.h>
#include <levin/core/optim/sgd.h>
#include <levin/core/optim/sparse_adam.h>
#include <levin/core/precision/grad_scaler.h>

#include "optimizer_problem.h"

#include <ATen/ATen.h>
#include <gmock/gmock-matchers.h>

#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <utility>

namespace levin::optim {
namespace {

using ::testing::HasSubstr;

at::Tensor matrix(at::ScalarType type = at::kDouble) {
  return at::arange(24, at::kDouble).mul(0.3).cos().view({6, 4}).to(type).set_requires_grad(true);
}

/// Of three rows, two of which are one: that of oracles/optim_oracles.py.
at::Tensor sparse_gradient(const at::Tensor& parameter, int64_t step) {
  at::Tensor rows = at::tensor({step % 6, (2 * step + 1) % 6, step % 6}, at::kLong);
  const at::Tensor i = at::arange(1, 4, at::kDouble).view({3, 1});
  const at::Tensor j = at::arange(2, 6, at::kDouble);
  at::Tensor values = (i * j * (0.3 * static_cast<double>(step + 1))).sin().to(parameter.scalar_type());
  return at::sparse_coo_tensor(rows.unsqueeze(0), values, parameter.sizes(), values.options().layout(at::kSparse));
}

template <class Optimizer>
void expect_sparse_trajectory(const std::string& name, const typename Optimizer::Options& options) {
  SCOPED_TRACE(name);
  at::Tensor parameter = matrix();
  Optimizer optimizer({parameter}, options);
  for (int64_t step = 0; step < 7; ++step) {
    parameter.mutable_grad() = sparse_gradient(parameter, step);
    optimizer.step();
  }
  const at::Tensor expected = at::tensor(optimizer_oracles().at(name), at::kDouble).view({6, 4});
  EXPECT_TRUE(at::allclose(parameter.detach(), expected, 0, 1e-12)) << parameter << "\nexpected\n" << expected;
}

TEST(SparseGradients, FollowPyTorch) {
  expect_sparse_trajectory<SparseAdam>("sparse_adam", {});
  expect_sparse_trajectory<SparseAdam>("sparse_adam_all",
                                       {.lr = 0.05, .betas = {0.8, 0.95}, .eps = 1e-4, .maximize = true});
  expect_sparse_trajectory<SGD>("sparse_sgd", {.lr = 0.1});
  expect_sparse_trajectory<SGD>("sparse_sgd_maximize", {.lr = 0.1, .maximize = true});
  expect_sparse_trajectory<Adagrad>("sparse_adagrad", {.lr = 0.1, .lr_decay = 0.05, .initial_accumulator_value = 0.3});
}

/// Ten steps, with dense gradients in their place or not; every third has no row, every fourth is dense in any case.
template <class Optimizer>
std::vector<at::Tensor> trained(const typename Optimizer::Options& options, at::ScalarType type, bool dense) {
  std::vector<at::Tensor> parameters{matrix(type), matrix(type), at::ones({3}, type).set_requires_grad(true)};
  Optimizer optimizer(parameters, options);
  for (int64_t step = 0; step < 10; ++step) {
    for (size_t i = 0; i < 2; ++i) {
      at::Tensor gradient = sparse_gradient(parameters[i], step + static_cast<int64_t>(i));
      if (step % 3 == 2) gradient = at::zeros_like(gradient);
      parameters[i].mutable_grad() = dense || (i == 1 && step % 4 == 3) ? gradient.to_dense() : gradient;
    }
    parameters[2].mutable_grad() = at::full({3}, 0.1 * static_cast<double>(step), type);
    optimizer.step();
  }
  return parameters;
}

template <class Optimizer>
void expect_as_dense(const typename Optimizer::Options& options) {
  for (const auto type : {at::kFloat, at::kDouble}) {
    const auto sparse = trained<Optimizer>(options, type, false);
    const auto dense = trained<Optimizer>(options, type, true);
    for (size_t i = 0; i < sparse.size(); ++i)
      EXPECT_TRUE(sparse[i].equal(dense[i])) << c10::toString(type) << ", tensor " << i;
  }
  // In 16 bits kernels round rows otherwise than whole tables: within what ten steps of values up to 1 may round.
  const auto exact = trained<Optimizer>(options, at::kFloat, true);
  for (const auto& [type, rounding] : {std::pair(at::kBFloat16, 0x1p-8), std::pair(at::kHalf, 0x1p-11)}) {
    const auto sparse = trained<Optimizer>(options, type, false);
    for (size_t i = 0; i < sparse.size(); ++i)
      EXPECT_TRUE(at::allclose(sparse[i].to(at::kFloat), exact[i], 0, 10 * rounding))
          << c10::toString(type) << ", tensor " << i;
  }
}

TEST(SparseGradients, AreStepsOfTheDenseOnes) {
  expect_as_dense<SGD>({.lr = 0.1});
  // float16 has no smaller number than 6e-8: with an `eps` below it a first gradient of zero is divided by zero.
  expect_as_dense<Adagrad>({.lr = 0.1, .lr_decay = 0.1, .eps = 1e-4});
}

TEST(SparseGradients, AreRefusedByOptionsThatMoveEveryRow) {
  const auto refusal = [](auto make) {
    at::Tensor parameter = matrix();
    auto optimizer = make(parameter);
    parameter.mutable_grad() = sparse_gradient(parameter, 0);
    return error_of([&] { optimizer.step(); });
  };
  const std::string momentum = refusal([](auto p) { return SGD({p}, {.momentum = 0.9}); });
  EXPECT_THAT(momentum, HasSubstr("sgd does not take sparse gradients with these options; got one of shape [6, 4]"));
  EXPECT_THAT(momentum, HasSubstr("valid: sgd without momentum"));
  EXPECT_THAT(refusal([](auto p) { return SGD({p}, {.weight_decay = 0.1}); }), HasSubstr("sgd does not take sparse"));
  EXPECT_THAT(refusal([](auto p) { return Adagrad({p}, {.weight_decay = 0.1}); }), HasSubstr("adagrad does not take"));
  EXPECT_THAT(refusal([](auto p) { return AdamW({p}, {}); }), HasSubstr("adamw does not take sparse gradients"));
  at::Tensor climbing = matrix();
  SAM sam(std::make_shared<SGD>(std::vector{climbing}, SGDOptions{}), {});
  const auto evaluate = [&] {
    climbing.mutable_grad() = sparse_gradient(climbing, 0);
    return at::zeros({});
  };
  EXPECT_THAT(error_of([&] { sam.step(evaluate); }), HasSubstr("sam does not take sparse gradients"));
  at::Tensor parameter = matrix();
  SparseAdam optimizer({parameter}, {});
  parameter.mutable_grad() = at::ones_like(parameter);
  EXPECT_THAT(error_of([&] { optimizer.step(); }), HasSubstr("sparse_adam takes sparse gradients alone"));
}

TEST(SparseGradients, AreSkippedAndUnscaledInTheStep) {
  for (const bool sparse : {false, true}) {
    at::Tensor parameter = matrix(at::kFloat);
    SGD optimizer({parameter}, {.lr = 0.1});
    const at::Tensor before = parameter.detach().clone();
    const at::Tensor gradient = sparse_gradient(parameter, 1);
    const auto set = [&] { parameter.mutable_grad() = sparse ? gradient.clone() : gradient.to_dense(); };
    set();
    optimizer.fused_step({.grad_scale = at::full({}, 4.0F), .found_inf = at::ones({})});
    EXPECT_TRUE(parameter.detach().equal(before));
    set();
    optimizer.fused_step({.grad_scale = at::full({}, 4.0F), .found_inf = at::zeros({})});
    EXPECT_TRUE(at::allclose(parameter.detach(), before - 0.025 * gradient.to_dense()));
    EXPECT_TRUE(at::allclose(dense_gradient(parameter.grad()), gradient.to_dense() / 4)) << "unscaled ones stay";
  }
}

TEST(SparseGradients, StateIsSavedAndLoaded) {
  const auto run = [](int64_t saved_after) {
    at::Tensor parameter = matrix();
    ParameterNames names;
    names.add("table", parameter);
    auto optimizer = std::make_unique<SparseAdam>(std::vector{parameter}, SparseAdamOptions{.lr = 0.1});
    for (int64_t step = 0; step < 6; ++step) {
      if (step == saved_after) {
        const State state = optimizer_state_dict(*optimizer, names);
        optimizer = std::make_unique<SparseAdam>(std::vector{parameter}, SparseAdamOptions{.lr = 0.1});
        load_optimizer_state_dict(*optimizer, names, state);
      }
      parameter.mutable_grad() = sparse_gradient(parameter, step);
      optimizer->step();
    }
    return parameter;
  };
  EXPECT_TRUE(run(3).equal(run(-1)));
}

TEST(SparseGradients, AreTakenByWhatIsWrapped) {
  const auto run = [](bool dense) {
    at::Tensor parameter = matrix();
    Lookahead optimizer(std::make_shared<SGD>(std::vector{parameter}, SGDOptions{.lr = 0.1}), {.k = 2});
    for (int64_t step = 0; step < 5; ++step) {
      parameter.mutable_grad() = sparse_gradient(parameter, step);
      if (dense) parameter.mutable_grad() = parameter.grad().to_dense();
      optimizer.step();
    }
    return parameter;
  };
  EXPECT_TRUE(run(false).equal(run(true)));
}

/// Gradients of two parameters, sparse or dense, after `clip`.
void expect_clips_as_dense(const std::function<void(const std::vector<at::Tensor>&)>& clip) {
  std::vector<std::vector<at::Tensor>> results;
  for (const bool dense : {false, true}) {
    std::vector<at::Tensor> parameters{matrix(), at::ones({3}, at::kDouble).set_requires_grad(true)};
    parameters[0].mutable_grad() = sparse_gradient(parameters[0], 0);
    if (dense) parameters[0].mutable_grad() = parameters[0].grad().to_dense();
    parameters[1].mutable_grad() = at::full({3}, 2.0, at::kDouble);
    clip(parameters);
    EXPECT_EQ(parameters[0].grad().is_sparse(), !dense);
    results.push_back({dense_gradient(parameters[0].grad()), parameters[1].grad()});
  }
  for (size_t i = 0; i < 2; ++i) EXPECT_TRUE(at::allclose(results[0][i], results[1][i], 1e-12, 0)) << i;
}

TEST(SparseGradients, AreClippedAsTheDenseOnes) {
  std::vector<double> norms;
  expect_clips_as_dense([&](const auto& p) { norms.push_back(clip_by_norm(p, 0.5).template item<double>()); });
  ASSERT_EQ(norms.size(), 2u);
  EXPECT_NEAR(norms[0], norms[1], 1e-12);
  expect_clips_as_dense([](const auto& p) { clip_by_value(p, 0.3); });
  expect_clips_as_dense([](const auto& p) { clip_adaptively(p, 0.1); });
}

TEST(SparseGradients, AreUnscaledWithTheCheckForInfinities) {
  for (const double special : {0.5, std::numeric_limits<double>::infinity(), std::nan("")}) {
    at::Tensor parameter = matrix(at::kFloat);
    parameter.mutable_grad() = sparse_gradient(parameter, 0);
    parameter.grad()._values()[2][1] = special;
    const at::Tensor scaled = parameter.grad().to_dense();
    GradScaler scaler({.init_scale = 8});
    EXPECT_EQ(scaler.unscale({parameter}).item<float>(), std::isfinite(special) ? 0 : 1);
    if (std::isfinite(special)) EXPECT_TRUE(at::allclose(parameter.grad().to_dense(), scaled / 8));
  }
}

}  // namespace
}  // namespace levin::optim
