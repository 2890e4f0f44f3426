#include <levin/callbacks/nan_monitor.h>

#include "../support/tape_recorder.h"
#include "strategy_training.h"

#include <levin/core/base/log.h>
#include <levin/core/nn/named_units.h>
#include <levin/strategies/single_device.h>

#include <gmock/gmock.h>

#include <atomic>
#include <limits>
#include <mutex>

namespace levin {
namespace {

using ::testing::AllOf;
using testing::BodyAndHead;
using testing::Devices;
using ::testing::HasSubstr;
using testing::identical;
using ::testing::Not;
using testing::Outcome;
using testing::Plan;
using testing::refusal_of;
using testing::train;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

using Fault = std::function<void(Trainer&, BodyAndHead&)>;

/// In the batch of a step, counted from 1, before its forward.
LambdaCallbackOptions before_step(int64_t step, const Fault& fault) {
  return {.on_train_batch_start = [=](Trainer& trainer, Module& module, const Batch&, int64_t) {
    if (trainer.global_step() + 1 == step) fault(trainer, dynamic_cast<BodyAndHead&>(module));
  }};
}

LambdaCallbackOptions after_backward(int64_t step, const Fault& fault) {
  return {.on_after_backward = [=](Trainer& trainer, Module& module) {
    if (trainer.global_step() + 1 == step) fault(trainer, dynamic_cast<BodyAndHead&>(module));
  }};
}

void set_first(const at::Tensor& tensor, float value) {
  const at::NoGradGuard no_grad;
  tensor.detach().view(-1)[0].fill_(value);
}

/// 5 batches an epoch.
Plan monitored(LambdaCallbackOptions watch = {}, const std::string& options = "") {
  return {.callback = fmt::format("{{nan_monitor: {{{}}}}}", options), .epochs = 2, .watch = std::move(watch)};
}

std::string message_with(const Plan& plan, const Devices& devices = {}) {
  return refusal_of([&] { train(plan, devices); });
}

class NanMonitorRuns : public ::testing::TestWithParam<Devices> {};

TEST_P(NanMonitorRuns, ChangeNothingAndFindNothingInASoundRun) {
  const Outcome plain = train({.epochs = 2}, GetParam());
  const Outcome watched = train(monitored(), GetParam());
  EXPECT_TRUE(identical(watched.weights, plain.weights));
  EXPECT_TRUE(identical(watched.buffers, plain.buffers));
}

INSTANTIATE_TEST_SUITE_P(Every, NanMonitorRuns,
                         ::testing::Values(Devices{"single_device", 1}, Devices{"dp", 2}, Devices{"ddp_threads", 2},
                                           Devices{"{name: pipeline_threads, balance: [1, 1], micro_batches: 2}", 2}),
                         [](const auto& info) {
                           return info.param.strategy[0] == '{' ? std::string("pipeline")
                                                                : testing::name_of_devices(info);
                         });

class NanMonitorOfGradients : public ::testing::TestWithParam<Devices> {};

TEST_P(NanMonitorOfGradients, NamesTheOneWhereBackwardWentWrong) {
  const auto fault = [](Trainer&, BodyAndHead& module) {
    set_first(module.norm->weight.grad(), kInfinity);
    set_first(module.linear->bias.grad(), kNan);
  };
  EXPECT_THAT(message_with(monitored(after_backward(7, fault)), GetParam()),
              AllOf(HasSubstr("[nan_monitor] the gradient of 'body.1.weight' is the first value that is not finite: it "
                              "has infinite elements; step 7, epoch 1, batch 1"),
                    HasSubstr("; its own a batch earlier: 1.")));
}

INSTANTIATE_TEST_SUITE_P(Every, NanMonitorOfGradients, testing::kEveryStrategy, testing::name_of_devices);

TEST(NanMonitor, NamesTheShardOfAGradient) {
  Plan plan = monitored();
  plan.callback.clear();
  plan.change = [](TrainerOptions& options) {
    options.callbacks.emplace_back(
        make<LambdaCallback>({.on_before_optimizer_step = [](Trainer& trainer, Module&, OptimizerHandle& optimizer) {
          if (trainer.global_rank() == 0 || trainer.global_step() != 2) return;
          for (const auto& parameter : optimizer.parameters())
            if (parameter.grad().defined() && parameter.grad().numel() > 0) set_first(parameter.grad(), kNan);
        }}));
    options.callbacks.emplace_back(make<NanMonitor>());
  };
  EXPECT_THAT(message_with(plan, {"sharded_threads", 2}),
              AllOf(HasSubstr("[nan_monitor] the gradient of '"), HasSubstr("step 3, epoch 0, batch 2, rank 1")));
}

TEST(NanMonitor, NamesTheInnermostUnitAndItsOutput) {
  const auto fault = [](Trainer&, BodyAndHead& module) { set_first(module.norm->bias, kNan); };
  const std::string message = message_with(monitored(before_step(8, fault)));
  EXPECT_THAT(message,
              HasSubstr("output 0 of the unit 'body.1' (BatchNorm1d) is the first value that is not finite: it "
                        "has NaN elements; step 8, epoch 1, batch 2"));
  EXPECT_THAT(message, HasSubstr("the largest magnitudes before it: output 0 of the unit 'body.0' (Linear): "));
  EXPECT_THAT(message, HasSubstr("its own a batch earlier: 2")) << "a normalised value";
}

TEST(NanMonitor, NamesTheRank) {
  const auto fault = [](Trainer& trainer, BodyAndHead& module) {
    if (trainer.global_rank() == 1) set_first(module.linear->bias, kNan);
  };
  EXPECT_THAT(message_with(monitored(before_step(8, fault)), {"ddp_threads", 2}),
              HasSubstr("output 0 of the unit 'body.0' (Linear) is the first value that is not finite: it has NaN "
                        "elements; step 8, epoch 1, batch 2, rank 1"));
}

TEST(NanMonitor, NamesTheStageOfAPipeline) {
  const auto fault = [](Trainer& trainer, BodyAndHead& module) {
    if (trainer.global_rank() == 1) set_first(module.norm->bias, kNan);
  };
  EXPECT_THAT(message_with(monitored(before_step(3, fault)),
                           {"{name: pipeline_threads, balance: [1, 1], micro_batches: 2}", 2}),
              AllOf(HasSubstr("body.1"), HasSubstr("step 3, epoch 0, batch 2, rank 1")));
}

TEST(NanMonitor, NamesTheGradientOfAPipelineThatIsNearestToTheLoss) {
  const auto fault = [](Trainer& trainer, BodyAndHead& module) {
    if (trainer.global_rank() == 0)
      set_first(module.linear->weight.grad(), kNan);
    else
      set_first(module.norm->weight.grad(), kInfinity);
  };
  EXPECT_THAT(message_with(monitored(after_backward(3, fault)),
                           {"{name: pipeline_threads, balance: [1, 1], micro_batches: 2}", 2}),
              AllOf(HasSubstr("the gradient of 'body.1.weight' is the first value"), HasSubstr("batch 2, rank 1")));
}

/// Four linear layers in a row, and an optimizer with the biases in a group of their own.
class Chain : public Module {
 public:
  Chain() {
    using torch::nn::Linear;
    body = register_module("body", Sequential(Linear(4, 4), Linear(4, 4), Linear(4, 4), Linear(4, 1)));
  }
  StepOutput training_step(const Batch& batch, int64_t) override {
    return torch::nn::functional::mse_loss(after(body(batch["x"])), batch["y"]);
  }
  OptimizerConfigs configure_optimizers() override {
    std::vector<at::Tensor> weights;
    std::vector<at::Tensor> biases;
    for (const auto& item : named_parameters())
      (item.key().ends_with("bias") ? biases : weights).push_back(item.value());
    const optim::SGDOptions options{.lr = 0.01};
    return std::make_shared<optim::SGD>(optim::SGD::Groups{{weights, options}, {biases, options}});
  }
  at::Tensor parameter(const std::string& name) { return named_parameters()[name]; }

  Sequential body{nullptr};

 protected:
  virtual at::Tensor after(const at::Tensor& x) { return x; }
};

std::string message_of_chain(const std::shared_ptr<Module>& module, const std::string& strategy,
                             LambdaCallbackOptions fault) {
  TrainerOptions options = testing::quiet(1);
  options.strategy = Spec<Strategy>(Config::parse(strategy, {.source = "test"}));
  options.devices = strategy == "single_device" ? 1 : 2;
  options.log_every_n_steps = 1;
  options.default_root_dir = testing::fresh_folder("nan_monitor");
  options.callbacks = {Spec<Callback>(make<LambdaCallback>(std::move(fault))), Spec<Callback>(make<NanMonitor>())};
  return refusal_of([&] { Trainer(options).fit(module, testing::tiny_loader()); });
}

TEST(NanMonitor, GoesByTheModulesOrderAndNotByTheOptimizers) {
  EXPECT_THAT(message_of_chain(make<Chain>(), "single_device",
                               {.on_after_backward =
                                    [](Trainer&, Module& module) {
                                      auto& chain = dynamic_cast<Chain&>(module);
                                      set_first(chain.parameter("body.0.bias").grad(), kNan);
                                      set_first(chain.parameter("body.3.weight").grad(), kNan);
                                    }}),
              HasSubstr("the gradient of 'body.3.weight' is the first value"));
}

TEST(NanMonitor, NamesTheFirstOfSeveralChunksOfARank) {
  // What comes out of rank 1's first chunk goes through rank 0's second one.
  EXPECT_THAT(
      message_of_chain(make<Chain>(),
                       "{name: pipeline_threads, schedule: interleaved, balance: [1, 1, 1, 1], micro_batches: 2}",
                       {.on_train_batch_start =
                            [](Trainer& trainer, Module& module, const Batch&, int64_t) {
                              if (trainer.global_rank() == 0 || trainer.global_step() != 2) return;
                              set_first(dynamic_cast<Chain&>(module).parameter("body.1.bias"), kNan);
                            }}),
      AllOf(HasSubstr("output 0 of the unit 'body.1' (Linear) is the first value"),
            HasSubstr("step 3, epoch 0, batch 2, rank 1")));
}

class NormalizeImpl : public torch::nn::Module {
 public:
  at::Tensor forward(at::Tensor x) { return x / x.norm(); }
};
LEVIN_UNIT(Normalize);

/// What is outside of the chain gets zeros on a pipeline's first stage.
class NormalizedChain final : public Chain {
 public:
  NormalizedChain() { normalize_ = register_module("normalize", Normalize()); }

 protected:
  at::Tensor after(const at::Tensor& x) override { return normalize_(x); }

 private:
  Normalize normalize_{nullptr};
};

TEST(NanMonitor, LooksOutsideOfAPipelinesStagesOnlyWhereTheOutputsAre) {
  const std::string pipeline = "{name: pipeline_threads, balance: [2, 2], micro_batches: 2}";
  EXPECT_EQ(message_of_chain(make<NormalizedChain>(), pipeline, {}), "no error");
  const auto fault = [](Trainer& trainer, Module& module, const Batch&, int64_t) {
    const at::NoGradGuard no_grad;
    if (trainer.global_rank() == 0 || trainer.global_step() != 2) return;
    dynamic_cast<Chain&>(module).parameter("body.3.weight").zero_();
    dynamic_cast<Chain&>(module).parameter("body.3.bias").zero_();
  };
  EXPECT_THAT(message_of_chain(make<NormalizedChain>(), pipeline, {.on_train_batch_start = fault}),
              AllOf(HasSubstr("output 0 of the unit 'normalize' (Normalize) is the first value"),
                    HasSubstr("step 3, epoch 0, batch 2, rank 1")));
}

TEST(NanMonitor, SeesTheUnitsOfReplicas) {
  const auto fault = [](Trainer&, BodyAndHead& module) { set_first(module.linear->bias, kInfinity); };
  EXPECT_THAT(message_with(monitored(before_step(2, fault)), {"dp", 2}),
              AllOf(HasSubstr("Linear"), HasSubstr("infinite elements; step 2, epoch 0, batch 1")));
}

TEST(NanMonitor, NamesAFieldOfTheBatch) {
  Batch fields{{"x", at::ones({8, 4})}, {"y", at::ones({8, 1})}};
  fields["y"][5][0] = kInfinity;
  TrainerOptions options = testing::quiet(1);
  options.default_root_dir = testing::fresh_folder("nan_monitor");
  options.callbacks.emplace_back(make<NanMonitor>());
  Trainer trainer(options);
  const auto module = make<BodyAndHead>(testing::BodyAndHeadOptions{});
  EXPECT_THAT(refusal_of([&] {
                trainer.fit(module, DataLoader(std::make_shared<data::TensorDataset>(fields), {.batch_size = 4}));
              }),
              AllOf(HasSubstr("the field 'y' of the batch"), HasSubstr("step 2, epoch 0, batch 1")));
}

TEST(NanMonitor, NamesTheLossOfAModelWithoutUnits) {
  const auto fault = [](Trainer&, BodyAndHead& module) { set_first(module.head->bias, kNan); };
  EXPECT_THAT(message_with(monitored(before_step(4, fault), "units: false")),
              HasSubstr("the loss is the first value that is not finite: it has NaN elements; step 4"));
}

TEST(NanMonitor, NamesAParameter) {
  Plan plan = monitored();
  plan.callback.clear();
  plan.change = [](TrainerOptions& options) {
    // Before the monitor looks at the parameters.
    options.callbacks.emplace_back(make<LambdaCallback>(
        {.on_train_batch_end = [](Trainer& trainer, Module& module, const StepOutput&, const Batch&, int64_t) {
          if (trainer.global_step() == 6) set_first(dynamic_cast<BodyAndHead&>(module).head->weight, kInfinity);
        }}));
    options.callbacks.emplace_back(make<NanMonitor>());
  };
  EXPECT_THAT(message_with(plan), HasSubstr("the parameter 'head.weight' is the first value that is not finite: it has "
                                            "infinite elements; step 6, epoch 1, batch 0"));
}

TEST(NanMonitor, ReadsAtBoundariesAndNamesTheStepItself) {
  int64_t steps = 0;
  const auto fault = [](Trainer&, BodyAndHead& module) { set_first(module.linear->weight, kNan); };
  Plan plan = monitored(before_step(2, fault), "every_n_steps: 4");
  plan.watch.on_after_backward = [&](Trainer& trainer, Module&) { steps = trainer.global_step() + 1; };
  EXPECT_THAT(message_with(plan), HasSubstr("step 2, epoch 0, batch 1"));
  EXPECT_EQ(steps, 4);
}

TEST(NanMonitor, ReadsWhatIsLeftWhenTrainingEnds) {
  const auto fault = [](Trainer&, BodyAndHead& module) { set_first(module.linear->weight, kNan); };
  EXPECT_THAT(message_with(monitored(before_step(9, fault), "every_n_steps: 100")),
              HasSubstr("step 9, epoch 1, batch 3"));
}

TEST(NanMonitor, ReadsBeforeTooMuchIsKept) {
  const auto fault = [](Trainer&, BodyAndHead& module) { set_first(module.linear->weight, kNan); };
  for (const Devices& devices : {Devices{}, Devices{"ddp_threads", 2}}) {
    std::atomic<int64_t> steps{0};
    Plan plan = monitored(before_step(2, fault), "every_n_steps: 100000");
    plan.epochs = 60;
    plan.watch.on_after_backward = [&](Trainer& trainer, Module&) { steps = trainer.global_step() + 1; };
    EXPECT_THAT(message_with(plan, devices), HasSubstr("step 2, epoch 0, batch 1")) << devices;
    EXPECT_EQ(steps, 256) << devices;
  }
}

/// Its batches are 0, 1, 2, ... and so are its losses; nothing is optimized.
class Unoptimized : public Module {
 public:
  Unoptimized() { weight_ = register_parameter("weight", at::zeros({1})); }
  StepOutput training_step(const Batch& batch, int64_t) override { return batch["x"].sum() + 0 * weight_.sum(); }
  OptimizerConfigs configure_optimizers() override { return {}; }

 private:
  at::Tensor weight_;
};

TEST(NanMonitor, RemembersTheBatchBeforeWhatItReadsNow) {
  at::Tensor x = at::arange(300, at::kFloat).unsqueeze(1);
  x[256] = kNan;
  TrainerOptions options = testing::quiet(1);
  options.default_root_dir = testing::fresh_folder("nan_monitor");
  options.callbacks.emplace_back(make<NanMonitor>());
  EXPECT_THAT(refusal_of([&] {
                Trainer(options).fit(
                    make<Unoptimized>(),
                    DataLoader(std::make_shared<data::TensorDataset>(Batch{{"x", x}}), {.batch_size = 1}));
              }),
              AllOf(HasSubstr("the field 'x' of the batch is the first"), HasSubstr("batch 256"),
                    HasSubstr("; its own a batch earlier: 255;")));
}

TEST(NanMonitor, CountsTheBatchesOfAnAccumulatedStep) {
  const auto fault = [](Trainer&, BodyAndHead& module) { set_first(module.linear->weight, kNan); };
  Plan plan = monitored();
  plan.watch.on_train_batch_start = [=](Trainer& trainer, Module& module, const Batch&, int64_t batch_idx) {
    if (trainer.current_epoch() == 1 && batch_idx == 3) fault(trainer, dynamic_cast<BodyAndHead&>(module));
  };
  plan.change = [](TrainerOptions& options) { options.accumulate_grad_batches = optim::AccumulationSchedule(2); };
  EXPECT_THAT(message_with(plan), HasSubstr("step 5, epoch 1, batch 3"));
}

TEST(NanMonitor, LetsTheScalerLeaveOverflowsOut) {
  const auto fault = [](Trainer&, BodyAndHead& module) { set_first(module.head->weight.grad(), kInfinity); };
  Plan plan = monitored(after_backward(3, fault));
  plan.change = [](TrainerOptions& options) { options.precision = "16-mixed"; };
  EXPECT_EQ(message_with(plan), "no error");
}

TEST(NanMonitor, WarnsOnce) {
  std::mutex mutex;
  std::string text;
  log::set_sink([&](const std::string& line) {
    const std::lock_guard lock(mutex);
    text += line + "\n";
  });
  const auto fault = [](Trainer&, BodyAndHead& module) { set_first(module.linear->weight, kNan); };
  const Outcome run = train(monitored(before_step(2, fault), "action: warn"), {"ddp_threads", 2});
  log::set_sink(nullptr);
  EXPECT_EQ(run.steps, 10);
  EXPECT_THAT(text, HasSubstr("[nan_monitor] output 0 of the unit 'body.0'"));
  EXPECT_EQ(text.rfind("[nan_monitor]"), text.find("[nan_monitor]"));
}

/// One device, with a recorder that the CPU can do.
class TapedDevice final : public SingleDevice {
 public:
  GraphSupport graph_support() override {
    return {.recorder = std::make_unique<testing::TapeRecorder>(), .why_not = ""};
  }
};

TEST(NanMonitor, LooksAtReplayedSteps) {
  const auto fault = [](Trainer&, BodyAndHead& module) { set_first(module.norm->bias, kNan); };
  Plan plan = monitored(before_step(8, fault));
  plan.change = [](TrainerOptions& options) {
    options.strategy = Spec<Strategy>(std::make_shared<TapedDevice>());
    options.graph = true;
  };
  const int64_t before = testing::TapeRecorder::replayed();
  EXPECT_THAT(message_with(plan),
              HasSubstr("output 0 of the unit 'body.1' (BatchNorm1d) is the first value that is not "
                        "finite: it has NaN elements; step 8, epoch 1, batch 2"));
  EXPECT_GT(testing::TapeRecorder::replayed(), before);
  const Outcome plain = train({.epochs = 2}, {});
  plan.watch = {};
  EXPECT_TRUE(identical(train(plan, {}).weights, plain.weights));
}

TEST(NanMonitor, LooksNoFurtherThanTraining) {
  Plan plan = monitored();
  plan.watch.on_validation_start = [](Trainer&, Module& module) {
    set_first(dynamic_cast<BodyAndHead&>(module).norm->running_mean, kNan);
  };
  EXPECT_EQ(message_with(plan), "no error") << "BatchNorm uses it in evaluation alone";
}

TEST(NanMonitor, LeavesUnitsAsTheyWere) {
  const auto module = make<BodyAndHead>(testing::BodyAndHeadOptions{});
  for (const bool fails : {false, true}) {
    TrainerOptions options = testing::quiet(1);
    options.callbacks.emplace_back(make<NanMonitor>());
    if (fails)
      options.callbacks.emplace_back(make<LambdaCallback>(
          {.on_after_backward = [](Trainer&, Module&) { throw Error("test", "training fails"); }}));
    const std::string message = refusal_of([&] { Trainer(options).fit(module, testing::tiny_loader()); });
    EXPECT_EQ(message == "no error", !fails);
    for (const NamedUnit& named : named_units(*module)) EXPECT_TRUE(named.unit->hooks().empty()) << named.path;
  }
}

TEST(NanMonitor, RefusesBadInput) {
  EXPECT_THAT(message_with(monitored({}, "every_n_steps: 0")), HasSubstr("every_n_steps must be at least 1; got 0"));
  EXPECT_THAT(message_with(monitored({}, "action: shout")), HasSubstr("nan_monitor.action must be one of stop, warn"));
  EXPECT_THAT(message_with(monitored({}, "every: 3")), HasSubstr("every_n_steps"));
  EXPECT_THAT(refusal_of([] { NanMonitor({.action = "shout"}); }), HasSubstr("one of stop, warn"));
}

}  // namespace
}  // namespace levin
