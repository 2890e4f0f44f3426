#pragma once

#include <levin/core/base/events.h>
#include <levin/core/connectors/progress.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace levin {

class Module;

/// State of a rank's trainer: the last call, and how far it has come, as plain values on which the connectors and the
/// loops act.
struct TrainerState {
  Stage stage = Stage::kFit;
  RunningStage running = RunningStage::kIdle;
  TrainerStatus status = TrainerStatus::kInitializing;
  std::shared_ptr<Module> module;  ///< the module of the call under way, or of the last one; nullptr before the first

  FitProgress progress;
  EvaluationProgress evaluation;            ///< of a validation or test outside of fit
  std::vector<int64_t> evaluation_batches;  ///< each loader's, after limits; -1 where unsized
  int64_t evaluation_loader = 0;            ///< index of the loader that is evaluated

  bool resumed = false;          ///< this fit goes on from a checkpoint, and has not begun a batch yet
  bool in_fit_loop = false;      ///< batches are under way: a checkpoint waits for a resume point
  bool at_resume_point = false;  ///< a checkpoint saved now can be resumed exactly
  bool had_data = false;         ///< this rank has run training_step on data of its own in this epoch
  bool joining = false;          ///< the batch under way is no data of this rank's: nothing is logged; see JoinScope
};

}  // namespace levin
