#include "tests/conformance/loss_weight_conformance.h"
#include "tests/support/captured_log.h"

#include <levin/callbacks/lambda_callback.h>

#include <gmock/gmock.h>

namespace levin::testing {
namespace {

using ::testing::HasSubstr;

INSTANTIATE_TEST_SUITE_P(
    Strategies, LossWeight,
    ::testing::Values(StrategyCase{"single_device", 1}, StrategyCase{"dp", 3}, StrategyCase{"ddp_threads", 2},
                      StrategyCase{"ddp_threads", 3},
                      StrategyCase{"ddp_threads", 2, 0, "first_bucket_cap_mb: 0.0001, bucket_cap_mb: 0.0002"},
                      StrategyCase{"ddp_threads", 2, 0, "find_unused_parameters: true"},
                      StrategyCase{"ddp_threads", 2, 0, "static_graph: true"},
                      StrategyCase{"ddp_threads", 2, 0, "backend: gloo"}, StrategyCase{"sharded_threads", 3, 1},
                      StrategyCase{"sharded_threads", 3, 2}, StrategyCase{"sharded_threads", 3, 3},
                      StrategyCase{"pipeline_threads", 2, 0, "schedule: gpipe, micro_batches: 3"},
                      StrategyCase{"pipeline_threads", 2, 0, "schedule: 1f1b, micro_batches: 1"},
                      StrategyCase{"pipeline_threads", 2, 0, "schedule: zero_bubble, micro_batches: 2"},
                      StrategyCase{"pipeline_threads", 4, 0, "data_parallel: 2, micro_batches: 2"},
                      StrategyCase{"parameter_server_threads", 3, 0, "servers: 2"}),
    name_of);

TEST(LossesOfEqualWeight, AreThoseOfAllBatchesAndRanks) {
  const auto train_alike = [](const Division& division, const StrategyCase& on) {
    return train_divided(division, on, [](TrainerOptions& options) { options.weigh_losses = false; });
  };
  const auto step_by_means = [](const std::vector<std::pair<int64_t, int64_t>>& batches) {
    const auto net = make_net({});
    const Batch all = examples(13);
    for (const auto& [from, to] : batches) {
      Batch batch;
      for (const auto& [name, tensor] : all.items()) batch.set(name, tensor.slice(0, from, to));
      (net->errors(batch).mean() / static_cast<double>(batches.size())).backward();
    }
    const at::NoGradGuard no_grad;
    for (auto& parameter : net->parameters()) parameter.sub_(0.2 * parameter.grad());
    return weights(*net);
  };
  const auto one = train_alike({.size = 13, .batch_size = 5, .accumulate = 3}, {"single_device", 1});
  EXPECT_EQ(difference(step_by_means({{0, 5}, {5, 10}, {10, 13}}), weights(*one), 2e-6), "");
  const auto two = train_alike({.size = 13, .batch_size = 5, .accumulate = 2}, {"ddp_threads", 2});
  EXPECT_EQ(difference(step_by_means({{0, 5}, {5, 10}, {10, 12}, {12, 13}}), weights(*two), 2e-6), "");
}

/// Recorded steps weigh as ordinary ones do, whatever each batch weighs.
TEST(LossWeight64, KeepsTheDigitsOfTheParameters) {
  // One step over all examples, however they are divided.
  const auto trained = [](int64_t batch_size, const StrategyCase& on) {
    const Division division{.size = 22, .batch_size = batch_size, .accumulate = 22, .net = {.weighing = 1}};
    return train_divided(division, on, [](TrainerOptions& options) { options.precision = "64-true"; });
  };
  const auto expected = trained(22, {"single_device", 1});
  for (const StrategyCase& on : {StrategyCase{"single_device", 1},
                                 {"dp", 2},
                                 {"ddp_threads", 3},
                                 {"ddp_threads", 2, 0, "backend: gloo"},
                                 {"sharded_threads", 2, 3},
                                 {"pipeline_threads", 2, 0, "micro_batches: 2"}}) {
    const auto got = trained(3, on);
    EXPECT_EQ(difference(weights(*got), weights(*expected), 1e-14), "") << on;
  }
}

TEST(RecordedLossWeight, IsThatOfOrdinarySteps) {
  for (const StrategyCase& on : {StrategyCase{"single_device", 1}, StrategyCase{"ddp_threads", 2}})
    for (const int64_t weighing : {0, 2})
      for (const int64_t accumulate : {1, 3}) {
        // The last batch is small, and so are the last window and its quotients.
        const Division division{.size = 203,
                                .batch_size = 4,
                                .accumulate = accumulate,
                                .net = {.weighing = weighing, .notes = false, .finite = true}};
        SCOPED_TRACE(division.text(on));
        const auto train_with = [&](bool graph) {
          return train_divided(division, on, [graph](TrainerOptions& options) {
            options.graph = graph;
            options.max_epochs = 6;
          });
        };
        CapturedLog log;
        const auto recorded = train_with(true);
        EXPECT_THAT(log.text(), HasSubstr("recorded the step"));
        EXPECT_THAT(log.text(), ::testing::Not(HasSubstr("not recorded")));
        EXPECT_EQ(difference(weights(*train_with(false)), weights(*recorded), 0), "");
      }
}

TEST(RecordedLossWeight, OfZeroLeavesOutALossThatIsNoNumber) {
  class CountsExamples : public testing::TinyModule {
   public:
    using testing::TinyModule::TinyModule;
    StepOutput training_step(const Batch& batch, int64_t) override {
      const at::Tensor count = batch["count"].sum();
      const at::Tensor errors = (forward(batch["x"]) - batch["y"]).square() * batch["count"];
      return StepOutput({.loss = errors.sum() / count, .weight = count});
    }
    OptimizerConfigs configure_optimizers() override {
      return OptimizerConfig{.optimizer = std::make_shared<optim::SGD>(parameters(), optim::SGDOptions{.lr = 0.05})};
    }
  };
  // Batches of 4 (or 2 on each of two ranks) that count nothing: one, all of a window of 3, and the end of another.
  const at::Tensor input = at::arange(480, at::kFloat).reshape({120, 4}).mul(0.7).sin();
  at::Tensor count = at::ones({120, 1});
  for (const int64_t batch : {13, 18, 19, 20, 26}) count.narrow(0, 4 * batch, 4).zero_();
  const Batch data{{"x", input}, {"y", input.sum(1, true)}, {"count", count}};
  for (const char* precision : {"32-true", "16-mixed"})
    for (const int64_t ranks : {1, 2})
      for (const int64_t accumulate : {1, 3}) {
        SCOPED_TRACE(fmt::format("{} on {} ranks, windows of {}", precision, ranks, accumulate));
        std::vector<std::vector<at::Tensor>> trained;
        for (const bool graph : {false, true}) {
          CapturedLog log;
          TrainerOptions options = testing::quiet(1);
          options.precision = precision;
          options.strategy = ranks == 1 ? "single_device" : "ddp_threads";
          options.devices = ranks;
          options.accumulate_grad_batches = accumulate;
          options.graph = graph;
          seed_everything(3);
          const auto net = make<CountsExamples>({});
          Trainer(options).fit(net, DataLoader(std::make_shared<data::TensorDataset>(data), {.batch_size = 4 / ranks}));
          trained.push_back(weights(*net));
          if (graph) EXPECT_THAT(log.text(), HasSubstr("recorded the step"));
        }
        EXPECT_EQ(difference(trained[1], trained[0], 0), "");
        EXPECT_TRUE(trained[0].front().isfinite().all().item<bool>());
      }
}

TEST(RecordedLossWeight, IsATensorOrOneForAll) {
  for (const bool graph : {false, true}) {
    // Each batch alike, whatever it holds.
    const Division alike{.size = 203, .batch_size = 4, .accumulate = 3, .net = {.notes = false}};
    static std::vector<at::Tensor> first;
    const auto net = train_divided(alike, {"single_device", 1}, [graph](TrainerOptions& options) {
      options.graph = graph;
      options.weigh_losses = false;
      options.max_epochs = 4;
    });
    if (graph) EXPECT_EQ(difference(first, weights(*net), 0), "");
    first = weights(*net);
  }
  // A number would be that of the recorded batch.
  CapturedLog log;
  train_divided({.size = 203, .net = {.weighing = 3, .notes = false}}, {"single_device", 1},
                [](TrainerOptions& options) {
                  options.graph = true;
                  options.max_epochs = 4;
                });
  EXPECT_THAT(log.text(), HasSubstr("gave the loss's weight as a number"));
}

/// A run that is stopped within a window goes on with the weight of what it has added up.
TEST(ResumedLossWeight, IsThatOfTheWholeWindow) {
  for (const StrategyCase& on : {StrategyCase{"single_device", 1}, StrategyCase{"ddp_threads", 2}})
    for (const int64_t weighing : {0, 2})
      for (const bool streams : {false, true})
        for (const int64_t stop_after : {1, 2, 3}) {
          const Division division{
              .size = 22, .batch_size = 3, .accumulate = 3, .streams = streams, .net = {.weighing = weighing}};
          SCOPED_TRACE(division.text(on) + fmt::format(", stopped after {}", stop_after));
          const auto whole = train_divided(division, on);
          const std::string path = fresh_folder("resumed_weight") + "/c";
          train_divided(division, on, [&](TrainerOptions& options) {
            options.callbacks.push_back(make<LambdaCallback>(LambdaCallbackOptions{
                .on_train_batch_end = [&path, stop_after](Trainer& trainer, Module&, const StepOutput&, const Batch&,
                                                          int64_t) {
                  if (trainer.total_batches() + 1 != stop_after) return;
                  trainer.save_checkpoint(path);
                  trainer.request_stop("the test resumes here");
                }}));
          });
          const auto resumed = train_divided(division, on, {}, path);
          EXPECT_EQ(difference(weights(*whole), weights(*resumed), 0), "");
        }
}

/// A rank that skipped what another trained on keeps nothing of its own, and the other all of it.
TEST(ResumedLossWeight, CountsWhatSomeRanksSkipped) {
  for (const int64_t ranks : {2, 3})
    for (const int64_t stop_after : {1, 2}) {
      const StrategyCase on{"ddp_threads", static_cast<int>(ranks)};
      const Division division{.size = 24, .batch_size = 2, .accumulate = 3, .net = {.skips = true}};
      SCOPED_TRACE(division.text(on) + fmt::format(", stopped after {}", stop_after));
      const auto whole = train_divided(division, on);
      const std::string path = fresh_folder("resumed_weight") + "/c";
      train_divided(division, on, [&](TrainerOptions& options) {
        options.callbacks.push_back(make<LambdaCallback>(
            LambdaCallbackOptions{.on_train_batch_end = [&path, stop_after](Trainer& trainer, Module&,
                                                                            const StepOutput&, const Batch&, int64_t) {
              if (trainer.total_batches() + 1 != stop_after) return;
              trainer.save_checkpoint(path);
              trainer.request_stop("the test resumes here");
            }}));
      });
      EXPECT_EQ(difference(weights(*whole), weights(*train_divided(division, on, {}, path)), 0), "");
    }
}

/// An optimizer that evaluates the loss itself sees that of all ranks' examples.
TEST(LossWeightOfClosures, TheLossIsThatOfAllRanks) {
  for (const int64_t weighing : {0, 1, 2}) {
    Division division{.size = 12, .batch_size = 12, .accumulate = 1, .net = {.weighing = weighing, .lbfgs = true}};
    const auto one = train_divided(division, {"single_device", 1});
    division.batch_size = 6;
    const auto two = train_divided(division, {"ddp_threads", 2});
    EXPECT_EQ(difference(weights(*one), weights(*two), 1e-4), "") << weighing;
  }
}

}  // namespace
}  // namespace levin::testing
