#pragma once

#include <string>

namespace levin {

/// While work for a device is recorded on this thread, to be done again later: the host's part of it will not run
/// again.
class RecordingScope {
 public:
  RecordingScope();
  ~RecordingScope();
  RecordingScope(const RecordingScope&) = delete;
  RecordingScope& operator=(const RecordingScope&) = delete;
};

bool is_recording();
/// For whatever would go wrong when it is done again. Throws levin::Error while recording: "`what` cannot be recorded".
void refuse_while_recording(const std::string& what, const std::string& hint);

}  // namespace levin
