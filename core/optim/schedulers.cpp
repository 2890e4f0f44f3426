#include <levin/core/optim/schedulers.h>

#include <levin/core/base/error.h>
#include <levin/core/optim/composed_schedulers.h>
#include <levin/core/optim/decay_schedulers.h>
#include <levin/core/optim/long_schedulers.h>
#include <levin/core/optim/one_cycle_scheduler.h>
#include <levin/core/optim/optimizer_config.h>
#include <levin/core/optim/reduce_on_plateau_scheduler.h>

#include <algorithm>
#include <utility>
#include <vector>

namespace levin::optim {

void register_builtin_schedulers(Registry<Scheduler>& registry) {
  registry.add<StepScheduler>("step", "multiplies by gamma every step_size steps");
  registry.add<MultiStepScheduler>("multi_step", "multiplies by gamma at each milestone");
  registry.add<ExponentialScheduler>("exponential", "multiplies by gamma at every step");
  registry.add<CosineScheduler>("cosine", "half a cosine down to eta_min");
  registry.add<CosineWarmRestartsScheduler>("cosine_warm_restarts", "half a cosine again and again");
  registry.add<LinearWarmupScheduler>("linear_warmup", "rises linearly, then stays");
  registry.add<PolynomialScheduler>("polynomial", "falls to 0 as a power of the steps that are left");
  registry.add<ConstantScheduler>("constant", "a part of the learning rate for the first steps");
  registry.add<InverseSquareRootScheduler>("inverse_square_root", "falls with the root of the steps, without end");
  registry.add<StableDecayScheduler>("warmup_stable_decay",
                                     "the learning rate itself, then a fall; the warm-up is warmup_steps");
  registry.add<CyclicScheduler>("cyclic", "rises and falls between two learning rates again and again");
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

namespace {

/// A schedule that begins after `config.warmup_steps` steps, of which the first takes the 1/warmup_steps-th part of the
/// learning rate and the last all of it.
std::shared_ptr<Scheduler> after_warmup(std::shared_ptr<Scheduler> scheduler, const SchedulerConfig& config) {
  if (config.interval != Interval::kStep)
    throw ConfigError(
        "scheduler.warmup_steps counts optimizer steps, and the scheduler steps every epoch; hint: "
        "interval: step");
  if (config.frequency != 1)
    throw ConfigError("scheduler.warmup_steps counts optimizer steps, and scheduler.frequency is " +
                      std::to_string(config.frequency) + "; hint: frequency: 1");
  if (scheduler->needs_metric())
    throw ConfigError("scheduler.warmup_steps does not work with '" + scheduler->init_name() +
                      "', which follows a metric; hint: leave it out");
  auto warmup = std::make_shared<LinearWarmupScheduler>(
      LinearWarmupOptions{.start_factor = 1.0 / static_cast<double>(config.warmup_steps),
                          .total_iters = std::max<int64_t>(config.warmup_steps - 1, 1)});
  return std::make_shared<SequentialScheduler>(
      std::vector<std::shared_ptr<Scheduler>>{std::move(warmup), std::move(scheduler)},
      std::vector<int64_t>{config.warmup_steps});
}

}  // namespace

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
  if (config.warmup_steps > 0) scheduler = after_warmup(std::move(scheduler), config);
  scheduler->set_estimated_total(estimated_total);
  return scheduler;
}

}  // namespace levin::optim
