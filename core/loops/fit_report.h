#pragma once

#include <levin/core/connectors/optimizer_connector.h>
#include <levin/core/connectors/trainer_state.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

namespace levin {

/// Says what a fit did since it began, and why it ended. Nothing that was not trained goes without a word.
class FitReport {
 public:
  FitReport(const TrainerState& state, const OptimizerConnector& optimizers);

  /// Warns, once a fit, where the epoch that has just ended took no optimizer step though it had batches.
  void check_epoch();
  /// Warns, once a fit, of a loss that is NaN or infinite. Waits for the loss's device.
  void check_loss(const at::Tensor& loss, int64_t batch);
  /// Says why training ended, and warns where it ended before its first batch. `reason`: what ended it inside the loop.
  void say_end(const std::string& reason) const;

 private:
  const TrainerState& state_;
  const OptimizerConnector& optimizers_;
  const int64_t first_step_;
  const int64_t first_batch_;
  const FitPhase first_phase_;
  bool warned_ = false;
  bool warned_of_loss_ = false;
};

}  // namespace levin
