#include <levin/core/optim/adamw8bit.h>

#include <levin/core/optim/adam.h>
#include <levin/core/optim/lookahead.h>
#include <levin/core/optim/optimizer_state.h>

#include "optimizer_problem.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace levin::optim {
namespace {

constexpr int kBlocksSteps = 50;

/// The problem of oracles/adamw8bit_oracles.py: float32, with exact gradients.
struct Blocks {
  std::vector<at::Tensor> params;

  explicit Blocks(at::ScalarType type = at::kFloat) {
    for (const auto& sizes : std::vector<std::vector<int64_t>>{{4232}, {64, 80}, {12}}) {
      const auto k = static_cast<int64_t>(params.size());
      at::Tensor param = at::empty(sizes, type);
      param.view({-1}).copy_((index(param) * 613 + k * 101).remainder(2039).sub(1019).to(at::kFloat) / 1024);
      params.push_back(param.set_requires_grad(true));
    }
  }

  static at::Tensor index(const at::Tensor& param) { return at::arange(param.numel(), at::kLong); }

  void set_gradients(int64_t step) {
    const at::NoGradGuard no_grad;
    for (size_t k = 0; k < params.size(); ++k) {
      const at::Tensor i = index(params[k]);
      const at::Tensor noise =
          (i * 7919 + step * 104729 + static_cast<int64_t>(k) * 31).remainder(4093).sub(2046).to(at::kFloat) / 2048;
      const at::Tensor size = at::ldexp(at::ones({i.numel()}), i.remainder(12).neg());
      at::Tensor grad = (noise * size).to(params[k].scalar_type()) + params[k].view({-1}) * 0.5;
      params[k].mutable_grad() = grad.view(params[k].sizes());
    }
  }

  template <class Optimizer>
  void train(Optimizer& optimizer, int64_t first_step, int64_t steps) {
    for (int64_t step = first_step; step < first_step + steps; ++step) {
      set_gradients(step);
      optimizer.step();
    }
  }

  ParameterNames names() const {
    ParameterNames names;
    for (size_t i = 0; i < params.size(); ++i) names.add("p" + std::to_string(i), params[i]);
    return names;
  }

  at::Tensor values() const {
    std::vector<at::Tensor> all;
    for (const auto& param : params) all.push_back(param.detach().view({-1}).clone());
    return at::cat(all);
  }
};

void expect_oracle(const std::string& name, const AdamW8bitOptions& options) {
  SCOPED_TRACE(name);
  static const std::map<std::string, std::vector<double>> oracles = {
#include "../oracles/adamw8bit_oracles.inc"
  };
  Blocks problem;
  AdamW8bit optimizer(problem.params, options);
  problem.train(optimizer, 0, kBlocksSteps);
  const auto& expected = oracles.at(name);
  size_t next = 0;
  for (const auto& param : problem.params)
    for (int64_t i = 0; i < param.numel(); i += 37, ++next)
      EXPECT_NEAR(param.view({-1})[i].item<float>(), expected.at(next), 1e-6) << "element " << i;
  EXPECT_EQ(next, expected.size());
}

TEST(AdamW8bit, FollowsThePaper) {
  expect_oracle("adamw8bit", {});
  expect_oracle("adamw8bit_all",
                {.lr = 2e-3, .betas = {0.9, 0.95}, .eps = 1e-4, .weight_decay = 0.3, .maximize = true});
  expect_oracle("adamw8bit_every_size", {.min_8bit_size = 1});
  expect_oracle("adamw8bit_no_size", {.min_8bit_size = 9999});
}

TEST(AdamW8bit, IsNearAdamW) {
  Blocks in_8_bits, in_32_bits, small;
  AdamW8bit optimizer(in_8_bits.params, {});
  AdamW adamw(in_32_bits.params, {});
  AdamW8bit of_small(small.params, {.min_8bit_size = 9999});
  in_8_bits.train(optimizer, 0, kBlocksSteps);
  in_32_bits.train(adamw, 0, kBlocksSteps);
  small.train(of_small, 0, kBlocksSteps);
  // Fifty steps of at most 0.001.
  EXPECT_LT((in_8_bits.values() - in_32_bits.values()).abs().mean().item<float>(), 0.001);
  EXPECT_LT((in_8_bits.values() - in_32_bits.values()).abs().max().item<float>(), 0.02);
  EXPECT_LT((small.values() - in_32_bits.values()).abs().max().item<float>(), 1e-5);
}

TEST(AdamW8bit, StateTakesTwoBytesAWeightAndTheScales) {
  Blocks problem;
  AdamW8bit optimizer(problem.params, {});
  problem.train(optimizer, 0, 1);
  const State held = optimizer.held_states(problem.names());
  const at::Tensor codes = held.at("p1").at("exp_avg").as_tensor();
  EXPECT_EQ(codes.scalar_type(), at::kByte);
  EXPECT_EQ(codes.sizes(), (std::vector<int64_t>{64, 80}));
  EXPECT_EQ(held.at("p0").at("exp_avg_sq").as_tensor().scalar_type(), at::kByte);
  EXPECT_EQ(held.at("p0").at("scales").as_tensor().sizes(), (std::vector<int64_t>{2, 17}));
  EXPECT_FALSE(held.at("p2").contains("scales"));
  EXPECT_EQ(held.at("p2").at("exp_avg").as_tensor().scalar_type(), at::kFloat);

  const State saved = optimizer.parameter_states(problem.names());
  EXPECT_EQ(saved.at("p1").at("exp_avg").as_tensor().scalar_type(), at::kFloat);
  EXPECT_EQ(saved.at("p1").at("exp_avg").as_tensor().sizes(), (std::vector<int64_t>{64, 80}));
  EXPECT_FALSE(saved.at("p1").contains("scales"));
}

TEST(AdamW8bit, GoesOnToTheBitWhereItWasSaved) {
  for (const at::ScalarType type : {at::kFloat, at::kDouble, at::kBFloat16}) {
    Blocks straight(type);
    AdamW8bit once(straight.params, {});
    straight.train(once, 0, 20);

    Blocks resumed(type);
    AdamW8bit before(resumed.params, {});
    resumed.train(before, 0, 9);
    AdamW8bit after(resumed.params, {.lr = 5});
    load_optimizer_state_dict(after, resumed.names(), optimizer_state_dict(before, resumed.names()));
    for (const char* field : {"exp_avg", "exp_avg_sq", "scales"})
      EXPECT_TRUE(at::equal(after.held_states(resumed.names()).at("p0").at(field).as_tensor(),
                            before.held_states(resumed.names()).at("p0").at(field).as_tensor()))
          << field;
    resumed.train(after, 9, 11);
    EXPECT_TRUE(at::equal(straight.values(), resumed.values())) << type;
  }
}

TEST(AdamW8bit, StateOfAnotherLayoutIsRestored) {
  const auto make = [](at::MemoryFormat format) {
    at::Tensor param = at::rand({8, 16, 8, 8}, at::detail::createCPUGenerator(1)).contiguous(format);
    return param.set_requires_grad(true);
  };
  at::Tensor param = make(at::MemoryFormat::ChannelsLast);
  ParameterNames names;
  names.add("p", param);
  AdamW8bit optimizer({param}, {});
  param.mutable_grad() = at::rand({8, 16, 8, 8}) - 0.5;
  optimizer.step();
  State states = optimizer.parameter_states(names);
  // As files hold it.
  for (const char* field : {"exp_avg", "exp_avg_sq"})
    states["p"][field] = states.at("p").at(field).as_tensor().contiguous();
  AdamW8bit other({param}, {});
  other.load_parameter_states(names, states);
  for (const char* field : {"exp_avg", "exp_avg_sq", "scales"})
    EXPECT_TRUE(at::equal(other.held_states(names).at("p").at(field).as_tensor(),
                          optimizer.held_states(names).at("p").at(field).as_tensor()));
}

TEST(AdamW8bit, ComputesTheSameInEveryType) {
  const auto trained = [](at::ScalarType type) {
    Blocks problem(type);
    AdamW8bit optimizer(problem.params, {});
    problem.train(optimizer, 0, 10);
    return problem.values().to(at::kFloat);
  };
  const at::Tensor expected = trained(at::kFloat);
  EXPECT_TRUE(at::allclose(trained(at::kDouble), expected, 1e-4, 1e-4));
  EXPECT_TRUE(at::allclose(trained(at::kBFloat16), expected, 0.02, 0.02));
}

TEST(AdamW8bit, WhatIsInsideOfAnotherIsCountedAsItIsHeld) {
  Blocks problem;
  Lookahead optimizer(std::make_shared<AdamW8bit>(problem.params, AdamW8bitOptions{}), {});
  problem.train(optimizer, 0, 1);
  EXPECT_TRUE(optimizer.held_states(problem.names()).at("p0").contains("scales"));
  EXPECT_TRUE(optimizer.held_states(problem.names()).at("p0").contains("slow_weights"));
  EXPECT_FALSE(optimizer.parameter_states(problem.names()).at("p0").contains("scales"));
}

TEST(AdamW8bit, RefusesOptionsOutOfRangeAndStateThatDoesNotFit) {
  Blocks problem;
  EXPECT_NE(error_of([&] { AdamW8bit(problem.params, {.min_8bit_size = 0}); }).find("adamw8bit.min_8bit_size must be"),
            std::string::npos);
  AdamW8bit optimizer(problem.params, {});
  problem.train(optimizer, 0, 1);
  State states = optimizer.parameter_states(problem.names());
  states["p1"]["exp_avg"] = at::zeros({64, 81});
  EXPECT_NE(
      error_of([&] { optimizer.load_parameter_states(problem.names(), states); }).find("'p1.exp_avg' does not fit"),
      std::string::npos);
}

}  // namespace
}  // namespace levin::optim
