#include <levin/strategies/pipeline/pipeline_trace.h>

#include <levin/core/base/error.h>
#include <levin/core/base/file_system.h>
#include <levin/strategies/pipeline/pipeline_picture.h>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstring>
#include <limits>
#include <set>
#include <type_traits>
#include <utility>

namespace levin {
namespace {

using Json = nlohmann::json;
using EventKind = PipelineEvent::Kind;

// Sent as it lies in memory: all ranks of a job run the same program on the same kind of machine.
static_assert(std::is_trivially_copyable_v<PipelineEvent>);
static_assert(std::has_unique_object_representations_v<PipelineEvent>, "padding would be sent too");

double microseconds(int64_t nanoseconds) { return static_cast<double>(nanoseconds) / 1000; }

Json metadata(const char* what, int64_t thread, Json arguments) {
  return {{"ph", "M"}, {"pid", 0}, {"tid", thread}, {"name", what}, {"args", std::move(arguments)}};
}

void write_file(const std::string& path, const std::string& text) {
  const auto file = FileSystem::current().create(path);
  file->append(text);
  file->close();
}

}  // namespace

std::string events_to_bytes(const std::vector<PipelineEvent>& events) {
  return {reinterpret_cast<const char*>(events.data()), events.size() * sizeof(PipelineEvent)};
}

std::vector<PipelineEvent> events_from_bytes(const std::string& bytes, int64_t clock_offset_ns) {
  if (bytes.size() % sizeof(PipelineEvent) != 0)
    throw Error("pipeline", fmt::format("the events that another rank sent are cut short: {} bytes; one has {}",
                                        bytes.size(), sizeof(PipelineEvent)));
  std::vector<PipelineEvent> events(bytes.size() / sizeof(PipelineEvent));
  if (!events.empty()) std::memcpy(events.data(), bytes.data(), bytes.size());
  for (PipelineEvent& event : events) {
    if (event.kind < EventKind::kForward || event.kind > EventKind::kOptimizer)
      throw Error("pipeline",
                  fmt::format("another rank sent an event of the unknown kind {}", static_cast<int64_t>(event.kind)));
    event.begin_ns += clock_offset_ns;
    event.end_ns += clock_offset_ns;
  }
  return events;
}

std::string chrome_trace(const std::vector<PipelineEvent>& events) {
  Json list = Json::array({metadata("process_name", 0, {{"name", "pipeline"}})});
  std::set<int64_t> ranks;
  int64_t start = std::numeric_limits<int64_t>::max();
  for (const PipelineEvent& event : events) {
    ranks.insert(event.rank);
    start = std::min(start, event.begin_ns);
  }
  for (const int64_t rank : ranks) {
    list.push_back(metadata("thread_name", rank, {{"name", fmt::format("rank {}", rank)}}));
    list.push_back(metadata("thread_sort_index", rank, {{"sort_index", rank}}));
  }
  for (const PipelineEvent& event : events) {
    Json arguments = Json::object();
    if (event.micro_batch != PipelineEvent::kNone) arguments["micro_batch"] = event.micro_batch;
    if (event.chunk != PipelineEvent::kNone) arguments["chunk"] = event.chunk;
    list.push_back({{"ph", "X"},
                    {"pid", 0},
                    {"tid", event.rank},
                    {"cat", "pipeline"},
                    {"name", name_of(event.kind)},
                    {"ts", microseconds(event.begin_ns - start)},
                    {"dur", microseconds(event.end_ns - event.begin_ns)},
                    {"args", std::move(arguments)}});
  }
  return Json{{"traceEvents", std::move(list)}, {"displayTimeUnit", "ms"}}.dump() + "\n";
}

void write_pipeline_trace(const std::string& folder, const std::vector<PipelineEvent>& events, const std::string& title,
                          double theoretical_bubble) {
  FileSystem::current().create_directories(folder);
  write_file(folder + "/pipeline_trace.json", chrome_trace(events));
  write_file(folder + "/pipeline_trace.svg", pipeline_picture(events, title, theoretical_bubble));
}

}  // namespace levin
