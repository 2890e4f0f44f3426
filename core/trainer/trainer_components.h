#pragma once

#include <levin/core/connectors/callback_connector.h>
#include <levin/core/connectors/checkpoint_connector.h>
#include <levin/core/connectors/data_connector.h>
#include <levin/core/connectors/logger_connector.h>
#include <levin/core/connectors/optimizer_connector.h>
#include <levin/core/connectors/stop_controller.h>
#include <levin/core/connectors/tracer.h>
#include <levin/core/connectors/trainer_state.h>
#include <levin/core/loops/evaluation_loop.h>
#include <levin/core/loops/fit_loop.h>
#include <levin/core/loops/training_step.h>
#include <levin/core/options/resolved_options.h>
#include <levin/core/trainer/module_context.h>

#include <atomic>
#include <cstdint>

namespace levin {

/// The parts of a trainer, each given what it needs of those before it. Trainer, TrainerRun, RankRun, ThreadRank and
/// DryRun put them to work; nothing else sees them together.
struct TrainerComponents {
  TrainerComponents(Trainer& trainer_of_hooks, const TrainerOptions& given)
      : trainer(trainer_of_hooks), options(resolve(given)) {
    callbacks.set(options.callbacks);
  }

  /// Gives the next fit its fresh counters, run folder and seeds.
  void begin_fit();
  StrategySetup strategy_setup();

  Trainer& trainer;
  ResolvedOptions options;
  TrainerState state;
  Tracer tracer;
  CallbackConnector callbacks{trainer, state, tracer};
  DataConnector data{options, state, tracer};
  LoggerConnector logger{options, state, tracer};
  OptimizerConnector optimizers{options, state, tracer, data, logger};
  StopController stop{options, state, tracer};
  CheckpointConnector checkpoints{trainer, options, state, tracer, callbacks, data, logger, optimizers, stop};
  TrainingStep step{options, state, tracer, callbacks, logger, optimizers};
  EvaluationLoop evaluation{options, state, tracer, callbacks, data, logger, checkpoints, stop};
  FitLoop fit{options, state, tracer, callbacks, data, logger, optimizers, stop, checkpoints, step, evaluation};
  ModuleContext context{trainer, options, state, data, logger, optimizers, step};
  int64_t fits = 0;                  ///< calls of fit and tune; each has a run folder of its own
  std::atomic<bool> at_work{false};  ///< a call is under way; see CallScope
};

}  // namespace levin
