#include <levin/strategies/pipeline/pipeline_event.h>

#include <levin/core/base/error.h>

#include <algorithm>
#include <limits>
#include <utility>

namespace levin {
namespace {

using EventKind = PipelineEvent::Kind;

/// [begin, end) in nanoseconds.
using TimeSpan = std::pair<int64_t, int64_t>;

/// How much time intervals cover, what overlaps counted once.
int64_t covered(std::vector<TimeSpan> intervals) {
  std::sort(intervals.begin(), intervals.end());
  int64_t sum = 0;
  int64_t until = std::numeric_limits<int64_t>::min();
  for (const auto& [begin, end] : intervals) {
    const int64_t from = std::max(begin, until);
    if (end <= from) continue;
    sum += end - from;
    until = end;
  }
  return sum;
}

}  // namespace

const char* name_of(PipelineEvent::Kind kind) {
  switch (kind) {
    case EventKind::kForward:
      return "forward";
    case EventKind::kBackward:
      return "backward";
    case EventKind::kBackwardInput:
      return "backward (inputs)";
    case EventKind::kBackwardWeight:
      return "backward (weights)";
    case EventKind::kReceiveWait:
      return "wait to receive";
    case EventKind::kSendWait:
      return "wait to send";
    case EventKind::kReduce:
      return "reduce";
    case EventKind::kOptimizer:
      return "optimizer";
  }
  throw InternalError("unknown kind of pipeline event");
}

bool is_computation(PipelineEvent::Kind kind) { return kind <= EventKind::kBackwardWeight; }

PipelineBubble measured_bubble(const std::vector<PipelineEvent>& events) {
  std::map<int64_t, std::vector<TimeSpan>> computations;
  TimeSpan step = {std::numeric_limits<int64_t>::max(), std::numeric_limits<int64_t>::min()};
  for (const PipelineEvent& event : events) {
    auto& of_rank = computations[event.rank];  // a rank that only waited counts too
    if (!is_computation(event.kind)) continue;
    of_rank.emplace_back(event.begin_ns, event.end_ns);
    step = {std::min(step.first, event.begin_ns), std::max(step.second, event.end_ns)};
  }
  PipelineBubble bubble;
  if (step.first >= step.second) return bubble;
  const auto whole = static_cast<double>(step.second - step.first);
  for (const auto& [rank, intervals] : computations) {
    const double idle = 1 - static_cast<double>(covered(intervals)) / whole;
    bubble.of_rank[rank] = idle;
    bubble.mean += idle / static_cast<double>(computations.size());
  }
  return bubble;
}

}  // namespace levin
