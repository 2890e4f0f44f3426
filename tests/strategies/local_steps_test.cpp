#include <levin/strategies/ddp/local_steps.h>

#include "../support/counting_backend.h"
#include "../support/tiny.h"

#include <levin/callbacks/lambda_callback.h>
#include <levin/callbacks/model_pruning.h>
#include <levin/callbacks/weight_averaging.h>
#include <levin/core/base/file_system.h>
#include <levin/core/base/seed.h>
#include <levin/core/optim/adam.h>
#include <levin/core/optim/sgd.h>

#include <ATen/ops/tensor.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/optim/lbfgs.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace levin {
namespace {

#include "../oracles/diloco_oracles.inc"

using testing::fresh_folder;
using ::testing::HasSubstr;
using testing::identical;
using testing::quiet;
using testing::tiny_dataset;

struct ReplicaOptions {
  int64_t width = 3;
  std::string optimizer = "adamw";
  bool batch_norm = false;
  bool manual = false;
  int64_t skips_on = -1;  ///< rank that skips every other batch
  static void describe(Schema<ReplicaOptions>& schema) {
    using O = ReplicaOptions;
    schema.field("width", &O::width, "of the layer inside");
    schema.field("optimizer", &O::optimizer, "adamw, sgd or lbfgs");
    schema.field("batch_norm", &O::batch_norm, "with a BatchNorm");
    schema.field("manual", &O::manual, "manual optimization");
    schema.field("skips_on", &O::skips_on, "rank that skips every other batch");
  }
};

/// The model of oracles/diloco_oracles.py.
class Replica : public Module {
 public:
  using Options = ReplicaOptions;
  explicit Replica(const Options& options) : options_(options) {
    first_ = register_module("first", torch::nn::Linear(4, options.width));
    if (options.batch_norm) norm_ = register_module("norm", torch::nn::BatchNorm1d(options.width));
    last_ = register_module("last", torch::nn::Linear(options.width, 1));
    automatic_optimization = !options.manual;
    const at::NoGradGuard no_grad;
    int64_t number = 0;
    for (auto& parameter : parameters()) {
      const at::Tensor places = at::arange(parameter.numel(), at::kDouble);
      parameter.copy_((places * 0.9 + number++).cos().mul(0.5).reshape(parameter.sizes()));
    }
  }
  at::Tensor forward(const at::Tensor& x) {
    at::Tensor inside = first_(x);
    if (norm_) inside = norm_(inside);
    return last_(inside.tanh());
  }
  StepOutput training_step(const Batch& batch, int64_t batch_idx) override {
    if (options_.skips_on == trainer().global_rank() && batch_idx % 2 == 1) return {};
    return torch::nn::functional::mse_loss(forward(batch["x"]), batch["y"]);
  }
  StepOutput validation_step(const Batch& batch, int64_t) override {
    at::Tensor loss = torch::nn::functional::mse_loss(forward(batch["x"]), batch["y"]);
    log("val_loss", loss);
    return loss;
  }
  OptimizerConfigs configure_optimizers() override {
    if (options_.optimizer == "lbfgs")
      return OptimizerConfig{.optimizer = std::make_shared<torch::optim::LBFGS>(parameters())};
    if (options_.optimizer == "sgd")
      return OptimizerConfig{.optimizer = std::make_shared<optim::SGD>(parameters(), optim::SGDOptions{.lr = 0.1})};
    return OptimizerConfig{
        .optimizer = std::make_shared<optim::AdamW>(
            parameters(), optim::AdamWOptions{.lr = 0.05, .betas = {0.9, 0.99}, .eps = 1e-8, .weight_decay = 0.1})};
  }

 private:
  const Options options_;
  torch::nn::Linear first_{nullptr};
  torch::nn::BatchNorm1d norm_{nullptr};
  torch::nn::Linear last_{nullptr};
};

struct Plan {
  ReplicaOptions net;
  std::string replicate;  ///< options of the mesh's dimension
  int64_t epochs = 2;
  int64_t examples = 40;
  int64_t ranks = 2;
  bool validates = false;
  std::function<void(TrainerOptions&)> change;
  LambdaCallbackOptions watch;
  std::string ckpt;
};

struct Outcome {
  std::shared_ptr<Replica> module;
  std::vector<at::Tensor> weights;
  std::vector<at::Tensor> buffers;
  MetricMap metrics;
  int64_t steps = 0;
};

Outcome train(const Plan& run) {
  seed_everything(run.ckpt.empty() ? 7 : 1234);
  TrainerOptions options = quiet(run.epochs);
  options.strategy = Spec<Strategy>(Config::parse(
      fmt::format("{{replicate: {{size: auto, {}}}, start_method: thread}}", run.replicate), {.source = "test"}));
  options.devices = run.ranks;
  options.precision = "64-true";
  options.callbacks.emplace_back(make<LambdaCallback>(run.watch));
  if (run.change) run.change(options);
  Outcome outcome;
  outcome.module = make<Replica>(run.net);
  // The formula of tiny_dataset, in float64.
  const at::Tensor x = at::arange(run.examples * 4, at::kDouble).reshape({run.examples, 4}).mul(0.7).sin();
  const auto examples = std::make_shared<data::TensorDataset>(Batch{{"x", x}, {"y", x.sum(1, true)}});
  const DataLoader loader(examples, {.batch_size = 4});
  Trainer trainer(options);
  trainer.fit(outcome.module, loader, run.validates ? DataLoaders(loader) : DataLoaders(), run.ckpt);
  outcome.weights = testing::weights(*outcome.module);
  for (const auto& buffer : outcome.module->buffers()) outcome.buffers.push_back(buffer.clone());
  outcome.metrics = trainer.callback_metrics();
  outcome.steps = trainer.global_step();
  return outcome;
}

at::Tensor flat(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> parts;
  for (const at::Tensor& tensor : tensors) parts.push_back(tensor.reshape({-1}).to(at::kDouble));
  return at::cat(parts);
}

double distance(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  return (flat(a) - flat(b)).abs().max().item<double>();
}

std::string message_of(const Plan& run) {
  try {
    train(run);
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

TEST(LocalSteps, FollowPyTorch) {
  const auto expect = [](const std::string& replicate, const std::vector<double>& expected) {
    const Outcome outcome = train({.replicate = replicate});
    EXPECT_EQ(outcome.steps, 10);
    EXPECT_LT((flat(outcome.weights) - at::tensor(expected, at::kDouble)).abs().max().item<double>(), 1e-12)
        << replicate;
  };
  expect("sync: local_sgd, every: 3", kLocalSgd);
  expect("sync: diloco, every: 3", kDiloco);
  expect("sync: diloco, every: 3, outer: {lr: 0.5, momentum: 0.8, nesterov: false}", kDilocoPlainMomentum);
}

TEST(LocalSteps, AreThoseOfDdpWhereTheyAverageEveryStepOfSgd) {
  const ReplicaOptions sgd{.optimizer = "sgd"};
  const Outcome expected = train({.net = sgd, .replicate = "sync: gradients", .epochs = 4});
  EXPECT_LT(
      distance(train({.net = sgd, .replicate = "sync: local_sgd, every: 1", .epochs = 4}).weights, expected.weights),
      1e-13);
  const char* const kPlain = "sync: diloco, every: 1, outer: {lr: 1, momentum: 0, nesterov: false}";
  EXPECT_LT(distance(train({.net = sgd, .replicate = kPlain, .epochs = 4}).weights, expected.weights), 1e-13);
  EXPECT_GT(
      distance(train({.net = sgd, .replicate = "sync: local_sgd, every: 4", .epochs = 4}).weights, expected.weights),
      1e-6);
}

TEST(LocalSteps, LeaveTheSameWeightsOnEveryRank) {
  for (const char* sync : {"local_sgd", "diloco"}) {
    std::mutex mutex;
    std::map<int64_t, std::vector<at::Tensor>> inside, after;
    Plan run{.replicate = fmt::format("sync: {}, every: 4", sync)};
    run.watch.on_train_batch_end = [&](Trainer& trainer, Module& module, const StepOutput&, const Batch&, int64_t) {
      const std::lock_guard lock(mutex);
      if (trainer.global_step() == 8) after[trainer.global_rank()] = testing::weights(module);
      if (trainer.global_step() == 7) inside[trainer.global_rank()] = testing::weights(module);
    };
    train(run);
    ASSERT_EQ(after.size(), 2u);
    EXPECT_TRUE(identical(after[0], after[1])) << sync;
    EXPECT_FALSE(identical(inside[0], inside[1])) << sync;
  }
}

TEST(LocalSteps, ResumeToTheBitFromAnyBatch) {
  for (const std::string replicate : {"sync: local_sgd, every: 4", "sync: diloco, every: 4"})
    for (const int accumulate : {1, 2}) {
      SCOPED_TRACE(fmt::format("{}, accumulate {}", replicate, accumulate));
      const std::string folder = fresh_folder("local_steps");
      Plan run{.net = {.batch_norm = true}, .replicate = replicate, .epochs = 3};
      run.change = [accumulate](TrainerOptions& options) { options.accumulate_grad_batches = accumulate; };
      const Outcome expected = train(run);
      Plan saving = run;
      saving.watch.on_train_batch_end = [&](Trainer& trainer, Module&, const StepOutput&, const Batch&, int64_t) {
        trainer.save_checkpoint(fmt::format("{}/{}", folder, trainer.total_batches() + 1));
      };
      const Outcome saved = train(saving);
      EXPECT_TRUE(identical(saved.weights, expected.weights)) << "saving changes nothing";
      EXPECT_TRUE(identical(saved.buffers, expected.buffers));
      for (const int batch : {1, 4, 6, 8, 11}) {
        Plan resumed = run;
        resumed.ckpt = fmt::format("{}/{}", folder, batch);
        const Outcome outcome = train(resumed);
        EXPECT_TRUE(identical(outcome.weights, expected.weights)) << "from batch " << batch;
        EXPECT_TRUE(identical(outcome.buffers, expected.buffers)) << "from batch " << batch;
      }
    }
}

TEST(LocalSteps, GoOnWithAnotherNumberOfRanks) {
  const std::string folder = fresh_folder("local_steps");
  Plan run{.replicate = "sync: diloco, every: 4"};
  run.watch.on_train_batch_end = [&](Trainer& trainer, Module&, const StepOutput&, const Batch&, int64_t batch) {
    if (trainer.current_epoch() == 1 && batch == 0) trainer.save_checkpoint(folder + "/saved");
  };
  const Outcome whole = train(run);
  for (const int64_t ranks : {1, 3}) {
    const Outcome other = train({.replicate = run.replicate, .epochs = 3, .ranks = ranks, .ckpt = folder + "/saved"});
    EXPECT_GT(other.steps, 6);
    EXPECT_TRUE(at::isfinite(flat(other.weights)).all().item<bool>());
  }
}

TEST(LocalSteps, EvaluateAndSaveTheMeanInsideOfAWindow) {
  const std::string folder = fresh_folder("local_steps");
  Plan run{.net = {.batch_norm = true}, .replicate = "sync: diloco, every: 4", .epochs = 1, .validates = true};
  std::vector<at::Tensor> own;
  run.watch.on_train_batch_end = [&](Trainer& trainer, Module& module, const StepOutput&, const Batch&, int64_t) {
    if (trainer.is_global_zero()) own = testing::weights(module);
  };
  run.watch.on_validation_end = [&](Trainer& trainer, Module&) { trainer.save_checkpoint(folder + "/saved"); };
  const Outcome outcome = train(run);  // 5 steps
  EXPECT_FALSE(identical(outcome.weights, own));
  // The checkpoint holds what was evaluated, and the module is left with.
  const auto module = make<Replica>(run.net);
  TrainerOptions options = quiet(1);
  options.precision = "64-true";
  const at::Tensor x = at::arange(run.examples * 4, at::kDouble).reshape({run.examples, 4}).mul(0.7).sin();
  const DataLoader loader(std::make_shared<data::TensorDataset>(Batch{{"x", x}, {"y", x.sum(1, true)}}),
                          {.batch_size = 4});
  const auto metrics = Trainer(options).validate(module, DataLoaders(loader), folder + "/saved", /*verbose=*/false);
  EXPECT_NEAR(metrics.at(0).at("val_loss"), outcome.metrics.at("val_loss"), 1e-12);
  EXPECT_TRUE(identical(testing::weights(*module), outcome.weights));
}

TEST(LocalSteps, ChangeNothingByBeingEvaluated) {
  const Plan run{.net = {.batch_norm = true}, .replicate = "sync: diloco, every: 4", .epochs = 3};
  Plan validating = run;
  validating.validates = true;
  const Outcome expected = train(run);
  const Outcome validated = train(validating);
  EXPECT_TRUE(identical(validated.weights, expected.weights));
  EXPECT_TRUE(identical(validated.buffers, expected.buffers));
}

TEST(LocalSteps, TakeAsManyOnEveryRankWhereOneHasNoData) {
  // 41 examples: the last batch has one, and one of two ranks has none of it.
  EXPECT_EQ(train({.replicate = "sync: local_sgd, every: 2", .examples = 41}).steps, 12);
  EXPECT_EQ(train({.net = {.skips_on = 1}, .replicate = "sync: diloco, every: 2"}).steps, 10);
}

/// Bytes that rank 0 sends in 128 steps without logging.
double bytes_sent(const std::string& replicate) {
  double sent = 0;
  c10::intrusive_ptr<testing::CountingBackend> counting;
  Plan run{.net = {.width = 64}, .replicate = replicate, .epochs = 1, .examples = 1024};
  run.change = [](TrainerOptions& options) {
    Config strategy = options.strategy.config();
    strategy.set("backend", Config::scalar("gloo"));
    options.strategy = Spec<Strategy>(strategy);
    options.log_every_n_steps = 1000;
  };
  run.watch.on_train_start = [&](Trainer& trainer, Module&) {
    auto here = testing::CountingBackend::put_before(trainer.strategy().collective());
    if (trainer.is_global_zero()) counting = here;
  };
  run.watch.on_train_batch_end = [&](Trainer& trainer, Module&, const StepOutput&, const Batch&, int64_t) {
    if (trainer.is_global_zero()) sent = counting->sent();
  };
  EXPECT_EQ(train(run).steps, 128);
  return sent;
}

TEST(LocalSteps, LeaveFrozenWeightsAsTheyAre) {
  for (const char* const replicate : {"sync: diloco, every: 5", "sync: diloco, every: 1"}) {  // 5 steps an epoch
    Plan run{.replicate = replicate, .epochs = 3};
    at::Tensor frozen;
    run.watch.on_train_epoch_start = [&](Trainer& trainer, Module& module) {
      if (trainer.current_epoch() != 1) return;
      at::Tensor first = module.parameters().front();
      first.set_requires_grad(false);
      if (trainer.is_global_zero()) frozen = first.detach().clone();
    };
    const Outcome outcome = train(run);
    ASSERT_TRUE(frozen.defined());
    EXPECT_TRUE(outcome.module->parameters().front().equal(frozen)) << replicate;
  }
}

TEST(LocalSteps, SendLittle) {
  const double gradients = bytes_sent("sync: gradients, broadcast_buffers: false");
  const double local = bytes_sent("sync: diloco, every: 64");
  EXPECT_GT(local, 0);
  EXPECT_LE(local, gradients / 50) << gradients << " bytes with ddp, " << local << " with local steps";
}

TEST(LocalSteps, SayWhatDoesNotWork) {
  EXPECT_THAT(message_of({.replicate = "sync: local_sgd, outer: {lr: 1}"}),
              HasSubstr("outer is the optimizer of sync: diloco"));
  EXPECT_THAT(message_of({.replicate = "outer: {lr: 1}"}), HasSubstr("outer is the optimizer of sync: diloco"));
  EXPECT_THAT(message_of({.replicate = "sync: diloco, every: 0"}), HasSubstr("every"));
  EXPECT_THAT(message_of({.replicate = "sync: diloco, outer: {name: adam}"}), HasSubstr("sgd"));
  EXPECT_THAT(message_of({.replicate = "sync: diloco, outer: {momentum: 1}"}), HasSubstr("momentum"));
  EXPECT_THAT(message_of({.replicate = "sync: dilocco"}), HasSubstr("diloco"));
  EXPECT_THAT(message_of({.net = {.optimizer = "lbfgs"}, .replicate = "sync: diloco"}), HasSubstr("LBFGS"));
  EXPECT_THAT(message_of({.net = {.manual = true}, .replicate = "sync: diloco"}), HasSubstr("manual"));
  Plan batch_norm{.net = {.batch_norm = true}, .replicate = "sync: diloco"};
  batch_norm.change = [](TrainerOptions& options) { options.sync_batchnorm = true; };
  EXPECT_THAT(message_of(batch_norm), HasSubstr("sync_batchnorm"));
  Plan half{.replicate = "sync: diloco"};
  half.change = [](TrainerOptions& options) { options.precision = "16-mixed"; };
  EXPECT_THAT(message_of(half), HasSubstr("16-mixed"));
  for (const auto& callback : std::initializer_list<std::shared_ptr<Callback>>{make<WeightAveraging>({}),
                                                                               make<ModelPruning>({.amount = 0.5})}) {
    Plan changed{.replicate = "sync: diloco"};
    changed.change = [&](TrainerOptions& options) { options.callbacks.push_back(callback); };
    EXPECT_THAT(message_of(changed), HasSubstr("sync: local_sgd or diloco"));
  }
  Plan sharded{.replicate = "sync: diloco", .ranks = 4};
  sharded.change = [](TrainerOptions& options) {
    options.strategy = Spec<Strategy>(
        Config::parse("{replicate: {size: 2, sync: diloco}, shard: 2, start_method: thread}", {.source = "test"}));
  };
  EXPECT_THAT(message_of(sharded), HasSubstr("trainer.strategy.replicate.sync does not work beside shard"));
}

}  // namespace
}  // namespace levin
