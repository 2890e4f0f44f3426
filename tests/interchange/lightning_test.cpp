#include <levin/callbacks/weight_averaging.h>
#include <levin/core/base/registry.h>
#include <levin/core/checkpoint/checkpoint.h>
#include <levin/core/data/tensor_dataset.h>
#include <levin/core/interchange/torch_file.h>
#include <levin/core/interchange/write_weights.h>
#include <levin/core/interfaces/load_weights.h>
#include <levin/core/interfaces/module.h>
#include <levin/core/optim/adam.h>
#include <levin/core/optim/sgd.h>
#include <levin/core/trainer/trainer.h>

#include "../loggers/test_python.h"
#include "../support/run_program.h"
#include "../support/torch_python.h"
#include "folder.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace levin {
namespace {

struct LightningNetOptions {
  int64_t width = 8;
  double lr = 0.01;
  std::string way = {};  ///< one of WAYS of lightning_run.py; empty: the usual one
  static void describe(Schema<LightningNetOptions>& schema) {
    schema.field("width", &LightningNetOptions::width, "hidden width");
    schema.field("lr", &LightningNetOptions::lr, "learning rate");
    schema.field("way", &LightningNetOptions::way, "another optimizer, schedule or callback");
  }
};

class LightningNet : public Module {
 public:
  using Options = LightningNetOptions;
  explicit LightningNet(const Options& options) : lr_(options.lr), way_(options.way) {
    first_ = register_module("first", torch::nn::Linear(4, options.width));
    second_ = register_module("second", torch::nn::Linear(options.width, 1));
  }
  StepOutput training_step(const Batch& batch, int64_t /*batch_idx*/) override {
    const at::Tensor loss = torch::mse_loss(second_(torch::relu(first_(batch["x"]))), batch["y"]);
    return way_ == "scaled" ? 1000 * loss : loss;
  }
  StepOutput validation_step(const Batch& batch, int64_t /*batch_idx*/) override {
    log("val_loss", torch::mse_loss(second_(torch::relu(first_(batch["x"]))), batch["y"]));
    return {};
  }
  OptimizerConfigs configure_optimizers() override {
    if (!way_.empty()) return other_way();
    auto adam = std::make_shared<optim::AdamW>(parameters(), optim::AdamWOptions{.lr = lr_});
    return OptimizerConfig{.optimizer = adam,
                           .scheduler = {.name = "sequential", .interval = Interval::kEpoch, .options = schedule()}};
  }

 private:
  OptimizerConfigs other_way() {
    if (way_ == "averaging" || way_ == "scaled" || way_ == "tensor_rate")
      return std::make_shared<optim::AdamW>(parameters(), optim::AdamWOptions{.lr = 0.01});
    // Schedules without a peak of their own: it is each group's learning rate.
    const std::map<std::string, std::pair<std::string, std::string>> schedules = {
        {"one_cycle", {"one_cycle", "{total_steps: 20}"}},
        {"cyclic",
         {"cyclic",
          "{base_lr: 0.01, step_size_up: 3, step_size_down: 4, mode: triangular2, cycle_momentum: "
          "false}"}},
        {"root", {"inverse_square_root", "{timescale: 5}"}},
        {"plateau", {"reduce_on_plateau", "{patience: 0, threshold: 0.3}"}}};
    const auto& [name, options] = schedules.at(way_);
    return OptimizerConfig{
        .optimizer = std::make_shared<optim::SGD>(parameters(), optim::SGDOptions{.lr = 0.1, .momentum = 0.9}),
        .scheduler = {.name = name,
                      .interval = way_ == "plateau" ? Interval::kEpoch : Interval::kStep,
                      .monitor = way_ == "plateau" ? "val_loss" : "",
                      .options = Config::parse(options, {.source = "test"})}};
  }
  static Config schedule() {
    return Config::parse(
        "{milestones: [1], schedulers: [{name: linear_warmup, start_factor: 0.1, total_iters: 1}, "
        "{name: cosine_warm_restarts, t_0: 2, t_mult: 2}]}",
        {.source = "test"});
  }
  double lr_;
  std::string way_;
  torch::nn::Linear first_{nullptr};
  torch::nn::Linear second_{nullptr};
};

class LightningTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const std::string missing = testing::missing_module("lightning"); !missing.empty()) GTEST_SKIP() << missing;
    if (testing::torch_packages().empty()) GTEST_SKIP() << "no torch for Python; hint: scripts/bootstrap";
    const auto started = python("start");
    ASSERT_EQ(started.status, 0) << started.err;
  }
  testing::ProgramResult python(const std::string& command, const std::string& way = "") const {
    std::vector<std::string> words{
        testing::test_python(), "-W", "ignore", testing::source_path("tests/interchange/lightning_run.py"), command,
        folder_.path()};
    if (!way.empty()) words.push_back(way);
    return testing::run_program(words, {.environment = {{"PYTHONPATH", testing::torch_packages()}}});
  }
  /// Trains up to an epoch; the module.
  std::shared_ptr<Module> train(int64_t epochs, const std::string& init_from, const std::string& ckpt,
                                const std::string& way = "") const {
    const TorchFile data(folder_.path("data.pth"));
    const auto dataset = std::make_shared<data::TensorDataset>(
        Batch{{"x", data.root().find("x")->tensor.clone()}, {"y", data.root().find("y")->tensor.clone()}});
    auto module = make<LightningNet>({.way = way});
    std::vector<Spec<Callback>> callbacks;
    std::string precision = "32-true";
    if (way == "scaled") precision = "16-mixed";
    if (way == "averaging") callbacks.emplace_back(make<WeightAveraging>({.decay = 0.9}));
    Trainer trainer({.max_epochs = epochs,
                     .accelerator = "cpu",
                     .precision = precision,
                     .callbacks = callbacks,
                     .logger = false,
                     .enable_checkpointing = false,
                     .enable_progress_bar = false,
                     .enable_model_summary = false,
                     .default_root_dir = folder_.path("runs"),
                     .init_from = {.path = init_from}});
    const DataLoader loader(dataset, {.batch_size = 8});
    DataLoaders validation;
    if (way == "plateau") validation = loader;
    trainer.fit(module, loader, validation, ckpt);
    trainer.save_checkpoint(folder_.path("levin.ckpt"), {.format = "lightning"});
    trainer.save_checkpoint(folder_.path("native"));
    return module;
  }

  testing::Folder folder_;
};

TEST_F(LightningTest, TwoEpochsHereAndThreeThereAreOneRun) {
  train(2, folder_.path("first.pth"), "");
  const auto resumed = python("resume");
  ASSERT_EQ(resumed.status, 0) << resumed.err;
  EXPECT_LT(std::stod(resumed.out), 1e-6);
}

TEST_F(LightningTest, OtherSchedulesAndAveragesGoOn) {
  const auto started = python("start-ways");
  ASSERT_EQ(started.status, 0) << started.err;
  const auto expect_run = [&](Module& module, const std::string& way, const std::string& what) {
    const TorchFile expected(folder_.path(way + ".pth"));
    for (const auto& [name, tensor] : named_tensors(module))
      EXPECT_LT((tensor - expected.root().find(name)->tensor).abs().max().item<double>(), 1e-6)
          << way << " " << what << " " << name;
  };
  for (const std::string way : {"one_cycle", "cyclic", "plateau", "averaging", "root", "scaled", "tensor_rate"}) {
    expect_run(*train(5, folder_.path("first.pth"), "", way), way, "in one go");
    for (const std::string& step : {"2", "6", "8"})
      expect_run(*train(5, "", folder_.path(way + "-step=" + step + ".ckpt"), way), way, "from step " + step);
    train(2, folder_.path("first.pth"), "", way);
    if (way == "one_cycle") continue;  // Lightning does not resume Levin's
    const auto resumed = python("resume-way", way);
    ASSERT_EQ(resumed.status, 0) << way << resumed.err;
    EXPECT_LT(std::stod(resumed.out), 1e-6) << way;
    // And by Levin from its own file in that format.
    expect_run(*train(5, "", folder_.path("levin.ckpt"), way), way, "from Levin's file");
  }
}

TEST_F(LightningTest, TwoEpochsThereAndThreeHereAreOneRun) {
  const TorchFile expected(folder_.path("one_run.pth"));
  // Also from the middle of an epoch, and from the last batch of one.
  for (const std::string& saved : {"half.ckpt", "at-step=2.ckpt", "at-step=6.ckpt", "at-step=8.ckpt"}) {
    const auto module = train(5, "", folder_.path(saved));
    for (const auto& [name, tensor] : named_tensors(*module)) {
      ASSERT_NE(expected.root().find(name), nullptr) << name;
      EXPECT_LT((tensor - expected.root().find(name)->tensor).abs().max().item<double>(), 1e-6) << saved << " " << name;
    }
  }
}

/// Earlier versions saved a loss scale without its factors.
TEST_F(LightningTest, ALossScaleOfAnEarlierVersionHasTheUsualFactors) {
  train(1, folder_.path("first.pth"), "", "scaled");
  State tree = read_checkpoint(folder_.path("native"));
  for (const char* name : {"growth_factor", "backoff_factor", "growth_interval"})
    tree["precision"].as_map().erase(name);
  write_checkpoint(folder_.path("earlier"), tree, {});
  convert_weights(folder_.path("earlier"), folder_.path("earlier.ckpt"), WeightsFormat::kLightning, {}, false);
  const TorchFile file(folder_.path("earlier.ckpt"));
  const PickleValue* const scaler = file.root().find("MixedPrecision");
  ASSERT_NE(scaler, nullptr);
  EXPECT_EQ(scaler->find("growth_factor")->number, 2);
  EXPECT_EQ(scaler->find("backoff_factor")->number, 0.5);
  EXPECT_EQ(scaler->find("growth_interval")->integer, 2000);
}

}  // namespace
}  // namespace levin
