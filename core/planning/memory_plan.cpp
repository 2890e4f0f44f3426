#include <levin/core/planning/memory_plan.h>

#include <levin/core/accelerators/memory_stats.h>
#include <levin/core/comm/balanced_owners.h>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <tuple>

namespace levin {
namespace {

/// Of `sharded`, by default.
constexpr int64_t kBucketBytes = int64_t{25} << 20;
constexpr int64_t kBucketsInFlight = 2;
/// Parameters of the one that runs and of the one gathered ahead of it; gradients of the former and of the one before
/// it, which are on their way.
constexpr size_t kUnitsInFlight = 2;

/// Of `pipeline`, by default.
constexpr int64_t kMicroBatches = 8;

int64_t divided(int64_t bytes, int64_t ranks) { return (bytes + ranks - 1) / ranks; }

/// What a rank of a ring sends so that bytes that are divided over the ranks meet all of them, or the reverse.
int64_t ring_bytes(int64_t bytes, int64_t ranks) {
  return static_cast<int64_t>(
      std::llround(static_cast<double>(bytes) * static_cast<double>(ranks - 1) / static_cast<double>(ranks)));
}

/// Cuts costs into parts that are not empty, the last of a part following: of the cuts whose parts cost `limit` at most
/// each, one that makes the largest (`evenly`: the sum of the squares) least.
struct Cut {
  double value = 0;
  std::vector<size_t> ends;
};
Cut best_cut(const std::vector<int64_t>& costs, size_t parts, double limit, bool evenly) {
  constexpr double kNever = std::numeric_limits<double>::infinity();
  // best[k][n]: of the first n costs in k parts, and where the last of these parts begins.
  std::vector<std::vector<double>> best(parts + 1, std::vector<double>(costs.size() + 1, kNever));
  std::vector<std::vector<size_t>> begin(parts + 1, std::vector<size_t>(costs.size() + 1, 0));
  best[0][0] = 0;
  for (size_t k = 1; k <= parts; ++k) {
    for (size_t n = k; n <= costs.size(); ++n) {
      double part = 0;
      for (size_t from = n; from-- > k - 1;) {
        part += static_cast<double>(costs[from]);
        if (part > limit) break;
        const double value = evenly ? best[k - 1][from] + part * part : std::max(best[k - 1][from], part);
        if (value >= best[k][n]) continue;
        best[k][n] = value;
        begin[k][n] = from;
      }
    }
  }
  Cut cut{.value = best[parts][costs.size()], .ends = std::vector<size_t>(parts)};
  for (size_t k = parts, end = costs.size(); k > 0; end = begin[k--][end]) cut.ends[k - 1] = end;
  return cut;
}

/// Plans one way to train.
class Planner {
 public:
  Planner(const TrainingNeeds& needs, int64_t devices, int64_t memory, const PlanRow& way)
      : needs_(needs), devices_(devices), memory_(memory), way_(way) {
    if (way.stages > 0) chunk_ends_ = cut_by_parameters(needs.chain, way.stages * way.chunks);
  }

  PlanRow filled() const {
    PlanRow row = way_;
    if (row.stage > 0)
      divide(row);
    else if (row.stages == 0)
      replicate(row);
    row.is_possible = row.stage == 0 || needs_.element_wise || needs_.tensor_wise;
    row = with_batch(row, needs_.batch_on(row.stages == 0 ? devices_ : row.pipelines));
    row.fits = row.is_possible && row.total() <= memory_;
    if (row.is_possible) row.largest_batch = largest_batch(row);
    return row;
  }

 private:
  PlanRow with_batch(PlanRow row, int64_t batch) const {
    if (row.stages > 0) return busiest_stage(row, batch);
    row.activations = activations(row, batch);
    return row;
  }

  /// Of the rank that needs most; what is sent by the one that sends most.
  PlanRow busiest_stage(const PlanRow& row, int64_t batch) const {
    const PipelineShape shape = row.shape(batch);
    const auto schedule = pipeline_schedule(row.schedule, shape);
    PlanRow busiest;
    int64_t communication = 0;
    for (int64_t rank = 0; rank < row.stages; ++rank) {
      const PipelineHold hold = most_in_flight(schedule[static_cast<size_t>(rank)], shape);
      const PlanRow other = of_stage(row, rank, batch, hold);
      communication = std::max(communication, other.communication);
      if (rank == 0 || other.total() > busiest.total()) busiest = other;
    }
    busiest.communication = communication;
    busiest.bubble = simulate(schedule, shape, std::vector<ChunkCost>(static_cast<size_t>(shape.chunks()))).bubble();
    return busiest;
  }

  /// What a chunk of a pipeline has and gives.
  struct Chunk {
    WeightNeeds weights;
    BatchBytes saved;
    BatchBytes passing;  ///< got from the chunk before and given to the next one
  };
  Chunk chunk_at(size_t index) const {
    const ChainNeeds& chain = needs_.chain;
    const bool is_first = index == 0;
    const bool is_last = index + 1 == chunk_ends_.size();
    const size_t begin = is_first ? 0 : chunk_ends_[index - 1];
    const size_t end = chunk_ends_[index];
    Chunk chunk;
    for (size_t i = begin; i < end; ++i) {
      chunk.weights += chain.elements[i].weights;
      chunk.saved += chain.elements[i].saved;
    }
    // What it got and what it gave stay until backward, also where the stage is recomputed.
    if (!is_first) chunk.passing += chain.elements[begin - 1].result;
    if (!is_last) chunk.passing += chain.elements[end - 1].result;
    if (is_first) chunk.saved += chain.saved_before;
    if (is_last) chunk.saved += chain.saved_after;
    if (!is_last) chunk.saved += chain.elements[end - 1].result;
    return chunk;
  }

  PlanRow of_stage(PlanRow row, int64_t rank, int64_t batch, const PipelineHold& hold) const {
    const int64_t micro_batches = row.shape(batch).micro_batches;
    const int64_t examples = divided(batch, micro_batches);
    WeightNeeds weights;
    BatchBytes passing;
    int64_t recomputed = 0;  // of one chunk at a time
    row.activations = 0;
    for (int64_t i = 0; i < row.chunks; ++i) {
      const Chunk chunk = chunk_at(static_cast<size_t>(i * row.stages + rank));
      const int64_t in_flight = hold.per_chunk[static_cast<size_t>(i)];
      weights += chunk.weights;
      passing += chunk.passing;
      row.activations += times(row.checkpoints ? chunk.passing : chunk.saved, in_flight).at(examples);
      if (row.checkpoints) recomputed = std::max(recomputed, chunk.saved.at(examples));
    }
    row.activations += recomputed;
    // The optimizer's state is with the parameters that it belongs to; that of those outside is on the last stage.
    const WeightNeeds& outside = needs_.chain.outside;
    const int64_t stepped =
        weights.trainable_elements + (rank + 1 == row.stages ? outside.trainable_elements : int64_t{0});
    const double state_of_element = static_cast<double>(needs_.optimizer_state) /
                                    static_cast<double>(std::max<int64_t>(needs_.weights.trainable_elements, 1));
    weights += outside;
    row.parameters = weights.bytes + needs_.buffers;
    row.gradients = weights.trainable_bytes;
    row.optimizer = std::llround(state_of_element * static_cast<double>(stepped)) + needs_.counters;
    row.communication = times(passing, needs_.micro_batches).at(batch) + 2 * ring_bytes(row.gradients, row.pipelines);
    return row;
  }

  static BatchBytes times(const BatchBytes& bytes, int64_t count) {
    const auto factor = static_cast<double>(count);
    return {.fixed = factor * bytes.fixed, .per_example = factor * bytes.per_example};
  }

  void replicate(PlanRow& row) const {
    row.parameters = needs_.weights.bytes + needs_.buffers;
    row.gradients = needs_.weights.trainable_bytes;
    row.optimizer = needs_.optimizer_state + needs_.counters;
    row.communication = 2 * ring_bytes(row.gradients, devices_);
  }

  int64_t whole_parameters(const WeightNeeds& weights) const {
    return needs_.compute_size ? weights.elements * *needs_.compute_size : weights.bytes;
  }
  int64_t whole_gradients(const WeightNeeds& weights) const {
    return needs_.compute_size ? weights.trainable_elements * *needs_.compute_size : weights.trainable_bytes;
  }

  void divide(PlanRow& row) const {
    const WeightNeeds& all = needs_.weights;
    const int64_t parameters = whole_parameters(all);
    const int64_t gradients = whole_gradients(all);
    const int64_t ranks = row.shard_group > 0 ? row.shard_group : devices_;
    const int64_t copies = devices_ / ranks;
    const int64_t own_parameters = needs_.largest_part(all.bytes, ranks);
    const bool is_mixed = needs_.compute_size.has_value();

    row.parameters = needs_.buffers + (row.stage == 3 ? own_parameters : parameters + (is_mixed ? own_parameters : 0));
    row.gradients = row.stage == 1 ? gradients : needs_.largest_part(gradients, ranks);
    if (is_mixed) row.widened = needs_.largest_part(all.trainable_bytes, ranks);
    row.optimizer = needs_.largest_part(needs_.optimizer_state, ranks) + needs_.counters;
    if (row.stage == 2) row.gathered = std::min(gradients, kBucketsInFlight * kBucketBytes);
    if (row.stage == 3) row.gathered = largest_units();
    if (row.offload) move_to_host(row);

    const int64_t reductions = row.stage == 1 ? 1 : needs_.micro_batches;
    const int64_t gathers = row.stage == 3 ? 2 * needs_.micro_batches : 1;
    // Parts that are not even are all-reduced.
    const int64_t reduced = (needs_.element_wise ? 1 : 2) * ring_bytes(gradients, ranks);
    row.communication = reductions * (reduced + 2 * ring_bytes(divided(gradients, ranks), copies)) +
                        gathers * ring_bytes(parameters, ranks);
  }

  void move_to_host(PlanRow& row) const {
    row.host = row.parameters - needs_.buffers + row.gradients + row.optimizer + row.widened;
    row.parameters = needs_.buffers;
    row.gradients = row.optimizer = row.widened = 0;
  }

  /// Whole parameters and gradients of what stage 3 has at once.
  int64_t largest_units() const {
    std::vector<int64_t> sizes;
    for (const WeightNeeds& unit : needs_.units) sizes.push_back(whole_parameters(unit) + whole_gradients(unit));
    std::sort(sizes.rbegin(), sizes.rend());
    int64_t bytes = whole_parameters(needs_.outside) + whole_gradients(needs_.outside);
    for (size_t i = 0; i < std::min(sizes.size(), kUnitsInFlight); ++i) bytes += sizes[i];
    return bytes;
  }

  int64_t activations(const PlanRow& row, int64_t batch) const {
    // Whole parameters of `sharded` have the type that autocast would convert them to.
    const auto of = [&](const ActivationNeeds& needs) {
      return needs.bytes.at(batch) - (row.stage == 0 ? 0 : needs.weight_copies);
    };
    if (!row.checkpoints) return of(needs_.activations);
    int64_t inside = 0;
    for (const ActivationNeeds& unit : needs_.inside) inside = std::max(inside, of(unit));
    return of(needs_.kept) + inside;
  }

  int64_t largest_batch(const PlanRow& row) const {
    const auto fits = [&](int64_t batch) { return with_batch(row, batch).total() <= memory_; };
    if (fits(PlanRow::kAnyBatch)) return PlanRow::kAnyBatch;
    int64_t fitting = 0;
    int64_t too_large = PlanRow::kAnyBatch;
    while (too_large - fitting > 1) {
      const int64_t middle = fitting + (too_large - fitting) / 2;
      (fits(middle) ? fitting : too_large) = middle;
    }
    return fitting;
  }

  const TrainingNeeds& needs_;
  int64_t devices_;
  int64_t memory_;
  const PlanRow& way_;
  std::vector<size_t> chunk_ends_;  ///< chunk c has the elements [chunk_ends_[c - 1], chunk_ends_[c])
};

std::string batch_text(const PlanRow& row) {
  if (!row.is_possible) return "-";
  return row.largest_batch == PlanRow::kAnyBatch ? "any" : std::to_string(row.largest_batch);
}

std::string note_on_pipelines(const MemoryPlan& plan) {
  for (const PlanRow& row : plan.rows)
    if (row.stages > 0)
      return fmt::format("  pipeline: each has a batch of its own; ranks are idle for {:.1f} % of a step\n",
                         100 * row.bubble);
  return "";
}

std::string conclusion(const MemoryPlan& plan) {
  if (const PlanRow* cheapest = plan.cheapest())
    return fmt::format("  cheapest that fits: {}\n  to set it: {}\n", strategy_text(*cheapest),
                       how_to_set(*cheapest, fmt::format("--trainer.devices={}", plan.devices)));
  const auto most = std::max_element(plan.rows.begin(), plan.rows.end(), [](const PlanRow& a, const PlanRow& b) {
    return a.largest_batch < b.largest_batch;
  });
  if (most->largest_batch == 0) return "  nothing fits, not even with one example in a batch\n";
  return fmt::format("  nothing fits; hint: a batch of at most {} examples on a rank, with {}\n", most->largest_batch,
                     strategy_text(*most));
}

}  // namespace

int64_t most_stages(const ChainNeeds& chain, int64_t devices) {
  int64_t stages = std::min(static_cast<int64_t>(chain.elements.size()), devices);
  while (stages > 1 && devices % stages != 0) --stages;
  return std::max<int64_t>(stages, 1);
}

std::vector<size_t> cut_by_parameters(const ChainNeeds& chain, int64_t parts) {
  std::vector<int64_t> costs;
  for (const ChainNeeds::Element& element : chain.elements) costs.push_back(element.weights.elements);
  const auto count = static_cast<size_t>(parts);
  const double largest = best_cut(costs, count, std::numeric_limits<double>::infinity(), /*evenly=*/false).value;
  return best_cut(costs, count, largest, /*evenly=*/true).ends;
}

PipelineShape PlanRow::shape(int64_t batch) const {
  return {.stages = stages,
          .micro_batches = std::max<int64_t>(std::min(kMicroBatches, batch), 1),
          .chunks_per_rank = chunks};
}

std::string strategy_text(const PlanRow& row) {
  std::string text = row.strategy;
  if (row.stage > 0) text += fmt::format(", stage {}", row.stage);
  if (row.shard_group > 0) text += fmt::format(", groups of {}", row.shard_group);
  if (row.offload) text += ", offload";
  if (row.stages > 0) text += fmt::format(", {} stages", row.stages);
  if (row.pipelines > 1) text += fmt::format(" x {}", row.pipelines);
  if (row.stages > 0 && row.schedule != "1f1b") text += ", " + row.schedule;
  return text + (row.checkpoints ? " + checkpointing" : "");
}

std::string how_to_set(const PlanRow& row, const std::string& devices) {
  std::string options = row.strategy;
  if (row.stage > 0) options += fmt::format(", stage: {}", row.stage);
  if (row.shard_group > 0) options += fmt::format(", shard_group: {}", row.shard_group);
  if (row.offload) options += ", offload: true";
  if (row.stages > 0) {
    options += ", balance_by: parameters";
    if (row.schedule != "1f1b") options += ", schedule: " + row.schedule;
    if (row.chunks > 1) options += fmt::format(", chunks_per_rank: {}", row.chunks);
    if (row.pipelines > 1) options += fmt::format(", data_parallel: {}", row.pipelines);
    if (row.checkpoints) options += ", checkpoint: always";
  }
  const bool has_options = options != row.strategy;
  return (has_options ? fmt::format("--trainer.strategy='{{name: {}}}'", options) : "--trainer.strategy=" + options) +
         " " + devices + (row.checkpoints && row.stages == 0 ? " --trainer.activation_checkpointing='[\"*\"]'" : "");
}

BatchBytes BatchBytes::through(int64_t batch, int64_t bytes, int64_t other_batch, int64_t other_bytes) {
  const auto of = [](int64_t value) { return static_cast<double>(value); };
  if (batch == other_batch) return {.fixed = 0, .per_example = of(bytes) / of(batch)};
  const double slope = std::max(0.0, of(bytes - other_bytes) / of(batch - other_batch));
  return {.fixed = std::max(0.0, of(bytes) - slope * of(batch)), .per_example = slope};
}

int64_t BatchBytes::at(int64_t batch) const {
  // More than any memory, and little enough to be added up.
  constexpr double kMost = 0x1p60;
  return static_cast<int64_t>(std::llround(std::min(fixed + per_example * static_cast<double>(batch), kMost)));
}

BatchBytes& BatchBytes::operator+=(const BatchBytes& other) {
  fixed += other.fixed;
  per_example += other.per_example;
  return *this;
}

WeightNeeds& WeightNeeds::operator+=(const WeightNeeds& other) {
  elements += other.elements;
  bytes += other.bytes;
  trainable_elements += other.trainable_elements;
  trainable_bytes += other.trainable_bytes;
  return *this;
}

int64_t TrainingNeeds::batch_on(int64_t devices) const {
  return divides_batch ? divided(batch_size, devices) : batch_size;
}

int64_t TrainingNeeds::largest_part(int64_t bytes, int64_t ranks) const {
  if (element_wise || tensors.empty()) return divided(bytes, ranks);
  std::vector<int64_t> loads(static_cast<size_t>(ranks));
  const std::vector<int64_t> owners = balanced_owners(tensors, ranks);
  for (size_t i = 0; i < tensors.size(); ++i) loads[static_cast<size_t>(owners[i])] += tensors[i];
  const auto most = static_cast<double>(*std::max_element(loads.begin(), loads.end()));
  const auto all = static_cast<double>(std::max<int64_t>(1, std::accumulate(loads.begin(), loads.end(), int64_t{0})));
  return std::llround(std::ceil(static_cast<double>(bytes) * most / all));
}

const PlanRow* MemoryPlan::cheapest() const {
  const PlanRow* best = nullptr;
  const auto cost = [](const PlanRow& row) {
    return std::tuple(row.stages > 0, row.communication, row.offload, row.checkpoints, row.stage);
  };
  for (const PlanRow& row : rows)
    if (row.fits && (best == nullptr || cost(row) < cost(*best))) best = &row;
  return best;
}

PlanRow plan_row(const TrainingNeeds& needs, int64_t devices, int64_t memory, const PlanRow& way) {
  return Planner(needs, devices, memory, way).filled();
}

MemoryPlan plan_memory(const TrainingNeeds& needs, int64_t devices, int64_t memory) {
  MemoryPlan plan{.devices = devices, .memory = memory, .batch_size = needs.batch_on(devices), .rows = {}};
  const int64_t stages = most_stages(needs.chain, devices);
  const auto add = [&](const PlanRow& way) { plan.rows.push_back(plan_row(needs, devices, memory, way)); };
  for (const bool checkpoints : {false, true}) {
    if (checkpoints && needs.inside.empty()) continue;
    add({.strategy = devices == 1 ? "single_device" : "ddp", .checkpoints = checkpoints});
    if (devices == 1) continue;
    for (int64_t stage = 1; stage <= 3; ++stage)
      add({.strategy = "sharded", .stage = stage, .checkpoints = checkpoints});
    if (!needs.is_on_host) add({.strategy = "sharded", .stage = 3, .offload = true, .checkpoints = checkpoints});
    if (stages > 1)
      add({.strategy = "pipeline", .stages = stages, .pipelines = devices / stages, .checkpoints = checkpoints});
  }
  return plan;
}

std::string plan_table(const std::vector<MemoryPlan>& plans) {
  constexpr const char* kLine = "  {:<{}} {:>10} {:>9} {:>9} {:>11} {:>9} {:>10} {:>10}  {:<4} {:>13}{}\n";
  size_t width = 0;
  bool any_on_host = false;
  for (const MemoryPlan& plan : plans) {
    for (const PlanRow& row : plan.rows) {
      width = std::max(width, strategy_text(row).size());
      any_on_host |= row.offload;
    }
  }
  const auto last_column = [&](const std::string& value) {
    return any_on_host ? fmt::format(" {:>10}", value) : std::string();
  };

  std::string text;
  for (const MemoryPlan& plan : plans) {
    text += fmt::format("\n{} device{} with {} MiB each, batches of {} on each; in MiB:\n", plan.devices,
                        plan.devices == 1 ? "" : "s", mebibytes(plan.memory), plan.batch_size);
    text += fmt::format(kLine, "strategy", width, "parameters", "gradients", "optimizer", "activations", "gathered",
                        "total", "sent/step", "fits", "largest batch", last_column("on host"));
    for (const PlanRow& row : plan.rows)
      text += fmt::format(kLine, strategy_text(row), width, mebibytes(row.parameters), mebibytes(row.gradients),
                          mebibytes(row.optimizer), mebibytes(row.activations), mebibytes(row.gathered),
                          mebibytes(row.total()), mebibytes(row.communication),
                          !row.is_possible ? "-"
                          : row.fits       ? "yes"
                                           : "no",
                          batch_text(row), last_column(mebibytes(row.host)));
    text += note_on_pipelines(plan) + conclusion(plan);
  }
  return text;
}

}  // namespace levin
