#include <levin/callbacks/model_checkpoint.h>
#include <levin/core/base/error.h>
#include <levin/core/data/data_module.h>
#include <levin/core/interfaces/logger.h>
#include <levin/core/trainer/trainer.h>

#include "../support/tiny.h"

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

namespace levin {
namespace {

using testing::quiet;
using testing::tiny_loader;
using testing::TinyModule;

class TinyData : public DataModule {
 public:
  DataLoader train_dataloader() override { return tiny_loader(); }
  DataLoaders val_dataloader() override { return tiny_loader(); }
  DataLoaders test_dataloader() override { return tiny_loader(16); }
};

TEST(TrainerCalls, TestTakesTheModuleOfTheLastCallAndItsBestWeights) {
  for (const char* strategy : {"single_device", "ddp_threads", "ddp_spawn"}) {
    SCOPED_TRACE(strategy);
    TrainerOptions options = quiet(3);
    options.strategy = strategy;
    options.devices = std::string(strategy) == "single_device" ? 1 : 2;
    options.default_root_dir = testing::fresh_folder("calls");
    options.enable_checkpointing = true;
    options.callbacks = {make<ModelCheckpoint>({.monitor = "val_loss"})};
    Trainer trainer(options);
    EXPECT_THROW(trainer.test(), Error);
    const auto module = make<TinyModule>({});
    const auto data = std::make_shared<TinyData>();
    trainer.fit(module, data);
    const double expected = trainer.test(module, data, "best").at(0).at("test_loss");
    EXPECT_EQ(trainer.test().at(0).at("test_loss"), expected);
  }
}

/// Keeps what it is told.
class Notes : public Logger {
 public:
  void log_metrics(std::span<const MetricValue> values, int64_t /*step*/, int64_t /*epoch*/) override {
    for (const auto& value : values) metrics[value.name] = value.value;
  }
  void log_text(const std::string& name, const std::string& text, int64_t step) override {
    texts[name] = text + " at " + std::to_string(step);
  }
  void log_histogram(const std::string& name, std::span<const double> values, int64_t /*step*/) override {
    histograms[name].assign(values.begin(), values.end());
  }
  std::map<std::string, double> metrics;
  std::map<std::string, std::string> texts;
  std::map<std::string, std::vector<double>> histograms;
};

class Talkative : public TinyModule {
 public:
  using TinyModule::TinyModule;
  void on_train_epoch_end() override {
    log("hidden", 3.0, {.logger = false});
    trainer().log_text("note", "an epoch");
    trainer().log_histogram("numbers", torch::tensor({{1, 2}, {3, 4}}));
  }
};

TEST(TrainerCalls, TextsHistogramsAndWhatLoggersGot) {
  TrainerOptions options = quiet(2);
  const auto notes = std::make_shared<Notes>();
  options.logger = {notes};
  options.default_root_dir = testing::fresh_folder("calls");
  Trainer trainer(options);
  trainer.fit(std::make_shared<Talkative>(testing::TinyOptions{}), tiny_loader());
  EXPECT_EQ(notes->texts.at("note"), "an epoch at 10");
  EXPECT_EQ(notes->histograms.at("numbers"), (std::vector<double>{1, 2, 3, 4}));
  const MetricMap logged = trainer.logged_metrics();
  EXPECT_FALSE(logged.contains("hidden"));
  EXPECT_TRUE(trainer.callback_metrics().contains("hidden"));
  EXPECT_TRUE(logged.contains("train_loss_epoch"));
  for (const auto& [name, value] : notes->metrics) EXPECT_EQ(logged.at(name), value) << name;
}

}  // namespace
}  // namespace levin
