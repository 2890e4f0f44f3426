#include "../../callbacks/strategy_training.h"

#include <levin/core/interfaces/checkpointer.h>

#include <ATen/ops/linspace.h>
#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <torch/nn/modules/activation.h>

#include <cmath>
#include <filesystem>
#include <optional>

namespace levin {
namespace {

using testing::Devices;
using testing::expect_close;
using testing::expect_resumes_everywhere;
using testing::fresh_folder;
using testing::identical;
using testing::Outcome;
using testing::Plan;
using testing::train;

/// As one batch of a pipeline; BatchNorm normalises each micro-batch for itself.
constexpr Devices kWhole{"{name: pipeline_threads, balance: [1, 1], micro_batches: 1}", 2};
constexpr Devices kInParts{"{name: pipeline_threads, balance: [1, 1], micro_batches: 4}", 2};
constexpr Devices kSideBySide{"{name: pipeline_threads, balance: [1, 1], micro_batches: 2, data_parallel: 2}", 4};

void expect_as_on_one_device(const Plan& plan) {
  const Outcome expected = train(plan, {"single_device", 1});
  const Outcome actual = train(plan, kWhole);
  EXPECT_EQ(actual.steps, expected.steps);
  expect_close(actual.weights, expected.weights, "weights");
  expect_close(actual.buffers, expected.buffers, "statistics");
  ASSERT_EQ(actual.logged.size(), expected.logged.size());
  for (const auto& [name, values] : expected.logged) {
    const auto& logged = actual.logged.at(name);
    ASSERT_EQ(logged.size(), values.size()) << name;
    for (size_t i = 0; i < values.size(); ++i) {
      EXPECT_EQ(logged[i].first, values[i].first) << name;
      EXPECT_NEAR(logged[i].second, values[i].second, 1e-5 * (1 + std::abs(values[i].second))) << name;
    }
  }
}

void expect_resumes(const Plan& plan, size_t every) {
  expect_resumes_everywhere(plan, kInParts, every);
  expect_resumes_everywhere(plan, kSideBySide, 2 * every);
}

TEST(PipelineAverages, Weights) {
  const Plan plan{.callback = "{weight_averaging: {decay: 0.7, update_every_n_steps: 2}}"};
  expect_as_on_one_device(plan);
  expect_resumes(plan, 9);
}

TEST(PipelineAverages, WeightsStochasticallyAreRefusedWhereLayersHaveRunningStatistics) {
  const Plan plan{.callback = "{stochastic_weight_averaging: {swa_lrs: 0.02, swa_epoch_start: 2}}"};
  const std::string message = testing::refusal_of([&] { train(plan, kWhole); });
  EXPECT_NE(message.find("BatchNorm"), std::string::npos) << message;
  EXPECT_NE(message.find("strategy 'pipeline_threads'"), std::string::npos) << message;
}

TEST(PipelineCallbacks, LogTheNormsOfAllStagesGradients) {
  for (const char* norm : {"1", "2", ".inf"})
    expect_as_on_one_device(
        {.callback = fmt::format("{{gradient_norm_monitor: {{norm: {}, per_parameter: true}}}}", norm), .epochs = 1});
}

TEST(PipelineCallbacks, FinetuneABackbone) {
  const Plan plan{.callback = "{backbone_finetuning: {backbone: body, unfreeze_backbone_at_epoch: 2}}"};
  expect_as_on_one_device(plan);
  expect_resumes(plan, 9);
}

TEST(PipelineCallbacks, StopEarlyByWhatTheLastStageLogs) {
  const Plan plan{.net = {.lr = 1e-9, .momentum = 0},
                  .callback = "{early_stopping: {monitor: val_loss, patience: 1, min_delta: 0.5}}",
                  .epochs = 9};
  const Outcome one = train(plan, {"single_device", 1});
  EXPECT_EQ(one.steps, 10);
  for (const Devices& devices : {kWhole, kInParts, kSideBySide}) EXPECT_EQ(train(plan, devices).steps, one.steps);
}

TEST(PipelineCallbacks, KeepTheBestCheckpointByWhatTheLastStageLogs) {
  const std::string root = fresh_folder("pipeline_best");
  const auto best = [&](const Devices& devices, const std::string& folder, bool asynchronous) {
    std::string path;
    train({.callback = fmt::format("{{model_checkpoint: {{monitor: val_loss, mode: max, dirpath: {}/{}, "
                                   "asynchronous: {}}}}}",
                                   root, folder, asynchronous),
           .watch = {.on_fit_end =
                         [&](Trainer& trainer, Module&) {
                           if (trainer.is_global_zero()) path = trainer.checkpoint_callback()->best_model_path();
                         }},
           .change = [](TrainerOptions& options) { options.enable_checkpointing = true; }},
          devices);
    return std::filesystem::path(path).filename().string();
  };
  const std::string expected = best({"single_device", 1}, "one", false);
  EXPECT_NE(expected, "");
  EXPECT_EQ(best(kWhole, "whole", false), expected);
  EXPECT_EQ(best(kWhole, "asynchronous", true), expected);
}

TEST(PipelineCallbacks, LogLearningRates) {
  expect_as_on_one_device({.net = {.schedule = "cosine"}, .callback = "learning_rate_monitor"});
}

TEST(PipelineCallbacks, FindALearningRate) {
  const auto suggestion = [](const Devices& devices) {
    std::optional<double> found;
    train({.epochs = 1,
           .watch = {.on_train_start =
                         [&](Trainer& trainer, Module&) {
                           if (trainer.is_global_zero()) found = trainer.optimizers().at(0)->learning_rate();
                         }},
           .change =
               [&](TrainerOptions& options) {
                 options.callbacks.emplace_back(Config::parse("{learning_rate_finder: {num_training_steps: 20}}", {}));
                 ;
               }},
          devices);
    return found.value_or(0);
  };
  const double one = suggestion({"single_device", 1});
  EXPECT_NE(one, 0.1);
  EXPECT_NEAR(suggestion(kWhole), one, 1e-6 * one);
}

/// Draws samples in hooks, through a layer outside of the sequential too.
class Painter : public Module {
 public:
  Painter() {
    net_ = register_module("net", Sequential(torch::nn::Linear(4, 8), torch::nn::Tanh(), torch::nn::Linear(8, 8),
                                             torch::nn::Tanh(), torch::nn::Linear(8, 4)));
    head_ = register_module("head", torch::nn::Linear(4, 1));
  }
  StepOutput training_step(const Batch& batch, int64_t) override {
    return (head_(net_(batch["x"])) - batch["y"]).square().mean();
  }
  StepOutput validation_step(const Batch& batch, int64_t) override {
    log("val_loss", (head_(net_(batch["x"])) - batch["y"]).square().mean());
    return {};
  }
  void on_validation_epoch_end() override {
    const auto full = trainer().full_parameters(*this);
    const auto autocast = trainer().autocast();
    at::Tensor x = at::linspace(-1, 1, 12).reshape({3, 4});
    for (int i = 0; i < 3; ++i) x = net_(x);  // as often as it likes
    log("val_sample", head_(x).sum());
  }
  void on_train_epoch_end() override {
    const at::NoGradGuard no_grad;
    log("train_sample", net_(at::ones({5, 4})).abs().sum());
  }
  OptimizerConfigs configure_optimizers() override {
    return std::make_shared<optim::SGD>(parameters(), optim::SGDOptions{.lr = 0.05});
  }

 protected:
  Sequential net_{nullptr};
  torch::nn::Linear head_{nullptr};
};

class PainterWithGradients : public Painter {
 public:
  void on_train_epoch_end() override { log("train_sample", net_(at::ones({5, 4})).abs().sum()); }
};

class PainterOfOthersWeights : public Painter {
 public:
  void on_validation_epoch_end() override {
    const auto full = trainer().full_parameters(*this);
    log("val_weights", parameters().front().sum() + net_->named_parameters()["4.weight"].sum());
  }
};

template <class M>
MetricMap metrics_of(const std::string& strategy, int64_t devices, const std::string& precision = "32-true") {
  seed_everything(5);
  TrainerOptions options = testing::quiet(2);
  options.strategy = Spec<Strategy>(Config::parse(strategy, {}));
  options.devices = devices;
  options.precision = precision;
  Trainer trainer(options);
  const DataLoader loader(testing::tiny_dataset(32), {.global_batch_size = 8});
  trainer.fit(make<M>(), loader, {loader});
  return trainer.callback_metrics();
}

TEST(PipelineHooks, RunTheSequentialWhereAllRanksDo) {
  for (const char* precision : {"32-true", "bf16-mixed"}) {
    const MetricMap expected = metrics_of<Painter>("single_device", 1, precision);
    const double bound = std::string(precision) == "32-true" ? 1e-5 : 0.05;
    for (const auto& [strategy, devices] : std::vector<std::pair<std::string, int64_t>>{
             {"{name: pipeline_threads, micro_batches: 2, balance_by: parameters}", 2},
             {"{name: pipeline_threads, schedule: zero_bubble, balance_by: parameters}", 2},
             {"{name: pipeline_threads, schedule: interleaved, balance_by: parameters}", 2},
             {"{name: pipeline_threads, data_parallel: 2, balance_by: parameters}", 4}}) {
      const MetricMap actual = metrics_of<Painter>(strategy, devices, precision);
      for (const char* name : {"val_sample", "train_sample", "val_loss"})
        EXPECT_NEAR(actual.at(name), expected.at(name), bound) << strategy << " " << precision << " " << name;
    }
  }
}

TEST(PipelineHooks, SayHowTheSequentialIsCalled) {
  const char* const strategy = "{name: pipeline_threads, balance_by: parameters}";
  EXPECT_THAT(testing::refusal_of([&] { metrics_of<PainterWithGradients>(strategy, 2); }),
              ::testing::AllOf(::testing::HasSubstr("'net' was called with gradients outside of a step"),
                               ::testing::HasSubstr("torch::NoGradGuard")));
  try {
    metrics_of<PainterOfOthersWeights>(strategy, 2);
    ADD_FAILURE() << "weights of another stage were read";
  } catch (const std::exception& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("is on the rank of stage"));
  }
}

}  // namespace
}  // namespace levin
