#pragma once

#include <levin/core/planning/cluster.h>
#include <levin/core/planning/memory_plan.h>
#include <levin/core/planning/step_time.h>

#include <cstdint>
#include <string>
#include <vector>

namespace levin {

/// Ways to train on all devices of a cluster.
struct ClusterPlan {
  struct Row {
    PlanRow memory;
    StepTime time;
    double examples_per_second = 0;  ///< of the whole cluster
  };
  Cluster cluster;
  int64_t memory = 0;      ///< bytes of each device
  int64_t batch_size = 1;  ///< examples on a rank, or in each pipeline
  std::vector<Row> rows;   ///< those that fit first; of these, the one with most examples a second first

  /// Returns the first row if it fits, else nullptr.
  const Row* best() const;
  /// Returns the places of rows without meshes that others beat in memory and time: see levin::rows_to_show().
  std::vector<size_t> rows_to_show() const;
};

/// Plans memory and time of each mesh of all devices (see meshes()), pipelines with each schedule (interleaved: two
/// chunks a rank); each with and without checkpointing.
ClusterPlan plan_cluster(const TrainingNeeds& needs, const Cluster& cluster, int64_t memory);

/// Returns the options that choose all devices of a cluster.
std::string devices_options(const Cluster& cluster);

/// Returns the plan as a table, in milliseconds and MiB, best first, with the options that choose the best.
std::string cluster_table(const ClusterPlan& plan);

}  // namespace levin
