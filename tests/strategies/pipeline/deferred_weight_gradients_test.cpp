#include <levin/strategies/pipeline/deferred_weight_gradients.h>

#include <levin/core/base/weight_cast_scope.h>

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>

#include <cstdint>

#include <functional>
#include <memory>
#include <utility>
#include <vector>

namespace levin {
namespace {

/// The gradients of input, bias and weight; `deferred`: the weight's comes in the second half only.
std::vector<at::Tensor> gradients(const std::function<at::Tensor(const at::Tensor& x)>& forward, at::Tensor x,
                                  torch::nn::Linear layer, bool deferred) {
  layer->zero_grad();
  x = x.detach().requires_grad_();
  const auto weights = deferred ? std::make_shared<DeferredWeightGradients>() : nullptr;
  at::Tensor y;
  {
    const DeferWeightsScope scope(weights);
    y = forward(x);
  }
  y.sin().sum().backward();
  if (deferred) {
    EXPECT_FALSE(layer->weight.grad().defined()) << "backward has computed what was to be put off";
    weights->run();
  }
  return {x.grad(), layer->bias.defined() ? layer->bias.grad() : at::zeros({1}), layer->weight.grad()};
}

TEST(DeferredWeightGradients, PutsOffTheWeightsOfLinearLayers) {
  torch::manual_seed(1);
  for (const bool bias : {true, false}) {
    torch::nn::Linear layer(torch::nn::LinearOptions(5, 3).bias(bias));
    for (const at::Tensor& x : {at::randn({4, 5}), at::randn({2, 4, 5})}) {
      const std::vector<std::function<at::Tensor(const at::Tensor&)>> forwards = {
          [&](const at::Tensor& input) { return layer(input); },
          [&](const at::Tensor& input) { return at::linear(input, layer->weight, layer->bias); }};
      for (size_t i = 0; i < forwards.size(); ++i) {
        SCOPED_TRACE(::testing::Message()
                     << (bias ? "with" : "without") << " bias, " << x.dim() << " dimensions, " << i);
        const auto expected = gradients(forwards[i], x, layer, false);
        const auto actual = gradients(forwards[i], x, layer, true);
        for (size_t j = 0; j < expected.size(); ++j) EXPECT_TRUE(at::equal(actual[j], expected[j])) << j;
      }
    }
  }
}

TEST(DeferredWeightGradients, LeavesOtherProductsAlone) {
  torch::manual_seed(1);
  const auto weights = std::make_shared<DeferredWeightGradients>();
  const DeferWeightsScope scope(weights);
  const at::Tensor x = at::randn({4, 5});
  const at::Tensor weight = at::randn({5, 3}).requires_grad_();
  const at::Tensor bias = at::randn({3});
  (x.matmul(weight) + at::addmm(bias, x, weight) + at::addmm(bias, x, weight, 1, 2)).sum().backward();
  EXPECT_TRUE(weight.grad().allclose(4 * x.sum(0).unsqueeze(1).expand({5, 3})));
  // No parameter, a part of one, and a product that is scaled.
  const at::Tensor wide = at::randn({6, 5}).requires_grad_();
  const at::Tensor part = wide.slice(0, 0, 3);
  (x.matmul((2 * wide).t()).sum() + at::addmm(bias, x, part.t()).sum() +
   at::addmm(bias, x, wide.t().slice(1, 3, 6), 1, 3).sum())
      .backward();
  at::Tensor expected = 2 * x.sum(0).unsqueeze(0).expand({6, 5}).clone();
  expected.slice(0, 0, 3) += x.sum(0);
  expected.slice(0, 3, 6) += 3 * x.sum(0);
  EXPECT_TRUE(wide.grad().allclose(expected));
  weights->run();
  EXPECT_TRUE(wide.grad().allclose(expected));
}

/// Autocast to bfloat16 on the CPU, as `precision: bf16-mixed` has it in forward.
class AutocastScope {
 public:
  explicit AutocastScope(bool enabled) : casts_(enabled), enabled_(enabled) {
    if (!enabled_) return;
    at::autocast::set_autocast_enabled(at::kCPU, true);
    at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
  }
  ~AutocastScope() {
    if (enabled_) at::autocast::set_autocast_enabled(at::kCPU, false);
  }
  AutocastScope(const AutocastScope&) = delete;
  AutocastScope& operator=(const AutocastScope&) = delete;

 private:
  WeightCastScope casts_;
  bool enabled_;
};

/// Eight weights: some are called as torch::nn::Linear does, some as a function, and one of each twice.
struct EightLayers {
  EightLayers() {
    for (int i = 0; i < 8; ++i) layers.emplace_back(torch::nn::LinearOptions(6, 6).bias(i % 4 != 3));
  }

  at::Tensor forward(at::Tensor x) {
    for (size_t i = 0; i < layers.size(); ++i)
      for (int times = 0; times < (i < 2 ? 2 : 1); ++times)
        x = (i % 2 == 0 ? layers[i](x) : at::linear(x, layers[i]->weight, layers[i]->bias)).sin();
    return x;
  }

  /// Runs two batches, whose gradients accumulate. Returns those of all parameters, and of the input.
  std::vector<at::Tensor> gradients(bool autocast, bool deferred, int64_t expected_size) {
    torch::manual_seed(2);
    std::vector<at::Tensor> result;
    for (auto& layer : layers) layer->zero_grad();
    for (int batch = 0; batch < 2; ++batch) {
      const at::Tensor x = at::randn({2, 5, 6}).requires_grad_();
      const auto weights = deferred ? std::make_shared<DeferredWeightGradients>() : nullptr;
      at::Tensor y;
      {
        const AutocastScope in_autocast(autocast);
        const DeferWeightsScope scope(weights);
        y = forward(x);
      }
      if (after_forward) after_forward();
      y.to(at::kFloat).square().sum().backward();
      if (deferred) {
        EXPECT_EQ(weights->size(), expected_size);
        weights->run();
        EXPECT_EQ(weights->size(), 0);
      }
      result.push_back(x.grad());
    }
    for (auto& layer : layers)
      for (const at::Tensor& parameter : layer->parameters()) result.push_back(parameter.grad());
    return result;
  }

  std::vector<torch::nn::Linear> layers;
  std::function<void()> after_forward;
};

void expect_identical(const std::vector<at::Tensor>& actual, const std::vector<at::Tensor>& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(actual[i].scalar_type(), at::kFloat) << i;
    EXPECT_TRUE(at::equal(actual[i], expected[i])) << i;
  }
}

TEST(DeferredWeightGradients, HaveTheBitsOfAnOrdinaryBackwardInMixedPrecisionToo) {
  for (const bool autocast : {false, true}) {
    SCOPED_TRACE(autocast ? "bf16-mixed" : "32-true");
    EightLayers model;
    const auto expected = model.gradients(autocast, /*deferred=*/false, 0);
    expect_identical(model.gradients(autocast, /*deferred=*/true, /*expected_size=*/10), expected);
  }
}

TEST(DeferredWeightGradients, AHookSeesTheGradientThatAnOrdinaryBackwardShowsIt) {
  for (const bool autocast : {false, true})
    for (const bool after_forward : {false, true})
      for (const size_t hooked : {0, 1, 2, 3}) {
        SCOPED_TRACE(::testing::Message() << (autocast ? "bf16-mixed" : "32-true") << ", layer " << hooked
                                          << (after_forward ? ", after forward" : ""));
        EightLayers model;
        std::vector<at::Tensor> seen;
        bool has_hook = false;
        const auto add_hook = [&] {
          if (has_hook) return;
          has_hook = true;
          model.layers[hooked]->weight.register_hook([&](const at::Tensor& gradient) {
            seen.push_back(gradient);
            return 0.5 * gradient;
          });
        };
        if (after_forward)
          model.after_forward = add_hook;
        else
          add_hook();
        const auto expected = model.gradients(autocast, /*deferred=*/false, 0);
        const std::vector<at::Tensor> ordinary = std::exchange(seen, {});
        const int64_t size = hooked < 2 ? 8 : 9;
        expect_identical(model.gradients(autocast, /*deferred=*/true, size), expected);
        ASSERT_EQ(ordinary.size(), 2U);
        expect_identical(seen, ordinary);
      }
}

TEST(DeferredWeightGradients, LeavesConvertedProductsAloneThatAreNoWeights) {
  torch::manual_seed(1);
  const AutocastScope in_autocast(true);
  const auto weights = std::make_shared<DeferredWeightGradients>();
  const DeferWeightsScope scope(weights);
  const at::Tensor x = at::randn({4, 5});
  const at::Tensor weight = at::randn({5, 5}).requires_grad_();
  // Not transposed, transposed twice, a part, a multiple, and a constant.
  (x.matmul(weight).sum() + x.matmul(weight.t().t()).sum() + at::linear(x, weight.slice(0, 0, 3)).sum() +
   at::linear(x, 2 * weight).sum() + at::linear(x, weight.detach()).sum())
      .backward();
  EXPECT_EQ(weights->size(), 0);
  EXPECT_TRUE(weight.grad().defined());
}

}  // namespace
}  // namespace levin
