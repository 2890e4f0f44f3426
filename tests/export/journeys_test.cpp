// The journeys of docs/interchange.md, with the packages that they lead from and to.

#include "../../examples/models/gpt2.h"
#include "../../examples/models/resnet.h"
#include "../loggers/test_python.h"
#include "../support/run_program.h"
#include "../support/tiny.h"
#include "../support/torch_python.h"

#include <levin/callbacks/model_checkpoint.h>
#include <levin/core/base/file_system.h>
#include <levin/core/checkpoint/safetensors.h>
#include <levin/core/interchange/write_weights.h>
#include <levin/core/optim/sgd.h>

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace levin {
namespace {

namespace models = example::models;

class Journeys : public ::testing::Test {
 protected:
  /// Skips where a package is missing.
  void need(const std::vector<std::string>& packages) {
    for (const auto& package : packages)
      if (const std::string missing = testing::missing_module(package); !missing.empty()) GTEST_SKIP() << missing;
    torch_packages_ = testing::torch_packages();
    if (torch_packages_.empty()) GTEST_SKIP() << "no torch for Python; hint: scripts/bootstrap";
  }
  void python(const std::string& command) const {
    const auto run = testing::run_program(
        {testing::test_python(), "-W", "ignore", testing::source_path("tests/export/journeys.py"), command, folder_},
        {.environment = {{"PYTHONPATH", torch_packages_}, {"HF_HUB_OFFLINE", "1"}}});
    ASSERT_EQ(run.status, 0) << run.out << run.err;
  }
  void write(const std::string& name, const std::vector<NamedTensor>& tensors) const {
    const auto file = FileSystem::current().create(folder_ + "/" + name);
    write_safetensors(*file, tensors);
    file->close();
  }

  const std::string folder_ = testing::fresh_folder("journeys");

 private:
  std::string torch_packages_;
};

// Suites of their own: importing the packages takes its time, and each suite has a limit.
class GptJourney : public Journeys {};
class ResNetJourney : public Journeys {};

class LanguageModel : public Module {
 public:
  LanguageModel() {
    net_ = register_module("net", models::Gpt2(models::Gpt2Options{
                                      .vocab_size = 64, .n_positions = 32, .n_embd = 32, .n_layer = 2, .n_head = 4}));
  }
  at::Tensor logits(const at::Tensor& tokens) { return net_(tokens); }
  StepOutput training_step(const Batch& batch, int64_t) override {
    const at::Tensor& tokens = batch["tokens"];
    return torch::nn::functional::cross_entropy(logits(tokens.slice(1, 0, -1)).flatten(0, 1),
                                                tokens.slice(1, 1).flatten());
  }
  OptimizerConfigs configure_optimizers() override {
    return std::make_shared<optim::AdamW>(parameters(), optim::AdamWOptions{.lr = 1e-2});
  }

 private:
  models::Gpt2 net_{nullptr};
};

TEST_F(GptJourney, AGpt2OfHuggingFaceIsTrainedShardedAndGoesBack) {
  need({"transformers"});
  if (IsSkipped()) return;
  python("make_gpt2");
  if (HasFatalFailure()) return;
  seed_everything(5);
  const at::Tensor tokens = torch::randint(0, 64, {16, 12}, torch::kLong);
  TrainerOptions options = testing::quiet(2);
  options.strategy = Spec<Strategy>(Config::parse("{name: sharded_threads, stage: 3}", {}));
  options.devices = 2;
  options.init_from = {.path = folder_ + "/given", .strip_prefix = "transformer.", .add_prefix = "net."};
  options.default_root_dir = folder_;
  options.enable_checkpointing = true;
  options.callbacks = {make<ModelCheckpoint>({.every_n_epochs = 2,
                                              .filename = "trained",
                                              .dirpath = folder_,
                                              .save_weights_only = true,
                                              .format = "safetensors"})};
  const auto module = make<LanguageModel>();
  Trainer trainer(options);
  trainer.fit(module, DataLoader(std::make_shared<data::TensorDataset>(Batch{{"tokens", tokens}}), {.batch_size = 4}));
  const SafetensorsFile before(folder_ + "/given/model.safetensors");
  const SafetensorsFile after(folder_ + "/trained.safetensors");
  EXPECT_GT((before.read("transformer.wte.weight") - after.read("net.wte.weight")).abs().max().item<double>(), 1e-3)
      << "it has learned";

  const std::vector<WeightRule> rules = {{.match = R"(net\.(.*))", .to = "transformer.$1"}};
  convert_weights(folder_ + "/trained.safetensors", folder_ + "/back", WeightsFormat::kHuggingFace,
                  {.rules = rules, .config = folder_ + "/given/config.json"});
  module->eval();
  const torch::NoGradGuard no_gradients;
  write("results.safetensors", {{"tokens", tokens}, {"logits", module->logits(tokens)}});
  python("check_gpt2");
}

class Classifier : public Module {
 public:
  Classifier() { net_ = register_module("net", models::ResNet(models::resnet18(4))); }
  StepOutput training_step(const Batch& batch, int64_t) override {
    return torch::nn::functional::cross_entropy(net_(batch["image"]), batch["label"]);
  }
  Batch predict_step(const Batch& batch, int64_t) override { return {{"logits", net_(batch["image"])}}; }
  OptimizerConfigs configure_optimizers() override {
    return std::make_shared<optim::SGD>(parameters(), optim::SGDOptions{.lr = 1e-2});
  }

 private:
  models::ResNet net_{nullptr};
};

TEST_F(ResNetJourney, AResNetOfTimmIsFineTunedAndRunsInOnnxruntime) {
  need({"timm", "onnx", "onnxruntime"});
  if (IsSkipped()) return;
  python("make_resnet");
  if (HasFatalFailure()) return;
  seed_everything(5);
  const at::Tensor images = torch::randn({9, 3, 32, 32});
  const auto dataset = std::make_shared<data::TensorDataset>(
      Batch{{"image", images}, {"label", torch::randint(0, 4, {9}, torch::kLong)}});
  TrainerOptions options = testing::quiet(2);
  options.init_from = {.path = folder_ + "/timm.pth", .add_prefix = "net."};
  const auto module = make<Classifier>();
  Trainer trainer(options);
  trainer.fit(module, DataLoader(dataset, {.batch_size = 3}));
  const ExportReport report = trainer.export_model(module, {{"image", images}}, folder_ + "/resnet.onnx");
  EXPECT_EQ(report.fixed, std::vector<std::string>());
  trainer.save_checkpoint(folder_ + "/trained.pth", {.weights_only = true, .format = "pytorch"});
  const std::vector<WeightRule> rules = {{.match = R"(net\.(.*))", .to = "$1"}};
  convert_weights(folder_ + "/trained.pth", folder_ + "/back.pth", WeightsFormat::kPyTorch, {.rules = rules});

  module->eval();
  const torch::NoGradGuard no_gradients;
  for (const int64_t rows : {1, 9}) {
    const Batch batch{{"image", images.narrow(0, 0, rows).contiguous()}};
    write("resnet" + std::to_string(rows) + ".safetensors",
          {{"image", batch["image"]}, {"logits", module->predict_step(batch, 0)["logits"]}});
  }
  python("check_resnet");
  const auto run = testing::run_program(
      {testing::test_python(), "-W", "ignore", testing::source_path("tests/export/use_onnx.py"), folder_});
  ASSERT_EQ(run.status, 0) << run.out << run.err;
  EXPECT_EQ(run.out, "1 models\n");
}

}  // namespace
}  // namespace levin
