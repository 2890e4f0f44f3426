#include <levin/callbacks/gradient_norm_monitor.h>
#include <levin/callbacks/lambda_callback.h>
#include <levin/callbacks/nan_monitor.h>
#include <levin/callbacks/weight_averaging.h>
#include <levin/core/base/seed.h>
#include <levin/core/optim/adam.h>
#include <levin/core/optim/scheduler.h>
#include <levin/core/optim/sgd.h>

#include <gmock/gmock.h>
#include <tests/support/fit_outcome.h>
#include <tests/support/tiny.h>
#include <torch/nn/modules.h>
#include <torch/optim/sgd.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

/// Recorded steps of manual optimization: a fit with `graph` is that without, to the bit.
namespace levin {
namespace {

using testing::expect_same_outcome;
using testing::fit_into;
using testing::FitOutcome;
using ::testing::HasSubstr;
using testing::identical;
using ::testing::Not;
using testing::quiet;

/// A generator and a critic; what a step does with them is the test's.
struct Gan final : Module {
  Gan() {
    automatic_optimization = false;
    generator = register_module("generator", torch::nn::Sequential(torch::nn::Linear(4, 8), torch::nn::BatchNorm1d(8),
                                                                   torch::nn::ReLU(), torch::nn::Linear(8, 16)));
    critic = register_module("critic", torch::nn::Sequential(torch::nn::Linear(16, 8), torch::nn::ReLU(),
                                                             torch::nn::Dropout(0.3), torch::nn::Linear(8, 1)));
  }
  at::Tensor make_images(const at::Tensor& like) { return generator->forward(at::randn({like.size(0), 4})); }
  at::Tensor critic_loss(const at::Tensor& real, const at::Tensor& made) {
    return at::softplus(critic->forward(made.detach())).mean() + at::softplus(-critic->forward(real)).mean();
  }
  at::Tensor generator_loss(const at::Tensor& made) { return at::softplus(-critic->forward(made)).mean(); }

  StepOutput training_step(const Batch& batch, int64_t batch_idx) override {
    ++steps;
    return step(*this, batch["x"], batch_idx);
  }
  StepOutput validation_step(const Batch& batch, int64_t) override {
    log("val_loss", critic_loss(batch["x"], make_images(batch["x"])));
    return {};
  }
  OptimizerConfigs configure_optimizers() override {
    if (configure) return configure(*this);
    return {OptimizerConfig{
                .optimizer = std::make_shared<optim::Adam>(generator->parameters(), optim::AdamOptions{.lr = 0.02}),
                .scheduler = {.name = "exponential"}},
            OptimizerConfig{.optimizer = std::make_shared<optim::SGD>(critic->parameters(),
                                                                      optim::SGDOptions{.lr = 0.05, .momentum = 0.9})}};
  }
  void on_train_epoch_end() override {
    for (auto* each : schedulers()) each->step();
  }

  torch::nn::Sequential generator{nullptr};
  torch::nn::Sequential critic{nullptr};
  int64_t steps = 0;
  std::function<StepOutput(Gan&, const at::Tensor& real, int64_t batch_idx)> step;
  std::function<OptimizerConfigs(Gan&)> configure;
};

using GanStep = StepOutput (*)(Gan&, const at::Tensor& real, int64_t batch_idx);

/// The critic first. The generator's backward then adds to the critic's gradients, which nobody takes away.
StepOutput critic_first(Gan& gan, const at::Tensor& real, int64_t) {
  const at::Tensor made = gan.make_images(real);
  gan.optimizer(1).zero_grad();
  const at::Tensor loss = gan.critic_loss(real, made);
  gan.manual_backward(loss);
  gan.optimizer(1).step();
  gan.optimizer(0).zero_grad();
  const at::Tensor of_generator = gan.generator_loss(made);
  gan.manual_backward(of_generator);
  gan.optimizer(0).step();
  gan.log("critic", loss, {.on_step = true, .on_epoch = true});
  gan.log("generator", of_generator, {.on_step = true, .on_epoch = true});
  return StepOutput({.loss = loss, .outputs = {{"made", made}, {"real", real}}});
}

StepOutput toggled(Gan& gan, const at::Tensor& real, int64_t) {
  at::Tensor made;
  {
    auto& optimizer = gan.optimizer(0);
    const auto toggle = gan.toggle_optimizer(optimizer);
    made = gan.make_images(real);
    const at::Tensor loss = gan.generator_loss(made);
    gan.log("generator", loss);
    optimizer.zero_grad();
    gan.manual_backward(loss);
    gan.clip_gradients(optimizer, 0.05);
    optimizer.step();
  }
  auto& optimizer = gan.optimizer(1);
  const auto toggle = gan.toggle_optimizer(optimizer);
  const at::Tensor loss = gan.critic_loss(real, made);
  optimizer.zero_grad();
  gan.manual_backward(loss);
  gan.log("critic", loss);
  gan.clip_gradients(optimizer, 0.01, ClipAlgorithm::kValue);
  optimizer.step();
  return {};
}

/// The generator's backward adds to those gradients of the critic that the last step has left.
StepOutput generator_first(Gan& gan, const at::Tensor& real, int64_t) {
  const at::Tensor made = gan.make_images(real);
  gan.optimizer(0).zero_grad();
  gan.manual_backward(gan.generator_loss(made));
  gan.log("left", gan.critic->parameters().front().grad().abs().sum());
  gan.optimizer(0).step();
  gan.optimizer(1).zero_grad();
  gan.manual_backward(gan.critic_loss(real, made));
  gan.optimizer(1).step();
  return {};
}

StepOutput zeroed_in_place(Gan& gan, const at::Tensor& real, int64_t) {
  for (auto* optimizer : gan.optimizers()) optimizer->zero_grad(/*set_to_none=*/false);
  const at::Tensor made = gan.make_images(real);
  gan.manual_backward(gan.critic_loss(real, made));
  gan.manual_backward(gan.generator_loss(made));
  for (auto* optimizer : gan.optimizers()) optimizer->step();
  return {};
}

/// Two backward passes through one graph, and no gradients when the step begins.
StepOutput zeroed_after_the_step(Gan& gan, const at::Tensor& real, int64_t) {
  const at::Tensor made = gan.make_images(real);
  const at::Tensor loss = gan.generator_loss(made);
  gan.manual_backward(loss, {.retain_graph = true});
  gan.manual_backward(loss.square() * 0.5);
  gan.manual_backward(gan.critic_loss(real, made));
  for (auto* optimizer : gan.optimizers()) {
    optimizer->step();
    optimizer->zero_grad();
  }
  return loss;
}

/// Each optimizer steps twice; the second steps use the weights of the first.
StepOutput two_rounds(Gan& gan, const at::Tensor& real, int64_t batch_idx) {
  critic_first(gan, real, batch_idx);
  return toggled(gan, real, batch_idx);
}

constexpr std::pair<const char*, GanStep> kGanSteps[] = {{"critic first", critic_first},
                                                         {"toggled", toggled},
                                                         {"generator first", generator_first},
                                                         {"zeroed in place", zeroed_in_place},
                                                         {"zeroed after the step", zeroed_after_the_step},
                                                         {"two rounds", two_rounds}};

OptimizerConfigs two_adams(Gan& gan) {
  const auto adam = [](const torch::nn::Sequential& net) {
    return OptimizerConfig{
        .optimizer = std::make_shared<optim::Adam>(net->parameters(), optim::AdamOptions{.lr = 0.02}),
        .scheduler = {.name = "step", .options = Config::parse("{step_size: 100}", {})}};
  };
  return {adam(gan.generator), adam(gan.critic)};
}

struct GanSetting {
  std::function<StepOutput(Gan&, const at::Tensor&, int64_t)> step = critic_first;
  std::function<void(TrainerOptions&)> options = [](TrainerOptions&) {};
  std::function<void(Gan&)> module = [](Gan&) {};
  int64_t examples = 48;
  int64_t epochs = 3;
  bool holds = true;  ///< a callback keeps gradients and outputs
  GraphMode graph = true;
};

DataLoader gan_batches(int64_t examples, bool shuffle = true) {
  const at::Tensor x = at::arange(examples * 16, at::kFloat).reshape({examples, 16}).mul(0.7).sin();
  return DataLoader(std::make_shared<data::TensorDataset>(Batch{{"x", x}}), {.batch_size = 8, .shuffle = shuffle});
}

/// Notes what hooks see of the module, and keeps some of it.
std::shared_ptr<Callback> gan_onlooker(FitOutcome& outcome, bool holds) {
  const auto look = [&outcome](Trainer& trainer, const Module& module) {
    outcome.seen.push_back(static_cast<double>(trainer.global_step()));
    for (const auto& parameter : module.parameters()) {
      outcome.seen.push_back(parameter.requires_grad() ? 1 : 0);
      const double sum = parameter.grad().defined() ? parameter.grad().abs().sum().item<double>() : -1;
      outcome.seen.push_back(std::isfinite(sum) ? sum : -2);
      outcome.seen.push_back(parameter.abs().sum().item<double>());
    }
    for (const auto* optimizer : module.optimizers())
      outcome.seen.push_back((optimizer->is_toggled() ? 1 : 0) + (optimizer->awaits_step() ? 2 : 0));
  };
  const auto may_hold = [holds](Trainer& trainer) { return holds && trainer.total_batches() % 4 == 1; };
  const auto hold = [=, &outcome](Trainer& trainer, const Module& module) {
    if (!may_hold(trainer)) return;
    for (const auto& parameter : module.parameters())
      if (parameter.grad().defined()) outcome.held.push_back(parameter.grad());
  };
  return make<LambdaCallback>(LambdaCallbackOptions{
      .on_train_batch_end =
          [=, &outcome](Trainer& trainer, Module& module, const StepOutput& output, const Batch&, int64_t) {
            look(trainer, module);
            if (output.has_loss()) outcome.seen.push_back(output.loss().item<double>());
            for (const auto& [name, tensor] : output.outputs().items()) {
              outcome.seen.push_back(tensor.sum().item<double>());
              if (may_hold(trainer)) outcome.held.push_back(tensor);
            }
            hold(trainer, module);
          },
      .on_before_backward =
          [=, &outcome](Trainer& trainer, Module& module, const at::Tensor& loss) {
            look(trainer, module);
            outcome.seen.push_back(loss.item<double>());
            EXPECT_TRUE(loss.requires_grad());
            hold(trainer, module);
          },
      .on_after_backward =
          [=](Trainer& trainer, Module& module) {
            look(trainer, module);
            hold(trainer, module);
          },
      .on_before_optimizer_step =
          [=, &outcome](Trainer& trainer, Module& module, OptimizerHandle& optimizer) {
            look(trainer, module);
            outcome.seen.push_back(static_cast<double>(optimizer.index()));
            module.log("of a hook", optimizer.learning_rate() + static_cast<double>(trainer.global_step()));
          }});
}

FitOutcome fit_gan(const GanSetting& setting, const GraphMode& graph) {
  seed_everything(11);
  FitOutcome outcome;
  auto module = std::make_shared<Gan>();
  module->step = setting.step;
  setting.module(*module);
  TrainerOptions options = quiet(setting.epochs);
  options.log_every_n_steps = 2;
  options.callbacks.push_back(gan_onlooker(outcome, setting.holds));
  setting.options(options);
  options.graph = graph;
  Trainer trainer(options);
  fit_into(outcome, trainer, module, gan_batches(setting.examples), gan_batches(16, false));
  outcome.training_steps = module->steps;
  return outcome;
}

/// Gives what the run with recorded steps said.
FitOutcome expect_same_gan(const GanSetting& setting) {
  const FitOutcome plain = fit_gan(setting, false);
  const FitOutcome replayed = fit_gan(setting, setting.graph);
  expect_same_outcome(plain, replayed);
  return replayed;
}

FitOutcome expect_gan_replayed(const GanSetting& setting) {
  FitOutcome outcome = expect_same_gan(setting);
  EXPECT_THAT(outcome.log, HasSubstr("[graph] recorded the step of batch "));
  EXPECT_THAT(outcome.log, Not(HasSubstr("not recorded")));
  return outcome;
}

TEST(ManualRecording, EveryOrderOfStepsTrainsToTheBit) {
  for (const auto& [name, step] : kGanSteps) {
    SCOPED_TRACE(name);
    expect_gan_replayed({.step = step});
  }
}

TEST(ManualRecording, RunsTrainingStepToRecordAndToCompareOnly) {
  // 18 batches: 3 ordinary ones, one recorded, 3 compared (of two epochs), one at the start of the third.
  const FitOutcome outcome = fit_gan({}, "required");
  EXPECT_EQ(outcome.training_steps, 3 + 1 + 3 + 1);
}

TEST(ManualRecording, EveryPrecision) {
  for (const char* precision : {"64-true", "bf16-true", "bf16-mixed"}) {
    for (const auto& [name, step] : kGanSteps) {
      SCOPED_TRACE(std::string(precision) + ", " + name);
      expect_gan_replayed({.step = step, .options = [&](TrainerOptions& options) { options.precision = precision; }});
    }
  }
}

TEST(ManualRecording, ScaledLossesThatOverflowAreSkippedAlike) {
  for (const auto& [name, step] : kGanSteps) {
    if (step == two_rounds) continue;  // gradients of an optimizer are unscaled once a batch
    SCOPED_TRACE(name);
    // Not SGD, whose first step is another than later ones: here it comes late.
    expect_gan_replayed({.step = step,
                         .options =
                             [](TrainerOptions& options) {
                               options.precision = Spec<Precision>(
                                   Config::parse("{name: 16-mixed, init_scale: 33554432, growth_interval: 2}", {}));
                             },
                         .module = [](Gan& gan) { gan.configure = two_adams; }});
  }
}

TEST(ManualRecording, EachShapeHasARecordingOfItsOwn) {
  const FitOutcome outcome = expect_gan_replayed({.examples = 44, .epochs = 9});
  EXPECT_THAT(outcome.log, HasSubstr("recorded the step of batch 23")) << "the fourth batch of 4 examples";
}

// ---- Hooks.

TEST(ManualRecording, AveragesAndMonitorsSeeWhatTheySeeOfOrdinarySteps) {
  for (const GanStep step : {critic_first, toggled}) {
    expect_gan_replayed({.step = step,
                         .options =
                             [](TrainerOptions& options) {
                               options.callbacks.push_back(make<WeightAveraging>({.decay = 0.8, .use_buffers = true}));
                               options.callbacks.push_back(make<GradientNormMonitor>({.per_parameter = true}));
                               options.callbacks.push_back(make<NanMonitor>({.every_n_steps = 1}));
                             },
                         .epochs = 5});
  }
}

TEST(ManualRecording, WhatHooksChangeCounts) {
  using Change = void (*)(Module&);
  const Change halve = [](Module& of) {
    const at::NoGradGuard no_grad;
    for (const auto& parameter : of.parameters())
      if (parameter.grad().defined()) parameter.mutable_grad().mul_(0.5);
  };
  const Change replace = [](Module& of) {
    for (const auto& parameter : of.parameters())
      if (parameter.grad().defined()) parameter.mutable_grad() = parameter.grad() * 0.5;
  };
  const Change change_weights = [](Module& of) {
    const at::NoGradGuard no_grad;
    for (auto& parameter : of.parameters()) parameter.mul_(0.99);
  };
  for (const Change change : {halve, replace, change_weights}) {
    for (const auto& [name, step] : kGanSteps) {
      // Autograd refuses weights that change between forward and backward.
      if (change == change_weights && step != toggled && step != zeroed_in_place) continue;
      SCOPED_TRACE(name);
      for (const bool after_backward : {false, true}) {
        if (change == change_weights && after_backward) continue;
        LambdaCallbackOptions hooks;
        if (after_backward)
          hooks.on_after_backward = [&](Trainer&, Module& of) { change(of); };
        else
          hooks.on_before_optimizer_step = [&](Trainer&, Module& of, OptimizerHandle&) { change(of); };
        expect_gan_replayed(
            {.step = step,
             .options = [&](TrainerOptions& options) { options.callbacks.push_back(make<LambdaCallback>(hooks)); },
             // What is put in a gradient's place is copied into it.
             .holds = change != replace});
      }
    }
  }
}

TEST(ManualRecording, ResultsThatAHookLetsGoOfAreFound) {
  const auto kept = std::make_shared<at::Tensor>();
  const auto step = [kept](Gan& gan, const at::Tensor& real, int64_t) {
    const at::Tensor made = gan.make_images(real);
    gan.optimizer(1).zero_grad();
    const at::Tensor loss = gan.critic_loss(real, made);
    *kept = loss.detach();
    gan.manual_backward(loss);
    gan.optimizer(1).step();
    gan.optimizer(0).zero_grad();
    gan.manual_backward(gan.generator_loss(made));
    gan.optimizer(0).step();
    return StepOutput();
  };
  const FitOutcome outcome =
      expect_same_gan({.step = step, .options = [kept](TrainerOptions& options) {
                         options.callbacks.push_back(make<LambdaCallback>(LambdaCallbackOptions{
                             .on_before_optimizer_step = [kept](Trainer&, Module& module, OptimizerHandle&) {
                               if (!kept->defined()) return;
                               const at::NoGradGuard no_grad;
                               for (auto& parameter : module.parameters())
                                 if (parameter.grad().defined()) parameter.mutable_grad().mul_(kept->sigmoid());
                               kept->reset();
                             }}));
                       }});
  EXPECT_THAT(outcome.log, HasSubstr("something keeps "));
}

TEST(ManualRecording, LearningRatesMayChangeInHooksAndBetweenSteps) {
  expect_gan_replayed({.options = [](TrainerOptions& options) {
    options.callbacks.push_back(make<LambdaCallback>(
        LambdaCallbackOptions{.on_before_optimizer_step = [](Trainer& trainer, Module&, OptimizerHandle& optimizer) {
          for (auto& group : optimizer.optimizer().param_groups())
            group.options().set_lr(0.01 / static_cast<double>(1 + trainer.global_step()));
        }}));
  }});
  expect_gan_replayed({.options = [](TrainerOptions& options) {
    options.callbacks.push_back(make<LambdaCallback>(
        LambdaCallbackOptions{.on_train_batch_end = [](Trainer&, Module& of, const StepOutput&, const Batch&, int64_t) {
          of.schedulers().front()->step();
        }}));
  }});
}

TEST(ManualRecording, AHookMayRunBackwardAndStepItself) {
  expect_same_gan({.options = [](TrainerOptions& options) {
    options.callbacks.push_back(make<LambdaCallback>(LambdaCallbackOptions{
        .on_train_batch_end = [](Trainer&, Module& of, const StepOutput&, const Batch&, int64_t batch_idx) {
          if (batch_idx % 3 != 1) return;
          of.optimizer(0).zero_grad();
          of.manual_backward(of.parameters().front().square().sum());
          of.optimizer(0).step();
        }}));
  }});
  // One that throws leaves the optimizers as training_step does.
  for (const GraphMode& graph : {GraphMode(false), GraphMode(true)}) {
    auto module = std::make_shared<Gan>();
    module->step = toggled;
    TrainerOptions options = quiet(3);
    options.graph = graph;
    options.callbacks.push_back(
        make<LambdaCallback>(LambdaCallbackOptions{.on_after_backward = [](Trainer& trainer, Module&) {
          if (trainer.total_batches() == 11) throw Error("test", "no further");
        }}));
    Trainer trainer(options);
    EXPECT_THROW(trainer.fit(module, gan_batches(48)), Error);
    for (const auto& parameter : module->parameters()) EXPECT_TRUE(parameter.requires_grad());
  }
}

// ---- What training_step may not do.

/// Gives the line that says why.
std::string why_gan_is_not_recorded(const GanSetting& setting) {
  const std::string log = expect_same_gan(setting).log;
  const size_t at = log.find("[graph] steps are not recorded: ");
  return at == std::string::npos ? "it was recorded" : log.substr(at, log.find('\n', at) - at);
}

/// A step of `critic_first`, and something before it.
auto after(void (*what)(Gan&)) {
  return [what](Gan& gan, const at::Tensor& real, int64_t batch_idx) {
    what(gan);
    return critic_first(gan, real, batch_idx);
  };
}

TEST(ManualRecording, SaysWhatCannotBeRecorded) {
  EXPECT_THAT(why_gan_is_not_recorded({.step = after([](Gan& gan) { gan.critic->parameters().front().sum().item(); })}),
              HasSubstr("aten::_local_scalar_dense cannot be recorded: it looks at a value"));
  EXPECT_THAT(why_gan_is_not_recorded({.step = after([](Gan& gan) { gan.scheduler(0).step(); }),
                                       .module = [](Gan& gan) { gan.configure = two_adams; }}),
              HasSubstr("a step of a scheduler cannot be recorded"));
  EXPECT_THAT(why_gan_is_not_recorded({.step = after([](Gan& gan) { gan.scheduler(0).step(); })}),
              HasSubstr("training_step changes a learning rate"));
  EXPECT_THAT(why_gan_is_not_recorded(
                  {.module =
                       [](Gan& gan) {
                         gan.configure = [](Gan& of) -> OptimizerConfigs {
                           return {OptimizerConfig{.optimizer = std::make_shared<optim::Adam>(
                                                       of.generator->parameters(), optim::AdamOptions{})},
                                   OptimizerConfig{.optimizer = std::make_shared<torch::optim::SGD>(
                                                       of.critic->parameters(), torch::optim::SGDOptions(0.01))}};
                         };
                       }}),
              HasSubstr("does not take its learning rate from a tensor"));
  EXPECT_THAT(why_gan_is_not_recorded(
                  {.options =
                       [](TrainerOptions& options) {
                         options.callbacks.push_back(make<LambdaCallback>(LambdaCallbackOptions{
                             .on_after_backward = [](Trainer&, Module& of) { of.optimizer(0).zero_grad(); }}));
                       }}),
              HasSubstr("a hook takes gradients away"));
}

/// Two backward passes; the generator learns from every so manieth batch, or both do, from what has added up.
StepOutput in_some_batches(Gan& gan, const at::Tensor& real, bool both, bool steps) {
  const at::Tensor made = gan.make_images(real);
  gan.manual_backward(gan.critic_loss(real, made));
  if (!both) gan.optimizer(1).step();
  if (both || steps) gan.manual_backward(gan.generator_loss(made));
  if (both && steps) gan.optimizer(1).step();
  if (steps) gan.optimizer(0).step();
  if (steps || !both)
    for (auto* optimizer : gan.optimizers()) optimizer->zero_grad();
  return {};
}

TEST(ManualRecording, OptimizersThatStepInSomeBatchesOnlyAreFound) {
  for (const int64_t every : {2, 3, 4, 5, 8, 100}) {
    for (const bool both : {false, true}) {
      SCOPED_TRACE(both ? every : -every);
      const std::string why_not = why_gan_is_not_recorded({.step = [=](Gan& gan, const at::Tensor& real, int64_t i) {
        return in_some_batches(gan, real, both, i % every == every - 1);
      }});
      // Batches that find gradients and those that find none are told apart, and of two the second one steps.
      if (!both || every != 2) EXPECT_THAT(why_not, HasSubstr("not recorded"));
    }
  }
  EXPECT_THAT(why_gan_is_not_recorded({.step = [](Gan& gan, const at::Tensor& real,
                                                  int64_t) { return in_some_batches(gan, real, false, false); }}),
              HasSubstr("optimizer(0) took no step in this batch"));
}

TEST(ManualRecording, ControlFlowOfTheHostIsFoundByComparing) {
  EXPECT_THAT(why_gan_is_not_recorded(
                  {.step = [](Gan& gan, const at::Tensor& real,
                              int64_t i) { return critic_first(gan, real * (1.0 + static_cast<double>(i)), i); }}),
              HasSubstr("aten::mul"));
  EXPECT_THAT(
      why_gan_is_not_recorded({.step = [](Gan& gan, const at::Tensor& real,
                                          int64_t i) { return (i % 2 == 0 ? critic_first : toggled)(gan, real, i); }}),
      HasSubstr("not recorded"));
  // From the second epoch on the generator's backward finds no gradients of the critic to add to.
  EXPECT_THAT(why_gan_is_not_recorded({.step =
                                           [](Gan& gan, const at::Tensor& real, int64_t i) {
                                             if (gan.trainer().current_epoch() == 1) gan.optimizer(1).zero_grad();
                                             return generator_first(gan, real, i);
                                           }}),
              HasSubstr("not recorded"));
}

TEST(ManualRecording, RequiredRecordingIsAnError) {
  try {
    fit_gan({.step = after([](Gan& gan) { gan.scheduler(0).step(); }),
             .module = [](Gan& gan) { gan.configure = two_adams; }},
            "required");
    FAIL() << "it was recorded";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("steps cannot be recorded: a step of a scheduler"));
  }
}

// ---- Checkpoints.

TEST(ManualRecording, ResumesToTheBitAtAnyBatch) {
  const std::string path = testing::fresh_folder("manual_recording") + "/c";
  for (const auto& [name, step] : kGanSteps) {
    SCOPED_TRACE(name);
    const auto train = [&, step = step](const GraphMode& graph, int64_t batches, const std::string& from,
                                        const std::string& save) {
      seed_everything(4);
      auto module = std::make_shared<Gan>();
      module->step = step;
      TrainerOptions options = quiet(4);
      options.graph = graph;
      options.callbacks.push_back(make<LambdaCallback>(LambdaCallbackOptions{
          .on_train_batch_end = [&](Trainer& trainer, Module&, const StepOutput&, const Batch&, int64_t) {
            if (trainer.total_batches() + 1 != batches) return;
            trainer.save_checkpoint(save);
            trainer.request_stop("the test resumes here");
          }}));
      Trainer trainer(options);
      trainer.fit(module, gan_batches(48), {}, from);
      return testing::weights(*module);
    };
    const auto whole = train(false, 0, "", "");
    for (const int64_t at : {3, 5, 13}) {
      const std::string checkpoint = path + std::to_string(at);
      train("required", at, "", checkpoint);
      EXPECT_TRUE(identical(train("required", 0, checkpoint, ""), whole)) << "resumed after batch " << at;
    }
  }
}

}  // namespace
}  // namespace levin
