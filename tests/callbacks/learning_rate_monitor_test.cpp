#include <levin/callbacks/learning_rate_monitor.h>

#include <levin/core/interfaces/logger.h>

#include "tiny_training.h"

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

namespace levin {
namespace {

using testing::quiet_options;
using testing::RunFolder;
using testing::tiny_batches;

/// Keeps the learning rates that it is given, by step.
class RateLogger : public Logger {
 public:
  void log_metrics(std::span<const MetricValue> values, int64_t step, int64_t /*epoch*/) override {
    for (const auto& value : values)
      if (value.name.starts_with("lr-")) rates.emplace_back(step, value.value);
  }
  std::vector<std::pair<int64_t, double>> rates;
};

/// Halves the rate after every step or epoch.
class DecayingModule : public testing::PlainModule {
 public:
  explicit DecayingModule(Interval interval) : interval_(interval) {}
  OptimizerConfigs configure_optimizers() override {
    return OptimizerConfig{
        .optimizer = std::make_shared<optim::SGD>(parameters(), optim::SGDOptions{.lr = 1.0}),
        .scheduler = {.name = "exponential", .interval = interval_, .options = Config::parse("{gamma: 0.5}", {})}};
  }

 private:
  Interval interval_;
};

class LearningRateMonitorTest : public ::testing::Test {
 protected:
  using Rates = std::vector<std::pair<int64_t, double>>;

  Rates train(std::optional<std::string> logging_interval, Interval interval) {
    auto logger = std::make_shared<RateLogger>();
    auto options = quiet_options(folder_, 2, {make<LearningRateMonitor>({.logging_interval = logging_interval})});
    options.logger = LoggerSpecs({Spec<Logger>(logger)});
    options.log_every_n_steps = 2;
    Trainer(options).fit(std::make_shared<DecayingModule>(interval), tiny_batches());
    return logger->rates;
  }
  RunFolder folder_;
};

TEST_F(LearningRateMonitorTest, LogsTheRateOfTheStepAtBoundaries) {
  // Step n was taken with 0.5^(n-1).
  EXPECT_EQ(train("step", Interval::kStep), (Rates{{2, 0.5}, {4, 0.125}, {6, 0.03125}, {8, 0.0078125}}));
}

TEST_F(LearningRateMonitorTest, LogsOnceAnEpoch) {
  const Rates rates = train("epoch", Interval::kEpoch);
  ASSERT_EQ(rates.size(), 2u);
  EXPECT_EQ(rates[0].second, 1.0);
  EXPECT_EQ(rates[1].second, 0.5);
}

TEST_F(LearningRateMonitorTest, ByItselfLogsWhatChanges) {
  EXPECT_EQ(train({}, Interval::kEpoch).size(), 2u);
  EXPECT_EQ(train({}, Interval::kStep).size(), 6u);
}

TEST_F(LearningRateMonitorTest, RefusesAnUnknownInterval) {
  EXPECT_THROW(LearningRateMonitor({.logging_interval = "batch"}), ConfigError);
}

}  // namespace
}  // namespace levin
