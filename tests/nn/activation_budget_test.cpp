// A budget for what checkpointed units leave for backward.

#include "../support/captured_log.h"

#include <levin/core/nn/activation_budget.h>

#include <levin/core/base/error.h>
#include <levin/core/base/weight_cast_scope.h>
#include <levin/core/devices/accounting_allocator.h>
#include <levin/core/nn/activation_checkpointing.h>
#include <levin/core/nn/flop_counter.h>
#include <levin/core/nn/kept_results.h>
#include <levin/core/nn/unit.h>

#include <ATen/autocast_mode.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/silu.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/utils.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace levin {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int64_t kWidth = 32;
constexpr int64_t kTokens = 16;

struct BudgetBlockImpl : torch::nn::Module {
  BudgetBlockImpl() {
    norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({kWidth})));
    mix = register_module("mix", torch::nn::Linear(kWidth, 3 * kWidth));
    wide = register_module("wide", torch::nn::Linear(kWidth, 4 * kWidth));
    narrow = register_module("narrow", torch::nn::Linear(4 * kWidth, kWidth));
    dropout = register_module("dropout", torch::nn::Dropout(0.2));
  }
  at::Tensor forward(const at::Tensor& x) {
    const auto parts = mix(norm(x)).unflatten(-1, {3, 2, kWidth / 2}).permute({2, 0, 3, 1, 4}).unbind();
    const at::Tensor seen = at::scaled_dot_product_attention(parts[0], parts[1], parts[2], {}, 0.0, /*is_causal=*/true);
    at::Tensor y = x + dropout(seen.transpose(1, 2).flatten(2));
    at::Tensor hidden = at::gelu(wide(y));
    hidden.mul_(0.5);  // of a result that may be kept
    return y + dropout(narrow(hidden));
  }
  torch::nn::LayerNorm norm{nullptr};
  torch::nn::Linear mix{nullptr}, wide{nullptr}, narrow{nullptr};
  torch::nn::Dropout dropout{nullptr};
};
LEVIN_UNIT(BudgetBlock);

struct BudgetModelImpl : torch::nn::Module {
  BudgetModelImpl() {
    for (int i = 0; i < 4; ++i) blocks.push_back(register_module("block" + std::to_string(i), BudgetBlock()));
  }
  at::Tensor forward(at::Tensor x) {
    for (BudgetBlock& block : blocks) x = block(x);
    return blocks[1](x);  // called twice in a step
  }
  std::vector<BudgetBlock> blocks;
};
TORCH_MODULE(BudgetModel);

/// Some steps of a model: what they leave, and what they cost.
struct Steps {
  std::vector<at::Tensor> left;
  int64_t kept_bytes = 0;  ///< between the last forward and its backward, without the results
  int64_t recomputed = 0;  ///< operations of the last step
};

Steps run(const ActivationCheckpointingOptions& options) {
  torch::manual_seed(1);
  BudgetModel model;
  const ActivationCheckpointing checkpointing(*model, options);
  Steps steps;
  for (int i = 0; i < 4; ++i) {
    const at::Tensor x = at::randn({2, kTokens, kWidth}).requires_grad_();
    const FlopCounter counter;
    const int64_t before = AccountingAllocator::of_this_thread().in_use();
    const at::Tensor y = model(x);
    steps.kept_bytes = AccountingAllocator::of_this_thread().in_use() - before - static_cast<int64_t>(y.nbytes());
    y.square().sum().backward();
    steps.recomputed = counter.count().recomputed;
    steps.left.push_back(x.grad());
  }
  for (const auto& parameter : model->parameters()) steps.left.push_back(parameter.grad());
  return steps;
}

ActivationCheckpointingOptions with_budget(const std::string& budget) {
  return ConfigCodec<ActivationCheckpointingOptions>::parse(
      Config::parse(fmt::format("{{units: [BudgetBlock], budget: {}}}", budget), {}), "activation_checkpointing");
}

bool same(const Steps& a, const Steps& b) {
  return std::equal(a.left.begin(), a.left.end(), b.left.begin(), b.left.end(),
                    [](const at::Tensor& x, const at::Tensor& y) { return x.equal(y); });
}

TEST(ActivationBudget, StepsAreThePlainOnesToTheBitAndStayWithinIt) {
  AccountingAllocator::install();
  const Steps plain = run({});
  const Steps checkpointed = run({.units = {"BudgetBlock"}});
  for (const double share : {0.4, 0.6, 0.8, 1.0}) {
    SCOPED_TRACE(share);
    const testing::CapturedLog log;
    const Steps steps = run(with_budget(std::to_string(share)));
    EXPECT_TRUE(same(steps, plain));
    // What operators save at once is more than what forwards leave: the units' working memory is in the budget.
    EXPECT_LE(steps.kept_bytes, static_cast<int64_t>(share * static_cast<double>(plain.kept_bytes)));
    EXPECT_GT(steps.kept_bytes, checkpointed.kept_bytes);
    // Which results save most time is measured, and differs from run to run.
    EXPECT_LE(steps.recomputed, checkpointed.recomputed);
    EXPECT_THAT(log.text(), AllOf(HasSubstr("activation_checkpointing: a budget of"), HasSubstr("operator"),
                                  HasSubstr("are kept, which saves")));
  }
}

/// Products that are alike, of weights that autocast converts as they are, of an input that it converts as often.
struct BudgetGatesImpl : torch::nn::Module {
  BudgetGatesImpl() {
    for (const char* name : {"query", "key", "value"})
      weights.push_back(register_parameter(name, at::randn({kWidth, kWidth}) / 6));
  }
  at::Tensor forward(const at::Tensor& x) {
    return x +
           at::linear(x, weights[0]).tanh() * at::linear(x, weights[1]).sigmoid() * at::silu(at::linear(x, weights[2]));
  }
  std::vector<at::Tensor> weights;
};
LEVIN_UNIT(BudgetGates);

TEST(ActivationBudget, OfUnitsThatAreCalledTwiceUnderAutocast) {
  const auto run = [](const std::string& text) {
    torch::manual_seed(1);
    struct ModelImpl : torch::nn::Module {
      ModelImpl() {
        first = register_module("first", BudgetGates());
        second = register_module("second", BudgetGates());
      }
      at::Tensor forward(const at::Tensor& x) { return second(first(x * 1)) + second(first(x.sin())); }
      BudgetGates first{nullptr}, second{nullptr};
    };
    auto model = std::make_shared<ModelImpl>();
    std::optional<ActivationCheckpointing> checkpointing;
    if (!text.empty())
      checkpointing.emplace(*model, ConfigCodec<ActivationCheckpointingOptions>::parse(
                                        Config::parse(fmt::format("{{units: [BudgetGates], {}}}", text), {}),
                                        "activation_checkpointing"));
    at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
    std::vector<at::Tensor> left;
    for (int i = 0; i < 3; ++i) {
      const at::Tensor x = at::randn({kTokens, kWidth}).requires_grad_();
      at::Tensor loss;
      {
        const WeightCastScope casts;
        at::autocast::set_autocast_enabled(at::kCPU, true);
        loss = model->forward(x).square().sum();
        at::autocast::set_autocast_enabled(at::kCPU, false);
      }
      const int64_t before = operators_given();
      loss.backward();
      if (!text.empty() && i == 2) EXPECT_GT(operators_given(), before) << text;
      left.push_back(x.grad());
    }
    for (const auto& parameter : model->parameters()) left.push_back(parameter.grad());
    return left;
  };
  const std::vector<at::Tensor> expected = run("");
  for (const char* text : {"budget: 0.5", "budget: 0.6", "budget: 0.7", "budget: 0.8", "budget: 0.9", "budget: 0.99",
                           "keep: [linear]", "keep: [_to_copy, linear]", "keep: [_to_copy, tanh]"}) {
    SCOPED_TRACE(text);
    const std::vector<at::Tensor> got = run(text);
    for (size_t i = 0; i < expected.size(); ++i) EXPECT_TRUE(got[i].equal(expected[i])) << i;
  }
}

TEST(ActivationBudget, IsBytesToo) {
  AccountingAllocator::install();
  const Steps plain = run({});
  const testing::CapturedLog log;
  const Steps steps = run(with_budget("300KiB"));
  EXPECT_TRUE(same(steps, plain));
  EXPECT_LE(steps.kept_bytes, 300 * 1024);
  EXPECT_THAT(log.text(), HasSubstr("a budget of 300.0 KiB"));
}

TEST(ActivationBudget, TooSmallSaysTheLeast) {
  try {
    run(with_budget("10KiB"));
    FAIL() << "a budget that nothing fits";
  } catch (const std::exception& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("budget is below what the units need"), HasSubstr("got 10.0 KiB"),
                                    HasSubstr("valid: at least")));
  }
}

TEST(ActivationBudget, IsASizeOrAShare) {
  EXPECT_EQ(with_budget("6GiB").budget.bytes, int64_t{6} << 30);
  EXPECT_EQ(with_budget("0.4").budget.share, 0.4);
  EXPECT_FALSE(with_budget("null").budget.is_set());
  for (const char* wrong : {"0", "-1", "much", "6 cows", "[1]"}) EXPECT_THROW(with_budget(wrong), ConfigError) << wrong;
  auto both = with_budget("0.5");
  both.keep = {"linear"};
  EXPECT_THROW(run(both), ConfigError);
}

}  // namespace
}  // namespace levin
