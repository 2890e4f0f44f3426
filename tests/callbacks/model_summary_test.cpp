#include <levin/callbacks/model_summary.h>

#include "tiny_training.h"

#include <levin/core/nn/activation_checkpointing.h>
#include <levin/core/nn/sequential.h>
#include <levin/core/nn/unit.h>

#include <gtest/gtest.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/linear.h>

#include <memory>
#include <stdexcept>
#include <string>
#include <tuple>

namespace levin {
namespace {

using testing::CapturedLog;
using testing::PlainModule;
using testing::quiet_options;
using testing::RunFolder;
using testing::tiny_batches;

TEST(ModelSummary, PrintsATableWhenFitStarts) {
  const RunFolder folder;
  const CapturedLog log;
  auto options = quiet_options(folder, 2, {make<ModelSummary>()});
  options.enable_model_summary = true;
  Trainer(options).fit(std::make_shared<PlainModule>(), tiny_batches());
  EXPECT_NE(log.text().find("[levin] model PlainModule\n  name | type   |  params | mode\n"), std::string::npos)
      << log.text();
  EXPECT_NE(log.text().find("  net  | Linear |       3 | train\n"), std::string::npos) << log.text();
  EXPECT_EQ(log.text().find("model PlainModule"), log.text().rfind("model PlainModule"));
}

/// Gives its input and that through a layer of its own, which is no unit.
struct SplitImpl : torch::nn::Module {
  SplitImpl() { inner = register_module("inner", torch::nn::Linear(3, 3)); }
  std::tuple<at::Tensor, at::Tensor> forward(const at::Tensor& x) { return {x, inner(x)}; }
  torch::nn::Linear inner{nullptr};
};
LEVIN_UNIT(Split);

class UnitsModule : public Module {
 public:
  UnitsModule() {
    net_ = register_module("net", Sequential(torch::nn::Linear(2, 4), torch::nn::ReLU(), torch::nn::Linear(4, 3)));
    split_ = register_module("split", Split());
    idle_ = register_module("idle", Split());
    levin::freeze(*idle_);
    head_ = register_module("head", torch::nn::Linear(3, 1));
  }
  StepOutput training_step(const Batch& batch, int64_t) override {
    if (fails) throw std::runtime_error("no step");
    const auto [plain, transformed] = split_(net_(batch["x"]));
    return head_(plain + transformed).square().mean();
  }
  OptimizerConfigs configure_optimizers() override {
    return std::make_shared<optim::SGD>(parameters(), optim::SGDOptions{.lr = 0.01});
  }
  bool on_train_batch_start(const Batch&, int64_t) override { return !skips; }
  bool is_watched() { return !net_->element(0).hooks().empty(); }
  bool fails = false;
  bool skips = false;

 private:
  Sequential net_{nullptr};
  Split split_{nullptr};
  Split idle_{nullptr};
  torch::nn::Linear head_{nullptr};
};

/// Of batches of 2 examples. A product of [2, K] and [K, N] takes 4 K N operations.
constexpr const char* kWithSizes =
    "[levin] model UnitsModule\n"
    "  name        | type       |  params | mode  |   FLOPs | in     | out\n"
    "----------------------------------------------------------------------\n"
    "  net         | Sequential |      27 | train |      80 | [2, 2] | [2, 3]\n"
    "  net.0       | Linear     |      12 | train |      32 | [2, 2] | [2, 4]\n"
    "  net.1       | ReLU       |       0 | train |       0 | [2, 4] | [2, 4]\n"
    "  net.2       | Linear     |      15 | train |      48 | [2, 4] | [2, 3]\n"
    "  split       | Split      |      12 | train |      36 | [2, 3] | [2, 3], [2, 3]\n"
    "  split.inner | Linear     |      12 | train |       ? | ?      | ?\n"
    "  idle        | Split      |      12 | eval  |       ? | ?      | ?\n"
    "  idle.inner  | Linear     |      12 | eval  |       ? | ?      | ?\n"
    "  head        | Linear     |       4 | train |       ? | ?      | ?\n"
    "----------------------------------------------------------------------\n";
constexpr const char* kTotals =
    "  43        trainable parameters\n"
    "  12        non-trainable parameters\n"
    "  55        parameters in total\n"
    "  0.000     MB of parameters\n"
    "  128       FLOPs of a forward\n";

TEST(ModelSummary, WithSizesItIsOfTheFirstBatch) {
  for (const bool checkpoints : {false, true}) {
    const RunFolder folder;
    const CapturedLog log;
    auto options = quiet_options(folder, 2, {make<ModelSummary>({.max_depth = -1, .sizes = true})});
    options.enable_model_summary = true;
    if (checkpoints) options.activation_checkpointing.units = {"net.*", "split"};
    const auto module = std::make_shared<UnitsModule>();
    Trainer trainer(options);
    trainer.fit(module, tiny_batches());
    EXPECT_NE(log.text().find(std::string(kWithSizes) + kTotals), std::string::npos) << log.text();
    EXPECT_EQ(log.text().find("UnitsModule"), log.text().rfind("UnitsModule")) << "once";
    EXPECT_FALSE(module->is_watched());
  }
}

TEST(ModelSummary, OfAFirstBatchThatIsSkippedNothingIsLeft) {
  const RunFolder folder;
  const CapturedLog log;
  auto options = quiet_options(folder, 1, {make<ModelSummary>({.sizes = true})});
  options.enable_model_summary = true;
  const auto module = std::make_shared<UnitsModule>();
  module->skips = true;
  Trainer(options).fit(module, tiny_batches());
  EXPECT_FALSE(module->is_watched());
}

TEST(ModelSummary, OfAFirstBatchThatFailsNothingIsLeft) {
  const RunFolder folder;
  const CapturedLog log;
  auto options = quiet_options(folder, 1, {make<ModelSummary>({.sizes = true})});
  options.enable_model_summary = true;
  const auto module = std::make_shared<UnitsModule>();
  module->fails = true;
  Trainer trainer(options);
  EXPECT_THROW(trainer.fit(module, tiny_batches()), std::runtime_error);
  EXPECT_FALSE(module->is_watched());
  module->fails = false;
  trainer.fit(module, tiny_batches());
  EXPECT_NE(log.text().find("FLOPs of a forward"), std::string::npos) << log.text();
}

TEST(ModelSummary, WithRanksItIsOfRankZerosPart) {
  for (const std::string strategy : {"ddp_threads", "dp"}) {
    const RunFolder folder;
    const CapturedLog log;
    auto options = quiet_options(folder, 1, {make<ModelSummary>({.sizes = true})});
    options.enable_model_summary = true;
    options.strategy = strategy;
    options.devices = 2;
    Trainer(options).fit(make<UnitsModule>(), tiny_batches());
    EXPECT_EQ(log.text().find("FLOPs of a forward"), log.text().rfind("FLOPs of a forward")) << log.text();
    if (strategy == "ddp_threads")
      EXPECT_NE(log.text().find(kTotals), std::string::npos) << log.text();
    else
      EXPECT_NE(log.text().find("  ?         FLOPs of a forward"), std::string::npos) << log.text();
  }
}

}  // namespace
}  // namespace levin
