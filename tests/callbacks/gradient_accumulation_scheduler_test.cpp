#include <levin/callbacks/gradient_accumulation_scheduler.h>

#include "strategy_training.h"

#include <optional>

namespace levin {
namespace {

using testing::Devices;
using testing::expect_resumes_everywhere;
using testing::identical;
using testing::Outcome;
using testing::Plan;
using testing::refusal_of;
using testing::train;

constexpr const char* kSchedule = "{gradient_accumulation_scheduler: {scheduling: {0: 5, 1: 2, 3: 1}}}";

class GradientAccumulationSchedulerRuns : public ::testing::TestWithParam<Devices> {};

TEST_P(GradientAccumulationSchedulerRuns, StepAsOftenAsPlanned) {
  std::vector<int64_t> steps;
  std::vector<double> rates;
  std::optional<int64_t> planned;
  Plan plan{.net = {.schedule = "cosine"}, .callback = kSchedule};
  plan.watch.on_train_start = [&](Trainer& trainer, Module&) {
    if (trainer.is_global_zero()) planned = trainer.estimated_steps();
  };
  plan.watch.on_train_epoch_end = [&](Trainer& trainer, Module&) {
    if (!trainer.is_global_zero()) return;
    steps.push_back(trainer.global_step());
    rates.push_back(trainer.learning_rates().front().second);
  };
  const Outcome run = train(plan, GetParam());
  EXPECT_EQ(steps, (std::vector<int64_t>{1, 4, 7, 12})) << "1, 3, 3 and 5 steps";
  EXPECT_EQ(planned, 12);
  EXPECT_NEAR(rates.back(), 0, 1e-12) << "the cosine ends with the run";
  EXPECT_GT(rates[2], 0.03);

  Plan option = plan;
  option.callback.clear();
  option.watch = {};
  option.change = [](TrainerOptions& options) { options.accumulate_grad_batches = {{0, 5}, {1, 2}, {3, 1}}; };
  EXPECT_TRUE(identical(train(option, GetParam()).weights, run.weights)) << "the same as the trainer's option";
}

TEST_P(GradientAccumulationSchedulerRuns, ResumeToTheBit) {
  expect_resumes_everywhere({.net = {.dropout = 0.2, .schedule = "cosine"}, .callback = kSchedule}, GetParam(),
                            GetParam().count == 1 ? 1 : 3);
}

INSTANTIATE_TEST_SUITE_P(OnEveryStrategy, GradientAccumulationSchedulerRuns, testing::kEveryStrategy,
                         testing::name_of_devices);

TEST(GradientAccumulationSchedulerTest, EpochSchedulesSeeHowManyEpochsTheStepsTake) {
  // 9 steps are reached in the fourth epoch: an epoch-wise cosine of length 4.
  class EpochWise : public testing::BodyAndHead {
   public:
    using BodyAndHead::BodyAndHead;
    OptimizerConfigs configure_optimizers() override {
      auto configs = BodyAndHead::configure_optimizers();
      configs.front().scheduler = {.name = "cosine"};
      return configs;
    }
  };
  auto module = make<EpochWise>({});
  std::vector<double> rates;
  Plan plan{.callback = kSchedule, .epochs = 100};
  plan.change = [](TrainerOptions& options) { options.max_steps = 9; };
  plan.watch.on_train_epoch_start = [&](Trainer& trainer, Module&) {
    rates.push_back(trainer.learning_rates().front().second);
  };
  Trainer trainer(testing::options_for(plan, {}));
  trainer.fit(module, testing::tiny_loader());
  ASSERT_EQ(rates.size(), 4u);
  EXPECT_NEAR(rates[2], 0.05, 1e-12) << "half-way";
}

TEST(GradientAccumulationSchedulerTest, IsReadFromTheTrainersOption) {
  const auto options = parse_options<TrainerOptions>(
      Config::parse("{accumulate_grad_batches: {0: 8, 4: 2}}", {.source = "test"}), "trainer");
  EXPECT_EQ(options.accumulate_grad_batches, (optim::AccumulationSchedule{{0, 8}, {4, 2}}));
  EXPECT_EQ(schema_of<TrainerOptions>().dump(options).find("accumulate_grad_batches")->to_flow(), "{0: 8, 4: 2}");
}

TEST(GradientAccumulationSchedulerTest, SaysWhatIsWrong) {
  const auto fit = [](const std::string& options, int64_t accumulate = 1, bool manual = false) {
    return refusal_of([&] {
      Plan plan{.callback = "{gradient_accumulation_scheduler: " + options + "}", .epochs = 1};
      plan.change = [&](TrainerOptions& trainer) { trainer.accumulate_grad_batches = accumulate; };
      auto module = make<testing::BodyAndHead>({});
      module->automatic_optimization = !manual;
      Trainer trainer(testing::options_for(plan, {}));
      trainer.fit(module, testing::tiny_loader());
    });
  };
  const auto expect = [](const std::string& message, const std::string& part) {
    EXPECT_NE(message.find(part), std::string::npos) << message;
  };
  expect(fit("{}"), "scheduling is required");
  expect(fit("{scheduling: {0: 0}}"), "scheduling must be at least 1; got {0: 0}");
  expect(fit("{scheduling: {2: 4, 3: 0}}"), "scheduling must be at least 1; got {2: 4, 3: 0}");
  expect(fit("{scheduling: {-1: 4}}"), "must be given for epochs of at least 0");
  expect(fit("{scheduling: {first: 4}}"), "'first'");
  expect(fit("{scheduling: {0: 4}}", 2), "leave one of them out");
  expect(fit("{scheduling: {3: 4}}", 1, true), "does not work with manual optimization");
}

}  // namespace
}  // namespace levin
