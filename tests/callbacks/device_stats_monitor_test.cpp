#include <levin/callbacks/device_stats_monitor.h>

#include "../support/captured_log.h"
#include "../support/eventually.h"
#include "../support/stand_in_nvml.h"
#include "../support/threads.h"
#include "strategy_training.h"
#include "tests/support/tree.h"

#include <levin/core/base/log.h>

#include <gmock/gmock.h>

#include <fstream>
#include <limits>
#include <optional>
#include <sstream>

namespace levin {
namespace {

using testing::CapturedLog;
using testing::Devices;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::Outcome;
using testing::Plan;
using testing::refusal_of;
using testing::StandInNvml;
using testing::train;

/// Of the rank's monitor; nothing where it does not sample.
std::optional<int64_t> samples_of(const Trainer& trainer) {
  for (const auto& callback : trainer.callbacks())
    if (const auto* monitor = dynamic_cast<const DeviceStatsMonitor*>(callback.get())) return monitor->samples();
  return std::nullopt;
}

/// What a run waits for, on each rank that samples.
enum class Await { kNothing, kFirstSample, kSampleForEachBoundary };

/// A run of 10 steps with a boundary after the 4th and the 8th.
Plan plan_with(const std::string& options, Await await = Await::kSampleForEachBoundary) {
  Plan plan{.callback = "{device_stats_monitor: {" + options + "}}", .epochs = 2};
  plan.watch = {.on_train_batch_start = [await](Trainer& trainer, Module&, const Batch&, int64_t) {
    const auto before = samples_of(trainer);
    if (!before || await == Await::kNothing || trainer.global_step() % 4 != 0) return;
    const int64_t enough = await == Await::kFirstSample ? 1 : *before + 1;
    EXPECT_TRUE(testing::eventually([&] { return *samples_of(trainer) >= enough; }));
  }};
  plan.change = [](TrainerOptions& changed) { changed.log_every_n_steps = 4; };
  return plan;
}

std::vector<int64_t> steps_of(const Outcome& run, const std::string& name) {
  std::vector<int64_t> steps;
  if (const auto found = run.logged.find(name); found != run.logged.end())
    for (const auto& [step, value] : found->second) steps.push_back(step);
  return steps;
}

using Steps = std::vector<int64_t>;

TEST(DeviceStatsMonitorTest, LogsTheProcessAtBoundariesAndOnceMoreAtTheEnd) {
  const Outcome run = train(plan_with("interval: 0.05"), {});
  EXPECT_EQ(steps_of(run, "cpu/resident_memory_mib"), (Steps{4, 8, 10}));
  EXPECT_EQ(steps_of(run, "host/available_memory_mib"), (Steps{4, 8, 10}));
  EXPECT_THAT(steps_of(run, "cpu/utilization_percent"), ::testing::Contains(10));
  for (const auto& [step, value] : run.logged.at("cpu/resident_memory_mib")) EXPECT_GT(value, 50);
  for (const auto& [name, values] : run.logged) EXPECT_THAT(name, Not(HasSubstr("gpu"))) << "the run uses none";
}

TEST(DeviceStatsMonitorTest, LogsNothingAtABoundaryWithoutASample) {
  const Outcome run = train(plan_with("interval: 86400", Await::kFirstSample), {});
  EXPECT_EQ(steps_of(run, "cpu/resident_memory_mib"), (Steps{4, 10})) << "the first sample and the last";
  EXPECT_EQ(steps_of(run, "cpu/utilization_percent"), (Steps{10}));
}

TEST(DeviceStatsMonitorTest, LogsAllGpusWhereAsked) {
  const StandInNvml stand_in("gpus 2\ngpu1.utilization 93\ngpu1.power 612000");
  const Outcome run = train(plan_with("interval: 0.05, gpus: all, cpu: false"), {});
  EXPECT_EQ(steps_of(run, "gpu0/utilization_percent"), (Steps{4, 8, 10}));
  EXPECT_EQ(run.logged.at("gpu1/utilization_percent")[0].second, 93);
  EXPECT_EQ(run.logged.at("gpu1/power_watts")[1].second, 612);
  EXPECT_EQ(run.logged.at("gpu1/memory_total_mib")[2].second, 80 * 1024);
  EXPECT_EQ(run.logged.count("cpu/threads"), 0u);
}

TEST(DeviceStatsMonitorTest, OneValueOverAllGpus) {
  const StandInNvml stand_in("gpus 2\ngpu0.utilization 40\ngpu1.utilization 90\ngpu0.memory 300\ngpu1.memory 200");
  const Outcome run = train(plan_with("interval: 0.05, gpus: all, ranks: mean"), {});
  EXPECT_EQ(run.logged.at("gpu/utilization_percent")[0].second, 65);
  EXPECT_EQ(run.logged.at("gpu/memory_used_mib")[0].second, 300) << "the most";
  EXPECT_EQ(run.logged.count("gpu0/utilization_percent"), 0u);
}

TEST(DeviceStatsMonitorTest, RanksThatAreThreadsShareAProcess) {
  const StandInNvml stand_in("gpus 1");
  const Outcome run = train(plan_with("interval: 0.05, gpus: all"), {"ddp_threads", 2});
  EXPECT_EQ(steps_of(run, "rank0/cpu/resident_memory_mib"), (Steps{4, 8, 10}));
  EXPECT_EQ(steps_of(run, "rank0/gpu0/utilization_percent"), (Steps{4, 8, 10}));
  EXPECT_EQ(run.logged.at("rank0/gpu0/utilization_percent")[0].second, 50);
  for (const auto& [name, values] : run.logged) EXPECT_THAT(name, Not(HasSubstr("rank1/")));
}

TEST(DeviceStatsMonitorTest, RanksThatAreProcessesHaveTheirOwn) {
  Plan plan = plan_with("interval: 0.05");
  const std::string folder = testing::fresh_folder("device_stats_spawn");
  plan.change = [&](TrainerOptions& options) {
    options.log_every_n_steps = 4;
    options.default_root_dir = folder;
    options.logger = {"csv"};
  };
  Trainer trainer(testing::options_for(plan, {"ddp_spawn", 2}));
  trainer.fit(make<testing::BodyAndHead>(plan.net), DataLoader(testing::tiny_dataset(40), {.global_batch_size = 8}));
  std::ifstream file(trainer.run_directory() + "/metrics.csv");
  std::stringstream text;
  text << file.rdbuf();
  EXPECT_THAT(text.str(), HasSubstr("rank0/cpu/resident_memory_mib"));
  EXPECT_THAT(text.str(), HasSubstr("rank1/cpu/resident_memory_mib"));
  EXPECT_THAT(text.str(), HasSubstr("rank0/host/available_memory_mib"));
  EXPECT_THAT(text.str(), Not(HasSubstr("rank1/host/")));
}

TEST(DeviceStatsMonitorTest, MeanAndZeroOverRanks) {
  const StandInNvml stand_in("gpus 2\ngpu0.utilization 40\ngpu1.utilization 90");
  const Outcome mean = train(plan_with("interval: 0.05, gpus: all, ranks: mean"), {"ddp_threads", 2});
  EXPECT_EQ(mean.logged.at("gpu/utilization_percent")[0].second, 65);
  EXPECT_EQ(steps_of(mean, "cpu/resident_memory_mib"), (Steps{4, 8, 10}));
  const Outcome zero = train(plan_with("interval: 0.05, gpus: all, ranks: zero"), {"ddp_threads", 2});
  EXPECT_EQ(zero.logged.at("gpu1/utilization_percent")[0].second, 90);
  EXPECT_EQ(steps_of(zero, "cpu/resident_memory_mib"), (Steps{4, 8, 10}));
}

TEST(DeviceStatsMonitorTest, AnObjectThatServesRankZeroAloneWaitsForNobody) {
  Plan plan = plan_with("interval: 0.05");
  plan.callback.clear();
  plan.change = [](TrainerOptions& options) {
    options.log_every_n_steps = 4;
    options.callbacks.emplace_back(std::make_shared<DeviceStatsMonitor>(DeviceStatsMonitorOptions{.interval = 0.05}));
  };
  const Outcome run = train(plan, {"ddp_threads", 2});
  EXPECT_EQ(steps_of(run, "cpu/resident_memory_mib"), (Steps{4, 8, 10}));
}

TEST(DeviceStatsMonitorTest, ARankWithoutABatchTakesPartToo) {
  const StandInNvml stand_in("gpus 1");
  TrainerOptions options = testing::quiet(1);
  options.strategy = "ddp_threads";
  options.devices = 2;
  options.log_every_n_steps = 1;
  options.default_root_dir = testing::fresh_folder("device_stats_uneven");
  options.callbacks = {Spec<Callback>(make<DeviceStatsMonitor>({.interval = 0.05, .gpus = "all"}))};
  const auto logger = std::make_shared<testing::ValueLogger>();
  options.logger = {logger};
  Trainer trainer(options);
  // Batches of 8, 8 and 1: one rank has nothing in the third.
  trainer.fit(make<testing::TinyModule>(testing::TinyOptions{}),
              DataLoader(testing::tiny_dataset(17), {.global_batch_size = 8}));
  EXPECT_EQ(trainer.global_step(), 3);
  EXPECT_EQ(logger->logged.at("train_loss_step").size(), 3u);
  EXPECT_EQ(logger->logged.at("rank0/cpu/resident_memory_mib").back().first, 3);
  EXPECT_EQ(logger->logged.at("rank0/gpu0/power_watts").back().second, 300);
}

TEST(DeviceStatsMonitorTest, TrainingIsTheSameWithIt) {
  for (const Devices& devices : {Devices{}, Devices{"ddp_threads", 2}}) {
    const Outcome with = train(plan_with("interval: 0.05"), devices);
    Plan plain = plan_with("");
    plain.callback.clear();
    const Outcome without = train(plain, devices);
    EXPECT_TRUE(testing::identical(with.weights, without.weights)) << devices;
    EXPECT_EQ(steps_of(with, "train_loss_step"), steps_of(without, "train_loss_step")) << devices;
    EXPECT_EQ(with.logged.at("train_loss_step"), without.logged.at("train_loss_step")) << devices;
  }
}

TEST(DeviceStatsMonitorTest, ADriverThatHangsStallsNeitherStepsNorTheEnd) {
  const StandInNvml stand_in("gpus 1\nhang.power 1");
  const CapturedLog log;
  const Outcome run = train(plan_with("interval: 0.05, gpus: all", Await::kNothing), {});
  EXPECT_EQ(run.steps, 10);
  EXPECT_THAT(log.text(), HasSubstr("device_stats_monitor: the GPUs' driver has not answered for 3 s"));
  EXPECT_TRUE(testing::has_thread("levin-devices")) << "it hangs until here";
  stand_in.let_go();
  EXPECT_TRUE(testing::eventually([] { return !testing::has_thread("levin-devices"); }));
}

TEST(DeviceStatsMonitorTest, AGpuThatFallsOffDoesNotEndTraining) {
  const StandInNvml stand_in("gpus 1\ngpu0.lost_after 20");
  const CapturedLog log;
  const Outcome run = train(plan_with("interval: 0.05, gpus: all"), {});
  EXPECT_EQ(run.steps, 10);
  EXPECT_THAT(log.text(), HasSubstr("GPU 0 (Stand-in 0, GPU-0000-0) cannot be read, NVML says: GPU is lost"));
  EXPECT_EQ(steps_of(run, "gpu0/power_watts"), (Steps{4}));
  EXPECT_EQ(steps_of(run, "cpu/threads"), (Steps{4, 8, 10}));
}

TEST(DeviceStatsMonitorTest, WithoutNvmlLogsTheRest) {
  setenv("LEVIN_NVML_LIBRARY", testing::build_path("tests/no_nvml.so").c_str(), 1);
  const CapturedLog log;
  const Outcome run = train(plan_with("interval: 0.05, gpus: all"), {});
  unsetenv("LEVIN_NVML_LIBRARY");
  EXPECT_THAT(log.text(), HasSubstr("what GPUs do is not logged: NVML"));
  EXPECT_EQ(steps_of(run, "cpu/threads"), (Steps{4, 8, 10}));
}

TEST(DeviceStatsMonitorTest, SamplesInEveryFitAndAlsoAfterOneThatFailed) {
  const auto logger = std::make_shared<testing::ValueLogger>();
  TrainerOptions options = testing::quiet(1);
  options.log_every_n_steps = 1;
  options.logger = {logger};
  options.default_root_dir = testing::fresh_folder("device_stats_fits");
  options.callbacks = {Spec<Callback>(make<DeviceStatsMonitor>({.interval = 0.05}))};
  Trainer trainer(options);
  const auto loader = DataLoader(testing::tiny_dataset(16), {.batch_size = 8});
  trainer.fit(make<testing::BodyAndHead>(testing::BodyAndHeadOptions{}), loader);
  const size_t first = logger->logged.at("cpu/threads").size();
  EXPECT_GE(first, 1u);
  EXPECT_THROW(trainer.fit(make<testing::BodyAndHead>(testing::BodyAndHeadOptions{.fails_at = 0}), loader, loader),
               Error);
  const size_t second = logger->logged.at("cpu/threads").size();
  trainer.fit(make<testing::BodyAndHead>(testing::BodyAndHeadOptions{}), loader);
  EXPECT_GT(logger->logged.at("cpu/threads").size(), second);
}

TEST(DeviceStatsMonitorTest, RefusesWrongOptions) {
  const auto refused = [](const DeviceStatsMonitorOptions& options) {
    return refusal_of([&] { DeviceStatsMonitor monitor(options); });
  };
  EXPECT_THAT(refused({.interval = 0}), HasSubstr("device_stats_monitor.interval must be at least 0.05; got 0"));
  EXPECT_THAT(refused({.interval = -1}), HasSubstr("interval must be at least 0.05"));
  EXPECT_THAT(refused({.interval = std::numeric_limits<double>::infinity()}), HasSubstr("interval must be"));
  EXPECT_THAT(refused({.gpus = "some"}), HasSubstr("gpus must be one of used, all, none"));
  EXPECT_THAT(refused({.ranks = "first"}), HasSubstr("ranks must be one of each, mean, zero"));
}

}  // namespace
}  // namespace levin
