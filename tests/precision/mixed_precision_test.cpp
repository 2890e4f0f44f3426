#include <levin/core/precision/mixed_precision.h>

#include "tests/support/tiny.h"

#include <levin/callbacks/lambda_callback.h>
#include <levin/callbacks/model_checkpoint.h>
#include <levin/core/accelerators/accelerator_registry.h>
#include <levin/core/accelerators/cuda_accelerator.h>
#include <levin/core/base/error.h>
#include <levin/core/base/log.h>
#include <levin/core/base/seed.h>
#include <levin/core/base/weight_cast_scope.h>
#include <levin/core/checkpoint/checkpoint.h>
#include <levin/core/optim/sgd.h>
#include <levin/core/precision/full_precision.h>

#include <ATen/autocast_mode.h>
#include <gmock/gmock-matchers.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/sgd.h>

#include <array>
#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

namespace levin::testing {
namespace {

using ::testing::HasSubstr;

struct ScaledOptions {
  double lr = 0.05;
  bool libtorch_optimizer = false;
  bool scheduler = false;
  int64_t overflow_at = -1;  ///< the batch whose loss of rank `overflow_rank` is infinite; -2: all
  int64_t overflow_rank = 0;
  static void describe(Schema<ScaledOptions>& schema) {
    schema.field("lr", &ScaledOptions::lr, "learning rate");
    schema.field("libtorch_optimizer", &ScaledOptions::libtorch_optimizer, "torch::optim::SGD");
    schema.field("scheduler", &ScaledOptions::scheduler, "halves the learning rate at each step");
    schema.field("overflow_at", &ScaledOptions::overflow_at, "batch");
    schema.field("overflow_rank", &ScaledOptions::overflow_rank, "rank");
  }
};

class ScaledModule : public TinyModule {
 public:
  using Options = ScaledOptions;
  explicit ScaledModule(const Options& options) : TinyModule({}), scaled_(options) {}

  StepOutput training_step(const Batch& batch, int64_t batch_idx) override {
    at::Tensor loss = torch::nn::functional::mse_loss(forward(batch["x"]), batch["y"]);
    const bool overflows = scaled_.overflow_at == batch_idx || scaled_.overflow_at == -2;
    if (overflows && trainer().global_rank() == scaled_.overflow_rank)
      loss = loss * std::numeric_limits<float>::infinity();
    return loss;
  }
  OptimizerConfigs configure_optimizers() override {
    OptimizerConfig config;
    if (scaled_.libtorch_optimizer)
      config.optimizer = std::make_shared<torch::optim::SGD>(parameters(), torch::optim::SGDOptions(scaled_.lr));
    else
      config.optimizer = std::make_shared<optim::SGD>(parameters(), optim::SGDOptions{.lr = scaled_.lr});
    if (scaled_.scheduler)
      config.scheduler = {
          .name = "exponential", .interval = Interval::kStep, .options = Config::parse("{gamma: 0.5}", {})};
    return config;
  }

 private:
  ScaledOptions scaled_;
};

struct Trained {
  std::vector<at::Tensor> weights;
  double scale = 0;
  double learning_rate = 0;
};

Trained train(const ScaledOptions& module_options, const std::function<void(TrainerOptions&)>& configure = {},
              const std::string& ckpt = "") {
  seed_everything(5);
  const auto module = make<ScaledModule>(module_options);
  TrainerOptions options = quiet(1);
  // Small enough that these gradients do not overflow.
  options.precision = Spec<Precision>(Config::parse("{name: 16-mixed, init_scale: 256}", {}));
  if (configure) configure(options);
  Trainer trainer(options);
  Trained result;
  trainer.fit(module, tiny_loader(), DataLoaders(), ckpt);
  result.weights = weights(*module);
  if (const auto* mixed = dynamic_cast<const MixedPrecision*>(&trainer.precision()); mixed && mixed->scaler())
    result.scale = mixed->scaler()->current_scale();
  result.learning_rate = trainer.optimizers().at(0)->learning_rate();
  return result;
}

TEST(MixedPrecision, AutocastIsOnInForwardOnly) {
  BFloat16MixedPrecision precision;
  precision.set_up(at::kCPU);
  const at::Tensor weight = at::ones({2, 2}).requires_grad_();
  {
    const ForwardScope scope(precision);
    EXPECT_EQ(at::mm(weight, weight).scalar_type(), at::kBFloat16);
    {
      const FullPrecision island;
      EXPECT_EQ(at::mm(weight, weight).scalar_type(), at::kFloat);
    }
    EXPECT_EQ(at::mm(weight, weight).scalar_type(), at::kBFloat16);
  }
  EXPECT_FALSE(at::autocast::is_autocast_enabled(at::kCPU));
  EXPECT_EQ(at::mm(weight, weight).scalar_type(), at::kFloat);
}

TEST(MixedPrecision, AStepThatOverflowsChangesNothingButTheScale) {
  for (const bool libtorch_optimizer : {false, true}) {
    const auto one_step = [](TrainerOptions& options) { options.max_steps = 1; };
    seed_everything(5);
    const std::vector<at::Tensor> before = weights(*make<ScaledModule>({}));
    const Trained after = train({.libtorch_optimizer = libtorch_optimizer, .overflow_at = 0}, one_step);
    EXPECT_TRUE(identical(after.weights, before));
    EXPECT_EQ(after.scale, 128);
    EXPECT_FALSE(identical(train({.libtorch_optimizer = libtorch_optimizer}, one_step).weights, before));
  }
}

TEST(MixedPrecision, TheSchedulerWaitsForASkippedStep) {
  EXPECT_DOUBLE_EQ(train({.scheduler = true}).learning_rate, 0.05 / 32);  // five batches
  EXPECT_DOUBLE_EQ(train({.scheduler = true, .overflow_at = 2}).learning_rate, 0.05 / 16);
}

TEST(MixedPrecision, LibTorchsOptimizersTakeTheSameSteps) {
  const auto ours = train({});
  const auto theirs = train({.libtorch_optimizer = true});
  for (size_t i = 0; i < ours.weights.size(); ++i)
    EXPECT_TRUE(at::allclose(ours.weights[i], theirs.weights[i], 1e-5, 1e-6));
}

TEST(MixedPrecision, HooksAndClippingSeeUnscaledGradients) {
  std::vector<double> norms;
  const auto clipped = [&](bool mixed) {
    return [&norms, mixed](TrainerOptions& options) {
      if (!mixed) options.precision = "32-true";
      options.gradient_clip_val = 0.2;
      options.callbacks = {
          make<LambdaCallback>({.on_before_optimizer_step = [&](Trainer&, Module& module, OptimizerHandle&) {
            norms.push_back(optim::gradient_norm(module.parameters()).item<double>());
          }})};
    };
  };
  const Trained full = train({}, clipped(false));
  const std::vector<double> expected = std::exchange(norms, {});
  const Trained mixed = train({}, clipped(true));
  ASSERT_EQ(norms.size(), expected.size());
  for (size_t i = 0; i < norms.size(); ++i) EXPECT_NEAR(norms[i], expected[i], 0.02 * expected[i]);
  for (size_t i = 0; i < full.weights.size(); ++i)
    EXPECT_TRUE(at::allclose(mixed.weights[i], full.weights[i], 0.01, 0.003));
  // The pass of a fused step clips as the separate one before another optimizer's does.
  const Trained separate = train({.libtorch_optimizer = true}, clipped(true));
  for (size_t i = 0; i < full.weights.size(); ++i)
    EXPECT_TRUE(at::allclose(mixed.weights[i], separate.weights[i], 1e-5, 1e-6));
}

TEST(MixedPrecision, ResumesToTheBitWithItsScale) {
  const std::string root = fresh_folder("mixed");
  const auto until = [&](int64_t steps) {
    return [&root, steps](TrainerOptions& options) {
      options.max_epochs = 3;
      options.max_steps = steps;
      options.precision = Spec<Precision>(Config::parse("{name: 16-mixed, growth_interval: 3}", {}));
      options.default_root_dir = root + "/" + std::to_string(steps);
      options.enable_checkpointing = true;
      options.callbacks = {make<ModelCheckpoint>({.save_last = true})};
    };
  };
  const ScaledOptions module{.scheduler = true, .overflow_at = 2};
  const Trained whole = train(module, until(11));
  train(module, until(4));
  const Trained resumed = train(module, until(11), root + "/4/version_0/checkpoints/last");
  EXPECT_TRUE(identical(resumed.weights, whole.weights));
  EXPECT_EQ(resumed.scale, whole.scale);
  EXPECT_DOUBLE_EQ(resumed.learning_rate, whole.learning_rate);
}

TEST(MixedPrecision, OneRanksOverflowIsAllRanks) {
  seed_everything(5);
  const std::vector<at::Tensor> before = weights(*make<ScaledModule>({}));
  const Trained after = train({.overflow_at = 0, .overflow_rank = 1}, [](TrainerOptions& options) {
    options.strategy = "ddp_threads";
    options.devices = 2;
    options.max_steps = 1;
  });
  EXPECT_TRUE(identical(after.weights, before));
  EXPECT_EQ(after.scale, 128);
}

TEST(MixedPrecision, WarnsWhenNothingButSkippedStepsCome) {
  std::vector<std::string> lines;
  log::set_sink([&](const std::string& line) { lines.push_back(line); });
  train({.overflow_at = -2}, [](TrainerOptions& options) { options.max_epochs = 8; });
  log::set_sink({});
  const std::string all = ::testing::PrintToString(lines);
  EXPECT_THAT(all, HasSubstr("the last 32 optimizer steps were skipped"));
  EXPECT_THAT(all, HasSubstr("now 5.96046e-08"));  // 2^8 after 32 halvings
}

/// Trains by hand in both precisions and compares the weights.
template <class ByHand>
void expect_same_in_half_precision(const std::string& strategy = "{name: single_device}") {
  SCOPED_TRACE(strategy);
  std::vector<std::vector<at::Tensor>> trained;
  for (const char* precision : {"{name: 32-true}", "{name: 16-mixed, growth_interval: 1, init_scale: 256}"}) {
    seed_everything(5);
    TrainerOptions options = quiet(1);
    // It grows after every batch: between the steps of one it must not.
    options.precision = Spec<Precision>(Config::parse(precision, {}));
    options.strategy = Spec<Strategy>(Config::parse(strategy, {}));
    options.devices = strategy.find("single_device") != std::string::npos ? 1 : 2;
    Trainer trainer(options);
    const auto module = std::make_shared<ByHand>();
    trainer.fit(module, tiny_loader());
    trained.push_back(weights(*module));
  }
  for (size_t i = 0; i < trained[0].size(); ++i)
    EXPECT_TRUE(at::allclose(trained[1][i], trained[0][i], 0.01, 0.003)) << trained[1][i] - trained[0][i];
}

TEST(MixedPrecision, TwoOptimizersOfABatchShareItsScale) {
  class TwoOptimizers : public TinyModule {
   public:
    TwoOptimizers() : TinyModule({}) { automatic_optimization = false; }
    StepOutput training_step(const Batch& batch, int64_t) override {
      const auto loss = [&] { return torch::nn::functional::mse_loss(forward(batch["x"]), batch["y"]); };
      for (auto* handle : optimizers()) handle->zero_grad();
      manual_backward(loss());
      optimizer(0).step();
      clip_gradients(optimizer(1), 1e6);
      EXPECT_LT(optim::gradient_norm(second_->parameters()).item<double>(), 100);
      optimizer(1).step();
      return {};
    }
    OptimizerConfigs configure_optimizers() override {
      const auto sgd = [](std::vector<at::Tensor> parameters) {
        return OptimizerConfig{.optimizer =
                                   std::make_shared<optim::SGD>(std::move(parameters), optim::SGDOptions{.lr = 0.01})};
      };
      return {sgd(first_->parameters()), sgd(second_->parameters())};
    }
  };
  expect_same_in_half_precision<TwoOptimizers>();
}

class StepsByHand : public TinyModule {
 public:
  StepsByHand() : TinyModule({}) { automatic_optimization = false; }
  void compute_gradients(const Batch& batch) {
    optimizer().zero_grad();
    manual_backward(torch::nn::functional::mse_loss(forward(batch["x"]), batch["y"]));
  }
};

TEST(MixedPrecision, AnOptimizerMayStepSeveralTimesABatch) {
  class Critic : public StepsByHand {
   public:
    StepOutput training_step(const Batch& batch, int64_t) override {
      for (int i = 0; i < 3; ++i) {
        compute_gradients(batch);
        optimizer().step();
      }
      return {};
    }
  };
  expect_same_in_half_precision<Critic>();
}

TEST(MixedPrecision, GradientsThatWereClippedForNoStepLeaveNothing) {
  class StepsSometimes : public StepsByHand {
   public:
    StepOutput training_step(const Batch& batch, int64_t batch_idx) override {
      compute_gradients(batch);
      clip_gradients(optimizer(), 0.5);
      if (batch_idx % 2 == 1) optimizer().step();
      return {};
    }
  };
  expect_same_in_half_precision<StepsSometimes>();
}

/// Two halves with an optimizer each; `kSync` as for gradients that only add up.
template <bool kSync>
class WindowsOfTheirOwn : public TinyModule {
 public:
  WindowsOfTheirOwn() : TinyModule({}) { automatic_optimization = false; }
  StepOutput training_step(const Batch& batch, int64_t) override {
    // The scale changes in every batch; one half steps in each, the other adds up three.
    const bool ends = trainer().total_batches() % 3 == 2;
    for (size_t half : {0, 1}) {
      const auto toggled = toggle_optimizer(optimizer(half), {.sync_grad = kSync || half == 0 || ends});
      manual_backward(torch::nn::functional::mse_loss(forward(batch["x"]), batch["y"]));
      if (half == 1 && !ends) continue;
      optimizer(half).step();
      optimizer(half).zero_grad();
    }
    return {};
  }
  OptimizerConfigs configure_optimizers() override {
    const auto sgd = [](std::vector<at::Tensor> parameters) {
      return OptimizerConfig{.optimizer =
                                 std::make_shared<optim::SGD>(std::move(parameters), optim::SGDOptions{.lr = 0.01})};
    };
    return {sgd(first_->parameters()), sgd(second_->parameters())};
  }
};

TEST(MixedPrecision, GradientsThatWaitForALaterBatchHaveOneScale) {
  for (const char* strategy : {"{name: single_device}", "{name: ddp_spawn}", "{name: sharded_spawn, stage: 1}",
                               "{name: sharded_spawn, stage: 2}", "{name: sharded_spawn, stage: 3}",
                               "{name: parameter_server_spawn, servers: 2}"}) {
    expect_same_in_half_precision<WindowsOfTheirOwn<true>>(strategy);
    expect_same_in_half_precision<WindowsOfTheirOwn<false>>(strategy);
  }
}

TEST(MixedPrecision, MoreMayBeAddedToGradientsThatWereClippedOrStepped) {
  class ClipsInItsWindow : public StepsByHand {
   public:
    StepOutput training_step(const Batch& batch, int64_t batch_idx) override {
      manual_backward(torch::nn::functional::mse_loss(forward(batch["x"]), batch["y"]));
      clip_gradients(optimizer(), 0.5);
      if (batch_idx % 2 == 0) return {};
      optimizer().step();
      optimizer().zero_grad();
      return {};
    }
  };
  class ClipsBetweenBackwards : public StepsByHand {
   public:
    StepOutput training_step(const Batch& batch, int64_t) override {
      compute_gradients(batch);
      clip_gradients(optimizer(), 0.5);
      manual_backward(torch::nn::functional::mse_loss(forward(batch["x"]), batch["y"]));
      optimizer().step();
      return {};
    }
  };
  class ClipsForNothing : public StepsByHand {
   public:
    StepOutput training_step(const Batch& batch, int64_t) override {
      compute_gradients(batch);
      clip_gradients(optimizer(), 0.5);
      compute_gradients(batch);
      optimizer().step();
      return {};
    }
  };
  class AddsToWhatItStepped : public StepsByHand {
   public:
    StepOutput training_step(const Batch& batch, int64_t) override {
      compute_gradients(batch);
      optimizer().step();
      manual_backward(torch::nn::functional::mse_loss(forward(batch["x"]), batch["y"]));
      optimizer().step();
      return {};
    }
  };
  for (const char* strategy : {"{name: single_device}", "{name: ddp_spawn}", "{name: sharded_spawn}"}) {
    expect_same_in_half_precision<ClipsInItsWindow>(strategy);
    expect_same_in_half_precision<ClipsBetweenBackwards>(strategy);
    expect_same_in_half_precision<ClipsForNothing>(strategy);
    expect_same_in_half_precision<AddsToWhatItStepped>(strategy);
  }
}

/// Two halves with an optimizer each; what a batch does is up to the test.
class Halves : public TinyModule {
 public:
  explicit Halves(const TinyOptions& options) : TinyModule(options) { automatic_optimization = false; }
  StepOutput training_step(const Batch& batch, int64_t batch_idx) override {
    step(*this, batch, batch_idx);
    return {};
  }
  OptimizerConfigs configure_optimizers() override {
    const auto sgd = [](std::vector<at::Tensor> parameters) {
      return OptimizerConfig{.optimizer =
                                 std::make_shared<optim::SGD>(std::move(parameters), optim::SGDOptions{.lr = 0.01})};
    };
    return {sgd(first_->parameters()), sgd(second_->parameters())};
  }
  at::Tensor loss(const Batch& batch) { return torch::nn::functional::mse_loss(forward(batch["x"]), batch["y"]); }
  /// Runs backward for one half.
  void add(size_t half, const at::Tensor& loss, bool sync_grad = true) {
    const auto toggled = toggle_optimizer(optimizer(half), {.sync_grad = sync_grad});
    manual_backward(loss);
  }
  void take_step(size_t half) {
    optimizer(half).step();
    optimizer(half).zero_grad();
  }
  const torch::nn::Linear& first() const { return first_; }

  /// What thread ranks' modules, made again by their recipe, do as well.
  inline static std::function<void(Halves&, const Batch&, int64_t)> step;
};

double scale_of(const Trainer& trainer) {
  return dynamic_cast<const MixedPrecision&>(trainer.precision()).scaler()->current_scale();
}

constexpr std::array kDividingStrategies = {"{name: sharded_threads, stage: 1}", "{name: sharded_threads, stage: 2}",
                                            "{name: sharded_threads, stage: 3}",
                                            "{name: parameter_server_threads, servers: 2}"};

TrainerOptions half_precision_options(const char* strategy) {
  TrainerOptions options = quiet(1);
  options.precision = Spec<Precision>(Config::parse("{name: 16-mixed, growth_interval: 1, init_scale: 256}", {}));
  options.strategy = Spec<Strategy>(Config::parse(strategy, {}));
  options.devices = std::string(strategy) == "{name: single_device}" ? 1 : 2;
  return options;
}

TEST(MixedPrecision, WhatClippingFoundInDroppedGradientsLeavesRanksOneScale) {
  // The gradient of one tensor alone, which one of the ranks has, overflows.
  Halves::step = [](Halves& module, const Batch& batch, int64_t) {
    module.add(0, module.loss(batch) + (module.first()->weight * std::numeric_limits<float>::infinity()).sum());
    module.clip_gradients(module.optimizer(0), 1);
    module.optimizer(0).zero_grad();
    module.add(1, module.loss(batch));
    module.take_step(1);
  };
  std::vector<const char*> strategies(kDividingStrategies.begin(), kDividingStrategies.end());
  strategies.push_back("{name: single_device}");
  for (const char* strategy : strategies) {
    TrainerOptions options = half_precision_options(strategy);
    options.callbacks = {make<LambdaCallback>({.on_train_end = [&](Trainer& trainer, Module& module) {
      const at::Tensor scales = module.all_gather(at::tensor(scale_of(trainer), at::kDouble));
      EXPECT_TRUE(scales.eq(256 << trainer.global_step()).all().item<bool>()) << strategy << ": " << scales;
    }})};
    Trainer(options).fit(make<Halves>({}), tiny_loader());
  }
}

TEST(MixedPrecision, AScaleThatWaitedForGradientsIsInTheCheckpointAfterThem) {
  // In the first batch the first half's step overflows while the second half's gradients stay on the ranks.
  Halves::step = [](Halves& module, const Batch& batch, int64_t batch_idx) {
    if (batch_idx % 3 == 0) {
      module.add(0, batch_idx == 0 ? module.loss(batch) * std::numeric_limits<float>::infinity() : module.loss(batch));
      module.take_step(0);
    }
    if (batch_idx % 3 < 2) module.add(1, module.loss(batch), /*sync_grad=*/batch_idx % 3 == 1);
    if (batch_idx % 3 == 2) module.take_step(1);
  };
  for (const char* strategy : kDividingStrategies) {
    const std::string path = fresh_folder("scale") + "/checkpoint";
    std::vector<std::vector<at::Tensor>> trained;
    std::vector<double> scales;
    for (const bool resumes : {false, true}) {
      TrainerOptions options = half_precision_options(strategy);
      options.callbacks = {
          make<LambdaCallback>({.on_train_end =
                                    [&](Trainer& trainer, Module&) {
                                      if (trainer.is_global_zero()) scales.push_back(scale_of(trainer));
                                    },
                                .on_train_batch_end =
                                    [&](Trainer& trainer, Module&, const StepOutput&, const Batch&, int64_t batch_idx) {
                                      if (!resumes && batch_idx == 1) trainer.save_checkpoint(path);
                                    }})};
      seed_everything(5);
      const auto module = make<Halves>({});
      Trainer(options).fit(module, tiny_loader(), DataLoaders(), resumes ? path : "");
      trained.push_back(weights(*module));
    }
    EXPECT_EQ(read_checkpoint(path, {"precision"}).at("precision").at("scale").as_double(), 128) << strategy;
    EXPECT_EQ(scales.at(1), scales.at(0)) << strategy;
    EXPECT_TRUE(identical(trained[1], trained[0])) << strategy;
  }
}

TEST(MixedPrecision, AHookMayClipInsideOfAWindow) {
  class ClipsAfterBackward : public TinyModule {
   public:
    ClipsAfterBackward() : TinyModule({}) {}
    StepOutput training_step(const Batch& batch, int64_t) override {
      return torch::nn::functional::mse_loss(forward(batch["x"]), batch["y"]);
    }
    void on_after_backward() override { clip_gradients(*trainer().optimizers().front(), 0.5); }
    OptimizerConfigs configure_optimizers() override {
      return OptimizerConfig{.optimizer = std::make_shared<optim::SGD>(parameters(), optim::SGDOptions{.lr = 0.05})};
    }
  };
  std::vector<std::vector<at::Tensor>> trained;
  for (const char* precision : {"{name: 32-true}", "{name: 16-mixed, init_scale: 256}"}) {
    seed_everything(5);
    TrainerOptions options = quiet(1);
    options.precision = Spec<Precision>(Config::parse(precision, {}));
    options.accumulate_grad_batches = 3;
    const auto module = std::make_shared<ClipsAfterBackward>();
    Trainer(options).fit(module, tiny_loader());
    trained.push_back(weights(*module));
  }
  for (size_t i = 0; i < trained[0].size(); ++i)
    EXPECT_TRUE(at::allclose(trained[1][i], trained[0][i], 0.01, 0.003)) << trained[1][i] - trained[0][i];
}

TEST(MixedPrecision, AForwardAfterAStepByHandSeesTheNewWeights) {
  class StepsInForward : public TinyModule {
   public:
    StepsInForward() : TinyModule({}) { automatic_optimization = false; }
    StepOutput training_step(const Batch& batch, int64_t) override {
      optimizer().zero_grad();
      manual_backward(torch::nn::functional::mse_loss(forward(batch["x"]), batch["y"]));
      optimizer().step();
      const at::Tensor again = forward(batch["x"]);
      WeightCastScope::forget();
      EXPECT_TRUE(again.equal(forward(batch["x"])));
      EXPECT_EQ(again.scalar_type(), at::kBFloat16);
      return {};
    }
  };
  TrainerOptions options = quiet(1);
  options.precision = "bf16-mixed";
  Trainer trainer(options);
  trainer.fit(std::make_shared<StepsInForward>(), tiny_loader());
}

// ---- Bad input

std::string message_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing was thrown";
}

TEST(PrecisionErrors, HalfPrecisionWithDataParallelNamesBoth) {
  for (const char* precision : {"16-mixed", "bf16-mixed", "16-true", "bf16-true", "16", "bf16"}) {
    const std::string message = message_of([&] {
      train({}, [&](TrainerOptions& options) {
        options.strategy = "dp";
        options.devices = 2;
        options.precision = precision;
      });
    });
    EXPECT_THAT(message, HasSubstr("trainer.precision is"));
    EXPECT_THAT(message, HasSubstr("trainer.strategy 'dp'"));
  }
}

TEST(PrecisionErrors, AnOptimizerThatEvaluatesTheLossCannotFollowAScale) {
  class WithLbfgs : public TinyModule {
   public:
    WithLbfgs() : TinyModule({}) {}
    OptimizerConfigs configure_optimizers() override {
      return OptimizerConfig{.optimizer = std::make_shared<torch::optim::LBFGS>(parameters())};
    }
  };
  TrainerOptions options = quiet(1);
  options.precision = "16-mixed";
  Trainer trainer(options);
  EXPECT_THAT(message_of([&] { trainer.fit(std::make_shared<WithLbfgs>(), tiny_loader()); }), HasSubstr("LBFGS"));
}

TEST(PrecisionErrors, AnOptimizerWithAParameterThatTheModuleLacks) {
  class Foreign : public TinyModule {
   public:
    Foreign() : TinyModule({}) {}
    OptimizerConfigs configure_optimizers() override {
      return OptimizerConfig{.optimizer = std::make_shared<optim::SGD>(
                                 std::vector<at::Tensor>{at::zeros({3, 7}).requires_grad_()}, optim::SGDOptions{})};
    }
  };
  Trainer trainer(quiet(1));
  EXPECT_THAT(message_of([&] { trainer.fit(std::make_shared<Foreign>(), tiny_loader()); }),
              HasSubstr("a parameter of shape [3, 7] that the module does not have"));
}

TEST(PrecisionErrors, OptionsOfTheScalerAreChecked) {
  const auto with = [](const std::string& precision) {
    return message_of([&] {
      train({}, [&](TrainerOptions& options) { options.precision = Spec<Precision>(Config::parse(precision, {})); });
    });
  };
  EXPECT_THAT(with("{name: 16-mixed, init_scale: 0}"), HasSubstr("init_scale"));
  EXPECT_THAT(with("{name: 16-mixed, backoff_factor: 1.5}"), HasSubstr("backoff_factor"));
  EXPECT_THAT(with("{name: 16-mixed, interval: 5}"), HasSubstr("growth_interval"));
  EXPECT_THAT(with("17-mixed"), HasSubstr("16-mixed"));
}

TEST(HalfPrecisionSupport, FollowsTheComputeCapability) {
  EXPECT_TRUE(CudaAccelerator::computes_in_hardware(at::kBFloat16, 8, 0));
  EXPECT_FALSE(CudaAccelerator::computes_in_hardware(at::kBFloat16, 7, 5));
  EXPECT_TRUE(CudaAccelerator::computes_in_hardware(at::kHalf, 5, 3));
  EXPECT_FALSE(CudaAccelerator::computes_in_hardware(at::kHalf, 5, 2));
  EXPECT_EQ(accelerator_of(at::kCPU).lacks_type(at::kCPU, at::kBFloat16), "");
}

}  // namespace
}  // namespace levin::testing
