// Modules that step their optimizers themselves.

#include "../support/tiny.h"
#include "../support/tiny_stream.h"

#include <levin/callbacks/gradient_norm_monitor.h>
#include <levin/callbacks/lambda_callback.h>
#include <levin/callbacks/learning_rate_monitor.h>
#include <levin/callbacks/model_checkpoint.h>
#include <levin/core/base/error.h>
#include <levin/core/base/seed.h>
#include <levin/core/checkpoint/checkpoint.h>
#include <levin/core/checkpoint/checkpoint_info.h>
#include <levin/core/interfaces/logger.h>
#include <levin/core/interfaces/strategy.h>
#include <levin/core/optim/scheduler.h>
#include <levin/core/optim/sgd.h>

#include <gmock/gmock-matchers.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/modules/batchnorm.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace levin {
namespace {

using testing::identical;
using testing::quiet;
using testing::tiny_dataset;
using testing::tiny_loader;
using testing::TinyModule;
using testing::TinyOptions;
using testing::weights;

/// One optimizer for each layer, both with momentum and a schedule. What a step does is up to the test.
class TwoOptimizers : public TinyModule {
 public:
  explicit TwoOptimizers(const TinyOptions& options) : TinyModule(options) { automatic_optimization = false; }

  OptimizerConfigs configure_optimizers() override {
    const auto with = [](const torch::nn::Linear& layer, double gamma) {
      return OptimizerConfig{
          .optimizer = std::make_shared<optim::SGD>(layer->parameters(), optim::SGDOptions{.lr = 0.1, .momentum = 0.9}),
          .scheduler = {.name = "exponential", .options = Config::parse("gamma: " + std::to_string(gamma), {})}};
    };
    return {with(first_, 0.9), with(second_, 0.5)};
  }
  StepOutput training_step(const Batch& batch, int64_t batch_idx) override {
    step(*this, batch, batch_idx);
    return {};
  }
  at::Tensor loss(const Batch& batch) { return torch::nn::functional::mse_loss(forward(batch["x"]), batch["y"]); }
  void update(OptimizerHandle& optimizer, const Batch& batch) {
    const auto toggled = toggle_optimizer(optimizer);
    optimizer.zero_grad();
    manual_backward(loss(batch));
    optimizer.step();
  }
  const at::Tensor& first_weight() const { return first_->weight; }
  const at::Tensor& second_weight() const { return second_->weight; }

  /// What thread ranks' modules, made again by their recipe, do as well.
  inline static std::function<void(TwoOptimizers&, const Batch&, int64_t)> step;
};

/// Both layers, one after the other.
void update_both(TwoOptimizers& module, const Batch& batch, int64_t) {
  for (OptimizerHandle* optimizer : module.optimizers()) module.update(*optimizer, batch);
}

std::string refusal_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "nothing was thrown";
}

/// Weights after training with a global batch.
std::vector<at::Tensor> train(const char* strategy, int devices, int64_t examples = 40, int64_t batch_size = 8) {
  seed_everything(3);
  const auto module = make<TwoOptimizers>({});
  TrainerOptions options = quiet(2);
  options.strategy = Spec<Strategy>(Config::parse(strategy, {}));
  options.devices = devices;
  Trainer(options).fit(module, DataLoader(tiny_dataset(examples), {.global_batch_size = batch_size}));
  return weights(*module);
}

void expect_near(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(a[i].allclose(b[i], 1e-5, 1e-5)) << "tensor " << i;
}

void expect_threads_as_one_device(int64_t examples = 40) {
  const auto expected = train("single_device", 1, examples);
  expect_near(train("ddp_threads", 2, examples), expected);
}

void expect_same_on_all_ranks(const Module& module, const at::Tensor& value, bool same) {
  if (module.trainer().world_size() == 1) return;
  const at::Tensor all = module.all_gather(value);
  EXPECT_EQ(all[0].equal(all[all.size(0) - 1]), same);
}

TEST(ManualOptimization, ScopesWithoutSyncAccumulateOnTheRank) {
  TwoOptimizers::step = [](TwoOptimizers& module, const Batch& batch, int64_t batch_idx) {
    const bool combine = batch_idx % 2 == 1;
    for (OptimizerHandle* optimizer : module.optimizers()) {
      const auto toggled = module.toggle_optimizer(*optimizer, {.sync_grad = combine});
      module.manual_backward(module.loss(batch) / 2);
      expect_same_on_all_ranks(module, optimizer->parameters().front().grad(), combine);
      if (!combine) continue;
      optimizer->step();
      optimizer->zero_grad();
    }
  };
  expect_threads_as_one_device();
}

bool is_sharded(const Module& module) { return module.trainer().strategy().name().starts_with("sharded"); }

/// As docs/manual-optimization.md and the GAN example accumulate.
void accumulate(TwoOptimizers& module, const Batch& batch, int64_t batch_idx, int64_t batches) {
  const int64_t place = batch_idx % batches;
  const int64_t left = module.trainer().num_training_batches().value() - (batch_idx - place);
  const int64_t window = std::min(batches, left);
  const bool is_last = place == window - 1;
  for (OptimizerHandle* optimizer : module.optimizers()) {
    const auto toggled = module.toggle_optimizer(*optimizer, {.sync_grad = is_last});
    module.manual_backward(module.loss(batch) / window);
    if (is_sharded(module)) continue;
    expect_same_on_all_ranks(module, optimizer->parameters().front().grad(), is_last);
  }
  if (!is_last) return;
  for (OptimizerHandle* optimizer : module.optimizers()) {
    optimizer->step();
    optimizer->zero_grad();
  }
}

TEST(ManualOptimization, TwoBatchesAccumulatedTrainAsOneOfTwiceTheSize) {
  constexpr int64_t kExamples = 40;  // five batches of 8 an epoch: the last window has one
  TwoOptimizers::step = [](TwoOptimizers& module, const Batch& batch, int64_t batch_idx) {
    accumulate(module, batch, batch_idx, 1);
  };
  const auto expected = train("single_device", 1, kExamples, 16);
  TwoOptimizers::step = [](TwoOptimizers& module, const Batch& batch, int64_t batch_idx) {
    accumulate(module, batch, batch_idx, 2);
  };
  expect_near(train("single_device", 1, kExamples), expected);
  expect_near(train("ddp_threads", 2, kExamples), expected);
}

constexpr std::array kShardedStrategies = {
    "{name: sharded_threads, stage: 1}", "{name: sharded_threads, stage: 1, bucket_cap_mb: 0.0001}",
    "{name: sharded_threads, stage: 2}", "{name: sharded_threads, stage: 2, keep_window_gradients: true}",
    "{name: sharded_threads, stage: 3}", "{name: sharded_threads, stage: 3, keep_window_gradients: true}",
};

TEST(ManualOptimization, ShardsAccumulateForToggledOptimizers) {
  TwoOptimizers::step = [](TwoOptimizers& module, const Batch& batch, int64_t batch_idx) {
    accumulate(module, batch, batch_idx, 2);
  };
  const auto expected = train("single_device", 1);
  for (const char* strategy : kShardedStrategies) {
    SCOPED_TRACE(strategy);
    expect_near(train(strategy, 2), expected);
  }
}

TEST(ManualOptimization, ABackwardOfOtherParametersLeavesWhatShardsHave) {
  TwoOptimizers::step = [](TwoOptimizers& module, const Batch& batch, int64_t) {
    for (const size_t i : {1, 0}) {
      const auto toggled = module.toggle_optimizer(module.optimizer(i));
      module.manual_backward(module.loss(batch));
    }
    for (OptimizerHandle* optimizer : module.optimizers()) {
      optimizer->step();
      optimizer->zero_grad();
    }
  };
  const auto expected = train("single_device", 1);
  for (const char* strategy : kShardedStrategies) {
    SCOPED_TRACE(strategy);
    expect_near(train(strategy, 2), expected);
  }
}

void step_all(TwoOptimizers& module) {
  for (OptimizerHandle* optimizer : module.optimizers()) optimizer->step();
}

void expect_ranks_as_one_device() {
  const auto expected = train("single_device", 1);
  std::vector<const char*> strategies(kShardedStrategies.begin(), kShardedStrategies.end());
  strategies.insert(strategies.end(), {"ddp_threads", "{name: parameter_server_threads, servers: 1}",
                                       "{name: parameter_server_threads, servers: 2}"});
  for (const char* strategy : strategies) {
    SCOPED_TRACE(strategy);
    expect_near(train(strategy, 2), expected);
  }
}

TEST(ManualOptimization, ZeroGradDropsAWindowThatAnEpochLeavesOpen) {
  // Windows of three of the five batches.
  TwoOptimizers::step = [](TwoOptimizers& module, const Batch& batch, int64_t batch_idx) {
    const int64_t place = batch_idx % 3;
    for (OptimizerHandle* optimizer : module.optimizers()) {
      if (place == 0) optimizer->zero_grad();
      const auto toggled = module.toggle_optimizer(*optimizer, {.sync_grad = place == 2});
      module.manual_backward(module.loss(batch) / 3);
    }
    if (place == 2) step_all(module);
  };
  expect_ranks_as_one_device();
}

TEST(ManualOptimization, ZeroGradDropsWhatARankKeptOfItsOptimizerAlone) {
  // The second batch of a window of three begins the first optimizer's anew, and not the second one's.
  TwoOptimizers::step = [](TwoOptimizers& module, const Batch& batch, int64_t batch_idx) {
    const int64_t place = batch_idx % 3;
    if (place == 1) module.optimizer(0).zero_grad();
    module.manual_backward(module.loss(batch) / 3, {.sync_grad = place == 2});
    if (place != 2) return;
    step_all(module);
    for (OptimizerHandle* optimizer : module.optimizers()) optimizer->zero_grad();
  };
  expect_ranks_as_one_device();
}

TEST(ManualOptimization, ABackwardOfOthersCombinesNothingThatZeroGradDropped) {
  TwoOptimizers::step = [](TwoOptimizers& module, const Batch& batch, int64_t) {
    module.manual_backward(module.loss(batch), {.sync_grad = false});
    module.optimizer(0).zero_grad();
    {
      const auto toggled = module.toggle_optimizer(module.optimizer(1));
      module.manual_backward(module.loss(batch));
    }
    {
      const auto toggled = module.toggle_optimizer(module.optimizer(0));
      module.manual_backward(module.loss(batch));
    }
    step_all(module);
    for (OptimizerHandle* optimizer : module.optimizers()) optimizer->zero_grad();
  };
  expect_ranks_as_one_device();
}

TEST(ManualOptimization, BackwardWithoutSyncAccumulatesOnTheRank) {
  TwoOptimizers::step = [](TwoOptimizers& module, const Batch& batch, int64_t batch_idx) {
    const bool combine = batch_idx % 3 == 2;
    module.manual_backward(module.loss(batch), {.sync_grad = combine});
    expect_same_on_all_ranks(module, module.first_weight().grad(), combine);
    if (!combine) return;
    for (OptimizerHandle* optimizer : module.optimizers()) {
      optimizer->step();
      optimizer->zero_grad();
    }
  };
  expect_threads_as_one_device();
}

TEST(ManualOptimization, ToggledAndWholeBackwardMix) {
  TwoOptimizers::step = [](TwoOptimizers& module, const Batch& batch, int64_t batch_idx) {
    update_both(module, batch, batch_idx);
    auto& first = module.optimizer(0);
    auto& second = module.optimizer(1);
    // The first layer's gradients are added up locally, then combined with those of both.
    first.zero_grad();
    second.zero_grad();
    {
      const auto toggled = module.toggle_optimizer(first, {.sync_grad = false});
      module.manual_backward(module.loss(batch));
    }
    module.manual_backward(module.loss(batch) / 2);
    second.step();
    first.step();
  };
  expect_threads_as_one_device();
}

TEST(ManualOptimization, UnevenLastBatchesAreWeightedByTheirExamples) {
  TwoOptimizers::step = update_both;
  expect_threads_as_one_device(43);
  expect_threads_as_one_device(41);
}

TEST(ManualOptimization, TheGraphMayBeKept) {
  TwoOptimizers::step = [](TwoOptimizers& module, const Batch& batch, int64_t) {
    for (OptimizerHandle* optimizer : module.optimizers()) optimizer->zero_grad();
    const at::Tensor loss = module.loss(batch);
    module.manual_backward(loss, {.retain_graph = true});
    const at::Tensor once = module.first_weight().grad().clone();
    module.manual_backward(loss);
    EXPECT_TRUE(module.first_weight().grad().allclose(2 * once));
  };
  Trainer(quiet(1)).fit(make<TwoOptimizers>({}), tiny_loader());
}

TEST(ManualOptimization, ARankWithoutDataGoesOnUntilNobodyHasAny) {
  std::atomic<int64_t> batches = 0;
  TwoOptimizers::step = [&](TwoOptimizers& module, const Batch& batch, int64_t batch_idx) {
    ++batches;
    update_both(module, batch, batch_idx);
    expect_same_on_all_ranks(module, module.first_weight(), true);
    if (batch_idx == 3) {
      // Rank 1 has none: what is left is the gradient of rank 0, neither halved nor mixed with the stand-in's.
      auto& first = module.optimizer(0);
      first.zero_grad();
      const at::Tensor loss = module.loss(batch);
      const at::Tensor own = torch::autograd::grad({loss}, {module.first_weight()}, {}, /*retain_graph=*/true)[0];
      module.manual_backward(loss);
      if (module.trainer().is_global_zero()) {
        EXPECT_TRUE(module.first_weight().grad().allclose(own));
      }
    }
  };
  TrainerOptions options = quiet(2);
  options.strategy = "ddp_threads";
  options.devices = 2;
  Trainer trainer(options);
  trainer.fit(make<TwoOptimizers>({}),
              DataLoader(std::make_shared<testing::TinyStream>(20, /*end_of_reader_1=*/12), {.batch_size = 2}));
  EXPECT_EQ(batches, 2 * 2 * 5);
  EXPECT_EQ(trainer.global_step(), 2 * 2 * 5);
}

/// Normalises its inputs, so that ranks would have running statistics of their own.
class Normalising : public TwoOptimizers {
 public:
  explicit Normalising(const TinyOptions& options) : TwoOptimizers(options) {
    norm_ = register_module("norm", torch::nn::BatchNorm1d(4));
  }
  StepOutput training_step(const Batch& batch, int64_t batch_idx) override {
    expect_same_on_all_ranks(*this, norm_->running_mean, true);
    update_both(*this, {{"x", norm_(batch["x"]).detach()}, {"y", batch["y"]}}, batch_idx);
    expect_same_on_all_ranks(*this, norm_->running_mean, false);
    return {};
  }

 private:
  torch::nn::BatchNorm1d norm_{nullptr};
};

TEST(ManualOptimization, BuffersOfRankZeroGoToAllBeforeEachStep) {
  TrainerOptions options = quiet(1);
  options.strategy = "ddp_threads";
  options.devices = 2;
  Trainer(options).fit(make<Normalising>({}), tiny_loader());
}

TEST(ManualOptimization, EachOptimizerStepCounts) {
  TwoOptimizers::step = update_both;
  TrainerOptions options = quiet(-1);
  options.max_steps = 5;
  Trainer trainer(options);
  trainer.fit(make<TwoOptimizers>({}), tiny_loader());
  EXPECT_EQ(trainer.global_step(), 6) << "training ends after the batch in which max_steps is reached";
  EXPECT_EQ(trainer.batch_idx(), 3);
}

TEST(ManualOptimization, HooksRunAroundBackwardAndSteps) {
  TwoOptimizers::step = update_both;
  std::string order;
  TrainerOptions options = quiet(1);
  options.limit_train_batches = BatchLimit(1);
  options.callbacks = {make<LambdaCallback>(LambdaCallbackOptions{
      .on_before_backward = [&](Trainer&, Module&, const at::Tensor& loss) { order += loss.numel() == 1 ? "b" : "?"; },
      .on_after_backward = [&](Trainer&, Module&) { order += "a"; },
      .on_before_optimizer_step = [&](Trainer&, Module&,
                                      OptimizerHandle& optimizer) { order += std::to_string(optimizer.index()); }})};
  Trainer(options).fit(make<TwoOptimizers>({}), tiny_loader());
  EXPECT_EQ(order, "ba0ba1");
}

TEST(ManualOptimization, SchedulersAreSteppedByTheModuleAlone) {
  TwoOptimizers::step = [](TwoOptimizers& module, const Batch& batch, int64_t batch_idx) {
    update_both(module, batch, batch_idx);
    module.scheduler(1).step();
    EXPECT_EQ(module.schedulers(), (std::vector<optim::Scheduler*>{&module.scheduler(0), &module.scheduler(1)}));
  };
  TrainerOptions options = quiet(2);
  Trainer trainer(options);
  trainer.fit(make<TwoOptimizers>({}), tiny_loader());
  EXPECT_DOUBLE_EQ(trainer.optimizers().at(0)->learning_rate(), 0.1) << "nobody stepped it";
  EXPECT_NEAR(trainer.optimizers().at(1)->learning_rate(), 0.1 * std::pow(0.5, 10), 1e-12);
}

TEST(ManualOptimization, ASchedulerThatIsNotThereIsNamed) {
  class Unscheduled : public TwoOptimizers {
   public:
    using TwoOptimizers::TwoOptimizers;
    OptimizerConfigs configure_optimizers() override {
      auto configs = TwoOptimizers::configure_optimizers();
      configs[0].scheduler = {};
      return configs;
    }
  };
  TwoOptimizers::step = [](TwoOptimizers& module, const Batch&, int64_t) {
    EXPECT_THAT(refusal_of([&] { module.scheduler(); }), ::testing::HasSubstr("optimizer(0) has no scheduler"));
    EXPECT_THAT(refusal_of([&] { module.scheduler(2); }), ::testing::HasSubstr("there is no optimizer(2)"));
    EXPECT_EQ(module.schedulers().size(), 1u);
  };
  Trainer(quiet(1)).fit(make<Unscheduled>({}), tiny_loader());
}

/// What a run of some optimizer steps leaves, from the start or from a checkpoint.
struct Trained {
  std::vector<at::Tensor> weights;
  std::vector<double> rates;
  std::string checkpoint;
};

Trained train_steps(int64_t steps, const std::string& ckpt, const char* strategy = "single_device") {
  seed_everything(5);
  const auto module = make<TwoOptimizers>({.dropout = 0.3});
  TrainerOptions options = quiet(-1);
  options.max_steps = steps;
  options.strategy = strategy;
  options.devices = std::string(strategy) == "single_device" ? 1 : 2;
  options.enable_checkpointing = true;
  options.default_root_dir = testing::fresh_folder("manual_resume");
  options.callbacks = {make<ModelCheckpoint>({.save_last = true})};
  Trainer trainer(options);
  trainer.fit(module, DataLoader(tiny_dataset(40), {.shuffle = true, .global_batch_size = 8}), {}, ckpt);
  Trained trained{weights(*module), {}, trainer.checkpoint_callback()->last_model_path()};
  for (const auto* optimizer : trainer.optimizers()) trained.rates.push_back(optimizer->learning_rate());
  return trained;
}

TEST(ManualOptimization, ResumesToTheBitWithItsSchedulers) {
  TwoOptimizers::step = [](TwoOptimizers& module, const Batch& batch, int64_t batch_idx) {
    update_both(module, batch, batch_idx);
    if (batch_idx % 2 == 0) module.scheduler(0).step();
    module.scheduler(1).step();
  };
  const Trained whole = train_steps(26, "");
  const Trained part = train_steps(14, "");
  EXPECT_NE(part.rates, whole.rates);
  ASSERT_NE(part.checkpoint, "");
  const Trained resumed = train_steps(26, part.checkpoint);
  EXPECT_TRUE(identical(resumed.weights, whole.weights));
  EXPECT_EQ(resumed.rates, whole.rates);
}

TEST(ManualOptimization, GradientsThatAwaitAStepAreResumed) {
  // The first optimizer steps in every batch, the second one in every third and adds up gradients in between.
  TwoOptimizers::step = [](TwoOptimizers& module, const Batch& batch, int64_t batch_idx) {
    module.update(module.optimizer(0), batch);
    auto& second = module.optimizer(1);
    const bool last = batch_idx % 3 == 2;
    const auto toggled = module.toggle_optimizer(second, {.sync_grad = last});
    module.manual_backward(module.loss(batch));
    if (!last) return;
    second.step();
    second.zero_grad();
  };
  for (const char* strategy : {"single_device", "ddp_threads", "sharded_threads", "parameter_server_threads"}) {
    SCOPED_TRACE(strategy);
    const Trained whole = train_steps(17, "", strategy);
    const Trained part = train_steps(8, "", strategy);  // 7 batches, 5 of them an epoch
    EXPECT_EQ(read_info(part.checkpoint).global_step, 8);
    const Trained resumed = train_steps(17, part.checkpoint, strategy);
    // Where ranks keep gradients back, the end of training combines what an undisturbed run adds more to.
    if (std::string(strategy) == "parameter_server_threads")
      expect_near(resumed.weights, whole.weights);
    else
      EXPECT_TRUE(identical(resumed.weights, whole.weights));
  }
}

TEST(ManualOptimization, GradientsThatAwaitAStepAreResumedBesideClearedOnes) {
  // As above, combined in every batch.
  TwoOptimizers::step = [](TwoOptimizers& module, const Batch& batch, int64_t batch_idx) {
    module.update(module.optimizer(0), batch);
    module.optimizer(0).zero_grad();
    auto& second = module.optimizer(1);
    const auto toggled = module.toggle_optimizer(second);
    module.manual_backward(module.loss(batch));
    if (batch_idx % 3 != 2) return;
    second.step();
    second.zero_grad();
  };
  for (const char* strategy : {"single_device", "ddp_threads", "sharded_threads", "parameter_server_threads"}) {
    const Trained whole = train_steps(17, "", strategy);
    const Trained part = train_steps(8, "", strategy);
    const Trained resumed = train_steps(17, part.checkpoint, strategy);
    EXPECT_TRUE(identical(resumed.weights, whole.weights)) << strategy;
  }
}

TEST(ManualOptimization, AMistakeInAScopeLeavesTheTrainingStateIntact) {
  std::vector<at::Tensor> before;
  TwoOptimizers::step = [&](TwoOptimizers& module, const Batch& batch, int64_t batch_idx) {
    if (batch_idx < 2) return update_both(module, batch, batch_idx);
    before = weights(module);
    const auto toggled = module.toggle_optimizer(module.optimizer(1));
    module.manual_backward(module.loss(batch));
    module.optimizer(2).step();
  };
  const auto module = make<TwoOptimizers>({});
  Trainer trainer(quiet(1));
  const std::string message = refusal_of([&] { trainer.fit(module, tiny_loader()); });
  EXPECT_THAT(message, ::testing::HasSubstr("there is no optimizer(2)"));
  EXPECT_THAT(message, ::testing::HasSubstr("got 2 from configure_optimizers; valid: 0 to 1"));
  EXPECT_EQ(trainer.global_step(), 4);
  EXPECT_TRUE(identical(weights(*module), before));
  for (const auto& parameter : module->parameters()) EXPECT_TRUE(parameter.requires_grad());

  TwoOptimizers::step = update_both;
  trainer.fit(module, tiny_loader());
  EXPECT_EQ(trainer.global_step(), 10);
  EXPECT_FALSE(identical(weights(*module), before));
}

TEST(ManualOptimization, ScopesOfSeveralOptimizersDoNotOverlap) {
  TwoOptimizers::step = [](TwoOptimizers& module, const Batch&, int64_t) {
    {
      const auto toggled = module.toggle_optimizer(module.optimizer(0));
      const std::string message = refusal_of([&] { (void)module.toggle_optimizer(module.optimizer(1)); });
      EXPECT_THAT(message, ::testing::HasSubstr("optimizer(1) cannot be toggled while optimizer(0) is"));
      EXPECT_TRUE(module.first_weight().requires_grad());
      EXPECT_FALSE(module.second_weight().requires_grad());
    }
    const auto toggled = module.toggle_optimizer(module.optimizer(1));
    module.untoggle_optimizer(module.optimizer(1));
    EXPECT_TRUE(module.first_weight().requires_grad());
    const auto other = module.toggle_optimizer(module.optimizer(0));
    EXPECT_FALSE(module.second_weight().requires_grad());
  };
  const auto module = make<TwoOptimizers>({});
  Trainer(quiet(1)).fit(module, tiny_loader());
  for (const auto& parameter : module->parameters()) EXPECT_TRUE(parameter.requires_grad());
}

TEST(ManualOptimization, LossesThatCannotBeUsedAreExplained) {
  TwoOptimizers::step = [](TwoOptimizers& module, const Batch& batch, int64_t) {
    EXPECT_THAT(refusal_of([&] { module.manual_backward(module.forward(batch["x"])); }),
                ::testing::HasSubstr("needs a scalar loss; got shape [8, 1]"));
    EXPECT_THAT(refusal_of([&] { module.manual_backward(module.loss(batch).detach()); }),
                ::testing::HasSubstr("does not depend on any parameter that requires a gradient"));
  };
  Trainer(quiet(1)).fit(make<TwoOptimizers>({}), tiny_loader());
}

TEST(ManualOptimization, SettingsThatContradictItAreRefusedBeforeAnyRankStarts) {
  class Watching : public TwoOptimizers {
   public:
    using TwoOptimizers::TwoOptimizers;
    void setup(Stage) override { ADD_FAILURE() << "a rank has started"; }
  };
  const auto refusal = [](const std::function<void(TrainerOptions&)>& configure) {
    TrainerOptions options = quiet(1);
    configure(options);
    return refusal_of([&] { Trainer(options).fit(make<Watching>({}), tiny_loader()); });
  };
  const std::string of_strategy = refusal([](TrainerOptions& options) {
    options.strategy = "dp";
    options.devices = 2;
  });
  EXPECT_THAT(of_strategy, ::testing::HasSubstr("trainer.strategy 'dp'"));
  EXPECT_THAT(of_strategy, ::testing::HasSubstr("automatic_optimization = false"));
  EXPECT_THAT(refusal([](TrainerOptions& options) { options.gradient_clip_val = 1.0; }),
              ::testing::HasSubstr("call clip_gradients()"));
  EXPECT_THAT(refusal([](TrainerOptions& options) { options.accumulate_grad_batches = 2; }),
              ::testing::HasSubstr("count batches"));
}

class ManualStepsLogger : public Logger {
 public:
  void log_metrics(std::span<const MetricValue> values, int64_t step, int64_t) override {
    for (const auto& value : values) rows[value.name].push_back(step);
  }
  void log_image(const std::string& name, const at::Tensor& image, int64_t step) override {
    images.emplace_back(name, image, step);
  }
  std::map<std::string, std::vector<int64_t>> rows;
  std::vector<std::tuple<std::string, at::Tensor, int64_t>> images;
};

TEST(ManualOptimization, NoLoggingBoundaryIsSteppedOver) {
  TwoOptimizers::step = [](TwoOptimizers& module, const Batch& batch, int64_t batch_idx) {
    update_both(module, batch, batch_idx);
    module.log("loss", static_cast<double>(batch_idx), {.on_step = true});
    module.scheduler(0).step();
  };
  const auto logger = std::make_shared<ManualStepsLogger>();
  TrainerOptions options = quiet(1);
  options.default_root_dir = testing::fresh_folder("manual_boundaries");
  options.logger = {logger};
  options.log_every_n_steps = 3;
  options.callbacks = {make<LearningRateMonitor>({.logging_interval = "step"}), make<GradientNormMonitor>({})};
  Trainer(options).fit(make<TwoOptimizers>({}), tiny_loader());
  const std::vector<int64_t> boundaries = {4, 6, 10};  // two steps a batch: the first at or after 3, 6 and 9
  EXPECT_EQ(logger->rows.at("loss"), boundaries);
  EXPECT_EQ(logger->rows.at("lr-SGD"), boundaries);
  EXPECT_EQ(logger->rows.at("lr-SGD-1"), boundaries);
  EXPECT_EQ(logger->rows.at("grad_norm"), boundaries);
  EXPECT_EQ(logger->rows.at("grad_norm-1"), boundaries);
}

TEST(TrainerImages, RankZeroHandsBytesToTheLoggers) {
  TwoOptimizers::step = [](TwoOptimizers& module, const Batch& batch, int64_t batch_idx) {
    update_both(module, batch, batch_idx);
    if (batch_idx == 1) module.trainer().log_image("ramp", at::tensor({-1.0, 0.0, 0.5, 2.0}).reshape({1, 2, 2}));
    EXPECT_THAT(refusal_of([&] {
                  if (module.trainer().is_global_zero()) module.trainer().log_image("flat", at::zeros({2, 2}));
                }),
                ::testing::HasSubstr(module.trainer().is_global_zero() ? "[2, 2]" : "nothing"));
  };
  const auto logger = std::make_shared<ManualStepsLogger>();
  TrainerOptions options = quiet(1);
  options.default_root_dir = testing::fresh_folder("images");
  options.logger = {logger};
  options.strategy = "ddp_threads";
  options.devices = 2;
  Trainer(options).fit(make<TwoOptimizers>({}), tiny_loader());
  ASSERT_EQ(logger->images.size(), 1u);
  const auto& [name, image, step] = logger->images.front();
  EXPECT_EQ(name, "ramp");
  EXPECT_EQ(step, 4);
  EXPECT_TRUE(image.equal(at::tensor({0, 0, 128, 255}, at::kByte).reshape({1, 2, 2})));
}

}  // namespace
}  // namespace levin
