#pragma once

#include <levin/core/base/config.h>
#include <levin/core/options/options.h>
#include <levin/core/planning/cluster_plan.h>
#include <levin/core/planning/memory_plan.h>
#include <levin/core/planning/memory_planner.h>

#include <cstdint>
#include <optional>
#include <string>

namespace levin {

/// Options of `strategy: {name: auto, memory: 24GiB}`, which picks the cheapest mesh that fits into the memory. Beside
/// them stand those of all ranks (start_method, backend, ...), which the mesh gets.
struct AutoStrategyOptions {
  MemorySize memory = {};               ///< of each device
  std::optional<Cluster> cluster = {};  ///< the machines, to compare times; unset: what the ranks send is compared
  static void describe(Schema<AutoStrategyOptions>& schema);
};

/// Whether a strategy is `auto` with options.
bool is_limited_auto(const Config& strategy);

/// Returns `auto` with its options checked, and in the order in which they are described. Throws ConfigError.
Config resolve_limited_auto(const Config& strategy);

/// A mesh that was chosen.
struct StrategyChoice {
  PlanRow way;
  std::string table;  ///< why, and of each other mesh why not
};

/// Picks the mesh of `ranks` ranks that costs least of those that fit: with a cluster the fastest one, else
/// MemoryPlan::cheapest(). `only_checkpoints`: of those that recompute activations alone. Throws ConfigError, with the
/// arithmetic, where nothing fits and where the cluster has another number of ranks.
StrategyChoice choose_mesh(const TrainingNeeds& needs, const AutoStrategyOptions& options, int64_t ranks,
                           bool only_checkpoints);
/// The same for a run: its strategy is `auto` with a memory limit.
StrategyChoice choose_mesh(const TrainingNeeds& needs, const TrainerOptions& run);

/// Returns the options of a run whose strategy is `auto` with a memory limit with that mesh instead, which gets the
/// options of all ranks, and with activation checkpointing where that is a part of the choice.
TrainerOptions with_mesh(TrainerOptions run, const PlanRow& way);

}  // namespace levin
