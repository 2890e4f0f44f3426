#pragma once

#include <levin/core/base/schema.h>
#include <levin/core/interfaces/callback.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace levin {

/// Options of LearningRateMonitor, explained in describe().
struct LearningRateMonitorOptions {
  /// step: at every logging boundary; epoch: at the start of every epoch; unset: both, but at boundaries only what
  /// changed
  std::optional<std::string> logging_interval = {};

  static void describe(Schema<LearningRateMonitorOptions>& schema);
};

/// Logs the learning rate of every optimizer and parameter group, as "lr-AdamW" or "lr-AdamW/pg1". A boundary's value
/// is the rate with which that step was taken.
class LearningRateMonitor final : public Callback {
 public:
  using Options = LearningRateMonitorOptions;

  explicit LearningRateMonitor(const Options& options = {});

  void on_train_epoch_start(Trainer& trainer, Module& module) override;
  void on_train_batch_start(Trainer& trainer, Module& module, const Batch& batch, int64_t batch_idx) override;
  void on_train_batch_end(Trainer& trainer, Module& module, const StepOutput& output, const Batch& batch,
                          int64_t batch_idx) override;
  State state_dict() const override;
  void load_state_dict(const State& state) override;

 private:
  using Rates = std::vector<std::pair<std::string, double>>;

  void log(Trainer& trainer, const Rates& rates);

  const Options options_;
  int64_t steps_before_ = 0;  ///< those taken when the batch under way began
  bool is_captured_ = false;  ///< `captured_` holds the rates of that moment
  Rates captured_;
  Rates logged_;  ///< last
};

}  // namespace levin
