#include <levin/core/planning/step_time.h>

#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

namespace levin {
namespace {

/// Of `ddp` and `sharded`, by default.
constexpr double kReducedAtOnce = 25.0 * (1 << 20);

/// A rank's computation beside its communication: each does one thing after the other.
class TwoStreams {
 public:
  /// Computes from when `ready` on, and waits so long for other ranks meanwhile. Returns when it began.
  double compute(double ready, double seconds, double waits = 0) {
    const double begin = std::max(compute_end_, ready);
    compute_end_ = begin + seconds + waits;
    computed_ += seconds;
    communicated_ += waits;
    return begin;
  }
  /// Communicates from when `ready` on. Returns when it ended.
  double communicate(double ready, double seconds) {
    link_end_ = std::max(link_end_, ready) + seconds;
    communicated_ += seconds;
    return link_end_;
  }
  double compute_end() const { return compute_end_; }
  double link_end() const { return link_end_; }

  StepTime times() const {
    return {.compute = computed_,
            .communication = communicated_,
            .exposed = std::max(compute_end_, link_end_) - computed_,
            .bubble = 0};
  }

 private:
  double compute_end_ = 0;
  double link_end_ = 0;
  double computed_ = 0;
  double communicated_ = 0;
};

class StepPredictor {
 public:
  StepPredictor(const TrainingNeeds& needs, const Cluster& cluster, const PlanRow& way)
      : needs_(needs), cluster_(cluster), way_(way) {
    const int64_t batch = needs.batch_on(way.batches());
    const double all = pass_seconds(static_cast<double>(batch));
    forward_ = all / 3;
    backward_ = all * 2 / 3 + (way.checkpoints ? forward_ : 0);
    if (way.tensor > 1 && needs.sums > 0) {
      // The same time passes between two sums of layers that are cut.
      BatchBytes summed = needs.summed;
      if (way.checkpoints) summed += needs.in_forward;
      const auto sums = static_cast<double>(needs.sums);
      const double seconds = sums * all_reduce_seconds(cluster, ranks_along(cluster, way.tensor, 1),
                                                       static_cast<double>(summed.at(batch)) / sums);
      if (forward_ + backward_ > 0) waits_ = seconds / (forward_ + backward_);
    }
  }

  /// Replicate alone, and stages 1 and 2 of shard.
  StepTime in_buckets() {
    const double bytes =
        way_.stage == 0 ? static_cast<double>(needs_.weights.trainable_bytes) : whole_gradients(needs_.weights);
    const auto buckets = static_cast<int64_t>(std::max(1.0, std::ceil(bytes / kReducedAtOnce)));
    const auto count = static_cast<double>(buckets);
    for (int64_t i = 0; i < needs_.micro_batches; ++i) {
      const bool reduces = way_.stage == 2 || i + 1 == needs_.micro_batches;
      compute(0, forward_);
      for (int64_t bucket = 0; bucket < buckets; ++bucket) {
        compute(0, backward_ / count);
        if (reduces) reduce(streams_.compute_end(), bytes / count);
      }
    }
    step_optimizer();
    if (way_.stage > 0) gather(streams_.compute_end(), whole_parameters(needs_.weights));
    return streams_.times();
  }

  /// Stage 3 of shard.
  StepTime in_units() {
    // What is in no unit is whole during the step, and computes together with the units.
    double elements = 0;
    for (const WeightNeeds& unit : needs_.units) elements += static_cast<double>(unit.elements);
    std::vector<WeightNeeds> units = needs_.units;
    if (elements == 0) units.assign(1, WeightNeeds());
    const auto share = [&](const WeightNeeds& unit) {
      return elements == 0 ? 1.0 : static_cast<double>(unit.elements) / elements;
    };
    for (int64_t i = 0; i < needs_.micro_batches; ++i) {
      const double begin =
          std::max(streams_.compute_end(), gather(streams_.compute_end(), whole_parameters(needs_.outside)));
      pass(units, begin, [&](const WeightNeeds& unit) { return forward_ * share(unit); },
           {.gathers = true, .reduces = false});
      std::reverse(units.begin(), units.end());
      pass(units, streams_.compute_end(), [&](const WeightNeeds& unit) { return backward_ * share(unit); },
           {.gathers = true, .reduces = true});
      std::reverse(units.begin(), units.end());
      reduce(streams_.compute_end(), whole_gradients(needs_.outside));
    }
    step_optimizer();
    return streams_.times();
  }

  StepTime in_stages() const {
    const ChainNeeds& chain = needs_.chain;
    const int64_t batch = needs_.batch_on(way_.batches());
    const PipelineShape shape = way_.shape(batch);
    const std::vector<size_t> ends = cut_by_parameters(chain, shape.chunks());
    const RankSpan pipeline = ranks_along(cluster_, way_.pipeline, way_.batches() * way_.tensor);

    std::vector<ChunkCost> costs;
    std::vector<ChunkCost> costs_with_others;  // stages 2 and 3: and what the ranks of a stage do together in a chunk
    std::vector<int64_t> divided_bytes(static_cast<size_t>(way_.pipeline));
    std::vector<int64_t> divided_gradients(static_cast<size_t>(way_.pipeline));
    std::vector<WeightNeeds> owned(static_cast<size_t>(way_.pipeline));  // that the ranks of a stage step
    owned.back() = chain.outside;
    double largest_message = 0;
    const int64_t examples = (batch + shape.micro_batches - 1) / shape.micro_batches;
    const double whole_forward =
        pass_seconds(static_cast<double>(batch) / static_cast<double>(shape.micro_batches)) / 3;
    double longest_optimizer = 0;
    for (size_t chunk = 0, begin = 0; chunk < ends.size(); begin = ends[chunk++]) {
      for (size_t i = begin; i < ends[chunk]; ++i) owned[chunk % owned.size()] += chain.elements[i].weights;
      // What autograd does for the chunk's input and for its parameters is alike in matrix products.
      const double forward = whole_forward * share_of_chunk(begin, ends[chunk], ends.size());
      costs.push_back({.forward = forward,
                       .backward_input = forward + (way_.checkpoints ? forward : 0),
                       .backward_weight = forward});
      costs_with_others.push_back(with_others(costs.back(), units_of(begin, ends[chunk])));
      if (way_.stage > 1)
        for (const WeightNeeds& unit : units_of(begin, ends[chunk])) {
          divided_bytes[chunk % owned.size()] += unit.bytes;
          divided_gradients[chunk % owned.size()] += unit.trainable_bytes;
        }
      if (chunk + 1 < ends.size())
        largest_message =
            std::max(largest_message, static_cast<double>(chain.elements[ends[chunk] - 1].result.at(examples)));
    }

    const auto schedule = pipeline_schedule(way_.schedule, shape);
    const double message = message_seconds(cluster_, pipeline.crosses_hosts(), largest_message);
    const PipelineTimeline ideal = simulate(schedule, shape, costs);
    const PipelineTimeline actual = simulate(schedule, shape, costs_with_others, message);

    // Gradients of a stage are reduced over its ranks when the last backward is over, and what was stepped is gathered.
    double end = actual.makespan;
    double longest_exchange = 0;
    double longest_gather = 0;
    for (size_t stage = 0; stage < owned.size(); ++stage) {
      const WeightNeeds& weights = owned[stage];
      const int64_t stepped = needs_.largest_part(weights.trainable_elements, weights, way_.shard);
      longest_optimizer = std::max(longest_optimizer, optimizer_seconds(static_cast<double>(stepped)));
      const double reduce = reduce_seconds(static_cast<double>(weights.trainable_bytes - divided_gradients[stage]));
      const int64_t stepped_bytes = weights.bytes - (way_.stage == 3 ? divided_bytes[stage] : 0);
      const double gather = way_.shard == 1 ? 0 : gather_seconds(static_cast<double>(stepped_bytes));
      longest_exchange = std::max(longest_exchange, reduce + gather);
      longest_gather = std::max(longest_gather, gather);
      end = std::max(end, actual.ranks[stage].back().end + reduce);
    }

    // Each batch of an accumulation window fills and drains the pipeline again; only the last one is reduced.
    const auto batches = static_cast<double>(needs_.micro_batches);
    StepTime time;
    time.bubble = batches * ideal.makespan * ideal.bubble();
    time.compute = batches * ideal.makespan - time.bubble + longest_optimizer;
    time.exposed = batches * (actual.makespan - ideal.makespan) + end - actual.makespan + longest_gather;
    time.communication =
        batches * 2 * static_cast<double>(shape.micro_batches * shape.chunks_per_rank) * message + longest_exchange;
    double together = 0;  // of the rank with most
    for (int64_t rank = 0; rank < way_.pipeline; ++rank) {
      double of_rank = 0;
      for (auto chunk = static_cast<size_t>(rank); chunk < ends.size(); chunk += static_cast<size_t>(way_.pipeline))
        for (const WeightNeeds& unit : units_of(chunk == 0 ? 0 : ends[chunk - 1], ends[chunk]))
          of_rank += seconds_with_others(unit);
      together = std::max(together, of_rank);
    }
    time.communication += batches * static_cast<double>(shape.micro_batches) * together;
    time.communication += waits_ * batches * (ideal.makespan - ideal.makespan * ideal.bubble());
    return time;
  }

 private:
  /// A forward and backward of so many examples.
  double pass_seconds(double examples) const {
    return cluster_.pass_us * 1e-6 + examples * needs_.flops_per_example / cluster_.flops;
  }

  /// The optimizer's step over so many elements.
  double optimizer_seconds(double elements) const {
    const auto all = static_cast<double>(std::max<int64_t>(needs_.weights.trainable_elements, 1));
    return cluster_.optimizer_us * 1e-6 * elements / all;
  }

  /// Each rank steps what it holds, once the gradients are there.
  void step_optimizer() {
    const int64_t all = needs_.weights.trainable_elements;
    const double own = needs_.element_wise ? static_cast<double>(all) / static_cast<double>(way_.shard)
                                           : static_cast<double>(needs_.largest_part(all, needs_.weights, way_.shard));
    streams_.compute(streams_.link_end(), optimizer_seconds(own));
  }

  /// A part of forward or backward.
  double compute(double ready, double seconds) { return streams_.compute(ready, seconds, waits_ * seconds); }

  /// Of a pass, what a chunk with the elements [begin, end) computes: the first one what comes before the sequential as
  /// well, the last one head and loss. By operations, or by parameters where none were counted.
  double share_of_chunk(size_t begin, size_t end, size_t chunks) const {
    const ChainNeeds& chain = needs_.chain;
    double own = (begin == 0 ? chain.flops_before : 0) + (end == chain.elements.size() ? chain.flops_after : 0);
    double all = chain.flops_before + chain.flops_after;
    double own_elements = 0;
    double all_elements = 0;
    for (size_t i = 0; i < chain.elements.size(); ++i) {
      const bool is_own = i >= begin && i < end;
      const auto elements = static_cast<double>(chain.elements[i].weights.elements);
      all += chain.elements[i].flops;
      all_elements += elements;
      own += is_own ? chain.elements[i].flops : 0;
      own_elements += is_own ? elements : 0;
    }
    if (all > 0) return own / all;
    return all_elements > 0 ? own_elements / all_elements : 1.0 / static_cast<double>(chunks);
  }

  /// The units that have weights of the elements [begin, end) alone.
  std::vector<WeightNeeds> units_of(size_t begin, size_t end) const {
    std::vector<WeightNeeds> units;
    for (size_t i = begin; i < end; ++i)
      for (const size_t unit : needs_.chain.elements[i].units) units.push_back(needs_.units[unit]);
    return units;
  }

  /// Of the collectives in a micro-batch of a stage that divides gradients, or parameters too.
  double seconds_with_others(const WeightNeeds& unit) const {
    if (way_.stage < 2) return 0;
    return reduce_seconds(whole_gradients(unit)) + (way_.stage == 3 ? 2 * gather_seconds(whole_parameters(unit)) : 0);
  }

  /// What a chunk takes with these collectives, whose units divide its computation by their parameters.
  ChunkCost with_others(ChunkCost cost, std::vector<WeightNeeds> units) const {
    if (way_.stage < 2 || units.empty()) {
      cost.forward *= 1 + waits_;
      cost.backward_input *= 1 + waits_;
      cost.backward_weight *= 1 + waits_;
      return cost;
    }
    double elements = 0;
    for (const WeightNeeds& unit : units) elements += static_cast<double>(unit.elements);
    const auto seconds = [&](double all, bool reduces) {
      StepPredictor alone(*this);
      alone.streams_ = TwoStreams();
      alone.pass(units, 0, [&](const WeightNeeds& unit) { return all * static_cast<double>(unit.elements) / elements; },
                 {.gathers = way_.stage == 3, .reduces = reduces});
      return std::max(alone.streams_.compute_end(), alone.streams_.link_end());
    };
    cost.forward = seconds(cost.forward, /*reduces=*/false);
    std::ranges::reverse(units);
    // These schedules run both halves of a backward together.
    cost.backward_input = seconds(cost.backward_input + cost.backward_weight, /*reduces=*/true) - cost.backward_weight;
    return cost;
  }

  struct Collectives {
    bool gathers;
    bool reduces;
  };
  /// Units one after the other, each gathered while the one before it computes.
  template <class Seconds>
  void pass(const std::vector<WeightNeeds>& units, double begin, const Seconds& seconds,
            const Collectives& collectives) {
    const auto gathered_from = [&](double ready, const WeightNeeds& unit) {
      return collectives.gathers ? gather(ready, whole_parameters(unit)) : begin;
    };
    double gathered = gathered_from(begin, units.front());
    for (size_t i = 0; i < units.size(); ++i) {
      const double began = compute(std::max(begin, gathered), seconds(units[i]));
      if (i + 1 < units.size()) gathered = gathered_from(began, units[i + 1]);
      if (collectives.reduces) reduce(streams_.compute_end(), whole_gradients(units[i]));
    }
  }

  /// Gathering what the ranks along shard have of so many bytes, or reducing and scattering them.
  double gather_seconds(double bytes) const {
    return all_gather_seconds(cluster_, ranks_along(cluster_, way_.shard, way_.tensor), bytes);
  }
  /// Reducing gradients over all ranks that have them, so that those along shard have a part each.
  double reduce_seconds(double bytes) const {
    const double over_replicas =
        all_reduce_seconds(cluster_, ranks_along(cluster_, way_.replicate, way_.shard * way_.tensor),
                           bytes / static_cast<double>(way_.shard));
    if (way_.shard == 1) return over_replicas;
    // Parts that are not even are all-reduced.
    return (needs_.element_wise ? 1 : 2) * gather_seconds(bytes) + over_replicas;
  }

  double gather(double ready, double bytes) {
    return bytes == 0 ? ready : streams_.communicate(ready, gather_seconds(bytes));
  }

  void reduce(double ready, double bytes) {
    if (bytes > 0) streams_.communicate(ready, reduce_seconds(bytes));
  }

  double whole_parameters(const WeightNeeds& weights) const {
    return static_cast<double>(needs_.compute_size ? weights.elements * *needs_.compute_size : weights.bytes);
  }
  double whole_gradients(const WeightNeeds& weights) const {
    return static_cast<double>(needs_.compute_size ? weights.trainable_elements * *needs_.compute_size
                                                   : weights.trainable_bytes);
  }

  const TrainingNeeds& needs_;
  const Cluster& cluster_;
  const PlanRow& way_;
  double forward_ = 0;  ///< seconds of a rank's batch; of a window, of each
  double backward_ = 0;
  double waits_ = 0;  ///< seconds of sums over tensor ranks in a second of forward and backward
  TwoStreams streams_;
};

}  // namespace

StepTime step_time(const TrainingNeeds& needs, const Cluster& cluster, const PlanRow& way) {
  if (way.tensor > 1 && !needs.cut.empty()) return step_time(needs.of_tensor_rank(way.tensor), cluster, way);
  StepPredictor predictor(needs, cluster, way);
  if (way.pipeline > 1) return predictor.in_stages();
  return way.stage == 3 ? predictor.in_units() : predictor.in_buckets();
}

}  // namespace levin
