// A metric keeps its value until a newer one is logged: callbacks and schedulers act on each value once.

#include "../support/captured_log.h"
#include "../support/tiny.h"
#include "../support/tiny_stream.h"

#include <levin/callbacks/early_stopping.h>
#include <levin/callbacks/lambda_callback.h>
#include <levin/callbacks/model_checkpoint.h>
#include <levin/core/base/error.h>
#include <levin/core/base/seed.h>

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <array>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace levin {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;
using testing::quiet;

/// Validations log 1, 2, 3, ...; a scheduler follows a metric.
class Following : public testing::TinyModule {
 public:
  explicit Following(SchedulerConfig scheduler) : TinyModule({}), scheduler_(std::move(scheduler)) {}

  StepOutput training_step(const Batch& batch, int64_t batch_idx) override {
    log("of_rank", static_cast<double>(trainer().global_rank() + 1) * static_cast<double>(trainer().total_batches()));
    if (batch_idx % 2 == 0) log("every_other", static_cast<double>(trainer().total_batches()));
    return TinyModule::training_step(batch, batch_idx);
  }
  StepOutput validation_step(const Batch&, int64_t batch_idx) override {
    if (batch_idx == 0 && !trainer().sanity_checking()) ++validations_;
    log("val", static_cast<double>(validations_));
    return {};
  }
  OptimizerConfigs configure_optimizers() override {
    auto configs = TinyModule::configure_optimizers();
    configs.front().scheduler = scheduler_;
    return configs;
  }
  void lr_scheduler_step(optim::Scheduler& scheduler, std::optional<double> metric) override {
    followed.emplace_back(trainer().total_batches(), metric.value());
    TinyModule::lr_scheduler_step(scheduler, metric);
  }

  std::vector<std::pair<int64_t, double>> followed;  ///< training batches done, and the value

 private:
  const SchedulerConfig scheduler_;
  int64_t validations_ = 0;
};

SchedulerConfig plateau(const std::string& monitor, Interval interval, int64_t frequency = 1) {
  return {.name = "reduce_on_plateau", .interval = interval, .frequency = frequency, .monitor = monitor};
}

/// Trains epochs of 4 batches.
std::vector<std::pair<int64_t, double>> followed(const SchedulerConfig& scheduler, int64_t epochs,
                                                 const std::function<void(TrainerOptions&)>& change) {
  TrainerOptions options = quiet(epochs);
  change(options);
  const auto module = std::make_shared<Following>(scheduler);
  Trainer(options).fit(module, testing::tiny_loader(16, 4), testing::tiny_loader(8, 4));
  return module->followed;
}

TEST(Plateau, FollowsTheValidationsThatThereAre) {
  const auto every_other_epoch = [](TrainerOptions& options) { options.check_val_every_n_epoch = 2; };
  EXPECT_THAT(followed(plateau("val", Interval::kEpoch), 6, every_other_epoch),
              ElementsAre(Pair(8, 1), Pair(16, 2), Pair(24, 3)));
  // Due in epochs 2 and 5 alone: the value of epoch 1 is new in epoch 2.
  EXPECT_THAT(followed(plateau("val", Interval::kEpoch, 3), 6, every_other_epoch),
              ElementsAre(Pair(12, 1), Pair(24, 3)));
}

TEST(Plateau, FollowsValidationsInsideOfAnEpoch) {
  const auto twice_an_epoch = [](TrainerOptions& options) { options.val_check_interval = 0.5; };
  EXPECT_THAT(followed(plateau("val", Interval::kStep), 2, twice_an_epoch),
              ElementsAre(Pair(2, 1), Pair(4, 2), Pair(6, 3), Pair(8, 4)));
  // Of steps 3 and 6, which are due, validation follows one.
  EXPECT_THAT(followed(plateau("val", Interval::kStep, 3), 2, twice_an_epoch), ElementsAre(Pair(3, 1), Pair(6, 3)));
  EXPECT_THAT(followed(plateau("val", Interval::kEpoch), 2, twice_an_epoch), ElementsAre(Pair(4, 2), Pair(8, 4)));
}

TEST(Plateau, FollowsAValueOfSomeSteps) {
  EXPECT_THAT(followed(plateau("every_other", Interval::kStep), 1, [](TrainerOptions&) {}),
              ElementsAre(Pair(1, 0), Pair(3, 2)));
}

TEST(Plateau, AMetricThatNobodyLogsIsAnErrorOnceItIsDue) {
  const auto error = [](const SchedulerConfig& scheduler, int64_t epochs, int64_t every) -> std::string {
    try {
      followed(scheduler, epochs, [&](TrainerOptions& options) { options.check_val_every_n_epoch = every; });
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  for (const Interval interval : {Interval::kEpoch, Interval::kStep}) {
    EXPECT_THAT(error(plateau("vla", interval), 2, 1), HasSubstr("the scheduler's monitor 'vla' was never logged"));
    EXPECT_EQ(error(plateau("val", interval), 1, 2), "");
  }
}

TEST(Plateau, AMetricThatNobodyLoggedUntilTheEndIsNamed) {
  const testing::CapturedLog log;
  followed(plateau("vla", Interval::kStep), 2, [](TrainerOptions& options) { options.max_steps = 3; });
  EXPECT_THAT(log.text(), HasSubstr("the scheduler's monitor 'vla' was never logged"));
}

/// The value differs between ranks; `mean` is that over both, of the steps that talk about it.
class OfRank : public Following {
 public:
  using Options = testing::TinyOptions;
  explicit OfRank(const Options&) : Following(plateau("mean", Interval::kStep)) {}
  StepOutput training_step(const Batch& batch, int64_t batch_idx) override {
    log("mean", static_cast<double>((trainer().global_rank() + 1) * 10 + trainer().total_batches()),
        {.on_step = true, .sync_dist = true});
    return Following::training_step(batch, batch_idx);
  }
};

/// Logs the number of the batch, over the epoch too.
class LogsMeans : public Following {
 public:
  using Options = testing::TinyOptions;
  explicit LogsMeans(const Options&) : Following(plateau("mean", Interval::kStep)) {}
  StepOutput training_step(const Batch& batch, int64_t batch_idx) override {
    const auto done = static_cast<double>(trainer().total_batches());
    log("mean", done, {.on_step = false, .on_epoch = true});
    log("both", done, {.on_step = true, .on_epoch = true});
    return Following::training_step(batch, batch_idx);
  }
};

/// What acted on the means of epochs in a fit of 4 epochs of 4 batches with 2 validations each, unless it is stopped.
struct ActedOn {
  std::vector<std::pair<int64_t, double>> followed;
  std::vector<std::string> stopping;  ///< after each validation and epoch
  MetricMap metrics;
};

ActedOn act_on_means(int64_t max_steps, const std::string& save, const std::string& ckpt, const std::string& strategy) {
  ActedOn acted;
  seed_everything(7);
  TrainerOptions options = quiet(4);
  options.strategy = strategy;
  options.devices = strategy == "single_device" ? 1 : 2;
  options.val_check_interval = 0.5;
  if (max_steps > 0) options.max_steps = max_steps;
  const auto stopping = make<EarlyStopping>({.monitor = "mean", .patience = 100, .strict = false});
  const auto note = [&, stopping](Trainer& trainer, Module&) {
    if (!trainer.is_global_zero()) return;
    const EarlyStopping* own = nullptr;  // the rank's
    for (const auto& callback : trainer.callbacks())
      if (const auto* found = dynamic_cast<const EarlyStopping*>(callback.get())) own = found;
    ASSERT_NE(own, nullptr);
    acted.stopping.push_back(
        fmt::format("{}: {} {}", trainer.global_step(), own->wait_count(), own->best_score().value_or(-1)));
  };
  LambdaCallbackOptions hooks;
  hooks.on_validation_end = note;
  hooks.on_train_epoch_end = [&](Trainer& trainer, Module& module) {
    if (trainer.epoch_complete()) note(trainer, module);
  };
  hooks.on_train_end = [&](Trainer& trainer, Module& module) {
    if (!save.empty()) trainer.save_checkpoint(save);
    if (trainer.is_global_zero()) acted.followed = dynamic_cast<LogsMeans&>(module).followed;
  };
  options.callbacks = {stopping, make<LambdaCallback>(hooks)};
  const int64_t ranks = strategy == "single_device" ? 1 : 2;
  Trainer trainer(options);
  trainer.fit(make<LogsMeans>({}), testing::tiny_loader(16 * ranks, 4), testing::tiny_loader(8 * ranks, 4), ckpt);
  acted.metrics = trainer.callback_metrics();
  return acted;
}

template <class Item>
std::vector<Item> joined(std::vector<Item> a, const std::vector<Item>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

TEST(MeansOfEpochs, OfAPartAreNoneForARunThatGoesOnWithIt) {
  for (const std::string strategy : {"single_device", "ddp_threads"}) {
    ActedOn whole = act_on_means(0, "", "", strategy);
    whole.metrics.erase("val");  // a count of the module's own, which begins anew with each
    EXPECT_THAT(whole.followed, ElementsAre(Pair(4, 1.5), Pair(8, 5.5), Pair(12, 9.5), Pair(16, 13.5)));
    for (const int64_t steps : {1, 2, 3, 5, 6, 7, 10}) {
      SCOPED_TRACE(fmt::format("{} steps, {}", steps, strategy));
      const std::string path = testing::fresh_folder("part") + "/checkpoint";
      const ActedOn part = act_on_means(steps, path, "", strategy);
      const auto first = static_cast<double>(steps / 4 * 4);
      const double mean = (first + static_cast<double>(steps - 1)) / 2;
      EXPECT_EQ(part.metrics.at("mean"), mean) << "who reads the result sees it";
      EXPECT_EQ(part.metrics.at("both_epoch"), mean);
      ActedOn rest = act_on_means(0, "", path, strategy);
      EXPECT_EQ(joined(part.followed, rest.followed), whole.followed);
      EXPECT_EQ(joined(part.stopping, rest.stopping), whole.stopping);
      rest.metrics.erase("val");
      EXPECT_EQ(rest.metrics, whole.metrics);
    }
  }
}

/// What both of two ranks followed in an epoch of 4 batches. `save`: folder for a checkpoint of each batch.
std::vector<std::pair<int64_t, double>> followed_by_ranks(int64_t log_every, const std::string& save,
                                                          const std::string& ckpt) {
  std::array<std::vector<std::pair<int64_t, double>>, 2> of_ranks;
  TrainerOptions options = quiet(1);
  options.strategy = "ddp_threads";
  options.devices = 2;
  options.log_every_n_steps = log_every;
  options.callbacks = {make<LambdaCallback>(LambdaCallbackOptions{
      .on_train_end =
          [&](Trainer& trainer, Module& module) {
            of_ranks.at(static_cast<size_t>(trainer.global_rank())) = dynamic_cast<Following&>(module).followed;
          },
      .on_train_batch_end =
          [&](Trainer& trainer, Module&, const StepOutput&, const Batch&, int64_t) {
            if (!save.empty()) trainer.save_checkpoint(fmt::format("{}/{}", save, trainer.total_batches()));
          }})};
  Trainer(options).fit(make<OfRank>({}), testing::tiny_loader(32, 4), {}, ckpt);
  EXPECT_EQ(of_ranks[0], of_ranks[1]);
  return of_ranks[0];
}

TEST(Plateau, RanksFollowOneValueAlsoWhereTheyGoOnFromACheckpoint) {
  const std::string folder = testing::fresh_folder("plateau");
  const auto whole = followed_by_ranks(1, folder, "");
  EXPECT_THAT(whole, ElementsAre(Pair(1, 15), Pair(2, 16), Pair(3, 17), Pair(4, 18)));
  EXPECT_EQ(followed_by_ranks(1, "", ""), whole);
  for (int64_t batch = 0; batch < 4; ++batch) {
    const auto resumed = followed_by_ranks(1, "", fmt::format("{}/{}", folder, batch));
    EXPECT_EQ(resumed, std::vector(whole.end() - std::ssize(resumed), whole.end())) << batch;
    EXPECT_EQ(std::ssize(resumed), 4 - batch) << batch;  // saved before the schedulers of the batch
  }
}

TEST(Plateau, SavingChangesNothing) {
  EXPECT_EQ(followed_by_ranks(1000, testing::fresh_folder("plateau"), ""), followed_by_ranks(1000, "", ""));
}

TEST(MetricAge, IsTheBatchThatMadeIt) {
  std::vector<std::optional<int64_t>> every_other;
  std::vector<std::optional<int64_t>> val;
  TrainerOptions options = quiet(2);
  options.val_check_interval = 0.5;
  options.callbacks = {make<LambdaCallback>(LambdaCallbackOptions{
      .on_train_batch_end = [&](Trainer& trainer, Module&, const StepOutput&, const Batch&, int64_t) {
        trainer.callback_metrics();
        every_other.push_back(trainer.moment_of_metric("every_other"));
        val.push_back(trainer.moment_of_metric("val"));
      }})};
  Trainer(options).fit(std::make_shared<Following>(SchedulerConfig()), testing::tiny_loader(16, 4),
                       testing::tiny_loader(8, 4));
  EXPECT_THAT(every_other, ElementsAre(1, 1, 3, 3, 5, 5, 7, 7));
  EXPECT_THAT(val, ElementsAre(std::nullopt, std::nullopt, 2, 2, 4, 4, 6, 6));
}

TEST(MetricAge, TheLastValuesOfStepsAreThereWhenTheFitIsOver) {
  // Nobody reads them inside of the fit: no validation, no callback, no row.
  TrainerOptions options = quiet(2);
  options.log_every_n_steps = 1000;
  Trainer trainer(options);
  trainer.fit(std::make_shared<Following>(SchedulerConfig()), testing::tiny_loader(16, 4));
  EXPECT_EQ(trainer.callback_metrics().at("of_rank"), 7);
  EXPECT_EQ(trainer.callback_metrics().at("every_other"), 6);
}

/// Ends the first epochs after two batches, and so before their validation.
class CutShort : public Following {
 public:
  CutShort() : Following(plateau("val", Interval::kEpoch)) {}
  bool on_train_batch_start(const Batch&, int64_t batch_idx) override {
    return trainer().current_epoch() >= 2 || batch_idx < 2;
  }
};

TEST(EpochCutShort, LeavesMetricsThatItDidNotReachUnasked) {
  for (const bool is_sized : {true, false}) {
    SCOPED_TRACE(is_sized);
    TrainerOptions options = quiet(4);
    const auto stopping = make<EarlyStopping>({.monitor = "val", .patience = 5});
    options.callbacks = {stopping};
    options.enable_checkpointing = true;
    options.default_root_dir = testing::fresh_folder("cut");
    const auto checkpoint = make<ModelCheckpoint>({.monitor = "val"});
    options.callbacks.push_back(checkpoint);
    const auto module = std::make_shared<CutShort>();
    std::vector<bool> cut;
    options.callbacks.push_back(make<LambdaCallback>(
        {.on_train_epoch_end = [&](Trainer& trainer, Module&) { cut.push_back(trainer.epoch_cut_short()); }}));
    Trainer trainer(options);
    const DataLoader loader = is_sized ? testing::tiny_loader(16, 4)
                                       : DataLoader(std::make_shared<testing::TinyStream>(16), {.batch_size = 4});
    trainer.fit(module, loader, testing::tiny_loader(8, 4));
    EXPECT_EQ(trainer.total_batches(), 2 + 2 + 4 + 4);
    EXPECT_EQ(cut, (std::vector<bool>{true, true, false, false}));
    EXPECT_EQ(module->followed.size(), 2);
    EXPECT_NE(checkpoint->best_model_path(), "");
  }
}

TEST(EpochCutShort, MayHaveBeenOneThatValidates) {
  TrainerOptions options = quiet(6);
  options.check_val_every_n_epoch = 2;
  options.enable_checkpointing = true;
  options.default_root_dir = testing::fresh_folder("cut");
  options.callbacks = {make<EarlyStopping>({.monitor = "val", .patience = 5}),
                       make<ModelCheckpoint>({.monitor = "val", .every_n_train_steps = 4})};
  const auto module = std::make_shared<CutShort>();
  Trainer(options).fit(module, testing::tiny_loader(16, 4), testing::tiny_loader(8, 4));
  EXPECT_EQ(module->followed.size(), 2) << "of epochs 3 and 5: epoch 1 was cut short";
}

/// Only the first epoch has batches, four; each logs a score at its end.
class EmptyEpochs : public Following {
 public:
  EmptyEpochs() : Following(plateau("score", Interval::kEpoch)) {}
  bool on_train_batch_start(const Batch&, int64_t) override { return trainer().current_epoch() == 0; }
  void on_train_epoch_end() override { log("score", 10.0 - static_cast<double>(trainer().current_epoch())); }
};

TEST(EmptyEpoch, WhatItLogsIsNewAndWhatWasThereIsNot) {
  const auto module = std::make_shared<EmptyEpochs>();
  Trainer trainer(quiet(3));
  trainer.fit(module, testing::tiny_loader(16, 4));
  EXPECT_THAT(module->followed, ElementsAre(Pair(4, 10), Pair(4, 9), Pair(4, 8)));
  EXPECT_EQ(trainer.moment(), 6);
  EXPECT_EQ(trainer.moment_of_metric("score"), 6);
  EXPECT_EQ(trainer.moment_of_metric("of_rank"), 4);
}

}  // namespace
}  // namespace levin
