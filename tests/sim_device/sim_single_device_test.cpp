#include "tests/sim_device/sim_training.h"

#include <levin/core/nn/unit.h>

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>

#include <functional>
#include <string>
#include <vector>

namespace levin::testing {
namespace {

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

/// Two blocks that are units between two layers.
class SimNet : public Module {
 public:
  using Options = TinyOptions;
  explicit SimNet(const Options& options) : options_(options) {
    in_ = register_module("in", torch::nn::Linear(4, 8));
    first_ = register_module("first", Block(options.dropout));
    second_ = register_module("second", Block(options.dropout));
    out_ = register_module("out", torch::nn::Linear(8, 1));
  }
  at::Tensor forward(const at::Tensor& x) { return out_(second_(first_(in_(x)))); }
  void on_train_start() override { seed_alike(5); }
  StepOutput training_step(const Batch& batch, int64_t) override {
    auto loss = torch::nn::functional::mse_loss(forward(batch["x"]), batch["y"]);
    log("train_loss", loss, {.on_step = true, .on_epoch = true});
    return loss;
  }
  StepOutput validation_step(const Batch& batch, int64_t) override {
    log("val_loss", torch::nn::functional::mse_loss(forward(batch["x"]), batch["y"]));
    return {};
  }
  Batch predict_step(const Batch& batch, int64_t) override { return {{"y", forward(batch["x"])}}; }
  OptimizerConfigs configure_optimizers() override {
    return OptimizerConfig{.optimizer =
                               std::make_shared<optim::AdamW>(parameters(), optim::AdamWOptions{.lr = options_.lr})};
  }

 private:
  Options options_;
  torch::nn::Linear in_{nullptr}, out_{nullptr};
  Block first_{nullptr}, second_{nullptr};
};

struct SimRun {
  TinyOptions net = {};
  std::function<void(TrainerOptions&)> configure = [](TrainerOptions&) {};
  bool pins = false;
};

struct SimResult {
  std::vector<at::Tensor> weights;
  double val_loss = 0;
  std::vector<at::Tensor> predictions;
};

SimResult fit_on(const at::Device& device, const SimRun& run) {
  seed_everything(7);
  const auto module = make<SimNet>(run.net);
  TrainerOptions options = quiet(2);
  options.log_every_n_steps = 3;
  set_device(options, device);
  run.configure(options);
  Trainer trainer(options);
  const DataLoader loader(tiny_dataset(), {.batch_size = 8, .pin_memory = run.pins});
  trainer.fit(module, loader, loader);
  SimResult result;
  for (const at::Tensor& weight : weights(*module)) result.weights.push_back(weight.cpu());
  result.val_loss = trainer.callback_metrics().at("val_loss");
  const auto predictions = trainer.predict(module, loader);
  for (const Batch& batch : predictions.at(0)) result.predictions.push_back(batch["y"].cpu());
  return result;
}

void expect_as_on_cpu(const SimRun& run) {
  SimRun on_cpu = run;
  on_cpu.pins = false;
  const SimResult expected = fit_on(at::kCPU, on_cpu);
  for (c10::DeviceIndex index = 0; index < 2; ++index) {
    sim::reset_report();
    const SimResult result = fit_on(sim::device(index), run);
    EXPECT_TRUE(identical(result.weights, expected.weights)) << "on sim:" << int{index};
    EXPECT_TRUE(identical(result.predictions, expected.predictions)) << "on sim:" << int{index};
    EXPECT_EQ(result.val_loss, expected.val_loss) << "on sim:" << int{index};
    const sim::Report report = sim::report();
    EXPECT_TRUE(report.faults.empty()) << report.to_string();
    EXPECT_EQ(report.kernels_off_current_device, 0) << report.to_string();
    EXPECT_GT(report.kernels, 0);
  }
}

TEST(SimSingleDevice, FitsValidatesAndPredictsAsTheCpu) { expect_as_on_cpu({}); }

TEST(SimSingleDevice, DropsOutAsTheCpu) { expect_as_on_cpu({.net = {.dropout = 0.3}}); }

TEST(SimSingleDevice, PrefetchesPageLockedBatches) { expect_as_on_cpu({.pins = true}); }

TEST(SimSingleDevice, PrefetchesWithEarlyCopies) {
  sim::Hardware::instance().set_copies(sim::CopyTiming::kEarly);
  expect_as_on_cpu({.pins = true});
  sim::Hardware::instance().set_copies(sim::CopyTiming::kLate);
}

TEST(SimSingleDevice, EveryPrecisionIsThatOfTheCpu) {
  for (const char* precision : {"64-true", "bf16-mixed", "16-mixed", "bf16-true"})
    expect_as_on_cpu({.configure = [&](TrainerOptions& options) { options.precision = precision; }});
}

TEST(SimSingleDevice, ClipsAndAccumulatesAsTheCpu) {
  expect_as_on_cpu({.configure = [](TrainerOptions& options) {
    options.gradient_clip_val = 0.1;
    options.accumulate_grad_batches = 2;
  }});
}

TEST(SimSingleDevice, CheckpointsActivationsWithTheSameMasks) {
  expect_as_on_cpu({.net = {.dropout = 0.3},
                    .configure = [](TrainerOptions& options) { options.activation_checkpointing.units = {"Block"}; }});
}

TEST(SimSingleDevice, OffloadsActivations) {
  expect_as_on_cpu({.net = {.dropout = 0.3}, .configure = [](TrainerOptions& options) {
                      options.activation_checkpointing.units = {"Block"};
                      options.activation_checkpointing.offload = true;
                    }});
}

}  // namespace
}  // namespace levin::testing
