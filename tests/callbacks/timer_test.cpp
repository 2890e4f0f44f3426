#include <levin/callbacks/timer.h>

#include "../support/eventually.h"
#include "tiny_training.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>

namespace levin {
namespace {

using testing::CapturedLog;
using testing::eventually;
using testing::PlainModule;
using testing::quiet_options;
using testing::RunFolder;
using testing::tiny_batches;

/// A state as a checkpoint holds it.
State after_training(double seconds) {
  State elapsed = State::map();
  elapsed["train"] = seconds;
  elapsed["validate"] = 1.5;
  elapsed["test"] = 0.0;
  elapsed["predict"] = 0.0;
  State state = State::map();
  state["time_elapsed"] = elapsed;
  return state;
}

TEST(Timer, MeasuresStages) {
  const RunFolder folder;
  auto timer = make<Timer>();
  Trainer trainer(quiet_options(folder, 1, {timer}));
  auto module = std::make_shared<PlainModule>();
  module->before_step = [](int64_t) { usleep(2000); };
  trainer.fit(module, tiny_batches(), tiny_batches(1));
  EXPECT_GT(timer->time_elapsed(), 0.008);
  EXPECT_GT(timer->time_elapsed(RunningStage::kValidate), 0);
  EXPECT_LT(timer->time_elapsed(RunningStage::kValidate), timer->time_elapsed());
  EXPECT_EQ(timer->time_elapsed(RunningStage::kTest), 0);
  EXPECT_EQ(timer->time_remaining(), std::nullopt);
  const double stopped = timer->time_elapsed();
  usleep(2000);
  EXPECT_EQ(timer->time_elapsed(), stopped);
  trainer.test(module, DataLoaders(tiny_batches(1)));
  EXPECT_GT(timer->time_elapsed(RunningStage::kTest), 0);
}

TEST(Timer, EndsTraining) {
  const RunFolder folder;
  CapturedLog log;
  auto timer = make<Timer>({.duration = "00:00:00:01"});
  Trainer trainer(quiet_options(folder, 1, {timer}));
  auto module = std::make_shared<PlainModule>();
  module->before_step = [&](int64_t batch_idx) {
    if (batch_idx != 1) return;
    EXPECT_TRUE(eventually([&] { return timer->time_remaining() == 0; }));
  };
  trainer.fit(module, tiny_batches(10));
  EXPECT_LE(trainer.global_step(), 2) << "the time was over in the second step at the latest";
  EXPECT_EQ(timer->time_remaining(), 0) << "and not before its end";
  EXPECT_NE(log.text().find("00:00:00:01 is over"), std::string::npos) << log.text();
}

TEST(Timer, GoesOnFromWhatWasSaved) {
  Timer timer({.duration = "00:00:01:40"});
  timer.load_state_dict(after_training(40));
  EXPECT_EQ(timer.time_elapsed(), 40);
  EXPECT_EQ(timer.time_elapsed(RunningStage::kValidate), 1.5);
  EXPECT_EQ(timer.time_remaining(), 60);
  EXPECT_EQ(timer.state_dict().at("time_elapsed").at("train").as_double(), 40);
}

TEST(Timer, RefusesWhatIsNoTime) {
  EXPECT_THROW(Timer({.duration = "soon"}), ConfigError);
  EXPECT_THROW(Timer({.interval = "batch"}), ConfigError);
}

}  // namespace
}  // namespace levin
