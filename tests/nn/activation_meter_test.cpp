#include <levin/core/nn/activation_meter.h>

#include <levin/core/nn/checkpoint.h>
#include <levin/core/nn/sequential.h>

#include <ATen/autocast_mode.h>
#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <torch/nn/modules/linear.h>

#include <utility>

namespace levin {
namespace {

using ::testing::ElementsAre;

constexpr int64_t kRows = 64;
constexpr int64_t kFloat = 4;

/// 8 features in, 16 within, 8 out: saves its input, and 16 features twice (of sigmoid and of the second layer, which
/// are one tensor).
struct MeteredBlockImpl : torch::nn::Module {
  MeteredBlockImpl() {
    first = register_module("first", torch::nn::Linear(8, 16));
    second = register_module("second", torch::nn::Linear(16, 8));
  }
  at::Tensor forward(const at::Tensor& x) { return second(first(x).sigmoid()); }
  torch::nn::Linear first{nullptr};
  torch::nn::Linear second{nullptr};
};
LEVIN_UNIT(MeteredBlock);

struct Net : torch::nn::Module {
  Net() { blocks = register_module("blocks", Sequential(MeteredBlock(), MeteredBlock(), MeteredBlock())); }
  /// The sigmoid outside of the blocks saves its result.
  at::Tensor forward(const at::Tensor& x) { return blocks(x).sigmoid().sum(); }
  Sequential blocks{nullptr};
};

constexpr int64_t kInput = kRows * 8 * kFloat;
constexpr int64_t kInside = kRows * 16 * kFloat;
/// What the first layer does not save, because its input needs no gradient, or saves for its weight's.
constexpr int64_t kAll = 3 * (kInput + kInside) + kInput;

TEST(ActivationMeter, CountsWhatOperationsSaveOnce) {
  Net net;
  ActivationMeter meter(net, named_units(net));
  net.forward(at::ones({kRows, 8})).backward();
  const SavedByForward most = meter.most();
  EXPECT_EQ(most.whole.all, kAll);
  EXPECT_EQ(most.whole.weight_copies, 0);
  EXPECT_EQ(most.kept.all, 3 * kInput + kInput);
  ASSERT_EQ(most.inside.size(), 3);
  for (const SavedBytes& inside : most.inside) EXPECT_EQ(inside.all, kInside);
}

TEST(ActivationMeter, TheLargestStepCountsNotTheirSum) {
  Net net;
  ActivationMeter meter(net, named_units(net));
  for (const int64_t rows : {kRows / 2, kRows, kRows / 4}) net.forward(at::ones({rows, 8})).backward();
  EXPECT_EQ(meter.most().whole.all, kAll);
  EXPECT_EQ(meter.most().inside.size(), 3);
  // Two that wait for backward together are one step.
  const at::Tensor both = net.forward(at::ones({kRows, 8})) + net.forward(at::ones({kRows, 8}));
  EXPECT_EQ(meter.most().whole.all, 2 * kAll);
  EXPECT_EQ(meter.most().kept.all, 8 * kInput);
}

TEST(ActivationMeter, SeesNothingWithoutAGraph) {
  Net net;
  ActivationMeter meter(net, named_units(net));
  {
    const at::NoGradGuard no_grad;
    net.forward(at::ones({kRows, 8}));
  }
  EXPECT_EQ(meter.most().whole.all, 0);
  EXPECT_TRUE(meter.most().inside.empty());
}

TEST(ActivationMeter, CopiesOfWeightsAreTold) {
  Net net;
  ActivationMeter meter(net, named_units(net));
  at::autocast::set_autocast_enabled(at::kCPU, true);
  at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
  const at::Tensor loss = net.forward(at::ones({kRows, 8}));
  at::autocast::clear_cache();
  at::autocast::set_autocast_enabled(at::kCPU, false);
  const SavedByForward most = meter.most();
  EXPECT_GT(most.whole.weight_copies, 0);
  // Matrices in 16 bits; the first one is not needed for a gradient of the input.
  const int64_t matrix = 8 * 16 * 2;
  EXPECT_LE(most.whole.weight_copies, 6 * matrix);
  EXPECT_GE(most.whole.weight_copies, 5 * matrix);
  EXPECT_EQ(most.kept.weight_copies, 0);
  EXPECT_EQ(most.inside[1].weight_copies, 2 * matrix);
}

TEST(ActivationMeter, MeasuresWhatCheckpointingLeaves) {
  Net net;
  const at::Tensor x = at::ones({kRows, 8});
  ActivationMeter meter(net, {});
  at::Tensor y = x;
  for (const auto& block : net.blocks->children()) {
    auto& part = dynamic_cast<MeteredBlockImpl&>(*block);
    y = levin::checkpoint([&part](const at::Tensor& input) { return part.forward(input); }, y);
  }
  y.sigmoid().sum().backward();
  EXPECT_EQ(meter.most().whole.all, 3 * kInput + kInput);
}

}  // namespace
}  // namespace levin
