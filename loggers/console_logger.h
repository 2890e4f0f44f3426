#pragma once

#include <levin/core/base/schema.h>
#include <levin/core/interfaces/logger.h>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace levin {

/// Options of ConsoleLogger, explained in describe().
struct ConsoleLoggerOptions {
  int64_t digits = 4;
  std::string prefix = {};

  static void describe(Schema<ConsoleLoggerOptions>& schema);
};

/// Writes one line for each logging boundary, with Levin's other messages on standard error: `[levin] step 50, epoch 0:
/// train_loss 0.4213, lr 0.001`. With a progress bar on a terminal, lines appear above it.
class ConsoleLogger final : public Logger {
 public:
  using Options = ConsoleLoggerOptions;

  explicit ConsoleLogger(const Options& options = {}) : options_(options) {}

  std::string_view prefix() const override { return options_.prefix; }
  void log_metrics(std::span<const MetricValue> values, int64_t step, int64_t epoch) override;
  void log_text(const std::string& name, const std::string& text, int64_t step) override;

 private:
  const Options options_;
};

}  // namespace levin
