#pragma once

#include <levin/core/connectors/data_connector.h>
#include <levin/core/connectors/logger_connector.h>
#include <levin/core/connectors/trainer_state.h>

#include <ATen/core/grad_mode.h>
#include <c10/core/InferenceMode.h>

#include <optional>
#include <vector>

namespace levin {

/// Runs a scope in evaluation: without gradients, logs going to another collector (nullptr: nothing may be logged).
/// Puts back what was before, the mode of each submodule included (a part that the user froze in eval mode stays so).
class EvaluationScope {
 public:
  EvaluationScope(const ResolvedOptions& options, TrainerState& state, DataConnector& data, LoggerConnector& logger,
                  RunningStage stage, metrics::Collector* collector);
  ~EvaluationScope();
  EvaluationScope(const EvaluationScope&) = delete;
  EvaluationScope& operator=(const EvaluationScope&) = delete;

 private:
  TrainerState& state_;
  DataConnector& data_;
  LoggerConnector& logger_;
  const RunningStage former_stage_;
  LoggerConnector::Active former_active_;
  std::vector<bool> training_;
  std::optional<c10::InferenceMode> inference_;
  std::optional<at::NoGradGuard> no_grad_;
};

}  // namespace levin
