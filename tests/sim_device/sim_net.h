#pragma once

#include "tests/sim_device/sim_training.h"

#include <levin/core/nn/sequential.h>
#include <levin/core/nn/unit.h>

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace levin::testing {

class BlockImpl : public torch::nn::Module {
 public:
  explicit BlockImpl(double dropout)
      : linear_(register_module("linear", torch::nn::Linear(8, 8))),
        dropout_(register_module("dropout", torch::nn::Dropout(dropout))) {}
  at::Tensor forward(const at::Tensor& x) { return dropout_(linear_(x).relu()); }

 private:
  torch::nn::Linear linear_;
  torch::nn::Dropout dropout_;
};
LEVIN_UNIT(Block);

/// A chain of four blocks that are units between two layers, which a pipeline can cut.
class SimNet : public Module {
 public:
  using Options = TinyOptions;
  explicit SimNet(const Options& options) : options_(options) {
    chain_ =
        register_module("chain", Sequential(torch::nn::Linear(4, 8), Block(options.dropout), Block(options.dropout),
                                            Block(options.dropout), Block(options.dropout), torch::nn::Linear(8, 1)));
  }
  at::Tensor forward(const at::Tensor& x) { return chain_(x); }
  void on_train_start() override {
    if (options_.dropout > 0) seed_alike(5);
  }
  StepOutput training_step(const Batch& batch, int64_t) override {
    auto loss = torch::nn::functional::mse_loss(forward(batch["x"]), batch["y"]);
    log("train_loss", loss, {.on_step = true, .on_epoch = true});
    return loss;
  }
  StepOutput validation_step(const Batch& batch, int64_t) override {
    log("val_loss", torch::nn::functional::mse_loss(forward(batch["x"]), batch["y"]));
    return {};
  }
  StepOutput test_step(const Batch& batch, int64_t) override {
    log("test_loss", torch::nn::functional::mse_loss(forward(batch["x"]), batch["y"]));
    return {};
  }
  Batch predict_step(const Batch& batch, int64_t) override { return {{"y", forward(batch["x"])}}; }
  OptimizerConfigs configure_optimizers() override {
    return OptimizerConfig{.optimizer =
                               std::make_shared<optim::AdamW>(parameters(), optim::AdamWOptions{.lr = options_.lr})};
  }

 private:
  Options options_;
  Sequential chain_{nullptr};
};

struct SimRun {
  TinyOptions net = {};
  std::function<void(TrainerOptions&)> configure = [](TrainerOptions&) {};
  bool pins = false;
  bool predicts = true;
};

struct SimResult {
  std::vector<at::Tensor> weights;
  double val_loss = 0;
  std::vector<at::Tensor> predictions;
  sim::Report report;  ///< of the trainer's work alone
};

/// Two epochs and, if asked for, a prediction, with the options that `configure` sets.
inline SimResult fit(const SimRun& run) {
  seed_everything(7);
  const auto module = make<SimNet>(run.net);
  TrainerOptions options = quiet(2);
  options.log_every_n_steps = 3;
  run.configure(options);
  Trainer trainer(options);
  const DataLoader loader(tiny_dataset(), {.pin_memory = run.pins, .global_batch_size = 8});
  trainer.fit(module, loader, loader);
  SimResult result;
  result.val_loss = trainer.callback_metrics().at("val_loss");
  std::vector<std::vector<Batch>> predictions(1);
  if (run.predicts) predictions = trainer.predict(module, loader);
  result.report = sim::report();
  for (const at::Tensor& weight : weights(*module)) result.weights.push_back(weight.cpu());
  for (const Batch& batch : predictions.at(0)) result.predictions.push_back(batch["y"].cpu());
  return result;
}

/// Equal to the bit, without a fault.
inline void expect_equal(const SimResult& result, const SimResult& expected) {
  EXPECT_TRUE(identical(result.weights, expected.weights));
  EXPECT_TRUE(identical(result.predictions, expected.predictions));
  EXPECT_EQ(result.val_loss, expected.val_loss);
  const sim::Report& report = result.report;
  EXPECT_TRUE(report.faults.empty()) << report.to_string();
  EXPECT_EQ(report.kernels_off_current_device, 0) << report.to_string();
  EXPECT_GT(report.kernels, 0);
}

}  // namespace levin::testing
