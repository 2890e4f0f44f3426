#include <levin/callbacks/throughput_monitor.h>

#include "../support/captured_log.h"
#include "../support/tape_recorder.h"
#include "strategy_training.h"

#include <levin/core/base/log.h>
#include <levin/core/data/dataset.h>
#include <levin/strategies/single_device.h>

#include <ATen/record_function.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <thread>

namespace levin {
namespace {

using testing::BodyAndHeadOptions;
using testing::CapturedLog;
using testing::Devices;
using testing::fresh_folder;
using ::testing::HasSubstr;
using testing::identical;
using testing::make_saver;
using ::testing::Not;
using testing::Outcome;
using testing::Plan;
using testing::refusal_of;
using testing::tiny_dataset;
using testing::train;

/// Of BodyAndHead in a step of 8 examples: 2 * 8 * (4 * 8 + 8) forward, again for the weights' gradients, and
/// 2 * 8 * 8 for that of what the head is given.
constexpr double kOperations = 1408;

Plan monitored(const std::string& options, int64_t epochs = 2) {
  return {.callback = fmt::format("{{throughput_monitor: {{{}}}}}", options), .epochs = epochs};
}

/// At its last boundary.
double last(const Outcome& run, const std::string& name) {
  const auto found = run.logged.find("throughput/" + name);
  return found == run.logged.end() ? -1 : found->second.back().second;
}

class ThroughputMonitorRuns : public ::testing::TestWithParam<Devices> {};

TEST_P(ThroughputMonitorRuns, CountAllRanksTogether) {
  const Outcome run = train(monitored("warmup_steps: 2, tokens: x, peak_tflops: 0.5"), GetParam());
  const auto& rates = run.logged.at("throughput/steps_per_second");
  ASSERT_EQ(rates.size(), 8u) << "every step after the warm-up";
  EXPECT_EQ(rates.front().first, 3);
  const double steps = last(run, "steps_per_second");
  EXPECT_GT(steps, 0);
  EXPECT_NEAR(last(run, "samples_per_second") / steps, 8, 1e-6);
  EXPECT_NEAR(last(run, "tokens_per_second") / steps, 32, 1e-6) << "four numbers in each example";
  const double teraflops = last(run, "model_tflops_per_second");
  EXPECT_NEAR(teraflops * 1e12 / steps, kOperations, 1e-3);
  EXPECT_NEAR(last(run, "mfu_percent"), 100 * teraflops / (0.5 * GetParam().count), 1e-9);
  double most = 0;  // nothing is fetched in the last step
  for (const auto& [step, waited] : run.logged.at("throughput/data_wait_percent")) most = std::max(most, waited);
  EXPECT_GT(most, 0);
  EXPECT_LT(most, 100);
}

TEST_P(ThroughputMonitorRuns, ChangeNothing) {
  const Outcome plain = train({.epochs = 2}, GetParam());
  const Outcome watched = train(monitored("tokens: x"), GetParam());
  EXPECT_TRUE(identical(watched.weights, plain.weights));
  EXPECT_TRUE(identical(watched.buffers, plain.buffers));
}

TEST_P(ThroughputMonitorRuns, CountEachExampleOfUnevenBatchesOnce) {
  // Batches of 8 and a last one of 1, which one of two ranks has nothing of.
  TrainerOptions options = testing::quiet(2);
  options.strategy = GetParam().strategy;
  options.devices = GetParam().count;
  options.log_every_n_steps = 1;
  options.default_root_dir = fresh_folder("throughput");
  const auto logger = std::make_shared<testing::ValueLogger>();
  options.logger = {logger};
  options.callbacks.emplace_back(make<ThroughputMonitor>({.window = 100, .warmup_steps = 0}));
  Trainer trainer(options);
  trainer.fit(make<testing::TinyModule>({}), DataLoader(tiny_dataset(41), {.global_batch_size = 8}));
  ASSERT_EQ(trainer.global_step(), 12);
  const auto rate = [&](const std::string& name) { return logger->logged.at("throughput/" + name).back().second; };
  EXPECT_NEAR(rate("samples_per_second") / rate("steps_per_second"), (2 * 41 - 8) / 11.0, 1e-6)
      << "all but the first batch";
}

TEST_P(ThroughputMonitorRuns, CountTargetsThatCountAndPadding) {
  TrainerOptions options = testing::quiet(1);
  options.strategy = GetParam().strategy;
  options.devices = GetParam().count;
  options.log_every_n_steps = 1;
  options.default_root_dir = fresh_folder("throughput");
  const auto logger = std::make_shared<testing::ValueLogger>();
  options.logger = {logger};
  options.callbacks.emplace_back(make<ThroughputMonitor>({.window = 100, .warmup_steps = 0, .tokens = "next"}));
  // Of five places in a row two are padding, and one more is not learned.
  Batch rows = tiny_dataset(40)->tensors();
  rows.set("next", at::tensor({3, -100, 5, -100, -100}, at::kLong).expand({40, 5}).contiguous());
  rows.set("positions", at::tensor({0, 1, 0, -1, -1}, at::kLong).expand({40, 5}).contiguous());
  Trainer trainer(options);
  trainer.fit(make<testing::TinyModule>({}),
              DataLoader(std::make_shared<data::TensorDataset>(rows), {.global_batch_size = 8}));
  const auto rate = [&](const std::string& name) { return logger->logged.at("throughput/" + name).back().second; };
  EXPECT_NEAR(rate("tokens_per_second") / rate("samples_per_second"), 2, 1e-6);
  EXPECT_NEAR(rate("padding_percent"), 40, 1e-6);
}

TEST_P(ThroughputMonitorRuns, TimeWholeEpochsAfterTheFirst) {
  const Outcome run = train(monitored("one_device_epoch_seconds: 3", 3), GetParam());
  const auto& seconds = run.logged.at("throughput/epoch_seconds");
  ASSERT_EQ(seconds.size(), 2u) << "the first epoch is left out";
  EXPECT_EQ(seconds.front().first, 10);
  EXPECT_GT(last(run, "epoch_seconds"), 0);
  EXPECT_EQ(last(run, "epoch_samples"), 40) << "of all ranks";
  EXPECT_EQ(last(run, "devices"), GetParam().count);
  EXPECT_NEAR(last(run, "epoch_samples_per_second"), 40 / last(run, "epoch_seconds"), 1e-6);
  EXPECT_NEAR(last(run, "speedup"), 3 / last(run, "epoch_seconds"), 1e-6);
}

INSTANTIATE_TEST_SUITE_P(Every, ThroughputMonitorRuns, testing::kEveryStrategy, testing::name_of_devices);

TEST(ThroughputMonitor, SumsUpTheStagesOfAPipeline) {
  for (const int64_t epochs : {1, 2}) {  // in the first one the stages find out what passes between them
    SCOPED_TRACE(epochs);
    Plan plan = monitored("warmup_steps: 1, peak_tflops: 1");
    plan.epochs = epochs;
    const Outcome run = train(plan, {"{name: pipeline_threads, balance: [1, 1], micro_batches: 2}", 2});
    const double steps = last(run, "steps_per_second");
    EXPECT_NEAR(last(run, "samples_per_second") / steps, 8, 1e-6);
    EXPECT_NEAR(last(run, "model_tflops_per_second") * 1e12 / steps, kOperations + 2 * 8 * 8, 1e-3)
        << "the head is outside of the sequential: the first stage runs its forward too";
  }
}

TEST(ThroughputMonitor, CountsOptimizerStepsUnderAccumulation) {
  Plan plan = monitored("warmup_steps: 1, window: 2");
  plan.examples = 48;
  plan.change = [](TrainerOptions& options) { options.accumulate_grad_batches = optim::AccumulationSchedule(2); };
  const Outcome run = train(plan, {});
  EXPECT_EQ(run.steps, 6);
  EXPECT_NEAR(last(run, "samples_per_second") / last(run, "steps_per_second"), 16, 1e-6);
  EXPECT_NEAR(last(run, "model_tflops_per_second") * 1e12 / last(run, "steps_per_second"), 2 * kOperations, 1e-3);
}

TEST(ThroughputMonitor, LeavesValidationOut) {
  using Clock = std::chrono::steady_clock;
  Plan plan = monitored("warmup_steps: 1, window: 100", 4);
  std::optional<Clock::time_point> first;
  Clock::time_point last_batch;
  Clock::duration validated{0};         // so far
  Clock::duration validated_before{0};  // the last batch
  plan.watch.on_train_batch_start = [&](Trainer&, Module&, const Batch&, int64_t) {
    if (!first) first = Clock::now();
  };
  plan.watch.on_train_batch_end = [&](Trainer&, Module&, const StepOutput&, const Batch&, int64_t) {
    last_batch = Clock::now();
    validated_before = validated;
  };
  plan.watch.on_validation_batch_start = [&](Trainer&, Module&, const Batch&, int64_t, int64_t) {
    const auto start = Clock::now();
    std::this_thread::sleep_for(std::chrono::milliseconds(150));
    validated += Clock::now() - start;
  };
  const Outcome run = train(plan, {});
  EXPECT_GE(validated_before, std::chrono::milliseconds(900)) << "three validations of two batches";
  // All that is measured lies between the first batch and the last.
  const double most = std::chrono::duration<double>(last_batch - *first - validated_before).count();
  EXPECT_GE(last(run, "steps_per_second"), 19 / most);
}

TEST(ThroughputMonitor, TimesAnEpochWithoutItsValidation) {
  using Clock = std::chrono::steady_clock;
  Plan plan = monitored("warmup_epochs: 0", 1);
  Clock::duration validated{0};
  plan.watch.on_train_batch_start = [](Trainer&, Module&, const Batch&, int64_t) {
    std::this_thread::sleep_for(std::chrono::milliseconds(40));
  };
  plan.watch.on_validation_batch_start = [&](Trainer&, Module&, const Batch&, int64_t, int64_t) {
    const auto start = Clock::now();
    std::this_thread::sleep_for(std::chrono::seconds(1));
    validated += Clock::now() - start;
  };
  const auto start = Clock::now();
  const Outcome run = train(plan, {});
  EXPECT_GE(validated, std::chrono::seconds(2)) << "two batches";
  EXPECT_GE(last(run, "epoch_seconds"), 5 * 0.04);
  EXPECT_LE(last(run, "epoch_seconds"), std::chrono::duration<double>(Clock::now() - start - validated).count());
  EXPECT_EQ(last(run, "speedup"), -1) << "nobody said what one device takes";
}

TEST(ThroughputMonitor, TimesNoPartOfAnEpoch) {
  Plan plan = monitored("warmup_epochs: 0", 2);
  plan.save_in = fresh_folder("throughput_epochs");
  const Outcome whole = train(plan, {});
  plan.save_in.clear();
  const Outcome resumed = train(plan, {}, whole.saved[2]);
  EXPECT_EQ(whole.logged.at("throughput/epoch_seconds").size(), 2u);
  EXPECT_EQ(resumed.logged.at("throughput/epoch_seconds").size(), 1u) << "the epoch that it went on with is a part";
  plan.change = [](TrainerOptions& options) { options.max_steps = 7; };
  EXPECT_EQ(train(plan, {}).logged.at("throughput/epoch_seconds").size(), 1u) << "the last epoch was not finished";
}

TEST(ThroughputMonitor, TakesTheRatesOverTheWindow) {
  Plan plan = monitored("warmup_steps: 1, window: 3", 2);
  plan.change = [](TrainerOptions& options) { options.log_every_n_steps = 2; };
  plan.watch.on_train_batch_start = [](Trainer& trainer, Module&, const Batch&, int64_t) {
    if (trainer.global_step() == 6) std::this_thread::sleep_for(std::chrono::milliseconds(300));
  };
  const auto rates = train(plan, {}).logged.at("throughput/steps_per_second");
  // Boundaries 2, 4, 6, 8, 10: what slept in step 7 counts in those of 8 and 10, with the steps from 2 and 4 on.
  ASSERT_EQ(rates.size(), 5u);
  EXPECT_LT(rates[3].second, 6 / 0.3);
  EXPECT_LT(rates[4].second, 6 / 0.3);
}

class SlowDataset final : public data::Dataset {
 public:
  int64_t size() const override { return 40; }
  Batch get_batch(std::span<const int64_t> indices, data::Generator& generator) const override {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    return inner_->get_batch(indices, generator);
  }

 private:
  std::shared_ptr<data::TensorDataset> inner_ = tiny_dataset();
};

TEST(ThroughputMonitor, SaysHowMuchOfTheTimeWentByWaitingForData) {
  for (const int64_t workers : {0, 1}) {
    TrainerOptions options = testing::quiet(2);
    options.log_every_n_steps = 1;
    options.default_root_dir = fresh_folder("throughput");
    const auto logger = std::make_shared<testing::ValueLogger>();
    options.logger = {logger};
    options.callbacks.emplace_back(make<ThroughputMonitor>({.window = 100}));
    Trainer trainer(options);
    trainer.fit(make<testing::BodyAndHead>(BodyAndHeadOptions{}),
                DataLoader(std::make_shared<SlowDataset>(), {.batch_size = 8, .num_workers = workers}));
    EXPECT_GT(trainer.data_wait_seconds(), 0) << workers;
    const auto last = [&](const std::string& name) { return logger->logged.at("throughput/" + name).back().second; };
    // The second epoch: what was measured, from what is logged.
    const double seconds = 5 / last("steps_per_second");
    const double waited = last("data_wait_percent") / 100 * seconds;
    EXPECT_LE(waited, seconds) << workers;
    EXPECT_LE(waited, trainer.data_wait_seconds() + 1e-6) << workers;
    const double least = workers == 0 ? 5 * 0.020 : 0;  // five batches of 20 ms
    EXPECT_GE(waited, least) << workers;
  }
}

TEST(ThroughputMonitor, StartsAnewInARunThatResumes) {
  Plan plan = monitored("warmup_steps: 2");
  plan.save_in = fresh_folder("throughput_resume");
  const Outcome whole = train(plan, {});
  plan.save_in.clear();
  const Outcome resumed = train(plan, {}, whole.saved[2]);
  EXPECT_TRUE(identical(resumed.weights, whole.weights));
  const auto& rates = resumed.logged.at("throughput/samples_per_second");
  EXPECT_EQ(rates.front().first, 6) << "the third batch is saved; two more are its warm-up";
  EXPECT_NEAR(last(resumed, "samples_per_second") / last(resumed, "steps_per_second"), 8, 1e-6);
}

/// One device, with a recorder that the CPU can do.
class MeteredDevice final : public SingleDevice {
 public:
  GraphSupport graph_support() override {
    return {.recorder = std::make_unique<testing::TapeRecorder>(), .why_not = ""};
  }
};

TEST(ThroughputMonitor, KnowsTheOperationsOfReplayedSteps) {
  Plan plan = monitored("warmup_steps: 6", 4);
  plan.change = [](TrainerOptions& options) {
    options.strategy = Spec<Strategy>(std::make_shared<MeteredDevice>());
    options.graph = true;
  };
  const int64_t before = testing::TapeRecorder::replayed();
  const Outcome run = train(plan, {});
  EXPECT_GT(testing::TapeRecorder::replayed(), before);
  EXPECT_NEAR(last(run, "model_tflops_per_second") * 1e12 / last(run, "steps_per_second"), kOperations, 1e-3);
}

/// Batches of 1, 2, 3, ... places.
class GrowingDataset final : public data::Dataset {
 public:
  int64_t size() const override { return 100; }
  Batch get_batch(std::span<const int64_t> indices, data::Generator&) const override {
    const at::Tensor x = at::ones({1, indices.front() + 1, 4});
    return {{"x", x}, {"y", x.sum(-1, true)}};
  }
};

TEST(ThroughputMonitor, CountsTheOperationsOfSoManyShapesAndNoMore) {
  const CapturedLog messages;
  TrainerOptions options = testing::quiet(2);
  options.log_every_n_steps = 1;
  options.default_root_dir = fresh_folder("throughput");
  const auto logger = std::make_shared<testing::ValueLogger>();
  options.logger = {logger};
  options.callbacks.emplace_back(make<ThroughputMonitor>({.window = 1000, .warmup_steps = 0}));
  int64_t counted = 0;
  options.callbacks.emplace_back(make<LambdaCallback>(
      {.on_before_backward = [&](Trainer&, Module&, const at::Tensor&) { counted += at::hasThreadLocalCallbacks(); }}));
  Trainer(options).fit(make<testing::TinyModule>({}),
                       DataLoader(std::make_shared<GrowingDataset>(), {.batch_size = 1}));
  EXPECT_EQ(counted, 2 * 64) << "in each epoch";
  const std::string text = messages.text();
  EXPECT_THAT(text, HasSubstr("batches have more than 64 shapes"));
  EXPECT_EQ(text.find("more than 64"), text.rfind("more than 64"));
  // 2 * (4 * 8 + 8) operations a place forward, again for the weights' gradients, and 2 * 8 for that of what the second
  // layer is given; the other shapes are in proportion. The first batch of the fit starts the clock.
  const auto rate = [&](const std::string& name) { return logger->logged.at("throughput/" + name).back().second; };
  EXPECT_NEAR(rate("model_tflops_per_second") * 1e12 / rate("steps_per_second"), 176.0 * (2 * 5050 - 1) / 199, 1e-3);
}

TEST(ThroughputMonitor, SaysOnceThatADeviceHasNoKnownPeak) {
  const CapturedLog messages;
  const Outcome run = train(monitored("warmup_steps: 1"), {"ddp_threads", 2});
  EXPECT_EQ(last(run, "mfu_percent"), -1);
  EXPECT_GT(last(run, "model_tflops_per_second"), 0);
  const std::string text = messages.text();
  EXPECT_THAT(text, HasSubstr("device 'cpu'"));
  EXPECT_EQ(text.find("peak_tflops"), text.rfind("peak_tflops")) << text;
}

TEST(ThroughputMonitor, CountsNoOperationsWhereItIsToldNotTo) {
  const CapturedLog messages;
  const Outcome run = train(monitored("warmup_steps: 1, flops: false"), {});
  EXPECT_EQ(last(run, "model_tflops_per_second"), -1);
  EXPECT_GT(last(run, "samples_per_second"), 0);
  EXPECT_THAT(messages.text(), Not(HasSubstr("peak")));
}

TEST(ThroughputMonitor, TakesAFunctionThatMeasuresABatch) {
  Plan plan{.epochs = 1};
  plan.change = [](TrainerOptions& options) {
    options.callbacks.emplace_back(make<ThroughputMonitor>(
        {.warmup_steps = 1, .count_tokens = [](const Batch& batch) { return 7 * batch.size(); }}));
  };
  for (const Devices& devices : {Devices{}, Devices{"ddp_threads", 2}}) {
    const Outcome run = train(plan, devices);
    EXPECT_NEAR(last(run, "tokens_per_second") / last(run, "steps_per_second"), 56, 1e-6) << devices;
  }
}

TEST(ThroughputMonitor, RefusesBadInput) {
  const auto refusal = [](const std::string& options) { return refusal_of([&] { train(monitored(options, 1), {}); }); };
  EXPECT_THAT(refusal("window: 0"), HasSubstr("throughput_monitor.window must be at least 1; got 0"));
  EXPECT_THAT(refusal("warmup_steps: -1"), HasSubstr("warmup_steps must be at least 0"));
  EXPECT_THAT(refusal("warmup_epochs: -1"), HasSubstr("warmup_epochs must be at least 0"));
  EXPECT_THAT(refusal("one_device_epoch_seconds: 0"), HasSubstr("one_device_epoch_seconds must be above 0"));
  EXPECT_THAT(refusal("peak_tflops: -3"), HasSubstr("peak_tflops must be above 0"));
  EXPECT_THAT(refusal("windw: 3"), HasSubstr("window"));
  EXPECT_THAT(refusal("tokens: ids"), HasSubstr("tokens is 'ids', which the batch does not have; valid: x, y"));
  EXPECT_THAT(
      refusal_of([] { ThroughputMonitor({.tokens = "x", .count_tokens = [](const Batch&) { return int64_t{1}; }}); }),
      HasSubstr("exclude each other"));
  EXPECT_THAT(refusal_of([] { ThroughputMonitor({.window = 0}); }), HasSubstr("window must be at least 1"));
}

TEST(ThroughputMonitor, MustBeOnEveryThreadRank) {
  Plan plan{.epochs = 1};
  plan.change = [](TrainerOptions& options) { options.callbacks.emplace_back(std::make_shared<ThroughputMonitor>()); };
  EXPECT_THAT(refusal_of([&] { train(plan, {"ddp_threads", 2}); }), HasSubstr("hint: make it with levin::make"));
}

}  // namespace
}  // namespace levin
