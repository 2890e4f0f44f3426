#pragma once

#include <sys/types.h>

#include <chrono>
#include <optional>

namespace levin {

/// Launchers kill a rank that has been stopped for so long. While it trains, the others miss its heartbeats before
/// that, and have better words for it.
inline constexpr std::chrono::milliseconds kStoppedLimit{12000};

/// How long a child process has been stopped (SIGSTOP, Ctrl-Z) without being continued: it can neither end nor say so.
class StoppedTime {
 public:
  using Clock = std::chrono::steady_clock;

  /// Looks at the child, several times a second; nothing while it runs. After a longer pause, in which perhaps this
  /// process was stopped too, the time begins anew.
  std::optional<Clock::duration> look(pid_t process);

 private:
  std::optional<Clock::time_point> since_;
  Clock::time_point last_look_{};
};

}  // namespace levin
