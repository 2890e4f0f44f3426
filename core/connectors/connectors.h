#pragma once

#include <levin/core/connectors/callback_connector.h>
#include <levin/core/connectors/checkpoint_connector.h>
#include <levin/core/connectors/data_connector.h>
#include <levin/core/connectors/logger_connector.h>
#include <levin/core/connectors/optimizer_connector.h>
#include <levin/core/connectors/stop_controller.h>
#include <levin/core/connectors/tracer.h>
#include <levin/core/connectors/trainer_state.h>
#include <levin/core/options/resolved_options.h>

namespace levin {

/// What the loops of a trainer work with: the options, the state and the connectors, each given what it needs of those
/// before it.
struct Connectors {
  Connectors(Trainer& trainer_of_hooks, const TrainerOptions& given)
      : trainer(trainer_of_hooks), options(resolve(given)) {
    callbacks.set(options.callbacks);
  }

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
};

}  // namespace levin
