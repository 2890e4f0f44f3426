#include "tests/conformance/users_own.h"
#include "tests/conformance/strategy_case.h"

#include <levin/core/base/error.h>

#include <gmock/gmock-matchers.h>

namespace levin::testing {
namespace {

[[maybe_unused]] const bool kHasUsersOwn = add_users_own();

TEST(StaticScale, TrainsAsLossScalingThatNeverChanges) {
  const auto trained = [](const char* precision) {
    return train_on_one_device({.configure = [&](TrainerOptions& options) {
      options.precision = Spec<Precision>(Config::parse(precision, {}));
      options.gradient_clip_val = 0.5;
      options.accumulate_grad_batches = 2;
    }});
  };
  const Outcome dynamic = trained("{name: 16-mixed, init_scale: 256, growth_interval: 1000000}");
  const Outcome fixed = trained("{name: 16-static, scale: 256}");
  EXPECT_EQ(difference(fixed.weights, dynamic.weights, 0), "");
  EXPECT_EQ(fixed.metrics.at("val_loss"), dynamic.metrics.at("val_loss"));
}

TEST(LocalSgd, LearnsBetweenAverages) {
  const StrategyCase on{"local_sgd", 2, 0, "start_method: thread, period: 4"};
  const Outcome begun = train({.epochs = 1}, on);
  const Outcome got = train({.epochs = 8}, on);
  EXPECT_LT(got.metrics.at("val_loss"), 0.5 * begun.metrics.at("val_loss"));
  EXPECT_NE(difference(got.weights, train_on_one_device({.epochs = 8}).weights, 2e-5), "");
}

TEST(LocalSgd, RefusesDataThatNobodyKnowsTheSizeOf) {
  try {
    train({.configure = [](TrainerOptions& options) { options.use_distributed_sampler = false; }},
          {"local_sgd", 2, 0, "start_method: thread"});
    FAIL() << "nothing was thrown";
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(),
                ::testing::HasSubstr("trainer.strategy 'local_sgd' must know how much data each rank has"));
  }
}

}  // namespace
}  // namespace levin::testing
