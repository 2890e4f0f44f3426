#pragma once

#include <levin/core/trainer/rank_core.h>

#include <cstdint>
#include <string>

namespace levin {

/// Throws levin::Error where the training data give no batch, though the options do not ask for none.
void require_training_data(const RankCore& core);

/// What a fit did since it began, and why it ended, in words. Nothing that was not trained goes without a word.
class FitReport {
 public:
  explicit FitReport(const RankCore& core);

  /// Warns, once a fit, where the epoch that has just ended took no optimizer step though it had batches.
  void check_epoch();
  /// Says why training ended, and warns where it ended before its first batch. `reason`: what ended it inside the loop.
  void say_end(const std::string& reason) const;

 private:
  const RankCore& core_;
  const int64_t first_step_;
  const int64_t first_batch_;
  bool warned_ = false;
};

}  // namespace levin
