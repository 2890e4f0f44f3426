#include <levin/core/base/recording.h>

#include <levin/core/base/error.h>

#include <fmt/format.h>

#include <utility>

namespace levin {
namespace {

thread_local int scopes = 0;
thread_local const HostWorkRecorder* host_work_recorder = nullptr;

}  // namespace

RecordingScope::RecordingScope() { ++scopes; }
RecordingScope::~RecordingScope() { --scopes; }

bool is_recording() { return scopes > 0; }

void set_host_work_recorder(const HostWorkRecorder* recorder) { host_work_recorder = recorder; }

bool do_host_work(const std::vector<at::Tensor>& writes, std::function<void()> work) {
  if (host_work_recorder != nullptr) {
    (*host_work_recorder)(writes, std::move(work));
    return true;
  }
  if (is_recording()) return false;
  work();
  return true;
}

void refuse_while_recording(const std::string& what, const std::string& hint) {
  if (is_recording()) throw Error("graph", fmt::format("{} cannot be recorded; hint: {}", what, hint));
}

}  // namespace levin
