#include <levin/core/base/recording.h>

#include <levin/core/base/error.h>

#include <fmt/format.h>

#include <utility>

namespace levin {
namespace {

thread_local int scopes = 0;
thread_local RecordingObserver* observer = nullptr;
thread_local bool recorded_step = false;
thread_local const std::string* unit = nullptr;

}  // namespace

RecordingScope::RecordingScope() { ++scopes; }
RecordingScope::~RecordingScope() { --scopes; }

bool is_recording() { return scopes > 0 || observer != nullptr; }

void set_step_is_recorded(bool is_recorded) { recorded_step = is_recorded; }
bool step_is_recorded() { return recorded_step; }

const std::string* set_recording_unit(const std::string* name) { return std::exchange(unit, name); }
const std::string* recording_unit() { return unit; }

void set_recording_observer(RecordingObserver* by) { observer = by; }

bool do_host_work(const std::vector<at::Tensor>& writes, std::function<void()> work) {
  if (observer != nullptr) {
    observer->do_host_work(writes, std::move(work));
    return true;
  }
  if (is_recording()) return false;
  work();
  return true;
}

void refuse_while_recording(const std::string& what, const std::string& hint) {
  if (!is_recording()) return;
  const std::string why = fmt::format("{} cannot be recorded; hint: {}", what, hint);
  if (observer == nullptr) throw Error("graph", why);
  observer->refuse(why);
}

}  // namespace levin
