#include <levin/core/planning/memory_plan.h>

#include <levin/core/accelerators/memory_stats.h>
#include <levin/core/comm/balanced_owners.h>
#include <levin/core/comm/even_cut.h>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <set>
#include <span>
#include <tuple>
#include <utility>

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
double ring_bytes(int64_t bytes, int64_t ranks) {
  return static_cast<double>(bytes) * static_cast<double>(ranks - 1) / static_cast<double>(ranks);
}

/// By what part the costs of two meshes may differ that send the same: they are rounded.
constexpr double kSameCost = 1e-4;

/// Plans one way to train.
class Planner {
 public:
  Planner(const TrainingNeeds& needs, int64_t memory, const PlanRow& way) : needs_(needs), memory_(memory), way_(way) {
    if (way.pipeline > 1) chunk_ends_ = cut_by_parameters(needs.chain, way.pipeline * way.chunks);
  }

  PlanRow filled() const {
    PlanRow row = way_;
    row.sent_replicate = row.sent_shard = 0;
    if (row.pipeline == 1) row.shard > 1 ? divide(row) : replicate(row);
    row.is_possible = row.shard == 1 || needs_.element_wise || needs_.tensor_wise;
    row = with_batch(row, needs_.batch_on(row.batches()));
    row.fits = row.is_possible && row.total() <= memory_;
    if (row.is_possible) row.largest_batch = largest_batch(row);
    return row;
  }

 private:
  PlanRow with_batch(PlanRow row, int64_t batch) const {
    if (row.pipeline > 1) return busiest_stage(row, batch);
    row.activations = activations(row, batch);
    if (!needs_.step.empty()) add_backward(row, batch);
    BatchBytes summed = needs_.summed;
    if (row.checkpoints) summed += needs_.in_forward;
    row.sent_tensor = sent_along_tensor(row, summed, batch);
    return row;
  }

  /// What a rank sends in an optimizer step, of sums of so many bytes for each batch.
  int64_t sent_along_tensor(const PlanRow& row, const BatchBytes& summed, int64_t batch) const {
    return std::llround(2 * ring_bytes(times(summed, needs_.micro_batches).at(batch), row.tensor));
  }

  /// What backward needs beside activations when a rank holds most.
  void add_backward(PlanRow& row, int64_t batch) const {
    row.backward = beyond_activations(batch);
    if (row.stage == 3) {
      UnitPass all{.parts = needs_.step,
                   .always_whole = whole_parameters(needs_.outside) + whole_gradients(needs_.outside),
                   .elsewhere = -needs_.activations.weight_copies};
      if (row.checkpoints) {
        const int64_t kept = saved_by(needs_.kept, row, batch);
        all.elsewhere = kept + row.backward;
        all.recomputed = row.activations - kept;
      }
      const Moment most = most_in_units(all, batch, row.shard);
      row.gathered = most.gathered;
      row.backward = most.step - row.activations;
      return;
    }
    // Without others to average them with, gradients are freed after the forward and come one by one.
    if (row.devices() == 1 && needs_.micro_batches == 1)
      row.backward = most_with_new_gradients(row, batch) - row.gradients - row.activations;
  }

  /// Of a step without checkpoints, which backward has for a moment.
  int64_t beyond_activations(int64_t batch) const {
    const int64_t saved = needs_.activations.bytes.at(batch);
    int64_t most = saved;
    for (const StepPart& part : needs_.step) most = std::max(most, part.most.at(batch));
    return most - saved;
  }

  int64_t most_with_new_gradients(const PlanRow& row, int64_t batch) const {
    const auto beyond = static_cast<double>(beyond_activations(batch));
    const auto saved = static_cast<double>(needs_.activations.bytes.at(batch));
    const auto kept = static_cast<double>(needs_.kept.bytes.at(batch));
    const double inside = static_cast<double>(row.activations) - kept;
    double come = 0;
    double at_first = 0;  // the same without checkpoints, when the backward of the unit began
    std::optional<size_t> unit;
    double most = static_cast<double>(row.gradients) + (row.checkpoints ? kept : saved);
    for (const StepPart& part : needs_.step) {
      const auto here = static_cast<double>(part.most.at(batch));
      if (!part.unit || part.unit != unit) at_first = here;
      unit = part.unit;
      // Inputs of units stay to the end, what was recomputed of one becomes less as it would without.
      const double recomputed = unit ? inside - (at_first - here) : 0;
      most = std::max(most, come + (row.checkpoints ? kept + recomputed + beyond : here));
      come = std::min(come + static_cast<double>(part.gradient), static_cast<double>(row.gradients));
    }
    return std::llround(most);
  }

  /// Bytes at one time: of forward and backward, and of what stage 3 has whole.
  struct Moment {
    int64_t step = 0;
    int64_t gathered = 0;
    int64_t all() const { return step + gathered; }
  };
  /// A backward over units that gather their parameters.
  struct UnitPass {
    std::span<const StepPart> parts;
    int64_t always_whole = 0;  ///< bytes of parameters and gradients in no unit
    int64_t elsewhere = 0;     ///< bytes beside what the parts say; below 0: less
    /// Bytes of a unit that is recomputed. The parts were measured without: what they say counts from a unit's first.
    std::optional<int64_t> recomputed = std::nullopt;
    bool gathers_at_once = false;  ///< all units whose gradients are to come
  };
  Moment most_in_units(const UnitPass& pass, int64_t batch, int64_t ranks) const {
    const std::span<const StepPart> parts = pass.parts;
    const auto parameters = [&](std::optional<size_t> unit) {
      return unit ? whole_parameters(needs_.units[*unit]) : 0;
    };
    const auto gradients = [&](std::optional<size_t> unit) { return unit ? whole_gradients(needs_.units[*unit]) : 0; };
    const auto unit_from = [&](size_t part, std::optional<size_t> but) -> std::optional<size_t> {
      for (; part < parts.size(); ++part)
        if (parts[part].unit && parts[part].unit != but) return parts[part].unit;
      return std::nullopt;
    };
    const auto units_from = [&](size_t part) {
      std::set<size_t> units;
      for (; part < parts.size(); ++part)
        if (parts[part].unit) units.insert(*parts[part].unit);
      int64_t bytes = 0;
      for (const size_t unit : units) bytes += parameters(unit);
      return bytes;
    };
    int64_t at_first = 0;
    const auto in_step = [&](const StepPart& part, const BatchBytes& bytes) {
      int64_t of_part = bytes.at(batch);
      if (pass.recomputed) of_part = part.unit ? *pass.recomputed + of_part - at_first : 0;
      return std::max<int64_t>(0, of_part + pass.elsewhere);
    };
    Moment most;
    std::optional<size_t> under_way;  // the unit whose gradients come
    std::optional<size_t> reduced;    // and the one before it
    for (size_t i = 0; i < parts.size(); ++i) {
      if (i == 0 || parts[i].unit != parts[i - 1].unit) at_first = parts[i].most.at(batch);
      // The unit that runs, and the one gathered ahead of it.
      const std::optional<size_t> runs = unit_from(i, std::nullopt);
      const int64_t units = pass.always_whole +
                            (pass.gathers_at_once ? units_from(i) : parameters(runs) + parameters(unit_from(i, runs)));
      if (runs && runs != under_way) reduced = std::exchange(under_way, std::nullopt);
      // What is reduced has a place of its own for this rank's part.
      const int64_t on_their_way = gradients(reduced) + divided(gradients(reduced), ranks);
      Moment now{.step = in_step(parts[i], parts[i].most), .gathered = units + gradients(under_way) + on_their_way};
      if (now.all() > most.all()) most = now;
      if (!parts[i].unit) continue;
      under_way = parts[i].unit;
      now = {.step = in_step(parts[i], parts[i].at_end), .gathered = units + gradients(under_way) + on_their_way};
      if (now.all() > most.all()) most = now;
    }
    return most;
  }

  /// Of the rank that needs most; what is sent by the one that sends most.
  PlanRow busiest_stage(const PlanRow& row, int64_t batch) const {
    const PipelineShape shape = row.shape(batch);
    const auto schedule = pipeline_schedule(row.schedule, shape);
    PlanRow busiest;
    PlanRow sends_most;
    for (int64_t rank = 0; rank < row.pipeline; ++rank) {
      const PlanRow other = of_stage(row, rank, batch, schedule[static_cast<size_t>(rank)]);
      if (rank == 0 || other.sent() > sends_most.sent()) sends_most = other;
      if (rank == 0 || other.total() > busiest.total()) busiest = other;
    }
    busiest.sent_pipeline = sends_most.sent_pipeline;
    busiest.sent_replicate = sends_most.sent_replicate;
    busiest.sent_shard = sends_most.sent_shard;
    busiest.sent_tensor = sends_most.sent_tensor;
    busiest.bubble = simulate(schedule, shape, std::vector<ChunkCost>(static_cast<size_t>(shape.chunks()))).bubble();
    return busiest;
  }

  /// What a chunk of a pipeline has and gives.
  struct Chunk {
    WeightNeeds weights;
    std::vector<size_t> units;  ///< that have weights of it alone
    int64_t weight_copies = 0;
    BatchBytes saved;
    BatchBytes saved_before;  ///< by the whole step before it
    BatchBytes passing;       ///< got from the chunk before and given to the next one
    BatchBytes summed;        ///< by tensor ranks
  };
  Chunk chunk_at(size_t index) const {
    const ChainNeeds& chain = needs_.chain;
    const bool is_first = index == 0;
    const bool is_last = index + 1 == chunk_ends_.size();
    const size_t begin = is_first ? 0 : chunk_ends_[index - 1];
    const size_t end = chunk_ends_[index];
    Chunk chunk;
    if (!is_first) chunk.saved_before = chain.saved_before;
    for (size_t i = 0; i < begin; ++i) chunk.saved_before += chain.elements[i].saved;
    for (size_t i = begin; i < end; ++i) {
      const ChainNeeds::Element& element = chain.elements[i];
      chunk.weights += element.weights;
      chunk.units.insert(chunk.units.end(), element.units.begin(), element.units.end());
      chunk.weight_copies += element.weight_copies;
      chunk.saved += element.saved;
      chunk.summed += element.summed;
    }
    // What it got and what it gave stay until backward, also where the stage is recomputed.
    if (!is_first) chunk.passing += chain.elements[begin - 1].result;
    if (!is_last) chunk.passing += chain.elements[end - 1].result;
    if (is_first) chunk.saved += chain.saved_before;
    if (is_last) chunk.saved += chain.saved_after;
    if (is_last) chunk.summed += chain.summed_outside;
    if (!is_last) chunk.saved += chain.elements[end - 1].result;
    return chunk;
  }

  /// The most bytes at once of a rank that holds so many for each micro-batch in flight of each of its chunks.
  static int64_t most_held(const std::vector<PipelineAction>& actions, int64_t stages,
                           const std::vector<int64_t>& of_chunks) {
    int64_t now = 0;
    int64_t most = 0;
    for (const PipelineAction& action : actions) {
      const int64_t bytes = of_chunks[static_cast<size_t>(action.chunk / stages)];
      if (action.kind == PipelineAction::Kind::kForward)
        most = std::max(most, now += bytes);
      else if (action.kind != PipelineAction::Kind::kBackwardInput)
        now -= bytes;
    }
    return most;
  }

  PlanRow of_stage(PlanRow row, int64_t rank, int64_t batch, const std::vector<PipelineAction>& actions) const {
    const int64_t micro_batches = row.shape(batch).micro_batches;
    const int64_t examples = divided(batch, micro_batches);
    WeightNeeds weights;
    BatchBytes passing;
    BatchBytes summed;
    int64_t recomputed = 0;     // of one chunk at a time
    std::vector<int64_t> held;  // of each chunk
    std::vector<Chunk> chunks;
    for (int64_t i = 0; i < row.chunks; ++i) {
      Chunk chunk = chunk_at(static_cast<size_t>(i * row.pipeline + rank));
      weights += chunk.weights;
      passing += chunk.passing;
      summed += chunk.summed;
      // Divided parameters have the type that autocast would convert them to.
      const int64_t saved = chunk.saved.at(examples) - (row.stage > 1 ? chunk.weight_copies : 0);
      held.push_back(row.checkpoints ? chunk.passing.at(examples) : saved);
      if (row.checkpoints) recomputed = std::max(recomputed, saved);
      chunks.push_back(std::move(chunk));
    }
    row.activations = most_held(actions, row.pipeline, held) + recomputed;
    row.backward = beyond_activations(examples);
    // Parameters outside of the sequential are on every stage; the last one averages and steps them.
    const WeightNeeds& outside = needs_.chain.outside;
    WeightNeeds own = weights;
    if (rank + 1 == row.pipeline) own += outside;
    weights += outside;
    const double state_of_element = static_cast<double>(needs_.optimizer_state) /
                                    static_cast<double>(std::max<int64_t>(needs_.weights.trainable_elements, 1));
    const auto state = std::llround(state_of_element * static_cast<double>(own.trainable_elements));
    row.parameters = weights.bytes + needs_.buffers;
    row.gradients = weights.trainable_bytes;
    row.optimizer = needs_.largest_part(state, own, row.shard) + needs_.counters;
    row.sent_pipeline = times(passing, needs_.micro_batches).at(batch);
    const double repeated = needs_.in_forward.per_example / std::max(needs_.summed.per_example, 1.0);
    row.sent_tensor =
        std::llround(static_cast<double>(sent_along_tensor(row, summed, batch)) * (row.checkpoints ? 1 + repeated : 1));
    row.sent_replicate = row.sent_shard = 0;
    if (row.stage > 1) return with_divided_chunks(row, chunks, weights, own, {.held = held, .examples = examples});
    // Gradients of the first chunk are averaged in the buckets that they go to in its last backward; others, one after
    // the other, are there a second time when the batch ends.
    const int64_t in_buckets = averages_in_backward(row) ? chunks.front().weights.trainable_bytes : 0;
    if (row.batches() > 1) row.widened = own.trainable_bytes - in_buckets;
    if (row.batches() > 1 && micro_batches > 1) row.gathered = in_buckets;
    if (row.shard > 1) {
      row.gradients = needs_.largest_part(own.trainable_bytes, own, row.shard);
      row.gathered = weights.trainable_bytes - row.gradients;
      // Its part is not there yet.
      row.widened += weights.trainable_bytes - row.gradients;
    }
    send_over_replicas(row, own.trainable_bytes, own.bytes, {.reductions = 1, .gathers = 1});
    return row;
  }

  struct InFlight {
    const std::vector<int64_t>& held;  ///< for each micro-batch, by chunk
    int64_t examples;                  ///< of a micro-batch
  };
  /// Stages 2 and 3: each chunk divides the weights that it alone has; others are as with stage 1. `weights`: of the
  /// rank, of which its stage steps `own`.
  PlanRow with_divided_chunks(PlanRow row, const std::vector<Chunk>& chunks, const WeightNeeds& weights,
                              const WeightNeeds& own, const InFlight& in_flight) const {
    const bool is_mixed = needs_.compute_size.has_value();
    const bool gathers = row.stage == 3;
    WeightNeeds divided;
    std::vector<int64_t> gradients;  // of each chunk
    for (const Chunk& chunk : chunks) {
      WeightNeeds of_chunk;
      for (const size_t unit : chunk.units) of_chunk += needs_.units[unit];
      gradients.push_back(std::min(whole_gradients(of_chunk), kBucketsInFlight * kBucketBytes));
      divided += of_chunk;
    }
    const int64_t late = weights.trainable_bytes - divided.trainable_bytes;
    const int64_t own_late = own.trainable_bytes - divided.trainable_bytes;
    const int64_t part_of_late = needs_.largest_part(own_late, own, row.shard);
    const int64_t own_part = needs_.largest_part(divided.bytes, divided, row.shard);
    row.parameters += (gathers ? own_part : whole_parameters(divided) + (is_mixed ? own_part : 0)) - divided.bytes;
    // Micro-batches add up what they reduce in the optimizer's type.
    row.gradients = part_of_late + needs_.largest_part(divided.trainable_bytes, divided, row.shard);
    row.widened = own_late + late - part_of_late;
    if (gathers)
      gather_chunks(row, chunks, in_flight);
    else
      reduce_chunks(row, chunks, gradients, in_flight);
    row.gathered += late - part_of_late;
    const int64_t passes = needs_.micro_batches * row.shape(needs_.batch_on(row.batches())).micro_batches;
    send_over_replicas(row, whole_gradients(divided), whole_parameters(divided),
                       {.reductions = passes, .gathers = gathers ? 2 * passes : 1});
    send_over_replicas(row, own_late, own.bytes - divided.bytes, {.reductions = 1, .gathers = 1});
    return row;
  }

  /// With stage 2: most at once is there when a backward begins, or at its end, when what is reduced has a place of its
  /// own for this rank's part.
  static void reduce_chunks(PlanRow& row, const std::vector<Chunk>& chunks, const std::vector<int64_t>& gradients,
                            const InFlight& in_flight) {
    row.gathered = *std::ranges::max_element(gradients);
    for (size_t i = 0; i < chunks.size(); ++i) {
      const int64_t recomputed = row.checkpoints ? chunks[i].saved.at(in_flight.examples) - chunks[i].weight_copies : 0;
      const int64_t at_end = gradients[i] + divided(gradients[i], row.shard) - in_flight.held[i] - recomputed;
      row.backward = std::max(row.backward, at_end - row.gathered);
    }
  }

  /// What a chunk's backward has whole when the rank holds most.
  void gather_chunks(PlanRow& row, const std::vector<Chunk>& chunks, const InFlight& in_flight) const {
    Moment most;
    for (size_t i = 0; i < chunks.size(); ++i) {
      const Chunk& chunk = chunks[i];
      const auto is_here = [&](const StepPart& part) {
        return part.unit && std::ranges::find(chunk.units, *part.unit) != chunk.units.end();
      };
      const auto first = std::ranges::find_if(needs_.step, is_here);
      if (first == needs_.step.end()) continue;
      const auto last = std::find_if(needs_.step.rbegin(), needs_.step.rend(), is_here).base();
      // Of the chunk's own micro-batch the parts say what is left; a repetition has gathered all that it ran.
      const int64_t others = row.checkpoints
                                 ? row.activations - chunk.saved.at(in_flight.examples) + chunk.weight_copies
                                 : row.activations - in_flight.held[i];
      const UnitPass pass{.parts = {first, last},
                          .elsewhere = others - chunk.saved_before.at(in_flight.examples) - chunk.weight_copies,
                          .gathers_at_once = row.checkpoints};
      const Moment now = most_in_units(pass, in_flight.examples, row.shard);
      if (now.all() > most.all()) most = now;
    }
    row.gathered = most.gathered;
    row.backward = most.step - row.activations;
    if (most.all() > 0) return;
    std::vector<WeightNeeds> units;
    for (const Chunk& chunk : chunks)
      for (const size_t unit : chunk.units) units.push_back(needs_.units[unit]);
    row.gathered = largest_units(units);
    row.backward = beyond_activations(in_flight.examples);
  }

  /// Whether the replicas of a stage average gradients in backward: a backward in halves is over before they are there.
  static bool averages_in_backward(const PlanRow& row) { return row.shard == 1 && row.schedule != "zero_bubble"; }

  static BatchBytes times(const BatchBytes& bytes, int64_t count) {
    const auto factor = static_cast<double>(count);
    return {.fixed = factor * bytes.fixed, .per_example = factor * bytes.per_example};
  }

  struct Collectives {
    int64_t reductions;
    int64_t gathers;
  };
  /// Adds what a rank sends along replicate and shard in an optimizer step, of so many bytes.
  void send_over_replicas(PlanRow& row, int64_t gradients, int64_t parameters, const Collectives& number) const {
    const auto reductions = static_cast<double>(number.reductions);
    // Parts that are not even are all-reduced.
    const double passes = needs_.element_wise ? 1 : 2;
    const auto shards = static_cast<double>(row.shard);
    row.sent_replicate += std::llround(reductions * 2 * ring_bytes(gradients, row.replicate) / shards);
    row.sent_shard += std::llround(reductions * passes * ring_bytes(gradients, row.shard) +
                                   static_cast<double>(number.gathers) * ring_bytes(parameters, row.shard));
  }

  void replicate(PlanRow& row) const {
    row.parameters = needs_.weights.bytes + needs_.buffers;
    row.gradients = needs_.weights.trainable_bytes;
    row.optimizer = needs_.optimizer_state + needs_.counters;
    // Those of a window are beside the buckets that they are averaged in.
    if (row.replicate > 1 && needs_.micro_batches > 1) row.gathered = row.gradients;
    send_over_replicas(row, row.gradients, 0, {.reductions = 1, .gathers = 0});
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
    const int64_t ranks = row.shard;
    const int64_t own_parameters = needs_.largest_part(all.bytes, all, ranks);
    const bool is_mixed = needs_.compute_size.has_value();

    row.parameters = needs_.buffers + (row.stage == 3 ? own_parameters : parameters + (is_mixed ? own_parameters : 0));
    row.gradients = row.stage == 1 ? gradients : needs_.largest_part(gradients, all, ranks);
    if (is_mixed) row.widened = needs_.largest_part(all.trainable_bytes, all, ranks);
    row.optimizer = needs_.largest_part(needs_.optimizer_state, all, ranks) + needs_.counters;
    if (row.stage == 2) row.gathered = std::min(gradients, kBucketsInFlight * kBucketBytes);
    if (row.stage == 3)
      row.gathered = largest_units(needs_.units) + whole_parameters(needs_.outside) + whole_gradients(needs_.outside);
    if (row.offload) move_to_host(row);

    send_over_replicas(row, gradients, parameters,
                       {.reductions = row.stage == 1 ? 1 : needs_.micro_batches,
                        .gathers = row.stage == 3 ? 2 * needs_.micro_batches : 1});
  }

  void move_to_host(PlanRow& row) const {
    row.host = row.parameters - needs_.buffers + row.gradients + row.optimizer + row.widened;
    row.parameters = needs_.buffers;
    row.gradients = row.optimizer = row.widened = 0;
  }

  /// Whole parameters and gradients of what stage 3 has at once.
  int64_t largest_units(const std::vector<WeightNeeds>& units) const {
    std::vector<int64_t> sizes;
    for (const WeightNeeds& unit : units) sizes.push_back(whole_parameters(unit) + whole_gradients(unit));
    std::sort(sizes.rbegin(), sizes.rend());
    int64_t bytes = 0;
    for (size_t i = 0; i < std::min(sizes.size(), kUnitsInFlight); ++i) bytes += sizes[i];
    return bytes;
  }

  /// Whole parameters of ranks along shard have the type that autocast would convert them to.
  static int64_t saved_by(const ActivationNeeds& needs, const PlanRow& row, int64_t batch) {
    return needs.bytes.at(batch) - (row.shard == 1 ? 0 : needs.weight_copies);
  }

  int64_t activations(const PlanRow& row, int64_t batch) const {
    if (!row.checkpoints) return saved_by(needs_.activations, row, batch);
    int64_t inside = 0;
    for (const ActivationNeeds& unit : needs_.inside) inside = std::max(inside, saved_by(unit, row, batch));
    return saved_by(needs_.kept, row, batch) + inside;
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
  int64_t memory_;
  const PlanRow& way_;
  std::vector<size_t> chunk_ends_;  ///< chunk c has the elements [chunk_ends_[c - 1], chunk_ends_[c])
};

std::string batch_text(const PlanRow& row) {
  if (!row.is_possible) return "-";
  return row.largest_batch == PlanRow::kAnyBatch ? "any" : std::to_string(row.largest_batch);
}

Config pipeline_options(const PlanRow& row, bool in_short) {
  Config options = Config::mapping();
  if (!in_short) options.set("balance_by", Config::scalar("parameters"));
  if (row.schedule != "1f1b") options.set("schedule", Config::scalar(row.schedule));
  if (in_short) return options;
  if (row.chunks > 1) options.set("chunks_per_rank", Config::scalar(std::to_string(row.chunks)));
  if (row.checkpoints) options.set("checkpoint", Config::scalar("always"));
  return options;
}

/// The dimensions with several ranks, as YAML has them. `in_short`: without what `plan` always chooses.
Config sizes_of(const PlanRow& row, bool in_short) {
  const auto number = [](int64_t value) { return Config::scalar(std::to_string(value)); };
  // A size alone is a number.
  const auto dimension = [&](int64_t size, const Config& options) {
    if (options.entries().empty()) return number(size);
    Config mapping = Config::mapping();
    mapping.set("size", number(size));
    mapping.merge(options);
    return mapping;
  };
  Config mesh = Config::mapping();
  if (row.pipeline > 1) mesh.set("pipeline", dimension(row.pipeline, pipeline_options(row, in_short)));
  if (row.replicate > 1) mesh.set("replicate", number(row.replicate));
  Config options = Config::mapping();
  // The default is 1 beside pipeline, else 3.
  if (row.stage != (row.pipeline > 1 ? 1 : 3)) options.set("stage", number(row.stage));
  if (row.offload) options.set("offload", Config::scalar("true"));
  if (row.shard > 1) mesh.set("shard", dimension(row.shard, options));
  if (row.tensor > 1) mesh.set("tensor", number(row.tensor));
  return mesh;
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

std::vector<size_t> cut_by_parameters(const ChainNeeds& chain, int64_t parts) {
  std::vector<int64_t> costs;
  for (const ChainNeeds::Element& element : chain.elements) costs.push_back(element.weights.elements);
  std::vector<size_t> ends;
  size_t end = 0;
  for (const int64_t length : even_cut(costs, parts)) ends.push_back(end += static_cast<size_t>(length));
  return ends;
}

PipelineShape PlanRow::shape(int64_t batch) const {
  return {.stages = pipeline,
          .micro_batches = std::max<int64_t>(std::min(kMicroBatches, batch), 1),
          .chunks_per_rank = chunks};
}

int64_t PlanRow::dimensions() const {
  return (pipeline > 1 ? 1 : 0) + (replicate > 1 ? 1 : 0) + (shard > 1 ? 1 : 0) + (tensor > 1 ? 1 : 0);
}

std::string PlanRow::strategy() const {
  if (pipeline > 1) return "pipeline";
  if (shard > 1) return "sharded";
  if (tensor > 1) return "tensor";
  return replicate > 1 ? "ddp" : "single_device";
}

std::string strategy_text(const PlanRow& row) {
  std::string text = row.strategy();
  if (row.dimensions() > 1) {
    text = sizes_of(row, /*in_short=*/true).to_flow();
  } else {
    if (row.stage > 0) text += fmt::format(", stage {}", row.stage);
    if (row.offload) text += ", offload";
    if (row.pipeline > 1) text += fmt::format(", {} stages", row.pipeline);
    if (row.pipeline > 1 && row.schedule != "1f1b") text += ", " + row.schedule;
  }
  return text + (row.checkpoints ? " + checkpointing" : "");
}

Config strategy_config(const PlanRow& row) {
  if (row.dimensions() > 1) return sizes_of(row, /*in_short=*/false);
  Config strategy = Config::mapping();
  strategy.set("name", Config::scalar(row.strategy()));
  if (row.stage > 0) strategy.set("stage", Config::scalar(std::to_string(row.stage)));
  if (row.offload) strategy.set("offload", Config::scalar("true"));
  if (row.pipeline > 1) strategy.merge(pipeline_options(row, /*in_short=*/false));
  return strategy.entries().size() == 1 ? strategy.entries().front().value : strategy;
}

std::string how_to_set(const PlanRow& row, const std::string& devices) {
  const Config strategy = strategy_config(row);
  const std::string value = strategy.is_scalar() ? strategy.text() : "'" + strategy.to_flow() + "'";
  return fmt::format("--trainer.strategy={} {}{}", value, devices,
                     row.checkpoints && row.pipeline == 1 ? " --trainer.activation_checkpointing='[\"*\"]'" : "");
}

std::vector<size_t> rows_to_show(const std::vector<PlanRow>& rows, const std::vector<double>& costs) {
  const auto beats = [&](size_t other, size_t one) {
    const PlanRow& a = rows[other];
    const PlanRow& b = rows[one];
    if ((a.pipeline > 1) != (b.pipeline > 1) || (a.tensor > 1) != (b.tensor > 1) || a.checkpoints != b.checkpoints ||
        a.offload != b.offload || (!a.is_possible && b.is_possible) || a.total() > b.total() ||
        costs[other] > costs[one] * (1 + kSameCost))
      return false;
    return a.total() < b.total() || costs[other] < costs[one] * (1 - kSameCost) || other < one;
  };
  std::vector<size_t> shown;
  for (size_t one = 0; one < rows.size(); ++one) {
    bool is_beaten = false;
    for (size_t other = 0; rows[one].dimensions() > 1 && !is_beaten && other < rows.size(); ++other)
      is_beaten = other != one && beats(other, one);
    if (!is_beaten) shown.push_back(one);
  }
  return shown;
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
  tensors.insert(tensors.end(), other.tensors.begin(), other.tensors.end());
  return *this;
}

TrainingNeeds TrainingNeeds::of_tensor_rank(int64_t ranks) const {
  TrainingNeeds needs = *cut.at(ranks);
  needs.batch_size = batch_size;
  needs.divides_batch = divides_batch;
  needs.micro_batches = micro_batches;
  return needs;
}

int64_t TrainingNeeds::batch_on(int64_t devices) const {
  return divides_batch ? divided(batch_size, devices) : batch_size;
}

int64_t TrainingNeeds::largest_part(int64_t bytes, const WeightNeeds& of, int64_t ranks) const {
  const std::vector<int64_t>& tensors = of.tensors;
  if (element_wise || tensors.empty()) return divided(bytes, ranks);
  std::vector<int64_t> loads(static_cast<size_t>(ranks));
  const std::vector<int64_t> owners = balanced_owners(tensors, ranks);
  for (size_t i = 0; i < tensors.size(); ++i) loads[static_cast<size_t>(owners[i])] += tensors[i];
  const auto most = static_cast<double>(*std::max_element(loads.begin(), loads.end()));
  const auto all = static_cast<double>(std::max<int64_t>(1, std::accumulate(loads.begin(), loads.end(), int64_t{0})));
  return std::llround(std::ceil(static_cast<double>(bytes) * most / all));
}

const PlanRow* MemoryPlan::cheapest() const {
  std::vector<const PlanRow*> left;
  for (const PlanRow& row : rows)
    if (row.fits) left.push_back(&row);
  const auto keep = [&](const auto& kept) {
    if (std::ranges::any_of(left, kept)) std::erase_if(left, [&](const PlanRow* row) { return !kept(row); });
  };
  keep([](const PlanRow* row) { return row->tensor == 1; });
  keep([](const PlanRow* row) { return row->pipeline == 1; });
  int64_t least = std::numeric_limits<int64_t>::max();
  for (const PlanRow* row : left) least = std::min(least, row->sent());
  keep([&](const PlanRow* row) {
    return static_cast<double>(row->sent()) <= static_cast<double>(least) * (1 + kSameCost);
  });
  const auto effort = [](const PlanRow* row) {
    return std::tuple(row->offload, row->checkpoints, row->stage, row->dimensions());
  };
  const auto best = std::ranges::min_element(left, {}, effort);
  return best == left.end() ? nullptr : *best;
}

std::vector<PlanRow> meshes(const TrainingNeeds& needs, int64_t devices, const std::vector<std::string>& schedules) {
  std::vector<PlanRow> all;
  if (devices == 1) return {PlanRow()};
  const auto elements = static_cast<int64_t>(needs.chain.elements.size());
  const auto can_cut = [&](int64_t tensor) {
    return tensor == 1 || (needs.element_wise && needs.cut.contains(tensor));
  };
  const auto add = [&](const PlanRow& sizes) {
    if (sizes.pipeline == 1) return all.push_back(sizes);
    for (const std::string& schedule : schedules) {
      // Which computes gradients of weights after their backward.
      if (sizes.stage > 1 && schedule == "zero_bubble") continue;
      PlanRow row = sizes;
      row.schedule = schedule;
      row.chunks = schedule == "interleaved" ? 2 : 1;
      if (row.pipeline * row.chunks <= elements) all.push_back(row);
    }
  };
  for (int64_t pipeline = 1; pipeline <= devices; ++pipeline) {
    if (devices % pipeline != 0 || (pipeline > 1 && pipeline > elements)) continue;
    const int64_t batches = devices / pipeline;
    for (int64_t tensor = 1; tensor <= batches; ++tensor) {
      if (batches % tensor != 0 || !can_cut(tensor)) continue;
      const int64_t copies = batches / tensor;
      for (int64_t shard = 1; shard <= copies; ++shard) {
        if (copies % shard != 0) continue;
        PlanRow sizes{.pipeline = pipeline, .replicate = copies / shard, .shard = shard, .tensor = tensor};
        const int64_t most = shard == 1 ? 0 : 3;
        for (sizes.stage = std::min<int64_t>(most, 1); sizes.stage <= most; ++sizes.stage) add(sizes);
      }
    }
  }
  std::ranges::stable_partition(all, [](const PlanRow& row) { return row.dimensions() == 1; });
  return all;
}

PlanRow plan_row(const TrainingNeeds& needs, int64_t memory, const PlanRow& way) {
  if (way.tensor > 1) {
    const TrainingNeeds of_rank = needs.of_tensor_rank(way.tensor);
    return Planner(of_rank, memory, way).filled();
  }
  return Planner(needs, memory, way).filled();
}

MemoryPlan plan_memory(const TrainingNeeds& needs, int64_t devices, int64_t memory) {
  MemoryPlan plan{.devices = devices, .memory = memory, .batch_size = needs.batch_on(devices), .rows = {}};
  for (const bool checkpoints : {false, true}) {
    if (checkpoints && needs.inside.empty()) continue;
    for (PlanRow way : meshes(needs, devices, {"1f1b"})) {
      way.checkpoints = checkpoints;
      plan.rows.push_back(plan_row(needs, memory, way));
      // Of groups of ranks each would have a copy, and a host several.
      if (needs.is_on_host || way.stage != 3 || way.replicate > 1 || way.pipeline > 1 || way.tensor > 1) continue;
      way.offload = true;
      plan.rows.push_back(plan_row(needs, memory, way));
    }
  }
  return plan;
}

std::string plan_table(const std::vector<MemoryPlan>& plans) {
  constexpr const char* kLine =
      "  {:<{}} {:>10} {:>9} {:>9} {:>11} {:>8} {:>8} {:>9} {:>9} {:>9} {:>9} {:>9}{} {:>6}  {:<4} {:>13}{}\n";
  size_t width = 0;
  bool any_on_host = false;
  bool any_cut = false;
  std::vector<std::vector<size_t>> shown;
  for (const MemoryPlan& plan : plans) {
    std::vector<double> sent;
    for (const PlanRow& row : plan.rows) sent.push_back(static_cast<double>(row.sent()));
    shown.push_back(rows_to_show(plan.rows, sent));
    for (const size_t index : shown.back()) {
      width = std::max(width, strategy_text(plan.rows[index]).size());
      any_on_host |= plan.rows[index].offload;
      any_cut |= plan.rows[index].tensor > 1;
    }
  }
  const auto tensor_column = [&](const std::string& value) {
    return any_cut ? fmt::format(" {:>9}", value) : std::string();
  };
  const auto last_column = [&](const std::string& value) {
    return any_on_host ? fmt::format(" {:>10}", value) : std::string();
  };

  std::string text;
  for (size_t i = 0; i < plans.size(); ++i) {
    const MemoryPlan& plan = plans[i];
    text += fmt::format("\n{} device{} with {} MiB each, batches of {} on each; in MiB:\n", plan.devices,
                        plan.devices == 1 ? "" : "s", mebibytes(plan.memory), plan.batch_size);
    text += fmt::format(kLine, "strategy", width, "parameters", "gradients", "optimizer", "activations", "backward",
                        "gathered", "total", "sent/step", "pipeline", "replicate", "shard", tensor_column("tensor"),
                        "idle", "fits", "largest batch", last_column("on host"));
    bool has_pipeline = false;
    for (const size_t index : shown[i]) {
      const PlanRow& row = plan.rows[index];
      has_pipeline |= row.pipeline > 1;
      text += fmt::format(kLine, strategy_text(row), width, mebibytes(row.parameters), mebibytes(row.gradients),
                          mebibytes(row.optimizer), mebibytes(row.activations), mebibytes(row.backward),
                          mebibytes(row.gathered), mebibytes(row.total()), mebibytes(row.sent()),
                          mebibytes(row.sent_pipeline), mebibytes(row.sent_replicate), mebibytes(row.sent_shard),
                          tensor_column(mebibytes(row.sent_tensor)),
                          row.pipeline > 1 ? fmt::format("{:.1f}%", 100 * row.bubble) : "",
                          !row.is_possible ? "-"
                          : row.fits       ? "yes"
                                           : "no",
                          batch_text(row), last_column(mebibytes(row.host)));
    }
    if (has_pipeline)
      text += "  pipeline: a batch goes through all stages, whose ranks are idle for a part of a step\n";
    text += note_on_left_out(plan.rows.size() - shown[i].size()) + conclusion(plan);
  }
  return text;
}

std::string note_on_left_out(size_t count) {
  if (count == 0) return "";
  return fmt::format("  not shown: {} {}, which others beat in memory and in cost; -o FILE writes all\n", count,
                     count == 1 ? "mesh" : "meshes");
}

}  // namespace levin
