#pragma once

#include "../support/captured_log.h"

#include <levin/core/base/log.h>
#include <levin/core/data/data_loader.h>
#include <levin/core/data/tensor_dataset.h>
#include <levin/core/interfaces/checkpointer.h>
#include <levin/core/interfaces/module.h>
#include <levin/core/optim/sgd.h>
#include <levin/core/trainer/trainer.h>

#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

/// What the tests of callbacks train: as little as possible, with metrics that a test dictates.
namespace levin::testing {

/// An empty folder of this test's own, removed at its end.
class RunFolder {
 public:
  RunFolder()
      : path_(std::filesystem::path(::testing::TempDir()) /
              ("levin-callbacks-" + std::to_string(getpid()) + "-" +
               ::testing::UnitTest::GetInstance()->current_test_info()->name())) {
    std::filesystem::remove_all(path_);
    std::filesystem::create_directories(path_);
  }
  ~RunFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  RunFolder(const RunFolder&) = delete;
  RunFolder& operator=(const RunFolder&) = delete;

  std::string path() const { return path_.string(); }
  std::string path(const std::string& name) const { return (path_ / name).string(); }
  /// Names in a folder below, sorted.
  std::vector<std::string> list(const std::string& name) const {
    std::vector<std::string> names;
    if (!std::filesystem::exists(path_ / name)) return names;
    for (const auto& entry : std::filesystem::directory_iterator(path_ / name))
      names.push_back(entry.path().filename().string());
    std::sort(names.begin(), names.end());
    return names;
  }

 private:
  std::filesystem::path path_;
};

/// One linear layer. `val_loss` has the values of a script, one a validation; `train_loss` is the epoch's number.
class PlainModule : public Module {
 public:
  explicit PlainModule(std::vector<double> val_losses = {}) : val_losses_(std::move(val_losses)) {
    net_ = register_module("net", torch::nn::Linear(2, 1));
  }

  StepOutput training_step(const Batch& batch, int64_t batch_idx) override {
    if (before_step) before_step(batch_idx);
    log("train_loss", static_cast<double>(trainer().current_epoch()),
        {.on_step = false, .on_epoch = true, .prog_bar = true});
    return net_->forward(batch["x"]).square().mean();
  }
  StepOutput validation_step(const Batch&, int64_t) override {
    const double value = validations < val_losses_.size() ? val_losses_[validations] : 1.0;
    log(metric_name, value, {.prog_bar = true});
    return {};
  }
  void on_validation_end() override {
    if (!trainer().sanity_checking()) ++validations;
  }
  StepOutput test_step(const Batch&, int64_t) override { return {}; }
  Batch predict_step(const Batch& batch, int64_t) override { return batch; }
  OptimizerConfigs configure_optimizers() override {
    return std::make_shared<optim::SGD>(parameters(), optim::SGDOptions{.lr = 0.01});
  }

  std::function<void(int64_t batch_idx)> before_step;
  std::string metric_name = "val_loss";
  size_t validations = 0;

 private:
  std::vector<double> val_losses_;
  torch::nn::Linear net_{nullptr};
};

/// `batches` batches of two examples.
inline DataLoader tiny_batches(int64_t batches = 4) {
  const auto x = torch::linspace(-1, 1, batches * 4).reshape({batches * 2, 2});
  return {std::make_shared<data::TensorDataset>(Batch{{"x", x}}), {.batch_size = 2}};
}

/// Nothing on the screen, no loggers, no callbacks but those given, files below `folder`.
inline TrainerOptions quiet_options(const RunFolder& folder, int64_t max_epochs,
                                    std::vector<Spec<Callback>> callbacks) {
  TrainerOptions options;
  options.max_epochs = max_epochs;
  options.accelerator = "cpu";
  options.callbacks = std::move(callbacks);
  options.logger = false;
  options.enable_checkpointing =
      std::any_of(options.callbacks.begin(), options.callbacks.end(),
                  [](const auto& callback) { return dynamic_cast<Checkpointer*>(callback.object().get()) != nullptr; });
  options.enable_progress_bar = false;
  options.enable_model_summary = false;
  options.default_root_dir = folder.path();
  options.num_sanity_val_steps = 0;
  return options;
}

}  // namespace levin::testing
