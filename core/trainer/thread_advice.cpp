#include <levin/core/trainer/thread_advice.h>

#include <levin/core/base/log.h>
#include <levin/core/devices/cpu_cores.h>
#include <levin/core/interfaces/cluster_environment.h>

#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cmath>

namespace levin {
namespace {

/// Of so many threads, how many must have a core: more than half of them, to the nearest core.
double enough_cores(double threads) { return threads / 2 + 0.5; }

}  // namespace

std::string thread_advice(const ThreadUse& use) {
  const auto threads = static_cast<double>(use.threads * use.ranks);
  const bool too_many = threads > std::ceil(use.usable);
  const bool busy = use.free < enough_cores(std::min(threads, use.usable));
  if (use.threads < 2 || (!too_many && !busy)) return "";
  const auto each = static_cast<int64_t>(std::round(use.free / static_cast<double>(use.ranks)));
  return fmt::format(
      "{} threads for operators{}, but {}: every operator waits for its slowest thread; hint: OMP_NUM_THREADS={}",
      use.threads, use.ranks > 1 ? fmt::format(" in each of {} ranks", use.ranks) : "",
      busy ? fmt::format("about {:.0f} of {:.3g} cores are free", use.free, use.usable)
           : fmt::format("{:.3g} cores for this process", use.usable),
      std::max<int64_t>(1, each));
}

void advise_on_threads(Strategy& strategy, const StrategySetup& setup) {
  const ClusterEnvironment& environment = strategy.environment();
  if (setup.devices.empty() || !setup.devices.front().is_cpu() || environment.rank() != 0) return;
  static std::atomic<bool> advised{false};
  if (advised.exchange(true)) return;

  ThreadUse use{.threads = at::get_num_threads(), .ranks = environment.local_world_size()};
  if (use.ranks > 1 && !environment.creates_processes_externally())
    if (const int64_t threads = threads_of_rank(use.ranks)) use.threads = threads;
  if (use.threads < 2) return;
  const CpuCores cores;
  use.usable = use.free = cores.usable();
  // Ranks that a launcher has started beside this one are at work already: others cannot be told from them.
  if (use.ranks == 1 || !environment.creates_processes_externally())
    use.free = cores.free(enough_cores(std::min(static_cast<double>(use.threads * use.ranks), use.usable)));
  if (const std::string advice = thread_advice(use); !advice.empty()) log::warning(advice);
}

}  // namespace levin
