#include <levin/core/profilers/span_times.h>

#include <algorithm>

namespace levin {

SpanTimes::SpanTimes() {
  constexpr size_t kUsualNames = 256;
  slot_by_address_.reserve(kUsualNames);
  slots_.reserve(kUsualNames);
  open_.reserve(kUsualNames);
}

size_t SpanTimes::slot_of(const char* name) {
  const auto [entry, is_new] = slot_by_address_.try_emplace(name, slots_.size());
  if (is_new) slots_.push_back({.name = name});
  return entry->second;
}

void SpanTimes::begin(const char* name) {
  const size_t slot = slot_of(name);
  ++slots_[slot].open;
  open_.push_back({.slot = slot, .began = Clock::now()});
}

void SpanTimes::end() {
  if (open_.empty()) return;
  const Open span = open_.back();
  open_.pop_back();
  const Clock::duration took = Clock::now() - span.began;
  Slot& slot = slots_[span.slot];
  ++slot.calls;
  slot.self += took - span.inside;
  if (--slot.open == 0) slot.total += took;
  if (!open_.empty()) open_.back().inside += took;
}

std::vector<SpanTime> SpanTimes::merged(const std::vector<const SpanTimes*>& threads) {
  std::unordered_map<std::string, SpanTime> by_name;
  for (const SpanTimes* thread : threads) {
    for (const Slot& slot : thread->slots_) {
      SpanTime& time = by_name[slot.name];
      time.name = slot.name;
      time.calls += slot.calls;
      time.total += slot.total;
      time.self += slot.self;
    }
  }
  std::vector<SpanTime> times;
  for (auto& [name, time] : by_name) times.push_back(std::move(time));
  std::sort(times.begin(), times.end(), [](const SpanTime& a, const SpanTime& b) {
    return a.total != b.total ? a.total > b.total : a.name < b.name;
  });
  return times;
}

}  // namespace levin
