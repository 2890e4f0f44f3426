#include <levin/callbacks/goodput_monitor.h>

#include "../support/captured_log.h"
#include "strategy_training.h"

#include <levin/core/base/file_system.h>
#include <levin/core/data/dataset.h>

#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include <chrono>
#include <memory>
#include <numeric>
#include <string>
#include <thread>

namespace levin {
namespace {

using namespace std::chrono_literals;
using testing::BodyAndHead;
using testing::CapturedLog;
using testing::Devices;
using testing::fresh_folder;
using ::testing::HasSubstr;
using testing::identical;
using testing::Plan;
using testing::tiny_dataset;
using Cause = GoodputMonitor::Cause;

/// Takes 5 ms for each example.
class SlowExamples final : public data::Dataset {
 public:
  int64_t size() const override { return 16; }
  Batch get(int64_t index, data::Generator& generator) const override {
    std::this_thread::sleep_for(5ms);
    return examples_->get(index, generator);
  }

 private:
  std::shared_ptr<data::TensorDataset> examples_ = tiny_dataset(16);
};

double of(const GoodputMonitor& monitor, Cause cause) { return monitor.seconds()[static_cast<size_t>(cause)]; }

double whole(const GoodputMonitor& monitor) {
  const auto seconds = monitor.seconds();
  return std::accumulate(seconds.begin(), seconds.end(), 0.0);
}

/// A fit of a slow data set, with hooks that take their time.
struct Fit {
  std::shared_ptr<GoodputMonitor> monitor = make<GoodputMonitor>();
  std::shared_ptr<testing::ValueLogger> logger = std::make_shared<testing::ValueLogger>();
  double seconds = 0;  ///< that the call took

  void run(const std::string& folder, int64_t epochs, LambdaCallbackOptions hooks = {}, const std::string& ckpt = "") {
    TrainerOptions options = testing::quiet(epochs);
    options.default_root_dir = folder;
    options.log_every_n_steps = 1;
    options.logger = {logger};
    options.callbacks.emplace_back(monitor);
    options.callbacks.emplace_back(make<LambdaCallback>(hooks));
    const DataLoader loader(std::make_shared<SlowExamples>(), {.batch_size = 8});
    const auto began = std::chrono::steady_clock::now();
    Trainer(options).fit(make<BodyAndHead>({}), loader, loader, ckpt);
    seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  }
};

TEST(GoodputMonitor, TellsCausesApart) {
  Fit fit;
  LambdaCallbackOptions hooks;
  hooks.on_train_start = [](Trainer&, Module&) { std::this_thread::sleep_for(30ms); };
  hooks.on_after_backward = [](Trainer&, Module&) { std::this_thread::sleep_for(10ms); };
  const CapturedLog log;
  fit.run(fresh_folder("goodput"), 2, hooks);
  const GoodputMonitor& monitor = *fit.monitor;
  EXPECT_GE(of(monitor, Cause::kStart), 0.03);
  EXPECT_GE(of(monitor, Cause::kProgress), 0.04) << "four steps";
  EXPECT_GE(of(monitor, Cause::kData), 0.1) << "three batches of 8, the first of which belongs to the start";
  EXPECT_GE(of(monitor, Cause::kValidation), 0.16) << "twice 16 examples";
  EXPECT_EQ(of(monitor, Cause::kRepeated), 0);
  EXPECT_EQ(of(monitor, Cause::kDown), 0);
  EXPECT_LE(whole(monitor), fit.seconds) << "nothing counts twice";
  EXPECT_GE(whole(monitor), 0.33);
  EXPECT_THAT(log.text(), HasSubstr("became progress; validation "));
  double percent = 0;
  for (const char* name : {"progress", "start", "data", "checkpoint", "validation", "repeated", "down"})
    percent += fit.logger->logged.at(fmt::format("goodput/{}_percent", name)).back().second;
  EXPECT_NEAR(percent, 100, 1e-9);
  EXPECT_EQ(fit.logger->logged.at("goodput/seconds").size(), 4u);
}

TEST(GoodputMonitor, CountsCheckpointsOnlyWhereTheyAreMade) {
  const std::string folder = fresh_folder("goodput");
  Fit without;
  without.run(folder, 2);
  EXPECT_EQ(of(*without.monitor, Cause::kCheckpoint), 0);
  Fit with;
  LambdaCallbackOptions hooks;
  hooks.on_train_batch_end = [&](Trainer& trainer, Module&, const StepOutput&, const Batch&, int64_t) {
    trainer.save_checkpoint(folder + "/saved");
  };
  hooks.on_save_checkpoint = [](Trainer&, Module&, State&) { std::this_thread::sleep_for(10ms); };
  with.run(folder, 2, hooks);
  EXPECT_GE(of(*with.monitor, Cause::kCheckpoint), 0.04);
}

TEST(GoodputMonitor, GoesOnWhereTheJobDoes) {
  const std::string folder = fresh_folder("goodput");
  Fit first;
  LambdaCallbackOptions hooks;
  std::string directory;
  GoodputMonitor::Seconds saved = {};
  hooks.on_train_batch_end = [&](Trainer& trainer, Module&, const StepOutput&, const Batch&, int64_t) {
    directory = trainer.run_directory();
    if (trainer.global_step() == 1) trainer.save_checkpoint(folder + "/saved");
    if (trainer.global_step() == 2) saved = first.monitor->seconds();
    if (trainer.global_step() == 4) throw Error("test", "the run fails");
  };
  hooks.on_after_backward = [](Trainer&, Module&) { std::this_thread::sleep_for(10ms); };
  EXPECT_THROW(first.run(folder, 2, hooks), Error);
  ASSERT_FALSE(directory.empty());
  const auto note = nlohmann::json::parse(FileSystem::current().read_file(directory + "/goodput.json"));
  EXPECT_NEAR(note.at("seconds").at("progress"), of(*first.monitor, Cause::kProgress), 1e-9);
  std::this_thread::sleep_for(50ms);

  Fit second;
  hooks = {};
  double repeated = 0;
  double down = 0;
  double began_with = 0;
  hooks.on_fit_start = [&](Trainer&, Module&) {
    repeated = of(*second.monitor, Cause::kRepeated);
    down = of(*second.monitor, Cause::kDown);
    began_with = of(*second.monitor, Cause::kProgress);
  };
  second.run(folder, 2, hooks, folder + "/saved");
  EXPECT_GE(down, 0.05);
  EXPECT_GE(repeated, 0.02) << "steps 2 to 4";
  EXPECT_NEAR(began_with + repeated, of(*first.monitor, Cause::kProgress), 1e-9);
  EXPECT_LE(began_with, saved[0]) << "of the first step";
  EXPECT_GE(of(*second.monitor, Cause::kStart), of(*first.monitor, Cause::kStart)) << "of both runs";
}

TEST(GoodputMonitor, CountsAllSinceTheCheckpointAsDownWithoutTheFile) {
  const std::string folder = fresh_folder("goodput");
  Fit first;
  LambdaCallbackOptions hooks;
  hooks.on_train_batch_end = [&](Trainer& trainer, Module&, const StepOutput&, const Batch&, int64_t) {
    if (trainer.global_step() == 1) trainer.save_checkpoint(folder + "/saved");
    if (trainer.global_step() == 4) FileSystem::current().remove_all(trainer.run_directory());
  };
  first.run(folder, 2, hooks);
  Fit second;
  second.run(folder, 2, {}, folder + "/saved");
  EXPECT_EQ(of(*second.monitor, Cause::kRepeated), 0);
  EXPECT_GT(of(*second.monitor, Cause::kDown), 0.1) << "the rest of the first run";
}

TEST(GoodputMonitor, ChangesNothing) {
  for (const Devices devices : {Devices{"single_device", 1}, Devices{"ddp_threads", 2}}) {
    const auto plain = testing::train({.epochs = 2}, devices);
    const auto watched = testing::train({.callback = "goodput_monitor", .epochs = 2}, devices);
    EXPECT_TRUE(identical(watched.weights, plain.weights)) << devices;
    EXPECT_TRUE(watched.logged.contains("goodput/progress_percent"));
  }
}

TEST(GoodputMonitor, ChecksItsOptions) { EXPECT_THROW(make<GoodputMonitor>({.save_every = 0}), ConfigError); }

}  // namespace
}  // namespace levin
