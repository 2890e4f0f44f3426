#pragma once

#include <levin/core/options/options.h>

#include <cstdint>

namespace levin {

/// Returns how many ranks a strategy of several has on so many devices of a host: those that a launcher outside has
/// started, or one for each device of each of `num_nodes` hosts.
int64_t count_ranks(int64_t devices, int64_t num_nodes);
/// The same on the devices that a run asks for.
int64_t count_ranks(const TrainerOptions& options);

}  // namespace levin
