#include <levin/strategies/pipeline/pipeline_trace.h>

#include <levin/core/base/error.h>
#include <levin/core/base/file_system.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <functional>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include "tests/strategies/pipeline/pipeline_timelines.h"
#include "tests/support/run_program.h"
#include "tests/support/tiny.h"

namespace levin {
namespace {

using Json = nlohmann::json;
using Kind = PipelineEvent::Kind;
using testing::gpipe_events;
using testing::one_forward_one_backward_events;

constexpr Kind kKinds[] = {Kind::kForward,     Kind::kBackward, Kind::kBackwardInput, Kind::kBackwardWeight,
                           Kind::kReceiveWait, Kind::kSendWait, Kind::kReduce,        Kind::kOptimizer};

PipelineEvent event(int64_t rank, Kind kind, int64_t begin_ns, int64_t end_ns) {
  return {.rank = rank, .kind = kind, .begin_ns = begin_ns, .end_ns = end_ns};
}

double theory(int64_t ranks, int64_t micro_batches, int64_t chunks = 1) {
  return static_cast<double>(ranks - 1) / static_cast<double>(chunks * micro_batches + ranks - 1);
}

/// The events of a trace, without its metadata.
std::vector<Json> events_in(const Json& trace) {
  std::vector<Json> events;
  for (const Json& entry : trace.at("traceEvents"))
    if (entry.at("ph") == "X") events.push_back(entry);
  return events;
}

std::string trace_error(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(PipelineEvents, BytesKeepAllOfThem) {
  std::vector<PipelineEvent> events;
  for (const Kind kind : kKinds)
    events.push_back({.rank = 3,
                      .chunk = PipelineEvent::kNone,
                      .micro_batch = int64_t{1} << 40,
                      .kind = kind,
                      .begin_ns = std::numeric_limits<int64_t>::min(),
                      .end_ns = std::numeric_limits<int64_t>::max()});
  EXPECT_EQ(events_from_bytes(events_to_bytes(events)), events);
  EXPECT_TRUE(events_from_bytes(events_to_bytes({})).empty());
}

TEST(PipelineEvents, AnotherHostsClockIsMovedToOurs) {
  EXPECT_EQ(events_from_bytes(events_to_bytes(gpipe_events(2, 3, 5000)), -4000), gpipe_events(2, 3, 1000));
}

TEST(PipelineEvents, BytesOfSomethingElseAreRefused) {
  const std::string bytes = events_to_bytes(gpipe_events(1, 1));
  EXPECT_EQ(trace_error([&] { events_from_bytes(bytes.substr(1)); }),
            "[pipeline] the events that another rank sent are cut short: 95 bytes; one has 48");
  EXPECT_EQ(trace_error([&] { events_from_bytes(std::string(48, '\x01')); }),
            "[pipeline] another rank sent an event of the unknown kind 72340172838076673");
}

TEST(PipelineEvents, EveryKindHasAName) {
  std::set<std::string> names;
  for (const Kind kind : kKinds) names.insert(name_of(kind));
  EXPECT_EQ(names.size(), std::size(kKinds));
  EXPECT_EQ(std::count_if(std::begin(kKinds), std::end(kKinds), is_computation), 4);
}

TEST(PipelineBubble, OfGPipeAndOneForwardOneBackwardIsTheory) {
  for (const int64_t ranks : {1, 2, 3, 4, 8}) {
    for (const int64_t micro_batches : {1, 2, 4, 8, 32}) {
      for (const auto& events :
           {gpipe_events(ranks, micro_batches, 123), one_forward_one_backward_events(ranks, micro_batches)}) {
        const PipelineBubble bubble = measured_bubble(events);
        EXPECT_NEAR(bubble.mean, theory(ranks, micro_batches), 1e-12) << ranks << " ranks, " << micro_batches;
        ASSERT_EQ(bubble.of_rank.size(), static_cast<size_t>(ranks));
        for (const auto& [rank, idle] : bubble.of_rank) EXPECT_NEAR(idle, theory(ranks, micro_batches), 1e-12) << rank;
      }
    }
  }
}

TEST(PipelineBubble, OfInterleavedStagesIsTheory) {
  EXPECT_NEAR(measured_bubble(one_forward_one_backward_events(4, 8, 2)).mean, theory(4, 8, 2), 1e-12);
  EXPECT_NEAR(measured_bubble(one_forward_one_backward_events(2, 4, 3)).mean, theory(2, 4, 3), 1e-12);
}

TEST(PipelineBubble, EachRankAndTheMean) {
  const PipelineBubble bubble = measured_bubble({
      event(0, Kind::kForward, 100, 200),
      event(0, Kind::kBackwardInput, 250, 300),
      event(0, Kind::kBackwardWeight, 400, 500),
      event(1, Kind::kReceiveWait, 100, 150),
      event(1, Kind::kForward, 200, 250),
      event(1, Kind::kBackward, 250, 300),
      event(2, Kind::kReceiveWait, 100, 500),
  });
  ASSERT_EQ(bubble.of_rank.size(), 3u);
  EXPECT_DOUBLE_EQ(bubble.of_rank.at(0), 0.375);
  EXPECT_DOUBLE_EQ(bubble.of_rank.at(1), 0.75);
  EXPECT_DOUBLE_EQ(bubble.of_rank.at(2), 1) << "it only waited";
  EXPECT_DOUBLE_EQ(bubble.mean, (0.375 + 0.75 + 1) / 3);
}

TEST(PipelineBubble, WhatOverlapsCountsOnce) {
  const PipelineBubble bubble = measured_bubble({
      event(0, Kind::kForward, 0, 60),
      event(0, Kind::kBackward, 10, 20),
      event(0, Kind::kForward, 50, 80),
      event(1, Kind::kForward, 0, 100),
  });
  EXPECT_NEAR(bubble.of_rank.at(0), 0.2, 1e-12);
}

TEST(PipelineBubble, WhatIsNoPartOfTheScheduleDoesNotCount) {
  std::vector<PipelineEvent> events = gpipe_events(2, 4);
  const double before = measured_bubble(events).mean;
  events.push_back(event(0, Kind::kReduce, 1'000'000'000, 2'000'000'000));
  events.push_back(event(1, Kind::kOptimizer, 2'000'000'000, 3'000'000'000));
  events.push_back(event(1, Kind::kReceiveWait, -1'000'000'000, 0));
  EXPECT_DOUBLE_EQ(measured_bubble(events).mean, before);
}

TEST(PipelineBubble, OneRankHasNone) {
  const PipelineBubble bubble = measured_bubble(gpipe_events(1, 4));
  EXPECT_DOUBLE_EQ(bubble.mean, 0);
  EXPECT_DOUBLE_EQ(bubble.of_rank.at(0), 0);
}

TEST(PipelineBubble, NothingToMeasure) {
  for (const auto& events :
       {std::vector<PipelineEvent>{}, {event(0, Kind::kOptimizer, 0, 10)}, {event(0, Kind::kForward, 10, 10)}}) {
    const PipelineBubble bubble = measured_bubble(events);
    EXPECT_TRUE(bubble.of_rank.empty());
    EXPECT_EQ(bubble.mean, 0);
  }
}

TEST(PipelineChromeTrace, HoldsEveryEvent) {
  const auto events = one_forward_one_backward_events(4, 8, 2);
  const auto written = events_in(Json::parse(chrome_trace(events)));
  ASSERT_EQ(written.size(), events.size());
  for (size_t i = 0; i < events.size(); ++i) {
    const Json expected = {{"ph", "X"},
                           {"pid", 0},
                           {"tid", events[i].rank},
                           {"cat", "pipeline"},
                           {"name", name_of(events[i].kind)},
                           {"ts", static_cast<double>(events[i].begin_ns) / 1000},
                           {"dur", static_cast<double>(events[i].end_ns - events[i].begin_ns) / 1000},
                           {"args", {{"micro_batch", events[i].micro_batch}, {"chunk", events[i].chunk}}}};
    EXPECT_EQ(written[i], expected);
  }
}

TEST(PipelineChromeTrace, NamesProcessAndRanks) {
  const Json trace = Json::parse(chrome_trace(gpipe_events(3, 1)));
  EXPECT_EQ(trace.at("displayTimeUnit"), "ms");
  EXPECT_EQ(trace.at("traceEvents").at(0),
            Json::parse(R"({"ph": "M", "pid": 0, "tid": 0, "name": "process_name", "args": {"name": "pipeline"}})"));
  std::vector<std::string> names;
  for (const Json& entry : trace.at("traceEvents"))
    if (entry.at("name") == "thread_name")
      names.push_back(entry.at("args").at("name").get<std::string>() + " " + entry.at("tid").dump());
  EXPECT_THAT(names, ::testing::ElementsAre("rank 0 0", "rank 1 1", "rank 2 2"));
}

TEST(PipelineChromeTrace, StartsAtZeroAndLeavesOutWhatThereIsNot) {
  // A monotonic clock in nanoseconds has too many digits for a double of microseconds after some months.
  const int64_t uptime = int64_t{1} << 60;
  const auto written = events_in(Json::parse(chrome_trace({{.rank = 0,
                                                            .chunk = PipelineEvent::kNone,
                                                            .kind = Kind::kOptimizer,
                                                            .begin_ns = uptime + 1001,
                                                            .end_ns = uptime + 1003},
                                                           event(0, Kind::kForward, uptime, uptime + 1)})));
  EXPECT_EQ(written.at(0).at("ts"), 1.001);
  EXPECT_EQ(written.at(0).at("dur"), 0.002);
  EXPECT_EQ(written.at(0).at("args"), Json::object());
  EXPECT_EQ(written.at(1).at("ts"), 0);
}

TEST(PipelineChromeTrace, NoEvents) {
  const Json trace = Json::parse(chrome_trace({}));
  EXPECT_EQ(trace.at("traceEvents").size(), 1u);
}

TEST(PipelineTraceFiles, BothAreWritten) {
  const std::string folder = testing::fresh_folder("pipeline_trace") + "/not/yet/there";
  const auto events = gpipe_events(2, 2);
  write_pipeline_trace(folder, events, "gpipe", 1.0 / 3);
  EXPECT_EQ(testing::read_text(folder + "/pipeline_trace.json"), chrome_trace(events));
  EXPECT_THAT(testing::read_text(folder + "/pipeline_trace.svg"), ::testing::StartsWith("<svg "));
  // Again, in place of what is there.
  write_pipeline_trace(folder, {}, "gpipe", 1.0 / 3);
  EXPECT_EQ(testing::read_text(folder + "/pipeline_trace.json"), chrome_trace({}));
}

TEST(PipelineTraceFiles, WhereNothingCanBeWritten) {
  const std::string folder = testing::fresh_folder("pipeline_trace");
  const std::string file = folder + "/file";
  FileSystem::current().create(file)->close();
  const auto write_to = [](const std::string& path) {
    return trace_error([&] { write_pipeline_trace(path, gpipe_events(2, 2), "gpipe", 0); });
  };
  EXPECT_THAT(write_to(file), ::testing::AllOf(::testing::StartsWith("[files] cannot "), ::testing::HasSubstr(file)));
  EXPECT_THAT(write_to(file + "/below"),
              ::testing::AllOf(::testing::StartsWith("[files] cannot "), ::testing::HasSubstr(file + "/below"),
                               ::testing::HasSubstr("Not a directory")));
  FileSystem::current().create_directories(folder + "/taken/pipeline_trace.svg");
  EXPECT_EQ(write_to(folder + "/taken"),
            "[files] cannot write " + folder + "/taken/pipeline_trace.svg: Is a directory");
}

}  // namespace
}  // namespace levin
