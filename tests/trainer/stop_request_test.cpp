// Requests to stop from elsewhere than the thread that trains, and signals to one rank of several.

#include "../support/captured_log.h"
#include "../support/tiny.h"

#include <levin/callbacks/lambda_callback.h>
#include <levin/core/base/error.h>

#include <gmock/gmock.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include <unistd.h>

namespace levin {
namespace {

namespace fs = std::filesystem;

using ::testing::HasSubstr;
using testing::quiet;
using testing::tiny_loader;
using testing::TinyModule;

TrainerOptions options_for(const std::string& strategy, int64_t epochs) {
  TrainerOptions options = quiet(epochs);
  options.strategy = strategy;
  options.devices = strategy == "single_device" ? 1 : 2;
  return options;
}

void wait_for(const std::string& file) {
  while (!fs::exists(file)) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

class StopRequest : public ::testing::TestWithParam<const char*> {};

TEST_P(StopRequest, BeforeFitCountsForThatFit) {
  Trainer trainer(options_for(GetParam(), 2));
  EXPECT_EQ(trainer.status(), TrainerStatus::kInitializing);
  trainer.request_stop("it is too late");
  EXPECT_TRUE(trainer.stop_requested());
  trainer.validate(make<TinyModule>({}), {tiny_loader()}, "", /*verbose=*/false);
  trainer.fit(make<TinyModule>({}), tiny_loader());
  EXPECT_EQ(trainer.global_step(), 0);
  EXPECT_EQ(trainer.status(), TrainerStatus::kFinished);
  trainer.fit(make<TinyModule>({}), tiny_loader(48, 8));
  EXPECT_GT(trainer.global_step(), 0) << "the request was for the fit before";
}

TEST_P(StopRequest, BeforeFitWaitsForTheMinimum) {
  TrainerOptions options = options_for(GetParam(), 3);
  options.min_epochs = 1;
  Trainer trainer(options);
  trainer.request_stop("one epoch is enough");
  trainer.fit(make<TinyModule>({}), tiny_loader(48, 8));
  EXPECT_EQ(trainer.global_step(), std::string(GetParam()) == "single_device" ? 6 : 3);
}

TEST_P(StopRequest, ReachesTheRanksFromAnotherThread) {
  const std::string folder = testing::fresh_folder("stop_request");
  TrainerOptions options = options_for(GetParam(), -1);  // nothing else ends it
  options.callbacks = {make<LambdaCallback>(
      LambdaCallbackOptions{.on_train_batch_start = [folder](Trainer& rank, Module&, const Batch&, int64_t) {
        if (rank.global_step() != 3 || !rank.is_global_zero()) return;
        std::ofstream(folder + "/trains");
        wait_for(folder + "/asked");
      }})};
  Trainer trainer(options);
  std::thread other([&] {
    wait_for(folder + "/trains");
    trainer.request_stop("another thread asked");
    std::ofstream(folder + "/asked");
  });
  trainer.fit(make<TinyModule>({}), tiny_loader());
  other.join();
  if (std::string(GetParam()) == "single_device")
    EXPECT_EQ(trainer.global_step(), 4) << "after the batch under way";
  else
    EXPECT_GE(trainer.global_step(), 4);
}

TEST_P(StopRequest, AFailedCallHasTheStatus) {
  TrainerOptions options = options_for(GetParam(), 2);
  options.callbacks = {make<LambdaCallback>(LambdaCallbackOptions{
      .on_train_batch_start = [](Trainer&, Module&, const Batch&, int64_t) { throw std::runtime_error("no more"); }})};
  Trainer trainer(options);
  EXPECT_ANY_THROW(trainer.fit(make<TinyModule>({}), tiny_loader()));
  EXPECT_EQ(trainer.status(), TrainerStatus::kFailed);
  EXPECT_EQ(trainer.running_stage(), RunningStage::kIdle);
  trainer.validate(make<TinyModule>({}), {tiny_loader()}, "", /*verbose=*/false);
  EXPECT_EQ(trainer.status(), TrainerStatus::kFinished);
}

/// Asks for the end in the second batch.
LambdaCallbackOptions asks_early() {
  return {.on_train_batch_end = [](Trainer& trainer, Module&, const StepOutput&, const Batch&, int64_t) {
    if (trainer.total_batches() == 1) trainer.request_stop("two batches are enough");
  }};
}

TEST_P(StopRequest, ThatWaitsForTheMinimumLetsASignalEndTraining) {
  TrainerOptions options = options_for(GetParam(), 3);
  options.min_epochs = 3;
  options.callbacks = {
      make<LambdaCallback>(asks_early()),
      make<LambdaCallback>(LambdaCallbackOptions{.on_train_epoch_start = [](Trainer& trainer, Module&) {
        if (trainer.current_epoch() == 1 && trainer.global_rank() == trainer.world_size() - 1)
          kill(getpid(), SIGTERM);  // threads of ranks leave it to the main one
      }})};
  Trainer trainer(options);
  trainer.fit(make<TinyModule>({}), tiny_loader(400, 8));
  EXPECT_EQ(trainer.status(), TrainerStatus::kInterrupted);
  EXPECT_EQ(trainer.current_epoch(), 1);
}

TEST_P(StopRequest, MaxTimeDoesNotWaitForTheMinimum) {
  for (const bool asks : {false, true}) {
    TrainerOptions options = options_for(GetParam(), -1);
    options.min_epochs = 1'000'000;
    options.max_time = "00:00:00:01";
    if (asks) options.callbacks = {make<LambdaCallback>(asks_early())};
    Trainer trainer(options);
    trainer.fit(make<TinyModule>({}), tiny_loader(400, 8));
    EXPECT_EQ(trainer.status(), TrainerStatus::kFinished);
    EXPECT_LT(trainer.current_epoch(), 1'000'000);
  }
}

TEST_P(StopRequest, InsideOfAnEpochIsFollowedByAValidation) {
  TrainerOptions options = options_for(GetParam(), 3);
  const std::string folder = testing::fresh_folder("stop_request_validation");
  LambdaCallbackOptions asks = asks_early();
  asks.on_validation_end = [folder](Trainer& trainer, Module&) {
    if (trainer.is_global_zero()) std::ofstream(folder + "/" + std::to_string(trainer.global_step()));
  };
  options.callbacks = {make<LambdaCallback>(asks)};
  Trainer trainer(options);
  trainer.fit(make<TinyModule>({}), tiny_loader(4000, 8), {tiny_loader()});
  EXPECT_TRUE(fs::exists(folder + "/" + std::to_string(trainer.global_step()))) << "of the weights that it ended with";
}

INSTANTIATE_TEST_SUITE_P(Strategies, StopRequest, ::testing::Values("single_device", "ddp_threads", "ddp_spawn"),
                         [](const auto& info) { return std::string(info.param); });

/// A signal to rank 1 alone, whose process is not the one that made the call, in a training batch or a validation.
class SignalToOneRank : public ::testing::TestWithParam<std::tuple<int, bool>> {};

TEST_P(SignalToOneRank, EndsAllWithItsStatusAndSaysSo) {
  const auto [number, in_validation] = GetParam();
  TrainerOptions options = options_for("ddp_spawn", -1);
  const auto raise_on_one = [number = number](Trainer& trainer) {
    if (trainer.global_rank() == 1) std::raise(number);
  };
  LambdaCallbackOptions when;
  if (in_validation)
    when.on_validation_batch_start = [=](Trainer& trainer, Module&, const Batch&, int64_t, int64_t) {
      raise_on_one(trainer);
    };
  else
    when.on_train_batch_start = [=](Trainer& trainer, Module&, const Batch&, int64_t) {
      if (trainer.global_step() == 1) raise_on_one(trainer);
    };
  options.callbacks = {make<LambdaCallback>(when)};
  Trainer trainer(options);
  ::testing::internal::CaptureStderr();
  trainer.fit(make<TinyModule>({}), tiny_loader(), in_validation ? DataLoaders{tiny_loader()} : DataLoaders{});
  const std::string said = ::testing::internal::GetCapturedStderr();
  EXPECT_TRUE(trainer.interrupted());
  EXPECT_EQ(trainer.interrupt_signal(), number);
  EXPECT_EQ(trainer.status(), TrainerStatus::kInterrupted);
  EXPECT_TRUE(trainer.fit_interrupted());
  const std::string signal = std::string("rank 1 was sent a signal (") + strsignal(number) + ")";
  EXPECT_THAT(said, HasSubstr(signal + ", which ends all ranks"));
  EXPECT_THAT(said, HasSubstr("steps: " + signal));
  // The next call is not ended by it.
  trainer.validate(make<TinyModule>({}), {tiny_loader()}, "", /*verbose=*/false);
  EXPECT_EQ(trainer.status(), in_validation ? TrainerStatus::kInterrupted : TrainerStatus::kFinished);
}

TEST(SignalToOneRankAfterTheLastBatch, InterruptsNoTraining) {
  for (const bool in_fit : {true, false}) {
    TrainerOptions options = options_for("ddp_spawn", 1);
    options.callbacks = {make<LambdaCallback>(LambdaCallbackOptions{.on_train_end =
                                                                        [](Trainer& trainer, Module&) {
                                                                          if (trainer.global_rank() == 1)
                                                                            std::raise(SIGTERM);
                                                                        },
                                                                    .on_predict_end =
                                                                        [](Trainer& trainer, Module&) {
                                                                          if (trainer.global_rank() == 1)
                                                                            std::raise(SIGTERM);
                                                                        }})};
    Trainer trainer(options);
    if (in_fit)
      trainer.fit(make<TinyModule>({}), tiny_loader());
    else
      trainer.predict(make<TinyModule>({}), {tiny_loader()});
    EXPECT_EQ(trainer.interrupt_signal(), SIGTERM);
    EXPECT_FALSE(trainer.fit_interrupted());
    // Whoever starts a program again that was interrupted would train on.
    EXPECT_EQ(trainer.status(), in_fit ? TrainerStatus::kFinished : TrainerStatus::kInterrupted);
  }
}

INSTANTIATE_TEST_SUITE_P(Signals, SignalToOneRank,
                         ::testing::Combine(::testing::Values(SIGTERM, SIGINT), ::testing::Bool()));

}  // namespace
}  // namespace levin
