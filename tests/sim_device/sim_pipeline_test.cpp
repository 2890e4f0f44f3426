#include "tests/sim_device/sim_net.h"
#include "tests/sim_device/thread_ranks.h"
#include "tests/support/run_program.h"
#include "tests/support/sim_device/sim_nccl.h"

#include <levin/callbacks/model_checkpoint.h>
#include <levin/core/base/error.h>
#include <levin/core/optim/sgd.h>
#include <levin/strategies/pipeline/pipeline.h>

#include <c10/core/CachingDeviceAllocator.h>
#include <gmock/gmock.h>
#include <torch/nn/modules/batchnorm.h>
#include <nlohmann/json.hpp>

#include <chrono>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace levin::testing {
namespace {

void pipeline_over(TrainerOptions& trainer, PipelineOptions options, bool on_sim, int64_t ranks = 2,
                   double timeout = 240) {
  if (options.micro_batches == PipelineOptions().micro_batches) options.micro_batches = 4;
  trainer.strategy = Spec<Strategy>(thread_ranks<Pipeline>(options, timeout));
  trainer.devices = ranks;
  if (on_sim) trainer.accelerator = "sim";
}

struct PipelineRun {
  PipelineOptions options = {};
  int64_t ranks = 2;
  TinyOptions net = {};
  std::function<void(TrainerOptions&)> configure = [](TrainerOptions&) {};
};

SimResult fit_pipeline(const PipelineRun& run, bool on_sim) {
  return fit({.net = run.net, .configure = [&](TrainerOptions& trainer) {
                PipelineOptions options = run.options;
                options.balance_by = "parameters";
                pipeline_over(trainer, options, on_sim, run.ranks);
                run.configure(trainer);
              }});
}

void expect_pipeline_as_on_cpus(const PipelineRun& run) {
  const SimResult expected = fit_pipeline(run, /*on_sim=*/false);
  sim::reset_report();
  expect_equal(fit_pipeline(run, /*on_sim=*/true), expected);
}

const char* const kSchedules[] = {"gpipe", "1f1b", "interleaved", "zero_bubble"};

TEST(SimPipeline, EveryScheduleTrainsAndPredictsAsOnCpus) {
  for (const char* schedule : kSchedules) {
    for (const int64_t stages : {2, 3}) {
      SCOPED_TRACE(std::string(schedule) + ", stages: " + std::to_string(stages));
      expect_pipeline_as_on_cpus({.options = {.schedule = schedule}, .ranks = stages});
    }
  }
}

TEST(SimPipeline, FourStagesTrainAsOnCpus) {
  for (const char* schedule : {"1f1b", "zero_bubble"}) {
    SCOPED_TRACE(schedule);
    expect_pipeline_as_on_cpus({.options = {.schedule = schedule}, .ranks = 4});
  }
}

TEST(SimPipeline, ThreeChunksOnEachOfTwoRanksTrainAsOnCpus) {
  expect_pipeline_as_on_cpus({.options = {.schedule = "interleaved", .chunks_per_rank = 3}});
}

TEST(SimPipeline, PipelinesSideBySideTrainAsOnCpus) {
  const std::pair<const char*, bool> cases[] = {
      {"gpipe", true}, {"1f1b", false}, {"interleaved", true}, {"zero_bubble", false}, {"zero_bubble", true}};
  for (const auto& [schedule, shard_optimizer] : cases) {
    SCOPED_TRACE(std::string(schedule) + (shard_optimizer ? ", shard_optimizer" : ""));
    expect_pipeline_as_on_cpus(
        {.options = {.schedule = schedule, .data_parallel = 2, .shard_optimizer = shard_optimizer}, .ranks = 4});
  }
}

TEST(SimPipeline, DropoutClippingAndLowPrecisionAreThoseOfCpus) {
  const std::pair<const char*, const char*> cases[] = {
      {"32-true", "always"}, {"bf16-mixed", "never"}, {"16-mixed", "except_last"}};
  for (const auto& [precision, checkpoint] : cases) {
    SCOPED_TRACE(std::string(precision) + ", checkpoint: " + checkpoint);
    expect_pipeline_as_on_cpus({.options = {.checkpoint = checkpoint},
                                .net = {.dropout = 0.3},
                                .configure = [precision = precision](TrainerOptions& options) {
                                  options.precision = Spec<Precision>(Config::parse(precision, {}));
                                  options.gradient_clip_val = 0.1;
                                  options.accumulate_grad_batches = 2;
                                }});
  }
}

TEST(SimPipeline, CallsAfterTheFirstGoOnAsOnCpus) {
  const auto run = [](bool on_sim) {
    seed_everything(7);
    const auto module = make<SimNet>(TinyOptions{});
    TrainerOptions trainer = quiet(1);
    pipeline_over(trainer, {}, on_sim);
    const DataLoader loader(tiny_dataset(), {.batch_size = 8});
    Trainer(trainer).fit(module, loader);
    Trainer again(trainer);
    again.fit(module, loader);
    std::vector<at::Tensor> results;
    results.push_back(at::scalar_tensor(again.validate(module, loader).at(0).at("val_loss")));
    results.push_back(at::scalar_tensor(again.test(module, loader).at(0).at("test_loss")));
    for (const at::Tensor& weight : weights(*module)) {
      EXPECT_TRUE(weight.is_cpu());
      results.push_back(weight);
    }
    return results;
  };
  EXPECT_TRUE(identical(run(true), run(false)));
}

TEST(SimPipeline, AResumedRunGoesOnAsOneOfCpus) {
  const std::string root = fresh_folder("sim_pipeline_resume");
  const auto train = [&](bool on_sim, int64_t epochs, const std::string& checkpoint) {
    seed_everything(7);
    const auto module = make<SimNet>(TinyOptions{});
    TrainerOptions trainer = quiet(epochs);
    PipelineOptions options;
    options.schedule = "interleaved";
    pipeline_over(trainer, options, on_sim);
    auto keep = make<ModelCheckpoint>({.save_last = true, .dirpath = root});
    trainer.callbacks = {keep};
    trainer.enable_checkpointing = true;
    Trainer(trainer).fit(module, DataLoader(tiny_dataset(), {.batch_size = 8}), DataLoaders{}, checkpoint);
    return weights(*module);
  };
  const auto expected = train(false, 2, "");
  train(true, 1, "");
  EXPECT_TRUE(identical(train(true, 2, root + "/last"), expected));
}

/// Without sim_nccl, whose ranks must have a device each.
TEST(SimPipeline, OverGlooRanksTrainAsOnCpus) {
  const auto run = [](bool on_sim) {
    return fit({.configure = [on_sim](TrainerOptions& trainer) {
      trainer.strategy = Spec<Strategy>(Config::parse(
          "{name: pipeline_threads, schedule: interleaved, balance_by: parameters, micro_batches: 4}", {}));
      trainer.devices = 2;
      if (on_sim) trainer.accelerator = "sim";
    }});
  };
  const SimResult expected = run(false);
  sim::reset_report();
  expect_equal(run(true), expected);
}

// ---- What a step costs.

/// Two layers of batch normalisation. Without dropout one of them averages over all batches, for which LibTorch's own
/// code reads a value. Notes how often the host had waited for devices, and for communicators, when each step of rank 0
/// began.
class PipelineCountingNet : public Module {
 public:
  using Options = TinyOptions;
  explicit PipelineCountingNet(const Options& options) {
    torch::nn::BatchNorm1dOptions last(8);
    if (options.dropout == 0) last.momentum(std::nullopt);
    chain_ = register_module(
        "chain", Sequential(torch::nn::Linear(4, 8), torch::nn::BatchNorm1d(8), Block(options.dropout),
                            torch::nn::Linear(8, 8), torch::nn::BatchNorm1d(last), torch::nn::Linear(8, 1)));
  }
  StepOutput training_step(const Batch& batch, int64_t) override {
    note(training);
    return torch::nn::functional::mse_loss(chain_(batch["x"]), batch["y"]);
  }
  StepOutput validation_step(const Batch& batch, int64_t) override {
    note(validation);
    log("val_loss", torch::nn::functional::mse_loss(chain_(batch["x"]), batch["y"]));
    return {};
  }
  OptimizerConfigs configure_optimizers() override {
    return OptimizerConfig{.optimizer = std::make_shared<optim::AdamW>(parameters(), optim::AdamWOptions{.lr = 0.01})};
  }
  void note(std::vector<sim::Report>& reports) {
    if (trainer().global_rank() == 0) reports.push_back(sim::report());
  }
  static inline std::vector<sim::Report> training, validation;

 private:
  Sequential chain_{nullptr};
};

TEST(SimPipeline, BatchNormalisationIsThatOfCpus) {
  const auto run = [](bool on_sim) {
    seed_everything(7);
    const auto module = make<PipelineCountingNet>(TinyOptions{});
    TrainerOptions trainer = quiet(2);
    pipeline_over(trainer, {.balance = {{3, 3}}}, on_sim);
    Trainer(trainer).fit(module, DataLoader(tiny_dataset(), {.batch_size = 8}));
    std::vector<at::Tensor> results = weights(*module);
    for (const at::Tensor& buffer : module->buffers()) results.push_back(buffer.clone());
    return results;
  };
  EXPECT_TRUE(identical(run(true), run(false)));
}

TEST(SimPipeline, AStepAndAValidationBatchWaitForNoDeviceAndMakeNoCommunicator) {
  const std::pair<const char*, bool> cases[] = {{"1f1b", false}, {"interleaved", true}};
  for (const auto& [schedule, shard_optimizer] : cases) {
    SCOPED_TRACE(std::string(schedule) + (shard_optimizer ? ", shard_optimizer" : ""));
    PipelineCountingNet::training.clear();
    PipelineCountingNet::validation.clear();
    sim::reset_report();
    TrainerOptions trainer = quiet(1);
    trainer.log_every_n_steps = 1000;
    trainer.gradient_clip_val = 0.5;
    trainer.precision = "16-mixed";
    PipelineOptions options;
    options.balance_by = "parameters";
    options.schedule = schedule;
    options.data_parallel = 2;
    options.shard_optimizer = shard_optimizer;
    pipeline_over(trainer, options, /*on_sim=*/true, 4);
    const DataLoader loader(tiny_dataset(176), {.pin_memory = true, .global_batch_size = 16});
    Trainer(trainer).fit(make<PipelineCountingNet>(TinyOptions{.dropout = 0.2}), loader, loader);
    const auto& training = PipelineCountingNet::training;
    const auto& validation = PipelineCountingNet::validation;
    ASSERT_GE(training.size(), 40);
    ASSERT_GE(validation.size(), 10);
    // Shapes are learnt in the first step; then there is the optimizer's state.
    EXPECT_EQ(training[35].total_waits() - training[12].total_waits(), 0) << training[35].to_string();
    EXPECT_EQ(validation[9].total_waits() - validation[1].total_waits(), 0) << validation[9].to_string();
    const auto communicators = [](sim::Report report) { return report.waits[sim::Wait::kCommunicator]; };
    EXPECT_EQ(communicators(sim::report()), communicators(training.front()));
  }
}

// ---- Memory.

/// Eight layers, and one beside them.
class WideNet : public Module {
 public:
  struct Options {
    static void describe(Schema<Options>&) {}
  };
  explicit WideNet(const Options&) {
    before_ = register_module("before", torch::nn::Linear(4, kWidth));
    Sequential chain;
    for (int64_t i = 0; i < 8; ++i) chain->push_back(torch::nn::Linear(kWidth, kWidth));
    chain_ = register_module("chain", chain);
  }
  StepOutput training_step(const Batch& batch, int64_t) override { return chain_(before_(batch["x"])).square().mean(); }
  OptimizerConfigs configure_optimizers() override {
    return OptimizerConfig{.optimizer = std::make_shared<optim::SGD>(parameters(), optim::SGDOptions{.lr = 0.1})};
  }
  static constexpr int64_t kWidth = 64;

 private:
  torch::nn::Linear before_{nullptr};
  Sequential chain_{nullptr};
};

TEST(SimPipeline, NoDeviceEverHoldsTheWholeModel) {
  c10::DeviceAllocator& memory = *c10::getDeviceAllocator(sim::kDeviceType);
  constexpr auto kAll = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  for (const char* balance_by : {"time", "memory"}) {
    SCOPED_TRACE(balance_by);
    const auto module = make<WideNet>();
    int64_t whole = 0;
    for (const at::Tensor& parameter : module->parameters()) whole += static_cast<int64_t>(parameter.nbytes());
    std::vector<int64_t> before;
    for (c10::DeviceIndex i = 0; i < 4; ++i) {
      memory.resetPeakStats(i);
      before.push_back(memory.getDeviceStats(i).allocated_bytes[kAll].current);
    }
    TrainerOptions trainer = quiet(1);
    PipelineOptions options;
    options.balance_by = balance_by;
    pipeline_over(trainer, options, /*on_sim=*/true, 4);
    Trainer(trainer).fit(module, DataLoader(tiny_dataset(), {.batch_size = 8}));
    for (c10::DeviceIndex i = 0; i < 4; ++i) {
      const int64_t peak = memory.getDeviceStats(i).allocated_bytes[kAll].peak - before[static_cast<size_t>(i)];
      EXPECT_GT(peak, whole / 4);
      EXPECT_LT(peak, whole) << "sim:" << int{i};
    }
  }
}

/// Peak of a device's memory while a net of two stages trains on so many micro-batches of four examples.
int64_t peak_memory(int64_t micro_batches) {
  c10::DeviceAllocator& memory = *c10::getDeviceAllocator(sim::kDeviceType);
  constexpr auto kAll = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  TrainerOptions trainer = quiet(1);
  PipelineOptions options;
  options.balance_by = "parameters";
  options.micro_batches = micro_batches;
  pipeline_over(trainer, options, /*on_sim=*/true);
  const int64_t before = memory.getDeviceStats(1).allocated_bytes[kAll].current;
  memory.resetPeakStats(1);
  Trainer(trainer).fit(make<WideNet>(), DataLoader(tiny_dataset(4 * micro_batches), {.batch_size = 4 * micro_batches}));
  return memory.getDeviceStats(1).allocated_bytes[kAll].peak - before;
}

TEST(SimPipeline, MemoryDoesNotGrowWithTheNumberOfMicroBatches) {
  // But for batches and losses: an activation of a micro-batch has a kibibyte.
  EXPECT_LT(peak_memory(64) - peak_memory(16), 16 << 10);
}

/// A layer with a tensor that is neither parameter nor buffer.
class ScaleImpl : public torch::nn::Module {
 public:
  at::Tensor forward(const at::Tensor& x) { return x * scale_; }
  void to(torch::Device device, bool non_blocking = false) override {
    torch::nn::Module::to(device, non_blocking);
    scale_ = scale_.to(device);
  }

 private:
  at::Tensor scale_ = at::full({1}, 2.0);
};
TORCH_MODULE(Scale);

class ScaledNet : public Module {
 public:
  using Options = WideNet::Options;
  explicit ScaledNet(const Options&) {
    chain_ = register_module("chain", Sequential(torch::nn::Linear(4, 4), Scale(), Scale(), torch::nn::Linear(4, 1)));
  }
  StepOutput training_step(const Batch& batch, int64_t) override { return chain_(batch["x"]).square().mean(); }
  OptimizerConfigs configure_optimizers() override {
    return OptimizerConfig{.optimizer = std::make_shared<optim::SGD>(parameters(), optim::SGDOptions{.lr = 0.1})};
  }

 private:
  Sequential chain_{nullptr};
};

TEST(SimPipeline, ModulesThatHaveMoreToMoveAreAskedTo) {
  for (const char* balance_by : {"parameters", "time"}) {
    TrainerOptions trainer = quiet(1);
    PipelineOptions options;
    options.balance_by = balance_by;
    pipeline_over(trainer, options, /*on_sim=*/true);
    EXPECT_NO_THROW(Trainer(trainer).fit(make<ScaledNet>(), DataLoader(tiny_dataset(), {.batch_size = 8})));
  }
}

// ---- Failures.

/// Fails on rank 1, in the third batch.
class PipelineFailingNet : public SimNet {
 public:
  using SimNet::SimNet;
  static inline std::string where;

  void on_fit_start() override { fail_if("set-up"); }
  StepOutput training_step(const Batch& batch, int64_t batch_idx) override {
    if (batch_idx < 2) return SimNet::training_step(batch, batch_idx);
    fail_if("forward");
    const StepOutput output = SimNet::training_step(batch, batch_idx);
    if (where == "memory" && trainer().global_rank() == 1) at::empty({int64_t{1} << 40}, batch["x"].options());
    for (const at::Tensor& parameter : parameters())
      parameter.register_hook([this](const at::Tensor&) { fail_if("backward"); });
    return output;
  }

 private:
  void fail_if(const std::string& here) const {
    if (where == here && trainer().global_rank() == 1) throw Error("test", where + " fails");
  }
};

TEST(SimPipeline, WhatAStageThrowsEndsAllAndIsNamed) {
  for (const char* where : {"set-up", "forward", "backward", "memory"}) {
    SCOPED_TRACE(where);
    PipelineFailingNet::where = where;
    const int64_t before = sim::SimNccl::communicators_alive();
    TrainerOptions trainer = quiet(1);
    pipeline_over(trainer, {}, /*on_sim=*/true, 3, /*timeout=*/300);
    std::string message;
    try {
      Trainer(trainer).fit(make<PipelineFailingNet>(TinyOptions{}), DataLoader(tiny_dataset(), {.batch_size = 8}));
    } catch (const std::exception& error) {
      message = error.what();
    }
    EXPECT_THAT(message, ::testing::HasSubstr(where == std::string("memory") ? "out of memory on sim:1"
                                                                             : std::string(where) + " fails"));
    EXPECT_EQ(sim::SimNccl::communicators_alive(), before);
  }
}

// ---- Traces.

/// Its thread is much slower than its device.
class SlowThreadNet : public SimNet {
 public:
  using SimNet::SimNet;
  StepOutput training_step(const Batch& batch, int64_t batch_idx) override {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    return SimNet::training_step(batch, batch_idx);
  }
};

TEST(SimPipeline, ATraceShowsTheDeviceAndNotTheThreadThatGivesItWork) {
  const std::string folder = fresh_folder("sim_pipeline_trace");
  TrainerOptions trainer = quiet(1);
  PipelineOptions options;
  options.trace = folder;
  options.trace_batch = 3;
  pipeline_over(trainer, options, /*on_sim=*/true);
  Trainer(trainer).fit(make<SlowThreadNet>(TinyOptions{}), DataLoader(tiny_dataset(), {.batch_size = 8}));
  const auto trace = nlohmann::json::parse(read_text(folder + "/pipeline_trace.json"));
  std::map<std::string, std::vector<double>> durations;  // of rank 1, by action, in microseconds
  for (const auto& event : trace.at("traceEvents"))
    if (event.at("ph") == "X" && event.at("tid") == 1)
      durations[event.at("name")].push_back(event.at("dur").get<double>());
  // A kernel of the simulated device takes a microsecond.
  ASSERT_EQ(durations["forward"].size(), 4);
  ASSERT_EQ(durations["backward"].size(), 4);
  for (const double duration : durations["forward"]) {
    EXPECT_GE(duration, 5);
    EXPECT_LT(duration, 1000);
  }
  for (const double duration : durations["backward"]) EXPECT_LT(duration, 1000);
  // The first forward waits for the stage before: for what is left of its forward when this one comes.
  EXPECT_FALSE(durations["wait to receive"].empty());
}

}  // namespace
}  // namespace levin::testing
