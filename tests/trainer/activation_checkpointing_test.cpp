#include "../support/tiny.h"

#include <levin/core/base/seed.h>
#include <levin/core/nn/activation_checkpointing.h>
#include <levin/core/nn/sequential.h>
#include <levin/core/nn/unit.h>
#include <levin/core/optim/sgd.h>

#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace levin {
namespace {

using testing::quiet;
using testing::tiny_dataset;
using testing::tiny_loader;
using testing::weights;

// Of all modules and replicas of a test.
std::atomic<int> block_runs{0};
std::atomic<int> runs_while_evaluating{0};

struct InnerImpl : torch::nn::Module {
  explicit InnerImpl(int64_t width) { linear = register_module("linear", torch::nn::Linear(width, width)); }
  at::Tensor forward(const at::Tensor& x) { return linear(x).tanh(); }
  torch::nn::Linear linear{nullptr};
};
LEVIN_UNIT(Inner);

struct BlockImpl : torch::nn::Module {
  explicit BlockImpl(int64_t width) {
    norm = register_module("norm", torch::nn::BatchNorm1d(width));
    dropout = register_module("dropout", torch::nn::Dropout(0.2));
    inner = register_module("inner", Inner(width));
  }
  at::Tensor forward(const at::Tensor& x) {
    ++block_runs;
    if (!is_training()) ++runs_while_evaluating;
    return x + dropout(inner(norm(x)).square());
  }
  torch::nn::BatchNorm1d norm{nullptr};
  torch::nn::Dropout dropout{nullptr};
  Inner inner{nullptr};
};
LEVIN_UNIT(Block);

struct NetOptions {
  bool alternate = false;
  static void describe(Schema<NetOptions>& schema) {
    schema.field("alternate", &NetOptions::alternate, "leave out the second block in every other step");
  }
};

class Net : public Module {
 public:
  using Options = NetOptions;
  explicit Net(const Options& options) : options_(options) {
    stem_ = register_module("stem", Sequential(torch::nn::Linear(4, 8), [](const at::Tensor& x) { return x.relu(); }));
    for (int i = 0; i < 3; ++i) blocks_.push_back(register_module("block" + std::to_string(i), Block(8)));
    head_ = register_module("head", torch::nn::Linear(8, 1));
  }
  at::Tensor loss_of(const Batch& batch, int64_t batch_idx) {
    at::Tensor y = stem_->forward(batch["x"]);
    for (size_t i = 0; i < blocks_.size(); ++i)
      if (i != 1 || !options_.alternate || batch_idx % 2 == 0) y = blocks_[i](y);
    return torch::nn::functional::mse_loss(head_(y), batch["y"]);
  }
  StepOutput training_step(const Batch& batch, int64_t batch_idx) override { return loss_of(batch, batch_idx); }
  StepOutput validation_step(const Batch& batch, int64_t) override { return loss_of(batch, 0); }
  OptimizerConfigs configure_optimizers() override {
    return OptimizerConfig{.optimizer = std::make_shared<optim::SGD>(parameters(), optim::SGDOptions{.lr = 0.05})};
  }
  const std::vector<Block>& blocks() const { return blocks_; }

 private:
  Options options_;
  Sequential stem_{nullptr};
  std::vector<Block> blocks_;
  torch::nn::Linear head_{nullptr};
};

struct Fitted {
  std::vector<at::Tensor> weights_and_buffers;
  int block_runs;
};

Fitted fit(TrainerOptions options, const ActivationCheckpointingOptions& checkpointing, bool alternate = false) {
  options.activation_checkpointing = checkpointing;
  seed_everything(5);
  auto module = make<Net>({.alternate = alternate});
  block_runs = 0;
  Trainer trainer(options);
  trainer.fit(module, tiny_loader(40, 8));
  Fitted fitted{.weights_and_buffers = weights(*module), .block_runs = block_runs};
  for (const auto& buffer : module->buffers()) fitted.weights_and_buffers.push_back(buffer.clone());
  for (const Block& block : module->blocks()) EXPECT_EQ(block->runner(), nullptr);
  return fitted;
}

void expect_same_as_plain(const TrainerOptions& options, const ActivationCheckpointingOptions& checkpointing,
                          bool alternate = false) {
  const Fitted plain = fit(options, {}, alternate);
  const Fitted checkpointed = fit(options, checkpointing, alternate);
  EXPECT_TRUE(testing::identical(plain.weights_and_buffers, checkpointed.weights_and_buffers));
  EXPECT_GT(checkpointed.block_runs, plain.block_runs);
}

TrainerOptions two(const std::string& strategy) {
  TrainerOptions options = quiet(2);
  options.strategy = Spec<Strategy>(Config::parse(strategy, {}));
  options.devices = 2;
  return options;
}

TEST(ActivationCheckpointingFit, OneDevice) {
  expect_same_as_plain(quiet(2), {.units = {"Block"}});
  expect_same_as_plain(quiet(2), {.units = {"Block", "Inner", "stem.0"}});
}

TEST(ActivationCheckpointingFit, AccumulatedAndClipped) {
  TrainerOptions options = quiet(2);
  options.accumulate_grad_batches = 2;
  options.gradient_clip_val = 0.1;
  expect_same_as_plain(options, {.units = {"block*"}});
}

TEST(ActivationCheckpointingFit, ThreadRanks) { expect_same_as_plain(two("ddp_threads"), {.units = {"Block"}}); }

TEST(ActivationCheckpointingFit, ThreadRanksWithUnusedParameters) {
  expect_same_as_plain(two("{name: ddp_threads, find_unused_parameters: true}"), {.units = {"Block", "Inner"}},
                       /*alternate=*/true);
}

TEST(ActivationCheckpointingFit, ThreadRanksWithAStaticGraph) {
  expect_same_as_plain(two("{name: ddp_threads, static_graph: true}"), {.units = {"Block"}});
}

TEST(ActivationCheckpointingFit, ThreadRanksWithSyncBatchNorm) {
  TrainerOptions options = two("ddp_threads");
  options.sync_batchnorm = true;
  expect_same_as_plain(options, {.units = {"Block"}});
}

TEST(ActivationCheckpointingFit, Replicas) {
  const Fitted plain = fit(two("dp"), {});
  const Fitted checkpointed = fit(two("dp"), {.units = {"Block"}});
  EXPECT_TRUE(testing::identical(plain.weights_and_buffers, checkpointed.weights_and_buffers));
  // Each replica runs each block a second time.
  EXPECT_EQ(checkpointed.block_runs, 2 * plain.block_runs);
}

TEST(ActivationCheckpointingFit, KeptResultsUnderEveryStrategy) {
  const ActivationCheckpointingOptions keeping = {.units = {"Block"}, .keep = {"linear", "relu"}};
  expect_same_as_plain(quiet(2), keeping);
  for (const char* strategy : {"ddp_threads", "{name: sharded_threads, stage: 3}", "{name: sharded_threads, stage: 1}"})
    expect_same_as_plain(two(strategy), keeping);
  const Fitted plain = fit(two("dp"), {});
  EXPECT_TRUE(testing::identical(plain.weights_and_buffers, fit(two("dp"), keeping).weights_and_buffers));
}

TEST(ActivationCheckpointingFit, BudgetUnderEveryStrategy) {
  const ActivationCheckpointingOptions budget = {.units = {"Block"}, .budget = {.share = 0.8}};
  expect_same_as_plain(quiet(2), budget);
  for (const char* strategy : {"ddp_threads", "{name: sharded_threads, stage: 3}", "{name: sharded_threads, stage: 1}"})
    expect_same_as_plain(two(strategy), budget);
  const Fitted plain = fit(two("dp"), {});
  EXPECT_TRUE(testing::identical(plain.weights_and_buffers, fit(two("dp"), budget).weights_and_buffers));
}

TEST(ActivationCheckpointingFit, EveryNth) {
  const int plain = fit(quiet(1), {}).block_runs;
  EXPECT_EQ(fit(quiet(1), {.units = {"Block"}, .every = 2}).block_runs, plain + 2 * plain / 3);
  EXPECT_EQ(fit(quiet(1), {.units = {"Block"}, .every = 3, .offload = true}).block_runs, plain + plain / 3);
}

TEST(ActivationCheckpointingFit, ValidationIsNotAffected) {
  TrainerOptions options = quiet(1);
  options.activation_checkpointing = {.units = {"Block"}};
  for (const bool inference_mode : {true, false}) {
    options.inference_mode = inference_mode;
    runs_while_evaluating = 0;
    Trainer trainer(options);
    trainer.fit(make<Net>({}), tiny_loader(40, 8), tiny_loader(16, 8, false));
    EXPECT_EQ(runs_while_evaluating, 3 * 2);
  }
}

std::vector<std::string> paths_of(const std::vector<std::string>& units) {
  Net net(NetOptions{});
  return ActivationCheckpointing(net, {.units = units}).paths();
}

TEST(ActivationCheckpointingPatterns, TypesAndPaths) {
  using Paths = std::vector<std::string>;
  const Paths blocks = {"block0", "block1", "block2"};
  EXPECT_EQ(paths_of({}), Paths{});
  EXPECT_EQ(paths_of({"Block"}), blocks);
  EXPECT_EQ(paths_of({"block*"}), blocks);
  EXPECT_EQ(paths_of({"Bl*k"}), blocks);
  EXPECT_EQ(paths_of({"block1"}), Paths{"block1"});
  EXPECT_EQ(paths_of({"block0.*", "*2.inner"}), (Paths{"block0.inner", "block2.inner"}));
  EXPECT_EQ(paths_of({"*"}), (Paths{"stem.0", "stem.1", "block0", "block1", "block2"}));
  EXPECT_EQ(paths_of({"stem.*"}), (Paths{"stem.0", "stem.1"}));
  EXPECT_EQ(paths_of({"block1", "Inner"}), (Paths{"block0.inner", "block1", "block1.inner", "block2.inner"}));
}

std::string message_of(const std::function<void()>& function) {
  try {
    function();
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "nothing was thrown";
}

TEST(ActivationCheckpointingPatterns, ThatMeetNothing) {
  EXPECT_EQ(
      message_of([] { paths_of({"Blok"}); }),
      "[config] trainer.activation_checkpointing: pattern 'Blok' matches no unit; did you mean 'Block'?; valid: "
      "Block (block0, block1, block2), Function (stem.1), Inner (block0.inner, block1.inner, block2.inner), Linear "
      "(stem.0), their paths, and patterns of these with *");
  EXPECT_NE(message_of([] { paths_of({"Block", "head"}); }).find("'head' matches no unit"), std::string::npos);
  torch::nn::Linear linear(2, 2);
  EXPECT_NE(
      message_of([&] { ActivationCheckpointing(*linear, {.units = {"Linear"}}); }).find("the module declares no units"),
      std::string::npos);
  // On every rank before anything is trained.
  for (const char* strategy : {"ddp_threads", "dp"}) {
    const std::string message = message_of([&] { fit(two(strategy), {.units = {"encoder.*"}}); });
    EXPECT_NE(message.find("'encoder.*' matches no unit; valid: "), std::string::npos) << message;
  }
}

TEST(ActivationCheckpointingOption, InYaml) {
  const auto parse = [](const std::string& text) {
    return parse_options<TrainerOptions>(Config::parse(text, {}), "trainer").activation_checkpointing;
  };
  EXPECT_TRUE(parse("{}").units.empty());
  EXPECT_EQ(parse("activation_checkpointing: [Block, encoder.*]").units,
            (std::vector<std::string>{"Block", "encoder.*"}));
  const auto all = parse("activation_checkpointing: {units: [Block], every: 2, offload: true}");
  EXPECT_EQ(all.units, std::vector<std::string>{"Block"});
  EXPECT_EQ(all.every, 2);
  EXPECT_TRUE(all.offload);
  const auto dump = [](const ActivationCheckpointingOptions& options) {
    return ConfigCodec<ActivationCheckpointingOptions>::dump(options).to_flow();
  };
  EXPECT_EQ(dump({.units = {"Block"}}), "[Block]");
  EXPECT_EQ(dump(all), "{units: [Block], every: 2, offload: true, keep: [], budget: null}");
  EXPECT_NE(message_of([&] { parse("activation_checkpointing: {every: 2}"); }).find("activation_checkpointing"),
            std::string::npos);
  EXPECT_NE(message_of([&] { parse("activation_checkpointing: {units: [A], every: 0}"); }).find("at least 1"),
            std::string::npos);
  EXPECT_NE(message_of([&] { parse("activation_checkpointing: 3"); }).find("a list of units"), std::string::npos);
  EXPECT_NE(message_of([&] { parse("activation_checkpointing: {unit: [A]}"); }).find("did you mean 'units'"),
            std::string::npos);
}

}  // namespace
}  // namespace levin
