#include <levin/strategies/pipeline/deferred_weight_gradients.h>

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>

#include <functional>
#include <memory>
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
        for (size_t j = 0; j < expected.size(); ++j) EXPECT_TRUE(actual[j].allclose(expected[j])) << j;
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

}  // namespace
}  // namespace levin
