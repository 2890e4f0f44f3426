#pragma once

#include "../support/tiny.h"

#include <levin/callbacks/lambda_callback.h>
#include <levin/core/base/seed.h>
#include <levin/core/interfaces/logger.h>
#include <levin/core/nn/sequential.h>
#include <levin/core/optim/sgd.h>

#include <fmt/format.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

/// What callbacks that act on the optimization are tried with: a small model on every kind of strategy, saved and
/// resumed everywhere.
namespace levin::testing {

struct Devices {
  const char* strategy = "single_device";  ///< its name, or YAML
  int count = 1;
  friend std::ostream& operator<<(std::ostream& stream, const Devices& devices) {
    return stream << devices.strategy << " on " << devices.count;
  }
};

inline const auto kEveryStrategy =
    ::testing::Values(Devices{"single_device", 1}, Devices{"dp", 2}, Devices{"ddp_threads", 2});

inline std::string name_of_devices(const ::testing::TestParamInfo<Devices>& info) { return info.param.strategy; }

struct BodyAndHeadOptions {
  double lr = 0.1;
  double momentum = 0.9;
  double dropout = 0;
  std::string schedule;       ///< of the learning rate, by step
  bool only_trained = false;  ///< the optimizer gets the parameters that require gradients alone
  int64_t fails_at = -1;      ///< epoch whose validation throws
  static void describe(Schema<BodyAndHeadOptions>& schema) {
    using O = BodyAndHeadOptions;
    schema.field("lr", &O::lr, "learning rate");
    schema.field("momentum", &O::momentum, "momentum");
    schema.field("dropout", &O::dropout, "dropout probability");
    schema.field("schedule", &O::schedule, "scheduler");
    schema.field("only_trained", &O::only_trained, "leave out frozen parameters");
    schema.field("fails_at", &O::fails_at, "epoch whose validation throws");
  }
};

/// A regression with a body (a linear layer and BatchNorm), which a pipeline can cut, and a head.
class BodyAndHead : public Module {
 public:
  using Options = BodyAndHeadOptions;
  explicit BodyAndHead(const Options& options) : options_(options) {
    linear = torch::nn::Linear(4, 8);
    norm = torch::nn::BatchNorm1d(8);
    body = register_module("body", Sequential(linear, norm));
    dropout = register_module("dropout", torch::nn::Dropout(options.dropout));
    head = register_module("head", torch::nn::Linear(8, 1));
  }

  at::Tensor forward(const at::Tensor& x) { return head(dropout(body(x).relu())); }
  at::Tensor loss(const Batch& batch) { return torch::nn::functional::mse_loss(forward(batch["x"]), batch["y"]); }
  StepOutput training_step(const Batch& batch, int64_t) override {
    at::Tensor value = loss(batch);
    log("train_loss", value, {.on_step = true, .on_epoch = true});
    return value;
  }
  StepOutput validation_step(const Batch& batch, int64_t) override {
    if (trainer().current_epoch() == options_.fails_at) throw Error("test", "the validation fails");
    at::Tensor value = loss(batch);
    log("val_loss", value);
    return value;
  }
  /// An epoch forgets what its steps logged; whoever wants the last step's value reads it here.
  void on_train_epoch_end() override { trainer().callback_metrics(); }
  OptimizerConfigs configure_optimizers() override {
    std::vector<at::Tensor> trained;
    for (const auto& [name, parameter] : named_unique_parameters(*this))
      if (parameter.requires_grad() || !options_.only_trained) trained.push_back(parameter);
    OptimizerConfig config{
        .optimizer = std::make_shared<optim::SGD>(std::move(trained),
                                                  optim::SGDOptions{.lr = options_.lr, .momentum = options_.momentum})};
    if (!options_.schedule.empty()) config.scheduler = {.name = options_.schedule, .interval = Interval::kStep};
    return config;
  }

  Sequential body{nullptr};
  torch::nn::Linear linear{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
  torch::nn::Dropout dropout{nullptr};
  torch::nn::Linear head{nullptr};

 private:
  Options options_;
};

/// Keeps every value that is logged, with its step.
class ValueLogger : public Logger {
 public:
  void log_metrics(std::span<const MetricValue> values, int64_t step, int64_t) override {
    for (const auto& value : values) logged[value.name].emplace_back(step, value.value);
  }
  std::map<std::string, std::vector<std::pair<int64_t, double>>> logged;
};

/// A run of 5 batches of 8 examples an epoch.
struct Plan {
  BodyAndHeadOptions net;
  std::string callback;  ///< in YAML, as users name it
  int64_t epochs = 4;
  int64_t examples = 40;
  bool shuffle = true;
  LambdaCallbackOptions watch;                  ///< on every rank
  std::function<void(TrainerOptions&)> change;  ///< of the trainer's options
  std::string save_in;                          ///< a checkpoint there after every batch, validation and epoch
};

struct Outcome {
  std::shared_ptr<BodyAndHead> module;
  std::vector<at::Tensor> weights;
  std::vector<at::Tensor> buffers;
  MetricMap metrics;
  std::map<std::string, std::vector<std::pair<int64_t, double>>> logged;
  std::vector<std::string> saved;
  int64_t steps = 0;
};

inline std::vector<at::Tensor> buffers_of(const Module& module) {
  std::vector<at::Tensor> copies;
  for (const auto& buffer : module.buffers()) copies.push_back(buffer.clone());
  return copies;
}

inline TrainerOptions options_for(const Plan& plan, const Devices& devices) {
  TrainerOptions options = quiet(plan.epochs);
  options.strategy = Spec<Strategy>(Config::parse(devices.strategy, {.source = "test"}));
  options.devices = devices.count;
  options.log_every_n_steps = 1;
  options.default_root_dir = fresh_folder("callback_root");
  if (!plan.callback.empty()) options.callbacks.emplace_back(Config::parse(plan.callback, {.source = "test"}));
  options.callbacks.emplace_back(make<LambdaCallback>(plan.watch));
  if (plan.change) plan.change(options);
  return options;
}

/// The moments after which everything is saved; with several ranks, all of them have the same.
inline std::shared_ptr<Callback> make_saver(const std::string& folder, std::vector<std::string>& saved) {
  const auto save = [folder, &saved](Trainer& trainer, const std::string& moment) {
    const std::string path = fmt::format("{}/{}-{}-{}", folder, moment, trainer.current_epoch(), trainer.batch_idx());
    if (trainer.is_global_zero()) saved.push_back(path);
    trainer.save_checkpoint(path);
  };
  return make<LambdaCallback>(
      {.on_train_epoch_end = [save](Trainer& trainer, Module&) { save(trainer, "epoch"); },
       .on_train_batch_end = [save](Trainer& trainer, Module&, const StepOutput&, const Batch&,
                                    int64_t) { save(trainer, "batch"); },
       .on_validation_end = [save](Trainer& trainer, Module&) { save(trainer, "validation"); },
       .on_validation_batch_end =
           [save](Trainer& trainer, Module&, const StepOutput&, const Batch&, int64_t batch, int64_t) {
             if (trainer.world_size() == 1) save(trainer, fmt::format("validating-{}", batch));
           }});
}

inline Outcome train(const Plan& plan, const Devices& devices, const std::string& ckpt = "") {
  seed_everything(ckpt.empty() ? 7 : 12345);  // a resumed run takes its random numbers from the checkpoint
  Outcome outcome;
  outcome.module = make<BodyAndHead>(plan.net);
  TrainerOptions options = options_for(plan, devices);
  const auto logger = std::make_shared<ValueLogger>();
  options.logger = {logger};
  if (!plan.save_in.empty()) options.callbacks.emplace_back(make_saver(plan.save_in, outcome.saved));
  Trainer trainer(options);
  trainer.fit(outcome.module,
              DataLoader(tiny_dataset(plan.examples), {.shuffle = plan.shuffle, .global_batch_size = 8}),
              DataLoader(tiny_dataset(12), {.global_batch_size = 6}), ckpt);
  outcome.weights = weights(*outcome.module);
  outcome.buffers = buffers_of(*outcome.module);
  outcome.metrics = trainer.callback_metrics();
  outcome.logged = logger->logged;
  outcome.steps = trainer.global_step();
  return outcome;
}

/// Resumed from each of `every`-th checkpoint that it saved, the run ends with the same weights, statistics and metrics
/// to the bit.
inline void expect_resumes_everywhere(Plan plan, const Devices& devices, size_t every = 1) {
  plan.save_in = fresh_folder("callback_resume");
  const Outcome whole = train(plan, devices);
  plan.save_in.clear();
  const Outcome plain = train(plan, devices);
  EXPECT_TRUE(identical(plain.weights, whole.weights)) << "saving changed the run";
  ASSERT_GT(whole.saved.size(), 20u);
  for (size_t i = 0; i < whole.saved.size(); i += every) {
    const std::string& path = whole.saved[i];
    const Outcome resumed = train(plan, devices, path);
    EXPECT_TRUE(identical(resumed.weights, whole.weights)) << path;
    EXPECT_TRUE(identical(resumed.buffers, whole.buffers)) << path;
    EXPECT_EQ(resumed.metrics, whole.metrics) << path;
  }
}

inline void expect_close(const std::vector<at::Tensor>& actual, const std::vector<at::Tensor>& expected,
                         const std::string& what, double bound = 1e-5) {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  for (size_t i = 0; i < actual.size(); ++i)
    EXPECT_TRUE(at::allclose(actual[i].to(at::kDouble), expected[i].to(at::kDouble), bound, bound))
        << what << ", tensor " << i << ":\n"
        << actual[i] << "\nexpected\n"
        << expected[i];
}

inline std::vector<at::Tensor> to_double(std::vector<at::Tensor> tensors) {
  for (auto& tensor : tensors) tensor = tensor.to(at::kDouble);
  return tensors;
}

/// What an error says when something is done.
inline std::string refusal_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

}  // namespace levin::testing
