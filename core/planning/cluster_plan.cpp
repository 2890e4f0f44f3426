#include <levin/core/planning/cluster_plan.h>

#include <levin/core/accelerators/memory_stats.h>

#include <fmt/format.h>

#include <algorithm>
#include <tuple>

namespace levin {
namespace {

std::string milliseconds(double seconds) { return fmt::format("{:.2f}", 1e3 * seconds); }

}  // namespace

const ClusterPlan::Row* ClusterPlan::best() const {
  return rows.empty() || !rows.front().memory.fits ? nullptr : &rows.front();
}

std::vector<size_t> ClusterPlan::rows_to_show() const {
  std::vector<PlanRow> ways;
  std::vector<double> seconds;  // of an example
  for (const Row& row : rows) {
    ways.push_back(row.memory);
    seconds.push_back(row.examples_per_second > 0 ? 1 / row.examples_per_second : 0);
  }
  return levin::rows_to_show(ways, seconds);
}

ClusterPlan plan_cluster(const TrainingNeeds& needs, const Cluster& cluster, int64_t memory) {
  const int64_t devices = cluster.ranks();
  ClusterPlan plan{.cluster = cluster, .memory = memory, .batch_size = needs.batch_on(devices), .rows = {}};
  for (PlanRow way : meshes(needs, devices, pipeline_schedule_names())) {
    for (const bool checkpoints : {false, true}) {
      if (checkpoints && needs.inside.empty()) continue;
      way.checkpoints = checkpoints;
      ClusterPlan::Row row{.memory = plan_row(needs, memory, way), .time = step_time(needs, cluster, way)};
      const int64_t batches = way.batches();
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
  const std::vector<size_t> shown = plan.rows_to_show();
  for (const size_t index : shown) width = std::max(width, strategy_text(plan.rows[index].memory).size());
  std::string text = fmt::format(
      "\n{} host{} of {} device{} with {} MiB each, batches of {} on each; time of a step in ms, memory in MiB:\n",
      plan.cluster.hosts, plan.cluster.hosts == 1 ? "" : "s", plan.cluster.devices,
      plan.cluster.devices == 1 ? "" : "s", mebibytes(plan.memory), plan.batch_size);
  text += fmt::format(kLine, "strategy", width, "examples/s", "step", "compute", "comm", "not hidden", "bubble",
                      "memory", "fits");
  bool has_pipeline = false;
  for (const size_t index : shown) {
    const ClusterPlan::Row& row = plan.rows[index];
    has_pipeline |= row.memory.pipeline > 1;
    text += fmt::format(kLine, strategy_text(row.memory), width, fmt::format("{:.1f}", row.examples_per_second),
                        milliseconds(row.time.total()), milliseconds(row.time.compute),
                        milliseconds(row.time.communication), milliseconds(row.time.exposed),
                        milliseconds(row.time.bubble), mebibytes(row.memory.total()),
                        !row.memory.is_possible ? "the optimizer cannot be divided"
                        : row.memory.fits       ? "yes"
                                                : fmt::format("no, batches of {} would", row.memory.largest_batch));
  }
  if (has_pipeline) text += "  pipeline: a batch goes through all stages; compare examples/s\n";
  text += note_on_left_out(plan.rows.size() - shown.size());
  const ClusterPlan::Row* const best = plan.best();
  if (best == nullptr) return text + "  nothing fits\n";
  return text + fmt::format("  best that fits: {}\n  to set it: {}\n", strategy_text(best->memory),
                            how_to_set(best->memory, devices_options(plan.cluster)));
}

}  // namespace levin
