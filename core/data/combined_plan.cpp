#include <levin/core/data/combined_plan.h>

#include <algorithm>

namespace levin::data {

std::optional<int64_t> CombinedPlan::num_batches() const {
  int64_t least = 0;
  int64_t greatest = 0;
  int64_t sum = 0;
  for (size_t part = 0; part < lengths.size(); ++part) {
    if (!lengths[part]) return std::nullopt;
    least = part == 0 ? *lengths[part] : std::min(least, *lengths[part]);
    greatest = std::max(greatest, *lengths[part]);
    sum += *lengths[part];
  }
  if (mode == CombinedMode::kMinSize) return least;
  return mode == CombinedMode::kSequential ? sum : greatest;
}

std::optional<CombinedPlan::Place> CombinedPlan::place(size_t part, int64_t batch) const {
  const auto all = num_batches();
  if (all && batch >= *all) return std::nullopt;
  int64_t own = batch;
  if (mode == CombinedMode::kSequential)
    for (size_t before = 0; before < part; ++before) own -= *lengths[before];
  if (own < 0) return std::nullopt;
  const auto& length = lengths[part];
  if (!length || own < *length) return Place{.batch = own};
  if (mode != CombinedMode::kMaxSizeCycle) return std::nullopt;
  return Place{.pass = own / *length, .batch = own % *length};
}

int64_t CombinedPlan::passes(size_t part) const {
  if (mode != CombinedMode::kMaxSizeCycle) return 1;
  return (*num_batches() + *lengths[part] - 1) / *lengths[part];
}

}  // namespace levin::data
