#include <levin/callbacks/lambda_callback.h>
#include <levin/callbacks/learning_rate_finder.h>
#include <levin/core/interfaces/profiler.h>
#include <levin/core/options/registries.h>

#include "support.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <mutex>
#include <set>
#include <stdexcept>

namespace levin {
namespace {

using testing::CapturedLog;
using ::testing::Contains;
using ::testing::HasSubstr;
using testing::quiet;
using testing::tiny_loader;
using testing::TinyModule;
using testing::TinyOptions;
using testing::UnitModule;

struct RecorderOptions {
  std::string label;
  static void describe(Schema<RecorderOptions>& schema) {
    schema.field("label", &RecorderOptions::label, "leads every entry");
  }
};

/// A user's profiler: what it was told, of all its objects in this process.
class Recorder : public Profiler {
 public:
  using Options = RecorderOptions;
  explicit Recorder(const Options& options) : options_(options) {}

  void start(const ProfiledCall& call) override {
    call_ = call;
    note("start " + std::string(to_string(call.stage)));
  }
  void on_model_ready(torch::nn::Module& module) override { note("model " + std::to_string(module.children().size())); }
  void step() override { note("step"); }
  void begin(const char* name) override {
    open_.push_back(name);
    note("+" + std::string(name));
  }
  void end(const char* name) override {
    // Spans nest, whatever happens.
    if (open_.empty() || open_.back() != name) note("ERROR " + std::string(name));
    if (!open_.empty()) open_.pop_back();
    note("-" + std::string(name));
  }
  void finish() override { note(open_.empty() ? "finish" : "ERROR open " + open_.back()); }

  static std::vector<std::string> take(int64_t rank = 0) {
    const std::lock_guard lock(mutex());
    return std::exchange(entries()[rank], {});
  }

 private:
  static std::mutex& mutex() {
    static std::mutex made;
    return made;
  }
  static std::map<int64_t, std::vector<std::string>>& entries() {
    static std::map<int64_t, std::vector<std::string>> made;
    return made;
  }
  void note(const std::string& what) {
    const std::lock_guard lock(mutex());
    entries()[call_.rank].push_back(options_.label + what);
  }

  const Options options_;
  ProfiledCall call_;
  std::vector<std::string> open_;
};

int64_t count(const std::vector<std::string>& entries, const std::string& wanted) {
  return std::count(entries.begin(), entries.end(), wanted);
}

class ProfilerInTrainer : public ::testing::Test {
 protected:
  void SetUp() override {
    registries().profilers.add<Recorder>("recorder", "writes everything down");
    options_.default_root_dir = testing::fresh_folder("profiled");
    options_.profiler = "recorder";
    Recorder::take(0);
    Recorder::take(1);
  }
  TrainerOptions options_ = quiet(1);
};

TEST_F(ProfilerInTrainer, TheWholeOfAFitHasNames) {
  options_.gradient_clip_val = 1.0;
  options_.log_every_n_steps = 2;
  Trainer(options_).fit(make<UnitModule>({}), tiny_loader(32), {tiny_loader(16)});
  const auto entries = Recorder::take();
  EXPECT_EQ(entries.front(), "start fit");
  EXPECT_EQ(entries.at(1), "+fit");
  EXPECT_EQ(entries.at(entries.size() - 2), "-fit");
  EXPECT_EQ(entries.back(), "finish");
  EXPECT_EQ(count(entries, "step"), 4);  // batches of training, none of validation
  for (const char* of_batch : {"+train_batch", "+transfer_batch", "+training_step", "+backward", "+optimizer_step",
                               "+zero_grad", "+clip_gradients", "+strategy.forward_backward"})
    EXPECT_GE(count(entries, of_batch), 4) << of_batch;
  EXPECT_EQ(count(entries, "+fetch_train_batch"), 4);
  EXPECT_EQ(count(entries, "+validation"), 1);
  EXPECT_EQ(count(entries, "+validation_step"), 2);
  EXPECT_EQ(count(entries, "+log_metrics"), 4);  // two boundaries, the epoch, the validation
  EXPECT_EQ(count(entries, "+train_epoch"), 1);
  EXPECT_EQ(count(entries, "+on_train_batch_end"), 4);
  for (const std::string& entry : entries) EXPECT_THAT(entry, ::testing::Not(HasSubstr("ERROR")));
}

/// A trial of the finder's runs hooks without callbacks.
TEST_F(ProfilerInTrainer, CallbacksHaveTheirNamesAfterATrialToo) {
  options_.callbacks = {make<LearningRateFinder>({.num_training_steps = 4})};
  Trainer(options_).fit(make<UnitModule>({}), tiny_loader(48));
  const auto entries = Recorder::take();
  EXPECT_THAT(entries, Contains("+[Callback]LearningRateFinder.on_before_zero_grad"));
  for (const std::string& entry : entries) EXPECT_THAT(entry, ::testing::Not(HasSubstr("ERROR")));
}

TEST_F(ProfilerInTrainer, CallbacksAndModuleByTheirNames) {
  options_.enable_checkpointing = true;
  Trainer(options_).fit(make<TinyModule>({}), tiny_loader(16));
  const auto entries = Recorder::take();
  EXPECT_EQ(count(entries, "+[Callback]ModelCheckpoint.on_train_batch_end"), 2);
  EXPECT_EQ(count(entries, "+[Callback]ModelCheckpoint.on_train_epoch_end"), 1);
  EXPECT_EQ(count(entries, "+[Module]testing::TinyModule.on_train_batch_end"), 2);
  EXPECT_EQ(count(entries, "+save_checkpoint"), 1);
}

TEST_F(ProfilerInTrainer, OtherCalls) {
  auto module = make<TinyModule>({});
  Trainer trainer(options_);
  trainer.validate(module, {tiny_loader(16), tiny_loader(8)});
  auto entries = Recorder::take();
  EXPECT_EQ(entries.front(), "start validate");
  EXPECT_EQ(count(entries, "step"), 3);
  EXPECT_EQ(count(entries, "+validation_step"), 3);
  EXPECT_EQ(count(entries, "+on_validation_batch_end"), 3);
  trainer.test(module, tiny_loader(16));
  entries = Recorder::take();
  EXPECT_EQ(entries.front(), "start test");
  EXPECT_EQ(count(entries, "+test_step"), 2);
  EXPECT_EQ(count(entries, "+fetch_test_batch"), 2);
  EXPECT_EQ(count(entries, "+on_test_epoch_end"), 1);
  trainer.predict(module, DataLoaders{tiny_loader(16, 8, false)});
  entries = Recorder::take();
  EXPECT_EQ(entries.front(), "start predict");
  EXPECT_EQ(count(entries, "step"), 2);
  EXPECT_EQ(count(entries, "+predict_step"), 2);
  EXPECT_EQ(entries.back(), "finish");
  // The same object serves a second fit.
  trainer.fit(module, tiny_loader(16));
  trainer.fit(module, tiny_loader(16));
  entries = Recorder::take();
  EXPECT_EQ(count(entries, "start fit"), 2);
  EXPECT_EQ(count(entries, "finish"), 2);
}

TEST_F(ProfilerInTrainer, AnExceptionEndsTheSpans) {
  class Failing : public TinyModule {
   public:
    using TinyModule::TinyModule;
    StepOutput training_step(const Batch& batch, int64_t batch_idx) override {
      const ProfilerSpan span(trainer().profiler(), "my own span");
      if (batch_idx == 1) throw std::runtime_error("out of luck");
      return TinyModule::training_step(batch, batch_idx);
    }
  };
  EXPECT_THROW(Trainer(options_).fit(make<Failing>({}), tiny_loader(32)), std::runtime_error);
  const auto entries = Recorder::take();
  EXPECT_EQ(count(entries, "+my own span"), 2);
  EXPECT_EQ(count(entries, "-my own span"), 2);
  EXPECT_EQ(entries.at(entries.size() - 2), "-fit");
  EXPECT_EQ(entries.back(), "finish");
}

TEST_F(ProfilerInTrainer, EachThreadRankHasItsOwn) {
  options_.strategy = "ddp_threads";
  options_.devices = 2;
  Trainer(options_).fit(make<TinyModule>({}), tiny_loader(32));
  for (const int64_t rank : {0, 1}) {
    const auto entries = Recorder::take(rank);
    EXPECT_EQ(count(entries, "start fit"), 1);
    EXPECT_EQ(count(entries, "+training_step"), 2);
    EXPECT_EQ(count(entries, "step"), 2);
    EXPECT_EQ(entries.back(), "finish");
  }
}

TEST_F(ProfilerInTrainer, AnObjectServesRankZeroAloneUnlessItCanBeMadeAgain) {
  options_.strategy = "ddp_threads";
  options_.devices = 2;
  options_.profiler = make<Recorder>({.label = "made: "});
  Trainer(options_).fit(make<TinyModule>({}), tiny_loader(32));
  EXPECT_EQ(Recorder::take(0).back(), "made: finish");
  EXPECT_EQ(Recorder::take(1).back(), "made: finish");
  const CapturedLog messages;
  options_.profiler = std::make_shared<Recorder>(RecorderOptions{});
  Trainer(options_).fit(make<TinyModule>({}), tiny_loader(32));
  EXPECT_EQ(Recorder::take(0).back(), "finish");
  EXPECT_TRUE(Recorder::take(1).empty());
  EXPECT_THAT(messages.text(), HasSubstr("serves rank 0 alone"));
}

TEST_F(ProfilerInTrainer, Options) {
  TrainerOptions barebones = quiet(1);
  barebones.barebones = true;
  barebones.profiler = "simple";
  EXPECT_THROW(Trainer{barebones}, ConfigError);
  options_.profiler = "simpel";
  try {
    Trainer trainer(options_);
    FAIL() << "an unknown name was accepted";
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), HasSubstr("did you mean 'simple'"));
  }
  options_.profiler = "recorder";
  options_.fast_dev_run = true;
  Trainer(options_).fit(make<TinyModule>({}), tiny_loader(32));
  EXPECT_EQ(count(Recorder::take(), "+training_step"), 1);
}

TEST_F(ProfilerInTrainer, NoneByDefault) {
  class Asking : public TinyModule {
   public:
    using TinyModule::TinyModule;
    void on_train_start() override { EXPECT_EQ(trainer().profiler(), nullptr); }
  };
  TrainerOptions options = quiet(1);
  options.default_root_dir = testing::fresh_folder("unprofiled");
  Trainer trainer(options);
  trainer.fit(make<Asking>({}), tiny_loader(16));
  EXPECT_TRUE(trainer.run_directory().empty());
}

}  // namespace
}  // namespace levin
