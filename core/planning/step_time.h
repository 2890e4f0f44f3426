#pragma once

#include <levin/core/planning/cluster.h>
#include <levin/core/planning/memory_plan.h>

namespace levin {

/// Predicted times of an optimizer step, in seconds.
struct StepTime {
  double compute = 0;        ///< of a rank; of `pipeline` the mean of all ranks
  double communication = 0;  ///< of all collectives and messages of a rank, hidden or not
  double exposed = 0;        ///< the part of it during which the rank computes nothing
  double bubble = 0;         ///< of pipeline: in which a rank is idle because of the schedule and of uneven stages

  double total() const { return compute + exposed + bubble; }
};

/// Predicts an optimizer step of a mesh of all ranks of a cluster. `way` is as for plan_row().
///
/// A forward and backward take the cluster's `pass_us`, and `needs.flops_per_example` for each example at its rate, a
/// third of both forward; recomputing in backward is as much as forward. A unit's share is that of its parameters. Each
/// rank computes on one stream and communicates on another, and a collective begins when what it needs is there and
/// those before it are over:
///
///     replicate   a bucket of 25 MiB is reduced when its part of the last backward is over
///     stage 1, 2  likewise (2: in each micro-batch) it is reduced and scattered along shard, then reduced along
///                 replicate; parameters are gathered after the step
///     stage 3     a unit is gathered while the one before it computes, in forward and in backward, and its gradients
///                 are reduced and scattered, then reduced along replicate, when its backward is over
///     pipeline    simulate() runs the schedule, with a message's time between ranks; then each stage reduces along
///                 shard and replicate, and gathers parameters after the step. With stages 2 and 3 of shard a chunk's
///                 forward and backward gather and reduce its units as above, and nothing is hidden behind other
///                 chunks. Each micro-batch is a pass, of which a
///                 chunk has the part of the operations that it computes
///
///     tensor      sums of cut layers lie between parts of the computation, which waits for each of them
///
/// A group along a dimension communicates over the links that it crosses: see ranks_along(). Of a mesh the pipeline is
/// outermost, and tensor innermost.
///
/// The optimizer steps what a rank holds when all gradients are there, in its part of `optimizer_us`.
///
/// Not in it: reading data, and what the collectives take from the computation. Offload is not predicted: its time is
/// that of the links between host and device.
StepTime step_time(const TrainingNeeds& needs, const Cluster& cluster, const PlanRow& way);

}  // namespace levin
