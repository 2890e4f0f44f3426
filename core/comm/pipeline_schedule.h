#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace levin {

/// Numbers of pieces of a model and of a batch. Chunk c of the stages * chunks_per_rank chunks, counted in the model's
/// order, lives on rank c % stages.
struct PipelineShape {
  int64_t stages = 1;
  int64_t micro_batches = 1;
  int64_t chunks_per_rank = 1;

  int64_t chunks() const { return stages * chunks_per_rank; }
};

/// One piece of a rank's work: a micro-batch goes through a chunk.
struct PipelineAction {
  enum class Kind {
    kForward,
    kBackward,        ///< a whole backward: both of the next two
    kBackwardInput,   ///< the gradient that the chunk before waits for
    kBackwardWeight,  ///< the gradients of the chunk's own parameters, which nobody waits for
  };
  Kind kind = Kind::kForward;
  int64_t micro_batch = 0;
  int64_t chunk = 0;

  bool operator==(const PipelineAction&) const = default;
};

/// Describes an action for messages: "forward of micro-batch 3 through chunk 1".
std::string to_string(const PipelineAction& action);

/// Names of the schedules: `gpipe`, `1f1b`, `interleaved`, `zero_bubble`.
const std::vector<std::string>& pipeline_schedule_names();

/// Lists the actions of each rank, in order; indexed by rank. Each micro-batch goes forward and backward through each
/// chunk once.
///
/// - `gpipe`: all forwards, then all backwards (Huang et al. 2019, arXiv:1811.06965).
/// - `1f1b`: one forward, one backward, once the pipeline is full; rank r holds at most stages - r micro-batches.
/// - `interleaved`: the same over several chunks a rank, in groups of `stages` micro-batches (Narayanan et al. 2021,
///   arXiv:2104.04473); rank r holds at most 2 (stages - r - 1) + (chunks_per_rank - 1) stages + 1 activations of
///   chunks. Micro-batches need not be a multiple of stages: the last group is then smaller. With one chunk a rank it
///   is `1f1b`.
/// - `zero_bubble`: ZB-H1 (Qi et al. 2023, arXiv:2401.10241): 1f1b with backwards in halves; the gradients of
///   parameters wait until the rank would be idle. No rank holds more than `stages` micro-batches.
///
/// After a forward its result goes to the rank of the next chunk, after a backward (of the input) its gradient to the
/// rank of the chunk before. The lists guarantee, for every shape:
/// - Where sends never block and receives do until the message is there, no rank waits for ever. A send may also wait
///   until the rank's message before it, of that kind to that rank, was received. It may not wait for its own receive.
/// - Of one kind (activations or gradients) between two ranks, messages are needed in the order they are sent in.
///
/// Throws ConfigError where no schedule has this name, a number is below 1, or where a schedule of one chunk a rank
/// gets several.
std::vector<std::vector<PipelineAction>> pipeline_schedule(std::string_view name, const PipelineShape& shape);

/// Time that a chunk computes on one micro-batch, in any unit. A whole backward takes both halves.
struct ChunkCost {
  double forward = 1;
  double backward_input = 1;
  double backward_weight = 1;
};

/// The part of a step that each rank is idle, 0 to 1, by the formula of the schedule's paper: every chunk costs the
/// same and messages take no time. With p stages, m micro-batches and v chunks a rank it is (p-1)/(m+p-1) for `gpipe`
/// and `1f1b`, (p-1)/(vm+p-1) for `interleaved`, and for `zero_bubble` (p-1)(F+B-W) of m(F+B+W) + (p-1)(F+B-W), where
/// fewer micro-batches than stages leave (p-1)(F+B) - (m-1)W idle.
///
/// Exact but for two cases, where it is a lower bound and simulate() tells the truth: `interleaved` with several chunks
/// a rank and micro-batches that are no multiple of the stages; `zero_bubble` where W is more than F or B. Throws as
/// pipeline_schedule() does.
double theoretical_bubble(std::string_view name, const PipelineShape& shape, const ChunkCost& cost = {});

/// Times of the actions of all ranks.
struct PipelineTimeline {
  struct Span {
    double start = 0;
    double end = 0;
  };
  std::vector<std::vector<Span>> ranks;  ///< as the actions are in the schedule
  double makespan = 0;                   ///< when the last action ends; the first begins at 0

  /// The part of the makespan in which a rank is idle.
  double idle(int64_t rank) const;
  /// The part of the makespan in which ranks are idle, over all of them.
  double bubble() const;
};

/// Runs a schedule on paper. An action starts when its rank is free and what it needs is there: a forward needs the one
/// before it in the model; a backward (of the input) its own forward and the backward that comes before it; a backward
/// of the weights that of its input. A message to another rank takes `transfer`, and waits until the one before it
/// of its kind is there; messages overlap with computation.
///
/// `costs` has one entry a chunk. The schedule need not be one of pipeline_schedule()'s. Throws levin::Error that names
/// rank and action where a rank waits for ever, where messages arrive in another order than they are needed in, or
/// where an action is no part of the shape or another rank's.
PipelineTimeline simulate(const std::vector<std::vector<PipelineAction>>& schedule, const PipelineShape& shape,
                          std::span<const ChunkCost> costs, double transfer = 0);

/// Number of micro-batches that a rank holds at once: those whose forward began and whose backward (of the weights,
/// where it is in halves) has not ended.
struct PipelineHold {
  int64_t total = 0;               ///< a micro-batch counts once for each chunk that holds it
  std::vector<int64_t> per_chunk;  ///< by the rank's own chunks, in the model's order
};

/// The most that a rank holds at once, in all and in each chunk, if it does these actions.
PipelineHold most_in_flight(std::span<const PipelineAction> actions, const PipelineShape& shape);

}  // namespace levin
