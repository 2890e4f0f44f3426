#include <levin/core/trainer/memory_plan.h>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <tuple>

namespace levin {
namespace {

/// Of `sharded`, by default.
constexpr int64_t kBucketBytes = int64_t{25} << 20;
constexpr int64_t kBucketsInFlight = 2;
/// Parameters of the one that runs and of the one gathered ahead of it; gradients of the former and of the one before
/// it, which are on their way.
constexpr size_t kUnitsInFlight = 2;

int64_t divided(int64_t bytes, int64_t ranks) { return (bytes + ranks - 1) / ranks; }

/// What a rank of a ring sends so that bytes that are divided over the ranks meet all of them, or the reverse.
int64_t ring_bytes(int64_t bytes, int64_t ranks) {
  return static_cast<int64_t>(
      std::llround(static_cast<double>(bytes) * static_cast<double>(ranks - 1) / static_cast<double>(ranks)));
}

class Planner {
 public:
  Planner(const TrainingNeeds& needs, int64_t devices, int64_t memory)
      : needs_(needs), devices_(devices), memory_(memory) {}

  /// `row` says which way to train.
  PlanRow filled(PlanRow row) const {
    if (row.stage == 0)
      replicate(row);
    else
      divide(row);
    row.is_possible = row.stage == 0 || needs_.element_wise;
    row.activations = activations(row, needs_.batch_on(devices_));
    row.fits = row.is_possible && row.total() <= memory_;
    if (row.is_possible) row.largest_batch = largest_batch(row);
    return row;
  }

 private:
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
    const int64_t own_parameters = divided(all.bytes, devices_);
    const bool is_mixed = needs_.compute_size.has_value();

    row.parameters = needs_.buffers + (row.stage == 3 ? own_parameters : parameters + (is_mixed ? own_parameters : 0));
    row.gradients = row.stage == 1 ? gradients : divided(gradients, devices_);
    if (is_mixed) row.widened = divided(all.trainable_bytes, devices_);
    row.optimizer = divided(needs_.optimizer_state, devices_) + needs_.counters;
    if (row.stage == 2) row.gathered = std::min(gradients, kBucketsInFlight * kBucketBytes);
    if (row.stage == 3) row.gathered = largest_units();
    if (row.offload) move_to_host(row);

    const int64_t reductions = row.stage == 1 ? 1 : needs_.micro_batches;
    const int64_t gathers = row.stage == 3 ? 2 * needs_.micro_batches : 1;
    row.communication = reductions * ring_bytes(gradients, devices_) + gathers * ring_bytes(parameters, devices_);
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
    const auto fits = [&](int64_t batch) {
      PlanRow with = row;
      with.activations = activations(row, batch);
      return with.total() <= memory_;
    };
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
};

std::string mebibytes(int64_t bytes) { return fmt::format("{:.1f}", static_cast<double>(bytes) / (1 << 20)); }

std::string strategy_text(const PlanRow& row) {
  return (row.stage == 0 ? row.strategy : fmt::format("{}, stage {}", row.strategy, row.stage)) +
         (row.offload ? ", offload" : "") + (row.checkpoints ? " + checkpointing" : "");
}

std::string how_to_set(const MemoryPlan& plan, const PlanRow& row) {
  std::string text = row.stage == 0 ? fmt::format("--trainer.strategy={}", row.strategy)
                                    : fmt::format("--trainer.strategy='{{name: {}, stage: {}{}}}'", row.strategy,
                                                  row.stage, row.offload ? ", offload: true" : "");
  text += fmt::format(" --trainer.devices={}", plan.devices);
  return row.checkpoints ? text + " --trainer.activation_checkpointing='[\"*\"]'" : text;
}

std::string batch_text(const PlanRow& row) {
  if (!row.is_possible) return "-";
  return row.largest_batch == PlanRow::kAnyBatch ? "any" : std::to_string(row.largest_batch);
}

std::string conclusion(const MemoryPlan& plan) {
  if (const PlanRow* cheapest = plan.cheapest())
    return fmt::format("  cheapest that fits: {}\n  to set it: {}\n", strategy_text(*cheapest),
                       how_to_set(plan, *cheapest));
  const auto most = std::max_element(plan.rows.begin(), plan.rows.end(), [](const PlanRow& a, const PlanRow& b) {
    return a.largest_batch < b.largest_batch;
  });
  if (most->largest_batch == 0) return "  nothing fits, not even with one example in a batch\n";
  return fmt::format("  nothing fits; hint: a batch of at most {} examples on a rank, with {}\n", most->largest_batch,
                     strategy_text(*most));
}

}  // namespace

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

const PlanRow* MemoryPlan::cheapest() const {
  const PlanRow* best = nullptr;
  const auto cost = [](const PlanRow& row) {
    return std::tuple(row.communication, row.offload, row.checkpoints, row.stage);
  };
  for (const PlanRow& row : rows)
    if (row.fits && (best == nullptr || cost(row) < cost(*best))) best = &row;
  return best;
}

MemoryPlan plan_memory(const TrainingNeeds& needs, int64_t devices, int64_t memory) {
  MemoryPlan plan{.devices = devices, .memory = memory, .batch_size = needs.batch_on(devices), .rows = {}};
  const Planner planner(needs, devices, memory);
  for (const bool checkpoints : {false, true}) {
    if (checkpoints && needs.inside.empty()) continue;
    plan.rows.push_back(
        planner.filled({.strategy = devices == 1 ? "single_device" : "ddp", .checkpoints = checkpoints}));
    if (devices == 1) continue;
    for (int64_t stage = 1; stage <= 3; ++stage)
      plan.rows.push_back(planner.filled({.strategy = "sharded", .stage = stage, .checkpoints = checkpoints}));
    if (!needs.is_on_host)
      plan.rows.push_back(
          planner.filled({.strategy = "sharded", .stage = 3, .offload = true, .checkpoints = checkpoints}));
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
    text += conclusion(plan);
  }
  return text;
}

}  // namespace levin
