#include <levin/core/loops/worker_hint.h>

#include <fmt/format.h>

#include <algorithm>

namespace levin {

std::string worker_hint(const DataWait& wait) {
  const double share =
      wait.total.count() == 0 ? 0 : static_cast<double>(wait.waited.count()) / static_cast<double>(wait.total.count());
  if (share < 0.2 || wait.total < std::chrono::seconds(2) || wait.workers + 1 >= wait.cores) return "";
  const std::string waited = fmt::format("{:.0f} % of the last epoch went by waiting for data", 100 * share);
  const std::string hint = fmt::format("num_workers = {} fetches batches while the step computes",
                                       std::min(wait.workers + 2, wait.cores - 1));
  // A worker would run the module while the step changes its weights.
  if (wait.is_stream)
    return fmt::format(
        "{}; hint: where the module itself makes them (rollouts of a policy), make that faster; else {} (now {})",
        waited, hint, wait.workers);
  return fmt::format("{}; hint: {} (now {})", waited, hint, wait.workers);
}

}  // namespace levin
