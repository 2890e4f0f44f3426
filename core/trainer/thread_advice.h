#pragma once

#include <levin/core/interfaces/strategy.h>

#include <cstdint>
#include <string>

namespace levin {

/// The threads that operators have, and the cores for them.
struct ThreadUse {
  int64_t threads = 1;  ///< of one rank
  int64_t ranks = 1;    ///< of this host
  double usable = 1;    ///< cores that the process may use; see CpuCores
  double free = 1;      ///< of those, what other processes leave
};

/// Says in one line what to set where the threads clearly have too few cores: more of them than there are, or than
/// twice those that are free. Empty otherwise, and where a rank has one thread, which nobody waits for.
std::string thread_advice(const ThreadUse& use);

/// Warns at the start of the process' first call that computes on CPUs where `thread_advice` has something to say.
/// Called when the strategy is prepared, before it starts ranks.
void advise_on_threads(Strategy& strategy, const StrategySetup& setup);

}  // namespace levin
