#include <levin/core/base/error.h>
#include <levin/core/nn/unit.h>
#include <levin/core/optim/sgd.h>

#include <ATen/core/List.h>
#include <gmock/gmock.h>
#include <tests/support/tiny.h>
#include <torch/csrc/autograd/autograd.h>

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace levin {
namespace {

using ::testing::HasSubstr;
using testing::quiet;

// ---- Units that return anything.

struct Parts {
  at::Tensor hidden;
  int64_t count = 0;
};

struct StructLayerImpl : torch::nn::Module {
  StructLayerImpl() : linear(register_module("linear", torch::nn::Linear(4, 4))) {}
  Parts forward(const at::Tensor& x) { return {.hidden = linear(x).tanh(), .count = x.size(0)}; }
  torch::nn::Linear linear;
};
LEVIN_UNIT(StructLayer);

struct MapLayerImpl : torch::nn::Module {
  MapLayerImpl() : linear(register_module("linear", torch::nn::Linear(4, 4))) {}
  std::map<std::string, at::Tensor> forward(const at::Tensor& x) { return {{"hidden", linear(x).tanh()}}; }
  torch::nn::Linear linear;
};
LEVIN_UNIT(MapLayer);

struct BatchLayerImpl : torch::nn::Module {
  BatchLayerImpl() : linear(register_module("linear", torch::nn::Linear(4, 4))) {}
  Batch forward(const at::Tensor& x) { return {{"hidden", linear(x).tanh()}}; }
  torch::nn::Linear linear;
};
LEVIN_UNIT(BatchLayer);

struct ListLayerImpl : torch::nn::Module {
  ListLayerImpl() : linear(register_module("linear", torch::nn::Linear(4, 4))) {}
  c10::List<at::Tensor> forward(const at::Tensor& x) { return c10::List<at::Tensor>({linear(x).tanh()}); }
  torch::nn::Linear linear;
};
LEVIN_UNIT(ListLayer);

/// Keeps what is to be added to the loss.
struct KeepingLayerImpl : torch::nn::Module {
  KeepingLayerImpl() : linear(register_module("linear", torch::nn::Linear(4, 4))) {}
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor y = linear(x).tanh();
    penalty = linear(y).square().mean();
    return y;
  }
  torch::nn::Linear linear;
  at::Tensor penalty;
};
LEVIN_UNIT(KeepingLayer);

enum class Use { kAll, kPenaltyAlone, kGradientPenalty, kChangedInPlace, kSampled, kOwnBackward };

struct AnyNetOptions {
  int64_t use = 0;  ///< a Use
  static void describe(Schema<AnyNetOptions>& schema) { schema.field("use", &AnyNetOptions::use, "what is trained"); }
};

class AnyNet : public Module {
 public:
  using Options = AnyNetOptions;
  explicit AnyNet(const Options& options) : use_(static_cast<Use>(options.use)) {
    struct_ = register_module("struct", StructLayer());
    map_ = register_module("map", MapLayer());
    batch_ = register_module("batch", BatchLayer());
    list_ = register_module("list", ListLayer());
    keeping_ = register_module("keeping", KeepingLayer());
    head_ = register_module("head", torch::nn::Linear(4, 1));
  }

  at::Tensor hidden(const at::Tensor& x) {
    const at::Tensor y = map_(struct_(x).hidden).at("hidden");
    return keeping_(list_(batch_(y)["hidden"]).get(0));
  }

  StepOutput training_step(const Batch& batch, int64_t) override {
    if (use_ == Use::kGradientPenalty) {
      const at::Tensor x = batch["x"].detach().requires_grad_();
      const at::Tensor y = head_(hidden(x));
      const at::Tensor slope =
          torch::autograd::grad({y.sum()}, {x}, {}, /*retain_graph=*/true, /*create_graph=*/true).front();
      return (y - batch["y"]).square().mean() + (slope.norm() - 1).square();
    }
    at::Tensor y = hidden(batch["x"]);
    if (use_ == Use::kOwnBackward) head_(y).sum().backward();
    if (use_ == Use::kPenaltyAlone) return keeping_->penalty;
    if (use_ == Use::kChangedInPlace) y.add_(1);
    return (head_(y) - batch["y"]).square().mean() + keeping_->penalty;
  }

  StepOutput validation_step(const Batch&, int64_t) override { return {}; }

  /// A forward that is none of a step.
  void on_validation_epoch_end() override {
    if (use_ != Use::kSampled) return;
    const at::Tensor x = at::linspace(-1, 1, 12).reshape({3, 4});
    const auto autocast = trainer().autocast();
    const at::Tensor inner = hidden(x);
    const auto full = trainer().full_parameters(*head_);
    keep(head_(inner));
    keep(head_->weight.mean());
  }

  void on_train_epoch_end() override {
    if (use_ != Use::kSampled) return;
    const auto full = trainer().full_parameters(*this);
    at::Tensor sum = at::zeros({});
    for (const at::Tensor& parameter : parameters()) sum = sum + parameter.abs().mean();
    keep(sum);
  }

  OptimizerConfigs configure_optimizers() override {
    return OptimizerConfig{.optimizer = std::make_shared<optim::SGD>(parameters(), optim::SGDOptions{.lr = 0.1})};
  }

  /// What was drawn since the last call, by any rank.
  static std::vector<at::Tensor> taken() {
    const std::lock_guard lock(mutex());
    return std::exchange(samples(), {});
  }

 private:
  void keep(const at::Tensor& sample) {
    const std::lock_guard lock(mutex());
    if (trainer().is_global_zero()) samples().push_back(sample.detach().to(at::kFloat).clone());
  }
  static std::mutex& mutex() {
    static std::mutex one;
    return one;
  }
  static std::vector<at::Tensor>& samples() {
    static std::vector<at::Tensor> all;
    return all;
  }

  Use use_;
  StructLayer struct_{nullptr};
  MapLayer map_{nullptr};
  BatchLayer batch_{nullptr};
  ListLayer list_{nullptr};
  KeepingLayer keeping_{nullptr};
  torch::nn::Linear head_{nullptr};
};

/// Batches that all ranks have alike, so that any number of them trains as one.
DataLoader loader() {
  const auto x = at::arange(24 * 4, at::kFloat).reshape({24, 4}).mul(0.7).sin();
  return {std::make_shared<data::TensorDataset>(Batch{{"x", x}, {"y", x.sum(1, true)}}), {.batch_size = 24}};
}

std::vector<at::Tensor> train(Use use, const std::string& strategy, int devices,
                              const std::function<void(TrainerOptions&)>& configure = {}) {
  seed_everything(5);
  auto net = make<AnyNet>({.use = static_cast<int64_t>(use)});
  TrainerOptions options = quiet(3);
  options.strategy = Spec<Strategy>(Config::parse(strategy, {}));
  options.devices = devices;
  options.use_distributed_sampler = false;
  if (configure) configure(options);
  Trainer trainer(options);
  trainer.fit(net, loader(), loader());
  return testing::weights(*net);
}

void expect_near(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b, double bound) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i)
    EXPECT_LE((a[i] - b[i]).abs().max().item<double>(), bound) << i << "\n" << a[i] << "\n" << b[i];
}

class ShardedUnits : public ::testing::TestWithParam<const char*> {};

TEST_P(ShardedUnits, MayReturnAnythingAndKeepTensors) {
  for (const Use use : {Use::kAll, Use::kPenaltyAlone}) {
    SCOPED_TRACE(static_cast<int>(use));
    expect_near(train(use, "single_device", 1), train(use, GetParam(), 2), 1e-6);
  }
}

TEST_P(ShardedUnits, GiveGradientsWithinAStep) {
  expect_near(train(Use::kGradientPenalty, "single_device", 1), train(Use::kGradientPenalty, GetParam(), 2), 1e-5);
}

TEST_P(ShardedUnits, RunInHooksToo) {
  for (const char* precision : {"32-true", "bf16-mixed"}) {
    SCOPED_TRACE(precision);
    const auto in_precision = [&](TrainerOptions& options) { options.precision = precision; };
    AnyNet::taken();
    const auto expected = train(Use::kSampled, "single_device", 1, in_precision);
    const auto expected_samples = AnyNet::taken();
    const auto got = train(Use::kSampled, GetParam(), 2, in_precision);
    EXPECT_EQ(expected_samples.size(), 9);
    const double bound = std::string(precision) == "32-true" ? 1e-6 : 0.03;
    expect_near(expected_samples, AnyNet::taken(), bound);
    expect_near(expected, got, bound);
  }
}

TEST_P(ShardedUnits, SayThatASavedTensorWasChanged) {
  try {
    train(Use::kChangedInPlace, GetParam(), 2);
    ADD_FAILURE() << "the wrong gradients were taken";
  } catch (const std::exception& error) {
    EXPECT_THAT(error.what(), HasSubstr("modified by an inplace operation"));
  }
}

TEST_P(ShardedUnits, SayThatAGradientWouldBeLost) {
  try {
    train(Use::kOwnBackward, GetParam(), 2);
    ADD_FAILURE() << "the gradient was lost";
  } catch (const std::exception& error) {
    EXPECT_THAT(error.what(), HasSubstr("outside of the step's backward"));
  }
}

INSTANTIATE_TEST_SUITE_P(Stages, ShardedUnits,
                         ::testing::Values("{name: sharded_threads, stage: 1}", "{name: sharded_threads, stage: 2}",
                                           "{name: sharded_threads, stage: 3}",
                                           "{name: sharded_threads, stage: 3, prefetch: 0}"),
                         [](const auto& info) { return "case_" + std::to_string(info.index); });

}  // namespace
}  // namespace levin
