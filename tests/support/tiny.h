#pragma once

#include <levin/core/data/tensor_dataset.h>
#include <levin/core/interfaces/module.h>
#include <levin/core/optim/adam.h>
#include <levin/core/trainer/trainer.h>

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>

#include <unistd.h>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

/// The tiny module and the tiny data that all tests of the trainer share.
namespace levin::testing {

/// A new empty folder of this process's own, removed when the process ends.
inline std::string fresh_folder(const std::string& name) {
  struct Made {
    ~Made() {
      std::error_code ignored;
      for (const auto& path : paths) std::filesystem::remove_all(path, ignored);
    }
    std::vector<std::string> paths;
  };
  static Made made;
  made.paths.push_back(::testing::TempDir() + "levin_" + name + "_" + std::to_string(getpid()) + "_" +
                       std::to_string(made.paths.size()));
  std::filesystem::create_directories(made.paths.back());
  return made.paths.back();
}

struct TinyOptions {
  int64_t width = 8;
  double lr = 0.05;
  double dropout = 0.0;
  static void describe(Schema<TinyOptions>& schema) {
    schema.field("width", &TinyOptions::width, "hidden width").at_least(1);
    schema.field("lr", &TinyOptions::lr, "learning rate").above(0);
    schema.field("dropout", &TinyOptions::dropout, "dropout probability");
  }
};

/// Two linear layers with dropout between them on 4 inputs and 1 output.
class TinyModule : public Module {
 public:
  using Options = TinyOptions;
  explicit TinyModule(const Options& options) : options_(options) {
    first_ = register_module("first", torch::nn::Linear(4, options.width));
    dropout_ = register_module("dropout", torch::nn::Dropout(options.dropout));
    second_ = register_module("second", torch::nn::Linear(options.width, 1));
  }

  at::Tensor forward(const at::Tensor& x) { return second_(dropout_(first_(x).relu())); }

  StepOutput training_step(const Batch& batch, int64_t) override {
    auto loss = torch::nn::functional::mse_loss(forward(batch["x"]), batch["y"]);
    log("train_loss", loss, {.on_step = true, .on_epoch = true, .prog_bar = true});
    return loss;
  }
  StepOutput validation_step(const Batch& batch, int64_t) override {
    auto loss = torch::nn::functional::mse_loss(forward(batch["x"]), batch["y"]);
    log("val_loss", loss, {.prog_bar = true});
    return loss;
  }
  StepOutput test_step(const Batch& batch, int64_t) override {
    auto loss = torch::nn::functional::mse_loss(forward(batch["x"]), batch["y"]);
    log("test_loss", loss);
    return loss;
  }
  Batch predict_step(const Batch& batch, int64_t) override { return {{"y", forward(batch["x"])}}; }
  OptimizerConfigs configure_optimizers() override {
    return OptimizerConfig{.optimizer =
                               std::make_shared<optim::AdamW>(parameters(), optim::AdamWOptions{.lr = options_.lr})};
  }

 protected:
  Options options_;
  torch::nn::Linear first_{nullptr};
  torch::nn::Dropout dropout_{nullptr};
  torch::nn::Linear second_{nullptr};
};

/// y = sum of x, `examples` examples, always the same.
inline std::shared_ptr<data::TensorDataset> tiny_dataset(int64_t examples = 40) {
  auto x = at::arange(examples * 4, at::kFloat).reshape({examples, 4}).mul(0.7).sin();
  return std::make_shared<data::TensorDataset>(Batch{{"x", x}, {"y", x.sum(1, true)}});
}

inline DataLoader tiny_loader(int64_t examples = 40, int64_t batch_size = 8, bool shuffle = true) {
  return DataLoader(tiny_dataset(examples), {.batch_size = batch_size, .shuffle = shuffle});
}

/// Options without files, bars and summaries.
inline TrainerOptions quiet(int64_t epochs) {
  TrainerOptions options;
  options.max_epochs = epochs;
  options.logger = false;
  options.enable_checkpointing = false;
  options.enable_progress_bar = false;
  options.enable_model_summary = false;
  options.num_sanity_val_steps = 0;
  options.accelerator = "cpu";
  return options;
}

inline std::vector<at::Tensor> weights(const Module& module) {
  std::vector<at::Tensor> copies;
  for (const auto& parameter : module.parameters()) copies.push_back(parameter.detach().clone());
  return copies;
}

/// Equal to the bit.
inline bool identical(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i)
    if (!a[i].equal(b[i])) return false;
  return true;
}

}  // namespace levin::testing
