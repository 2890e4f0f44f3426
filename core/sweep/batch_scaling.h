#pragma once

#include <levin/core/sweep/run_devices.h>
#include <levin/core/sweep/settings.h>
#include <levin/core/sweep/sweep_options.h>

namespace levin::sweep {

// What options of a run follow from its number of devices. `resolved`: its whole configuration. Both throw ConfigError.

/// data.batch_size for `global_batch_size`; nothing where that is not set.
Settings batch_size_of(const SweepOptions& options, const Config& resolved, const RunDevices& devices);

/// The learning rate for the run's global batch size (devices, hosts, data.batch_size and accumulated batches), after
/// batch_size_of; nothing without `learning_rate_scaling`.
Settings learning_rate_of(const SweepOptions& options, const Config& resolved, const RunDevices& devices);

}  // namespace levin::sweep
