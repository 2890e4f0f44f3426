#include <levin/core/comm/pipeline_schedule.h>

#include <levin/core/base/error.h>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <functional>
#include <map>
#include <set>
#include <tuple>

namespace levin {
namespace {

using ActionKind = PipelineAction::Kind;
using Lists = std::vector<std::vector<PipelineAction>>;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// "F0 B0", the whole backward; I and W are its halves. Where ranks have several chunks, "F0.2" goes through chunk 2.
std::string text(const std::vector<PipelineAction>& actions, bool with_chunk = false) {
  std::string all;
  for (const auto& action : actions) {
    all += fmt::format("{}{}{}", all.empty() ? "" : " ", "FBIW"[static_cast<int>(action.kind)], action.micro_batch);
    if (with_chunk) all += fmt::format(".{}", action.chunk);
  }
  return all;
}

std::string schedule_error(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

std::vector<ChunkCost> equal_costs(const PipelineShape& shape, const ChunkCost& cost = {}) {
  return std::vector<ChunkCost>(static_cast<size_t>(shape.chunks()), cost);
}

/// Runs the lists as ranks with blocking receives do, where a send waits until fewer than `buffers` messages of its
/// kind to that rank are on their way; without a buffer it waits until its own message is received. Says what goes
/// wrong.
std::string exchange_messages(const Lists& schedule, const PipelineShape& shape, size_t buffers) {
  using Message = std::pair<int64_t, int64_t>;                                 // micro-batch, receiving chunk
  std::map<std::tuple<int64_t, int64_t, bool>, std::deque<Message>> channels;  // from, to, activations
  enum class Phase { kReceive, kSend, kSent };
  struct Rank {
    size_t next = 0;
    Phase phase = Phase::kReceive;
  };
  std::vector<Rank> ranks(schedule.size());
  bool progress = true;
  while (progress) {
    progress = false;
    for (int64_t rank = 0; rank < shape.stages; ++rank) {
      auto& [next, phase] = ranks[static_cast<size_t>(rank)];
      const auto& actions = schedule[static_cast<size_t>(rank)];
      while (next < actions.size()) {
        const auto& action = actions[next];
        const bool forward = action.kind == ActionKind::kForward;
        const int64_t from_chunk = action.chunk + (forward ? -1 : 1);
        const int64_t to_chunk = action.chunk + (forward ? 1 : -1);
        const bool local = action.kind == ActionKind::kBackwardWeight || shape.stages == 1;
        const bool receives = !local && from_chunk >= 0 && from_chunk < shape.chunks();
        const bool sends = !local && to_chunk >= 0 && to_chunk < shape.chunks();
        if (phase == Phase::kReceive) {
          if (receives) {
            auto& channel = channels[{from_chunk % shape.stages, rank, forward}];
            if (channel.empty()) break;
            if (channel.front() != Message{action.micro_batch, action.chunk}) {
              return fmt::format("rank {}, {}: receives another's message", rank, to_string(action));
            }
            channel.pop_front();
          }
          phase = Phase::kSend;
        }
        if (sends) {
          auto& channel = channels[{rank, to_chunk % shape.stages, forward}];
          if (phase == Phase::kSend) {
            if (channel.size() >= std::max<size_t>(buffers, 1)) break;
            channel.push_back({action.micro_batch, to_chunk});
            phase = Phase::kSent;
            progress = true;
          }
          if (buffers == 0 && !channel.empty()) break;
        }
        phase = Phase::kReceive;
        ++next;
        progress = true;
      }
    }
  }
  for (size_t rank = 0; rank < schedule.size(); ++rank) {
    if (ranks[rank].next < schedule[rank].size()) {
      return fmt::format("rank {}, {}: waits for ever", rank, to_string(schedule[rank][ranks[rank].next]));
    }
  }
  for (const auto& [key, channel] : channels) {
    if (!channel.empty()) return "a message that nobody receives";
  }
  return "";
}

/// Every micro-batch goes through every chunk once forward and once backward, on the chunk's rank, halves in their
/// order.
void expect_complete(const Lists& schedule, const PipelineShape& shape, bool halves) {
  ASSERT_EQ(std::ssize(schedule), shape.stages);
  std::set<std::tuple<int64_t, int64_t, ActionKind>> seen;
  for (int64_t rank = 0; rank < shape.stages; ++rank) {
    for (const auto& [kind, micro_batch, chunk] : schedule[static_cast<size_t>(rank)]) {
      ASSERT_EQ(chunk % shape.stages, rank);
      ASSERT_TRUE(micro_batch >= 0 && micro_batch < shape.micro_batches && chunk >= 0 && chunk < shape.chunks());
      ASSERT_EQ(kind == ActionKind::kBackwardInput || kind == ActionKind::kBackwardWeight,
                halves && kind != ActionKind::kForward);
      ASSERT_TRUE(seen.insert({micro_batch, chunk, kind}).second);
      if (kind == ActionKind::kBackward || kind == ActionKind::kBackwardInput) {
        ASSERT_TRUE(seen.contains({micro_batch, chunk, ActionKind::kForward}));
      } else if (kind == ActionKind::kBackwardWeight) {
        ASSERT_TRUE(seen.contains({micro_batch, chunk, ActionKind::kBackwardInput}));
      }
    }
  }
  ASSERT_EQ(std::ssize(seen), shape.micro_batches * shape.chunks() * (halves ? 3 : 2));
}

void expect_bounded_hold(const std::string& name, const Lists& schedule, const PipelineShape& shape) {
  const auto [p, m, v] = shape;
  for (int64_t rank = 0; rank < p; ++rank) {
    const PipelineHold hold = most_in_flight(schedule[static_cast<size_t>(rank)], shape);
    ASSERT_EQ(std::ssize(hold.per_chunk), v);
    for (const int64_t of_chunk : hold.per_chunk) {
      EXPECT_GE(of_chunk, 1);
      EXPECT_LE(of_chunk, std::min(m, hold.total));
    }
    if (name == "gpipe") {
      EXPECT_EQ(hold.total, m);
    } else if (name == "1f1b" || (name == "interleaved" && v == 1)) {
      EXPECT_EQ(hold.total, std::min(m, p - rank));
    } else if (name == "zero_bubble") {
      EXPECT_EQ(hold.total, std::min(m, p));
    } else {
      const int64_t bound = std::min(m * v, 2 * (p - rank - 1) + (v - 1) * p + 1);
      EXPECT_LE(hold.total, bound);
      if (m % p == 0) {
        EXPECT_EQ(hold.total, bound);
      }
    }
  }
}

/// With unit costs, where every number of the simulation is a whole one.
void expect_bubble(const std::string& name, const Lists& schedule, const PipelineShape& shape) {
  const auto p = static_cast<double>(shape.stages);
  const auto m = static_cast<double>(shape.micro_batches);
  const auto v = static_cast<double>(shape.chunks_per_rank);
  const PipelineTimeline timeline = simulate(schedule, shape, equal_costs(shape));
  const double theory = theoretical_bubble(name, shape);
  EXPECT_NEAR(timeline.bubble(), 1 - 3 * m * v / timeline.makespan, 1e-12);  // all ranks work equally much
  EXPECT_NEAR(timeline.idle(0), timeline.bubble(), 1e-12);
  EXPECT_LE(timeline.makespan, (m + p - 1) * 3 * v) << "worse than gpipe";
  if (name == "zero_bubble") {
    const double idle = shape.micro_batches >= shape.stages ? p - 1 : 2 * (p - 1) - (m - 1);
    EXPECT_EQ(timeline.makespan, 3 * m + idle);
    EXPECT_NEAR(theory, idle / (3 * m + idle), 1e-12);
  } else {
    // The last rank waits for the first forward to come and after its last backward for that to go through the others.
    const double bound = std::max(m * v + p - 1, p * v + m - 1) * 3;
    EXPECT_GE(timeline.makespan, bound);
    EXPECT_NEAR(theory, (p - 1) / (v * m + p - 1), 1e-12);
    if (shape.chunks_per_rank == 1 || shape.micro_batches % shape.stages == 0 || shape.micro_batches < shape.stages) {
      EXPECT_EQ(timeline.makespan, bound);
    }
  }
  EXPECT_GE(timeline.bubble(), theory - 1e-12);
}

void expect_sound(const std::string& name, const PipelineShape& shape) {
  SCOPED_TRACE(fmt::format("{}: {} stages, {} micro-batches, {} chunks a rank", name, shape.stages, shape.micro_batches,
                           shape.chunks_per_rank));
  const Lists schedule = pipeline_schedule(name, shape);
  ASSERT_NO_FATAL_FAILURE(expect_complete(schedule, shape, name == "zero_bubble"));
  EXPECT_EQ(exchange_messages(schedule, shape, 1), "");
  expect_bounded_hold(name, schedule, shape);
  expect_bubble(name, schedule, shape);
}

class PipelineSchedule : public ::testing::TestWithParam<std::string> {
 protected:
  int64_t most_chunks() const { return GetParam() == "interleaved" ? 4 : 1; }
};

TEST_P(PipelineSchedule, IsSoundForEveryShape) {
  for (int64_t p = 1; p <= 8; ++p) {
    for (int64_t m = 1; m <= 20; ++m) {
      for (int64_t v = 1; v <= most_chunks(); ++v) expect_sound(GetParam(), {p, m, v});
    }
  }
}

TEST_P(PipelineSchedule, IsSoundForLargeShapes) {
  for (const auto& [p, m] : {std::pair<int64_t, int64_t>{3, 200}, {8, 64}, {11, 47}, {16, 33}, {16, 128}, {32, 70}}) {
    for (int64_t v = 1; v <= most_chunks(); ++v) expect_sound(GetParam(), {p, m, v});
  }
}

TEST_P(PipelineSchedule, KeepsOneStageBusy) {
  const PipelineShape shape{1, 5, most_chunks()};
  const auto timeline = simulate(pipeline_schedule(GetParam(), shape), shape, equal_costs(shape, {2, 3, 5}), 100);
  EXPECT_EQ(timeline.makespan, 5 * 10 * static_cast<double>(most_chunks()));
  EXPECT_EQ(timeline.bubble(), 0);
  EXPECT_EQ(theoretical_bubble(GetParam(), shape), 0);
}

TEST_P(PipelineSchedule, IsNoFasterThanTheoryWithUnequalHalves) {
  for (const ChunkCost& cost : {ChunkCost{1, 1, 2}, {1, 0.25, 1}, {0.25, 1, 1.5}, {1, 2, 3}, {1, 1, 9}, {3, 1, 1}}) {
    for (const auto& [p, m] : {std::pair<int64_t, int64_t>{2, 2}, {2, 9}, {4, 3}, {4, 8}, {5, 13}, {8, 8}}) {
      SCOPED_TRACE(fmt::format("{} stages, {} micro-batches, costs {} {} {}", p, m, cost.forward, cost.backward_input,
                               cost.backward_weight));
      const PipelineShape shape{p, m, most_chunks()};
      const auto timeline = simulate(pipeline_schedule(GetParam(), shape), shape, equal_costs(shape, cost));
      EXPECT_GE(timeline.bubble(), theoretical_bubble(GetParam(), shape, cost) - 1e-12);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Names, PipelineSchedule, ::testing::ValuesIn(pipeline_schedule_names()),
                         [](const auto& info) { return info.param; });

TEST(PipelineScheduleOrder, OneForwardOneBackwardIsThePapers) {
  const Lists schedule = pipeline_schedule("1f1b", {4, 8});
  EXPECT_EQ(text(schedule[0]), "F0 F1 F2 F3 B0 F4 B1 F5 B2 F6 B3 F7 B4 B5 B6 B7");
  EXPECT_EQ(text(schedule[1]), "F0 F1 F2 B0 F3 B1 F4 B2 F5 B3 F6 B4 F7 B5 B6 B7");
  EXPECT_EQ(text(schedule[2]), "F0 F1 B0 F2 B1 F3 B2 F4 B3 F5 B4 F6 B5 F7 B6 B7");
  EXPECT_EQ(text(schedule[3]), "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5 F6 B6 F7 B7");
}

TEST(PipelineScheduleOrder, GPipeDoesAllForwardsFirst) {
  for (const auto& actions : pipeline_schedule("gpipe", {3, 3})) EXPECT_EQ(text(actions), "F0 F1 F2 B0 B1 B2");
}

TEST(PipelineScheduleOrder, ZeroBubbleIsThePapers) {
  const Lists schedule = pipeline_schedule("zero_bubble", {4, 8});
  EXPECT_EQ(text(schedule[0]), "F0 F1 F2 F3 I0 W0 F4 I1 W1 F5 I2 W2 F6 I3 W3 F7 I4 W4 I5 W5 I6 W6 I7 W7");
  EXPECT_EQ(text(schedule[1]), "F0 F1 F2 I0 F3 I1 W0 F4 I2 W1 F5 I3 W2 F6 I4 W3 F7 I5 W4 I6 W5 I7 W6 W7");
  EXPECT_EQ(text(schedule[2]), "F0 F1 I0 F2 I1 F3 I2 W0 F4 I3 W1 F5 I4 W2 F6 I5 W3 F7 I6 W4 I7 W5 W6 W7");
  EXPECT_EQ(text(schedule[3]), "F0 I0 F1 I1 F2 I2 F3 I3 W0 F4 I4 W1 F5 I5 W2 F6 I6 W3 F7 I7 W4 W5 W6 W7");
}

TEST(PipelineScheduleOrder, InterleavedIsThePapers) {
  const Lists schedule = pipeline_schedule("interleaved", {2, 4, 2});
  EXPECT_EQ(text(schedule[0], true), "F0.0 F1.0 F0.2 F1.2 F2.0 B0.2 F3.0 B1.2 F2.2 B0.0 F3.2 B1.0 B2.2 B3.2 B2.0 B3.0");
  EXPECT_EQ(text(schedule[1], true), "F0.1 F1.1 F0.3 B0.3 F1.3 B1.3 F2.1 B0.1 F3.1 B1.1 F2.3 B2.3 F3.3 B3.3 B2.1 B3.1");
}

TEST(PipelineScheduleOrder, InterleavedLeavesOutWhatTheLastGroupLacks) {
  const Lists schedule = pipeline_schedule("interleaved", {2, 3, 2});
  EXPECT_EQ(text(schedule[0], true), "F0.0 F1.0 F0.2 F1.2 F2.0 B0.2 B1.2 F2.2 B0.0 B1.0 B2.2 B2.0");
  EXPECT_EQ(text(schedule[1], true), "F0.1 F1.1 F0.3 B0.3 F1.3 B1.3 F2.1 B0.1 B1.1 F2.3 B2.3 B2.1");
}

TEST(PipelineScheduleOrder, InterleavedWithOneChunkIsOneForwardOneBackward) {
  EXPECT_EQ(pipeline_schedule("interleaved", {4, 7}), pipeline_schedule("1f1b", {4, 7}));
}

TEST(PipelineScheduleOrder, SendsThatWaitForTheirReceiveWouldBlock) {
  const PipelineShape shape{2, 4};
  EXPECT_EQ(exchange_messages(pipeline_schedule("gpipe", shape), shape, 0), "");
  EXPECT_THAT(exchange_messages(pipeline_schedule("1f1b", shape), shape, 0), HasSubstr("waits for ever"));
}

TEST(PipelineBubble, KnownNumbers) {
  EXPECT_DOUBLE_EQ(theoretical_bubble("gpipe", {4, 8}), 3.0 / 11);
  EXPECT_DOUBLE_EQ(theoretical_bubble("1f1b", {2, 4}), 1.0 / 5);
  EXPECT_DOUBLE_EQ(theoretical_bubble("interleaved", {4, 8, 2}), 3.0 / 19);
  EXPECT_DOUBLE_EQ(theoretical_bubble("zero_bubble", {4, 8}), 3.0 / 27);
  EXPECT_DOUBLE_EQ(theoretical_bubble("zero_bubble", {4, 8}, {4, 5, 3}), 3.0 * (4 + 5 - 3) / (8 * 12 + 3 * 6));
  EXPECT_EQ(theoretical_bubble("zero_bubble", {4, 8}, {1, 1, 9}), 0);
  EXPECT_EQ(theoretical_bubble("zero_bubble", {4, 8}, {0, 0, 0}), 0);
}

TEST(PipelineBubble, ZeroBubbleIsExactWhereWeightsCostNoMore) {
  for (const ChunkCost& cost : {ChunkCost{4, 5, 3}, {1, 2, 1}, {2, 2, 1}, {3, 2, 2}, {5, 1, 0.5}}) {
    for (int64_t p = 1; p <= 6; ++p) {
      for (int64_t m = 1; m <= 13; ++m) {
        const PipelineShape shape{p, m};
        const auto timeline = simulate(pipeline_schedule("zero_bubble", shape), shape, equal_costs(shape, cost));
        EXPECT_NEAR(timeline.bubble(), theoretical_bubble("zero_bubble", shape, cost), 1e-12) << p << " " << m;
      }
    }
  }
}

TEST(PipelineSimulation, TimesOfChunksAndMessages) {
  const PipelineShape shape{2, 2};
  const std::vector<ChunkCost> costs{{1, 1, 1}, {2, 1, 2}};
  const auto timeline = simulate(pipeline_schedule("1f1b", shape), shape, costs, 0.5);
  const auto times = [&](size_t rank) {
    std::vector<std::pair<double, double>> all;
    for (const auto& span : timeline.ranks[rank]) all.emplace_back(span.start, span.end);
    return all;
  };
  using Time = std::pair<double, double>;
  EXPECT_THAT(times(0), ElementsAre(Time(0, 1), Time(1, 2), Time(7, 9), Time(12, 14)));
  EXPECT_THAT(times(1), ElementsAre(Time(1.5, 3.5), Time(3.5, 6.5), Time(6.5, 8.5), Time(8.5, 11.5)));
  EXPECT_EQ(timeline.makespan, 14);
  EXPECT_DOUBLE_EQ(timeline.idle(0), 8.0 / 14);
  EXPECT_DOUBLE_EQ(timeline.idle(1), 4.0 / 14);
  EXPECT_DOUBLE_EQ(timeline.bubble(), 6.0 / 14);
}

TEST(PipelineSimulation, MessagesToARankFollowEachOther) {
  const PipelineShape shape{2, 3};
  const auto timeline = simulate(pipeline_schedule("gpipe", shape), shape, equal_costs(shape), 5);
  std::vector<double> starts;
  for (const auto& span : timeline.ranks[1]) starts.push_back(span.start);
  EXPECT_THAT(starts, ElementsAre(6, 11, 16, 17, 19, 21));
  EXPECT_EQ(timeline.makespan, 19 + 3 * 5 + 2);
}

TEST(PipelineSimulation, ForwardsAlone) {
  const PipelineShape shape{3, 4};
  Lists schedule = pipeline_schedule("1f1b", shape);
  for (auto& actions : schedule) {
    std::erase_if(actions, [](const auto& action) { return action.kind != ActionKind::kForward; });
  }
  EXPECT_EQ(simulate(schedule, shape, equal_costs(shape)).makespan, 6);
}

TEST(PipelineSimulation, SaysWhoWaitsForEver) {
  const PipelineShape shape{2, 1};
  const Lists schedule{{{ActionKind::kForward, 0, 0}, {ActionKind::kBackward, 0, 0}},
                       {{ActionKind::kBackward, 0, 1}, {ActionKind::kForward, 0, 1}}};
  EXPECT_THAT(schedule_error([&] { simulate(schedule, shape, equal_costs(shape)); }),
              AllOf(HasSubstr("never ends"), HasSubstr("rank 0, backward of micro-batch 0 through chunk 0"),
                    HasSubstr("rank 1, backward of micro-batch 0 through chunk 1")));
  const Lists halves{
      {{ActionKind::kForward, 0, 0}, {ActionKind::kBackwardWeight, 0, 0}, {ActionKind::kBackwardInput, 0, 0}}};
  EXPECT_THAT(schedule_error([&] {
                simulate(halves, {1, 1}, equal_costs({1, 1}));
              }),
              HasSubstr("rank 0, backward of the weights of micro-batch 0 through chunk 0"));
}

/// The paper's order as it stands, with a smaller last group: why the lists are made from whole groups.
TEST(PipelineSimulation, SeesThatASmallerGroupInThePapersOrderWaitsForEver) {
  const PipelineShape shape{5, 7, 2};
  Lists schedule(5);
  for (int64_t rank = 0; rank < 5; ++rank) {
    std::vector<PipelineAction> forward;
    std::vector<PipelineAction> backward;
    for (const auto& [first, last] : {std::pair<int64_t, int64_t>{0, 5}, {5, 7}}) {
      for (int64_t chunk = 0; chunk < 2; ++chunk) {
        for (int64_t i = first; i < last; ++i) {
          forward.push_back({ActionKind::kForward, i, 5 * chunk + rank});
          backward.push_back({ActionKind::kBackward, i, 5 * (1 - chunk) + rank});
        }
      }
    }
    const size_t delay = static_cast<size_t>(2 * (4 - rank) + 5);
    for (size_t step = 0; step < 14 + delay; ++step) {
      auto& actions = schedule[static_cast<size_t>(rank)];
      if (step < 14) actions.push_back(forward[step]);
      if (step >= delay) actions.push_back(backward[step - delay]);
    }
  }
  EXPECT_THAT(schedule_error([&] { simulate(schedule, shape, equal_costs(shape)); }), HasSubstr("never ends"));
  EXPECT_THAT(exchange_messages(schedule, shape, 1000), HasSubstr("waits for ever"));
}

TEST(PipelineSimulation, SaysWhereMessagesComeInAnotherOrder) {
  const PipelineShape shape{2, 2};
  const Lists schedule{{{ActionKind::kForward, 0, 0}, {ActionKind::kForward, 1, 0}},
                       {{ActionKind::kForward, 1, 1}, {ActionKind::kForward, 0, 1}}};
  EXPECT_THAT(schedule_error([&] { simulate(schedule, shape, equal_costs(shape)); }),
              AllOf(HasSubstr("rank 1, forward of micro-batch 1 through chunk 1"), HasSubstr("another order"),
                    HasSubstr("micro-batch 0 and chunk 1 first")));
}

TEST(PipelineSimulation, RefusesActionsOfOtherShapesAndRanks) {
  const PipelineShape shape{2, 2};
  const auto run = [&](const PipelineAction& action) {
    return schedule_error([&] { simulate({{action}, {}}, shape, equal_costs(shape)); });
  };
  EXPECT_THAT(run({ActionKind::kForward, 2, 0}), HasSubstr("2 micro-batches and 2 chunks"));
  EXPECT_THAT(run({ActionKind::kForward, -1, 0}), HasSubstr("2 micro-batches and 2 chunks"));
  EXPECT_THAT(run({ActionKind::kForward, 0, 2}), HasSubstr("2 micro-batches and 2 chunks"));
  EXPECT_THAT(run({ActionKind::kForward, 0, 1}), HasSubstr("lives on rank 1"));
  EXPECT_THROW(simulate({{}}, shape, equal_costs(shape)), InternalError);
  EXPECT_THROW(simulate({{}, {}}, shape, equal_costs({1, 1})), InternalError);
}

TEST(PipelineInFlight, CountsUntilTheWeightsGradients) {
  const std::vector<PipelineAction> actions{{ActionKind::kForward, 0, 0},        {ActionKind::kForward, 0, 2},
                                            {ActionKind::kForward, 1, 0},        {ActionKind::kBackwardInput, 0, 2},
                                            {ActionKind::kBackwardWeight, 0, 2}, {ActionKind::kBackwardInput, 0, 0},
                                            {ActionKind::kForward, 2, 0},        {ActionKind::kBackward, 2, 0},
                                            {ActionKind::kBackwardWeight, 0, 0}, {ActionKind::kBackward, 1, 0}};
  const PipelineHold hold = most_in_flight(actions, {2, 3, 2});
  EXPECT_EQ(hold.total, 3);
  EXPECT_THAT(hold.per_chunk, ElementsAre(3, 1));
}

TEST(PipelineScheduleInput, NamesWhatIsWrong) {
  EXPECT_THAT(schedule_error([] {
                pipeline_schedule("1f2b", {2, 2});
              }),
              AllOf(HasSubstr("'1f2b'"), HasSubstr("did you mean '1f1b'?"),
                    HasSubstr("valid: gpipe, 1f1b, interleaved, zero_bubble")));
  for (const std::string name : {"gpipe", "1f1b", "zero_bubble"}) {
    EXPECT_THAT(schedule_error([&] {
                  pipeline_schedule(name, {2, 2, 2});
                }),
                AllOf(HasSubstr("'" + name + "'"), HasSubstr("chunks_per_rank 2"), HasSubstr("'interleaved'")));
  }
  EXPECT_THAT(schedule_error([] { pipeline_schedule("gpipe", {0, 2}); }), HasSubstr("stages; got 0"));
  EXPECT_THAT(schedule_error([] { pipeline_schedule("gpipe", {2, 0}); }), HasSubstr("micro_batches; got 0"));
  EXPECT_THAT(schedule_error([] { theoretical_bubble("gpipe", {2, 2, -1}); }), HasSubstr("chunks_per_rank; got -1"));
  EXPECT_THROW(theoretical_bubble("gpipe", {2, 2, 2}), ConfigError);
}

/// Replicas whose batches have unequally many micro-batches exchange gradients chunk by chunk all the same.
TEST(PipelineScheduleOrder, ChunksEndInOneOrderForAnyNumberOfMicroBatches) {
  for (const std::string schedule : {"gpipe", "1f1b", "interleaved", "zero_bubble"})
    for (const int64_t stages : {2, 3, 4, 8})
      for (const int64_t chunks_per_rank : {1, 2, 3, 4}) {
        if ((schedule == "interleaved") != (chunks_per_rank > 1)) continue;
        std::map<size_t, std::vector<int64_t>> expected;  // by rank
        for (int64_t micro_batches = 1; micro_batches <= 3 * stages; ++micro_batches) {
          const auto all = pipeline_schedule(
              schedule, {.stages = stages, .micro_batches = micro_batches, .chunks_per_rank = chunks_per_rank});
          for (size_t rank = 0; rank < all.size(); ++rank) {
            std::vector<int64_t> ended;  // chunks, the last to end first
            for (auto action = all[rank].rbegin(); action != all[rank].rend(); ++action)
              if (std::find(ended.begin(), ended.end(), action->chunk) == ended.end()) ended.push_back(action->chunk);
            const auto [known, is_new] = expected.try_emplace(rank, ended);
            EXPECT_EQ(known->second, ended)
                << schedule << " " << stages << " " << chunks_per_rank << " " << micro_batches << " rank " << rank;
          }
        }
      }
}

}  // namespace
}  // namespace levin
