#include <levin/core/planning/strategy_choice.h>

#include <levin/core/accelerators/memory_stats.h>
#include <levin/core/base/error.h>
#include <levin/core/interfaces/strategy.h>
#include <levin/core/options/mesh_strategy.h>
#include <levin/core/options/rank_count.h>
#include <levin/core/options/registries.h>

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <utility>
#include <vector>

namespace levin {
namespace {

constexpr const char* kPath = "trainer.strategy";

/// What `auto` with options says: its own options, and those of all ranks.
struct LimitedAuto {
  AutoStrategyOptions own;
  Config of_ranks = Config::mapping();
};

/// `{pipelin: 2}`, or `{memroy: 24GiB}`, over a file's `strategy: auto`.
void refuse_misspelt_option(const Config& strategy) {
  std::vector<std::string> valid;
  for (const MeshDimension& dimension : kMeshDimensions) valid.emplace_back(dimension.name);
  for (const FieldDoc& field : schema_of<AutoStrategyOptions>().fields()) valid.push_back(field.name);
  for (const Config::Entry& entry : strategy.entries()) {
    if (entry.key == "name" || is_rank_option(entry.key) || nearest_name(entry.key, valid).empty()) continue;
    if (std::ranges::find(valid, entry.key) != valid.end()) continue;
    throw ConfigError(fmt::format("{}{}.{} is no dimension of a mesh, and no option of auto{}", entry.origin.prefix(),
                                  kPath, entry.key, valid_names_hint(entry.key, valid)));
  }
}

LimitedAuto read_limited_auto(const Config& strategy) {
  refuse_misspelt_option(strategy);
  if (const Config* memory = strategy.find("memory"); memory == nullptr || memory->is_null())
    throw ConfigError(fmt::format(
        "{}{}: 'auto' has no options without a memory limit; valid: auto, or {{name: auto, memory: 24GiB}}; hint: name "
        "the strategy that the options are for",
        strategy.origin().prefix(), kPath));
  LimitedAuto read;
  Config own = Config::mapping(strategy.origin());
  for (const auto& [key, origin, value] : strategy.entries())
    if (key != "name") (is_rank_option(key) ? read.of_ranks : own).set(key, value, origin);
  registries().strategies.require("ddp").resolve(read.of_ranks, kPath);
  read.own = parse_options<AutoStrategyOptions>(own, kPath);
  return read;
}

// ---- Choosing

/// A mesh, what it costs and why it is not chosen.
struct Candidate {
  PlanRow way;
  double cost = 0;  ///< in any unit
  std::vector<std::string> figures;
  std::string reason;
};

/// Why a mesh other than the chosen one is not taken, memory alone being looked at; empty: it would do.
std::string why_not_possible(const PlanRow& way, int64_t memory) {
  if (!way.is_possible) return "the optimizer cannot be divided";
  if (way.total() > memory) return fmt::format("does not fit: {} MiB too much", mebibytes(way.total() - memory));
  return "";
}

std::string why_dearer(const PlanRow& way, const PlanRow& chosen) {
  if (way.tensor > 1 && chosen.tensor == 1) return "its ranks wait for each other in every layer";
  if (way.pipeline > 1 && chosen.pipeline == 1)
    return fmt::format("its ranks are idle for {:.1f} % of a step", 100 * way.bubble);
  // As much as a thousandth of a MiB is said.
  constexpr int64_t kLeastSaid = int64_t{1} << 10;
  const int64_t more = way.sent() - chosen.sent();
  if (more >= kLeastSaid) return fmt::format("sends {:.3f} MiB more a step", static_cast<double>(more) / 0x1p20);
  if (way.offload && !chosen.offload) return "sends as much, and copies between host and device";
  if (way.checkpoints && !chosen.checkpoints) return "sends as much, and recomputes activations";
  return "sends as much, and divides more";
}

std::string why_slower(double examples_per_second, double of_chosen) {
  constexpr double kLeastSaid = 0.05;  // in percent
  const double slower = 100 * (of_chosen / examples_per_second - 1);
  return slower < kLeastSaid ? "as fast, and needs no less effort" : fmt::format("{:.1f} % slower", slower);
}

std::string parts_text(const PlanRow& way) {
  std::string text = fmt::format("{} = parameters {} + gradients {} + optimizer {}", mebibytes(way.total()),
                                 mebibytes(way.parameters), mebibytes(way.gradients), mebibytes(way.optimizer));
  if (way.activations + way.backward + way.gathered >= way.widened)
    return text + fmt::format(" + activations {} + backward {} + gathered {}", mebibytes(way.activations),
                              mebibytes(way.backward), mebibytes(way.gathered));
  return text + fmt::format(" + reduction {}", mebibytes(way.widened));
}

[[noreturn]] void throw_nothing_fits(const std::vector<Candidate>& candidates, int64_t memory, int64_t ranks) {
  const PlanRow* least = nullptr;
  const PlanRow* most_examples = nullptr;
  for (const Candidate& candidate : candidates) {
    const PlanRow& way = candidate.way;
    if (!way.is_possible) continue;
    if (least == nullptr || way.total() < least->total()) least = &way;
    if (most_examples == nullptr || way.largest_batch > most_examples->largest_batch) most_examples = &way;
  }
  LEVIN_CHECK(least != nullptr, "one device is always possible");
  const std::string hint = most_examples->largest_batch > 0
                               ? fmt::format("a batch of at most {} examples on a rank, with {}, or more devices",
                                             most_examples->largest_batch, strategy_text(*most_examples))
                               : "more devices, or more memory: not even one example in a batch fits";
  throw ConfigError(
      fmt::format("{}.memory: nothing fits; got {} MiB on each of {}; the least is {} in MiB, with {}: "
                  "{} too much; hint: {}",
                  kPath, mebibytes(memory), counted(ranks, "device"), parts_text(*least), strategy_text(*least),
                  mebibytes(least->total() - memory), hint));
}

std::string table_of(const std::vector<Candidate>& candidates, size_t chosen, const std::vector<std::string>& columns,
                     const std::string& heading) {
  std::vector<PlanRow> ways;
  std::vector<double> costs;
  for (const Candidate& candidate : candidates) {
    ways.push_back(candidate.way);
    costs.push_back(candidate.cost);
  }
  std::vector<size_t> shown = rows_to_show(ways, costs);
  const size_t left_out = candidates.size() - shown.size();
  std::erase(shown, chosen);
  shown.insert(shown.begin(), chosen);
  size_t width = 0;
  for (const size_t index : shown) width = std::max(width, strategy_text(ways[index]).size());
  const auto line = [&](const std::string& name, const std::vector<std::string>& figures, const std::string& reason) {
    std::string text = fmt::format("  {:<{}}", name, width);
    for (const std::string& figure : figures) text += fmt::format(" {:>10}", figure);
    return text + "  " + reason + "\n";
  };
  std::string text = heading + "\n" + line("strategy", columns, "why");
  for (const size_t index : shown)
    text += line(strategy_text(ways[index]), candidates[index].figures, candidates[index].reason);
  if (left_out > 0)
    text += fmt::format("  not shown: {} {}, which others beat in memory and in cost\n", left_out,
                        left_out == 1 ? "mesh" : "meshes");
  text.pop_back();
  return text;
}

std::string heading_of(const TrainingNeeds& needs, int64_t memory, int64_t ranks, const PlanRow& chosen) {
  return fmt::format("strategy auto: {} for {} of {} MiB each, batches of {} on each; memory in MiB",
                     strategy_text(chosen), counted(ranks, "device"), mebibytes(memory),
                     needs.batch_on(chosen.batches()));
}

StrategyChoice choose_cheapest(const TrainingNeeds& needs, int64_t memory, int64_t ranks,
                               const std::function<bool(const PlanRow&)>& is_candidate) {
  MemoryPlan plan = plan_memory(needs, ranks, memory);
  std::erase_if(plan.rows, [&](const PlanRow& row) { return !is_candidate(row); });
  std::vector<Candidate> candidates;
  for (const PlanRow& row : plan.rows)
    candidates.push_back({.way = row,
                          .cost = static_cast<double>(row.sent()),
                          .figures = {mebibytes(row.total()), mebibytes(row.sent())},
                          .reason = why_not_possible(row, memory)});
  const PlanRow* const cheapest = plan.cheapest();
  if (cheapest == nullptr) throw_nothing_fits(candidates, memory, ranks);
  const auto chosen = static_cast<size_t>(cheapest - plan.rows.data());
  for (Candidate& candidate : candidates)
    if (candidate.reason.empty()) candidate.reason = why_dearer(candidate.way, *cheapest);
  candidates[chosen].reason = cheapest->tensor > 1     ? "chosen: without cut layers nothing fits"
                              : cheapest->pipeline > 1 ? "chosen: without a pipeline nothing fits"
                                                       : "chosen: of those that fit, it sends least";
  return {.way = *cheapest,
          .table = table_of(candidates, chosen, {"memory", "sent/step"}, heading_of(needs, memory, ranks, *cheapest))};
}

StrategyChoice choose_fastest(const TrainingNeeds& needs, const Cluster& cluster, int64_t memory,
                              const std::function<bool(const PlanRow&)>& is_candidate) {
  ClusterPlan plan = plan_cluster(needs, cluster, memory);
  // Offload is not predicted, and so not among them.
  std::erase_if(plan.rows, [&](const ClusterPlan::Row& row) { return !is_candidate(row.memory); });
  std::vector<Candidate> candidates;
  for (const ClusterPlan::Row& row : plan.rows)
    candidates.push_back({.way = row.memory,
                          .cost = row.examples_per_second > 0 ? 1 / row.examples_per_second : 0,
                          .figures = {mebibytes(row.memory.total()), fmt::format("{:.2f}", 1e3 * row.time.total()),
                                      fmt::format("{:.1f}", row.examples_per_second)},
                          .reason = why_not_possible(row.memory, memory)});
  const ClusterPlan::Row* const best = plan.best();
  if (best == nullptr) throw_nothing_fits(candidates, memory, cluster.ranks());
  for (size_t i = 0; i < candidates.size(); ++i)
    if (candidates[i].reason.empty())
      candidates[i].reason = why_slower(plan.rows[i].examples_per_second, best->examples_per_second);
  candidates.front().reason = "chosen: of those that fit, the fastest";
  return {.way = best->memory,
          .table = table_of(candidates, 0, {"memory", "step in ms", "examples/s"},
                            heading_of(needs, memory, cluster.ranks(), best->memory))};
}

}  // namespace

void AutoStrategyOptions::describe(Schema<AutoStrategyOptions>& schema) {
  schema.field("memory", &AutoStrategyOptions::memory, "memory of each device that the strategy has to fit into");
  schema.field("cluster", &AutoStrategyOptions::cluster,
               "machines whose times are compared, as in plan.cluster; null: what the ranks send is compared");
}

bool is_limited_auto(const Config& strategy) {
  const Config* const name = strategy.is_mapping() ? strategy.find("name") : nullptr;
  return name != nullptr && name->is_scalar() && name->text() == "auto" && strategy.entries().size() > 1;
}

Config resolve_limited_auto(const Config& strategy) {
  const LimitedAuto read = read_limited_auto(strategy);
  Config resolved = Config::mapping(strategy.origin());
  resolved.set("name", *strategy.find("name"));
  for (const char* key : {"memory", "cluster"})
    if (const Config* given = strategy.find(key); given != nullptr && !given->is_null()) resolved.set(key, *given);
  resolved.merge(read.of_ranks);
  return resolved;
}

StrategyChoice choose_mesh(const TrainingNeeds& needs, const AutoStrategyOptions& options, int64_t ranks,
                           bool only_checkpoints) {
  const int64_t memory = options.memory.bytes.value();
  const auto is_candidate = [&](const PlanRow& row) {
    return !only_checkpoints || row.checkpoints || needs.inside.empty();
  };
  if (!options.cluster) return choose_cheapest(needs, memory, ranks, is_candidate);
  const Cluster& cluster = *options.cluster;
  if (cluster.ranks() != ranks)
    throw ConfigError(fmt::format(
        "{}.cluster does not fit the ranks; got {} = {} x {}, and {} in the run; hint: trainer.devices are those of "
        "a host, trainer.num_nodes the hosts",
        kPath, counted(cluster.ranks(), "rank"), counted(cluster.hosts, "host"), counted(cluster.devices, "device"),
        counted(ranks, "rank")));
  return choose_fastest(needs, cluster, memory, is_candidate);
}

StrategyChoice choose_mesh(const TrainingNeeds& needs, const TrainerOptions& run) {
  const LimitedAuto limited = read_limited_auto(run.strategy.config());
  return choose_mesh(needs, limited.own, count_ranks(run), !run.activation_checkpointing.units.empty());
}

TrainerOptions with_mesh(TrainerOptions run, const PlanRow& way) {
  Config strategy = strategy_config(way);
  if (strategy.is_scalar()) {
    const Config name = strategy;
    strategy = Config::mapping();
    strategy.set("name", name);
  }
  // One device has no other ranks.
  if (way.devices() > 1) strategy.merge(read_limited_auto(run.strategy.config()).of_ranks);
  run.strategy = Spec<Strategy>(strategy);
  // Units that are given are those that were measured; a pipeline recomputes its stages.
  auto& units = run.activation_checkpointing.units;
  if (way.checkpoints && way.pipeline == 1 && units.empty()) units = {"*"};
  return run;
}

}  // namespace levin
