// Requests to stop from elsewhere than the thread that trains, and signals to one rank of several.

#include "../support/captured_log.h"
#include "../support/tiny.h"

#include <levin/callbacks/lambda_callback.h>
#include <levin/core/base/error.h>
#include <levin/core/base/signals.h>

#include <gmock/gmock.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <stdexcept>
#include <stop_token>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

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

TEST_P(StopRequest, AfterTheFitOneCanTellThatItWasAsked) {
  TrainerOptions options = options_for(GetParam(), 2);
  options.callbacks = {make<LambdaCallback>(LambdaCallbackOptions{
      .on_train_batch_end = [](Trainer& rank, Module&, const StepOutput&, const Batch&, int64_t batch_idx) {
        if (batch_idx == 1 && rank.is_global_zero() && rank.current_epoch() == 0) rank.request_stop("enough");
      }})};
  Trainer trainer(options);
  trainer.fit(make<TinyModule>({}), tiny_loader(80, 8));
  EXPECT_TRUE(trainer.stop_requested());
  EXPECT_GE(trainer.global_step(), 2);
  trainer.validate(make<TinyModule>({}), {tiny_loader()}, "", /*verbose=*/false);
  EXPECT_FALSE(trainer.stop_requested());
}

TEST_P(StopRequest, ATokenEndsEveryFitAndNothingElse) {
  std::stop_source source;
  Trainer trainer(options_for(GetParam(), 1));
  trainer.set_stop_token(source.get_token());
  trainer.fit(make<TinyModule>({}), tiny_loader());
  EXPECT_EQ(trainer.status(), TrainerStatus::kFinished);
  EXPECT_FALSE(trainer.stop_requested());
  const int64_t steps = trainer.global_step();
  EXPECT_GT(steps, 0);
  source.request_stop();
  trainer.validate(make<TinyModule>({}), {tiny_loader()}, "", /*verbose=*/false);
  EXPECT_EQ(trainer.status(), TrainerStatus::kFinished);
  for (int i = 0; i < 2; ++i) {
    trainer.fit(make<TinyModule>({}), tiny_loader());
    EXPECT_EQ(trainer.global_step(), 0);
    EXPECT_EQ(trainer.status(), TrainerStatus::kInterrupted);
    EXPECT_TRUE(trainer.stop_requested());
    EXPECT_FALSE(trainer.interrupted()) << "no signal came";
  }
  trainer.set_stop_token({});
  trainer.fit(make<TinyModule>({}), tiny_loader());
  EXPECT_EQ(trainer.global_step(), steps);
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

/// Validations of the run, one global step each, as rank 0 saw them.
std::vector<int64_t> validated_steps(const std::string& folder) {
  std::vector<int64_t> steps;
  std::ifstream file(folder + "/validations");
  for (int64_t step = 0; file >> step;) steps.push_back(step);
  return steps;
}

/// Validations of a fit in which a request of the second batch waits, by step.
std::vector<int64_t> validated_while_waiting(const char* strategy, const std::function<void(TrainerOptions&)>& change) {
  const std::string folder = testing::fresh_folder("stop_request_validation");
  TrainerOptions options = options_for(strategy, 4);
  LambdaCallbackOptions asks = asks_early();
  asks.on_validation_end = [folder](Trainer& trainer, Module&) {
    if (trainer.is_global_zero())
      std::ofstream(folder + "/validations", std::ios::app) << trainer.global_step() << "\n";
  };
  options.callbacks = {make<LambdaCallback>(asks)};
  change(options);
  Trainer trainer(options);
  const int64_t ranks = std::string(strategy) == "single_device" ? 1 : 2;
  trainer.fit(make<TinyModule>({}), tiny_loader(40 * ranks, 8), tiny_loader());
  return validated_steps(folder);
}

TEST_P(StopRequest, ThatWaitsIsFollowedByNoValidationWhereALimitEndsTraining) {
  EXPECT_THAT(validated_while_waiting(GetParam(),
                                      [](TrainerOptions& options) {
                                        options.min_epochs = 3;
                                        options.max_steps = 7;
                                        options.val_check_interval = 5;
                                      }),
              ::testing::ElementsAre(5));
}

TEST_P(StopRequest, ThatWaitsIsFollowedByAValidationOfTheWeightsThatItEndsWith) {
  EXPECT_THAT(validated_while_waiting(GetParam(),
                                      [](TrainerOptions& options) {
                                        options.min_epochs = 2;
                                        options.val_check_interval = 3;
                                      }),
              ::testing::ElementsAre(3, 8, 10));
}

TEST_P(StopRequest, ATokenReachesTheRanksFromAnotherThread) {
  const std::string folder = testing::fresh_folder("stop_token");
  std::stop_source source;
  TrainerOptions options = options_for(GetParam(), -1);  // nothing else ends it
  options.callbacks = {make<LambdaCallback>(
      LambdaCallbackOptions{.on_train_batch_start = [folder](Trainer& rank, Module&, const Batch&, int64_t) {
        if (rank.global_step() != 3 || !rank.is_global_zero()) return;
        std::ofstream(folder + "/trains");
        wait_for(folder + "/asked");
      }})};
  Trainer trainer(options);
  trainer.set_stop_token(source.get_token());
  std::thread other([&] {
    wait_for(folder + "/trains");
    source.request_stop();
    std::ofstream(folder + "/asked");
  });
  trainer.fit(make<TinyModule>({}), tiny_loader());
  other.join();
  EXPECT_GE(trainer.global_step(), 4);
  EXPECT_EQ(trainer.status(), TrainerStatus::kInterrupted);
}

TEST_P(StopRequest, ATokenMayBeAskedInAHook) {
  std::stop_source source;
  TrainerOptions options = options_for(GetParam(), -1);
  options.callbacks = {make<LambdaCallback>(LambdaCallbackOptions{
      .on_train_batch_end = [source](Trainer& rank, Module&, const StepOutput&, const Batch&, int64_t) {
        if (rank.global_step() == 2 && rank.is_global_zero()) std::stop_source(source).request_stop();
      }})};
  Trainer trainer(options);
  trainer.set_stop_token(source.get_token());
  trainer.fit(make<TinyModule>({}), tiny_loader());
  EXPECT_GE(trainer.global_step(), 2);
  EXPECT_EQ(trainer.status(), TrainerStatus::kInterrupted);
}

/// The program's own handlers, which count.
class OwnHandlers {
 public:
  OwnHandlers() {
    for (size_t i = 0; i < kEndSignals.size(); ++i) {
      struct sigaction action {};
      action.sa_handler = count;
      sigaction(kEndSignals[i], &action, &former_[i]);
    }
    calls() = 0;
  }
  ~OwnHandlers() {
    for (size_t i = 0; i < kEndSignals.size(); ++i) sigaction(kEndSignals[i], &former_[i], nullptr);
  }
  static std::atomic<int>& calls() {
    static std::atomic<int> calls{0};
    return calls;
  }
  static bool are_in_place() {
    return std::all_of(kEndSignals.begin(), kEndSignals.end(), [](int signal) {
      struct sigaction present {};
      sigaction(signal, nullptr, &present);
      return (present.sa_flags & SA_SIGINFO) == 0 && present.sa_handler == count;
    });
  }

 private:
  static void count(int) { ++calls(); }
  std::array<struct sigaction, kEndSignals.size()> former_{};
};

TEST_P(StopRequest, HandlersMayStayTheProgramsOwn) {
  const OwnHandlers handlers;
  for (const bool handle_signals : {true, false}) {
    OwnHandlers::calls() = 0;
    TrainerOptions options = options_for(GetParam(), handle_signals ? -1 : 2);  // nothing else ends the first one
    options.handle_signals = handle_signals;
    options.callbacks = {make<LambdaCallback>(LambdaCallbackOptions{
        .on_train_batch_start = [handle_signals](Trainer& rank, Module&, const Batch&, int64_t batch_idx) {
          if (batch_idx == 1 && rank.current_epoch() == 0 && rank.is_global_zero()) {
            if (OwnHandlers::are_in_place() == handle_signals) throw std::runtime_error("wrong handlers");
            std::raise(SIGTERM);
            if (OwnHandlers::calls() != (handle_signals ? 0 : 1)) throw std::runtime_error("wrong handler");
          }
        }})};
    Trainer trainer(options);
    trainer.fit(make<TinyModule>({}), tiny_loader(80, 8));
    EXPECT_EQ(trainer.interrupted(), handle_signals);
    EXPECT_EQ(trainer.status(), handle_signals ? TrainerStatus::kInterrupted : TrainerStatus::kFinished);
    if (!handle_signals) EXPECT_EQ(trainer.current_epoch(), 1) << "a signal of an earlier fit is not one of this";
    EXPECT_TRUE(OwnHandlers::are_in_place());
  }
}

TEST(HandledSignals, ATrainerThatHandlesThemInstallsThemBesideOneThatDoesNot) {
  const OwnHandlers handlers;
  TrainerOptions options = quiet(1);
  options.handle_signals = false;
  options.callbacks = {make<LambdaCallback>(LambdaCallbackOptions{.on_train_start = [](Trainer&, Module&) {
    EXPECT_TRUE(OwnHandlers::are_in_place());
    TrainerOptions inner = quiet(1);
    inner.callbacks = {make<LambdaCallback>(
        LambdaCallbackOptions{.on_train_start = [](Trainer&, Module&) { EXPECT_FALSE(OwnHandlers::are_in_place()); }})};
    Trainer(inner).fit(make<TinyModule>({}), tiny_loader());
    EXPECT_TRUE(OwnHandlers::are_in_place());
  }})};
  Trainer(options).fit(make<TinyModule>({}), tiny_loader());
  EXPECT_TRUE(OwnHandlers::are_in_place());
}

/// Who asks: a hook of rank 0 or of the last rank, or another thread of the process that made the call.
class StopRequestAndValidation : public ::testing::TestWithParam<std::tuple<const char*, const char*>> {};

TEST_P(StopRequestAndValidation, FollowsTheBatchOnceWhoeverAsks) {
  const auto [strategy, asker] = GetParam();
  const std::string who = asker;
  for (const bool in_last_batch : {false, true}) {
    SCOPED_TRACE(in_last_batch);
    const std::string folder = testing::fresh_folder("stop_request");
    TrainerOptions options = options_for(strategy, -1);
    options.val_check_interval = 1000;  // none is due by itself
    options.check_val_every_n_epoch = std::nullopt;
    const bool is_alone = std::string(strategy) == "single_device";
    const int64_t batches = is_alone ? 5 : 3;  // of an epoch
    const int64_t asks_in = in_last_batch ? 2 * batches - 1 : batches + 1;
    options.callbacks = {make<LambdaCallback>(LambdaCallbackOptions{
        .on_train_batch_start =
            [=](Trainer& rank, Module&, const Batch&, int64_t) {
              if (rank.total_batches() != asks_in) return;
              if (who == "thread" && rank.is_global_zero()) {
                std::ofstream(folder + "/trains");
                wait_for(folder + "/asked");
              }
              if (who == "rank 0" && rank.is_global_zero()) rank.request_stop("a hook asked");
              if (who == "last rank" && rank.global_rank() == rank.world_size() - 1) rank.request_stop("a hook asked");
            },
        .on_validation_start =
            [=](Trainer& rank, Module&) {
              if (rank.is_global_zero())
                std::ofstream(folder + "/validations", std::ios::app) << rank.global_step() << "\n";
            }})};
    Trainer trainer(options);
    std::thread other([&] {
      if (who != "thread") return;
      wait_for(folder + "/trains");
      trainer.request_stop("another thread asked");
      std::ofstream(folder + "/asked");
    });
    trainer.fit(make<TinyModule>({}), tiny_loader(), tiny_loader());
    other.join();
    if (is_alone)
      EXPECT_EQ(trainer.global_step(), asks_in + 1) << "after the batch under way";
    else
      EXPECT_GT(trainer.global_step(), asks_in);
    EXPECT_EQ(validated_steps(folder), (std::vector<int64_t>{trainer.global_step()}));
  }
}

INSTANTIATE_TEST_SUITE_P(Strategies, StopRequestAndValidation,
                         ::testing::Combine(::testing::Values("single_device", "ddp_threads", "ddp_spawn"),
                                            ::testing::Values("rank 0", "last rank", "thread")));

TEST(StopRequestBetweenEpochs, IsFollowedByNoValidation) {
  for (const char* strategy : {"single_device", "ddp_threads"}) {
    for (const bool at_start : {false, true}) {
      SCOPED_TRACE(std::string(strategy) + (at_start ? ", at the start" : ", at the end"));
      const std::string folder = testing::fresh_folder("stop_request");
      TrainerOptions options = options_for(strategy, -1);
      options.val_check_interval = 1000;
      options.check_val_every_n_epoch = std::nullopt;
      LambdaCallbackOptions hooks;
      (at_start ? hooks.on_train_epoch_start : hooks.on_train_epoch_end) = [](Trainer& rank, Module&) {
        if (rank.current_epoch() == 1) rank.request_stop("between two epochs");
      };
      hooks.on_validation_start = [=](Trainer& rank, Module&) {
        if (rank.is_global_zero()) std::ofstream(folder + "/validations", std::ios::app) << rank.global_step() << "\n";
      };
      options.callbacks = {make<LambdaCallback>(hooks)};
      Trainer trainer(options);
      trainer.fit(make<TinyModule>({}), tiny_loader(), tiny_loader());
      const bool is_alone = std::string(strategy) == "single_device";
      if (is_alone) EXPECT_EQ(trainer.global_step(), at_start ? 5 : 10);
      // Of several ranks it may be known a few batches later.
      if (!at_start || is_alone) EXPECT_TRUE(validated_steps(folder).empty());
    }
  }
}

/// A validation by the clock is one that a request is followed by, too.
TEST(StopRequestAndValidationByTime, FollowsTheBatchOnce) {
  const std::string folder = testing::fresh_folder("stop_request");
  TrainerOptions options = options_for("single_device", -1);
  options.val_check_interval = std::chrono::seconds(3600);
  options.callbacks = {make<LambdaCallback>(
      LambdaCallbackOptions{.on_train_batch_start =
                                [](Trainer& rank, Module&, const Batch&, int64_t) {
                                  if (rank.global_step() == 3) rank.request_stop("a hook asked");
                                },
                            .on_validation_start =
                                [=](Trainer& rank, Module&) {
                                  std::ofstream(folder + "/validations", std::ios::app) << rank.global_step() << "\n";
                                }})};
  Trainer trainer(options);
  trainer.fit(make<TinyModule>({}), tiny_loader(), tiny_loader());
  EXPECT_EQ(validated_steps(folder), std::vector<int64_t>{4});
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
