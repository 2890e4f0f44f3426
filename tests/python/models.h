#pragma once

#include <levin/core/base/error.h>
#include <levin/core/base/registry.h>
#include <levin/core/interfaces/module.h>
#include <levin/core/optim/adam.h>

#include "../support/eventually.h"

#include <torch/torch.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <thread>

/// Modules that Python and a program without Python train alike.
namespace levin::testing {

struct NetOptions {
  int64_t hidden = 8;
  double lr = 0.01;

  static void describe(Schema<NetOptions>& schema) {
    schema.field("hidden", &NetOptions::hidden, "hidden width").at_least(1);
    schema.field("lr", &NetOptions::lr, "learning rate").above(0);
  }
};

/// From 4 numbers to 1, with everything that a state has: weights, a frozen one, running statistics.
class Net : public Module {
 public:
  using Options = NetOptions;

  explicit Net(const Options& options) : options_(options) {
    first = register_module("first", torch::nn::Linear(4, options.hidden));
    norm = register_module("norm", torch::nn::BatchNorm1d(options.hidden));
    last = register_module("last", torch::nn::Linear(torch::nn::LinearOptions(options.hidden, 1).bias(false)));
    scale = register_parameter("scale", torch::ones({1}), /*requires_grad=*/false);
  }

  at::Tensor forward(const at::Tensor& x) { return scale * last(torch::relu(norm(first(x)))); }

  StepOutput training_step(const Batch& batch, int64_t /*batch_idx*/) override {
    auto loss = torch::mse_loss(forward(batch["x"]), batch["y"]);
    log("train_loss", loss);
    return loss;
  }
  StepOutput validation_step(const Batch& batch, int64_t /*batch_idx*/) override {
    log("val_loss", torch::mse_loss(forward(batch["x"]), batch["y"]));
    return {};
  }
  Batch predict_step(const Batch& batch, int64_t /*batch_idx*/) override { return {{"y", forward(batch["x"])}}; }

  OptimizerConfigs configure_optimizers() override {
    return std::make_shared<optim::AdamW>(parameters(), optim::AdamWOptions{.lr = options_.lr});
  }

  torch::nn::Linear first{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
  torch::nn::Linear last{nullptr};
  at::Tensor scale;

 private:
  Options options_;
};

/// One layer under two names, whose weight is a parameter of the module too.
class Tied : public Module {
 public:
  Tied() {
    layer_ = register_module("encode", torch::nn::Linear(3, 3));
    register_module("decode", layer_);
    register_parameter("table", layer_->weight);
  }
  at::Tensor forward(const at::Tensor& x) { return layer_(layer_(x)); }

 private:
  torch::nn::Linear layer_{nullptr};
};

/// Its layer is there once configure_model was called; it has no `forward`, only an export_step.
class Late : public Module {
 public:
  void configure_model() override {
    if (!layer_) layer_ = register_module("layer", torch::nn::Linear(2, 2));
  }
  Batch export_step(const Batch& batch) override {
    return {{"sum", layer_(batch["a"]) + batch["b"]}, {"difference", layer_(batch["a"]) - batch["b"]}};
  }
  Batch predict_step(const Batch& batch, int64_t /*batch_idx*/) override { return export_step(batch); }

 private:
  torch::nn::Linear layer_{nullptr};
};

struct StepsOptions {
  int64_t milliseconds = 0;
  std::string fails_with = {};
  std::string waits_for = {};

  static void describe(Schema<StepsOptions>& schema) {
    schema.field("milliseconds", &StepsOptions::milliseconds, "what a step takes");
    schema.field("fails_with", &StepsOptions::fails_with, "kind of the error that a step ends with");
    schema.field("waits_for", &StepsOptions::waits_for,
                 "file without which no step ends; its name with .reached is made before");
  }
};

/// Steps that take long, or fail.
class Steps : public Module {
 public:
  using Options = StepsOptions;

  explicit Steps(const Options& options) : options_(options) {
    weight_ = register_parameter("weight", torch::ones({1}));
  }

  StepOutput training_step(const Batch& batch, int64_t /*batch_idx*/) override {
    std::this_thread::sleep_for(std::chrono::milliseconds(options_.milliseconds));
    if (!options_.waits_for.empty()) await_file();
    if (options_.fails_with == "error") throw Error("test", "the step failed");
    if (options_.fails_with == "config_error") throw ConfigError("the option is wrong");
    if (options_.fails_with == "torch") torch::ones({2, 3}).matmul(torch::ones({2, 3}));
    if (options_.fails_with == "standard") throw std::runtime_error("anything else");
    return (weight_ * batch["x"]).sum();
  }
  OptimizerConfigs configure_optimizers() override {
    return std::make_shared<optim::AdamW>(parameters(), optim::AdamWOptions{.lr = 0.01});
  }

 private:
  void await_file() const {
    std::ofstream(options_.waits_for + ".reached").flush();
    if (!eventually([this] { return std::filesystem::exists(options_.waits_for); }))
      throw Error("test", "nobody made " + options_.waits_for);
  }

  Options options_;
  at::Tensor weight_;
};

}  // namespace levin::testing
