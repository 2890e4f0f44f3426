#include <levin/core/trainer/trainer_components.h>

#include <levin/core/interfaces/strategy.h>
#include <levin/core/precision/precision.h>

namespace levin {

void TrainerComponents::begin_fit() {
  state.progress = {};
  stop.begin_fit();
  optimizers.begin_fit();
  data.begin_fit();
  logger.forget_metrics();
  if (fits++ > 0) logger.forget_run_directory();
}

StrategySetup TrainerComponents::strategy_setup() {
  return {.devices = options.devices,
          .devices_are_given = options.devices_are_given,
          .num_nodes = options.given.num_nodes,
          .sync_batchnorm = options.given.sync_batchnorm,
          .mixed_type = options.precision->mixed_type(),
          .rank_status = &tracer.rank_status()};
}

}  // namespace levin
