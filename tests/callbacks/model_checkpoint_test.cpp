#include <levin/callbacks/model_checkpoint.h>

#include <levin/core/base/error.h>
#include <levin/core/checkpoint/checkpoint.h>
#include <levin/core/checkpoint/checkpoint_info.h>
#include <levin/core/interfaces/logger.h>

#include "../support/eventually.h"
#include "../support/faulty_file_system.h"
#include "tiny_training.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace levin {
namespace {

using testing::CapturedLog;
using testing::PlainModule;
using testing::quiet_options;
using testing::RunFolder;
using testing::tiny_batches;
using Names = std::vector<std::string>;

constexpr const char* kFolder = "version_0/checkpoints";

class ModelCheckpointTest : public ::testing::Test {
 protected:
  /// Trains one epoch of 4 batches for each value, with validation after each.
  std::shared_ptr<ModelCheckpoint> train(const ModelCheckpointOptions& options, const std::vector<double>& val_losses) {
    auto callback = make<ModelCheckpoint>(options);
    Trainer trainer(quiet_options(folder_, static_cast<int64_t>(val_losses.size()), {callback}));
    trainer.fit(std::make_shared<PlainModule>(val_losses), tiny_batches(), tiny_batches(1));
    return callback;
  }
  Names saved() const { return folder_.list(kFolder); }
  std::string path(const std::string& name) const { return folder_.path(std::string(kFolder) + "/" + name); }

  RunFolder folder_;
};

TEST_F(ModelCheckpointTest, WithoutAMonitorKeepsTheNewest) {
  const auto callback = train({}, {1, 1, 1});
  EXPECT_EQ(saved(), (Names{"epoch=2-step=12"}));
  EXPECT_EQ(callback->best_model_path(), path("epoch=2-step=12"));
  EXPECT_EQ(callback->last_model_path(), callback->best_model_path());
  EXPECT_EQ(callback->best_model_score(), std::nullopt);
}

TEST_F(ModelCheckpointTest, KeepsTheBestByAMetric) {
  const auto callback =
      train({.monitor = "val_loss", .save_top_k = 2, .filename = "{epoch}-{val_loss:.2f}"}, {3, 1, 2, 5});
  EXPECT_EQ(saved(), (Names{"epoch=1-val_loss=1.00", "epoch=2-val_loss=2.00"}));
  EXPECT_EQ(callback->best_model_path(), path("epoch=1-val_loss=1.00"));
  EXPECT_EQ(callback->best_model_score(), 1);
  EXPECT_EQ(callback->kth_best_model_path(), path("epoch=2-val_loss=2.00"));
  EXPECT_EQ(callback->kth_value(), 2);
  EXPECT_EQ(callback->last_model_path(), path("epoch=2-val_loss=2.00"));
  const CheckpointInfo info = read_info(callback->best_model_path());
  EXPECT_EQ(info.monitor, "val_loss");
  EXPECT_EQ(info.score, 1);
}

TEST_F(ModelCheckpointTest, LargerIsBetterWithModeMax) {
  const auto callback = train({.monitor = "val_loss", .mode = "max"}, {3, 1, 5, 2});
  EXPECT_EQ(saved(), (Names{"epoch=2-step=12"}));
  EXPECT_EQ(callback->best_model_score(), 5);
}

TEST_F(ModelCheckpointTest, TopKOfAllAndNone) {
  train({.save_top_k = -1}, {1, 1, 1});
  EXPECT_EQ(saved(), (Names{"epoch=0-step=4", "epoch=1-step=8", "epoch=2-step=12"}));
}

TEST_F(ModelCheckpointTest, LastAlone) {
  const auto callback = train({.save_top_k = 0, .save_last = true}, {1, 1});
  EXPECT_EQ(saved(), (Names{"last"}));
  EXPECT_EQ(callback->last_model_path(), path("last"));
  EXPECT_EQ(read_info(path("last")).global_step, 8);
}

TEST_F(ModelCheckpointTest, LastBesidesTheBest) {
  const auto callback = train({.monitor = "val_loss", .save_last = true}, {1, 2});
  EXPECT_EQ(saved(), (Names{"epoch=0-step=4", "last"}));
  EXPECT_EQ(callback->best_model_path(), path("epoch=0-step=4"));
  EXPECT_EQ(read_info(path("last")).global_step, 8);
}

TEST_F(ModelCheckpointTest, EveryNEpochs) {
  train({.save_top_k = -1, .every_n_epochs = 2}, {1, 1, 1, 1, 1});
  EXPECT_EQ(saved(), (Names{"epoch=1-step=8", "epoch=3-step=16"}));
}

TEST_F(ModelCheckpointTest, EveryNTrainSteps) {
  train({.save_top_k = -1, .save_last = true, .every_n_train_steps = 3}, {1, 1});
  EXPECT_EQ(saved(), (Names{"epoch=0-step=3", "epoch=1-step=6", "last"}));
  // Training ended two steps after the last save.
  EXPECT_EQ(read_info(path("last")).global_step, 8);
}

TEST_F(ModelCheckpointTest, StepsCanRankCheckpoints) {
  train({.monitor = "step", .mode = "max", .save_top_k = 2, .every_n_train_steps = 2}, {1, 1});
  EXPECT_EQ(saved(), (Names{"epoch=1-step=6", "epoch=1-step=8"}));
}

TEST_F(ModelCheckpointTest, AccumulatedBatchesAreNoSteps) {
  auto options = quiet_options(folder_, 1, {make<ModelCheckpoint>({.save_top_k = -1, .every_n_train_steps = 1})});
  options.accumulate_grad_batches = 2;
  Trainer(options).fit(std::make_shared<PlainModule>(), tiny_batches());
  EXPECT_EQ(saved(), (Names{"epoch=0-step=1", "epoch=0-step=2"}));
}

TEST_F(ModelCheckpointTest, AfterEachValidationWhereThereAreSeveralAnEpoch) {
  auto callback = make<ModelCheckpoint>({.monitor = "val_loss", .save_top_k = -1});
  auto options = quiet_options(folder_, 1, {callback});
  options.val_check_interval = 0.5;
  options.num_sanity_val_steps = 1;
  Trainer(options).fit(std::make_shared<PlainModule>(std::vector<double>{2, 1}), tiny_batches(), tiny_batches(1));
  EXPECT_EQ(saved(), (Names{"epoch=0-step=2", "epoch=0-step=4"}));
  EXPECT_EQ(callback->best_model_score(), 1);
}

TEST_F(ModelCheckpointTest, SavesAnEpochThatWasCutShort) {
  CapturedLog log;
  auto callback = make<ModelCheckpoint>({.monitor = "val_loss"});
  auto options = quiet_options(folder_, 5, {callback});
  options.max_steps = 2;
  // The metric is not there yet: no error, since no validation was due.
  Trainer(options).fit(std::make_shared<PlainModule>(), tiny_batches(), tiny_batches(1));
  EXPECT_EQ(saved(), Names{});
  EXPECT_NE(log.text().find("training ended before 'val_loss' had a value"), std::string::npos) << log.text();
}

TEST_F(ModelCheckpointTest, RanksByTheValidationOfItsOwnWeights) {
  // Saving is due after the batch that validation follows, and at other batches.
  for (const int64_t every : {4, 2, 3}) {
    SCOPED_TRACE(every);
    const std::string run = folder_.path(std::to_string(every));
    auto callback = make<ModelCheckpoint>(
        {.monitor = "val_loss", .every_n_train_steps = every, .filename = "{step}-{val_loss:.2f}", .dirpath = run});
    Trainer trainer(quiet_options(folder_, 7, {callback}));
    trainer.fit(std::make_shared<PlainModule>(std::vector<double>{3.17, 3.42, 3.05, 4.30, 4.26, 3.55, 3.96}),
                tiny_batches(), tiny_batches(1));
    EXPECT_EQ(folder_.list(std::to_string(every)), Names{"step=12-val_loss=3.05"});
    EXPECT_EQ(callback->best_model_score(), 3.05);
    EXPECT_EQ(read_info(callback->best_model_path()).score, 3.05);
  }
}

/// Validation logs the number of optimizer steps that made the weights.
class StepsModule : public PlainModule {
 public:
  StepOutput validation_step(const Batch&, int64_t) override {
    log("steps", static_cast<double>(trainer().global_step()));
    return {};
  }
};

TEST_F(ModelCheckpointTest, RanksByItsOwnWeightsWhateverTheIntervals) {
  int64_t fits = 0;
  for (int64_t batches = 1; batches <= 5; ++batches)
    for (int64_t interval = 1; interval <= batches; ++interval)
      for (const int64_t every : {1, 2, 3, 5})
        for (const int64_t window : {1, 2}) {
          SCOPED_TRACE(fmt::format("{} batches, validation every {}, saving every {}, windows of {}", batches, interval,
                                   every, window));
          const std::string run = std::to_string(fits++);
          auto options = quiet_options(
              folder_, 3,
              {make<ModelCheckpoint>(
                  {.monitor = "steps", .save_top_k = -1, .every_n_train_steps = every, .dirpath = folder_.path(run)})});
          options.val_check_interval = interval;
          options.accumulate_grad_batches = window;
          Trainer(options).fit(std::make_shared<StepsModule>(), tiny_batches(batches), tiny_batches(1));
          for (const std::string& name : folder_.list(run)) {
            const CheckpointInfo info = read_info(folder_.path(run + "/" + name));
            EXPECT_EQ(info.score, info.global_step) << name;
          }
        }
}

TEST_F(ModelCheckpointTest, NamesTheStepThatNoValueRanked) {
  const CapturedLog log;
  auto options = quiet_options(folder_, 2, {make<ModelCheckpoint>({.monitor = "steps", .every_n_train_steps = 2})});
  options.val_check_interval = 3;
  Trainer(options).fit(std::make_shared<StepsModule>(), tiny_batches(), tiny_batches(1));
  EXPECT_NE(log.text().find("before 'steps' had a value that ranks the checkpoint due at step 8"), std::string::npos)
      << log.text();
  EXPECT_EQ(saved(), Names{"epoch=0-step=3"});
}

TEST_F(ModelCheckpointTest, EachValueRanksOnce) {
  // Validation every second epoch; by the epochs in between nothing is known of the weights.
  auto callback = make<ModelCheckpoint>(
      {.monitor = "val_loss", .save_top_k = -1, .filename = "{epoch}-{val_loss:.0f}", .save_on_train_epoch_end = true});
  auto options = quiet_options(folder_, 6, {callback});
  options.check_val_every_n_epoch = 2;
  Trainer(options).fit(std::make_shared<PlainModule>(std::vector<double>{3, 2, 1}), tiny_batches(), tiny_batches(1));
  EXPECT_EQ(saved(), (Names{"epoch=1-val_loss=3", "epoch=3-val_loss=2", "epoch=5-val_loss=1"}));
}

TEST_F(ModelCheckpointTest, WhatIsDueWithoutAValueWaitsForOne) {
  // Epochs 2 and 5 are due, validation comes in epochs 1, 3 and 5.
  auto callback = make<ModelCheckpoint>({.monitor = "val_loss",
                                         .save_top_k = -1,
                                         .every_n_epochs = 3,
                                         .filename = "{epoch}-{val_loss:.0f}",
                                         .save_on_train_epoch_end = true});
  auto options = quiet_options(folder_, 6, {callback});
  options.check_val_every_n_epoch = 2;
  Trainer(options).fit(std::make_shared<PlainModule>(std::vector<double>{3, 2, 1}), tiny_batches(), tiny_batches(1));
  EXPECT_EQ(saved(), (Names{"epoch=3-val_loss=2", "epoch=5-val_loss=1"}));
}

TEST_F(ModelCheckpointTest, WaitingSavesNothing) {
  // Due after steps 5, 10, 15 and 20 of 24; the only validation comes after step 20.
  std::vector<int64_t> saved_at;
  class Saves : public Logger {
   public:
    explicit Saves(std::vector<int64_t>& steps) : steps_(steps) {}
    void log_metrics(std::span<const MetricValue>, int64_t, int64_t) override {}
    void after_save_checkpoint(const CheckpointEvent& event) override {
      if (event.is_last) steps_.push_back(event.global_step);
    }

   private:
    std::vector<int64_t>& steps_;
  };
  auto options = quiet_options(
      folder_, 6, {make<ModelCheckpoint>({.monitor = "val_loss", .save_last = true, .every_n_train_steps = 5})});
  options.check_val_every_n_epoch = 5;
  options.logger = {std::make_shared<Saves>(saved_at)};
  Trainer(options).fit(std::make_shared<PlainModule>(), tiny_batches(), tiny_batches(1));
  EXPECT_EQ(saved_at, (std::vector<int64_t>{5, 10, 15, 20, 20, 24}));
}

TEST_F(ModelCheckpointTest, TheLastStateDoesNotWait) {
  auto callback = make<ModelCheckpoint>({.monitor = "val_loss", .save_last = true, .every_n_train_steps = 1});
  auto options = quiet_options(folder_, 4, {callback});
  options.max_steps = 3;
  options.check_val_every_n_epoch = 4;
  const CapturedLog log;
  Trainer(options).fit(std::make_shared<PlainModule>(), tiny_batches(), tiny_batches(1));
  EXPECT_EQ(saved(), Names{"last"});
  EXPECT_EQ(read_info(path("last")).global_step, 3);
  EXPECT_EQ(read_info(path("last")).score, std::nullopt);
}

TEST_F(ModelCheckpointTest, AMetricThatNobodyLogsIsAnError) {
  try {
    train({.monitor = "val_los"}, {1});
    FAIL();
  } catch (const Error& error) {
    const std::string message = error.what();
    EXPECT_NE(
        message.find("[model_checkpoint] the monitored metric 'val_los' was not logged; did you mean 'val_loss'?"),
        message.npos)
        << message;
  }
}

TEST_F(ModelCheckpointTest, NanRanksAsTheWorst) {
  CapturedLog log;
  const auto callback = train({.monitor = "val_loss"}, {std::nan(""), 2, std::nan("")});
  EXPECT_EQ(saved(), (Names{"epoch=1-step=8"}));
  EXPECT_EQ(callback->best_model_score(), 2);
  EXPECT_NE(log.text().find("val_loss is NaN in epoch 0"), std::string::npos) << log.text();
}

TEST_F(ModelCheckpointTest, OnlyNanHasNoBest) {
  CapturedLog log;
  const auto callback = train({.monitor = "val_loss"}, {std::nan("")});
  EXPECT_EQ(saved(), (Names{"epoch=0-step=4"}));
  EXPECT_EQ(callback->best_model_path(), "");
}

TEST_F(ModelCheckpointTest, NamesThatAreTakenAreCounted) {
  const std::string folder = folder_.path("mine");
  for (int run = 0; run < 3; ++run) train({.filename = "same", .dirpath = folder + "/"}, {1});
  EXPECT_EQ(folder_.list("mine"), (Names{"same", "same-v1", "same-v2"}));
}

TEST_F(ModelCheckpointTest, OrOverwritten) {
  const std::string folder = folder_.path("mine");
  for (int run = 0; run < 2; ++run)
    train({.filename = "same", .dirpath = folder, .enable_version_counter = false}, {1, 1});
  EXPECT_EQ(folder_.list("mine"), (Names{"same"}));
}

TEST_F(ModelCheckpointTest, OverwritingOneOfTheBestLeavesTheOthers) {
  const ModelCheckpointOptions options{
      .monitor = "val_loss", .save_top_k = 2, .filename = "{val_loss:.0f}", .enable_version_counter = false};
  const auto callback = train(options, {3, 1.2, 1.1});
  EXPECT_EQ(saved(), (Names{"val_loss=1", "val_loss=3"}));
  EXPECT_EQ(callback->kth_best_model_path(), path("val_loss=3"));
}

TEST_F(ModelCheckpointTest, ItsStateIsThatAfterTheSave) {
  const auto callback = train({.monitor = "val_loss", .save_top_k = 2}, {3, 1, 2});
  const State callbacks = read_checkpoint(path("epoch=2-step=12"), {"callbacks"}).at("callbacks");
  const State& state = callbacks.at(callback->state_key());
  EXPECT_EQ(state.at("best_model_path").as_string(), "checkpoints/epoch=1-step=8") << "relative to the run's folder";
  EXPECT_EQ(state.at("best_model_score").as_double(), 1);
  EXPECT_EQ(state.at("last_model_path").as_string(), "checkpoints/epoch=2-step=12");
  EXPECT_EQ(state.at("best_k_models").as_list().size(), 2u);
}

TEST_F(ModelCheckpointTest, AResumedRunKnowsTheBestAndLeavesTheFormerRunAlone) {
  const auto first = train({.monitor = "val_loss", .save_last = true}, {1, 2});
  auto second = make<ModelCheckpoint>({.monitor = "val_loss", .save_last = true});
  Trainer trainer(quiet_options(folder_, 4, {second}));
  trainer.fit(std::make_shared<PlainModule>(std::vector<double>{3, 0.5}), tiny_batches(), tiny_batches(1),
              path("last"));
  EXPECT_EQ(saved(), (Names{"epoch=0-step=4", "last"}));
  EXPECT_EQ(folder_.list("version_1/checkpoints"), (Names{"epoch=3-step=16", "last"}));
  EXPECT_EQ(second->best_model_score(), 0.5);
}

TEST_F(ModelCheckpointTest, AFullDiskLosesNothing) {
  testing::FaultyFileSystem files;
  auto callback = make<ModelCheckpoint>({.monitor = "val_loss", .save_last = true});
  auto module = std::make_shared<PlainModule>(std::vector<double>{2, 1});
  module->before_step = [&](int64_t batch_idx) {
    if (module->validations == 1 && batch_idx == 0) files.fail_after_bytes(100);
  };
  Trainer trainer(quiet_options(folder_, 2, {callback}));
  try {
    trainer.fit(module, tiny_batches(), tiny_batches(1));
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("No space left on device"), std::string::npos) << error.what();
  }
  EXPECT_EQ(saved(), (Names{"epoch=0-step=4", "last"}));
  EXPECT_EQ(callback->best_model_path(), path("epoch=0-step=4"));
  EXPECT_EQ(callback->best_model_score(), 2);
  verify_checkpoint(path("epoch=0-step=4"));
  verify_checkpoint(path("last"));
}

TEST_F(ModelCheckpointTest, TwoThatSaveBesideTrainingHaveNamesOfTheirOwn) {
  const auto first = make<ModelCheckpoint>({.monitor = "val_loss", .asynchronous = true});
  const auto second = make<ModelCheckpoint>({.monitor = "val_loss", .mode = "max", .asynchronous = true});
  Trainer(quiet_options(folder_, 2, {first, second}))
      .fit(std::make_shared<PlainModule>(std::vector<double>{2, 1}), tiny_batches(), tiny_batches(1));
  EXPECT_EQ(saved(), (Names{"epoch=0-step=4-v1", "epoch=1-step=8"}));
  EXPECT_EQ(first->best_model_path(), path("epoch=1-step=8"));
  EXPECT_EQ(second->best_model_path(), path("epoch=0-step=4-v1"));
}

TEST_F(ModelCheckpointTest, AsynchronousSavesAreTheSame) {
  ModelCheckpointOptions options{.monitor = "val_loss", .save_top_k = 2, .save_last = true};
  torch::manual_seed(1);
  train(options, {3, 1, 2, 5});
  options.asynchronous = true;
  torch::manual_seed(1);
  const auto callback = train(options, {3, 1, 2, 5});
  const std::string second = folder_.path("version_1/checkpoints/");
  EXPECT_EQ(folder_.list("version_1/checkpoints"), saved());
  EXPECT_EQ(callback->best_model_path(), second + "epoch=1-step=8");
  for (const auto& name : saved()) {
    const State expected = read_checkpoint(path(name)).at("model");
    const State model = read_checkpoint(second + name).at("model");
    for (const auto& [key, value] : expected.as_map())
      EXPECT_TRUE(model.at(key).as_tensor().equal(value.as_tensor())) << name << " " << key;
  }
}

TEST_F(ModelCheckpointTest, AFailedAsynchronousSaveEndsTrainingAndIsForgotten) {
  for (const bool save_last : {true, false}) {
    CapturedLog log;
    testing::FaultyFileSystem files;
    const std::string folder = save_last ? "version_0/checkpoints" : "version_1/checkpoints";
    const std::string best = folder_.path(folder + "/epoch=0-step=4");
    const std::string newest = save_last ? folder_.path(folder + "/last") : best;
    auto callback = make<ModelCheckpoint>({.monitor = "val_loss", .save_last = save_last, .asynchronous = true});
    auto module = std::make_shared<PlainModule>(std::vector<double>{2, 1});
    module->before_step = [&](int64_t batch_idx) {
      if (module->validations != 1 || batch_idx != 1) return;
      EXPECT_TRUE(testing::eventually([&] { return files.exists(newest); }));
      files.fail_after_bytes(100);
    };
    Trainer trainer(quiet_options(folder_, 2, {callback}));
    try {
      trainer.fit(module, tiny_batches(), tiny_batches(1));
      ADD_FAILURE() << "no error";
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("No space left on device"), std::string::npos) << error.what();
    }
    EXPECT_EQ(folder_.list(folder), save_last ? (Names{"epoch=0-step=4", "last"}) : (Names{"epoch=0-step=4"}));
    EXPECT_EQ(callback->best_model_path(), best);
    EXPECT_EQ(callback->best_model_score(), 2);
    verify_checkpoint(best);
  }
}

TEST_F(ModelCheckpointTest, SavesAfterAFailureIfAsked) {
  CapturedLog log;
  auto callback = make<ModelCheckpoint>({.save_on_exception = true});
  auto module = std::make_shared<PlainModule>();
  module->before_step = [](int64_t batch_idx) {
    if (batch_idx == 2) throw std::domain_error("the user's");
  };
  Trainer trainer(quiet_options(folder_, 1, {callback}));
  EXPECT_THROW(trainer.fit(module, tiny_batches()), std::domain_error);
  EXPECT_EQ(saved(), (Names{"on_exception"}));
  EXPECT_EQ(read_info(path("on_exception")).global_step, 2);
}

TEST_F(ModelCheckpointTest, AfterAFailureNoValidationIsRepeated) {
  const auto options = [this] {
    auto options = quiet_options(folder_, 1, {make<ModelCheckpoint>({.save_on_exception = true})});
    options.val_check_interval = int64_t{2};
    return options;
  };
  auto module = std::make_shared<PlainModule>();
  module->before_step = [](int64_t batch_idx) {
    if (batch_idx == 2) throw std::domain_error("the user's");
  };
  EXPECT_THROW(Trainer(options()).fit(module, tiny_batches(), tiny_batches(1)), std::domain_error);
  EXPECT_EQ(module->validations, 1u);
  auto resumed = std::make_shared<PlainModule>();
  Trainer(options()).fit(resumed, tiny_batches(), tiny_batches(1), path("on_exception"));
  EXPECT_EQ(resumed->validations, 1u) << "after the last batch";
}

TEST_F(ModelCheckpointTest, SavesByTime) {
  auto options =
      quiet_options(folder_, 1, {make<ModelCheckpoint>({.save_top_k = -1, .train_time_interval = "00:00:00:01"})});
  auto module = std::make_shared<PlainModule>();
  module->before_step = [](int64_t batch_idx) {
    if (batch_idx == 1) usleep(1'100'000);
  };
  const auto begin = std::chrono::steady_clock::now();
  Trainer(options).fit(module, tiny_batches());
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  const Names names = saved();
  EXPECT_TRUE(std::ranges::find(names, "epoch=0-step=2") != names.end());
  EXPECT_LE(static_cast<double>(names.size()), took.count()) << "a second lies before each";
}

TEST_F(ModelCheckpointTest, SavesNothingBeforeItsTime) {
  const auto options =
      quiet_options(folder_, 1, {make<ModelCheckpoint>({.save_top_k = -1, .train_time_interval = "01:00:00:00"})});
  Trainer(options).fit(std::make_shared<PlainModule>(), tiny_batches());
  EXPECT_EQ(saved(), Names{});
}

TEST_F(ModelCheckpointTest, NothingInADryRun) {
  auto options = quiet_options(folder_, 1, {make<ModelCheckpoint>({.save_last = true})});
  options.fast_dev_run = true;
  Trainer(options).fit(std::make_shared<PlainModule>(), tiny_batches(), tiny_batches(1));
  EXPECT_EQ(saved(), Names{});
}

TEST(ModelCheckpointOptions, Conflicts) {
  EXPECT_THROW(ModelCheckpoint({.every_n_train_steps = 1, .every_n_epochs = 1}), ConfigError);
  EXPECT_THROW(ModelCheckpoint({.save_top_k = 3}), ConfigError);
  EXPECT_THROW(ModelCheckpoint({.train_time_interval = "1h"}), ConfigError);
  EXPECT_THROW(ModelCheckpoint({.mode = "lowest"}), ConfigError);
  EXPECT_THROW(make<ModelCheckpoint>({.save_top_k = -2}), ConfigError);
}

TEST(ModelCheckpointOptions, EachHasItsOwnState) {
  EXPECT_EQ(ModelCheckpoint({.monitor = "val_loss"}).state_key(),
            "model_checkpoint(monitor=val_loss, mode=min, every_n_epochs=1)");
  EXPECT_EQ(ModelCheckpoint({.every_n_train_steps = 5}).state_key(),
            "model_checkpoint(monitor=, mode=min, every_n_train_steps=5)");
}

}  // namespace
}  // namespace levin
