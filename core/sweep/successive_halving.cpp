#include <levin/core/sweep/successive_halving.h>

#include <levin/core/base/error.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace levin::sweep {

SuccessiveHalving::SuccessiveHalving(size_t rungs, double reduction_factor, MonitorMode mode)
    : reduction_factor_(reduction_factor), mode_(mode), rungs_(rungs) {
  LEVIN_CHECK(rungs > 0 && reduction_factor > 1, "there is a rung, and fewer go on than come to its end");
}

void SuccessiveHalving::record(int64_t run, size_t rung, double value) {
  const double smaller_is_better = mode_ == MonitorMode::kMax ? -value : value;
  rungs_.at(rung).values[run] = std::isfinite(value) ? smaller_is_better : std::numeric_limits<double>::infinity();
}

void SuccessiveHalving::promote(int64_t run, size_t rung) { rungs_.at(rung).promoted.insert(run); }

std::optional<SuccessiveHalving::Promotion> SuccessiveHalving::next(bool nothing_left) const {
  for (size_t rung = rungs_.size() - 1; rung-- > 0;) {
    const auto& [values, promoted] = rungs_[rung];
    auto count = static_cast<size_t>(static_cast<double>(values.size()) / reduction_factor_);
    if (nothing_left && promoted.empty()) count = std::max<size_t>(count, 1);
    std::vector<std::pair<double, int64_t>> ranking;
    for (const auto& [run, value] : values)
      if (std::isfinite(value)) ranking.emplace_back(value, run);
    std::sort(ranking.begin(), ranking.end());
    for (size_t i = 0; i < std::min(count, ranking.size()); ++i)
      if (!promoted.contains(ranking[i].second)) return Promotion{.run = ranking[i].second, .rung = rung + 1};
  }
  return {};
}

std::vector<int64_t> rung_epochs(int64_t min_epochs, double reduction_factor, int64_t max_epochs) {
  std::vector<int64_t> epochs;
  for (auto next = static_cast<double>(min_epochs); std::llround(next) < max_epochs; next *= reduction_factor)
    if (epochs.empty() || std::llround(next) > epochs.back()) epochs.push_back(std::llround(next));
  epochs.push_back(max_epochs);
  return epochs;
}

}  // namespace levin::sweep
