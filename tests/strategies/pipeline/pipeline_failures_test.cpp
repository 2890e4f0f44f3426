#include "tests/support/eventually.h"
#include "tests/support/tiny.h"
#include "tests/support/tiny_stream.h"

#include <levin/callbacks/batch_size_finder.h>
#include <levin/callbacks/lambda_callback.h>
#include <levin/callbacks/model_checkpoint.h>
#include <levin/core/base/error.h>
#include <levin/core/base/log.h>
#include <levin/core/nn/sequential.h>
#include <levin/core/optim/optimizer_capabilities.h>
#include <levin/core/optim/sgd.h>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn/modules/activation.h>
#include <torch/optim/lbfgs.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace levin {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using testing::fresh_folder;
using ::testing::HasSubstr;
using testing::identical;
using testing::quiet;
using testing::tiny_dataset;

struct FragileOptions {
  std::string what;
  int64_t stage = 0;  ///< that it happens in
  int64_t batch = 3;  ///< that it happens in
  double momentum = 0;
  static void describe(Schema<FragileOptions>& schema) {
    using O = FragileOptions;
    schema.field("what", &O::what, "what goes wrong");
    schema.field("stage", &O::stage, "stage that it goes wrong in");
    schema.field("batch", &O::batch, "batch that it goes wrong in");
    schema.field("momentum", &O::momentum, "momentum");
  }
};

/// Throws in backward.
class ThrowsInBackward : public torch::autograd::Function<ThrowsInBackward> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& x) { return x.clone(); }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*, torch::autograd::variable_list) {
    throw Error("test", "backward fails");
  }
};

/// Fails at its fourth step.
class FailingSgd final : public torch::optim::Optimizer, public optim::DeclaresCapabilities {
 public:
  explicit FailingSgd(std::vector<at::Tensor> parameters, std::function<bool()> fails)
      : Optimizer({torch::optim::OptimizerParamGroup(std::move(parameters))},
                  std::make_unique<optim::GroupOptions<optim::SGDOptions>>(optim::SGDOptions{.lr = 0.1})),
        fails_(std::move(fails)) {}
  at::Tensor step(LossClosure = nullptr) override {
    if (fails_()) throw Error("test", "the step fails");
    return {};
  }
  optim::OptimizerCapabilities capabilities() const override { return {.element_wise = true}; }

 private:
  std::function<bool()> fails_;
};

/// Four stages of a linear layer and a function each, in one of which something goes wrong in one batch.
class Fragile : public Module {
 public:
  using Options = FragileOptions;
  explicit Fragile(const Options& options) : options_(options) {
    Sequential net;
    for (int64_t stage = 0; stage < 4; ++stage) {
      net->push_back(torch::nn::Linear(4, stage == 3 ? 1 : 4));
      net->push_back([this, stage](const at::Tensor& x) { return stage == options_.stage ? wrong(x) : x.tanh(); });
    }
    net_ = register_module("net", net);
    if (options.what == "manual") automatic_optimization = false;
  }

  at::Tensor loss(const Batch& batch) {
    const at::Tensor x = batch["x"];
    if (x.dim() == 2) return torch::nn::functional::mse_loss(net_(x), batch["y"]);
    return torch::nn::functional::mse_loss(net_(x).mean(1), batch["y"]);
  }
  StepOutput training_step(const Batch& batch, int64_t batch_idx) override {
    batch_ = trainer().current_epoch() * 5 + batch_idx;
    at::Tensor value = loss(batch);
    if (happens("skips")) return {};
    if (happens("skips in the last stage") && trainer().global_rank() + 1 == trainer().world_size()) return {};
    log("train_loss", value);
    return value;
  }
  StepOutput validation_step(const Batch& batch, int64_t) override {
    log("val_loss", loss(batch));
    return {};
  }
  void on_before_backward(const at::Tensor&) override {
    if (options_.what == "touches" && trainer().global_rank() == 1)
      for (const at::Tensor& parameter : parameters()) parameter.sum().item<float>();
  }
  OptimizerConfigs configure_optimizers() override {
    if (options_.what == "lbfgs") return std::make_shared<torch::optim::LBFGS>(parameters());
    if (options_.what == "step") {
      auto fails = [this] { return batch_ == options_.batch && trainer().global_rank() == options_.stage; };
      return std::shared_ptr<torch::optim::Optimizer>(std::make_shared<FailingSgd>(parameters(), fails));
    }
    return std::make_shared<optim::SGD>(parameters(), optim::SGDOptions{.lr = 0.1, .momentum = options_.momentum});
  }

 private:
  bool happens(const std::string& what) const { return options_.what == what && batch_ == options_.batch; }
  at::Tensor wrong(const at::Tensor& x) const {
    if (happens("forward")) throw Error("test", "forward fails");
    if (happens("backward")) return ThrowsInBackward::apply(x);
    if (happens("killed")) raise(SIGKILL);
    if (happens("shape")) return x.tanh().repeat({1, 2}).narrow(1, 0, x.size(1) + 1);
    return x.tanh();
  }

  const Options options_;
  int64_t batch_ = 0;
  Sequential net_{nullptr};
};

struct Case {
  FragileOptions module;
  std::string strategy = "single_device";
  int devices = 1;
  int64_t examples = 40;
  int64_t global_batch = 8;
  int64_t accumulate = 1;
  std::function<void(TrainerOptions&)> change;
  std::optional<DataLoader> data;
};

std::string on(const std::string& strategy, const std::string& options = "micro_batches: 4") {
  return "{name: " + strategy + ", balance: [2, 2, 2, 2], " + options + "}";
}

struct Ran {
  std::vector<at::Tensor> weights;
  int64_t steps = 0;
  bool interrupted = false;
};

Ran run(const Case& tested, const std::string& ckpt = "") {
  torch::manual_seed(5);
  TrainerOptions options = quiet(2);
  options.strategy = Spec<Strategy>(Config::parse(tested.strategy, {.source = "test"}));
  options.devices = tested.devices;
  options.accumulate_grad_batches = tested.accumulate;
  if (tested.change) tested.change(options);
  Trainer trainer(options);
  const auto module = make<Fragile>(tested.module);
  trainer.fit(module,
              tested.data ? *tested.data
                          : DataLoader(tiny_dataset(tested.examples), {.global_batch_size = tested.global_batch}),
              DataLoader(tiny_dataset(12), {.global_batch_size = 6}), ckpt);
  return {testing::weights(*module), trainer.global_step(), trainer.interrupted()};
}

/// What the run ends with. A rank that waits in vain would take half an hour, far more than a test may.
std::string message_of(const Case& tested) {
  std::string message = "no error";
  try {
    run(tested);
  } catch (const std::exception& error) {
    message = error.what();
  }
  return message;
}

void expect_as_on_one_device(Case tested, const std::string& options, int devices) {
  const Ran expected = run(tested);
  tested.strategy = on("pipeline_threads", options);
  tested.devices = devices;
  const Ran ran = run(tested);
  ASSERT_EQ(ran.weights.size(), expected.weights.size());
  EXPECT_EQ(ran.steps, expected.steps);
  for (size_t i = 0; i < expected.weights.size(); ++i)
    EXPECT_TRUE(ran.weights[i].allclose(expected.weights[i], 1e-4, 1e-5)) << "tensor " << i;
}

TEST(PipelineFailures, WhatAStageThrowsEndsAllOfThemWithItsMessage) {
  for (const char* schedule : {"gpipe", "1f1b", "zero_bubble"})
    for (const int64_t stage : {0, 1, 3}) {
      SCOPED_TRACE(fmt::format("{} stage {}", schedule, stage));
      const std::string strategy = on("pipeline_threads", fmt::format("schedule: {}, micro_batches: 4", schedule));
      const auto message = [&](const char* what) {
        return message_of({.module = {.what = what, .stage = stage}, .strategy = strategy, .devices = 4});
      };
      EXPECT_THAT(message("forward"), HasSubstr("forward fails"));
      EXPECT_THAT(message("backward"), HasSubstr("backward fails"));
      EXPECT_THAT(message("step"), HasSubstr("the step fails"));
    }
}

TEST(PipelineFailures, WhatAForkedStageThrowsEndsAllOfThemWithItsMessage) {
  for (const char* what : {"forward", "backward"})
    for (const int64_t stage : {0, 2}) {
      const std::string message =
          message_of({.module = {.what = what, .stage = stage}, .strategy = on("pipeline_spawn"), .devices = 4});
      EXPECT_THAT(message, AllOf(HasSubstr(fmt::format("{} fails", what)), HasSubstr(fmt::format("rank {}", stage))));
    }
}

TEST(PipelineFailures, AKilledRankIsNamedAndNoCheckpointIsLost) {
  for (const int64_t stage : {1, 3}) {
    const std::string root = fresh_folder("pipeline_killed");
    Case tested{
        .module = {.what = "killed", .stage = stage, .batch = 6},
        .strategy = on("pipeline_spawn"),
        .devices = 4,
        .change = [&](TrainerOptions& options) {
          options.enable_checkpointing = true;
          options.default_root_dir = root;
          options.callbacks = {make<ModelCheckpoint>({.save_last = true, .every_n_train_steps = 5, .dirpath = root})};
        }};
    EXPECT_THAT(message_of(tested), HasSubstr(fmt::format("rank {}", stage)));
    tested.module.what = "";
    tested.change = {};
    const Ran whole = run(tested);
    EXPECT_TRUE(identical(run(tested, root + "/last").weights, whole.weights));
  }
}

TEST(PipelineFailures, OtherShapesForTheSameInputNameTheElements) {
  EXPECT_THAT(
      message_of({.module = {.what = "shape", .stage = 1}, .strategy = on("pipeline_threads"), .devices = 4}),
      AllOf(HasSubstr("the elements 2 to 3 of the sequential 'net' gave [2, 5] Float"), HasSubstr("[2, 4] Float")));
}

TEST(PipelineFailures, TouchingAnotherStagesParameterNamesItAndTheStage) {
  EXPECT_THAT(
      message_of({.module = {.what = "touches"}, .strategy = on("pipeline_threads"), .devices = 4}),
      AllOf(HasSubstr("the parameter 'net.0.weight' is on the rank of stage 0; this is stage 1"), HasSubstr("hint")));
}

TEST(PipelineFailures, RefusesWhatItCannotDo) {
  const auto message = [](const std::string& what, const std::function<void(TrainerOptions&)>& change = {}) {
    return message_of({.module = {.what = what}, .strategy = on("pipeline_threads"), .devices = 4, .change = change});
  };
  EXPECT_THAT(message("lbfgs"), AllOf(HasSubstr("pipeline_threads"), HasSubstr("LBFGS")));
  EXPECT_THAT(message("manual"), AllOf(HasSubstr("pipeline_threads"), HasSubstr("manual")));
  EXPECT_THAT(message("", [](TrainerOptions& options) { options.sync_batchnorm = true; }),
              AllOf(HasSubstr("trainer.sync_batchnorm"), HasSubstr("pipeline")));
  EXPECT_THAT(message("", [](TrainerOptions& options) { options.callbacks = {make<BatchSizeFinder>()}; }),
              AllOf(HasSubstr("batch_size_finder"), HasSubstr("pipeline_threads")));
  EXPECT_THAT(message_of({.strategy = "pipeline_threads", .devices = 16}), HasSubstr("8 units"));
}

TEST(PipelineFailures, CudaGraphsAreNotRecordedAndWhyIsSaid) {
  std::mutex mutex;
  std::string lines;
  log::set_sink([&](const std::string& line) {
    const std::lock_guard lock(mutex);
    lines += line + "\n";
  });
  const Ran ran = run({.strategy = on("pipeline_threads"), .devices = 4, .change = [](TrainerOptions& options) {
                         options.graph = true;
                       }});
  log::set_sink(nullptr);
  EXPECT_EQ(ran.steps, 10);
  EXPECT_THAT(lines, AllOf(HasSubstr("[graph] steps are not recorded"), HasSubstr("pipeline_threads")));
}

TEST(PipelineBatches, SmallBatchesAreFewerMicroBatches) {
  for (const char* schedule : {"gpipe", "1f1b", "zero_bubble"}) {
    SCOPED_TRACE(schedule);
    const std::string options = fmt::format("schedule: {}, micro_batches: 4", schedule);
    expect_as_on_one_device({.examples = 5, .global_batch = 1}, options, 4);
    expect_as_on_one_device({.examples = 9, .global_batch = 3}, options, 4);
  }
}

/// Batches of eight sequences, [8, length, 4], of another length each.
class Sequences : public data::IterableDataset {
 public:
  std::unique_ptr<data::ExampleStream> stream(const data::StreamContext&) const override {
    class Stream : public data::ExampleStream {
     public:
      std::optional<Batch> next() override {
        if (next_ == 40) return std::nullopt;
        const int64_t length = 2 + (next_ / 8) % 3;
        const at::Tensor x = at::arange(length * 4, at::kFloat).add(static_cast<double>(next_)).sin();
        ++next_;
        return Batch{{"x", x.reshape({length, 4})}, {"y", x.sum().reshape({1})}};
      }

     private:
      int64_t next_ = 0;
    };
    return std::make_unique<Stream>();
  }
};

TEST(PipelineBatches, SequencesOfOtherLengthsAreTrainedAsOnOneDevice) {
  const DataLoader sequences(std::make_shared<Sequences>(), {.global_batch_size = 8});
  for (const char* options : {"micro_batches: 4", "schedule: zero_bubble, micro_batches: 3"})
    expect_as_on_one_device({.data = sequences}, options, 4);
}

TEST(PipelineBatches, APipelineWithoutDataGoesOnUntilNobodyHasAny) {
  const DataLoader uneven(std::make_shared<testing::TinyStream>(40, /*end_of_reader_1=*/20), {.batch_size = 4});
  const Ran expected = run({.strategy = "ddp_threads", .devices = 2, .data = uneven});
  EXPECT_EQ(expected.steps, 10);
  for (const char* strategy : {"{name: pipeline_threads, data_parallel: 2, micro_batches: 2}",
                               "{name: pipeline_threads, data_parallel: 2, micro_batches: 3, schedule: gpipe}"})
    for (const int devices : {2, 4}) {
      SCOPED_TRACE(fmt::format("{} on {}", strategy, devices));
      const Ran ran = run({.strategy = strategy, .devices = devices, .data = uneven});
      EXPECT_EQ(ran.steps, expected.steps);
      for (size_t i = 0; i < expected.weights.size(); ++i)
        EXPECT_TRUE(ran.weights[i].allclose(expected.weights[i], 1e-4, 1e-5)) << "tensor " << i;
    }
}

TEST(PipelineBatches, ABatchWithoutLossCountsAsZero) {
  for (const char* what : {"skips", "skips in the last stage"}) {
    SCOPED_TRACE(what);
    for (const int64_t accumulate : {1, 2}) {
      const Ran one = run({.module = {.what = "skips"}, .accumulate = accumulate});
      const Ran several =
          run({.module = {.what = what}, .strategy = on("pipeline_threads"), .devices = 4, .accumulate = accumulate});
      for (size_t i = 0; i < one.weights.size(); ++i)
        EXPECT_TRUE(several.weights[i].allclose(one.weights[i], 1e-4, 1e-5)) << accumulate << ", tensor " << i;
    }
  }
}

TEST(PipelineBatches, APipelineThatSkipsABatchAloneCountsAsZero) {
  const FragileOptions skips{.what = "skips in the last stage"};
  const Ran expected = run({.module = skips, .strategy = "ddp_threads", .devices = 2});
  const Ran ran =
      run({.module = skips, .strategy = "{name: pipeline_threads, data_parallel: 2, micro_batches: 2}", .devices = 4});
  for (size_t i = 0; i < expected.weights.size(); ++i)
    EXPECT_TRUE(ran.weights[i].allclose(expected.weights[i], 1e-4, 1e-5)) << "tensor " << i;
}

TEST(PipelineBatches, WeightsAreAveragedStochasticallyWithoutRunningStatistics) {
  expect_as_on_one_device({.change =
                               [](TrainerOptions& options) {
                                 options.callbacks.emplace_back(Config::parse(
                                     "{stochastic_weight_averaging: {swa_lrs: 0.02, swa_epoch_start: 1}}", {}));
                               }},
                          "micro_batches: 4", 4);
}

TEST(PipelineEnd, CtrlCEndsAfterTheStepOnAllRanksAndTheRunGoesOn) {
  const std::string root = fresh_folder("pipeline_interrupted");
  for (const int64_t rank : {0, 3}) {
    // So many batches that they last for the better part of a minute from the signal on.
    Case tested{.module = {.momentum = 0.9}, .strategy = on("pipeline_threads"), .devices = 4, .examples = 800};
    const Ran whole = run(tested);
    tested.change = [&](TrainerOptions& options) {
      options.callbacks = {make<LambdaCallback>(
          {.on_train_end = [&](Trainer& trainer,
                               Module&) { trainer.save_checkpoint(fmt::format("{}/{}", root, rank)); },
           .on_train_batch_start =
               [&](Trainer& trainer, Module&, const Batch&, int64_t batch) {
                 if (trainer.current_epoch() != 1 || trainer.global_rank() != rank) return;
                 if (batch == 2) kill(getpid(), SIGINT);
                 if (batch > 2) std::this_thread::sleep_for(std::chrono::milliseconds(500));
               }})};
    };
    const Ran part = run(tested);
    EXPECT_TRUE(part.interrupted);
    EXPECT_LT(part.steps, 200);
    EXPECT_GE(part.steps, 102);
    tested.change = {};
    EXPECT_TRUE(identical(run(tested, fmt::format("{}/{}", root, rank)).weights, whole.weights));
  }
}

// What is known of other ranks is up to a few seconds old.
TEST(PipelineStall, AStallSaysWhichRankIsAtWork) {
  std::mutex mutex;
  std::string lines;
  log::set_sink([&](const std::string& line) {
    const std::lock_guard lock(mutex);
    lines += line + "\n";
  });
  const auto is_told = [&] {
    const std::lock_guard lock(mutex);
    return ::testing::Matches(::testing::ContainsRegex("rank 0 waits in (.*\n)* +rank 2: in "))(lines);
  };
  run({.strategy = on("pipeline_threads", "micro_batches: 4, stall_report: 6"),
       .devices = 4,
       .change = [&](TrainerOptions& options) {
         options.callbacks = {
             make<LambdaCallback>({.on_before_zero_grad = [&](Trainer& trainer, Module&, OptimizerHandle&) {
               if (trainer.global_rank() == 2 && trainer.global_step() == 2) testing::eventually(is_told);
             }})};
       }});
  log::set_sink(nullptr);
  EXPECT_TRUE(is_told()) << lines;
}

}  // namespace
}  // namespace levin
