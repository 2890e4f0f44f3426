#include <levin/callbacks/weight_averaging.h>

#include "strategy_training.h"

#include <levin/callbacks/stochastic_weight_averaging.h>
#include <levin/core/base/error.h>

#include <gmock/gmock.h>

namespace levin {
namespace {

using testing::BodyAndHead;
using testing::buffers_of;
using testing::Devices;
using testing::expect_close;
using testing::expect_resumes_everywhere;
using testing::fresh_folder;
using testing::identical;
using testing::Outcome;
using testing::Plan;
using testing::to_double;
using testing::train;
using testing::weights;

using Tensors = std::vector<at::Tensor>;

/// The moving average as the formula has it, in double precision: the first weights, then decay · average + (1 − decay)
/// · weights.
class HandAverage {
 public:
  explicit HandAverage(double decay) : decay_(decay) {}
  void update(const Tensors& weights) {
    const Tensors now = to_double(weights);
    if (value.empty()) {
      value = now;
      return;
    }
    for (size_t i = 0; i < value.size(); ++i) value[i] = decay_ * value[i] + (1 - decay_) * now[i];
  }
  Tensors value;

 private:
  double decay_;
};

class WeightAveragingRuns : public ::testing::TestWithParam<Devices> {};

TEST_P(WeightAveragingRuns, ValidateAndEndWithTheAverage) {
  HandAverage expected(0.8);
  Tensors training;
  int validations = 0;
  Plan plan{.callback = "{weight_averaging: {decay: 0.8}}"};
  plan.watch.on_train_batch_end = [&](Trainer& trainer, Module& module, const StepOutput&, const Batch&, int64_t) {
    if (!trainer.is_global_zero()) return;
    training = weights(module);
    expected.update(training);
  };
  plan.watch.on_validation_epoch_start = [&](Trainer& trainer, Module& module) {
    if (!trainer.is_global_zero()) return;
    expect_close(weights(module), expected.value, "weights in validation");
    ++validations;
  };
  plan.watch.on_train_epoch_end = [&](Trainer& trainer, Module& module) {
    if (!trainer.is_global_zero()) return;
    EXPECT_TRUE(identical(weights(module), training)) << "weights after validation";
  };
  const Outcome run = train(plan, GetParam());
  EXPECT_EQ(validations, 4);
  EXPECT_EQ(run.steps, 20);
  expect_close(run.weights, expected.value, "weights after fit");
  EXPECT_FALSE(identical(run.weights, training));

  Plan without = plan;
  without.callback.clear();
  without.watch = {};
  EXPECT_TRUE(identical(train(without, GetParam()).weights, training)) << "averaging changed the training";
}

TEST_P(WeightAveragingRuns, ResumeToTheBit) {
  expect_resumes_everywhere({.net = {.dropout = 0.2},
                             .callback = "{weight_averaging: {decay: 0.7, update_every_n_steps: 2, "
                                         "update_starting_at_step: 6}}",
                             .epochs = 3,
                             .change = [](TrainerOptions& options) { options.val_check_interval = 2; }},
                            GetParam(), GetParam().count == 1 ? 2 : 5);
}

TEST_P(WeightAveragingRuns, HaveTheAverageAsTheModelOfACheckpoint) {
  const std::string folder = fresh_folder("ema_checkpoint");
  HandAverage expected(0.5);
  Tensors statistics;
  Plan plan{.callback = "{weight_averaging: {decay: 0.5}}", .epochs = 2};
  plan.watch.on_train_batch_end = [&](Trainer& trainer, Module& module, const StepOutput&, const Batch&,
                                      int64_t batch) {
    if (trainer.current_epoch() == 1 && batch > 2) return;
    if (trainer.is_global_zero()) {
      expected.update(weights(module));
      statistics = buffers_of(module);
    }
    if (trainer.current_epoch() == 1 && batch == 2) trainer.save_checkpoint(folder + "/c");
  };
  train(plan, GetParam());
  const auto loaded = load_from_checkpoint<BodyAndHead>(folder + "/c");
  expect_close(weights(*loaded), expected.value, "weights of the checkpoint");
  EXPECT_TRUE(identical(buffers_of(*loaded), statistics));
}

/// Parameters and buffers of floating-point type.
Tensors averaged(const Module& module) {
  Tensors tensors = weights(module);
  for (const auto& buffer : buffers_of(module))
    if (buffer.is_floating_point()) tensors.push_back(buffer);
  return tensors;
}

TEST_P(WeightAveragingRuns, AverageBuffersToo) {
  HandAverage expected(0.8);
  Tensors training;
  int64_t batches = 0;
  const std::string folder = fresh_folder("ema_buffers");
  Plan plan{.callback = "{weight_averaging: {decay: 0.8, use_buffers: true}}"};
  plan.watch.on_train_batch_end = [&](Trainer& trainer, Module& module, const StepOutput&, const Batch&, int64_t) {
    if (!trainer.is_global_zero()) return;
    training = averaged(module);
    expected.update(training);
    ++batches;
  };
  plan.watch.on_validation_epoch_start = [&](Trainer& trainer, Module& module) {
    if (trainer.is_global_zero()) expect_close(averaged(module), expected.value, "in validation");
  };
  plan.watch.on_train_epoch_end = [&](Trainer& trainer, Module& module) {
    if (trainer.is_global_zero()) {
      EXPECT_TRUE(identical(averaged(module), training)) << "after validation";
    }
    trainer.save_checkpoint(folder + "/c");
  };
  const Outcome run = train(plan, GetParam());
  expect_close(averaged(*run.module), expected.value, "after fit");
  EXPECT_FALSE(identical(averaged(*run.module), training));
  EXPECT_EQ(run.module->norm->num_batches_tracked.item<int64_t>(), batches) << "whole numbers are not averaged";
  expect_close(averaged(*load_from_checkpoint<BodyAndHead>(folder + "/c")), expected.value, "in the checkpoint");
}

TEST_P(WeightAveragingRuns, ResumeToTheBitWithBuffers) {
  expect_resumes_everywhere({.net = {.dropout = 0.2},
                             .callback = "{weight_averaging: {decay: 0.7, use_buffers: true}}",
                             .epochs = 3,
                             .change = [](TrainerOptions& options) { options.val_check_interval = 2; }},
                            GetParam(), GetParam().count == 1 ? 3 : 6);
}

INSTANTIATE_TEST_SUITE_P(OnEveryStrategy, WeightAveragingRuns, testing::kEveryStrategy, testing::name_of_devices);

TEST(WeightAveragingTest, StartsAndStepsWhenItIsTold) {
  HandAverage expected(0.9);
  int updates = 0;
  Plan plan{.callback =
                "{weight_averaging: {decay: 0.9, update_every_n_steps: 3, update_starting_at_step: 4, "
                "update_starting_at_epoch: 1}}"};
  plan.change = [](TrainerOptions& options) { options.accumulate_grad_batches = 2; };
  plan.watch.on_train_batch_end = [&](Trainer& trainer, Module& module, const StepOutput&, const Batch&,
                                      int64_t batch) {
    // Of 5 batches in windows of 2, batches 1, 3 and 4 end a step: 3 steps an epoch.
    const bool stepped = batch == 1 || batch == 3 || batch == 4;
    const int64_t step = trainer.global_step() - 1;
    if (!stepped || trainer.current_epoch() < 1 || step < 4 || step % 3 != 0) return;
    expected.update(weights(module));
    ++updates;
  };
  const Outcome run = train(plan, {});
  EXPECT_EQ(run.steps, 12);
  EXPECT_EQ(updates, 2) << "steps 6 and 9";
  expect_close(run.weights, expected.value, "weights after fit");
}

TEST(WeightAveragingTest, ABatchMayTakeSeveralSteps) {
  class TwoSteps : public testing::TinyModule {
   public:
    explicit TwoSteps(const testing::TinyOptions& options) : TinyModule(options) { automatic_optimization = false; }
    StepOutput training_step(const Batch& batch, int64_t batch_idx) override {
      for (int step = 0; step < 2; ++step) {
        optimizers().front()->zero_grad();
        manual_backward(TinyModule::training_step(batch, batch_idx).loss());
        optimizers().front()->step();
      }
      return {};
    }
  };
  HandAverage expected(0.5);
  TrainerOptions options = testing::quiet(1);
  options.callbacks = {
      make<WeightAveraging>({.decay = 0.5, .update_every_n_steps = 4}),
      make<LambdaCallback>(LambdaCallbackOptions{
          .on_train_batch_end = [&](Trainer&, Module& module, const StepOutput&, const Batch&, int64_t batch_idx) {
            if (batch_idx % 2 == 0) expected.update(weights(module));
          }})};
  const auto module = make<TwoSteps>({});
  Trainer(options).fit(module, testing::tiny_loader());
  expect_close(weights(*module), expected.value, "the average of steps 0, 4 and 8");
}

TEST(WeightAveragingTest, WithoutAnUpdateNothingChanges) {
  Plan plan{.epochs = 1};
  const Outcome plain = train(plan, {});
  plan.callback = "{weight_averaging: {update_starting_at_epoch: 5}}";
  EXPECT_TRUE(identical(train(plan, {}).weights, plain.weights));
}

TEST(WeightAveragingTest, AFailedValidationLeavesTheTrainingWeights) {
  for (const Devices& devices : {Devices{}, Devices{"ddp_threads", 2}}) {
    Tensors training;
    Plan plan{.net = {.fails_at = 1}, .callback = "weight_averaging"};
    plan.watch.on_train_batch_end = [&](Trainer& trainer, Module& module, const StepOutput&, const Batch&, int64_t) {
      if (trainer.is_global_zero()) training = weights(module);
    };
    auto module = make<BodyAndHead>(plan.net);
    Trainer trainer(testing::options_for(plan, devices));
    EXPECT_THROW(trainer.fit(module, testing::tiny_loader(), testing::tiny_loader(16, 8, false)), Error);
    EXPECT_TRUE(identical(weights(*module), training)) << devices;
  }
}

TEST(WeightAveragingTest, TheAverageComesBackFromForkedRanks) {
  for (const char* callback :
       {"{weight_averaging: {decay: 0.5}}", "{stochastic_weight_averaging: {swa_lrs: 0.02, swa_epoch_start: 1}}"}) {
    const Plan plan{.callback = callback, .epochs = 3};
    const Outcome threads = train(plan, {"ddp_threads", 2});
    const Outcome forks = train(plan, {"ddp_spawn", 2});
    expect_close(forks.weights, threads.weights, callback, 1e-6);
    expect_close(forks.buffers, threads.buffers, callback, 1e-6);
  }
}

TEST(WeightAveragingTest, AFitAfterAFitStartsANewAverage) {
  auto module = make<BodyAndHead>({});
  Plan plan{.callback = "{weight_averaging: {decay: 0.5}}", .epochs = 1};
  HandAverage expected(0.5);
  plan.watch.on_train_start = [&](Trainer&, Module&) { expected.value.clear(); };
  plan.watch.on_train_batch_end = [&](Trainer&, Module& trained, const StepOutput&, const Batch&, int64_t) {
    expected.update(weights(trained));
  };
  Trainer trainer(testing::options_for(plan, {}));
  trainer.fit(module, testing::tiny_loader());
  const Tensors first = weights(*module);
  trainer.validate(module, testing::tiny_loader(16, 8, false));
  EXPECT_TRUE(identical(weights(*module), first)) << "validate outside of fit swaps nothing";
  trainer.fit(module, testing::tiny_loader());
  expect_close(weights(*module), expected.value, "the second average");
}

TEST(WeightAveragingTest, AveragesInTheHostsMemory) {
  for (const Devices& devices : {Devices{}, Devices{"{name: sharded_threads, stage: 3}", 2}}) {
    const Outcome expected = train({.callback = "{weight_averaging: {decay: 0.8}}", .epochs = 3}, devices);
    const Plan plan{.callback = "{weight_averaging: {decay: 0.8, offload: true}}", .epochs = 3};
    EXPECT_TRUE(identical(train(plan, devices).weights, expected.weights)) << devices;
    if (devices.count == 1) expect_resumes_everywhere(plan, devices, 3);
  }
}

/// The mean of all weights after a step.
class MeanOfWeights final : public WeightAveraging {
 public:
  using WeightAveraging::WeightAveraging;

 private:
  double share(int64_t update) const override { return 1.0 / static_cast<double>(update + 1); }
};

TEST(WeightAveragingTest, ADerivedClassKeepsAnotherAverageAlsoOnceResumed) {
  const std::string folder = fresh_folder("mean_of_weights");
  Tensors sum;
  int64_t count = 0;
  Plan plan{.epochs = 3};
  plan.watch.on_train_batch_end = [&](Trainer& trainer, Module& module, const StepOutput&, const Batch&, int64_t) {
    const Tensors now = to_double(weights(module));
    if (sum.empty()) sum.resize(now.size());
    for (size_t i = 0; i < sum.size(); ++i) sum[i] = sum[i].defined() ? sum[i] + now[i] : now[i];
    if (++count == 7) trainer.save_checkpoint(folder + "/c");
  };
  plan.change = [](TrainerOptions& options) {
    options.callbacks.insert(options.callbacks.begin(), make<MeanOfWeights>({}));
  };
  const Outcome run = train(plan, {});
  ASSERT_EQ(count, 15);
  for (at::Tensor& tensor : sum) tensor = tensor / static_cast<double>(count);
  expect_close(run.weights, sum, "the mean");
  plan.watch = {};
  EXPECT_TRUE(identical(train(plan, {}, folder + "/c").weights, run.weights)) << "resumed in the middle";
}

TEST(WeightAveragingTest, ShardedRanksAverageBuffers) {
  const Plan plan{.callback = "{weight_averaging: {decay: 0.8, use_buffers: true}}", .epochs = 2};
  const Outcome expected = train(plan, {"ddp_threads", 2});
  const Outcome sharded = train(plan, {"{name: sharded_threads, stage: 3}", 2});
  expect_close(sharded.weights, expected.weights, "weights", 1e-4);
  expect_close(sharded.buffers, expected.buffers, "buffers", 1e-4);
}

TEST(WeightAveragingTest, ACheckpointOfOtherBuffersIsRefused) {
  const std::string folder = fresh_folder("ema_other_buffers");
  Plan plan{.epochs = 1};
  plan.watch.on_train_epoch_end = [&](Trainer& trainer, Module&) { trainer.save_checkpoint(folder + "/c"); };
  const char* const with = "{weight_averaging: {use_buffers: true}}";
  for (const auto& [saved, resumed] : {std::pair{with, "weight_averaging"}, std::pair{"weight_averaging", with}}) {
    plan.callback = saved;
    plan.epochs = 1;
    train(plan, {});
    plan.callback = resumed;
    plan.epochs = 2;
    EXPECT_THAT(testing::refusal_of([&] { train(plan, {}, folder + "/c"); }), ::testing::HasSubstr("use_buffers"));
  }
}

TEST(WeightAveragingTest, RefusesOptionsOutOfRange) {
  EXPECT_THROW(WeightAveraging({.decay = 1.5}), ConfigError);
  EXPECT_THROW(WeightAveraging({.update_every_n_steps = 0}), ConfigError);
  EXPECT_THROW(WeightAveraging({.update_starting_at_step = -1}), ConfigError);
}

/// Two of them would exchange each other's averages with the weights of training.
TEST(WeightAveragingRefusals, ASecondAverageInTheModulesPlace) {
  const auto swa = [] { return make<StochasticWeightAveraging>({.swa_lrs = 0.01, .swa_epoch_start = 0}); };
  const auto ema = [](double decay) { return make<WeightAveraging>({.decay = decay}); };
  const std::vector<std::vector<Spec<Callback>>> cases = {{ema(0.9), ema(0.5)}, {ema(0.9), swa()}, {swa(), ema(0.9)}};
  for (const auto& callbacks : cases) {
    TrainerOptions options = testing::quiet(1);
    options.callbacks = callbacks;
    Trainer trainer(options);
    EXPECT_THAT([&] { trainer.fit(make<testing::TinyModule>({}), testing::tiny_loader()); },
                ::testing::ThrowsMessage<Error>(::testing::HasSubstr("2 callbacks that put an average")));
  }
}

}  // namespace
}  // namespace levin
