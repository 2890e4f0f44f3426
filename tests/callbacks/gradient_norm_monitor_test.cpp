#include <levin/callbacks/gradient_norm_monitor.h>

#include "strategy_training.h"

#include <cmath>
#include <limits>

namespace levin {
namespace {

using testing::Devices;
using testing::Outcome;
using testing::Plan;
using testing::refusal_of;
using testing::train;

using Logged = std::map<std::string, std::vector<std::pair<int64_t, double>>>;

/// The norms of the gradients as they are before clipping, by step and name.
LambdaCallbackOptions watching(Logged& expected, double norm) {
  return {.on_before_optimizer_step = [&expected, norm](Trainer& trainer, Module& module, OptimizerHandle&) {
    const int64_t step = trainer.global_step() + 1;
    if (!trainer.is_global_zero() || step % 4 != 0) return;
    double total = 0;
    for (const auto& [name, parameter] : named_unique_parameters(module)) {
      const at::Tensor gradient = parameter.grad().to(at::kDouble).abs();
      const double own = norm == 2 ? gradient.square().sum().sqrt().item<double>() : gradient.max().item<double>();
      expected["grad_norm/" + name].emplace_back(step, own);
      total = norm == 2 ? std::sqrt(total * total + own * own) : std::max(total, own);
    }
    expected["grad_norm"].emplace_back(step, total);
  }};
}

class GradientNormMonitorRuns : public ::testing::TestWithParam<Devices> {};

TEST_P(GradientNormMonitorRuns, LogTheNormsOfUnclippedGradientsAtTheBoundaries) {
  for (const double norm : {2.0, std::numeric_limits<double>::infinity()}) {
    Logged expected;
    Plan plan{.callback = fmt::format("{{gradient_norm_monitor: {{norm: {}, per_parameter: true}}}}", norm),
              .epochs = 2};
    plan.watch = watching(expected, norm);
    plan.change = [](TrainerOptions& options) {
      options.log_every_n_steps = 4;
      options.gradient_clip_val = 0.01;
    };
    const Outcome run = train(plan, GetParam());
    ASSERT_EQ(expected.size(), 7u) << "six parameters and the total";
    for (const auto& [name, values] : expected) {
      const auto logged = run.logged.find(name);
      ASSERT_NE(logged, run.logged.end()) << name;
      ASSERT_EQ(logged->second.size(), 2u) << name << " at steps 4 and 8";
      for (size_t i = 0; i < 2; ++i) {
        EXPECT_EQ(logged->second[i].first, values[i].first) << name;
        EXPECT_NEAR(logged->second[i].second, values[i].second, 1e-5 * (1 + values[i].second)) << name;
      }
    }
    EXPECT_GT(expected["grad_norm"][0].second, 0.02) << "the run clips";
  }
}

INSTANTIATE_TEST_SUITE_P(OnEveryStrategy, GradientNormMonitorRuns, testing::kEveryStrategy, testing::name_of_devices);

TEST(GradientNormMonitorTest, ByItselfLogsTheTotalOnlyAndChangesNothing) {
  Plan plan{.epochs = 1};
  const Outcome plain = train(plan, {});
  plan.callback = "gradient_norm_monitor";
  plan.change = [](TrainerOptions& options) { options.accumulate_grad_batches = 2; };
  const Outcome accumulated = train(plan, {});
  EXPECT_EQ(accumulated.logged.at("grad_norm").size(), 3u) << "one an optimizer step";
  EXPECT_EQ(accumulated.logged.count("grad_norm/head.weight"), 0u);
  plan.change = {};
  EXPECT_TRUE(testing::identical(train(plan, {}).weights, plain.weights));
}

TEST(GradientNormMonitorTest, RefusesAnotherNorm) {
  EXPECT_NE(refusal_of([] { GradientNormMonitor monitor({.norm = 3}); }).find("norm must be 1, 2 or inf; got 3"),
            std::string::npos);
}

}  // namespace
}  // namespace levin
