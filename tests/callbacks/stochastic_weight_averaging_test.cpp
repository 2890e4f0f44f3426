#include <levin/callbacks/stochastic_weight_averaging.h>

#include <levin/callbacks/model_checkpoint.h>

#include "strategy_training.h"

#include <csignal>

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
using testing::refusal_of;
using testing::to_double;
using testing::train;
using testing::weights;

using Tensors = std::vector<at::Tensor>;

constexpr const char* kLastTwo =
    "{stochastic_weight_averaging: {swa_lrs: 0.02, swa_epoch_start: 0.5, annealing_epochs: 2}}";

/// The mean of what each epoch from `first` on ended with.
Tensors mean_of(const std::vector<Tensors>& epochs, size_t first) {
  Tensors sum = to_double(epochs.at(first));
  for (size_t epoch = first + 1; epoch < epochs.size(); ++epoch)
    for (size_t i = 0; i < sum.size(); ++i) sum[i] = sum[i] + epochs[epoch][i].to(at::kDouble);
  for (auto& tensor : sum) tensor = tensor / static_cast<double>(epochs.size() - first);
  return sum;
}

class StochasticWeightAveragingRuns : public ::testing::TestWithParam<Devices> {};

TEST_P(StochasticWeightAveragingRuns, EndWithTheMeanOfTheEpochs) {
  std::vector<Tensors> epochs;
  std::vector<double> rates;
  Plan plan{.callback = kLastTwo, .shuffle = false};
  plan.watch.on_train_batch_start = [&](Trainer& trainer, Module&, const Batch&, int64_t batch) {
    if (trainer.is_global_zero() && batch == 0) rates.push_back(trainer.learning_rates().front().second);
  };
  plan.watch.on_train_epoch_end = [&](Trainer& trainer, Module& module) {
    if (trainer.is_global_zero()) epochs.push_back(weights(module));
  };
  const Outcome run = train(plan, GetParam());
  ASSERT_EQ(epochs.size(), 4u);
  expect_close(run.weights, mean_of(epochs, 2), "weights after fit", 1e-6);
  // Epoch 2 still has the learning rate that it finds; epoch 3 is half-way to 0.02.
  ASSERT_EQ(rates.size(), 4u);
  for (size_t epoch = 0; epoch < 3; ++epoch) EXPECT_DOUBLE_EQ(rates[epoch], 0.1);
  EXPECT_NEAR(rates[3], 0.06, 1e-12);

  // Statistics of BatchNorm: the mean over all batches, of all ranks, with the averaged weights. dp runs the whole
  // batch through the module itself.
  const int64_t parts = std::string(GetParam().strategy) == "ddp_threads" ? 2 : 1;
  const at::NoGradGuard no_grad;
  Tensors means;
  Tensors variances;
  for (const at::Tensor& part : testing::tiny_dataset()->tensors()["x"].split(8 / parts)) {
    const at::Tensor hidden = run.module->linear(part);
    means.push_back(hidden.mean(0));
    variances.push_back(hidden.var(0));
  }
  expect_close({run.module->norm->running_mean, run.module->norm->running_var},
               {at::stack(means).mean(0), at::stack(variances).mean(0)}, "statistics");
  EXPECT_EQ(run.module->norm->num_batches_tracked.item<int64_t>(), 5 * parts);
  EXPECT_EQ(run.module->norm->options.momentum(), 0.1) << "the layer's own way to average is put back";
}

TEST_P(StochasticWeightAveragingRuns, ResumeToTheBit) {
  expect_resumes_everywhere({.net = {.dropout = 0.2, .schedule = "cosine"}, .callback = kLastTwo}, GetParam(),
                            GetParam().count == 1 ? 1 : 3);
}

TEST_P(StochasticWeightAveragingRuns, GoOnFromARunThatHadEnded) {
  // Four epochs at once, or two and then two more: the second run finds the training's weights, not the average.
  const std::string folder = fresh_folder("swa_longer");
  Plan plan{.net = {.dropout = 0.2},
            .callback = "{stochastic_weight_averaging: {swa_lrs: 0.02, swa_epoch_start: 1, annealing_epochs: 0}}"};
  const Outcome whole = train(plan, GetParam());
  Plan half = plan;
  half.epochs = 2;
  half.change = [&](TrainerOptions& options) {
    options.enable_checkpointing = true;
    options.callbacks.emplace_back(make<ModelCheckpoint>({.dirpath = folder}));
  };
  const Outcome first = train(half, GetParam());
  const auto loaded = load_from_checkpoint<BodyAndHead>(folder + "/last");
  EXPECT_TRUE(identical(weights(*loaded), first.weights)) << "`last` has the average";
  EXPECT_TRUE(identical(buffers_of(*loaded), first.buffers)) << "and the statistics that belong to it";
  const Outcome second = train(plan, GetParam(), folder + "/last");
  EXPECT_TRUE(identical(second.weights, whole.weights));
  EXPECT_TRUE(identical(second.buffers, whole.buffers));
}

INSTANTIATE_TEST_SUITE_P(OnEveryStrategy, StochasticWeightAveragingRuns, testing::kEveryStrategy,
                         testing::name_of_devices);

TEST(StochasticWeightAveragingTest, AnEpochThatIsCutShortIsNotAveraged) {
  std::vector<Tensors> epochs;
  Plan plan{.callback = "{stochastic_weight_averaging: {swa_lrs: 0.02, swa_epoch_start: 1}}"};
  plan.change = [](TrainerOptions& options) { options.max_steps = 13; };
  plan.watch.on_train_epoch_end = [&](Trainer& trainer, Module& module) {
    if (trainer.epoch_complete()) epochs.push_back(weights(module));
  };
  const Outcome run = train(plan, {});
  EXPECT_EQ(run.steps, 13);
  ASSERT_EQ(epochs.size(), 2u);
  expect_close(run.weights, epochs[1], "the one whole epoch", 0);
}

TEST(StochasticWeightAveragingTest, ASignalAfterTheLastBatchLeavesTheAverage) {
  const Outcome undisturbed = train({.callback = kLastTwo}, {});
  Plan plan{.callback = kLastTwo};
  plan.watch.on_train_epoch_end = [](Trainer& trainer, Module&) {
    if (trainer.current_epoch() == 3) std::raise(SIGTERM);
  };
  EXPECT_TRUE(identical(train(plan, {}).weights, undisturbed.weights));
}

TEST(StochasticWeightAveragingTest, WithoutAnEpochTheWeightsAreThoseOfTraining) {
  Plan plan{.callback = "{stochastic_weight_averaging: {swa_lrs: 0.02, swa_epoch_start: 3}}"};
  plan.change = [](TrainerOptions& options) { options.max_steps = 7; };
  const Outcome run = train(plan, {});
  plan.callback.clear();
  EXPECT_TRUE(identical(run.weights, train(plan, {}).weights));
}

TEST(StochasticWeightAveragingTest, SaysWhatIsWrong) {
  const auto fit = [](const std::string& options, int64_t epochs) {
    return refusal_of(
        [&] { train({.callback = "{stochastic_weight_averaging: " + options + "}", .epochs = epochs}, {}); });
  };
  EXPECT_NE(fit("{}", 4).find("swa_lrs is required"), std::string::npos);
  EXPECT_NE(fit("{swa_lrs: -1}", 4).find("swa_lrs must be above 0; got -1"), std::string::npos);
  EXPECT_NE(fit("{swa_lrs: 0.1, swa_epoch_start: 1.5}", 4).find("a whole epoch or a fraction below 1"),
            std::string::npos);
  EXPECT_NE(fit("{swa_lrs: 0.1, swa_epoch_start: 4}", 4).find("trainer.max_epochs 4"), std::string::npos);
  EXPECT_NE(fit("{swa_lrs: [0.1, 0.2]}", 4).find("2 learning rates, but the optimizer 1 parameter groups"),
            std::string::npos);
  EXPECT_NE(refusal_of([] {
              Plan plan{.callback = "{stochastic_weight_averaging: {swa_lrs: 0.1}}"};
              plan.change = [](TrainerOptions& options) {
                options.max_epochs = -1;
                options.max_steps = 3;
              };
              train(plan, {});
            }).find("give an epoch"),
            std::string::npos);
}

/// Another pass over the data after every batch and every epoch, which nothing of the training may notice.
class ReplayRuns : public ::testing::TestWithParam<Devices> {};

TEST_P(ReplayRuns, LeaveNoTraceInTheTraining) {
  Plan plan{.net = {.dropout = 0.3}, .epochs = 2};
  const Outcome plain = train(plan, GetParam());
  int64_t replays = 0;
  const auto replay = [&](Trainer& trainer, Module& module) {
    const auto statistics = buffers_of(module);
    trainer.replay_training_data();
    const at::NoGradGuard no_grad;
    const auto changed = module.buffers();
    EXPECT_FALSE(identical(changed, statistics));
    for (size_t i = 0; i < changed.size(); ++i) changed[i].copy_(statistics[i]);
    if (trainer.is_global_zero()) ++replays;
  };
  plan.watch.on_train_batch_end = [&](Trainer& trainer, Module& module, const StepOutput&, const Batch&, int64_t) {
    replay(trainer, module);
  };
  plan.watch.on_train_epoch_end = replay;
  const Outcome run = train(plan, GetParam());
  EXPECT_EQ(replays, 12);
  EXPECT_TRUE(identical(run.weights, plain.weights));
  EXPECT_TRUE(identical(run.buffers, plain.buffers));
  EXPECT_EQ(run.metrics, plain.metrics);
  EXPECT_EQ(run.logged, plain.logged);
}

INSTANTIATE_TEST_SUITE_P(OnEveryStrategy, ReplayRuns, testing::kEveryStrategy, testing::name_of_devices);

TEST(Replay, IsRefusedOutsideOfTraining) {
  Trainer trainer(testing::quiet(1));
  auto module = make<BodyAndHead>({});
  trainer.fit(module, testing::tiny_loader());
  EXPECT_NE(refusal_of([&] { trainer.replay_training_data(); }).find("only inside fit"), std::string::npos);
}

}  // namespace
}  // namespace levin
