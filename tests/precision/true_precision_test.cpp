#include <levin/core/precision/true_precision.h>

#include "tests/support/tiny.h"

#include <levin/core/base/seed.h>

#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>

#include <string>

namespace levin::testing {
namespace {

constexpr double kStart = 1700000000.125;  // what float32 rounds to whole 128 s

/// A module with buffers for numbers that single precision does not hold, and one that it computes with.
class TimedModule : public TinyModule {
 public:
  explicit TimedModule(const Options& options) : TinyModule(options) {
    register_buffer("start", at::full({}, kStart, at::kDouble));
    sums_ = register_buffer("sums", at::full({3}, kStart, at::kDouble));
    offset_ = register_buffer("offset", at::full({1}, 0.5, at::kFloat));
    register_buffer("count", at::full({}, int64_t{1} << 40, at::kLong));
  }
  StepOutput training_step(const Batch& batch, int64_t) override {
    sums_.add_(0.125);
    return torch::nn::functional::mse_loss(forward(batch["x"]) + offset_, batch["y"]);
  }

 private:
  at::Tensor sums_;
  at::Tensor offset_;
};

at::ScalarType compute_type(const std::string& precision) {
  if (precision == "64-true") return at::kDouble;
  if (precision == "16-true") return at::kHalf;
  return precision == "bf16-true" ? at::kBFloat16 : at::kFloat;
}

TEST(TruePrecision, BuffersInDoublePrecisionKeepTheirDigits) {
  for (const std::string precision : {"32-true", "16-mixed", "bf16-mixed", "bf16-true", "16-true", "64-true"}) {
    for (const std::string strategy : {"single_device", "ddp_threads", "ddp_spawn"}) {
      SCOPED_TRACE(precision + ", " + strategy);
      TrainerOptions options = quiet(1);
      options.precision = precision;
      options.strategy = strategy;
      options.devices = strategy == "single_device" ? 1 : 2;
      const auto module = make<TimedModule>({});
      Trainer(options).fit(module, tiny_loader(32, 8));
      const auto buffers = module->named_buffers();
      const int64_t batches = strategy == "single_device" ? 4 : 2;
      EXPECT_TRUE(buffers["start"].equal(at::full({}, kStart, at::kDouble)));
      EXPECT_TRUE(buffers["sums"].equal(at::full({3}, kStart + 0.125 * static_cast<double>(batches), at::kDouble)));
      EXPECT_TRUE(buffers["count"].equal(at::full({}, int64_t{1} << 40, at::kLong)));
      EXPECT_TRUE(buffers["offset"].equal(at::full({1}, 0.5, compute_type(precision))));
      for (const auto& parameter : module->parameters()) EXPECT_EQ(parameter.scalar_type(), compute_type(precision));
    }
  }
}

TEST(TruePrecision, WeightsOfForkedRanksComeBackInTheRunsPrecision) {
  for (const std::string precision : {"64-true", "bf16-true", "32-true"}) {
    const auto trained = [&](const std::string& strategy) {
      seed_everything(3);
      TrainerOptions options = quiet(1);
      options.precision = precision;
      options.strategy = strategy;
      options.devices = 2;
      const auto module = make<TinyModule>({});
      Trainer(options).fit(module, tiny_loader());
      return weights(*module);
    };
    EXPECT_TRUE(identical(trained("ddp_spawn"), trained("ddp_threads"))) << precision;
  }
}

TEST(TruePrecision, BuffersFollowTheParametersOfTheirModule) {
  struct Net : torch::nn::Module {
    Net() {
      norm = register_module("norm", torch::nn::BatchNorm1d(3));
      norm->to(at::kDouble);
      linear = register_module("linear", torch::nn::Linear(3, 3));
      linear->register_buffer("total", at::full({1}, kStart, at::kDouble));
      register_buffer("start", at::full({1}, kStart, at::kDouble));
      register_buffer("half", at::full({1}, 0.5, at::kHalf));
      register_buffer("packed", at::ones({4}).to(at::kFloat8_e4m3fn));
    }
    torch::nn::BatchNorm1d norm{nullptr};
    torch::nn::Linear linear{nullptr};
  };
  Net net;
  TruePrecision(at::kFloat).convert_module(net);
  const auto buffers = net.named_buffers();
  EXPECT_EQ(net.norm->weight.scalar_type(), at::kFloat);
  EXPECT_EQ(buffers["norm.running_mean"].scalar_type(), at::kFloat);
  EXPECT_EQ(buffers["linear.total"].item<double>(), kStart);
  EXPECT_EQ(buffers["start"].item<double>(), kStart);
  EXPECT_EQ(buffers["half"].scalar_type(), at::kFloat);
  EXPECT_EQ(buffers["packed"].scalar_type(), at::kFloat8_e4m3fn);
  EXPECT_TRUE(net.norm(at::rand({4, 3})).isfinite().all().item<bool>());
}

}  // namespace
}  // namespace levin::testing
