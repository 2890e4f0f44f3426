#include <levin/core/comm/pipeline_schedule.h>

#include <levin/core/base/error.h>

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <initializer_list>
#include <optional>
#include <utility>

namespace levin {
namespace {

using ActionKind = PipelineAction::Kind;
using Actions = std::vector<PipelineAction>;

/// Actions of one kind, of which one is done every step from step `delay` on.
struct Lane {
  int64_t delay;
  Actions actions;
};

/// What is done step by step; within a step in the order of the lanes.
Actions merge(std::initializer_list<Lane> lanes) {
  int64_t steps = 0;
  for (const auto& lane : lanes) steps = std::max(steps, lane.delay + std::ssize(lane.actions));
  Actions merged;
  for (int64_t step = 0; step < steps; ++step) {
    for (const auto& lane : lanes) {
      const int64_t i = step - lane.delay;
      if (i >= 0 && i < std::ssize(lane.actions)) merged.push_back(lane.actions[static_cast<size_t>(i)]);
    }
  }
  return merged;
}

/// Every micro-batch in order through the only chunk of a rank.
Actions each_micro_batch(ActionKind kind, const PipelineShape& shape, int64_t rank) {
  Actions actions;
  for (int64_t i = 0; i < shape.micro_batches; ++i) actions.push_back({kind, i, rank});
  return actions;
}

Actions gpipe(const PipelineShape& shape, int64_t rank) {
  return merge({{0, each_micro_batch(ActionKind::kForward, shape, rank)},
                {shape.micro_batches, each_micro_batch(ActionKind::kBackward, shape, rank)}});
}

Actions one_forward_one_backward(const PipelineShape& shape, int64_t rank) {
  return merge({{0, each_micro_batch(ActionKind::kForward, shape, rank)},
                {shape.stages - 1 - rank, each_micro_batch(ActionKind::kBackward, shape, rank)}});
}

/// Gradients of parameters lag behind by `rank` more steps, so that all ranks hold equally many micro-batches.
Actions zero_bubble(const PipelineShape& shape, int64_t rank) {
  return merge({{0, each_micro_batch(ActionKind::kForward, shape, rank)},
                {shape.stages - 1 - rank, each_micro_batch(ActionKind::kBackwardInput, shape, rank)},
                {shape.stages - 1, each_micro_batch(ActionKind::kBackwardWeight, shape, rank)}});
}

/// The paper's order is for whole groups of p = `stages` micro-batches. The last group is filled up with micro-batches
/// that do not exist and are taken out of the finished lists: that removes whole chains of dependencies and changes the
/// order of nothing else, so what holds for whole groups holds for all.
///
/// With whole groups no rank waits for ever. All ranks do their forwards in one order and their backwards in one order.
/// Number the k-th forward on rank r with k + r and the k-th backward with k + delay(0) - r + 1/2: whatever it waits
/// for (on its rank, on the neighbour, or p places earlier at the other end of the pipeline) has a smaller number.
Actions interleaved(const PipelineShape& shape, int64_t rank) {
  const int64_t stages = shape.stages;
  const int64_t chunks_per_rank = shape.chunks_per_rank;
  if (chunks_per_rank == 1) return one_forward_one_backward(shape, rank);
  Actions forward;
  Actions backward;
  for (int64_t group = 0; group < shape.micro_batches; group += stages) {
    for (int64_t chunk = 0; chunk < chunks_per_rank; ++chunk) {
      for (int64_t i = group; i < group + stages; ++i) {
        forward.push_back({ActionKind::kForward, i, chunk * stages + rank});
        backward.push_back({ActionKind::kBackward, i, (chunks_per_rank - 1 - chunk) * stages + rank});
      }
    }
  }
  const int64_t delay = 2 * (stages - 1 - rank) + (chunks_per_rank - 1) * stages;
  Actions actions = merge({{0, std::move(forward)}, {delay, std::move(backward)}});
  std::erase_if(actions, [&](const PipelineAction& action) { return action.micro_batch >= shape.micro_batches; });
  return actions;
}

/// Idle time in units of a rank's work on one micro-batch.
double idle_of_whole_backwards(const PipelineShape& shape, const ChunkCost&) {
  return static_cast<double>(shape.stages - 1) / static_cast<double>(shape.chunks_per_rank);
}

double idle_of_zero_bubble(const PipelineShape& shape, const ChunkCost& cost) {
  const auto others = static_cast<double>(shape.stages - 1);
  const auto filled = static_cast<double>(std::min(shape.micro_batches, shape.stages) - 1);
  const double idle = others * (cost.forward + cost.backward_input) - filled * cost.backward_weight;
  const double work = cost.forward + cost.backward_input + cost.backward_weight;
  return work > 0 ? std::max(idle, 0.0) / work : 0;
}

struct Schedule {
  std::string name;
  bool several_chunks;
  Actions (*actions)(const PipelineShape&, int64_t rank);
  double (*idle)(const PipelineShape&, const ChunkCost&);
};

const std::vector<Schedule>& schedules() {
  static const std::vector<Schedule> all{
      {"gpipe", false, gpipe, idle_of_whole_backwards},
      {"1f1b", false, one_forward_one_backward, idle_of_whole_backwards},
      {"interleaved", true, interleaved, idle_of_whole_backwards},
      {"zero_bubble", false, zero_bubble, idle_of_zero_bubble},
  };
  return all;
}

void require_positive(std::string_view what, int64_t value) {
  if (value < 1) throw ConfigError(fmt::format("a pipeline has at least 1 of {}; got {}", what, value));
}

const Schedule& find_schedule(std::string_view name, const PipelineShape& shape) {
  const auto found = std::ranges::find(schedules(), name, &Schedule::name);
  if (found == schedules().end()) {
    throw ConfigError(
        fmt::format("there is no pipeline schedule '{}'{}", name, valid_names_hint(name, pipeline_schedule_names())));
  }
  require_positive("stages", shape.stages);
  require_positive("micro_batches", shape.micro_batches);
  require_positive("chunks_per_rank", shape.chunks_per_rank);
  if (shape.chunks_per_rank > 1 && !found->several_chunks) {
    throw ConfigError(
        fmt::format("the pipeline schedule '{}' gives each rank one chunk; got chunks_per_rank {}; hint: the schedule "
                    "'interleaved' gives it several",
                    name, shape.chunks_per_rank));
  }
  return *found;
}

/// Runs lists of actions on paper, in any order that dependencies allow: times come out the same.
class Simulation {
 public:
  Simulation(const std::vector<Actions>& schedule, const PipelineShape& shape, std::span<const ChunkCost> costs,
             double transfer)
      : schedule_(schedule),
        shape_(shape),
        costs_(costs),
        transfer_(transfer),
        forward_end_(static_cast<size_t>(shape.micro_batches * shape.chunks())),
        backward_end_(forward_end_.size()),
        activations_(schedule.size()),
        gradients_(schedule.size()) {
    timeline_.ranks.resize(schedule.size());
  }

  PipelineTimeline run() {
    for (size_t rank = 0; rank < schedule_.size(); ++rank) check_actions(rank);
    bool progress = true;
    while (progress) {
      progress = false;
      for (size_t rank = 0; rank < schedule_.size(); ++rank) {
        while (!finished(rank) && try_next(rank)) progress = true;
      }
    }
    std::vector<std::string> waiting;
    for (size_t rank = 0; rank < schedule_.size(); ++rank) {
      if (!finished(rank)) waiting.push_back(describe(rank, next(rank)));
    }
    if (!waiting.empty()) throw Error("pipeline", "the schedule never ends; waiting for ever: " + join(waiting, "; "));
    return std::move(timeline_);
  }

 private:
  /// Ends of actions by micro-batch and chunk; nothing for those not done yet.
  using Ends = std::vector<std::optional<double>>;
  /// On their way to a rank, in the order they were sent in; `chunk` is the one that needs it.
  struct Message {
    int64_t micro_batch;
    int64_t chunk;
    double arrival;
  };
  struct Inbox {
    std::deque<Message> messages;
    double newest_arrival = 0;
  };

  static std::string describe(size_t rank, const PipelineAction& action) {
    return fmt::format("rank {}, {}", rank, to_string(action));
  }
  static Error error(size_t rank, const PipelineAction& action, std::string_view what) {
    return Error("pipeline", describe(rank, action) + ": " + std::string(what));
  }

  void check_actions(size_t rank) const {
    for (const auto& action : schedule_[rank]) {
      if (action.chunk < 0 || action.chunk >= shape_.chunks() || action.micro_batch < 0 ||
          action.micro_batch >= shape_.micro_batches) {
        throw error(rank, action,
                    fmt::format("there is no such; got a pipeline of {} micro-batches and {} chunks",
                                shape_.micro_batches, shape_.chunks()));
      }
      if (static_cast<size_t>(action.chunk % shape_.stages) != rank) {
        throw error(rank, action, fmt::format("the chunk lives on rank {}", action.chunk % shape_.stages));
      }
    }
  }

  bool finished(size_t rank) const { return timeline_.ranks[rank].size() == schedule_[rank].size(); }
  const PipelineAction& next(size_t rank) const { return schedule_[rank][timeline_.ranks[rank].size()]; }
  std::optional<double>& end_of(Ends& ends, const PipelineAction& action) const {
    return ends[static_cast<size_t>(action.micro_batch * shape_.chunks() + action.chunk)];
  }

  /// Does the next action of a rank if what it needs was computed.
  bool try_next(size_t rank) {
    const PipelineAction& action = next(rank);
    const std::optional<double> ready = ready_at(rank, action);
    if (!ready) return false;
    auto& spans = timeline_.ranks[rank];
    const double start = std::max(*ready, spans.empty() ? 0.0 : spans.back().end);
    const double end = start + duration(action);
    spans.push_back({start, end});
    timeline_.makespan = std::max(timeline_.makespan, end);
    if (action.kind == ActionKind::kForward) {
      end_of(forward_end_, action) = end;
      send(activations_, action, action.chunk + 1, end);
    } else if (action.kind != ActionKind::kBackwardWeight) {
      end_of(backward_end_, action) = end;
      send(gradients_, action, action.chunk - 1, end);
    }
    return true;
  }

  std::optional<double> ready_at(size_t rank, const PipelineAction& action) {
    switch (action.kind) {
      case ActionKind::kForward:
        return action.chunk == 0 ? 0.0 : receive(activations_, rank, action);
      case ActionKind::kBackward:
      case ActionKind::kBackwardInput: {
        const std::optional<double> own = end_of(forward_end_, action);
        return !own || action.chunk == shape_.chunks() - 1 ? own : receive(gradients_, rank, action);
      }
      case ActionKind::kBackwardWeight:
        return end_of(backward_end_, action);
    }
    return std::nullopt;
  }

  double duration(const PipelineAction& action) const {
    const ChunkCost& cost = costs_[static_cast<size_t>(action.chunk)];
    switch (action.kind) {
      case ActionKind::kForward:
        return cost.forward;
      case ActionKind::kBackward:
        return cost.backward_input + cost.backward_weight;
      case ActionKind::kBackwardInput:
        return cost.backward_input;
      case ActionKind::kBackwardWeight:
        return cost.backward_weight;
    }
    return 0;
  }

  void send(std::vector<Inbox>& inboxes, const PipelineAction& action, int64_t to_chunk, double end) {
    if (to_chunk < 0 || to_chunk == shape_.chunks()) return;
    Inbox& inbox = inboxes[static_cast<size_t>(to_chunk % shape_.stages)];
    const double arrival = shape_.stages == 1 ? end : std::max(end, inbox.newest_arrival) + transfer_;
    inbox.newest_arrival = arrival;
    inbox.messages.push_back({action.micro_batch, to_chunk, arrival});
  }

  /// Takes what an action needs off the messages of its kind, all of which come from one neighbour, first sent first.
  std::optional<double> receive(std::vector<Inbox>& inboxes, size_t rank, const PipelineAction& action) {
    std::deque<Message>& inbox = inboxes[rank].messages;
    auto message = inbox.begin();
    const auto wanted = [&](const Message& candidate) {
      return candidate.micro_batch == action.micro_batch && candidate.chunk == action.chunk;
    };
    // The only rank of a pipeline keeps its results: any order will do.
    if (shape_.stages == 1) message = std::find_if(inbox.begin(), inbox.end(), wanted);
    if (message == inbox.end()) return std::nullopt;
    if (!wanted(*message)) {
      throw error(rank, action,
                  fmt::format("messages come in another order; got the one for micro-batch {} and chunk {} first",
                              message->micro_batch, message->chunk));
    }
    const double arrival = message->arrival;
    inbox.erase(message);
    return arrival;
  }

  const std::vector<Actions>& schedule_;
  const PipelineShape shape_;
  const std::span<const ChunkCost> costs_;
  const double transfer_;
  Ends forward_end_;
  Ends backward_end_;
  std::vector<Inbox> activations_;  // by the rank that receives
  std::vector<Inbox> gradients_;
  PipelineTimeline timeline_;
};

double busy(const std::vector<PipelineTimeline::Span>& spans) {
  double sum = 0;
  for (const auto& span : spans) sum += span.end - span.start;
  return sum;
}

}  // namespace

std::string to_string(const PipelineAction& action) {
  static constexpr std::string_view kNames[] = {"forward", "backward", "backward of the input",
                                                "backward of the weights"};
  return fmt::format("{} of micro-batch {} through chunk {}", kNames[static_cast<size_t>(action.kind)],
                     action.micro_batch, action.chunk);
}

const std::vector<std::string>& pipeline_schedule_names() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> all;
    for (const auto& schedule : schedules()) all.push_back(schedule.name);
    return all;
  }();
  return names;
}

std::vector<std::vector<PipelineAction>> pipeline_schedule(std::string_view name, const PipelineShape& shape) {
  const Schedule& schedule = find_schedule(name, shape);
  std::vector<Actions> ranks;
  for (int64_t rank = 0; rank < shape.stages; ++rank) ranks.push_back(schedule.actions(shape, rank));
  return ranks;
}

double theoretical_bubble(std::string_view name, const PipelineShape& shape, const ChunkCost& cost) {
  const double idle = find_schedule(name, shape).idle(shape, cost);
  return idle / (static_cast<double>(shape.micro_batches) + idle);
}

double PipelineTimeline::idle(int64_t rank) const {
  return makespan > 0 ? 1 - busy(ranks[static_cast<size_t>(rank)]) / makespan : 0;
}

double PipelineTimeline::bubble() const {
  double sum = 0;
  for (size_t rank = 0; rank < ranks.size(); ++rank) sum += idle(static_cast<int64_t>(rank));
  return sum / static_cast<double>(ranks.size());
}

PipelineTimeline simulate(const std::vector<std::vector<PipelineAction>>& schedule, const PipelineShape& shape,
                          std::span<const ChunkCost> costs, double transfer) {
  LEVIN_CHECK(std::ssize(schedule) == shape.stages, "a pipeline's schedule has one list of actions a stage");
  LEVIN_CHECK(std::ssize(costs) == shape.chunks(), "a pipeline's costs have one entry a chunk");
  return Simulation(schedule, shape, costs, transfer).run();
}

PipelineHold most_in_flight(std::span<const PipelineAction> actions, const PipelineShape& shape) {
  PipelineHold now;
  PipelineHold most;
  now.per_chunk.resize(static_cast<size_t>(shape.chunks_per_rank));
  most.per_chunk.resize(now.per_chunk.size());
  for (const auto& action : actions) {
    const auto chunk = static_cast<size_t>(action.chunk / shape.stages);
    if (action.kind == ActionKind::kForward) {
      most.total = std::max(most.total, ++now.total);
      most.per_chunk[chunk] = std::max(most.per_chunk[chunk], ++now.per_chunk[chunk]);
    } else if (action.kind != ActionKind::kBackwardInput) {
      --now.total;
      --now.per_chunk[chunk];
    }
  }
  return most;
}

}  // namespace levin
