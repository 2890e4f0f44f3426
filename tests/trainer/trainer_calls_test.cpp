#include <levin/callbacks/model_checkpoint.h>
#include <levin/core/base/error.h>
#include <levin/core/base/seed.h>
#include <levin/core/data/data_module.h>
#include <levin/core/interfaces/logger.h>
#include <levin/core/optim/sgd.h>
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

TEST(TrainerCalls, ACheckpointMayFollowTheTrainingLoader) {
  const std::string folder = fresh_folder("calls");
  const auto module = make<TinyModule>({});
  Trainer first(quiet(1));
  first.fit(module, tiny_loader());
  first.save_checkpoint(folder + "/c");
  const std::string path = folder + "/c";
  Trainer trainer(quiet(2));
  trainer.fit(module, tiny_loader(), path);
  EXPECT_EQ(trainer.global_step(), 10);
  trainer.fit(module, tiny_loader(), path.c_str());
  EXPECT_EQ(trainer.global_step(), 10);
  EXPECT_FALSE(trainer.tune(module, tiny_loader(), path).empty());
  // As before: no, one and several loaders of validation, and no data.
  trainer.fit(module, tiny_loader(), {}, path);
  trainer.fit(module, tiny_loader(), {});
  trainer.fit(module, tiny_loader(), tiny_loader());
  trainer.fit(module, tiny_loader(), {tiny_loader(), tiny_loader()}, "");
  EXPECT_EQ(trainer.global_step(), 10);
  EXPECT_THROW(trainer.fit(module, {}, "auto"), Error) << "there are no data";
  EXPECT_THROW(trainer.fit(module, nullptr, "auto"), Error);
}

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

/// Descends by SGD, whose step is proportional to the gradient.
class Descends : public TinyModule {
 public:
  using TinyModule::TinyModule;
  OptimizerConfigs configure_optimizers() override {
    return std::make_shared<optim::SGD>(parameters(), optim::SGDOptions{.lr = options_.lr});
  }
};

class DescendsTwice : public Descends {
 public:
  using Descends::Descends;
  void backward(const at::Tensor& loss) override { (2 * loss).backward(); }
};

TEST(TrainerCalls, AModuleMayRunBackwardItself) {
  for (const char* strategy : {"single_device", "ddp_threads"}) {
    TrainerOptions options = quiet(2);
    options.strategy = strategy;
    options.devices = std::string(strategy) == "single_device" ? 1 : 2;
    options.accumulate_grad_batches = 2;
    seed_everything(3);
    const auto expected = make<Descends>({.lr = 0.02});
    Trainer(options).fit(expected, tiny_loader());
    seed_everything(3);
    const auto module = make<DescendsTwice>({.lr = 0.01});
    Trainer(options).fit(module, tiny_loader());
    for (size_t i = 0; i < 4; ++i)
      EXPECT_TRUE(testing::weights(*module)[i].allclose(testing::weights(*expected)[i], 1e-5, 1e-7)) << strategy;
  }
}

}  // namespace
}  // namespace levin
