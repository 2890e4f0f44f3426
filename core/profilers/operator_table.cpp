#include <levin/core/profilers/operator_table.h>

#include <fmt/format.h>
#include <torch/csrc/autograd/profiler_kineto.h>

#include <algorithm>
#include <map>
#include <unordered_map>
#include <utility>

namespace levin {
namespace {

using torch::autograd::profiler::KinetoEvent;

constexpr const char* kMemoryEvent = "[memory]";

std::string time_text(double nanoseconds) {
  if (nanoseconds >= 1e9) return fmt::format("{:.3f} s", nanoseconds / 1e9);
  if (nanoseconds >= 1e6) return fmt::format("{:.3f} ms", nanoseconds / 1e6);
  return fmt::format("{:.3f} us", nanoseconds / 1e3);
}

/// An event of the host, in the order in which they began.
struct HostEvent {
  const KinetoEvent* event;
  OperatorTime* entry;
  int64_t end;
};

/// One thread's events: an operator is inside of the one that began before it and has not ended.
void add_thread(const std::vector<const KinetoEvent*>& events, std::unordered_map<std::string, OperatorTime>& by_name) {
  std::vector<HostEvent> open;
  for (const KinetoEvent* event : events) {
    const auto began = static_cast<int64_t>(event->startNs());
    while (!open.empty() && open.back().end <= began) open.pop_back();
    if (event->name() == kMemoryEvent) {
      if (!open.empty() && event->deviceType() == c10::DeviceType::CPU) open.back().entry->bytes += event->nBytes();
      continue;
    }
    const auto took = static_cast<int64_t>(event->durationNs());
    OperatorTime& entry = by_name[event->name()];
    entry.name = event->name();
    ++entry.calls;
    entry.flops += static_cast<int64_t>(event->flops());
    entry.self += took;
    // A call inside of a call of the same operator is in its total already.
    if (std::none_of(open.begin(), open.end(), [&](const HostEvent& outer) { return outer.entry == &entry; }))
      entry.total += took;
    if (!open.empty()) open.back().entry->self -= took;
    open.push_back({.event = event, .entry = &entry, .end = began + took});
  }
}

}  // namespace

std::vector<OperatorTime> operator_times(const std::vector<KinetoEvent>& events) {
  std::map<uint64_t, std::vector<const KinetoEvent*>> by_thread;
  std::unordered_map<uint64_t, std::string> operator_by_correlation;
  for (const KinetoEvent& event : events) {
    // What ends on another thread than it began on is nothing that this thread was busy with.
    if (event.deviceType() != c10::DeviceType::CPU || event.isAsync() || event.isHiddenEvent()) continue;
    by_thread[event.startThreadId()].push_back(&event);
    if (event.linkedCorrelationId() == 0 && event.correlationId() != 0)
      operator_by_correlation[event.correlationId()] = event.name();
  }
  std::unordered_map<std::string, OperatorTime> by_name;
  for (auto& [thread, of_thread] : by_thread) {
    std::stable_sort(of_thread.begin(), of_thread.end(), [](const KinetoEvent* a, const KinetoEvent* b) {
      return a->startNs() != b->startNs() ? a->startNs() < b->startNs() : a->durationNs() > b->durationNs();
    });
    add_thread(of_thread, by_name);
  }
  for (const KinetoEvent& event : events) {
    if (event.deviceType() == c10::DeviceType::CPU || event.name() == kMemoryEvent) continue;
    const auto launched_by = operator_by_correlation.find(event.linkedCorrelationId());
    if (launched_by != operator_by_correlation.end())
      by_name[launched_by->second].device += static_cast<int64_t>(event.durationNs());
  }
  std::vector<OperatorTime> times;
  for (auto& [name, time] : by_name) times.push_back(std::move(time));
  std::sort(times.begin(), times.end(), [](const OperatorTime& a, const OperatorTime& b) {
    return a.self != b.self ? a.self > b.self : a.name < b.name;
  });
  return times;
}

std::string operator_table(const std::vector<OperatorTime>& times, int64_t rows) {
  int64_t all = 0;
  int64_t on_device = 0;
  bool with_bytes = false;
  bool with_flops = false;
  for (const OperatorTime& time : times) {
    all += time.self;
    on_device += time.device;
    with_bytes = with_bytes || time.bytes != 0;
    with_flops = with_flops || time.flops != 0;
  }
  const size_t shown = std::min(times.size(), static_cast<size_t>(rows));
  size_t width = 8;
  for (size_t i = 0; i < shown; ++i) width = std::max(width, times[i].name.size());
  std::string text = fmt::format("{:<{}}  {:>8}  {:>12}  {:>7}  {:>12}  {:>12}", "operator", width, "calls", "self CPU",
                                 "self %", "CPU total", "CPU mean");
  if (on_device > 0) text += fmt::format("  {:>12}  {:>8}", "self device", "device %");
  if (with_bytes) text += fmt::format("  {:>14}", "self CPU bytes");
  if (with_flops) text += fmt::format("  {:>12}", "GFLOP");
  text += "\n";
  const auto percent = [](int64_t part, int64_t whole) {
    return whole == 0 ? 0 : 100 * static_cast<double>(part) / static_cast<double>(whole);
  };
  for (size_t i = 0; i < shown; ++i) {
    const OperatorTime& time = times[i];
    text += fmt::format("{:<{}}  {:>8}  {:>12}  {:>7.2f}  {:>12}  {:>12}", time.name, width, time.calls,
                        time_text(static_cast<double>(time.self)), percent(time.self, all),
                        time_text(static_cast<double>(time.total)),
                        time_text(static_cast<double>(time.total) / static_cast<double>(time.calls)));
    if (on_device > 0)
      text += fmt::format("  {:>12}  {:>8.2f}", time_text(static_cast<double>(time.device)),
                          percent(time.device, on_device));
    if (with_bytes) text += fmt::format("  {:>14}", time.bytes);
    if (with_flops) text += fmt::format("  {:>12.6f}", static_cast<double>(time.flops) / 1e9);
    text += "\n";
  }
  if (shown < times.size()) text += fmt::format("({} more)\n", times.size() - shown);
  text += fmt::format("self CPU in all: {}", time_text(static_cast<double>(all)));
  if (on_device > 0) text += fmt::format(", on the device: {}", time_text(static_cast<double>(on_device)));
  return text;
}

}  // namespace levin
