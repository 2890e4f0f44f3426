#include <levin/callbacks/backbone_finetuning.h>

#include "strategy_training.h"

namespace levin {
namespace {

using testing::BodyAndHead;
using testing::Devices;
using testing::expect_resumes_everywhere;
using testing::identical;
using testing::Outcome;
using testing::Plan;
using testing::refusal_of;
using testing::train;

using Tensors = std::vector<at::Tensor>;

Tensors copies(const Tensors& tensors) {
  Tensors result;
  for (const auto& tensor : tensors) result.push_back(tensor.detach().clone());
  return result;
}

/// Learning rates by parameter group, and which parts of the model have changed, epoch by epoch.
struct Epochs {
  std::vector<std::vector<double>> rates;
  std::vector<bool> linear_changed, norm_changed, statistics_changed, head_changed;
};

/// `watch` for a plan; the module of rank 0 is looked at.
LambdaCallbackOptions watching(Epochs& epochs) {
  struct Before {
    Tensors linear, norm, statistics, head;
  };
  const auto before = std::make_shared<Before>();
  return {.on_train_epoch_end =
              [&epochs, before](Trainer& trainer, Module& module) {
                if (!trainer.is_global_zero()) return;
                auto& net = dynamic_cast<BodyAndHead&>(module);
                epochs.linear_changed.push_back(!identical(before->linear, net.linear->parameters()));
                epochs.norm_changed.push_back(!identical(before->norm, net.norm->parameters()));
                epochs.statistics_changed.push_back(!identical(before->statistics, net.norm->buffers()));
                epochs.head_changed.push_back(!identical(before->head, net.head->parameters()));
              },
          .on_train_batch_start =
              [&epochs, before](Trainer& trainer, Module& module, const Batch&, int64_t batch) {
                if (!trainer.is_global_zero() || batch != 0) return;
                auto& net = dynamic_cast<BodyAndHead&>(module);
                *before = {copies(net.linear->parameters()), copies(net.norm->parameters()),
                           copies(net.norm->buffers()), copies(net.head->parameters())};
                epochs.rates.emplace_back();
                for (const auto& [name, rate] : trainer.learning_rates()) epochs.rates.back().push_back(rate);
              }};
}

using Flags = std::vector<bool>;

class BackboneFinetuningRuns : public ::testing::TestWithParam<Devices> {};

TEST_P(BackboneFinetuningRuns, TrainTheBackboneFromItsEpochOn) {
  Epochs epochs;
  Plan plan{.callback = "{backbone_finetuning: {backbone: body, unfreeze_backbone_at_epoch: 2, multiplier: 4}}",
            .epochs = 6};
  plan.watch = watching(epochs);
  const Outcome run = train(plan, GetParam());
  EXPECT_EQ(epochs.linear_changed, (Flags{false, false, true, true, true, true}));
  EXPECT_EQ(epochs.norm_changed, Flags(6, true)) << "train_bn";
  EXPECT_EQ(epochs.statistics_changed, Flags(6, true));
  EXPECT_EQ(epochs.head_changed, Flags(6, true));
  const std::vector<std::vector<double>> expected{{0.1}, {0.1}, {0.1, 0.01}, {0.1, 0.04}, {0.1, 0.1}, {0.1, 0.1}};
  ASSERT_EQ(epochs.rates.size(), expected.size());
  for (size_t epoch = 0; epoch < expected.size(); ++epoch) {
    ASSERT_EQ(epochs.rates[epoch].size(), expected[epoch].size()) << "epoch " << epoch;
    for (size_t group = 0; group < expected[epoch].size(); ++group)
      EXPECT_NEAR(epochs.rates[epoch][group], expected[epoch][group], 1e-12) << "epoch " << epoch;
  }
  plan.net.only_trained = true;
  plan.watch = {};
  EXPECT_TRUE(identical(train(plan, GetParam()).weights, run.weights))
      << "whether the optimizer is given frozen parameters makes no difference";
}

TEST_P(BackboneFinetuningRuns, FreezeBatchNormToo) {
  Epochs epochs;
  Plan plan{.callback = "{backbone_finetuning: {backbone: body, unfreeze_backbone_at_epoch: 1, train_bn: false}}",
            .epochs = 2};
  plan.watch = watching(epochs);
  const Outcome run = train(plan, GetParam());
  EXPECT_EQ(epochs.norm_changed, (Flags{false, true}));
  EXPECT_EQ(epochs.statistics_changed, (Flags{false, true}));
}

TEST_P(BackboneFinetuningRuns, ResumeToTheBit) {
  expect_resumes_everywhere(
      {.net = {.dropout = 0.2, .schedule = "cosine", .only_trained = true},
       .callback = "{backbone_finetuning: {backbone: body, unfreeze_backbone_at_epoch: 2, train_bn: false}}"},
      GetParam(), GetParam().count == 1 ? 1 : 3);
}

INSTANTIATE_TEST_SUITE_P(OnEveryStrategy, BackboneFinetuningRuns, testing::kEveryStrategy, testing::name_of_devices);

TEST(BackboneFinetuningTest, TheBackbonesLearningRateAsItIsGiven) {
  const auto rates = [](const std::string& more) {
    Epochs epochs;
    Plan plan{.callback = "{backbone_finetuning: {backbone: body.0, unfreeze_backbone_at_epoch: 1, " + more + "}}",
              .epochs = 4};
    plan.watch = watching(epochs);
    train(plan, {});
    std::vector<double> of_backbone;
    for (size_t epoch = 1; epoch < 4; ++epoch) of_backbone.push_back(epochs.rates.at(epoch).at(1));
    return of_backbone;
  };
  const auto expect = [&](const std::string& more, const std::vector<double>& expected) {
    const auto actual = rates(more);
    for (size_t i = 0; i < 3; ++i) EXPECT_NEAR(actual[i], expected[i], 1e-12) << more << ", " << i;
  };
  expect("backbone_initial_lr: 0.03", {0.03, 0.06, 0.1});
  expect("backbone_initial_ratio_lr: 0.5", {0.05, 0.1, 0.1});
  expect("initial_denom_lr: 4", {0.025, 0.05, 0.1});
  expect("backbone_initial_lr: 0.03, multiplier: 3, should_align: false", {0.03, 0.09, 0.27});
}

TEST(BackboneFinetuningTest, LeavesNothingFrozen) {
  auto module = make<BodyAndHead>({});
  Plan plan{.callback = "{backbone_finetuning: {backbone: body, train_bn: false}}", .epochs = 1};
  Trainer trainer(testing::options_for(plan, {}));
  for (int fit = 0; fit < 2; ++fit) {
    const Tensors before = copies(module->body->parameters());
    trainer.fit(module, testing::tiny_loader());
    EXPECT_TRUE(identical(module->body->parameters(), before)) << "fit " << fit;
    for (const auto& parameter : module->parameters()) EXPECT_TRUE(parameter.requires_grad());
    EXPECT_TRUE(module->norm->is_training());
  }
}

/// A run of two epochs without the callback, resumed with it: the backbone stands still until its epoch, and its
/// momentum is that of the checkpoint.
TEST_P(BackboneFinetuningRuns, BeginWhereARunWithoutItEnded) {
  const std::string folder = testing::fresh_folder("before_finetuning");
  Plan before{.epochs = 2};
  before.watch.on_train_epoch_end = [&](Trainer& trainer, Module&) {
    if (trainer.current_epoch() == 1) trainer.save_checkpoint(folder + "/whole");
  };
  const Outcome whole = train(before, GetParam());
  for (const bool begins_later : {false, true}) {
    Epochs epochs;
    Plan after{.callback = std::string("{backbone_finetuning: {backbone: body, train_bn: false, multiplier: 4, "
                                       "unfreeze_backbone_at_epoch: ") +
                           (begins_later ? "3}}" : "1}}"),
               .epochs = 5};
    after.watch = watching(epochs);
    const Outcome run = train(after, GetParam(), folder + "/whole");
    EXPECT_EQ(epochs.linear_changed, (Flags{!begins_later, true, true}));
    EXPECT_EQ(epochs.head_changed, Flags(3, true));
    ASSERT_EQ(epochs.rates.size(), 3u);
    EXPECT_EQ(epochs.rates.front().size(), begins_later ? 1u : 2u);
    ASSERT_EQ(epochs.rates.back().size(), 2u);
    EXPECT_NEAR(epochs.rates.back()[1], begins_later ? 0.04 : 0.1, 1e-12);
    EXPECT_EQ(run.steps, 5 * 5);
  }
}

TEST(BackboneFinetuningTest, ResumedWithItTheBackboneKeepsItsMomentum) {
  const std::string folder = testing::fresh_folder("kept_momentum");
  Plan before{.epochs = 1};
  before.watch.on_train_epoch_end = [&](Trainer& trainer, Module&) { trainer.save_checkpoint(folder + "/whole"); };
  train(before, {});
  // Trained from the start, with the rate of the rest, it makes no difference.
  const Outcome expected = train({.epochs = 3}, {}, folder + "/whole");
  const Outcome run = train({.callback = "{backbone_finetuning: {backbone: body, unfreeze_backbone_at_epoch: 0, "
                                         "backbone_initial_lr: 0.1, multiplier: 1}}",
                             .epochs = 3},
                            {}, folder + "/whole");
  EXPECT_TRUE(identical(run.weights, expected.weights));
}

TEST(BackboneFinetuningTest, ACheckpointWithItIsNotOfARunWithout) {
  const std::string folder = testing::fresh_folder("with_finetuning");
  Plan with{.callback = "{backbone_finetuning: {backbone: body, unfreeze_backbone_at_epoch: 0}}", .epochs = 1};
  with.watch.on_train_epoch_end = [&](Trainer& trainer, Module&) { trainer.save_checkpoint(folder + "/whole"); };
  train(with, {});
  const std::string refusal = refusal_of([&] { train({.epochs = 2}, {}, folder + "/whole"); });
  EXPECT_NE(refusal.find("has 1 parameter groups; got 2 in the checkpoint"), std::string::npos) << refusal;
  EXPECT_NE(refusal.find("such as backbone_finetuning"), std::string::npos) << refusal;
}

TEST(BackboneFinetuningTest, NamesWhatAnOptimizerOfTrainedParametersLacks) {
  const std::string folder = testing::fresh_folder("without_finetuning");
  Plan before{.net = {.only_trained = true}, .epochs = 1};
  before.watch.on_train_epoch_end = [&](Trainer& trainer, Module&) { trainer.save_checkpoint(folder + "/whole"); };
  train(before, {});
  const std::string refusal = refusal_of([&] {
    train({.net = {.only_trained = true}, .callback = "{backbone_finetuning: {backbone: body}}", .epochs = 2}, {},
          folder + "/whole");
  });
  EXPECT_NE(refusal.find("parameter group 0 of the optimizer does not fit"), std::string::npos) << refusal;
  EXPECT_NE(refusal.find("hand over all of them"), std::string::npos) << refusal;
}

TEST(BackboneFinetuningTest, SaysWhatIsWrong) {
  const auto fit = [](const std::string& options) {
    return refusal_of([&] { train({.callback = "{backbone_finetuning: " + options + "}", .epochs = 1}, {}); });
  };
  const std::string missing = fit("{backbone: bodi}");
  EXPECT_NE(missing.find("'bodi', which is no submodule"), std::string::npos) << missing;
  EXPECT_NE(missing.find("did you mean 'body'"), std::string::npos) << missing;
  EXPECT_NE(fit("{backbone: dropout}").find("nothing to freeze"), std::string::npos);
  EXPECT_NE(fit("{multiplier: 0}").find("multiplier must be above 0"), std::string::npos);
  EXPECT_NE(fit("{backbone_initial_lr: 0.1, initial_denom_lr: 10}").find("leave one of them out"), std::string::npos);
}

}  // namespace
}  // namespace levin
