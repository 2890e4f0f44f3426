#include <levin/callbacks/model_pruning.h>

#include "../support/captured_log.h"
#include "pruning_formula.h"
#include "strategy_training.h"

#include <gmock/gmock-matchers.h>

#include <cmath>
#include <mutex>
#include <set>

namespace levin {
namespace {

using testing::BodyAndHead;
using testing::Devices;
using testing::expect_close;
using testing::expect_resumes_everywhere;
using testing::fresh_folder;
using ::testing::HasSubstr;
using testing::identical;
using testing::Outcome;
using testing::Plan;
using testing::pruning_formula;
using testing::refusal_of;
using testing::train;
using testing::weights;

// ---- The same training in PyTorch.

class TwoLayers : public Module {
 public:
  TwoLayers() {
    first = register_module("first", torch::nn::Linear(4, 6));
    second = register_module("second", torch::nn::Linear(6, 2));
    to(at::kDouble);
    const at::NoGradGuard no_grad;
    int phase = 0;
    for (const auto& parameter : parameters())
      at::Tensor(parameter).copy_(0.5 * pruning_formula(parameter.sizes(), phase++));
  }
  StepOutput training_step(const Batch& batch, int64_t) override {
    return torch::nn::functional::mse_loss(second(at::tanh(first(batch["x"]))), batch["y"]);
  }
  OptimizerConfigs configure_optimizers() override {
    return std::make_shared<optim::SGD>(parameters(),
                                        optim::SGDOptions{.lr = 0.1, .momentum = 0.9, .weight_decay = 0.01});
  }
  torch::nn::Linear first{nullptr};
  torch::nn::Linear second{nullptr};
};

class ModelPruningRuns : public ::testing::TestWithParam<Devices> {};

TEST_P(ModelPruningRuns, TrainAsPyTorchDoesWithItsPruning) {
  const std::map<std::string, std::vector<double>> oracles = {
#include "../oracles/pruned_training.inc"
  };
  ASSERT_EQ(oracles.size(), 4u);
  std::vector<at::Tensor> x;
  std::vector<at::Tensor> y;
  for (int batch = 0; batch < 3; ++batch) {
    x.push_back(pruning_formula({8, 4}, batch));
    y.push_back(pruning_formula({8, 2}, batch + 5));
  }
  const auto data = std::make_shared<data::TensorDataset>(Batch{{"x", at::cat(x)}, {"y", at::cat(y)}});
  for (const auto& [options, expected] : oracles) {
    SCOPED_TRACE(options);
    TrainerOptions trainer_options = testing::quiet(5);
    trainer_options.strategy = GetParam().strategy;
    trainer_options.devices = GetParam().count;
    trainer_options.precision = "64-true";
    trainer_options.gradient_clip_val = 0.2;
    trainer_options.callbacks = {Spec<Callback>(Config::parse("{model_pruning: " + options + "}", {.source = "test"}))};
    const auto module = make<TwoLayers>();
    Trainer(trainer_options).fit(module, DataLoader(data, {.global_batch_size = 8}));
    std::vector<at::Tensor> flat;
    for (const auto& weight : weights(*module)) flat.push_back(weight.flatten());
    const at::Tensor actual = at::cat(flat);
    const at::Tensor wanted = at::tensor(expected, at::kDouble);
    ASSERT_EQ(actual.numel(), wanted.numel());
    EXPECT_TRUE((actual == 0).equal(wanted == 0)) << actual;
    EXPECT_TRUE(at::allclose(actual, wanted, 1e-9, 1e-9)) << actual - wanted;
  }
}

// ---- On every strategy.

/// Where weights of two dimensions, those that are pruned by default, are zero.
std::vector<at::Tensor> zeros_of(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> zeros;
  for (const auto& tensor : tensors)
    if (tensor.dim() >= 2) zeros.push_back(tensor == 0);
  return zeros;
}
std::vector<at::Tensor> zeros_of(const Module& module) { return zeros_of(weights(module)); }

int64_t count(const std::vector<at::Tensor>& masks) {
  int64_t sum = 0;
  for (const auto& mask : masks) sum += mask.sum().item<int64_t>();
  return sum;
}

/// A product with a mask makes some; what averages or goes on elsewhere makes others.
int64_t negative_zeros(const std::vector<at::Tensor>& tensors) {
  int64_t sum = 0;
  for (const auto& tensor : tensors) sum += tensor.signbit().logical_and(tensor == 0).sum().item<int64_t>();
  return sum;
}

std::vector<double> logged_sparsity(const Outcome& run) {
  std::vector<double> values;
  for (const auto& [step, value] : run.logged.at("pruning/sparsity")) values.push_back(value);
  return values;
}

TEST_P(ModelPruningRuns, WhatIsPrunedStaysZeroAndIsLoggedAndExported) {
  const std::string folder = fresh_folder("pruned");
  std::vector<at::Tensor> last;
  Plan plan{.callback = "{model_pruning: {amount: 0.5}}"};  // of 40 weights, from epoch 1 of 4 on
  plan.watch.on_train_batch_end = [&](Trainer& trainer, Module& module, const StepOutput&, const Batch&, int64_t) {
    if (!trainer.is_global_zero()) return;
    const auto zeros = zeros_of(module);
    const std::vector<int64_t> expected = {0, 20, 30, 35};
    EXPECT_EQ(count(zeros), expected.at(static_cast<size_t>(trainer.current_epoch())));
    for (size_t i = 0; i < last.size(); ++i) EXPECT_TRUE(last[i].logical_and(zeros[i]).equal(last[i]));
    last = zeros;
  };
  plan.watch.on_train_epoch_end = [&](Trainer& trainer, Module&) { trainer.save_checkpoint(folder + "/c"); };
  const Outcome run = train(plan, GetParam());
  EXPECT_EQ(logged_sparsity(run), (std::vector<double>{0, 0.5, 0.75, 0.875}));
  EXPECT_EQ(run.metrics.at("pruning/sparsity"), 0.875);
  EXPECT_EQ(count(zeros_of(run.weights)), 35) << "after fit";
  EXPECT_EQ(negative_zeros(run.weights), 0);
  EXPECT_EQ(count(zeros_of(*load_from_checkpoint<BodyAndHead>(folder + "/c"))), 35) << "in the checkpoint";
}

TEST_P(ModelPruningRuns, ResumeToTheBitInTheMiddleOfASchedule) {
  for (const char* options : {"{schedule: gradual, start_epoch: 0, end_epoch: 3, amount: 0.7}",
                              "{pruning_fn: random_unstructured, amount: 0.3, every_n_epochs: 2}",
                              "{pruning_fn: ln_structured, amount: 0.3, parameters_to_prune: ['*.0.weight']}"}) {
    SCOPED_TRACE(options);
    const Plan plan{.net = {.dropout = 0.2},
                    .callback = fmt::format("{{model_pruning: {}}}", options),
                    .change = [](TrainerOptions& trainer_options) { trainer_options.val_check_interval = 2; }};
    expect_resumes_everywhere(plan, GetParam(), GetParam().count == 1 ? 7 : 11);
  }
}

INSTANTIATE_TEST_SUITE_P(OnEveryStrategy, ModelPruningRuns, testing::kEveryStrategy, testing::name_of_devices);

TEST(ModelPruningTest, RanksHaveTheSameMasks) {
  for (const char* pruning_fn : {"l1_unstructured", "random_unstructured", "random_structured", "ln_structured"}) {
    std::mutex mutex;
    std::map<int64_t, std::vector<std::vector<at::Tensor>>> of_ranks;
    Plan plan{
        .callback = fmt::format(
            "{{model_pruning: {{amount: 0.4, pruning_fn: {}, parameters_to_prune: ['body.0.weight']}}}}", pruning_fn)};
    plan.watch.on_train_epoch_end = [&](Trainer& trainer, Module& module) {
      const std::scoped_lock lock(mutex);
      of_ranks[trainer.global_rank()].push_back(weights(module));
    };
    const Outcome run = train(plan, {"ddp_threads", 2});
    ASSERT_EQ(of_ranks.size(), 2u);
    for (size_t epoch = 0; epoch < 4; ++epoch)
      EXPECT_TRUE(identical(of_ranks[1].at(epoch), of_ranks[0].at(epoch))) << pruning_fn << " in epoch " << epoch;
    EXPECT_GT(count(zeros_of(run.weights)), 20) << pruning_fn;
    EXPECT_LT(count(zeros_of(run.weights)), 32) << pruning_fn;
  }
}

TEST(ModelPruningTest, ForkedRanksGiveTheZerosBack) {
  const Plan plan{.callback = "model_pruning", .epochs = 3};
  const Outcome threads = train(plan, {"ddp_threads", 2});
  const Outcome forks = train(plan, {"ddp_spawn", 2});
  expect_close(forks.weights, threads.weights, "weights", 1e-6);
  EXPECT_EQ(count(zeros_of(forks.weights)), 30);
}

// ---- Schedules.

TEST(ModelPruningTest, AGradualScheduleFollowsTheCubicCurve) {
  Plan plan{.callback =
                "{model_pruning: {schedule: gradual, amount: 0.8, start_epoch: 1, end_epoch: 6, "
                "every_n_epochs: 2}}",
            .epochs = 8};
  const auto sparsity = logged_sparsity(train(plan, {}));
  const auto at = [](double epoch) { return std::nearbyint(40 * 0.8 * (1 - std::pow(1 - (epoch - 1) / 5, 3))) / 40; };
  EXPECT_EQ(sparsity, (std::vector<double>{0, 0, 0, at(3), at(3), at(5), 0.8, 0.8})) << "epochs 1, 3, 5 and 6";
}

TEST(ModelPruningTest, PrunesOnceWhereTheScheduleEndsAsItBegins) {
  Plan plan{.callback = "{model_pruning: {amount: 0.25, start_epoch: 0, end_epoch: 0}}", .epochs = 3};
  EXPECT_EQ(logged_sparsity(train(plan, {})), (std::vector<double>{0.25, 0.25, 0.25}));
}

TEST(ModelPruningTest, AFitAfterAFitBeginsAnew) {
  Plan plan{.callback = "{model_pruning: {start_epoch: 1, end_epoch: 1}}", .epochs = 2};
  auto module = make<BodyAndHead>({});
  std::vector<int64_t> zeros;
  plan.watch.on_train_batch_end = [&](Trainer&, Module& trained, const StepOutput&, const Batch&, int64_t) {
    zeros.push_back(count(zeros_of(trained)));
  };
  Trainer trainer(testing::options_for(plan, {}));
  for (int fit = 0; fit < 2; ++fit) {
    zeros.clear();
    trainer.fit(module, testing::tiny_loader());
    EXPECT_LT(zeros.front(), 20);
    EXPECT_EQ(zeros.back(), 20);
  }
}

TEST(ModelPruningTest, WorksWithSixteenBitsAccumulationAndAdam) {
  for (const char* precision : {"bf16-true", "bf16-mixed", "16-mixed"}) {
    TrainerOptions options = testing::quiet(3);
    options.precision = precision;
    options.accumulate_grad_batches = 2;
    options.callbacks = {make<ModelPruning>({.amount = 0.5})};
    const auto module = make<testing::TinyModule>({.width = 10});
    Trainer(options).fit(module, testing::tiny_loader());
    EXPECT_EQ(count(zeros_of(*module)), 37) << precision << ": of 50, 25 and then 12";
  }
}

/// Steps twice a batch, by hand.
class StepsTwice : public BodyAndHead {
 public:
  using Options = testing::BodyAndHeadOptions;
  explicit StepsTwice(const Options& options) : BodyAndHead(options) { automatic_optimization = false; }
  StepOutput training_step(const Batch& batch, int64_t) override {
    for (int step = 0; step < 2; ++step) {
      optimizer().zero_grad();
      manual_backward(loss(batch));
      optimizer().step();
    }
    return {};
  }
};

TEST(ModelPruningTest, HoldsZerosInManualOptimization) {
  int batches = 0;
  Plan plan{.callback = "{model_pruning: {end_epoch: 1}}", .epochs = 3};
  plan.watch.on_train_batch_end = [&](Trainer& trainer, Module& module, const StepOutput&, const Batch&, int64_t) {
    ++batches;
    EXPECT_EQ(trainer.global_step(), 2 * batches);
    EXPECT_EQ(count(zeros_of(module)), trainer.current_epoch() == 0 ? 0 : 20);
  };
  Trainer(testing::options_for(plan, {})).fit(make<StepsTwice>({}), testing::tiny_loader());
  EXPECT_EQ(batches, 15);
}

TEST(ModelPruningTest, SaysWhatItPrunedAndThatALayerIsGone) {
  testing::CapturedLog captured;
  Plan plan{.callback = "{model_pruning: {verbose: 2, end_epoch: 1, parameters_to_prune: [head.weight, head.bias]}}",
            .epochs = 2};
  train(plan, {});
  EXPECT_THAT(captured.text(), HasSubstr("[model_pruning] l1_unstructured pruned, 4 of 9 (44.44%)"));
  EXPECT_THAT(captured.text(), HasSubstr("[model_pruning] head.weight: "));
  plan.callback = "{model_pruning: {amount: 0.99, parameters_to_prune: [head.bias, body.0.weight]}}";
  train(plan, {});
  EXPECT_THAT(captured.text(), HasSubstr("model_pruning has pruned all of 'head.bias'"));
}

TEST(ModelPruningTest, SeveralPruneEachInItsOwnWay) {
  const std::string folder = fresh_folder("pruned_twice");
  const auto and_another = [](const char* options) {
    return [options](TrainerOptions& trainer_options) {
      trainer_options.callbacks.emplace_back(
          Config::parse(fmt::format("{{model_pruning: {}}}", options), {.source = "test"}));
    };
  };
  Plan plan{.callback =
                "{model_pruning: {pruning_fn: ln_structured, parameters_to_prune: ['body.0.weight'], "
                "amount: 0.25, end_epoch: 1}}"};
  plan.change = and_another("{parameters_to_prune: [head.weight, head.bias], amount: 0.5, end_epoch: 1}");
  plan.watch.on_train_epoch_end = [&](Trainer& trainer, Module&) {
    if (trainer.current_epoch() == 1) trainer.save_checkpoint(folder + "/c");
  };
  const Outcome run = train(plan, {});
  EXPECT_EQ(logged_sparsity(run), (std::vector<double>{0, 12.0 / 41, 12.0 / 41, 12.0 / 41}));
  EXPECT_TRUE(identical(train(plan, {}, folder + "/c").weights, run.weights));
  plan.change = and_another("{parameters_to_prune: ['*']}");
  EXPECT_THAT(refusal_of([&] { train(plan, {}); }), HasSubstr("there twice for the parameter 'body.0.weight'"));
}

// ---- With averages of the weights.

TEST(ModelPruningTest, PrunesTheAverageThatIsValidatedSavedAndLeftBehind) {
  for (const char* average :
       {"{weight_averaging: {decay: 0.9}}", "{stochastic_weight_averaging: {swa_lrs: 0.02, swa_epoch_start: 1}}"}) {
    const std::string folder = fresh_folder("pruned_average");
    Plan plan{.callback = average};
    const auto with_pruning = [](TrainerOptions& options) {
      options.callbacks.emplace_back(Config::parse("{model_pruning: {end_epoch: 2}}", {.source = "test"}));
    };
    plan.change = with_pruning;
    int validations = 0;
    plan.watch.on_validation_batch_end = [&](Trainer& trainer, Module& module, const StepOutput&, const Batch&, int64_t,
                                             int64_t) {
      if (trainer.current_epoch() != 3) return;
      ++validations;
      EXPECT_EQ(count(zeros_of(module)), 30);
    };
    plan.watch.on_train_epoch_end = [&](Trainer& trainer, Module&) {
      if (trainer.current_epoch() == 2) trainer.save_checkpoint(folder + "/c");
    };
    const Outcome run = train(plan, {});
    EXPECT_GT(validations, 0);
    EXPECT_EQ(count(zeros_of(run.weights)), 30) << average;
    EXPECT_EQ(negative_zeros(run.weights), 0) << average;
    const auto saved = load_from_checkpoint<BodyAndHead>(folder + "/c");
    EXPECT_EQ(count(zeros_of(*saved)), 30) << average;
    EXPECT_EQ(negative_zeros(weights(*saved)), 0) << average;
    plan.watch = {};
    EXPECT_TRUE(identical(train(plan, {}, folder + "/c").weights, run.weights)) << average;
  }
}

TEST(ModelPruningTest, IsNamedAfterWhatAverages) {
  const Plan plan{.callback = "model_pruning", .change = [](TrainerOptions& options) {
                    options.callbacks.emplace_back(Config::parse("weight_averaging", {.source = "test"}));
                  }};
  EXPECT_THAT(refusal_of([&] { train(plan, {}); }), HasSubstr("name it after weight_averaging"));
}

// ---- Bad input.

TEST(ModelPruningTest, RefusesStrategiesThatDivideParameters) {
  for (const char* strategy :
       {"sharded_threads", "{name: pipeline_threads, micro_batches: 2}", "parameter_server_threads"}) {
    const std::string refusal = refusal_of([&] { train({.callback = "model_pruning"}, {strategy, 2}); });
    EXPECT_THAT(refusal, HasSubstr("model_pruning does not work with strategy '")) << strategy;
    EXPECT_THAT(refusal, HasSubstr("valid: ")) << strategy;
  }
}

TEST(ModelPruningTest, RefusesWhatItCannotDo) {
  const auto refusal = [](const std::string& options) {
    return refusal_of([&] { train({.callback = fmt::format("{{model_pruning: {{{}}}}}", options)}, {}); });
  };
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"parameters_to_prune: [head.wieght]", "'head.wieght', which is no parameter of"},
      {"parameters_to_prune: [head.wieght]", "did you mean 'head.weight'"},
      {"parameters_to_prune: ['tail.*']", "'tail.*', which is no parameter of"},
      {"pruning_fn: l2", "pruning_fn must be one of l1_unstructured"},
      {"amount: 0", "amount must be above 0"},
      {"amount: 1", "below 1; got 1"},
      {"pruning_norm: 3", "pruning_norm must be 1, 2 or inf"},
      {"pruning_fn: ln_structured, parameters_to_prune: ['head.*']", "two or more dimensions; got 'head.bias' of 1"},
      {"pruning_fn: ln_structured, pruning_dim: 2",
       "pruning_dim is 2, and 'body.0.weight' has 2 dimensions; valid: -2"},
      {"pruning_fn: ln_structured, use_global_unstructured: true", "valid: false, or l1_unstructured"},
      {"schedule: gradual", "end_epoch is required by schedule gradual"},
      {"schedule: gradual, end_epoch: 4", "so that amount 0.5 is not reached; valid: up to 3"},
      {"start_epoch: 4", "so that nothing is pruned; valid: up to 3"},
      {"start_epoch: 2, end_epoch: 1", "end_epoch must be at least start_epoch, 2; got 1"},
      {"every_n_epochs: 0", "every_n_epochs must be at least 1"},
      {"verbose: 3", "verbose must be"},
      {"sparsity: 0.5", "sparsity"},
  };
  for (const auto& [options, message] : cases) EXPECT_THAT(refusal(options), HasSubstr(message)) << options;
}

TEST(ModelPruningTest, ACheckpointOfOtherParametersIsRefused) {
  const std::string folder = fresh_folder("pruned_others");
  Plan plan{.callback = "{model_pruning: {parameters_to_prune: [head.weight]}}", .epochs = 2};
  plan.watch.on_train_epoch_end = [&](Trainer& trainer, Module&) { trainer.save_checkpoint(folder + "/c"); };
  train(plan, {});
  plan = {.callback = "model_pruning", .epochs = 3};
  EXPECT_THAT(refusal_of([&] { train(plan, {}, folder + "/c"); }), HasSubstr("lack 'body.0.weight'"));
}

}  // namespace
}  // namespace levin
