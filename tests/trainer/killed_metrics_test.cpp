// metrics.csv of runs that were killed and went on: that of a run that never stopped, to the byte.

#include <levin/callbacks/early_stopping.h>
#include <levin/callbacks/lambda_callback.h>
#include <levin/callbacks/learning_rate_monitor.h>
#include <levin/callbacks/model_checkpoint.h>
#include <levin/core/base/file_system.h>
#include <levin/core/base/seed.h>
#include <levin/loggers/csv_logger.h>
#include <levin/loggers/tensorboard_logger.h>

#include "../support/captured_log.h"
#include "../support/tiny.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <filesystem>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace levin {
namespace {

using testing::CapturedLog;
using testing::fresh_folder;
using ::testing::HasSubstr;
using testing::TinyModule;

/// Dropout, and a schedule by steps.
class KilledModule : public TinyModule {
 public:
  using TinyModule::TinyModule;
  OptimizerConfigs configure_optimizers() override {
    auto configs = TinyModule::configure_optimizers();
    configs.front().scheduler = {
        .name = "step", .interval = Interval::kStep, .options = Config::parse("{step_size: 3, gamma: 0.5}", {})};
    return configs;
  }
};

/// Called when the loggers before it have taken a row, and when a checkpoint has been saved.
class RowWatcher : public Logger {
 public:
  explicit RowWatcher(std::function<void()> seen) : seen_(std::move(seen)) {}
  void log_metrics(std::span<const MetricValue>, int64_t, int64_t) override { seen_(); }
  void after_save_checkpoint(const CheckpointEvent&) override { seen_(); }

 private:
  const std::function<void()> seen_;
};

struct KilledSetup {
  std::string name;
  ModelCheckpointOptions saving;
  int64_t log_every = 2;
  int64_t accumulate = 1;
  double val_check_interval = 1.0;
  std::string ckpt = "auto";
};

/// Trains 3 epochs of 5 batches in a folder. `seen` is called wherever the run might be killed.
void train_in(
    const std::string& folder, const KilledSetup& setup, const std::string& ckpt,
    const std::function<void()>& seen = [] {}, int64_t epochs = 3) {
  seed_everything(11);
  TrainerOptions options = testing::quiet(epochs);
  options.run_dir = folder;
  options.enable_checkpointing = true;
  options.log_every_n_steps = setup.log_every;
  options.accumulate_grad_batches = setup.accumulate;
  options.val_check_interval = setup.val_check_interval;
  options.logger = {make<CsvLogger>({.flush_every = 1}), std::make_shared<RowWatcher>(seen)};
  // Its value waits for the next row.
  const auto logs_after_validation = [](Trainer& trainer, Module&) {
    trainer.log_metrics({{"validations", static_cast<double>(trainer.global_step())}});
  };
  options.callbacks = {
      make<LearningRateMonitor>({}), make<ModelCheckpoint>(setup.saving),
      make<LambdaCallback>(LambdaCallbackOptions{
          .on_train_batch_end = [&](Trainer&, Module&, const StepOutput&, const Batch&, int64_t) { seen(); },
          .on_validation_end = logs_after_validation,
          .on_validation_batch_end = [&](Trainer&, Module&, const StepOutput&, const Batch&, int64_t,
                                         int64_t) { seen(); }})};
  Trainer(options).fit(make<KilledModule>({.dropout = 0.3}), testing::tiny_loader(),
                       DataLoaders{testing::tiny_loader(16, 8, false)}, ckpt);
}

std::string rows_in(const std::string& folder) { return FileSystem::current().read_file(folder + "/metrics.csv"); }

/// A kill leaves what is on the disk at that moment; nothing is written beside training, so that a copy is the same.
std::vector<std::string> folders_of_killed(const std::string& folder, const KilledSetup& setup) {
  std::vector<std::string> killed;
  train_in(folder, setup, setup.ckpt, [&] {
    if (!FileSystem::current().exists(folder)) return;
    killed.push_back(fresh_folder("killed") + "/run");
    std::filesystem::copy(folder, killed.back(), std::filesystem::copy_options::recursive);
  });
  return killed;
}

std::vector<KilledSetup> killed_setups() {
  return {{.name = "last", .saving = {.save_last = true}},
          {.name = "steps", .saving = {.save_last = true, .every_n_train_steps = 2}},
          {.name = "every step, rows of every step",
           .saving = {.save_last = true, .every_n_train_steps = 1},
           .log_every = 1},
          {.name = "steps, no last", .saving = {.save_top_k = -1, .every_n_train_steps = 3}},
          {.name = "best", .saving = {.monitor = "val_loss", .save_top_k = 2, .save_last = true}},
          {.name = "two validations", .saving = {.save_last = true}, .log_every = 1, .val_check_interval = 0.4},
          {.name = "accumulation",
           .saving = {.save_last = true, .every_n_train_steps = 1},
           .log_every = 1,
           .accumulate = 2},
          {.name = "few rows", .saving = {.save_last = true, .every_n_train_steps = 2}, .log_every = 50},
          {.name = "after epochs", .saving = {.save_last = true, .save_on_train_epoch_end = true}, .log_every = 3}};
}

TEST(KilledMetrics, AreThoseOfARunThatNeverStopped) {
  constexpr size_t kStride = 6;  // each setup has other moments of these
  size_t offset = 0;
  for (const KilledSetup& setup : killed_setups()) {
    SCOPED_TRACE(setup.name);
    const std::string whole = fresh_folder("killed_whole") + "/run";
    const auto killed = folders_of_killed(whole, setup);
    const std::string expected = rows_in(whole);
    EXPECT_GT(killed.size(), 15U);
    for (size_t i = offset++ % kStride; i < killed.size(); i += kStride) {
      const std::string before = FileSystem::current().exists(killed[i] + "/metrics.csv") ? rows_in(killed[i]) : "";
      train_in(killed[i], setup, setup.ckpt);
      EXPECT_EQ(rows_in(killed[i]), expected) << "killed at moment " << i << ", with\n" << before;
    }
  }
}

/// Once more, between any two moments of the run that goes on.
TEST(KilledMetrics, AreTheSameAfterTwoKills) {
  const KilledSetup setup{.name = "twice", .saving = {.save_last = true, .every_n_train_steps = 3}, .log_every = 1};
  const std::string whole = fresh_folder("killed_whole") + "/run";
  const auto killed = folders_of_killed(whole, setup);
  for (size_t first = 1; first < killed.size(); first += 9) {
    const auto again = folders_of_killed(killed[first], setup);
    for (size_t second = 0; second < again.size(); second += 7) {
      train_in(again[second], setup, "auto");
      EXPECT_EQ(rows_in(again[second]), rows_in(whole)) << "killed at moments " << first << " and " << second;
    }
  }
}

TEST(KilledMetrics, AreTheSameAfterAnError) {
  const KilledSetup setup{.name = "error", .saving = {.save_last = true, .every_n_train_steps = 2}, .log_every = 1};
  const std::string whole = fresh_folder("killed_whole") + "/run";
  const size_t moments = folders_of_killed(whole, setup).size();
  for (size_t moment = 0; moment < moments; moment += 4) {
    const std::string folder = fresh_folder("killed") + "/run";
    size_t seen = 0;
    const auto fail = [&] {
      if (seen++ == moment) throw std::runtime_error("out of luck");
    };
    EXPECT_THROW(train_in(folder, setup, "auto", fail), std::runtime_error);
    train_in(folder, setup, "auto");
    EXPECT_EQ(rows_in(folder), rows_in(whole)) << "after an error at moment " << moment;
  }
}

TEST(KilledMetrics, RowsOfAnotherRunAreKept) {
  const KilledSetup setup{.name = "other", .saving = {.save_last = true}, .log_every = 1};
  const std::string own = fresh_folder("killed_own") + "/run";
  const std::string other = fresh_folder("killed_other") + "/run";
  train_in(own, setup, "");
  KilledSetup different = setup;
  different.log_every = 2;
  train_in(
      other, different, "", [] {}, 5);
  const std::string before = rows_in(other);
  const CapturedLog log;
  train_in(
      other, setup, own + "/checkpoints/last", [] {}, 4);
  EXPECT_THAT(rows_in(other), ::testing::StartsWith(before));
  EXPECT_THAT(log.text(), HasSubstr("all of its rows are kept"));
}

TEST(KilledMetrics, RowsOfAnotherRunAreKeptByOneThatHasLoggedNone) {
  std::string early;
  const auto train_quietly = [&early](const std::string& folder, const std::string& ckpt) {
    TrainerOptions options = testing::quiet(2);
    options.run_dir = folder;
    options.enable_checkpointing = true;
    options.log_every_n_steps = 50;  // one row an epoch
    options.logger = {make<CsvLogger>({.flush_every = 1}), std::make_shared<RowWatcher>([&early, folder] {
                        if (!early.empty() || !FileSystem::current().exists(folder + "/checkpoints/last")) return;
                        early = fresh_folder("killed") + "/run";
                        std::filesystem::copy(folder, early, std::filesystem::copy_options::recursive);
                      })};
    options.callbacks = {make<ModelCheckpoint>({.save_last = true, .every_n_train_steps = 2})};
    Trainer(options).fit(make<KilledModule>({.dropout = 0.3}), testing::tiny_loader(), DataLoaders(), ckpt);
  };
  const std::string own = fresh_folder("killed_own") + "/run";
  train_quietly(own, "");
  ASSERT_FALSE(FileSystem::current().exists(early + "/metrics.csv"));
  const std::string other = fresh_folder("killed_other") + "/run";
  train_quietly(other, "");
  const std::string before = rows_in(other);
  train_quietly(other, early + "/checkpoints/last");
  EXPECT_THAT(rows_in(other), ::testing::StartsWith(before));
  train_quietly(early, "auto");
  EXPECT_EQ(rows_in(early), rows_in(own));
}

/// A fit without a checkpoint to go on from, and one that goes on in a folder of its own.
TEST(KilledMetrics, AFitThatGoesOnFromNothingContinuesTheFile) {
  const KilledSetup setup{.name = "again", .saving = {.save_last = true}, .log_every = 1};
  const std::string folder = fresh_folder("killed") + "/run";
  train_in(folder, setup, "");
  const std::string once = rows_in(folder);
  train_in(folder, setup, "");
  EXPECT_EQ(rows_in(folder), once + once.substr(once.find('\n') + 1));
}

}  // namespace
}  // namespace levin
