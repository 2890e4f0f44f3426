#include <levin/core/base/stopped_time.h>

#include <sys/wait.h>

namespace levin {
namespace {

/// Whether the child was stopped, or continued, since it was asked last.
bool has_been(int change, pid_t process) {
  siginfo_t info{};
  return waitid(P_PID, static_cast<id_t>(process), &info, change | WNOHANG) == 0 && info.si_pid == process;
}

}  // namespace

std::optional<StoppedTime::Clock::duration> StoppedTime::look(pid_t process) {
  const Clock::time_point now = Clock::now();
  constexpr std::chrono::seconds kPause{1};
  if (has_been(WCONTINUED, process)) since_.reset();
  if (has_been(WSTOPPED, process) || (since_ && now - last_look_ > kPause)) since_ = now;
  last_look_ = now;
  if (!since_) return std::nullopt;
  return now - *since_;
}

}  // namespace levin
