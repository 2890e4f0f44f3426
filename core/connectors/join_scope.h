#pragma once

#include <levin/core/connectors/trainer_state.h>
#include <levin/core/metrics/taken_back_updates.h>

#include <ATen/core/Tensor.h>

#include <optional>
#include <utility>
#include <vector>

namespace levin {

/// Hides the batch on which a rank without data joins a step of the others (as PyTorch's Join), since it is not its
/// own: logs are muted; buffers (running statistics) and metrics are put back.
class JoinScope {
 public:
  /// `joins`: false does nothing.
  JoinScope(TrainerState& state, bool joins);
  ~JoinScope();
  JoinScope(const JoinScope&) = delete;
  JoinScope& operator=(const JoinScope&) = delete;

 private:
  TrainerState& state_;
  const bool joins_;
  bool former_ = false;
  std::vector<std::pair<at::Tensor, at::Tensor>> buffers_;  ///< with their copies
  std::optional<metrics::TakenBackUpdates> updates_;
};

}  // namespace levin
