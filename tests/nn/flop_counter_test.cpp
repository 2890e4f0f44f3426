#include <levin/core/nn/flop_counter.h>

#include <levin/core/nn/checkpoint.h>
#include <levin/core/nn/unit.h>

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <ATen/record_function.h>
#include <gtest/gtest.h>
#include <torch/nn/functional/activation.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>

#include <functional>
#include <map>
#include <string>
#include <thread>

namespace levin {
namespace {

/// Of PyTorch, by the names in flop_oracles.py.
int64_t oracle(const std::string& name) {
  static const std::map<std::string, int64_t> all = {
#include "tests/oracles/flop_oracles.inc"
  };
  return all.at(name);
}

using Model = std::function<at::Tensor(const at::Tensor&)>;

FlopCount count(const Model& model, at::IntArrayRef shape) {
  const FlopCounter counter;
  model(at::randn(shape)).to(at::kFloat).sum().backward();
  return counter.count();
}

class AutocastScope {
 public:
  AutocastScope() {
    at::autocast::set_autocast_enabled(at::kCPU, true);
    at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
  }
  ~AutocastScope() {
    at::autocast::set_autocast_enabled(at::kCPU, false);
    at::autocast::clear_cache();
  }
};

torch::nn::Sequential mlp() {
  return torch::nn::Sequential(torch::nn::Linear(6, 16), torch::nn::Tanh(), torch::nn::Linear(16, 3));
}

struct Attention {
  torch::nn::Linear qkv{16, 48};
  torch::nn::Linear out{16, 16};

  at::Tensor operator()(const at::Tensor& x) {
    auto parts = qkv(x).chunk(3, -1);
    for (auto& part : parts) part = part.reshape({2, 7, 4, 4}).transpose(1, 2);
    const auto y = at::scaled_dot_product_attention(parts[0], parts[1], parts[2], {}, 0.0, /*is_causal=*/true);
    return out(y.transpose(1, 2).reshape({2, 7, 16}));
  }
};

/// Attention from matrix products.
class MathAttention {
 public:
  MathAttention() : before_(at::globalContext().userEnabledFlashSDP()) { at::globalContext().setSDPUseFlash(false); }
  ~MathAttention() { at::globalContext().setSDPUseFlash(before_); }

 private:
  bool before_;
};

TEST(FlopCounter, CountsMatrixProductsAsPyTorchDoes) {
  auto net = mlp();
  EXPECT_EQ(count([&](const at::Tensor& x) { return net->forward(x); }, {10, 6}).executed, oracle("mlp"));
  EXPECT_EQ(count([&](const at::Tensor& x) { return net->forward(x); }, {4, 5, 6}).executed,
            oracle("mlp_of_sequences"));
  // 2 * 10 * (6 * 16 + 16 * 3) forward, twice that backward but for the gradient of the input.
  EXPECT_EQ(oracle("mlp"), 3 * 2 * 10 * (6 * 16 + 16 * 3) - 2 * 10 * 6 * 16);
}

TEST(FlopCounter, CountsConvolutionsAsPyTorchDoes) {
  torch::nn::Sequential conv(torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 8, 3).stride(2).padding(1)),
                             torch::nn::ReLU(),
                             torch::nn::ConvTranspose2d(torch::nn::ConvTranspose2dOptions(8, 4, 2).stride(2)),
                             torch::nn::Conv2d(torch::nn::Conv2dOptions(4, 2, {3, 1}).dilation({2, 1})));
  EXPECT_EQ(count([&](const at::Tensor& x) { return conv->forward(x); }, {5, 3, 17, 13}).executed, oracle("conv"));
  torch::nn::Sequential conv1d(torch::nn::Conv1d(torch::nn::Conv1dOptions(3, 5, 4).padding(2)),
                               torch::nn::Conv1d(5, 2, 1));
  EXPECT_EQ(count([&](const at::Tensor& x) { return conv1d->forward(x); }, {5, 3, 11}).executed, oracle("conv1d"));
}

TEST(FlopCounter, CountsAGroupedConvolutionByItsGroups) {
  torch::nn::Conv2d conv(torch::nn::Conv2dOptions(8, 8, 3).padding(1).groups(8));
  const int64_t forward = 2 * 4 * 6 * 6 * 8 * 1 * 9;
  EXPECT_EQ(count([&](const at::Tensor& x) { return conv(x); }, {4, 8, 6, 6}).executed, 2 * forward);
}

TEST(FlopCounter, CountsAttentionOfEachKindAsPyTorchDoes) {
  Attention attention;
  EXPECT_EQ(count(std::ref(attention), {2, 7, 16}).executed, oracle("attention_flash"));
  const MathAttention math;
  EXPECT_EQ(count(std::ref(attention), {2, 7, 16}).executed, oracle("attention_math"));
}

TEST(FlopCounter, CountsOnceUnderAutocast) {
  auto net = mlp();
  const MathAttention math;
  Attention attention;
  const auto under_autocast = [](const Model& model) {
    return [model](const at::Tensor& x) {
      const AutocastScope autocast;
      return model(x);
    };
  };
  EXPECT_EQ(count(under_autocast([&](const at::Tensor& x) { return net->forward(x); }), {10, 6}).executed,
            oracle("mlp_autocast"));
  EXPECT_EQ(count(under_autocast(std::ref(attention)), {2, 7, 16}).executed, oracle("attention_autocast"));
}

TEST(FlopCounter, TellsRecomputationFromTheModel) {
  torch::nn::Linear first(6, 6);
  auto inner = mlp();
  const auto plain = count([&](const at::Tensor& x) { return inner->forward(first(x)); }, {10, 6});
  const auto checkpointed = count(
      [&](const at::Tensor& x) { return checkpoint([&](const at::Tensor& y) { return inner->forward(y); }, first(x)); },
      {10, 6});
  EXPECT_EQ(plain.recomputed, 0);
  EXPECT_EQ(checkpointed.of_model(), plain.executed);
  EXPECT_EQ(checkpointed.executed, oracle("mlp_checkpointed"));
  EXPECT_GT(checkpointed.recomputed, 0);
}

TEST(FlopCounter, CountsItsOwnThreadAlone) {
  auto net = mlp();
  const FlopCounter counter;
  std::thread([&] {
    const auto other = count([&](const at::Tensor& x) { return net->forward(x); }, {10, 6});
    EXPECT_EQ(other.executed, oracle("mlp"));
  }).join();
  EXPECT_EQ(counter.count().executed, 0);
}

TEST(FlopCounter, SeveralOnOneThreadCountEachItsOwnTime) {
  auto net = mlp();
  const Model model = [&](const at::Tensor& x) { return net->forward(x); };
  const FlopCounter outer;
  EXPECT_EQ(count(model, {10, 6}).executed, oracle("mlp"));
  EXPECT_EQ(count(model, {20, 6}).executed, 2 * oracle("mlp"));
  EXPECT_EQ(outer.count().executed, 3 * oracle("mlp"));
}

TEST(FlopCounter, AFailedOperatorLeavesNothingBehind) {
  const FlopCounter counter;
  EXPECT_ANY_THROW(at::mm(at::ones({2, 3}), at::ones({4, 5})));
  EXPECT_EQ(counter.count().executed, 0);
  at::mm(at::ones({2, 3}), at::ones({3, 5}));
  EXPECT_EQ(counter.count().executed, 2 * 2 * 3 * 5);
}

TEST(FlopCounter, ObservesNothingOnceItIsGone) {
  { const FlopCounter counter; }
  EXPECT_FALSE(at::hasThreadLocalCallbacks());
}

TEST(FlopCounter, ChangesNoResult) {
  auto net = mlp();
  const at::Tensor x = at::randn({10, 6});
  const at::Tensor plain = net->forward(x);
  const FlopCounter counter;
  EXPECT_TRUE(net->forward(x).equal(plain));
}

}  // namespace
}  // namespace levin
