#include "../../callbacks/strategy_training.h"

namespace levin {
namespace {

using testing::Devices;
using testing::expect_close;
using testing::expect_resumes_everywhere;
using testing::Outcome;
using testing::Plan;
using testing::train;

/// Callbacks that act on weights and gradients, where each rank has parts of these: the run is that of ddp.
class ShardedCallbacks : public ::testing::TestWithParam<int> {
 protected:
  static Outcome run(const Plan& plan) { return train(plan, sharded()); }
  static Devices sharded() {
    static const std::vector<std::string> kStages = {"", "{name: sharded_threads, stage: 1}",
                                                     "{name: sharded_threads, stage: 2}",
                                                     "{name: sharded_threads, stage: 3}"};
    return {kStages.at(static_cast<size_t>(GetParam())).c_str(), 2};
  }

  static void expect_as_ddp(const Plan& plan) {
    const Outcome expected = train(plan, {"ddp_threads", 2});
    const Outcome actual = run(plan);
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
};

TEST_P(ShardedCallbacks, AverageWeights) {
  const Plan plan{.net = {.dropout = 0.2}, .callback = "{weight_averaging: {decay: 0.7, update_every_n_steps: 2}}"};
  expect_as_ddp(plan);
  expect_resumes_everywhere(plan, sharded(), 5);
}

TEST_P(ShardedCallbacks, AverageInTheOptimizersTypeUnderMixedPrecision) {
  const auto average = [](double decay) {
    return run({.callback = fmt::format("{{weight_averaging: {{decay: {}}}}}", decay),
                .change = [](TrainerOptions& options) { options.precision = "bf16-mixed"; }})
        .weights;
  };
  // So slow an average would never leave its first value in 16 bits.
  EXPECT_FALSE(testing::identical(average(0.999), average(1.0)));
}

TEST_P(ShardedCallbacks, AverageWeightsStochastically) {
  const Plan plan{.net = {.dropout = 0.2, .schedule = "cosine"},
                  .callback = "{stochastic_weight_averaging: {swa_lrs: 0.02, swa_epoch_start: 2}}"};
  expect_as_ddp(plan);
  expect_resumes_everywhere(plan, sharded(), 7);
}

TEST_P(ShardedCallbacks, LogTheNormsOfWholeGradients) {
  for (const char* norm : {"1", "2", ".inf"})
    expect_as_ddp(
        {.callback = fmt::format("{{gradient_norm_monitor: {{norm: {}, per_parameter: true}}}}", norm), .epochs = 1});
}

TEST_P(ShardedCallbacks, FinetuneABackbone) {
  const Plan plan{.callback = "{backbone_finetuning: {backbone: body, unfreeze_backbone_at_epoch: 2}}"};
  expect_as_ddp(plan);
  expect_resumes_everywhere(plan, sharded(), 7);
}

INSTANTIATE_TEST_SUITE_P(Stages, ShardedCallbacks, ::testing::Values(1, 2, 3));

}  // namespace
}  // namespace levin
