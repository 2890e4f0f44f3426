#pragma once

#include <levin/core/base/registry.h>
#include <levin/core/optim/scheduler.h>

#include <cstdint>
#include <memory>

namespace levin {
struct SchedulerConfig;
}  // namespace levin

namespace levin::optim {

/// Registry of the names that configurations may use, to which a program may add schedulers of its own before it
/// trains. One for the process; adding to it is not thread-safe.
Registry<Scheduler>& scheduler_registry();

/// Adds the schedulers that come with Levin.
void register_builtin_schedulers(Registry<Scheduler>& registry);

/// Makes the scheduler of a configuration, not yet attached; nullptr when it names none. `estimated_total`: steps that
/// it will take in the whole run, -1 when that is unbounded; it stands in for `t_max` and `total_steps` where the
/// options leave them out. Throws ConfigError for an unknown name, unknown options, or a name and an object at once.
std::shared_ptr<Scheduler> make_scheduler(const SchedulerConfig& config, int64_t estimated_total);

}  // namespace levin::optim
