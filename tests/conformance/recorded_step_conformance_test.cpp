#include "tests/conformance/strategy_case.h"

#include <levin/core/optim/adam.h>

#include <torch/nn/functional.h>
#include <torch/nn/modules.h>

#include <functional>
#include <string>
#include <tuple>
#include <vector>

/// What every strategy must bear that records steps (`graph`): a run with recorded steps is one without, to the bit.
/// Where steps can be recorded they have to be: `graph: required`.
namespace levin::testing {
namespace {

struct RecordedNetOptions {
  std::string kind = "mlp";
  static void describe(Schema<RecordedNetOptions>& schema) {
    schema.field("kind", &RecordedNetOptions::kind, "mlp, cnn, lstm, transformer, vae, gan or toggled_gan");
  }
};

/// A small network of each kind, over 16 numbers and a class.
class RecordedNet : public Module {
 public:
  using Options = RecordedNetOptions;
  explicit RecordedNet(const Options& options) : kind_(options.kind) {
    automatic_optimization = !kind_.ends_with("gan");
    if (kind_ == "mlp") {
      body_ = register_module(
          "body", torch::nn::Sequential(Linear(16, 8), torch::nn::ReLU(), torch::nn::Dropout(0.3), Linear(8, 3)));
    } else if (kind_ == "cnn") {
      body_ =
          register_module("body", torch::nn::Sequential(torch::nn::Conv2d(torch::nn::Conv2dOptions(1, 4, 3).padding(1)),
                                                        torch::nn::BatchNorm2d(4), torch::nn::ReLU(),
                                                        torch::nn::MaxPool2d(2), torch::nn::Flatten(), Linear(16, 3)));
    } else if (kind_ == "lstm") {
      lstm_ = register_module("lstm", torch::nn::LSTM(torch::nn::LSTMOptions(4, 8).batch_first(true)));
      body_ = register_module("body", torch::nn::Sequential(Linear(8, 3)));
    } else if (kind_ == "transformer") {
      encoder_ = register_module(
          "encoder", torch::nn::TransformerEncoder(torch::nn::TransformerEncoderOptions(
                         torch::nn::TransformerEncoderLayerOptions(4, 2).dim_feedforward(8).dropout(0.1), 2)));
      body_ = register_module("body", torch::nn::Sequential(Linear(4, 3)));
    } else if (kind_ == "vae") {
      body_ = register_module("body", torch::nn::Sequential(Linear(16, 8)));
      other_ = register_module("other", torch::nn::Sequential(Linear(4, 16)));
    } else {
      body_ = register_module("body", torch::nn::Sequential(Linear(4, 8), torch::nn::ReLU(), Linear(8, 16)));
      if (kind_ == "toggled_gan") body_->push_back(torch::nn::BatchNorm1d(16));
      other_ = register_module("other", torch::nn::Sequential(Linear(16, 8), torch::nn::ReLU(), Linear(8, 1)));
    }
  }

  StepOutput training_step(const Batch& batch, int64_t) override {
    if (kind_ == "gan") return adversarial_step(batch["x"]);
    if (kind_ == "toggled_gan") return toggled_step(batch["x"]);
    const at::Tensor value = loss(batch["x"], batch["y"]);
    log("loss", value, {.on_step = true, .on_epoch = true, .sync_dist = true});
    return value;
  }
  OptimizerConfigs configure_optimizers() override {
    const auto adam = [](const std::vector<at::Tensor>& parameters) {
      return std::make_shared<optim::AdamW>(parameters, optim::AdamWOptions{.lr = 0.02});
    };
    if (!automatic_optimization)
      return {OptimizerConfig{.optimizer = adam(body_->parameters())},
              OptimizerConfig{.optimizer = adam(other_->parameters())}};
    return OptimizerConfig{.optimizer = adam(parameters()),
                           .scheduler = {.name = "cosine", .interval = Interval::kStep}};
  }

 private:
  using Linear = torch::nn::Linear;

  at::Tensor loss(const at::Tensor& x, const at::Tensor& y) {
    namespace F = torch::nn::functional;
    if (kind_ == "mlp") return F::cross_entropy(body_->forward(x), y);
    if (kind_ == "cnn") return F::cross_entropy(body_->forward(x.view({-1, 1, 4, 4})), y);
    if (kind_ == "lstm")
      return F::cross_entropy(body_->forward(std::get<0>(lstm_(x.view({-1, 4, 4}))).select(1, 3)), y);
    if (kind_ == "transformer")
      return F::cross_entropy(body_->forward(encoder_(x.view({-1, 4, 4}).transpose(0, 1)).mean(0)), y);
    const auto parts = body_->forward(x).chunk(2, 1);
    const at::Tensor z = parts[0] + (0.5 * parts[1]).exp() * at::randn_like(parts[0]);
    return F::mse_loss(other_->forward(z), x) - 0.5 * (1 + parts[1] - parts[0].square() - parts[1].exp()).sum(1).mean();
  }

  StepOutput adversarial_step(const at::Tensor& real) {
    auto& of_generator = optimizer(0);
    auto& of_critic = optimizer(1);
    const at::Tensor made = body_->forward(at::randn({real.size(0), 4}));
    of_critic.zero_grad();
    const at::Tensor critic_loss =
        at::softplus(other_->forward(made.detach())).mean() + at::softplus(-other_->forward(real)).mean();
    manual_backward(critic_loss);
    of_critic.step();
    of_generator.zero_grad();
    manual_backward(at::softplus(-other_->forward(made)).mean());
    of_generator.step();
    log("loss", critic_loss, {.on_step = true, .on_epoch = true, .sync_dist = true});
    return {};
  }

  /// Adds up gradients before ranks combine them, and trains one half of the weights at a time.
  StepOutput toggled_step(const at::Tensor& real) {
    const auto make_images = [&] { return body_->forward(at::randn({real.size(0), 4})); };
    {
      auto& of_generator = optimizer(0);
      const auto toggle = toggle_optimizer(of_generator);
      of_generator.zero_grad();
      manual_backward(at::softplus(-other_->forward(make_images())).mean(), {.sync_grad = false});
      const at::Tensor loss = at::softplus(-other_->forward(make_images())).mean();
      manual_backward(loss);
      clip_gradients(of_generator, 0.1);
      of_generator.step();
      log("loss", loss, {.on_step = true, .on_epoch = true, .sync_dist = true});
    }
    auto& of_critic = optimizer(1);
    const auto toggle = toggle_optimizer(of_critic);
    of_critic.zero_grad();
    manual_backward(at::softplus(other_->forward(make_images())).mean() + at::softplus(-other_->forward(real)).mean());
    of_critic.step();
    return {};
  }

  const std::string kind_;
  torch::nn::Sequential body_{nullptr};
  torch::nn::Sequential other_{nullptr};
  torch::nn::LSTM lstm_{nullptr};
  torch::nn::TransformerEncoder encoder_{nullptr};
};

class RecordedStepConformance : public ::testing::TestWithParam<StrategyCase> {
 protected:
  using Configure = std::function<void(TrainerOptions&)>;

  static bool is_dp() { return std::string(GetParam().strategy) == "dp"; }
  static bool records(const std::string& kind) { return !is_dp() && (!kind.ends_with("gan") || GetParam().ranks != 3); }

  static Outcome train_recorded(const std::string& kind, const GraphMode& graph, const Configure& configure) {
    seed_everything(7);
    const auto module = make<RecordedNet>({.kind = kind});
    TrainerOptions options = trainer_options({.epochs = 3, .configure = configure}, GetParam());
    options.graph = graph;
    Trainer trainer(options);
    // Eight batches an epoch, of four examples a rank.
    const int64_t batch = 4 * GetParam().ranks;
    const at::Tensor x = at::arange(8 * batch * 16, at::kFloat).reshape({8 * batch, 16}).mul(0.7).sin();
    const Batch examples{{"x", x}, {"y", at::arange(8 * batch).remainder(3)}};
    trainer.fit(module, DataLoader(std::make_shared<data::TensorDataset>(examples),
                                   {.shuffle = true, .global_batch_size = batch}));
    Outcome outcome;
    outcome.weights = weights(*module);
    for (const auto& buffer : module->buffers()) outcome.buffers.push_back(buffer.clone());
    outcome.metrics = trainer.callback_metrics();
    return outcome;
  }

  static void expect_the_same_bits(const std::string& kind, const Configure& configure = {}) {
    SCOPED_TRACE(kind);
    const Outcome ordinary = train_recorded(kind, false, configure);
    const Outcome recorded = train_recorded(kind, records(kind) ? GraphMode("required") : GraphMode(true), configure);
    EXPECT_TRUE(identical(ordinary.weights, recorded.weights)) << difference(ordinary.weights, recorded.weights, 0);
    EXPECT_TRUE(identical(ordinary.buffers, recorded.buffers)) << difference(ordinary.buffers, recorded.buffers, 0);
    EXPECT_EQ(ordinary.metrics, recorded.metrics);
  }
};

TEST_P(RecordedStepConformance, EveryKindOfNetworkTrainsToTheBit) {
  for (const char* kind : {"mlp", "cnn", "lstm", "transformer", "vae"}) expect_the_same_bits(kind);
  if (is_dp()) return;  // it refuses manual optimization
  for (const char* kind : {"gan", "toggled_gan"}) expect_the_same_bits(kind);
}

TEST_P(RecordedStepConformance, AccumulationClippingAndMixedPrecisionToTheBit) {
  for (const char* kind : {"mlp", "transformer"}) {
    expect_the_same_bits(kind, [](TrainerOptions& options) {
      options.accumulate_grad_batches = 2;
      options.gradient_clip_val = 0.1;
      if (!is_dp()) options.precision = "bf16-mixed";
    });
  }
}

TEST_P(RecordedStepConformance, ManualOptimizationInMixedPrecisionToTheBit) {
  if (is_dp()) return;  // refuses it
  for (const char* precision : {"bf16-mixed", "16-mixed"})
    for (const char* kind : {"gan", "toggled_gan"})
      expect_the_same_bits(kind, [&](TrainerOptions& options) { options.precision = precision; });
}

TEST_P(RecordedStepConformance, ManualOptimizationOnRanksThatRoundDifferentlyIsRefused) {
  if (is_dp() || GetParam().ranks != 3) return;
  try {
    train_recorded("gan", "required", {});
    FAIL() << "it was recorded";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("a number of ranks that is no power of two"), std::string::npos)
        << error.what();
  }
}

/// Each rank trains a layer of its own.
struct OtherLayers : Module {
  OtherLayers() {
    automatic_optimization = false;
    for (const char* name : {"first", "second"}) register_module(name, torch::nn::Linear(16, 16));
  }
  StepOutput training_step(const Batch& batch, int64_t) override {
    optimizer(0).zero_grad();
    auto& layer = *children().at(static_cast<size_t>(trainer().global_rank()))->as<torch::nn::LinearImpl>();
    manual_backward(layer.forward(batch["x"]).square().sum());
    optimizer(0).step();
    return {};
  }
  OptimizerConfigs configure_optimizers() override {
    return std::make_shared<optim::AdamW>(parameters(), optim::AdamWOptions{});
  }
};

TEST(RecordedManualOptimization, RanksThatReachOtherParametersAreAnError) {
  TrainerOptions options = trainer_options({}, {"ddp_threads", 2});
  options.graph = true;
  Trainer trainer(options);
  try {
    trainer.fit(make<OtherLayers>(),
                DataLoader(std::make_shared<data::TensorDataset>(Batch{{"x", at::ones({16, 16})}}), {.batch_size = 4}));
    FAIL() << "they were combined";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("ranks ran backward through different parameters"), std::string::npos)
        << error.what();
  }
}

// Ranks of `ddp` are further runs of this program, see strategy_conformance_cases.cpp.
INSTANTIATE_TEST_SUITE_P(OneDevice, RecordedStepConformance, ::testing::Values(StrategyCase{"single_device", 1}),
                         name_of);
INSTANTIATE_TEST_SUITE_P(Threads, RecordedStepConformance,
                         ::testing::Values(StrategyCase{"ddp_threads", 1}, StrategyCase{"ddp_threads", 2},
                                           StrategyCase{"ddp_threads", 3},
                                           // More gradients than the first bucket holds.
                                           StrategyCase{"ddp_threads", 2, 0, "first_bucket_cap_mb: 0.00001"}),
                         name_of);
INSTANTIATE_TEST_SUITE_P(Forks, RecordedStepConformance, ::testing::Values(StrategyCase{"ddp_spawn", 2}), name_of);
INSTANTIATE_TEST_SUITE_P(TwoProcesses, RecordedStepConformance, ::testing::Values(StrategyCase{"ddp", 2}), name_of);
INSTANTIATE_TEST_SUITE_P(Replicas, RecordedStepConformance, ::testing::Values(StrategyCase{"dp", 2}), name_of);

}  // namespace
}  // namespace levin::testing
