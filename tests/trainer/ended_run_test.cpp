// Runs that end by themselves before their last epoch: `ckpt: auto` leaves them as they are, whenever they were killed.

#include <levin/callbacks/early_stopping.h>
#include <levin/callbacks/lambda_callback.h>
#include <levin/callbacks/model_checkpoint.h>
#include <levin/callbacks/pause_training.h>
#include <levin/core/base/file_system.h>
#include <levin/core/base/seed.h>
#include <levin/loggers/csv_logger.h>

#include "../support/captured_log.h"
#include "../support/tiny.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <chrono>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace levin {
namespace {

using testing::CapturedLog;
using testing::fresh_folder;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::TinyModule;

struct EndedSetup {
  std::string name;
  /// Makes the callbacks that end it.
  std::function<std::vector<std::shared_ptr<Callback>>()> ends;
  ModelCheckpointOptions saving = {.save_last = true};
  double val_check_interval = 1.0;
  int64_t min_epochs = 0;
  std::string strategy = "single_device";
  std::optional<TimeLimit> max_time = {};
  bool is_before_end = false;  ///< `last` is of a moment before the validation that ends it
};

struct Ended {
  int64_t steps = 0;
  std::string rows;
  std::string weights;
  bool operator==(const Ended&) const = default;
};

/// Trains for at most 6 epochs of 5 batches, of each of two ranks or alone. `seen` is called wherever it might be
/// killed.
Ended train_to_its_end(
    const std::string& folder, const EndedSetup& setup, const std::string& ckpt,
    const std::function<void()>& seen = [] {}) {
  seed_everything(5);
  const bool is_alone = setup.strategy == "single_device";
  TrainerOptions options = testing::quiet(6);
  options.run_dir = folder;
  options.strategy = setup.strategy;
  options.devices = is_alone ? 1 : 2;
  options.enable_checkpointing = true;
  options.log_every_n_steps = 1;
  options.min_epochs = setup.min_epochs;
  options.val_check_interval = setup.val_check_interval;
  options.max_time = setup.max_time;
  options.logger = {make<CsvLogger>({.flush_every = 1})};
  for (const auto& callback : setup.ends()) options.callbacks.emplace_back(callback);
  options.callbacks.emplace_back(make<ModelCheckpoint>(setup.saving));
  const auto seen_by_first = [seen](Trainer& trainer) {
    if (trainer.is_global_zero()) seen();
  };
  options.callbacks.emplace_back(make<LambdaCallback>(LambdaCallbackOptions{
      .on_train_epoch_end = [=](Trainer& trainer, Module&) { seen_by_first(trainer); },
      .on_train_batch_start = [=](Trainer& trainer, Module&, const Batch&, int64_t) { seen_by_first(trainer); },
      .on_train_batch_end = [=](Trainer& trainer, Module&, const StepOutput&, const Batch&,
                                int64_t) { seen_by_first(trainer); },
      .on_validation_end = [=](Trainer& trainer, Module&) { seen_by_first(trainer); },
      .on_validation_batch_end = [=](Trainer& trainer, Module&, const StepOutput&, const Batch&, int64_t,
                                     int64_t) { seen_by_first(trainer); }}));
  Trainer trainer(options);
  trainer.fit(make<TinyModule>({.dropout = 0.3}), testing::tiny_loader(is_alone ? 40 : 80, 8),
              DataLoaders{testing::tiny_loader(16, 8, false)}, ckpt);
  auto& files = FileSystem::current();
  const std::string last = folder + "/checkpoints/last/model.safetensors";
  return {.steps = trainer.global_step(),
          .rows = files.read_file(folder + "/metrics.csv"),
          .weights = files.exists(last) ? files.read_file(last) : ""};
}

using Ends = std::vector<std::shared_ptr<Callback>>;

/// The second look at a metric that cannot get better by so much.
Ends stops_early(const std::string& monitor, bool after_train_epoch = false) {
  return {make<EarlyStopping>(
      {.monitor = monitor, .min_delta = 1000, .patience = 1, .check_on_train_epoch_end = after_train_epoch})};
}

/// Asks for the end in a hook at this step, on all ranks.
Ends asks_in(const std::string& hook, int64_t step) {
  const auto ask = [step](Trainer& trainer) {
    if (trainer.global_step() == step && trainer.stage() == Stage::kFit && !trainer.sanity_checking())
      trainer.request_stop("it is good enough");
  };
  LambdaCallbackOptions hooks;
  if (hook == "on_train_batch_end")
    hooks.on_train_batch_end = [=](Trainer& trainer, Module&, const StepOutput&, const Batch&, int64_t) {
      ask(trainer);
    };
  if (hook == "on_validation_end") hooks.on_validation_end = [=](Trainer& trainer, Module&) { ask(trainer); };
  if (hook == "on_train_epoch_end") hooks.on_train_epoch_end = [=](Trainer& trainer, Module&) { ask(trainer); };
  return {make<LambdaCallback>(hooks)};
}

std::vector<EndedSetup> ended_setups() {
  const ModelCheckpointOptions every_step = {.save_last = true, .every_n_train_steps = 1};
  return {
      {.name = "early stopping", .ends = [] { return stops_early("val_loss"); }},
      {.name = "early stopping inside of an epoch",
       .ends = [] { return stops_early("val_loss"); },
       .val_check_interval = 0.4},
      {.name = "early stopping, saved at every step",
       .ends = [] { return stops_early("val_loss"); },
       .saving = every_step,
       .val_check_interval = 0.4},
      {.name = "early stopping after the training epoch", .ends = [] { return stops_early("train_loss", true); }},
      {.name = "early stopping that waits for min_epochs",
       .ends = [] { return stops_early("val_loss"); },
       .saving = every_step,
       .min_epochs = 4,
       .is_before_end = true},
      {.name = "asked for after a batch",
       .ends = [] { return asks_in("on_train_batch_end", 7); },
       .saving = every_step},
      {.name = "asked for after a batch, saved after epochs",
       .ends = [] { return asks_in("on_train_batch_end", 7); },
       .saving = {.save_last = true, .save_on_train_epoch_end = true}},
      {.name = "asked for after a validation", .ends = [] { return asks_in("on_validation_end", 10); }},
      {.name = "asked for after an epoch",
       .ends = [] { return asks_in("on_train_epoch_end", 10); },
       .saving = {.save_last = true, .save_on_train_epoch_end = true}},
      {.name = "asked for, and waits for min_epochs",
       .ends = [] { return asks_in("on_train_batch_end", 7); },
       .saving = every_step,
       .min_epochs = 3},
      {.name = "early stopping of two ranks",
       .ends = [] { return stops_early("val_loss"); },
       .strategy = "ddp_threads"},
      {.name = "early stopping of two ranks, saved at every step",
       .ends = [] { return stops_early("val_loss"); },
       .saving = every_step,
       .strategy = "ddp_threads"},
      {.name = "a pause at the same moment",
       .ends =
           [] {
             Ends ends = {make<PauseTraining>({.after_epochs = 2})};
             for (const auto& end : stops_early("val_loss")) ends.push_back(end);
             return ends;
           }},
  };
}

TEST(EndedRun, StaysAsItIsWheneverItWasKilled) {
  constexpr size_t kStride = 11;  // each setup has other moments of these, and the last ones
  size_t offset = 0;
  for (const EndedSetup& setup : ended_setups()) {
    SCOPED_TRACE(setup.name);
    const std::string folder = fresh_folder("ended") + "/run";
    std::vector<std::string> killed;
    const Ended expected = train_to_its_end(folder, setup, "auto", [&] {
      if (!FileSystem::current().exists(folder)) return;
      killed.push_back(fresh_folder("killed") + "/run");
      std::filesystem::copy(folder, killed.back(), std::filesystem::copy_options::recursive);
    });
    ASSERT_LT(expected.steps, 30) << "it is to end early";
    for (size_t i = offset++ % kStride; i < killed.size(); i += i + 4 < killed.size() ? kStride : 1)
      EXPECT_TRUE(train_to_its_end(killed[i], setup, "auto") == expected) << "killed at moment " << i;
    for (int again = 0; again < 2; ++again) {
      const CapturedLog log;
      EXPECT_TRUE(train_to_its_end(folder, setup, "auto") == expected);
      EXPECT_THAT(log.text(), HasSubstr("the run had ended here by itself ("));
    }
    if (setup.ends().size() > 1 || setup.is_before_end) continue;
    const CapturedLog log;
    EXPECT_GT(train_to_its_end(folder, setup, "last").steps, expected.steps);
    EXPECT_THAT(log.text(), Not(HasSubstr("had ended")));
  }
}

/// Its state is saved once the time of the run is over, at this step and after the checkpoint noted its time.
class SavesUntilTimeIsOver : public Callback {
 public:
  explicit SavesUntilTimeIsOver(TimeLimit limit) : limit_(limit) {}
  void setup(Trainer& trainer, Module&, Stage) override { trainer_ = &trainer; }
  State state_dict() const override {
    while (trainer_->global_step() >= kStep &&
           trainer_->elapsed_seconds() < static_cast<double>(limit_.seconds().count()))
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return State::map();
  }

  static constexpr int64_t kStep = 10;

 private:
  TimeLimit limit_;
  Trainer* trainer_ = nullptr;
};

TEST(EndedRun, TrainsNoFurtherWhereTheTimeWasOverAfterItsLastCheckpoint) {
  const std::vector<ModelCheckpointOptions> savings = {
      {},
      {.save_last = true},
      {.save_last = true, .save_on_train_epoch_end = true},
      {.monitor = "val_loss", .save_last = true},
      {.save_last = true, .every_n_train_steps = 1},
      {.save_top_k = -1, .every_n_train_steps = 5},
      {.save_last = true, .asynchronous = true},
  };
  for (const char* strategy : {"single_device", "ddp_threads"}) {
    for (size_t i = 0; i < savings.size(); ++i) {
      // Ranks notice it some batches later, and what they take then is in `last` alone.
      if (strategy == std::string("ddp_threads") && !savings[i].save_last) continue;
      SCOPED_TRACE(fmt::format("{}, saving {}", strategy, i));
      EndedSetup setup{.name = "", .ends = {}, .saving = savings[i], .strategy = strategy};
      std::string folder;
      Ended expected;
      // A machine that is too slow for its first steps gets more time.
      for (const char* limit : {"00:00:00:01", "00:00:00:05", "00:00:00:30", "00:00:05:00"}) {
        setup.max_time = TimeLimit(limit);
        setup.ends = [&] { return Ends{std::make_shared<SavesUntilTimeIsOver>(*setup.max_time)}; };
        folder = fresh_folder("ended") + "/run";
        expected = train_to_its_end(folder, setup, "auto");
        if (expected.steps >= SavesUntilTimeIsOver::kStep) break;
      }
      ASSERT_GE(expected.steps, SavesUntilTimeIsOver::kStep);
      ASSERT_LT(expected.steps, 30) << "it is to end early";
      for (int again = 0; again < 2; ++again) {
        const Ended resumed = train_to_its_end(folder, setup, "auto");
        EXPECT_TRUE(resumed == expected) << resumed.steps << " steps, not " << expected.steps;
      }
    }
  }
}

TEST(EndedRun, GoesOnWithinALargerMinimumOnly) {
  EndedSetup setup{.name = "", .ends = [] { return asks_in("on_train_batch_end", 7); }};
  const std::string folder = fresh_folder("ended") + "/run";
  EXPECT_EQ(train_to_its_end(folder, setup, "auto").steps, 7);
  setup.min_epochs = 3;
  EXPECT_EQ(train_to_its_end(folder, setup, "auto").steps, 15);
  EXPECT_EQ(train_to_its_end(folder, setup, "auto").steps, 15);
}

TEST(EndedRun, OneThatWasOnlyPausedGoesOn) {
  const auto pauses = [](const std::string& how) -> Ends {
    return {make<LambdaCallback>(LambdaCallbackOptions{
        .on_train_batch_end = [how](Trainer& trainer, Module&, const StepOutput&, const Batch&, int64_t) {
          if (trainer.global_step() == 7) trainer.request_pause("the night is over: " + how);
        }})};
  };
  const auto none = [] { return Ends(); };
  for (const char* strategy : {"single_device", "ddp_threads"}) {
    SCOPED_TRACE(strategy);
    const std::string whole = fresh_folder("whole") + "/run";
    const ModelCheckpointOptions saving = {.save_last = true, .every_n_train_steps = 7};
    const EndedSetup alone{.name = "", .ends = none, .saving = saving, .strategy = strategy};
    const Ended expected = train_to_its_end(whole, alone, "auto");
    const std::string folder = fresh_folder("paused") + "/run";
    {
      const CapturedLog log;
      const EndedSetup paused{
          .name = "", .ends = [&] { return pauses("all out"); }, .saving = saving, .strategy = strategy};
      EXPECT_LT(train_to_its_end(folder, paused, "auto").steps, expected.steps);
      EXPECT_THAT(log.text(), HasSubstr("asked to stop: the night is over: all out"));
    }
    const Ended resumed = train_to_its_end(folder, alone, "auto");
    EXPECT_TRUE(resumed == expected) << resumed.steps << " steps\n" << resumed.rows;
  }
}

}  // namespace
}  // namespace levin
