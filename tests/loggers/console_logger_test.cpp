#include <levin/loggers/console_logger.h>

#include <levin/core/base/log.h>

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

namespace levin {
namespace {

TEST(ConsoleLogger, OneLineABoundary) {
  std::vector<std::string> lines;
  log::set_sink([&lines](const std::string& line) { lines.push_back(line); });
  ConsoleLogger logger;
  const std::vector<MetricValue> values{{"train/loss", 0.123456}, {"lr", 1e-5}, {"nan", -NAN}};
  logger.log_metrics(values, 49, 2);
  const MetricValue odd{"a\nb\x1b[2J", -std::numeric_limits<double>::infinity()};
  logger.log_metrics({&odd, 1}, 50, 2);
  logger.log_text("note", "two\nlines", 50);
  ConsoleLogger exact({.digits = 9});
  const MetricValue number{"x", 0.123456789};
  exact.log_metrics({&number, 1}, 1, 0);
  log::set_sink(nullptr);
  EXPECT_EQ(lines,
            (std::vector<std::string>{"[levin] step 49, epoch 2: train/loss 0.1235, lr 1e-05, nan nan",
                                      "[levin] step 50, epoch 2: a\\nb[2J -inf", "[levin] step 50: note: two\\nlines",
                                      "[levin] step 1, epoch 0: x 0.123456789"}));
}

}  // namespace
}  // namespace levin
