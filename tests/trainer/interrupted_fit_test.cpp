// A signal at every batch of training and of validation: the run that is resumed from there leaves the same folder as
// one that was not interrupted.

#include "../support/captured_log.h"
#include "../support/tiny.h"

#include <levin/callbacks/early_stopping.h>
#include <levin/callbacks/lambda_callback.h>
#include <levin/callbacks/model_checkpoint.h>
#include <levin/core/base/seed.h>
#include <levin/core/base/state.h>
#include <levin/core/checkpoint/checkpoint.h>
#include <levin/core/checkpoint/checkpoint_info.h>
#include <levin/core/connectors/progress.h>

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <array>
#include <csignal>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace levin {
namespace {

namespace fs = std::filesystem;

using ::testing::HasSubstr;
using ::testing::Not;

/// Two optimizer steps rank worse than the one before, so that best, newest and last are different checkpoints.
class Scripted : public testing::TinyModule {
 public:
  using TinyModule::TinyModule;
  StepOutput training_step(const Batch& batch, int64_t batch_idx) override {
    return TinyModule::training_step(noisy(batch), batch_idx);
  }
  StepOutput validation_step(const Batch& batch, int64_t batch_idx) override {
    static constexpr std::array<double, 6> kScores{5, 3, 4, 6, 2, 7};
    log("score", kScores.at(static_cast<size_t>(trainer().total_batches() / 2 - 1) % kScores.size()));
    return TinyModule::validation_step(noisy(batch), batch_idx);
  }
  OptimizerConfigs configure_optimizers() override {
    auto configs = TinyModule::configure_optimizers();
    configs.front().scheduler = {.name = "reduce_on_plateau",
                                 .interval = Interval::kStep,
                                 .monitor = "score",
                                 .options = Config::parse("{patience: 0}", {})};
    return configs;
  }

 private:
  static Batch noisy(const Batch& batch) {
    Batch result = batch;
    result["x"] = batch["x"] + at::randn_like(batch["x"]) * 0.1;
    return result;
  }
};

using Change = std::function<void(TrainerOptions&)>;

/// What a run leaves: for each checkpoint its step and score, and the bits of its weights; and which are best and last.
struct Left {
  std::map<std::string, std::string> checkpoints;
  std::vector<std::string> callbacks;
  int64_t steps = 0;
  std::string said;
};

std::string contents(const std::string& path) {
  const CheckpointInfo info = read_info(path);
  const State tree = read_checkpoint(path, {"model", "callbacks", "schedulers"});
  double sum = 0;
  for (const auto& [name, tensor] : tree.at("model").as_map())
    sum += tensor.as_tensor().to(at::kDouble).sin().sum().item<double>();
  return fmt::format("epoch {} step {} score {} weights {:a} rate {}", info.epoch, info.global_step,
                     info.score ? fmt::format("{}", *info.score) : "none", sum,
                     tree.at("schedulers").as_list().front().at("last_lr").as_list().front().as_double());
}

/// Trains 2 epochs of 6 batches, with 3 validations of 2 batches in each, unless `change` says otherwise. `signal_at`:
/// the batch of rank 0, of training and validation counted together, in which a signal comes.
Left train(const Change& change, const std::string& folder, std::optional<int64_t> signal_at, const std::string& ckpt,
           int64_t ranks) {
  const auto best = make<ModelCheckpoint>({.monitor = "score",
                                           .save_top_k = 2,
                                           .save_last = true,
                                           .filename = "best-{step}-{score}",
                                           .dirpath = folder + "/best"});
  const auto by_steps = make<ModelCheckpoint>({.monitor = "score",
                                               .save_top_k = 2,
                                               .save_last = true,
                                               .every_n_train_steps = 3,
                                               .filename = "steps-{step}-{score}",
                                               .dirpath = folder + "/steps"});
  const auto newest = make<ModelCheckpoint>({.save_last = true, .every_n_epochs = 1, .dirpath = folder + "/newest"});
  const auto by_training = make<ModelCheckpoint>({.monitor = "train_loss",
                                                  .mode = "max",
                                                  .save_top_k = 2,
                                                  .save_last = true,
                                                  .filename = "training-{step}",
                                                  .dirpath = folder + "/training"});
  // A signal leaves a `last` of it beside what it keeps.
  const auto rarely = make<ModelCheckpoint>({.monitor = "score", .every_n_epochs = 2, .dirpath = folder + "/rarely"});
  const auto stops = make<EarlyStopping>({.monitor = "score", .patience = 1});
  int64_t batches = 0;
  const auto count = [&](const Trainer& trainer) {
    if (signal_at && trainer.is_global_zero() && batches++ == *signal_at) std::raise(SIGINT);
  };
  TrainerOptions options = testing::quiet(2);
  options.enable_checkpointing = true;
  options.default_root_dir = folder;
  options.val_check_interval = 2;
  options.min_epochs = 2;
  options.callbacks = {
      stops,
      best,
      by_steps,
      newest,
      rarely,
      by_training,
      make<LambdaCallback>(LambdaCallbackOptions{
          .on_train_batch_start = [&](Trainer& trainer, Module&, const Batch&, int64_t) { count(trainer); },
          .on_validation_batch_start = [&](Trainer& trainer, Module&, const Batch&, int64_t,
                                           int64_t) { count(trainer); }})};
  options.devices = ranks;
  change(options);
  seed_everything(signal_at || ckpt.empty() ? 3 : 4);
  const testing::CapturedLog log;
  Trainer trainer(options);
  trainer.fit(make<Scripted>({}), testing::tiny_loader(24 * ranks, 4), testing::tiny_loader(8 * ranks, 4), ckpt);
  Left left{.steps = trainer.global_step(), .said = log.text()};
  for (const auto& callback : {best, by_steps, newest, rarely, by_training}) {
    left.callbacks.push_back(fmt::format("{} {} {}", fs::path(callback->best_model_path()).filename().string(),
                                         callback->best_model_score().value_or(-1),
                                         fs::path(callback->last_model_path()).filename().string()));
    if (callback->last_model_path().empty()) continue;
    const fs::path path = fs::path(callback->last_model_path()).parent_path();
    for (const auto& entry : fs::directory_iterator(path))
      if (callback != rarely || entry.path().filename() != "last")
        left.checkpoints[path.filename() / entry.path().filename()] = contents(entry.path());
  }
  left.callbacks.push_back(fmt::format("{} {}", stops->wait_count(), stops->best_score().value_or(-1)));
  return left;
}

/// `batches`: of training and validation, in the run that is not interrupted. Of several ranks every third is tried.
void expect_the_same_everywhere(int64_t batches, int64_t steps, const Change& change, int64_t ranks = 1) {
  const Left undisturbed = train(change, testing::fresh_folder("undisturbed"), {}, "", ranks);
  EXPECT_EQ(undisturbed.steps, steps);
  for (int64_t at = 0; at<batches; at += ranks> 1 ? 3 : 1) {
    SCOPED_TRACE(fmt::format("a signal in batch {}", at));
    const std::string folder = testing::fresh_folder("interrupted");
    train(change, folder, at, "", ranks);
    const Left resumed =
        train(change, folder, {}, folder + "/training/last", ranks);  // written after the others, it knows them
    ASSERT_EQ(resumed.checkpoints, undisturbed.checkpoints);
    EXPECT_EQ(resumed.callbacks, undisturbed.callbacks);
    EXPECT_EQ(resumed.steps, undisturbed.steps);
    EXPECT_THAT(resumed.said, Not(HasSubstr("nothing was trained")));
    std::filesystem::remove_all(folder);
  }
}

TEST(InterruptedFit, LeavesWhatAnUndisturbedOneLeaves) {
  expect_the_same_everywhere(24, 12, [](TrainerOptions&) {});
}

TEST(InterruptedFit, OfSeveralRanks) {
  expect_the_same_everywhere(
      24, 12, [](TrainerOptions& options) { options.strategy = "ddp_threads"; }, 2);
  // Validations lie inside of windows, where ranks that divide a model cannot save.
  expect_the_same_everywhere(
      24, 4,
      [](TrainerOptions& options) {
        options.strategy = Spec<Strategy>(Config::parse("{name: sharded_threads, stage: 3}", {}));
        options.accumulate_grad_batches = 3;
      },
      2);
}

TEST(InterruptedFit, WhereStepsAreLimited) {
  expect_the_same_everywhere(8, 4, [](TrainerOptions& options) { options.max_steps = 4; });
  expect_the_same_everywhere(12, 6, [](TrainerOptions& options) { options.max_steps = 6; });
}

TEST(InterruptedFit, WhereAMetricAskedForTheEndAndMayTakeItBack) {
  // The score is worse after steps 6 and 8, and better again after step 10. When the minimum is reached, validation
  // comes once more.
  struct Case {
    int64_t min_steps;
    int64_t steps;
    int64_t batches;
  };
  for (const auto& [min_steps, steps, batches] : {Case{7, 7, 15}, Case{10, 12, 22}})
    expect_the_same_everywhere(batches, steps, [min_steps = min_steps](TrainerOptions& options) {
      options.min_epochs.reset();
      options.min_steps = min_steps;
    });
}

TEST(InterruptedFit, WhereARequestWaits) {
  expect_the_same_everywhere(8, 5, [](TrainerOptions& options) {
    options.min_epochs.reset();
    options.min_steps = 5;
    options.callbacks.emplace_back(make<LambdaCallback>(LambdaCallbackOptions{
        .on_train_batch_end = [](Trainer& trainer, Module&, const StepOutput&, const Batch&, int64_t) {
          if (trainer.global_step() == 2) trainer.request_stop("enough");
        }}));
  });
}

// ---- Runs that end after what saved last

/// Trains on 2 epochs of 4 batches, which `callback` may end.
void train_short(const std::shared_ptr<ModelCheckpoint>& checkpoint, LambdaCallbackOptions callback, bool validates,
                 const std::string& ckpt) {
  TrainerOptions options = testing::quiet(2);
  options.enable_checkpointing = true;
  options.default_root_dir = testing::fresh_folder("short");
  options.callbacks = {checkpoint, make<LambdaCallback>(std::move(callback))};
  seed_everything(3);
  Trainer(options).fit(make<testing::TinyModule>({}), testing::tiny_loader(16, 4),
                       validates ? DataLoaders(testing::tiny_loader(8, 4)) : DataLoaders(), ckpt);
}

/// A run that has ended on a request that waited for its minimum goes on from what it saved last.
TEST(EndedFit, ThatWaitedForItsMinimumGoesOn) {
  const std::vector<ModelCheckpointOptions> saves = {{.save_last = true, .save_on_train_epoch_end = false},
                                                     {.save_last = true, .save_on_train_epoch_end = true},
                                                     {.save_last = true, .every_n_train_steps = 4}};
  for (size_t i = 0; i < saves.size(); ++i) {
    for (const bool by_steps : {false, true}) {
      SCOPED_TRACE(fmt::format("saves {}, {}", i, by_steps ? "min_steps" : "min_epochs"));
      const std::string folder = testing::fresh_folder("ended");
      const auto train_to = [&](int64_t epochs, const std::string& ckpt) {
        TrainerOptions options = testing::quiet(epochs);
        options.enable_checkpointing = true;
        options.default_root_dir = folder;
        if (by_steps)
          options.min_steps = 8;
        else
          options.min_epochs = 2;
        ModelCheckpointOptions own = saves[i];
        own.dirpath = folder;
        options.callbacks = {
            make<ModelCheckpoint>(own),
            make<LambdaCallback>(LambdaCallbackOptions{
                .on_train_batch_end = [](Trainer& trainer, Module&, const StepOutput&, const Batch&, int64_t) {
                  if (trainer.global_step() == 2) trainer.request_stop("enough");
                }})};
        Trainer trainer(options);
        trainer.fit(make<testing::TinyModule>({}), testing::tiny_loader(16, 4), testing::tiny_loader(8, 4), ckpt);
        return trainer.global_step();
      };
      EXPECT_EQ(train_to(5, ""), 8);
      EXPECT_EQ(train_to(5, folder + "/last"), 20);
    }
  }
}

TEST(InterruptedFit, InTheLastValidationLeavesALastOfTheEnd) {
  constexpr auto kValidation = static_cast<int64_t>(FitPhase::kValidation);
  std::vector<double> scores;
  for (const bool is_interrupted : {false, true}) {
    const std::string folder = testing::fresh_folder("last");
    const auto checkpoint = [&] {
      return make<ModelCheckpoint>(
          {.monitor = "train_loss_step", .save_last = true, .every_n_train_steps = 1, .dirpath = folder});
    };
    const auto interrupt = [&](Trainer& trainer, Module&, const Batch&, int64_t batch_idx, int64_t) {
      if (is_interrupted && trainer.current_epoch() == 1 && batch_idx == 1) std::raise(SIGINT);
    };
    train_short(checkpoint(), {.on_validation_batch_start = interrupt}, /*validates=*/true, "");
    const auto phase = [&] { return read_checkpoint(folder + "/last", {"loops"}).at("loops").at("phase").as_int(); };
    EXPECT_EQ(phase() == kValidation, is_interrupted);
    if (is_interrupted) train_short(checkpoint(), {}, /*validates=*/true, folder + "/last");
    EXPECT_NE(phase(), kValidation);
    const CheckpointInfo info = read_info(folder + "/last");
    EXPECT_EQ(info.global_step, 8);
    scores.push_back(info.score.value_or(-1));
  }
  EXPECT_EQ(scores[0], scores[1]);
}

TEST(StoppedFit, GoesOnToSaveItsEnd) {
  for (const int64_t stop_at : {2, 4}) {
    const std::string folder = testing::fresh_folder("end");
    // Never due before the end: there is no validation.
    const auto checkpoint = [&] {
      return make<ModelCheckpoint>({.filename = "{step}", .dirpath = folder, .save_on_train_epoch_end = false});
    };
    const auto names = [&] {
      std::vector<std::string> found;
      for (const auto& entry : fs::directory_iterator(folder)) found.push_back(entry.path().filename());
      return found;
    };
    train_short(checkpoint(),
                {.on_train_batch_end =
                     [&](Trainer& trainer, Module&, const StepOutput&, const Batch&, int64_t) {
                       if (trainer.global_step() == stop_at) trainer.request_stop("enough");
                     }},
                /*validates=*/false, "");
    const std::string stopped = fmt::format("step={}", stop_at);
    EXPECT_THAT(names(), ::testing::ElementsAre(stopped));
    train_short(checkpoint(), {}, /*validates=*/false, folder + "/" + stopped);
    EXPECT_THAT(names(), ::testing::ElementsAre("step=8"));
    train_short(checkpoint(), {}, /*validates=*/false, folder + "/step=8");  // which trains nothing
    EXPECT_THAT(names(), ::testing::ElementsAre("step=8"));
  }
}

}  // namespace
}  // namespace levin
