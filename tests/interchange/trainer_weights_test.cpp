#include <levin/callbacks/model_checkpoint.h>
#include <levin/core/base/error.h>
#include <levin/core/checkpoint/safetensors.h>
#include <levin/core/cli/cli.h>
#include <levin/core/data/data_module.h>
#include <levin/core/interchange/weights.h>
#include <levin/core/interchange/write_weights.h>
#include <levin/core/interfaces/load_weights.h>
#include <levin/core/interfaces/logger.h>
#include <levin/core/interfaces/module.h>
#include <levin/core/nn/sequential.h>
#include <levin/core/optim/sgd.h>

#include "../support/captured_log.h"
#include "../support/tiny.h"
#include "folder.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/activation.h>
#include <torch/optim/sgd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

namespace levin {
namespace {

using ::testing::HasSubstr;
using testing::identical;
using testing::quiet;
using testing::tiny_loader;
using testing::TinyModule;

/// Layers that every strategy can divide, and steps too small to change a weight: after a fit it has what it began
/// with.
class Still : public Module {
 public:
  Still() {
    Sequential net;
    net->push_back(torch::nn::Linear(4, 12));
    net->push_back(torch::nn::Tanh());
    net->push_back(torch::nn::Linear(12, 12));
    net->push_back(torch::nn::Tanh());
    net->push_back(torch::nn::Linear(12, 1));
    net_ = register_module("net", net);
  }
  StepOutput training_step(const Batch& batch, int64_t) override { return loss(batch); }
  StepOutput validation_step(const Batch& batch, int64_t) override {
    log("val_loss", loss(batch));
    return {};
  }
  OptimizerConfigs configure_optimizers() override {
    return std::make_shared<optim::SGD>(parameters(), optim::SGDOptions{.lr = 1e-30});
  }

 private:
  at::Tensor loss(const Batch& batch) { return torch::nn::functional::mse_loss(net_(batch["x"]), batch["y"]); }
  Sequential net_{nullptr};
};

std::vector<NamedLeaf> leaves(const torch::nn::Module& module) {
  std::vector<NamedLeaf> all;
  for (const auto& item : module.named_parameters()) all.emplace_back(item.key(), TensorLeaf{item.value().detach()});
  return all;
}

TrainerOptions with(const std::string& strategy, const std::string& init_from = "") {
  TrainerOptions options = quiet(1);
  options.strategy = Spec<Strategy>(Config::parse(strategy, {}));
  options.devices = strategy == "single_device" ? 1 : 2;
  options.init_from.path = init_from;
  return options;
}

const std::vector<std::string> kStrategies = {"single_device", "ddp_threads", "{name: sharded_threads, stage: 3}",
                                              "{name: pipeline_threads, micro_batches: 2}"};

template <class Function>
std::string message_of(const Function& function) {
  try {
    function();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "no error";
}

TEST(TrainerWeights, EveryStrategyStartsFromTheWeightsOfEveryFormat) {
  const testing::Folder folder;
  const Still source;
  for (const char* name : {"w.pth", "w.safetensors", "w.ckpt"})
    write_weights(folder.path(name), weights_format_of(name), leaves(source));
  for (const auto& strategy : kStrategies) {
    for (const char* name : {"w.pth", "w.safetensors", "w.ckpt"}) {
      SCOPED_TRACE(strategy + " from " + name);
      const auto module = make<Still>();
      ASSERT_FALSE(identical(testing::weights(*module), testing::weights(source)));
      Trainer trainer(with(strategy, folder.path(name)));
      trainer.fit(module, tiny_loader());
      EXPECT_TRUE(identical(testing::weights(*module), testing::weights(source)));
    }
  }
}

TEST(TrainerWeights, EveryStrategyRefusesWeightsThatDoNotFitAndTakesWhatFitsOnRequest) {
  const testing::Folder folder;
  const Still source;
  auto some = leaves(source);
  some.pop_back();  // the last layer's bias
  some.emplace_back("fc.bias", TensorLeaf{at::ones({7})});
  write_weights(folder.path("w.pth"), WeightsFormat::kPyTorch, some);
  for (const auto& strategy : kStrategies) {
    SCOPED_TRACE(strategy);
    TrainerOptions options = with(strategy, folder.path("w.pth"));
    const auto refused = make<Still>();
    const auto untouched = testing::weights(*refused);
    EXPECT_THAT(message_of([&] { Trainer(options).fit(refused, tiny_loader()); }), HasSubstr("net.4.bias"));
    EXPECT_TRUE(identical(testing::weights(*refused), untouched)) << "nothing is half loaded";

    options.init_from.strict = false;
    const auto module = make<Still>();
    const auto before = testing::weights(*module);
    const testing::CapturedLog log;
    Trainer trainer(options);
    trainer.fit(module, tiny_loader());
    EXPECT_THAT(log.text(), HasSubstr("5 tensors loaded; 1 not in the file: net.4.bias"));
    EXPECT_THAT(log.text(), HasSubstr("1 not in the module: fc.bias"));
    auto expected = testing::weights(source);
    expected.back() = before.back();
    EXPECT_TRUE(identical(testing::weights(*module), expected));
  }
}

/// Bytes that this process has read by system calls.
int64_t bytes_read() {
  std::ifstream counters("/proc/self/io");
  std::string name;
  int64_t count = 0;
  while (counters >> name >> count)
    if (name == "rchar:") return count;
  return -1;
}

TEST(TrainerWeights, ShardedRanksReadTheirPartsAlone) {
  if (bytes_read() < 0) GTEST_SKIP() << "there is no /proc/self/io";
  const testing::Folder folder;
  const auto source = make<TinyModule>({.width = 300'000});
  for (const char* name : {"w.pth", "w.safetensors"}) {
    write_weights(folder.path(name), weights_format_of(name), leaves(*source));
    const auto size = static_cast<int64_t>(std::filesystem::file_size(folder.path(name)));
    for (const int64_t ranks : {2, 4}) {
      SCOPED_TRACE(fmt::format("{} ranks from {}", ranks, name));
      TrainerOptions options = with("{name: sharded_threads, stage: 3, min_unit_parameters: 0}", folder.path(name));
      options.devices = ranks;
      const auto module = make<TinyModule>({.width = 300'000});
      Trainer trainer(options);
      const int64_t before = bytes_read();
      trainer.validate(module, tiny_loader());
      const int64_t read = bytes_read() - before;
      // All ranks together read the file once.
      EXPECT_GT(read, size * 9 / 10);
      EXPECT_LT(read, size * 11 / 10);
    }
  }
}

/// One layer twice, so that its parameters have two names. Saves checkpoints in `save_in`, where that is given.
class Twice : public Module {
 public:
  static std::string save_in;

  Twice() {
    const torch::nn::Linear layer(12, 12);
    Sequential net;
    net->push_back(torch::nn::Linear(4, 12));
    net->push_back(layer);
    net->push_back(torch::nn::Tanh());
    net->push_back(layer);
    net->push_back(torch::nn::Linear(12, 1));
    net_ = register_module("net", net);
  }
  StepOutput training_step(const Batch& batch, int64_t) override {
    return torch::nn::functional::mse_loss(net_(batch["x"]), batch["y"]);
  }
  StepOutput validation_step(const Batch& batch, int64_t) override {
    log("val_loss", torch::nn::functional::mse_loss(net_(batch["x"]), batch["y"]));
    return {};
  }
  void on_train_epoch_end() override {
    if (save_in.empty()) return;
    trainer().save_checkpoint(save_in + "/levin");
    trainer().save_checkpoint(save_in + "/weights", {.weights_only = true});
    trainer().save_checkpoint(save_in + "/w.pth", {.weights_only = true, .format = "pytorch"});
    trainer().save_checkpoint(save_in + "/w.ckpt", {.weights_only = true, .format = "lightning"});
    trainer().save_checkpoint(save_in + "/whole.ckpt", {.format = "lightning"});
  }
  OptimizerConfigs configure_optimizers() override {
    return std::make_shared<optim::SGD>(parameters(), optim::SGDOptions{.lr = 1e-30});
  }

 private:
  Sequential net_{nullptr};
};

std::string Twice::save_in;

TEST(TrainerWeights, CheckpointsKeepEveryNameOfATensor) {
  for (const auto& strategy : kStrategies) {
    SCOPED_TRACE(strategy);
    const testing::Folder folder;
    const auto module = make<Twice>();
    Twice::save_in = folder.path();
    Trainer(with(strategy)).fit(module, tiny_loader());
    Twice::save_in.clear();
    convert_weights(folder.path("levin"), folder.path("converted.pth"), WeightsFormat::kPyTorch);
    for (const char* name : {"levin", "weights", "w.pth", "w.ckpt", "whole.ckpt", "converted.pth"}) {
      SCOPED_TRACE(name);
      const SavedTensors tensors = open_weights(folder.path(name)).tensors;
      EXPECT_EQ(tensors.size(), 8U);
      EXPECT_EQ(tensors.at("net.1.weight"), tensors.at("net.3.weight")) << "one tensor";
      EXPECT_EQ(tensors.at("net.1.bias"), tensors.at("net.3.bias"));
      const auto validated = make<Twice>();
      Trainer(with("single_device")).validate(validated, tiny_loader(), folder.path(name));
      EXPECT_TRUE(identical(testing::weights(*validated), testing::weights(*module)));
    }
    for (const char* name : {"levin", "whole.ckpt"}) {
      SCOPED_TRACE(name);
      const auto resumed = make<Twice>();
      TrainerOptions options = with(strategy);
      options.max_epochs = 2;
      Trainer(options).fit(resumed, tiny_loader(), {}, folder.path(name));
      EXPECT_TRUE(identical(testing::weights(*resumed), testing::weights(*module)));
    }
  }
}

TEST(TrainerWeights, ValidationTakesAFileOfWeightsAlone) {
  const testing::Folder folder;
  const auto source = make<Still>();
  for (const char* name : {"w.pth", "w.safetensors"})
    write_weights(folder.path(name), weights_format_of(name), leaves(*source));
  Trainer plain(with("single_device"));
  plain.validate(source, tiny_loader());
  const double expected = plain.callback_metrics().at("val_loss");
  for (const char* strategy : {"single_device", "{name: sharded_threads, stage: 3}"}) {
    for (const char* name : {"w.pth", "w.safetensors"}) {
      SCOPED_TRACE(std::string(strategy) + " from " + name);
      Trainer trainer(with(strategy));
      trainer.validate(make<Still>(), tiny_loader(), folder.path(name));
      EXPECT_NEAR(trainer.callback_metrics().at("val_loss"), expected, 1e-6);
    }
  }
}

/// To which a signal comes before its weights are read.
class Signalled : public Still {
 public:
  void setup(Stage /*stage*/) override { std::raise(SIGTERM); }
};

TEST(TrainerWeights, ASignalEndsTheReadingOfInitialWeights) {
  const testing::Folder folder;
  const auto source = make<Still>();
  write_weights(folder.path("w.pth"), WeightsFormat::kPyTorch, leaves(*source));
  const auto module = make<Signalled>();
  const auto before = testing::weights(*module);
  Trainer trainer(with("single_device", folder.path("w.pth")));
  EXPECT_THAT(message_of([&] { trainer.fit(module, tiny_loader()); }),
              HasSubstr("a signal came (Terminated) while the weights of init_from were read; nothing was trained"));
  EXPECT_TRUE(identical(testing::weights(*module), before));
  EXPECT_TRUE(trainer.interrupted());
  // Without weights to read, the fit ends after its first step, as for a signal that comes in it.
  Trainer plain(with("single_device"));
  plain.fit(make<Signalled>(), tiny_loader());
  EXPECT_TRUE(plain.interrupted());
  EXPECT_EQ(plain.global_step(), 1);
}

TEST(TrainerWeights, TrainingDoesNotGoOnFromWeightsAlone) {
  const testing::Folder folder;
  const auto module = make<Still>();
  Trainer trainer(with("single_device"));
  trainer.fit(module, tiny_loader());
  trainer.save_checkpoint(folder.path("levin"), {.weights_only = true});
  trainer.save_checkpoint(folder.path("w.pth"), {.weights_only = true, .format = "pytorch"});
  trainer.save_checkpoint(folder.path("w.ckpt"), {.weights_only = true, .format = "lightning"});
  for (const char* name : {"levin", "w.pth", "w.ckpt"}) {
    const std::string message =
        message_of([&] { Trainer(with("single_device")).fit(make<Still>(), tiny_loader(), {}, folder.path(name)); });
    EXPECT_THAT(message, HasSubstr("weights alone")) << name;
    EXPECT_THAT(message, HasSubstr("init_from")) << name;
    const auto other = make<Still>();
    EXPECT_TRUE(load_weights(*other, folder.path(name)).fits());
    EXPECT_TRUE(identical(testing::weights(*other), testing::weights(*module))) << name;
  }
}

TEST(TrainerWeights, AFolderOfHuggingFaceGivesWeightsToEveryCallButFit) {
  const testing::Folder folder;
  const auto source = make<Still>();
  std::ofstream(folder.path("config.json")) << "{}";
  const WriteWeightsOptions with_config{.config = folder.path("config.json")};
  write_weights(folder.path("hf"), WeightsFormat::kHuggingFace, leaves(*source), with_config);
  for (const char* strategy : {"single_device", "ddp_threads", "{name: sharded_threads, stage: 3}"}) {
    Trainer trainer(with(strategy));
    const auto expected = trainer.validate(source, tiny_loader(), "", /*verbose=*/false);
    const auto module = make<Still>();
    ASSERT_FALSE(identical(testing::weights(*module), testing::weights(*source)));
    EXPECT_EQ(trainer.validate(module, tiny_loader(), folder.path("hf"), /*verbose=*/false), expected) << strategy;
    EXPECT_THAT(message_of([&] { trainer.fit(make<Still>(), tiny_loader(), folder.path("hf")); }),
                HasSubstr("hf contains weights alone and cannot be resumed from; valid: a checkpoint of Levin or of "
                          "PyTorch Lightning; hint: trainer.init_from"))
        << strategy;
  }
  const auto module = make<TinyModule>(testing::TinyOptions{});
  const auto other = make<TinyModule>(testing::TinyOptions{});
  save_weights(*module, folder.path("tiny"), with_config);
  save_weights(*module, folder.path("tiny.safetensors"));
  save_weights(*module, folder.path("tiny.pth"));
  for (const char* name : {"tiny", "tiny.safetensors", "tiny.pth"}) {
    Trainer trainer(with("single_device"));
    trainer.export_model(other, Batch{{"x", at::rand({3, 4})}}, folder.path("model.pt"), folder.path(name));
    EXPECT_TRUE(identical(testing::weights(*other), testing::weights(*module))) << name;
    EXPECT_TRUE(identical(testing::weights(*load_from_checkpoint<TinyModule>(folder.path(name), {})),
                          testing::weights(*module)))
        << name;
    EXPECT_THAT(message_of([&] { load_from_checkpoint<TinyModule>(folder.path(name)); }),
                HasSubstr("is not a checkpoint of Levin, which alone has the options of the module; hint: "
                          "load_from_checkpoint<M>(path, options)"));
  }
  std::filesystem::create_directory(folder.path("empty"));
  EXPECT_THAT(message_of([&] { Trainer(with("single_device")).validate(source, tiny_loader(), folder.path("empty")); }),
              HasSubstr("holds no weights that can be read"));
}

/// Looks, when it is told of a checkpoint, whether that is there, alone and whole.
class CheckingLogger : public Logger {
 public:
  void log_metrics(std::span<const MetricValue> /*values*/, int64_t /*step*/, int64_t /*epoch*/) override {}
  void after_save_checkpoint(const CheckpointEvent& event) override {
    ++told;
    if (std::filesystem::exists(event.path) && !std::filesystem::exists(event.path + ".parts") &&
        open_weights(event.path).tensors.size() == 6)
      ++whole;
  }
  int64_t told = 0;
  int64_t whole = 0;
};

TEST(TrainerWeights, LoggersHearOfFilesThatAreThere) {
  for (const char* format : {"pytorch", "safetensors", "lightning"}) {
    for (const bool asynchronous : {false, true}) {
      SCOPED_TRACE(std::string(format) + (asynchronous ? ", asynchronous" : ""));
      const testing::Folder folder;
      const auto logger = std::make_shared<CheckingLogger>();
      TrainerOptions options = with("single_device");
      options.max_epochs = 3;
      options.logger = {logger};
      options.default_root_dir = folder.path();
      options.enable_checkpointing = true;
      options.callbacks = {make<ModelCheckpoint>(
          {.dirpath = folder.path("kept"), .asynchronous = asynchronous, .save_weights_only = true, .format = format})};
      const auto module = make<Still>();
      Trainer(options).fit(module, tiny_loader());
      EXPECT_EQ(logger->told, 3);
      EXPECT_EQ(logger->whole, 3);
      std::vector<std::string> files;
      for (const auto& entry : std::filesystem::directory_iterator(folder.path("kept"))) files.push_back(entry.path());
      ASSERT_EQ(files.size(), 1U) << "one is kept, and nothing is left of how it was made";
      const auto other = make<Still>();
      EXPECT_TRUE(load_weights(*other, files[0]).fits());
      EXPECT_TRUE(identical(testing::weights(*other), testing::weights(*module)));
    }
  }
}

/// With an optimizer whose state PyTorch has in another form.
class Foreign : public TinyModule {
 public:
  using TinyModule::TinyModule;
  OptimizerConfigs configure_optimizers() override {
    return std::make_shared<torch::optim::SGD>(parameters(), torch::optim::SGDOptions(0.1));
  }
};

TEST(TrainerWeights, AFileThatCannotBeWrittenLeavesNothingBehind) {
  const testing::Folder folder;
  Trainer trainer(with("single_device"));
  trainer.fit(make<Foreign>(), tiny_loader());
  EXPECT_THAT(message_of([&] { trainer.save_checkpoint(folder.path("c.ckpt"), {.format = "lightning"}); }),
              HasSubstr("cannot be written for PyTorch"));
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(TrainerWeights, ACheckpointOfAnotherModelGivesWhatFits) {
  const testing::Folder folder;
  const auto saved = make<TinyModule>({.width = 5});
  Trainer trainer(quiet(1));
  trainer.fit(saved, tiny_loader());
  trainer.save_checkpoint(folder.path("c"));
  EXPECT_THAT(
      message_of([&] { load_from_checkpoint<TinyModule>(folder.path("c"), {.width = 6}); }),
      HasSubstr("TinyModule with {width: 5, lr: 0.05, dropout: 0}; valid: levin::testing::TinyModule with {width: 6, "
                "lr: 0.05, dropout: 0}; 3 of another shape: first.weight ([5, 4] in the checkpoint, [6, 4] in "
                "the module)"));
  const testing::CapturedLog log;
  const auto loaded = load_from_checkpoint<TinyModule>(folder.path("c"), {.width = 6}, /*strict=*/false);
  EXPECT_TRUE(at::equal(testing::weights(*loaded).back(), testing::weights(*saved).back())) << "the last bias fits";
  EXPECT_THAT(log.text(), HasSubstr("1 tensor loaded; 3 of another shape"));
  EXPECT_TRUE(identical(testing::weights(*load_from_checkpoint<TinyModule>(folder.path("c"), false)),
                        testing::weights(*saved)));
}

class TinyData : public DataModule {
 public:
  DataLoader train_dataloader() override { return tiny_loader(); }
};

TEST(TrainerWeights, YamlAndTheCommandLineNameThem) {
  const testing::Folder folder;
  const TinyModule source({.width = 8});
  write_weights(folder.path("w.pth"), WeightsFormat::kPyTorch, leaves(source));
  std::ofstream(folder.path("config.yaml"))
      << "trainer:\n  init_from:\n    path: " << folder.path("w.pth") << "\n    strip_prefix: ''\n    strict: false\n";
  const auto run = [](std::vector<std::string> words) {
    words.insert(words.begin(),
                 {"program", "fit", "--model.width=8", "--trainer.max_epochs=1", "--trainer.accelerator=cpu",
                  "--trainer.logger=false", "--trainer.enable_checkpointing=false",
                  "--trainer.enable_progress_bar=false", "--trainer.enable_model_summary=false"});
    std::vector<char*> argv;
    for (auto& word : words) argv.push_back(word.data());
    Cli cli;
    cli.modules.add<TinyModule>("tiny", "two layers");
    cli.data.add<TinyData>("sums", "points and their sums");
    ::testing::internal::CaptureStdout();
    ::testing::internal::CaptureStderr();
    const int status = cli.run(static_cast<int>(argv.size()), argv.data());
    return std::to_string(status) + ": " + ::testing::internal::GetCapturedStdout() +
           ::testing::internal::GetCapturedStderr();
  };
  const std::string loaded = "init_from " + folder.path("w.pth") + ": 4 tensors loaded";
  for (const auto& outcome :
       {run({"--config", folder.path("config.yaml")}), run({"--trainer.init_from", folder.path("w.pth")}),
        run({"--trainer.init_from.path", folder.path("w.pth"), "--trainer.init_from.strict=false"})}) {
    EXPECT_THAT(outcome, ::testing::StartsWith("0: "));
    EXPECT_THAT(outcome, HasSubstr(loaded));
  }
  const std::string none = run({"--trainer.init_from", folder.path("none.pth")});
  EXPECT_THAT(none, ::testing::StartsWith("1: "));
  EXPECT_THAT(none, HasSubstr("there is no"));
}

}  // namespace
}  // namespace levin
