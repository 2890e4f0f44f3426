#include "tests/support/tiny.h"

#include <levin/callbacks/lambda_callback.h>
#include <levin/core/base/error.h>
#include <levin/core/metrics/mean_squared_error.h>
#include <levin/core/nn/sequential.h>
#include <levin/core/optim/adam.h>
#include <levin/core/optim/sgd.h>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace levin {
namespace {

using ::testing::HasSubstr;
using testing::quiet;
using testing::tiny_dataset;

struct ChainOptions {
  bool outside = false;  ///< layers before and after the sequential
  bool tuple = false;    ///< two tensors pass between elements
  double dropout = 0;
  std::string wrong;
  static void describe(Schema<ChainOptions>& schema) {
    schema.field("outside", &ChainOptions::outside, "layers outside of the sequential");
    schema.field("tuple", &ChainOptions::tuple, "two tensors between elements");
    schema.field("dropout", &ChainOptions::dropout, "dropout probability");
    schema.field("wrong", &ChainOptions::wrong, "what is wrong");
  }
};

class Chain : public Module {
 public:
  using Options = ChainOptions;
  explicit Chain(const Options& options) : options_(options) {
    Sequential net;
    net->push_back(torch::nn::Linear(4, 12));
    if (options.tuple) {
      net->push_back([](const at::Tensor& x) { return std::make_tuple(x.tanh(), x); });
      net->push_back([](const at::Tensor& x, const at::Tensor& skip) { return std::make_tuple(x.sin(), skip); });
      net->push_back([](const at::Tensor& x, const at::Tensor& skip) { return x + skip; });
    }
    net->push_back(torch::nn::Tanh());
    net->push_back(torch::nn::Linear(12, 12));
    net->push_back(torch::nn::Dropout(options.dropout));
    net->push_back(torch::nn::Tanh());
    net->push_back(torch::nn::Linear(12, 12));
    net->push_back([](const at::Tensor& x) { return x.relu(); });
    net->push_back(torch::nn::Linear(12, options.outside ? 6 : 1));
    if (options.wrong == "no sequential") {
      first_ = register_module("first", torch::nn::Linear(4, 1));
      return;
    }
    net_ = register_module("net", net);
    if (options.wrong == "two") other_ = register_module("other", Sequential(torch::nn::Linear(4, 1)));
    if (!options.outside) return;
    first_ = register_module("first", torch::nn::Linear(4, 4));
    last_ = register_module("last", torch::nn::Linear(6, 1));
  }

  at::Tensor forward(const at::Tensor& x) {
    if (!net_) return first_(x);
    if (!options_.outside) return net_(x);
    return last_(net_(first_(x)).tanh());
  }
  StepOutput training_step(const Batch& batch, int64_t batch_idx) override {
    if (options_.wrong == "throws" && batch_idx == 1 && trainer().global_rank() == 1)
      throw Error("test", "stage fails");
    if (options_.wrong == "not called") return batch["y"].mean().requires_grad_();
    at::Tensor y = forward(batch["x"]);
    if (options_.wrong == "twice") y = y + forward(batch["x"]);
    at::Tensor loss = torch::nn::functional::mse_loss(y, batch["y"]);
    log("loss", loss, {.on_step = true, .on_epoch = true});
    log("error", error_.update(y.detach(), batch["y"]));
    return loss;
  }
  StepOutput validation_step(const Batch& batch, int64_t) override {
    log("val_loss", torch::nn::functional::mse_loss(forward(batch["x"]), batch["y"]));
    return {};
  }
  Batch predict_step(const Batch& batch, int64_t) override { return {{"y", forward(batch["x"])}}; }
  OptimizerConfigs configure_optimizers() override {
    return std::make_shared<optim::AdamW>(parameters(), optim::AdamWOptions{.lr = 0.02});
  }

 private:
  Options options_;
  Sequential net_{nullptr};
  Sequential other_{nullptr};
  torch::nn::Linear first_{nullptr};
  torch::nn::Linear last_{nullptr};
  metrics::MeanSquaredError error_;
};

struct Ran {
  std::vector<at::Tensor> weights;
  MetricMap metrics;
  std::vector<double> losses;  ///< what rank 0's hooks see
  std::vector<at::Tensor> predictions;
};

struct Case {
  ChainOptions module;
  std::string strategy = "single_device";
  int devices = 1;
  std::string precision = "32-true";
  double clip = 0;
  int64_t accumulate = 1;
  int64_t examples = 40;
  std::string ckpt;
  std::string save_in;
  int64_t epochs = 2;
};

Ran run(const Case& tested) {
  torch::manual_seed(5);
  TrainerOptions options = quiet(tested.epochs);
  options.strategy = Spec<Strategy>(Config::parse(tested.strategy, {.source = "test"}));
  options.devices = tested.devices;
  options.precision = tested.precision;
  options.gradient_clip_val = tested.clip;
  options.accumulate_grad_batches = tested.accumulate;
  options.log_every_n_steps = 1;
  Ran ran;
  options.callbacks.emplace_back(make<LambdaCallback>(
      {.on_train_epoch_end =
           [&](Trainer& trainer, Module&) {
             if (!tested.save_in.empty())
               trainer.save_checkpoint(fmt::format("{}/{}", tested.save_in, trainer.current_epoch()));
           },
       .on_train_batch_end =
           [&](Trainer& trainer, Module&, const StepOutput& output, const Batch&, int64_t) {
             if (trainer.is_global_zero()) ran.losses.push_back(output.loss().item<double>());
           }}));
  Trainer trainer(options);
  const auto module = make<Chain>(tested.module);
  const DataLoader data(tiny_dataset(tested.examples), {.shuffle = true, .global_batch_size = 8});
  trainer.fit(module, data, DataLoader(tiny_dataset(12), {.global_batch_size = 6}), tested.ckpt);
  ran.weights = testing::weights(*module);
  ran.metrics = trainer.callback_metrics();
  const auto predictions = trainer.predict(module, DataLoader(tiny_dataset(12), {.global_batch_size = 6}));
  for (const auto& batch : predictions.at(0)) ran.predictions.push_back(batch["y"]);
  return ran;
}

void expect_alike(const Ran& actual, const Ran& expected, double bound = 2e-5) {
  ASSERT_EQ(actual.weights.size(), expected.weights.size());
  for (size_t i = 0; i < expected.weights.size(); ++i)
    EXPECT_TRUE(actual.weights[i].allclose(expected.weights[i], 1e-3, bound)) << "tensor " << i;
  ASSERT_EQ(actual.metrics.size(), expected.metrics.size());
  for (const auto& [name, value] : expected.metrics) EXPECT_NEAR(actual.metrics.at(name), value, 10 * bound) << name;
  ASSERT_EQ(actual.losses.size(), expected.losses.size());
  for (size_t i = 0; i < expected.losses.size(); ++i)
    EXPECT_NEAR(actual.losses[i], expected.losses[i], 10 * bound) << i;
  ASSERT_EQ(actual.predictions.size(), expected.predictions.size());
  for (size_t i = 0; i < expected.predictions.size(); ++i)
    EXPECT_TRUE(actual.predictions[i].allclose(expected.predictions[i], 1e-3, 10 * bound)) << i;
}

std::string pipeline(const std::string& options) { return "{name: pipeline_threads, " + options + "}"; }

TEST(Pipeline, TrainsAsOneDevice) {
  const Ran expected = run({});
  for (const char* options : {"schedule: gpipe, micro_batches: 4", "schedule: 1f1b, micro_batches: 4",
                              "schedule: 1f1b, micro_batches: 3", "schedule: 1f1b, micro_batches: 1",
                              "schedule: interleaved, micro_batches: 4", "schedule: 1f1b, micro_batches: 100"})
    for (const int devices : {2, 4}) {
      SCOPED_TRACE(fmt::format("{} on {}", options, devices));
      expect_alike(run({.strategy = pipeline(options), .devices = devices}), expected);
    }
}

}  // namespace
}  // namespace levin
