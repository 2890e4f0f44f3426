#include <levin/core/optim/schedulers.h>

#include <levin/core/base/error.h>
#include <levin/core/optim/composed_schedulers.h>
#include <levin/core/optim/decay_schedulers.h>
#include <levin/core/optim/one_cycle_scheduler.h>
#include <levin/core/optim/optimizer_config.h>
#include <levin/core/optim/reduce_on_plateau_scheduler.h>

namespace levin::optim {

void register_builtin_schedulers(Registry<Scheduler>& registry) {
  registry.add<StepScheduler>("step", "multiplies by gamma every step_size steps");
  registry.add<MultiStepScheduler>("multi_step", "multiplies by gamma at each milestone");
  registry.add<ExponentialScheduler>("exponential", "multiplies by gamma at every step");
  registry.add<CosineScheduler>("cosine", "half a cosine down to eta_min");
  registry.add<CosineWarmRestartsScheduler>("cosine_warm_restarts", "half a cosine again and again");
  registry.add<LinearWarmupScheduler>("linear_warmup", "rises linearly, then stays");
  registry.add<OneCycleScheduler>("one_cycle", "one rise and one fall, momentum the other way");
  registry.add<ChainedScheduler>("chained", "several schedulers together");
  registry.add<SequentialScheduler>("sequential", "several schedulers one after the other");
  registry.add<ReduceOnPlateauScheduler>("reduce_on_plateau", "reduces when a metric stops getting better");
}

Registry<Scheduler>& scheduler_registry() {
  static Registry<Scheduler> registry = [] {
    Registry<Scheduler> builtin("scheduler");
    register_builtin_schedulers(builtin);
    return builtin;
  }();
  return registry;
}

std::shared_ptr<Scheduler> make_scheduler(const SchedulerConfig& config, int64_t estimated_total) {
  if (config.scheduler != nullptr && !config.name.empty())
    throw ConfigError("a scheduler's configuration has both a name and an object; got '" + config.name +
                      "' and an object; valid: one of them");
  if (config.scheduler == nullptr && config.name.empty()) return nullptr;
  if (config.frequency < 1)
    throw ConfigError("scheduler.frequency must be at least 1; got " + std::to_string(config.frequency));
  auto scheduler = config.scheduler;
  if (scheduler == nullptr)
    scheduler = scheduler_registry().make(config.name, config.options, "scheduler", config.options.origin());
  if (scheduler->needs_metric() && config.monitor.empty())
    throw ConfigError("scheduler '" + scheduler->init_name() +
                      "' needs `monitor`, the name of the metric that it follows");
  scheduler->set_estimated_total(estimated_total);
  return scheduler;
}

}  // namespace levin::optim
