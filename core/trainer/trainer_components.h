#pragma once

#include <levin/core/connectors/connectors.h>
#include <levin/core/loops/evaluation_loop.h>
#include <levin/core/loops/fit_loop.h>
#include <levin/core/loops/training_step.h>
#include <levin/core/trainer/module_context.h>

#include <atomic>
#include <cstdint>

namespace levin {

/// The parts of a trainer: the connectors and the loops. Trainer, TrainerRun, RankRun, ThreadRank and DryRun put them
/// to work; nothing else sees them together.
struct TrainerComponents : Connectors {
  using Connectors::Connectors;

  /// Gives the next fit its fresh counters, run folder and seeds.
  void begin_fit();
  StrategySetup strategy_setup();

  TrainingStep step{options, state, tracer, callbacks, logger, optimizers};
  EvaluationLoop evaluation{*this};
  FitLoop fit{*this, step, evaluation};
  ModuleContext context{trainer, options, state, data, logger, optimizers, step};
  int64_t fits = 0;                  ///< calls of fit and tune; each has a run folder of its own
  std::atomic<bool> at_work{false};  ///< a call is under way; see CallScope
};

}  // namespace levin
