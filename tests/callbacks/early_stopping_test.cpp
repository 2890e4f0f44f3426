#include <levin/callbacks/early_stopping.h>

#include <levin/callbacks/model_checkpoint.h>
#include <levin/callbacks/pause_training.h>
#include <levin/core/base/error.h>

#include "tiny_training.h"

#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace levin {
namespace {

using testing::CapturedLog;
using testing::PlainModule;
using testing::quiet_options;
using testing::RunFolder;
using testing::tiny_batches;

class EarlyStoppingTest : public ::testing::Test {
 protected:
  std::shared_ptr<EarlyStopping> train(const EarlyStoppingOptions& options, const std::vector<double>& val_losses,
                                       std::optional<int64_t> min_epochs = {}) {
    auto callback = make<EarlyStopping>(options);
    auto trainer_options = quiet_options(folder_, static_cast<int64_t>(val_losses.size()), {callback});
    trainer_options.min_epochs = min_epochs;
    module_ = std::make_shared<PlainModule>(val_losses);
    Trainer(trainer_options).fit(module_, tiny_batches(), tiny_batches(1));
    return callback;
  }
  RunFolder folder_;
  std::shared_ptr<PlainModule> module_;
  CapturedLog log_;
};

TEST_F(EarlyStoppingTest, EndsTrainingWhenNothingImproves) {
  const auto callback = train({.monitor = "val_loss", .patience = 2}, {3, 2, 2.5, 2.5, 2.5, 2.5});
  EXPECT_EQ(module_->validations, 4u);
  EXPECT_EQ(callback->stopped_epoch(), 3);
  EXPECT_EQ(callback->best_score(), 2);
  EXPECT_EQ(callback->wait_count(), 2);
}

TEST_F(EarlyStoppingTest, LetsTrainingGoOnOtherwise) {
  const auto callback = train({.monitor = "val_loss", .patience = 2}, {3, 2, 2.5, 1.5});
  EXPECT_EQ(module_->validations, 4u);
  EXPECT_EQ(callback->stopped_epoch(), std::nullopt);
}

TEST_F(EarlyStoppingTest, WaitsForMinEpochs) {
  train({.monitor = "val_loss", .patience = 1}, {1, 2, 2, 2, 2, 2}, 4);
  EXPECT_EQ(module_->validations, 4u);
}

TEST_F(EarlyStoppingTest, GoesOnWhereTheMetricRecoversBeforeMinEpochs) {
  const std::vector<double> scores{5, 6, 7, 4, 3, 2, 1, 1, 1};
  const auto callback = train({.monitor = "val_loss", .patience = 2}, scores, 6);
  EXPECT_EQ(module_->validations, 9u);
  EXPECT_EQ(callback->stopped_epoch(), 8);
  // It ends at the minimum where the metric has not recovered by then.
  EXPECT_EQ(train({.monitor = "val_loss", .patience = 2}, {5, 4, 6, 7, 8, 9, 3, 3, 3}, 6)->stopped_epoch(), 5);
  EXPECT_EQ(module_->validations, 6u);
}

TEST_F(EarlyStoppingTest, GoesOnAlikeFromACheckpointInBetween) {
  const std::vector<double> scores{5, 6, 7, 4, 3, 2, 1, 1, 1, 0};
  const auto saves = make<ModelCheckpoint>({.save_top_k = -1, .every_n_epochs = 1, .filename = "{epoch}"});
  auto options = quiet_options(folder_, 10, {make<EarlyStopping>({.monitor = "val_loss", .patience = 2}), saves});
  options.min_epochs = 6;
  Trainer undisturbed(options);
  undisturbed.fit(std::make_shared<PlainModule>(scores), tiny_batches(), tiny_batches(1));
  EXPECT_EQ(undisturbed.current_epoch(), 8);
  for (const size_t from : {0, 2, 3, 5}) {
    SCOPED_TRACE(from);
    auto again = quiet_options(folder_, 10, {make<EarlyStopping>({.monitor = "val_loss", .patience = 2})});
    again.min_epochs = 6;
    const auto module = std::make_shared<PlainModule>(scores);
    module->validations = from + 1;
    Trainer resumed(again);
    resumed.fit(module, tiny_batches(), tiny_batches(1),
                folder_.path("version_0/checkpoints/epoch=" + std::to_string(from)));
    EXPECT_EQ(resumed.current_epoch(), 8);
  }
}

TEST_F(EarlyStoppingTest, TwoOfOneMetricAskEachForItself) {
  for (const bool is_first : {true, false}) {
    auto patient = make<EarlyStopping>({.monitor = "val_loss", .patience = 1000, .divergence_threshold = 1000.0});
    auto other = make<EarlyStopping>({.monitor = "val_loss", .patience = 2});
    auto options = quiet_options(folder_, 6, {is_first ? other : patient, is_first ? patient : other});
    Trainer trainer(options);
    trainer.fit(std::make_shared<PlainModule>(std::vector<double>{1, 2, 3, 4, 5, 6}), tiny_batches(), tiny_batches(1));
    EXPECT_EQ(trainer.current_epoch(), 2);
  }
}

TEST_F(EarlyStoppingTest, LooksAtEachValueOnce) {
  // Validation every third epoch, and a look after each: the values in between are those of before.
  auto callback = make<EarlyStopping>({.monitor = "val_loss", .patience = 2, .check_on_train_epoch_end = true});
  auto options = quiet_options(folder_, 12, {callback});
  options.check_val_every_n_epoch = 3;
  Trainer trainer(options);
  trainer.fit(std::make_shared<PlainModule>(std::vector<double>{4, 3, 2, 1}), tiny_batches(), tiny_batches(1));
  EXPECT_EQ(callback->stopped_epoch(), std::nullopt);
  EXPECT_EQ(callback->wait_count(), 0);
  EXPECT_EQ(trainer.current_epoch(), 11);
}

/// Logs a metric in every other epoch, which improves each time.
class NowAndThen : public PlainModule {
  void on_train_epoch_end() override {
    const int64_t epoch = trainer().current_epoch();
    if (epoch % 2 == 0) log("seldom", 10.0 - static_cast<double>(epoch));
  }
};

TEST_F(EarlyStoppingTest, AMetricThatIsLoggedInSomeEpochs) {
  auto callback = make<EarlyStopping>({.monitor = "seldom", .patience = 1});
  Trainer trainer(quiet_options(folder_, 7, {callback}));
  trainer.fit(std::make_shared<NowAndThen>(), tiny_batches());
  EXPECT_EQ(trainer.current_epoch(), 6);
  EXPECT_EQ(callback->best_score(), 4);
}

TEST_F(EarlyStoppingTest, ARequestOfSomebodyElseIsNotTakenBack) {
  class Requests : public Callback {
    void on_train_epoch_end(Trainer& trainer, Module&) override {
      if (trainer.current_epoch() == 1) trainer.request_stop("enough");
    }
  };
  const std::vector<double> scores{5, 4, 3, 2, 1, 0, 0};
  const auto options = [&](std::vector<Spec<Callback>> callbacks) {
    callbacks.emplace_back(make<EarlyStopping>({.monitor = "val_loss"}));
    TrainerOptions all = quiet_options(folder_, 7, callbacks);
    all.min_epochs = 4;
    return all;
  };
  Trainer undisturbed(options({std::make_shared<Requests>(),
                               make<ModelCheckpoint>({.save_top_k = -1, .every_n_epochs = 1, .filename = "{epoch}"})}));
  undisturbed.fit(std::make_shared<PlainModule>(scores), tiny_batches(), tiny_batches(1));
  EXPECT_EQ(undisturbed.current_epoch(), 3);
  EXPECT_NE(log_.text().find("training was asked to stop: enough"), std::string::npos) << log_.text();
  // A run that goes on from before the minimum knows of it.
  Trainer resumed(options({}));
  resumed.fit(std::make_shared<PlainModule>(scores), tiny_batches(), tiny_batches(1),
              folder_.path("version_0/checkpoints/epoch=2"));
  EXPECT_EQ(resumed.current_epoch(), 3);
  // One that goes on after it trains on: that request has been met.
  Trainer later(options({}));
  later.fit(std::make_shared<PlainModule>(scores), tiny_batches(), tiny_batches(1),
            folder_.path("version_0/checkpoints/epoch=3"));
  EXPECT_EQ(later.current_epoch(), 6);
}

TEST_F(EarlyStoppingTest, MayWatchATrainingMetric) {
  const auto callback = train({.monitor = "train_loss", .patience = 2}, {1, 1, 1, 1, 1});
  EXPECT_EQ(callback->stopped_epoch(), 2);  // the metric is the epoch's number
}

TEST_F(EarlyStoppingTest, LooksAfterEachOfSeveralValidations) {
  auto callback = make<EarlyStopping>({.monitor = "val_loss", .patience = 1});
  auto options = quiet_options(folder_, 3, {callback});
  options.val_check_interval = 0.25;
  auto module = std::make_shared<PlainModule>(std::vector<double>{1, 2});
  Trainer trainer(options);
  trainer.fit(module, tiny_batches(), tiny_batches(1));
  EXPECT_EQ(callback->stopped_epoch(), 0);
  EXPECT_EQ(trainer.global_step(), 2);
}

TEST_F(EarlyStoppingTest, AMetricThatNobodyLogs) {
  try {
    train({.monitor = "val_los"}, {1, 1});
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what())
                  .find("[early_stopping] the monitored metric 'val_los' was not logged; did you mean "
                        "'val_loss'?"),
              std::string::npos)
        << error.what();
  }
  train({.monitor = "val_los", .strict = false}, {1, 1});
  EXPECT_EQ(module_->validations, 2u);
  EXPECT_NE(log_.text().find("'val_los' was not logged"), std::string::npos);
}

TEST_F(EarlyStoppingTest, TellsOfImprovements) {
  train({.monitor = "val_loss", .verbose = true}, {3, 2});
  EXPECT_NE(log_.text().find("val_loss improved to 3"), std::string::npos) << log_.text();
  EXPECT_NE(log_.text().find("val_loss improved from 3 to 2"), std::string::npos) << log_.text();
}

TEST_F(EarlyStoppingTest, GoesOnCountingAfterAResume) {
  auto first = make<EarlyStopping>({.monitor = "val_loss", .patience = 3});
  auto saver = make<ModelCheckpoint>({});
  Trainer(quiet_options(folder_, 3, {first, saver}))
      .fit(std::make_shared<PlainModule>(std::vector<double>{1, 2, 2}), tiny_batches(), tiny_batches(1));
  EXPECT_EQ(first->wait_count(), 2);
  auto second = make<EarlyStopping>({.monitor = "val_loss", .patience = 3});
  Trainer(quiet_options(folder_, 9, {second}))
      .fit(std::make_shared<PlainModule>(std::vector<double>{2, 2}), tiny_batches(), tiny_batches(1),
           saver->last_model_path());
  EXPECT_EQ(second->stopped_epoch(), 3);
  EXPECT_EQ(second->best_score(), 1);
}

TEST_F(EarlyStoppingTest, AnEpochThatIsCutShortDoesNotCount) {
  auto callback = make<EarlyStopping>({.monitor = "val_loss", .patience = 5});
  auto pause = make<PauseTraining>({.after_epochs = 2});
  auto options = quiet_options(folder_, 3, {callback, pause});
  options.max_steps = 6;  // of 4 in an epoch
  Trainer(options).fit(std::make_shared<PlainModule>(std::vector<double>{1}), tiny_batches(), tiny_batches(1));
  EXPECT_EQ(callback->best_score(), 1);
  EXPECT_EQ(callback->wait_count(), 0);
  EXPECT_EQ(pause->state_dict().at("completed_epochs").as_int(), 1);
}

TEST_F(EarlyStoppingTest, WithoutValidationDataLooksAtTheEndOfEveryEpoch) {
  const auto looks = [&](const std::function<void(TrainerOptions&)>& change) {
    auto callback = make<EarlyStopping>({.monitor = "train_loss", .patience = 2});  // which grows
    auto options = quiet_options(folder_, 9, {callback});
    change(options);
    Trainer(options).fit(std::make_shared<PlainModule>(), tiny_batches());
    return callback->stopped_epoch();
  };
  EXPECT_EQ(looks([](TrainerOptions& options) { options.check_val_every_n_epoch = 3; }), 2);
  EXPECT_EQ(looks([](TrainerOptions& options) { options.val_check_interval = 0.5; }), 2);
  EXPECT_EQ(looks([](TrainerOptions& options) { options.val_check_interval = 3; }), 2);
  EXPECT_EQ(looks([](TrainerOptions& options) {
              options.check_val_every_n_epoch.reset();
              options.val_check_interval = 7;
            }),
            2);
  EXPECT_EQ(looks([](TrainerOptions& options) { options.val_check_interval = std::chrono::seconds(3600); }), 2);
}

TEST_F(EarlyStoppingTest, TellsThatThereIsNothingToLookAfter) {
  auto callback = make<EarlyStopping>({.monitor = "train_loss", .check_on_train_epoch_end = false});
  Trainer(quiet_options(folder_, 1, {callback})).fit(std::make_shared<PlainModule>(), tiny_batches());
  EXPECT_NE(log_.text().find("'train_loss' was never looked at, since there are no validation data"), std::string::npos)
      << log_.text();
}

/// Its second, third and last of five epochs end before their first batch; each logs a score at its end.
class EmptyEpochs : public PlainModule {
 public:
  bool on_train_batch_start(const Batch&, int64_t) override {
    const int64_t epoch = trainer().current_epoch();
    return epoch == 0 || epoch == 3;
  }
  void on_train_epoch_end() override {
    log("score", std::array<double, 5>{5, 6, 4, 4.5, 4.25}.at(static_cast<size_t>(trainer().current_epoch())));
  }
};

TEST_F(EarlyStoppingTest, SeesWhatAnEpochWithoutBatchesLogs) {
  auto callback = make<EarlyStopping>({.monitor = "score", .patience = 5});
  auto saves = make<ModelCheckpoint>({.save_last = true});
  Trainer(quiet_options(folder_, 5, {callback, saves})).fit(std::make_shared<EmptyEpochs>(), tiny_batches());
  EXPECT_EQ(callback->best_score(), 4);
  EXPECT_EQ(callback->wait_count(), 2);
  // Of the epoch that follows those.
  const auto resumed = make<EarlyStopping>({.monitor = "score", .patience = 5});
  Trainer(quiet_options(folder_, 5, {resumed}))
      .fit(std::make_shared<EmptyEpochs>(), tiny_batches(), {}, folder_.path("version_0/checkpoints/epoch=3-step=8"));
  EXPECT_EQ(resumed->best_score(), 4);
  EXPECT_EQ(resumed->wait_count(), 2);
}

TEST(EarlyStoppingOptions, NeedAMonitor) {
  EXPECT_THROW(EarlyStopping(EarlyStoppingOptions{}), ConfigError);
  EXPECT_THROW(EarlyStopping({.monitor = "x", .mode = "lowest"}), ConfigError);
  EXPECT_THROW(make<EarlyStopping>({.monitor = "x", .patience = 0}), ConfigError);
}

}  // namespace
}  // namespace levin
