#pragma once

#include <string>

namespace levin {

/// Marks this thread as recording work of a device to be replayed later, without the host's part of it.
class RecordingScope {
 public:
  RecordingScope();
  ~RecordingScope();
  RecordingScope(const RecordingScope&) = delete;
  RecordingScope& operator=(const RecordingScope&) = delete;
};

bool is_recording();
/// Throws levin::Error "`what` cannot be recorded" while recording. For calls that a replay would leave out.
void refuse_while_recording(const std::string& what, const std::string& hint);

}  // namespace levin
