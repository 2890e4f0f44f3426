#include "../support/tiny.h"

#include <levin/callbacks/model_checkpoint.h>
#include <levin/core/base/error.h>
#include <levin/core/interfaces/logger.h>
#include <levin/loggers/csv_logger.h>
#include <levin/loggers/mlflow_logger.h>
#include <levin/loggers/tensorboard_logger.h>
#include <levin/loggers/wandb_logger.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <set>
#include <sstream>
#include <string>
#include <vector>

namespace levin::testing {
namespace {

namespace fs = std::filesystem;

std::string read(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

bool has_events(const std::string& folder) {
  std::error_code missing;
  for (const auto& entry : fs::directory_iterator(folder, missing))
    if (entry.path().filename().string().starts_with("events.out.tfevents")) return true;
  return false;
}

class LoggerFolders : public ::testing::Test {
 protected:
  TrainerOptions options(LoggerSpecs loggers) const {
    TrainerOptions options = quiet(1);
    options.default_root_dir = root_;
    options.enable_checkpointing = true;
    options.log_every_n_steps = 1;
    options.logger = std::move(loggers);
    return options;
  }
  static LoggerSpecs from_yaml(const std::string& text) {
    return ConfigCodec<LoggerSpecs>::parse(Config::parse(text, {}), "trainer.logger");
  }
  /// The message of the error with which a trainer refuses these loggers.
  std::string refusal(const LoggerSpecs& loggers) const {
    try {
      Trainer trainer(options(loggers));
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "";
  }
  static void fit(Trainer& trainer) { trainer.fit(make<TinyModule>({}), tiny_loader(16), tiny_loader(8)); }

  const std::string root_ = fresh_folder("logger_folders");
};

TEST_F(LoggerFolders, TheFirstLoggerOfFilesIsWhereTheRunIs) {
  Trainer trainer(options(from_yaml("[console, csv: {name: wide/net}, tensorboard: {name: wide/net}]")));
  fit(trainer);
  EXPECT_EQ(trainer.run_directory(), root_ + "/wide/net/version_0");
  for (const char* file : {"metrics.csv", "hparams.yaml", "config.yaml", "checkpoints"})
    EXPECT_TRUE(fs::exists(trainer.run_directory() + "/" + file)) << file;
  EXPECT_TRUE(has_events(trainer.run_directory()));
  EXPECT_FALSE(fs::exists(root_ + "/version_0"));
  fit(trainer);
  EXPECT_EQ(trainer.run_directory(), root_ + "/wide/net/version_1") << "a further fit is another run";
}

TEST_F(LoggerFolders, FurtherOnesHaveFoldersOfTheirOwn) {
  const std::string elsewhere = root_ + "/elsewhere";
  fs::create_directories(elsewhere + "/version_6");
  Trainer trainer(options({make<CsvLogger>({}), make<TensorBoardLogger>({.save_dir = elsewhere}),
                           make<CsvLogger>({.save_dir = elsewhere}), make<CsvLogger>({.name = "n", .version = "3"}),
                           make<CsvLogger>({.name = "n", .version = "try-3"})}));
  fit(trainer);
  EXPECT_EQ(trainer.run_directory(), root_ + "/version_0");
  EXPECT_TRUE(has_events(elsewhere + "/version_7"));
  EXPECT_TRUE(fs::exists(elsewhere + "/version_7/metrics.csv")) << "they share the new folder";
  EXPECT_FALSE(has_events(trainer.run_directory()));
  const std::string rows = read(root_ + "/version_0/metrics.csv");
  EXPECT_FALSE(rows.empty());
  for (const std::string& folder : {elsewhere + "/version_7", root_ + "/n/version_3", root_ + "/n/try-3"})
    EXPECT_EQ(read(folder + "/metrics.csv"), rows) << folder;
  trainer.validate(make<TinyModule>({}), tiny_loader(8), "", false);
  EXPECT_FALSE(fs::exists(elsewhere + "/version_8")) << "validate goes on in the folder of the fit";
}

TEST_F(LoggerFolders, LastIsLookedForWhereTheRunsAre) {
  Trainer first(options({make<CsvLogger>({.name = "a"})}));
  fit(first);
  TrainerOptions more = options({make<CsvLogger>({.name = "a"})});
  more.max_epochs = 2;
  Trainer second(more);
  second.fit(make<TinyModule>({}), tiny_loader(16), tiny_loader(8), "last");
  EXPECT_EQ(second.global_step(), 4);
  EXPECT_EQ(second.run_directory(), root_ + "/a/version_1");
  Trainer other(options({make<CsvLogger>({.name = "b"})}));
  EXPECT_THROW(other.fit(make<TinyModule>({}), tiny_loader(16), {}, "last"), Error);
}

TEST_F(LoggerFolders, ARunOfGivenVersionGoesOnInItsFolder) {
  for (const int64_t epochs : {1, 2}) {
    TrainerOptions of_run = options({make<CsvLogger>({.name = "a", .version = "try"})});
    of_run.max_epochs = epochs;
    Trainer trainer(of_run);
    trainer.fit(make<TinyModule>({}), tiny_loader(16), tiny_loader(8), "auto");
    EXPECT_EQ(trainer.global_step(), 2 * epochs);
    EXPECT_EQ(trainer.run_directory(), root_ + "/a/try");
  }
}

TEST_F(LoggerFolders, RunDirIsTheRunsFolderAllTheSame) {
  TrainerOptions given = options({make<CsvLogger>({.name = "a"})});
  given.run_dir = root_ + "/mine";
  Trainer trainer(given);
  fit(trainer);
  EXPECT_EQ(trainer.run_directory(), root_ + "/mine");
  EXPECT_TRUE(fs::exists(root_ + "/mine/checkpoints"));
  EXPECT_FALSE(fs::exists(root_ + "/mine/metrics.csv"));
  EXPECT_TRUE(fs::exists(root_ + "/a/version_0/metrics.csv"));
}

TEST_F(LoggerFolders, TwoLoggersOfOneClassNeedTwoFolders) {
  for (const char* loggers : {"[csv, csv]", "[csv: {name: a, version: 1}, console, csv: {name: a, version: version_1}]",
                              "[tensorboard, tensorboard: {prefix: p}]", "[csv: {name: a}, csv: {name: a/}]"}) {
    const std::string refused = refusal(from_yaml(loggers));
    EXPECT_NE(refused.find("are of one class"), std::string::npos) << loggers << ": " << refused;
  }
  EXPECT_NE(
      refusal(from_yaml("[csv: {name: a}, console, csv: {name: ./a}]"))
          .find("trainer.logger[0] and trainer.logger[2] are of one class, CsvLogger, and write files of the same "
                "names into one folder, a new version_N below " +
                root_ + "/a"),
      std::string::npos);
  EXPECT_EQ(refusal(from_yaml("[csv, tensorboard, csv: {name: a}, console, console]")), "");
}

TEST_F(LoggerFolders, WhatIsNoNameOfAFolderIsRefused) {
  for (const char* logger : {"csv: {version: a/b}", "csv: {version: ..}", "tensorboard: {name: /absolute}",
                             "tensorboard: {name: a/../../b}"})
    EXPECT_NE(refusal(from_yaml(std::string("[") + logger + "]")).find("must be"), std::string::npos) << logger;
}

/// Keeps the names of what it is given.
class NamesLogger : public Logger {
 public:
  std::string_view prefix() const override { return "run"; }
  void log_metrics(std::span<const MetricValue> values, int64_t, int64_t) override {
    for (const auto& value : values) names.insert(value.name);
  }
  void log_text(const std::string& name, const std::string&, int64_t) override { names.insert(name); }
  void log_histogram(const std::string& name, std::span<const double>, int64_t) override { names.insert(name); }
  void log_image(const std::string& name, const at::Tensor&, int64_t) override { names.insert(name); }
  std::set<std::string> names;
};

class LogsEverything : public TinyModule {
 public:
  using TinyModule::TinyModule;
  void on_train_end() override {
    trainer().log_text("text", "t");
    trainer().log_histogram("histogram", at::ones({2}));
    trainer().log_image("image", at::zeros({1, 2, 2}));
  }
};

using LoggerPrefix = LoggerFolders;

TEST_F(LoggerPrefix, IsBeforeAllNamesThatTheLoggerGetsAndNoOthers) {
  const auto names = std::make_shared<NamesLogger>();
  Trainer trainer(options({names, make<CsvLogger>({.prefix = "big"}), make<CsvLogger>({.name = "plain"})}));
  trainer.fit(make<LogsEverything>({}), tiny_loader(16), tiny_loader(8));
  const std::set<std::string> expected = {
      "run-train_loss_step", "run-train_loss_epoch", "run-val_loss", "run-text", "run-histogram", "run-image"};
  EXPECT_EQ(names->names, expected);
  const std::string rows = read(trainer.run_directory() + "/metrics.csv");
  EXPECT_TRUE(rows.starts_with("epoch,step,big-")) << rows;
  EXPECT_TRUE(read(root_ + "/plain/version_0/metrics.csv").starts_with("epoch,step,train_loss")) << rows;
  EXPECT_TRUE(trainer.logged_metrics().contains("val_loss"));
  EXPECT_FALSE(trainer.logged_metrics().contains("big-val_loss"));
}

TEST_F(LoggerPrefix, IsAnOptionOfEveryLogger) {
  EXPECT_EQ(make<WandbLogger>({.prefix = "a"})->prefix(), "a");
  EXPECT_EQ(make<MlflowLogger>({.prefix = "b"})->prefix(), "b");
  EXPECT_EQ(make<TensorBoardLogger>({.prefix = "c"})->prefix(), "c");
  EXPECT_EQ(make<CsvLogger>({})->prefix(), "");
}

TEST_F(LoggerFolders, RunsOfWandbInOneFolderStayTwo) {
  const std::string all = root_ + "/all";
  const auto runs = [&] {
    std::set<std::string> names;
    for (const auto& entry : fs::directory_iterator(all + "/wandb")) names.insert(entry.path().filename());
    return names;
  };
  Trainer first(options({make<WandbLogger>({.save_dir = all})}));
  fit(first);
  first.validate(make<TinyModule>({}), tiny_loader(8), "", false);
  EXPECT_EQ(runs().size(), 1U) << "validate goes on in the run of the fit";
  Trainer second(options({make<WandbLogger>({.save_dir = all, .id = "mine"})}));
  fit(second);
  EXPECT_EQ(runs().size(), 2U);
  fit(first);
  EXPECT_EQ(runs().size(), 3U) << "a further fit is another run";
  Trainer third(options({make<WandbLogger>({.save_dir = all, .id = "mine"})}));
  fit(third);
  EXPECT_EQ(runs().size(), 3U) << "of the same id";
  EXPECT_FALSE(fs::exists(first.run_directory() + "/wandb"));
}

}  // namespace
}  // namespace levin::testing
