#include <levin/core/planning/cluster_plan.h>

#include <levin/core/accelerators/memory_stats.h>

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <tuple>

namespace levin {
namespace {

/// 2, 4, 8, ... below `most` and `last`, where they divide it.
std::set<int64_t> sizes(int64_t devices, int64_t most, int64_t last) {
  std::set<int64_t> all;
  for (int64_t size = 2; size <= most; size *= 2)
    if (devices % size == 0) all.insert(size);
  if (last > 1 && last <= most && devices % last == 0) all.insert(last);
  return all;
}

std::vector<PlanRow> ways(const TrainingNeeds& needs, const Cluster& cluster) {
  const int64_t devices = cluster.ranks();
  if (devices == 1) return {{.strategy = "single_device"}};
  std::vector<PlanRow> all{{.strategy = "ddp"}};
  for (int64_t stage = 1; stage <= 3; ++stage) {
    all.push_back({.strategy = "sharded", .stage = stage});
    for (const int64_t group : sizes(devices, devices - 1, cluster.devices))
      all.push_back({.strategy = "sharded", .stage = stage, .shard_group = group});
  }
  const auto elements = static_cast<int64_t>(needs.chain.elements.size());
  for (const int64_t stages : sizes(devices, std::min(devices, elements), most_stages(needs.chain, devices))) {
    for (const std::string& schedule : pipeline_schedule_names()) {
      const int64_t chunks = schedule == "interleaved" ? 2 : 1;
      if (stages * chunks > elements) continue;
      all.push_back({.strategy = "pipeline",
                     .stages = stages,
                     .pipelines = devices / stages,
                     .schedule = schedule,
                     .chunks = chunks});
    }
  }
  return all;
}

std::string milliseconds(double seconds) { return fmt::format("{:.2f}", 1e3 * seconds); }

}  // namespace

const ClusterPlan::Row* ClusterPlan::best() const {
  return rows.empty() || !rows.front().memory.fits ? nullptr : &rows.front();
}

ClusterPlan plan_cluster(const TrainingNeeds& needs, const Cluster& cluster, int64_t memory) {
  const int64_t devices = cluster.ranks();
  ClusterPlan plan{.cluster = cluster, .memory = memory, .batch_size = needs.batch_on(devices), .rows = {}};
  for (PlanRow way : ways(needs, cluster)) {
    for (const bool checkpoints : {false, true}) {
      if (checkpoints && needs.inside.empty()) continue;
      way.checkpoints = checkpoints;
      ClusterPlan::Row row{.memory = plan_row(needs, devices, memory, way), .time = step_time(needs, cluster, way)};
      const int64_t batches = way.stages > 0 ? way.pipelines : devices;
      const auto examples = static_cast<double>(batches * needs.batch_on(batches) * needs.micro_batches);
      row.examples_per_second = row.time.total() > 0 ? examples / row.time.total() : 0;
      plan.rows.push_back(std::move(row));
    }
  }
  std::stable_sort(plan.rows.begin(), plan.rows.end(), [](const ClusterPlan::Row& a, const ClusterPlan::Row& b) {
    return std::tuple(!a.memory.fits, -a.examples_per_second) < std::tuple(!b.memory.fits, -b.examples_per_second);
  });
  return plan;
}

std::string devices_options(const Cluster& cluster) {
  const std::string devices = fmt::format("--trainer.devices={}", cluster.devices);
  return cluster.hosts == 1 ? devices : devices + fmt::format(" --trainer.num_nodes={}", cluster.hosts);
}

std::string cluster_table(const ClusterPlan& plan) {
  constexpr const char* kLine = "  {:<{}} {:>12} {:>10} {:>10} {:>10} {:>10} {:>10} {:>12}  {}\n";
  size_t width = 0;
  for (const ClusterPlan::Row& row : plan.rows) width = std::max(width, strategy_text(row.memory).size());
  std::string text = fmt::format(
      "\n{} host{} of {} device{} with {} MiB each, batches of {} on each; time of a step in ms, memory in MiB:\n",
      plan.cluster.hosts, plan.cluster.hosts == 1 ? "" : "s", plan.cluster.devices,
      plan.cluster.devices == 1 ? "" : "s", mebibytes(plan.memory), plan.batch_size);
  text += fmt::format(kLine, "strategy", width, "examples/s", "step", "compute", "comm", "not hidden", "bubble",
                      "memory", "fits");
  bool has_pipeline = false;
  for (const ClusterPlan::Row& row : plan.rows) {
    has_pipeline |= row.memory.stages > 0;
    text += fmt::format(kLine, strategy_text(row.memory), width, fmt::format("{:.1f}", row.examples_per_second),
                        milliseconds(row.time.total()), milliseconds(row.time.compute),
                        milliseconds(row.time.communication), milliseconds(row.time.exposed),
                        milliseconds(row.time.bubble), mebibytes(row.memory.total()),
                        !row.memory.is_possible ? "the optimizer cannot be divided"
                        : row.memory.fits       ? "yes"
                                                : fmt::format("no, batches of {} would", row.memory.largest_batch));
  }
  if (has_pipeline) text += "  pipeline: each has a batch of its own; compare examples/s\n";
  const ClusterPlan::Row* const best = plan.best();
  if (best == nullptr) return text + "  nothing fits\n";
  return text + fmt::format("  best that fits: {}\n  to set it: {}\n", strategy_text(best->memory),
                            how_to_set(best->memory, devices_options(plan.cluster)));
}

}  // namespace levin
