#pragma once

#include <functional>
#include <string>

namespace levin::log {

/// Takes the messages of the log before the sink does, during its lifetime, such as a progress bar that must redraw
/// itself. Of several scopes the newest one takes them.
class SinkScope {
 public:
  using Sink = std::function<void(const std::string& line)>;
  /// Gets a message, and the sink that set_sink gave last: empty for standard error. It must not log.
  using Show = std::function<void(const std::string& line, const Sink& sink)>;

  explicit SinkScope(Show show);
  ~SinkScope();
  SinkScope(const SinkScope&) = delete;
  SinkScope& operator=(const SinkScope&) = delete;

  /// Has the newest scope show a message; returns false where there is none. For the log.
  static bool show(const std::string& line, const Sink& sink);
};

}  // namespace levin::log
