#include <levin/core/nn/functional.h>

#include <levin/core/base/error.h>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <limits>
#include <string>
#include <vector>

namespace levin {
namespace {

struct Result {
  at::Tensor loss, gradient;
};

template <class CrossEntropy>
Result loss_and_gradient(const at::Tensor& logits, const CrossEntropy& cross_entropy) {
  const at::Tensor input = logits.detach().clone().requires_grad_();
  const at::Tensor loss = cross_entropy(input);
  (loss * 3).backward();
  return {loss.detach(), input.grad()};
}

void expect_as_libtorch(const at::Tensor& logits, const at::Tensor& target, int64_t ignore_index = -100) {
  const auto expected = loss_and_gradient(logits, [&](const at::Tensor& input) {
    return at::cross_entropy_loss(input, target, {}, at::Reduction::Mean, ignore_index);
  });
  const auto own = loss_and_gradient(
      logits, [&](const at::Tensor& input) { return nn::functional::cross_entropy(input, target, ignore_index); });
  EXPECT_TRUE(at::allclose(own.loss, expected.loss, 1e-6, 1e-6, /*equal_nan=*/true)) << own.loss << expected.loss;
  EXPECT_TRUE(at::allclose(own.gradient, expected.gradient, 1e-5, 1e-7, /*equal_nan=*/true)) << logits.sizes();
}

TEST(FunctionalCrossEntropy, FollowsLibTorchWhateverTheShape) {
  torch::manual_seed(1);
  for (const int64_t rows : {1, 2, 32, 100})
    for (const int64_t classes : {1, 2, 3, 10, 16, 17, 40})
      expect_as_libtorch(at::randn({rows, classes}) * 10, at::randint(classes, {rows}));
  expect_as_libtorch(at::randn({10, 4}).t(), at::randint(10, {4}));
  expect_as_libtorch(at::randn({8, 10}, at::kDouble), at::randint(10, {8}));
  expect_as_libtorch(at::randn({4, 10, 6}), at::randint(10, {4, 6}));
  expect_as_libtorch(at::randn({4, 10}), at::randn({4, 10}).softmax(1));
}

TEST(FunctionalCrossEntropy, RowsToIgnoreDoNotCount) {
  const at::Tensor target = at::tensor({1, -100, 3, -100, 0}, at::kLong);
  expect_as_libtorch(at::randn({5, 4}), target);
  expect_as_libtorch(at::randn({5, 4}), at::tensor({1, 2, 3, 2, 0}, at::kLong), /*ignore_index=*/2);
  expect_as_libtorch(at::randn({2, 4}), at::full({2}, -100, at::kLong));
}

TEST(FunctionalCrossEntropy, LargeAndNotFiniteLogitsGiveWhatLibTorchGives) {
  const float infinity = std::numeric_limits<float>::infinity();
  for (const float value : {1e30F, -1e30F, infinity, -infinity, std::numeric_limits<float>::quiet_NaN()})
    for (const int64_t column : {0, 1, 2}) {
      at::Tensor logits = at::ones({2, 3});
      logits[0][column] = value;
      expect_as_libtorch(logits, at::tensor({1, 2}, at::kLong));
    }
}

TEST(FunctionalCrossEntropy, RefusesAClassThatDoesNotExist) {
  for (const int64_t wrong : {-1, 4}) {
    try {
      nn::functional::cross_entropy(at::zeros({2, 4}), at::tensor({0L, wrong}, at::kLong));
      ADD_FAILURE() << wrong;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("got " + std::to_string(wrong) + "; valid: 0 to 3"), std::string::npos)
          << error.what();
    }
  }
}

TEST(FunctionalCrossEntropy, ItsGradientCanTakePartInALoss) {
  torch::manual_seed(2);
  const at::Tensor logits = at::randn({5, 4});
  const at::Tensor target = at::randint(4, {5});
  std::vector<at::Tensor> second;
  for (const bool own : {true, false}) {
    const at::Tensor input = logits.clone().requires_grad_();
    const at::Tensor loss = own ? nn::functional::cross_entropy(input, target) : at::cross_entropy_loss(input, target);
    const at::Tensor gradient = torch::autograd::grad({loss}, {input}, {}, true, true)[0];
    gradient.square().sum().backward();
    second.push_back(input.grad());
  }
  EXPECT_TRUE(at::allclose(second[0], second[1]));
}

}  // namespace
}  // namespace levin
