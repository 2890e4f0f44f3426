#pragma once

#include <levin/core/planning/cluster_plan.h>
#include <levin/core/planning/memory_plan.h>

#include <optional>
#include <string>
#include <vector>

namespace levin {

/// Returns plans as JSON, for programs: what the tables say, in bytes and seconds, with the options that choose each
/// row. docs/planning.md has the keys.
std::string plan_json(const TrainingNeeds& needs, const std::vector<MemoryPlan>& plans,
                      const std::optional<ClusterPlan>& cluster);

}  // namespace levin
