#include <levin/core/base/recording.h>

#include <levin/core/base/error.h>

#include <fmt/format.h>

namespace levin {
namespace {

thread_local int scopes = 0;

}  // namespace

RecordingScope::RecordingScope() { ++scopes; }
RecordingScope::~RecordingScope() { --scopes; }

bool is_recording() { return scopes > 0; }

void refuse_while_recording(const std::string& what, const std::string& hint) {
  if (is_recording()) throw Error("cuda_graph", fmt::format("{} cannot be recorded; hint: {}", what, hint));
}

}  // namespace levin
