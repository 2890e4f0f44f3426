#include <levin/strategies/sharded/execution_order.h>

#include <levin/core/base/error.h>

#include <fmt/format.h>

#include <algorithm>
#include <vector>

namespace levin {

void ExecutionOrder::next(int64_t unit) {
  if (known_[last_].insert(unit).second && group_.world_size() > 1) {
    const std::vector<std::string> of_ranks = group_.gather_bytes(std::to_string(unit));
    const auto other = std::find_if(of_ranks.begin(), of_ranks.end(),
                                    [&](const std::string& of_rank) { return of_rank != of_ranks.front(); });
    if (other != of_ranks.end())
      throw Error(
          "sharded",
          fmt::format("ranks run units in different order: '{}' on rank 0, '{}' on rank {}; hint: which units "
                      "run may not depend on the rank's data or random numbers",
                      name_of_(std::stoll(of_ranks.front())), name_of_(std::stoll(*other)), other - of_ranks.begin()));
  }
  newest_[last_] = unit;
  last_ = unit;
}

std::optional<int64_t> ExecutionOrder::expected_after(int64_t unit) const {
  const auto found = newest_.find(unit);
  if (found == newest_.end()) return std::nullopt;
  return found->second;
}

}  // namespace levin
