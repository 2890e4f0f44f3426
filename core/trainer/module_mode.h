#pragma once

#include <levin/core/trainer/rank_core.h>

#include <c10/core/InferenceMode.h>

#include <optional>
#include <vector>

namespace levin {

/// Runs a scope in evaluation: the module in eval mode, without gradients, logs going to another collector. Puts back
/// what was before, each submodule's own mode included (a part that the user froze in eval mode stays so).
class EvaluationScope {
 public:
  EvaluationScope(RankCore& core, RunningStage stage, metrics::Collector* collector);
  ~EvaluationScope();
  EvaluationScope(const EvaluationScope&) = delete;
  EvaluationScope& operator=(const EvaluationScope&) = delete;

 private:
  RankCore& core_;
  RunningStage previous_stage_;
  metrics::Collector* previous_collector_;
  bool previous_visible_;
  std::vector<bool> training_;
  std::optional<c10::InferenceMode> inference_;
  std::optional<at::NoGradGuard> no_grad_;
};

}  // namespace levin
