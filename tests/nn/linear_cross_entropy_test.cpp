#include <levin/core/nn/linear_cross_entropy.h>

#include <levin/core/base/error.h>

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/functional/loss.h>
#include <torch/utils.h>

#include <functional>
#include <limits>
#include <string>
#include <vector>

namespace levin::nn::functional {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kRows = 13;
constexpr int64_t kFeatures = 6;
constexpr int64_t kClasses = 9;

struct Given {
  explicit Given(at::ScalarType type = at::kDouble) {
    torch::manual_seed(2);
    const auto options = at::TensorOptions(type);
    input = at::randn({kRows, kFeatures}, options).requires_grad_();
    weight = at::randn({kClasses, kFeatures}, options).requires_grad_();
    bias = at::randn({kClasses}, options).requires_grad_();
    class_weights = at::rand({kClasses}, options) + 0.5;
    target = at::randint(0, kClasses, {kRows}, at::kLong);
    target[2] = target[3] = target[12] = -100;
  }
  std::vector<at::Tensor> leaves() const { return {input, weight, bias}; }
  at::Tensor input, weight, bias, class_weights, target;
};

at::Tensor plain(const Given& given, const LinearCrossEntropyOptions& options) {
  const at::Tensor logits = at::linear(given.input, given.weight, options.bias);
  at::Tensor loss = at::cross_entropy_loss(
      logits, given.target,
      options.class_weights.defined() ? std::optional<at::Tensor>(options.class_weights) : std::nullopt,
      options.sum ? at::Reduction::Sum : at::Reduction::Mean, options.ignore_index, options.label_smoothing);
  if (options.z_loss > 0) {
    const at::Tensor counted = (given.target != options.ignore_index).to(logits.scalar_type());
    const at::Tensor z = (logits.logsumexp(1).square() * counted).sum();
    loss = loss + options.z_loss * (options.sum ? z : z / counted.sum());
  }
  return loss;
}

std::vector<at::Tensor> gradients(const at::Tensor& loss, const std::vector<at::Tensor>& leaves, double slope = 1) {
  return torch::autograd::grad({loss}, leaves, {at::full({}, slope, loss.options())}, /*retain_graph=*/true,
                               /*create_graph=*/false, /*allow_unused=*/true);
}

void expect_same(const at::Tensor& result, const at::Tensor& expected, double tolerance, const std::string& what) {
  ASSERT_EQ(result.defined(), expected.defined()) << what;
  if (!expected.defined()) return;
  EXPECT_LE((result - expected).abs().max().item<double>(), tolerance) << what;
}

TEST(LinearCrossEntropy, IsThatOfTheLogitsWithAnyOptionsAndChunks) {
  for (const auto type : {at::kDouble, at::kFloat}) {
    const Given given(type);
    const double tolerance = type == at::kDouble ? 1e-12 : 2e-6;
    for (const bool has_bias : {false, true})
      for (const bool has_weights : {false, true})
        for (const double smoothing : {0.0, 0.1})
          for (const double z_loss : {0.0, 0.01})
            for (const bool sum : {false, true}) {
              LinearCrossEntropyOptions options{.label_smoothing = smoothing, .z_loss = z_loss, .sum = sum};
              if (has_bias) options.bias = given.bias;
              if (has_weights) options.class_weights = given.class_weights;
              const at::Tensor expected = plain(given, options);
              const auto slopes = gradients(expected, given.leaves(), 0.7);
              for (const int64_t chunk : {0, 1, 2, 5, 13, 100}) {
                options.chunk = chunk;
                const std::string what = ::testing::PrintToString(std::vector<double>{
                    double(has_bias), double(has_weights), smoothing, z_loss, double(sum), double(chunk)});
                const at::Tensor loss = linear_cross_entropy(given.input, given.weight, given.target, options);
                expect_same(loss, expected, tolerance * (sum ? 10 : 1), what);
                const auto found = gradients(loss, given.leaves(), 0.7);
                for (size_t i = 0; i < found.size(); ++i)
                  expect_same(found[i], slopes[i], tolerance * (sum ? 10 : 1), what + std::to_string(i));
              }
            }
  }
}

TEST(LinearCrossEntropy, TakesRowsOfAnyShapeAndAnyIndexToIgnore) {
  const Given given;
  const at::Tensor input = given.input.narrow(0, 0, 12).detach().requires_grad_();
  const at::Tensor target = given.target.narrow(0, 0, 12).masked_fill(given.target.narrow(0, 0, 12) < 0, 3);
  const auto expected = torch::nn::functional::cross_entropy(
      at::linear(input, given.weight), target, torch::nn::functional::CrossEntropyFuncOptions().ignore_index(3));
  const at::Tensor loss =
      linear_cross_entropy(input.view({2, 3, 2, kFeatures}), given.weight, target.view({2, 3, 2}), {.ignore_index = 3});
  expect_same(loss, expected, 1e-12, "loss");
  expect_same(gradients(loss, {input})[0], gradients(expected, {input})[0], 1e-12, "gradient");
}

TEST(LinearCrossEntropy, LargeLogitsDoNotOverflow) {
  Given given(at::kFloat);
  given.input = (given.input.detach() * 1000).requires_grad_();
  const at::Tensor expected = plain(given, {});
  const at::Tensor loss = linear_cross_entropy(given.input, given.weight, given.target);
  EXPECT_TRUE(loss.isfinite().item<bool>());
  EXPECT_NEAR(loss.item<double>(), expected.item<double>(), 1e-5 * expected.item<double>());
}

TEST(LinearCrossEntropy, WhatIsNotTrainedGetsNoGradient) {
  for (int frozen = 0; frozen < 8; ++frozen) {
    Given given;
    const auto leaves = given.leaves();
    std::vector<at::Tensor> trained;
    for (size_t i = 0; i < leaves.size(); ++i) {
      leaves[i].set_requires_grad((frozen >> i & 1) == 0);
      if ((frozen >> i & 1) == 0) trained.push_back(leaves[i]);
    }
    const LinearCrossEntropyOptions options{.bias = given.bias};
    const at::Tensor loss = linear_cross_entropy(given.input, given.weight, given.target, options);
    const at::Tensor expected = plain(given, options);
    expect_same(loss.detach(), expected.detach(), 1e-12, "loss");
    EXPECT_EQ(loss.requires_grad(), !trained.empty());
    if (trained.empty()) continue;
    const auto found = gradients(loss, trained);
    const auto slopes = gradients(expected, trained);
    for (size_t i = 0; i < found.size(); ++i) expect_same(found[i], slopes[i], 1e-12, std::to_string(frozen));
  }
}

TEST(LinearCrossEntropy, AGraphMayBeUsedAgainAndGradientsAreNotShared) {
  const Given given;
  const at::Tensor loss = linear_cross_entropy(given.input, given.weight, given.target);
  const auto first = gradients(loss, {given.input, given.weight}, 2);
  const auto kept = first[1].clone();
  const auto second = gradients(loss, {given.input, given.weight}, 3);
  EXPECT_TRUE(first[1].equal(kept));
  expect_same(second[1] / 3, first[1] / 2, 1e-12, "second backward");
}

TEST(LinearCrossEntropy, GradientsHaveGradients) {
  const Given given;
  const LinearCrossEntropyOptions options{.bias = given.bias, .label_smoothing = 0.1, .z_loss = 0.01};
  const auto second = [&](const at::Tensor& loss) {
    const auto slopes = torch::autograd::grad({loss}, given.leaves(), {}, true, /*create_graph=*/true);
    return gradients(slopes[0].square().sum() + slopes[1].square().sum(), given.leaves());
  };
  const auto expected = second(plain(given, options));
  const auto found = second(linear_cross_entropy(given.input, given.weight, given.target, options));
  for (size_t i = 0; i < found.size(); ++i) expect_same(found[i], expected[i], 1e-11, std::to_string(i));
}

TEST(LinearCrossEntropy, AutocastMultipliesInItsType) {
  const Given given(at::kFloat);
  const auto run = [&](const auto& compute) {
    struct Enabled {
      Enabled() {
        at::autocast::set_autocast_enabled(at::kCPU, true);
        at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
      }
      ~Enabled() {
        at::autocast::clear_cache();
        at::autocast::set_autocast_enabled(at::kCPU, false);
      }
    };
    const Enabled enabled;
    return compute();
  };
  const at::Tensor expected = run([&] { return plain(given, {}); });
  const at::Tensor loss = run([&] { return linear_cross_entropy(given.input, given.weight, given.target); });
  EXPECT_EQ(loss.scalar_type(), at::kFloat);
  expect_same(loss, expected.to(at::kFloat), 3e-2, "loss");
  const auto found = gradients(loss, {given.input, given.weight});
  const auto slopes = gradients(expected, {given.input, given.weight});
  for (size_t i = 0; i < found.size(); ++i) {
    EXPECT_EQ(found[i].scalar_type(), at::kFloat);
    expect_same(found[i], slopes[i], 2e-2, std::to_string(i));
  }
}

TEST(LinearCrossEntropy, NothingToCountIsTheMeanOfNothing) {
  const Given given;
  const at::Tensor none = at::full({kRows}, -100, at::kLong);
  const at::Tensor loss = linear_cross_entropy(given.input, given.weight, none);
  EXPECT_TRUE(loss.isnan().item<bool>()) << "as LibTorch's";
  for (const double z_loss : {0.0, 0.1})
    for (const at::Tensor& gradient : gradients(
             linear_cross_entropy(given.input, given.weight, none, {.z_loss = z_loss}), {given.input, given.weight}))
      EXPECT_TRUE(gradient.eq(0).all().item<bool>()) << z_loss;
  EXPECT_EQ(linear_cross_entropy(given.input, given.weight, none, {.sum = true}).item<double>(), 0);
}

TEST(LinearCrossEntropy, SaysWhatDoesNotFit) {
  const Given given;
  const auto message = [&](const std::function<void()>& run) -> std::string {
    try {
      run();
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_THAT(message([&] { linear_cross_entropy(given.input, given.weight.t(), given.target); }),
              HasSubstr("weight [classes, features]; got [13, 6] and [6, 9]"));
  EXPECT_THAT(message([&] { linear_cross_entropy(given.input, given.weight, given.target.narrow(0, 0, 5)); }),
              HasSubstr("got [5] for [13, 6]"));
  EXPECT_THAT(message([&] { linear_cross_entropy(given.input, given.weight, given.target, {.bias = given.input}); }),
              HasSubstr("are [classes]; got [13, 6] for 9 classes"));
  EXPECT_THAT(message([&] { linear_cross_entropy(given.input, given.weight, given.target, {.label_smoothing = 2}); }),
              HasSubstr("label_smoothing is from 0 to 1"));
  EXPECT_THAT(message([&] { linear_cross_entropy(given.input, given.weight, at::full({kRows}, 9, at::kLong)); }),
              HasSubstr("got 9; valid: 0 to 8"));
}

}  // namespace
}  // namespace levin::nn::functional
