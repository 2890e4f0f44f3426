#pragma once

#include <cstdint>
#include <map>
#include <vector>

namespace levin {

/// Something that a rank of a pipeline did during a step. Times are nanoseconds of a monotonic clock.
struct PipelineEvent {
  enum class Kind : int64_t {
    kForward,
    kBackward,        ///< gradients of inputs and weights together
    kBackwardInput,   ///< split off by zero-bubble schedules
    kBackwardWeight,  ///< the rest of that backward
    kReceiveWait,     ///< idle until an activation or a gradient has come
    kSendWait,        ///< idle until one is gone
    kReduce,          ///< gradients over replicas of the stage, norms over stages
    kOptimizer,
  };
  /// Value of `micro_batch` and `chunk` for what belongs to none.
  static constexpr int64_t kNone = -1;

  int64_t rank = 0;
  int64_t chunk = 0;  ///< which of the rank's stages: above 0 only in interleaved schedules
  int64_t micro_batch = kNone;
  Kind kind = Kind::kForward;
  int64_t begin_ns = 0;
  int64_t end_ns = 0;

  bool operator==(const PipelineEvent&) const = default;
};

/// Names a kind: "forward", "backward", "backward (inputs)", "backward (weights)", "wait to receive", "wait to send",
/// "reduce", "optimizer".
const char* name_of(PipelineEvent::Kind kind);
/// Whether it is work of the schedule: forward and backward of all kinds.
bool is_computation(PipelineEvent::Kind kind);

/// The part of a step's time in which ranks ran neither forward nor backward (0 to 1).
struct PipelineBubble {
  std::map<int64_t, double> of_rank;
  double mean = 0;
};

/// Measures the bubble of one step from the events of all ranks. The step's time is from the first forward's begin to
/// the last backward's end over all ranks: reduction and optimizer after it are no part of a schedule, and theory does
/// not count them either. Without any forward or backward there are no ranks in the result.
PipelineBubble measured_bubble(const std::vector<PipelineEvent>& events);

}  // namespace levin
